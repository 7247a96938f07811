"""Is there a job to which rules leave nothing, where a policy must give everybody something?"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.program import Program
from gavel_py.optimization.solver import LinearSolver

__all__ = ["check_everybody_served"]

Floats = NDArray[np.float64]

NOTHING = 1e-9
"""A part of all GPUs that is as good as none: rules are kept with about this tolerance."""

MOST_NAMED = 5


def check_everybody_served(jobs: JobClasses, fractions: Floats, asker: str) -> None:
    """Raise `InputError` naming jobs, of those with next to no time in (G, K) fractions, to which the rules leave none at all.

    asker: the policy, at whose best level everybody has what it needs; without any time there is no such level.
    """
    gpus = jobs.counts * jobs.num_gpus / jobs.capacities.sum()
    suspects = np.flatnonzero(gpus * fractions.sum(axis=1) <= NOTHING)
    suspects = suspects[np.argsort(jobs.rows[suspects])]
    faults: list[Fault] = []
    for g in suspects.tolist():
        most, rules = _most_time(jobs, g)
        if gpus[g] * most <= NOTHING:
            because = f" beside {' and '.join(rules)}" if rules else ""
            text = (
                f"is left no time{because}, and {asker} needs some for every job: ask for less, make it soft, or leave the job out"
            )
            faults.append(Fault(f"job {jobs.example(g)!r}", "", text))
        if len(faults) == MOST_NAMED:
            break
    InputError.raise_any(faults)


def _most_time(jobs: JobClasses, g: int) -> tuple[float, list[str]]:
    """The most time that jobs of one class can have, and the names of the limits that keep it from being more."""
    program = Program(jobs)
    program.compile(cp.Maximize(program.time[g]), program.rules)
    solution = program.solve(LinearSolver(), "time")
    duals = program.limit_duals(solution)
    names = [row.name for row, dual in zip(jobs.rules.hard_rows, duals, strict=True) if dual > NOTHING]
    return float(program.fractions_of(solution)[g].sum()), names
