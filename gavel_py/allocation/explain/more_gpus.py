"""What one more GPU of each type would change: the problem solved once more for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gavel_py.allocation.allocation import Allocation
from gavel_py.allocation.allocator import Solver
from gavel_py.allocation.explain.places import closed_by
from gavel_py.allocation.explain.reasons import is_certain
from gavel_py.allocation.explain.records import OneMoreGpu
from gavel_py.errors import GavelError
from gavel_py.problem.fields import plain_size
from gavel_py.problem.problem import AllocationProblem

__all__ = ["one_more_of_each"]


def one_more_of_each(problem: AllocationProblem, now: Allocation, solver: Solver, i: int) -> Iterator[OneMoreGpu]:
    """Yield what job i and the objective would get with one more GPU of each type, normalisers as they are."""
    for j, name in enumerate(problem.accelerator_types):
        closed = _closed(problem, now, i, j)
        try:
            then = solver.solve(problem.with_capacities(problem.capacities + (np.arange(len(problem.capacities)) == j)))
        except GavelError as error:
            yield OneMoreGpu(name, None, None, None, None, certain=False, closed=closed, failed=str(error))
        else:
            yield _compared(now, then, i, name, closed)


def _compared(now: Allocation, then: Allocation, i: int, name: str, closed: str) -> OneMoreGpu:
    before, after = now.objective_value, then.objective_value
    assert then.evidence is not None  # noqa: S101
    return OneMoreGpu(
        accelerator=name,
        throughput=float(then.throughputs[i]),
        throughput_change=float(then.throughputs[i] - now.throughputs[i]),
        objective=after,
        objective_change=None if before is None or after is None else after - before,
        certain=is_certain(then, then.evidence, i),
        closed=closed,
    )


def _closed(problem: AllocationProblem, now: Allocation, i: int, j: int) -> str:
    """Why job i cannot run on type j, with one GPU more of it either; empty where it can."""
    assert now.evidence is not None  # noqa: S101
    size = plain_size(problem.num_gpus[i])
    gang = f"its gang of {size}" if size >= 1 else f"its {size:g} of a GPU"
    if now.evidence.asked.runnable[i, j]:
        return ""
    if problem.runnable[i, j]:
        return f"{closed_by(now.evidence, i).get(j, 'a constraint')} keeps it off"
    if problem.throughputs[i, j] == 0:
        return "it cannot run there"
    if problem.capacities[j] < size <= problem.capacities[j] + 1:
        return f"{gang} does not fit there now, and whether nodes would hold it then, a count does not tell"
    return f"{gang} cannot be placed there" if size > problem.capacities[j] else "it may not run there, or no nodes or GPUs hold it"
