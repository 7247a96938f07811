"""Lexicographic max-min by its definition, with a sequence of dense linear programs in scipy: for small problems only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

import gavel_py as gp
from tests.support.instances import TIGHT, Floats, valid_rows

__all__ = ["leximin"]

SLACKS = (1e-11, 1e-10, 1e-9)
"""Relative tolerances of the levels reached so far: the first that leaves the next program feasible is used."""

RISES = 1e-7
"""A job that can rise by no more than this part of its level cannot rise."""


def leximin(
    problem: gp.AllocationProblem,
    gains: Floats,
    *,
    rows: Floats | None = None,
    limits: Floats | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return (N,) u_i = Σ_j gains_ij X_ij of the valid X with the largest minimum, then the largest second smallest u, and so on.

    All free jobs are raised to the largest common level; those that cannot exceed it, even if every other job only keeps its
    level, are fixed. Jobs that can run nowhere stay at 0.
    rows, limits: (R, N K) and (R,) of further constraints, rows X <= limits; allowed: (N, K) where jobs may run.
    """
    space = _Space.of(problem, gains, rows, limits, allowed)
    undecided = set(np.flatnonzero(space.allowed.any(axis=1)).tolist())
    levels = np.zeros(problem.num_jobs)
    while undecided:
        best = space.most(levels, sorted(undecided))
        levels[list(undecided)] = best
        stuck = {i for i in undecided if space.most(levels, [i]) <= best * (1 + RISES) + 1e-12}
        assert stuck, f"nobody is stopped at level {best}"
        undecided -= stuck
    return levels


@dataclass
class _Space:
    """The feasible allocations, rows X <= limits and X = 0 where not allowed, and their values for each job."""

    gains: Floats
    rows: Floats
    limits: Floats
    allowed: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        problem: gp.AllocationProblem,
        gains: Floats,
        rows: Floats | None,
        limits: Floats | None,
        allowed: NDArray[np.bool_] | None,
    ) -> _Space:
        valid, most = valid_rows(problem)
        if rows is not None and limits is not None:
            valid, most = np.vstack([valid, rows]), np.concatenate([most, limits])
        return cls(gains, valid, most, problem.runnable if allowed is None else allowed)

    def most(self, levels: Floats, rising: list[int]) -> float:
        """Return the largest common level of all `rising` jobs, while every other job keeps its level."""
        n, k = self.gains.shape
        fastest = self.gains.max(axis=1)
        units = np.where(fastest > 0, fastest, 1.0)
        rises = np.isin(np.arange(n), rising)
        per_job = np.zeros((n, n * k + 1))
        for i in range(n):
            per_job[i, i * k : (i + 1) * k] = -self.gains[i] / units[i]
        per_job[:, -1] = rises / units
        own = np.hstack([self.rows, np.zeros((len(self.rows), 1))])
        for slack in SLACKS:
            kept = np.where(rises, 0.0, -levels * (1 - slack) / units)
            answer = linprog(
                np.append(np.zeros(n * k), -1.0),
                np.vstack([own, per_job]),
                np.concatenate([self.limits, kept]),
                bounds=[*((0, float(runs)) for runs in self.allowed.ravel()), (0, None)],
                method="highs",
                options=TIGHT,
            )
            if answer.status == 0:
                return float(-answer.fun)
        raise AssertionError(answer.message)
