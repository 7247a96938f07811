"""Mixes of packing patterns: whether time fractions can be delivered on accelerator types, and the cut that proves that they
cannot.

A pattern is a set of jobs that can run at the same time. In the long run a mix of patterns runs, pattern p for λ_p of the time,
Σ_p λ_p <= 1. Jobs of one group are interchangeable, and each holds at most one place at a time: so the k of them with the most time
can have no more than Σ_p λ_p·min(k, n_p) together, where n_p is the number of their places in pattern p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import LinearProgram, solved_once
from gavel_py.problem.arrays import Floats, Indices

ONE_EACH: Mapping[int, Mapping[int, float]] = MappingProxyType({})
"""No type has several columns."""

SAME_TIME = 1e-9
"""Time fractions that differ by no more than this count as equal."""

LEAST_EXCESS = 1e-7
"""Relative excess up to which time fractions count as deliverable."""


@dataclass(frozen=True, eq=False)
class Group:
    """The entries of one gang size and locality, by falling time. limit: the number that fits at the same time.

    numbers: the k for which the k entries with the most time are checked; the last is all of them. Σ_p λ_p·min(k, n_sp) is concave
    in k, and the sum of the k largest times is linear in k where times are equal, so the ends of equal times suffice.
    """

    size: int
    locality: str
    entries: Indices
    limit: int
    numbers: list[int]

    def rooms(self, counts: Indices) -> Floats:
        """Return (k, P) the places that k entries can hold in each pattern. counts: (P,) places of the group."""
        return np.array([np.minimum(k, counts) for k in self.numbers], dtype=float)

    def requested(self, times: Floats) -> Floats:
        """Return (k,) the total time of the k entries with the most."""
        sums: Floats = np.cumsum(times[self.entries])[np.array(self.numbers) - 1]
        return sums

    def coefficients(self, times: Floats, prices: Floats) -> Floats:
        """Return the coefficient of each entry: the sum of the prices of all k that include it, averaged over equal times."""
        sums = np.zeros(len(self.entries))
        for k, price in zip(self.numbers, prices, strict=True):
            sums[:k] += price
        same = np.unique(np.round(times[self.entries], 9), return_inverse=True)[1]
        means: Floats = np.bincount(same, sums) / np.bincount(same)
        return means[same]


def group_of(size: int, locality: str, entries: Indices, times: Floats, limit: int) -> Group:
    """Return the group of these entries, sorted by falling time."""
    ends = np.flatnonzero(times[: limit - 1] - times[1:limit] > SAME_TIME) + 1
    return Group(size, locality, entries, limit, [*ends.tolist(), len(entries)])


def row_of_patterns(
    groups: Sequence[Group], times: Floats, patterns: Indices, enough: float = 1 - LEAST_EXCESS
) -> tuple[list[Floats], float] | None:
    """Return a row that all mixes of (P, groups) patterns satisfy and these times break, None if some mix delivers them.

    The row consists of coefficients of the entries of each group and the right-hand side. enough: the part of the times that counts
    as all of them.
    """
    requested = [group.requested(times) for group in groups]
    rooms = np.vstack([group.rooms(counts) for group, counts in zip(groups, patterns.T, strict=True)])
    # Patterns near the mean suffice for most mixes; each pattern has as many of the last group as fit.
    near = (np.abs(patterns[:, :-1] - [each[-1] for each in requested[:-1]]) < 1).all(axis=1)
    if near.any() and best_mix(rooms[:, near], np.concatenate(requested))[0] >= enough:
        return None
    found = broken_row(rooms, np.concatenate(requested), enough)
    if found is None:
        return None
    ends = np.cumsum([len(group.numbers) for group in groups])
    own = np.split(found[0], ends[:-1])
    return [group.coefficients(times, each) for group, each in zip(groups, own, strict=True)], found[1]


def broken_row(rooms: Floats, requested: Floats, enough: float = 1 - LEAST_EXCESS) -> tuple[Floats, float] | None:
    """Return (R,) prices y >= 0 and the largest Σ_r y_r rooms_rp of (R, P) patterns, which Σ_r y_r requested_r exceeds.

    None if a mix delivers the part `enough` of the requests. Rows without a request get the largest price that does not weaken the
    cut, so that time does not move there next (lifting).
    """
    some = requested > 0
    deliverable, own = best_mix(rooms[some], requested[some])
    if deliverable >= enough:
        return None
    prices = np.zeros(len(requested))
    prices[some] = own
    used = own @ rooms[some]
    limit = float(used.max())
    for r in np.flatnonzero(~some).tolist():
        there = rooms[r] > 0
        prices[r] = float(((limit - used[there]) / rooms[r, there]).min(initial=np.inf)) if there.any() else 0.0
        used = used + prices[r] * rooms[r]
    return prices, max(limit, float(used.max()))


def best_mix(rooms: Floats, requested: Floats) -> tuple[float, Floats]:
    """Return the largest α <= 1 with Σ_p λ_p rooms_rp >= α requested_r and Σ_p λ_p <= 1, and the prices y >= 0 of the rows.

    By duality, Σ_r y_r requested_r = 1 and Σ_r y_r rooms_rp <= α for every pattern p if α < 1.
    """
    rows, patterns = rooms.shape
    matrix = np.empty((rows + 1, patterns + 1))
    matrix[:rows, :patterns], matrix[rows, :patterns] = -rooms, 1.0
    matrix[:rows, patterns], matrix[rows, patterns] = requested, 0.0
    columns, entries = np.divmod(np.arange(matrix.size), rows + 1)  # nearly all entries are nonzero, so zeros are stored too
    program = LinearProgram(
        costs=np.append(np.zeros(patterns), -1.0),
        offset=0.0,
        matrix=SparseMatrix(entries, columns, matrix.T.ravel(), (rows + 1, patterns + 1)),
        limits=np.append(np.zeros(rows), 1.0),
        equalities=0,
        lower=np.zeros(patterns + 1),
        upper=np.append(np.full(patterns, np.inf), 1.0),
    )
    answer = solved_once(program)
    return -answer.value, answer.duals[:-1]
