"""From a problem that shows a fault to a small one that shows it too, by leaving out what does not matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gavel_py.testing.problems import Case, job_count, with_jobs, with_types
from gavel_py.testing.trial import BrokenError

__all__ = ["smallest"]

ROUNDS = 2
"""What does not matter once some jobs are gone may have mattered before."""


def smallest(fault: Callable[[Case], BrokenError | None], case: Case, found: BrokenError) -> tuple[Case, BrokenError]:
    """Return a smaller case that shows a fault too, and that fault; `fault` looks for it in a case.

    Jobs, accelerator types and arrays are left out one at a time as long as a fault is still there.
    """
    for _ in range(ROUNDS):
        for step in _steps(case):
            candidate = step(case)
            if candidate is not None and (still := fault(candidate)) is not None:
                case, found = candidate, still
    return case, found


def _steps(case: Case) -> Iterator[Callable[[Case], Case | None]]:
    """Ways to make a case smaller, from the last job, type and array to the first, so that those before keep their places."""
    for i in reversed(range(job_count(case))):
        yield partial(_without_job, row=i)
    for j in reversed(range(len(case["capacities"]))):
        yield partial(_without_type, column=j)
    for name in reversed([name for name in case if name not in ("throughputs", "capacities")]):
        yield partial(_without_array, gone=name)


def _without_job(case: Case, row: int) -> Case | None:
    jobs = job_count(case)
    return with_jobs(case, [i for i in range(jobs) if i != row]) if jobs > 1 else None


def _without_type(case: Case, column: int) -> Case | None:
    types = len(case["capacities"])
    return with_types(case, [j for j in range(types) if j != column]) if types > 1 else None


def _without_array(case: Case, gone: str) -> Case:
    return {name: values for name, values in case.items() if name != gone}
