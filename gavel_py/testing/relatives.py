"""Rules that compare the answer to a problem with the answers to its relatives: what may change, and what may not."""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.testing.problems import BY_JOB, Case, job_count
from gavel_py.testing.trial import SOLVED, InapplicableError, Trial, problem_code

__all__ = ["excluded", "more_gpus", "names", "order", "reads", "units"]

OTHER = "other_allocation = gp.solve(other, policy)"


def order(trial: Trial) -> None:
    """The same jobs, in another order and in other rows of what a policy sees, which the order of the jobs does not change."""
    if isinstance(trial.failure, gp.PolicyError) and trial.failure.check == "order":
        trial.breaks("the same objective however jobs are put into rows", f"PolicyError: {trial.failure}", SOLVED)
    count = trial.problem.num_jobs
    if trial.failure is not None or count < 2:
        raise InapplicableError
    for rows in (list(range(count))[::-1], [*range(1, count), 0]):
        line = f"other = problem.select(np.array({rows}))"
        other = trial.relative(trial.problem.select(np.array(rows)), line)
        _same_rows(trial, trial.allocation.time_fractions[rows], other, rows, line)
    if trial.policy.reduces:
        _same_in_other_rows(trial)


def _same_in_other_rows(trial: Trial) -> None:
    """With a row for each job, in the order of the problem, instead of a row for each class."""

    class OneByOne(type(trial.policy)):  # type: ignore[misc]
        reduces = False

    apart = copy(trial.policy)
    object.__setattr__(apart, "__class__", OneByOne)
    by_job = 'class OneByOne(type(policy)):\n    reduces = False\n\nobject.__setattr__(policy, "__class__", OneByOne)'
    for rows in (list(range(trial.problem.num_jobs)), [*range(1, trial.problem.num_jobs), 0]):
        try:
            found = gp.solve(trial.problem.select(np.array(rows)), apart)
        except gp.SolverError:
            continue  # one row per job is the last way of solving a problem, and has no other to fall back on
        _same_objective(trial, found, rows, f"other = problem.select(np.array({rows}))\n{by_job}")


def names(trial: Trial) -> None:
    ids = trial.problem.job_ids
    renamed = [f"task-{job_id.rpartition('-')[2]}" for job_id in ids]
    other = trial.case | {"job_ids": renamed}
    code = problem_code("other", other)
    found = trial.relative(gp.AllocationProblem.from_arrays(**other), code)
    _same_rows(trial, trial.allocation.time_fractions, found, list(range(len(ids))), code)


def reads(trial: Trial) -> None:
    """Attributes that are not declared go to the next job, as far as that leaves finished jobs as they are."""
    of_family = ("arrival_seconds", "running_on") if isinstance(trial.policy, gp.OrderedPolicy) else ()
    known = ("throughputs", "num_gpus", "job_ids", *of_family, *trial.policy.reads)
    left = trial.case.get("steps_remaining", [1.0] * job_count(trial.case))
    going = [i for i, steps in enumerate(left) if steps > 0]
    changes: Case = {}
    for name in trial.case:
        if name in BY_JOB and name not in known:
            values = list(trial.case[name])
            for i, before in zip(going, [*going[1:], *going[:1]], strict=True):
                values[i] = trial.case[name][before]
            if values != trial.case[name]:
                changes[name] = values
    if not changes:
        raise InapplicableError
    code = problem_code("other", trial.case | changes)
    found = trial.relative(gp.AllocationProblem.from_arrays(**(trial.case | changes)), code)
    undeclared = f"whatever its {' and '.join(changes)}, not declared in `reads`"
    _same_rows(trial, trial.allocation.time_fractions, found, list(range(len(left))), code, said=undeclared)


def units(trial: Trial) -> None:
    count = job_count(trial.case)
    scales = [(2.0**20, 1.0, 2.0**-20)[i % 3] for i in range(count)]
    changes: Case = {"throughputs": [[f * rate for rate in row] for f, row in zip(scales, trial.case["throughputs"], strict=True)]}
    for name in ("steps_remaining", "total_steps"):
        if name in trial.case:
            changes[name] = [f * steps for f, steps in zip(scales, trial.case[name], strict=True)]
    code = problem_code("other", trial.case | changes)
    found = trial.relative(gp.AllocationProblem.from_arrays(**(trial.case | changes)), code)
    _same_objective(trial, found, list(range(count)), code)


def more_gpus(trial: Trial) -> None:
    value = trial.allocation.objective_value
    if value is None:
        raise InapplicableError
    sign = -1.0 if getattr(trial.policy, "direction", "max") == "min" else 1.0
    for j in range(len(trial.problem.capacities)):
        counts = trial.problem.capacities + (np.arange(len(trial.problem.capacities)) == j)
        line = f"other = problem.with_capacities({counts.tolist()})"
        other = trial.relative(trial.problem.with_capacities(counts), line)
        if other.objective_value is None or sign * (value - other.objective_value) > trial.tolerance(other):
            word = "more" if sign < 0 else "less"
            trial.breaks(f"an objective of no {word} than {value!r}", repr(other.objective_value), SOLVED, line, OTHER)


def excluded(trial: Trial) -> None:
    problem, found = trial.problem, trial.allocation
    rows = np.flatnonzero(problem.runnable.any(axis=1))
    if len(rows) in (0, problem.num_jobs):
        raise InapplicableError
    out = sorted(set(range(problem.num_jobs)) - set(rows.tolist()))
    for i in out:
        if found.time_fractions[i].any() or problem.job_ids[i] not in found.excluded:
            trial.breaks(f"{trial.name(i)} to be excluded without any time", str(found.time_fractions[i].tolist()), SOLVED)
    line = f"other = problem.select(np.array({rows.tolist()}))"
    other = trial.relative(problem.select(rows), line)
    _same_objective(trial, other, rows.tolist(), line)


def _same_rows(
    trial: Trial,
    expected: NDArray[np.float64],
    other: gp.Allocation,
    rows: list[int],
    line: str,
    tolerance: float = 0.0,
    said: str = "as before",
) -> None:
    """Compare rows of an answer with another one's, bit for bit unless there is a tolerance; rows: which jobs they are."""
    differ = np.flatnonzero(~(np.abs(expected - other.time_fractions) <= tolerance).all(axis=1))
    for k in differ[:1].tolist():
        text = f"{trial.name(rows[k])} to get {expected[k].tolist()} {said}"
        trial.breaks(text, str(other.time_fractions[k].tolist()), SOLVED, line, OTHER)


def _same_objective(trial: Trial, other: gp.Allocation, rows: list[int], line: str) -> None:
    """Compare objectives, since equally good answers may differ; where there is none, the answers; rows: which jobs are there."""
    found = trial.allocation
    if found.objective_value is None or other.objective_value is None:
        _same_rows(trial, found.time_fractions[rows], other, rows, line, 1e-9)
    elif abs(found.objective_value - other.objective_value) > trial.tolerance(other):
        text = f"an objective of {found.objective_value!r} as before"
        trial.breaks(text, repr(other.objective_value), SOLVED, line, OTHER)
