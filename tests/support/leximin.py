"""Lexicographic max-min by its definition, in exact arithmetic: for small problems only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import gavel_py as gp
from tests.support.instances import Floats, valid_rows
from tests.support.rational import fill

__all__ = ["Space", "equal_speeds", "leximin"]

SLACK = 1e-11
"""Relative tolerance of further constraints, which rounding may have made impossible to meet."""

SAME_SPEED = 3e-7
"""Relative difference up to which speeds of a job count as equal, as the policies promise. Otherwise it would take all time of
others on one of two types for a last digit.
"""


def leximin(
    problem: gp.AllocationProblem,
    gains: Floats,
    *,
    rows: Floats | None = None,
    limits: Floats | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return (N,) u_i = Σ_j gains_ij X_ij of the valid X with the largest minimum, then the largest second smallest u, and so on.

    Jobs that can run nowhere stay at 0. The arguments are those of `Space.of_times`.
    """
    return Space.of_times(problem, gains, rows=rows, limits=limits, allowed=allowed).leximin()


class Space(NamedTuple):
    """Values gains·z of N jobs over the z >= 0 with rows·z <= limits. gains: (N, n); rows: (R, n); limits: (R,)."""

    gains: Floats
    rows: Floats
    limits: Floats

    @classmethod
    def of_times(
        cls,
        problem: gp.AllocationProblem,
        gains: Floats,
        *,
        rows: Floats | None = None,
        limits: Floats | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Space:
        """Return the values Σ_j gains_ij X_ij of valid time fractions.

        rows, limits: (R, N K) and (R,) of further constraints, rows X <= limits; allowed: (N, K) where jobs may run.
        """
        valid, most = valid_rows(problem)
        if rows is not None and limits is not None:
            valid, most = np.vstack([valid, rows]), np.concatenate([most, limits + SLACK * np.abs(limits)])
        allowed = problem.runnable if allowed is None else allowed
        table = np.eye(len(gains))[:, :, None] * equal_speeds(gains, allowed)
        columns = np.flatnonzero(allowed)
        return cls(table.reshape(len(gains), -1)[:, columns], valid[:, columns], most)

    @classmethod
    def of_whole_gangs(cls, problem: gp.AllocationProblem, gains: Floats) -> Space:
        """Return the values that mixes of the sets of whole gangs deliver which fit on the GPUs of all types at once."""
        gains = np.column_stack([equal_speeds(gains, problem.runnable), np.zeros(len(gains))])  # the last place is nowhere
        places = np.array(list(_placements(problem)))
        return cls(gains[np.arange(len(gains)), places].T, np.ones((1, len(places))), np.ones(1))

    def leximin(self) -> Floats:
        """Return (N,) the values with the largest minimum, then the largest second smallest, and so on."""
        return self.risen(lambda rising: np.isin(np.arange(len(self.gains)), rising).astype(float))

    def risen(self, rates: Callable[[list[int]], Floats]) -> Floats:
        """Return (N,) the values to which jobs rise at (N,) `rates`, a function of those that can rise."""
        return fill(self.gains, rates, self.rows, self.limits)


def equal_speeds(gains: Floats, allowed: NDArray[np.bool_]) -> Floats:
    """Return (N, K) gains with those of each job that count as equal (`SAME_SPEED`) at the least of them, from the least one on."""
    equal = gains.copy()
    for speeds, types in zip(equal, allowed, strict=True):
        left = set(np.flatnonzero(types).tolist())
        while left:
            least = min(speeds[j] for j in left)
            alike = [j for j in left if speeds[j] <= least * (1 + SAME_SPEED)]
            speeds[alike] = least
            left.difference_update(alike)
    return equal


def _placements(problem: gp.AllocationProblem) -> Iterator[list[int]]:
    """Yield the type of each job, K for nowhere, in all ways that fit at once and leave no room for a further job."""
    nowhere = problem.throughputs.shape[1]
    sizes, types = problem.num_gpus.tolist(), [np.flatnonzero(able).tolist() for able in problem.runnable]

    def extended(placed: list[int], free: list[float]) -> Iterator[list[int]]:
        if len(placed) == len(sizes):
            if not any(j == nowhere and any(free[k] >= sizes[i] for k in types[i]) for i, j in enumerate(placed)):
                yield placed
            return
        size = sizes[len(placed)]
        for j in types[len(placed)]:
            if free[j] >= size:
                yield from extended([*placed, j], [gpus - size * (k == j) for k, gpus in enumerate(free)])
        yield from extended([*placed, nowhere], free)

    return extended([], problem.capacities.tolist())
