"""Mixes of patterns: whether what is asked of accelerator types can be delivered, and the prices that show that it cannot.

A pattern is what can run at any one time. In the long run a mix of patterns runs, pattern p for λ_p of the time, Σ_p λ_p <= 1. Jobs
of one group can stand for one another, and each holds at most one place at a time: so those k of them with the most time can have
no more than Σ_p λ_p·min(k, n_p) together, n_p their places in pattern p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.optimization.solving.highs import LinearProgram, solved_once
from gavel_py.problem.arrays import Floats, Indices

if TYPE_CHECKING:
    import scipy.sparse as sp

ONE_EACH: Mapping[int, Mapping[int, float]] = MappingProxyType({})
"""No type has several columns."""

SAME_TIME = 1e-9
"""Time fractions that differ by no more are equal."""

LEAST_EXCESS = 1e-7
"""Time fractions that exceed what can be delivered by a smaller part are taken for deliverable."""


@dataclass(frozen=True, eq=False)
class Group:
    """The entries of one gang size and locality, those with the most time first; most: of them at once.

    numbers: the k for which those k with the most time are looked at; the last is all of them. Σ_p λ_p·min(k, n_sp) is concave in
    k, and what is asked is linear in it while times are equal, so the ends of equal times are enough.
    """

    size: int
    locality: str
    entries: Indices
    most: int
    numbers: list[int]

    def rooms(self, counts: Indices) -> Floats:
        """(k, P) the places that k of them can hold at once in each pattern."""
        return np.array([np.minimum(k, counts) for k in self.numbers], dtype=float)

    def asked(self, times: Floats) -> Floats:
        """(k,) the time of those k with the most."""
        sums: Floats = np.cumsum(times[self.entries])[np.array(self.numbers) - 1]
        return sums

    def coefficients(self, times: Floats, prices: Floats) -> Floats:
        """What a job's time counts for: the prices of all k in which it is among the k, their mean for jobs with the same time."""
        alone = np.zeros(len(self.entries))
        for k, price in zip(self.numbers, prices, strict=True):
            alone[:k] += price
        same = np.unique(np.round(times[self.entries], 9), return_inverse=True)[1]
        means: Floats = np.bincount(same, alone) / np.bincount(same)
        return means[same]


def group_of(size: int, locality: str, entries: Indices, times: Floats, most: int) -> Group:
    """Return the group of these entries, which have falling times."""
    ends = np.flatnonzero(times[: most - 1] - times[1:most] > SAME_TIME) + 1
    return Group(size, locality, entries, most, [*ends.tolist(), len(entries)])


def row_of_patterns(
    groups: Sequence[Group], times: Floats, patterns: Indices, enough: float = 1 - LEAST_EXCESS
) -> tuple[list[Floats], float] | None:
    """Return a row that all mixes of (P, groups) patterns keep and these times do not, None if some mix has room for them.

    The row is coefficients of the entries of each group, and what they sum up to at most. enough: the part of these times with
    which a mix has room for them.
    """
    asked = [group.asked(times) for group in groups]
    rooms = np.vstack([group.rooms(counts) for group, counts in zip(groups, patterns.T, strict=True)])
    # Most mixes need no other patterns than those near the mean; of the last group, each has as many as fit.
    near = (np.abs(patterns[:, :-1] - [each[-1] for each in asked[:-1]]) < 1).all(axis=1)
    if near.any() and best_mix(rooms[:, near], np.concatenate(asked))[0] >= enough:
        return None
    found = broken_row(rooms, np.concatenate(asked), enough)
    if found is None:
        return None
    ends = np.cumsum([len(group.numbers) for group in groups])
    own = np.split(found[0], ends[:-1])
    return [group.coefficients(times, each) for group, each in zip(groups, own, strict=True)], found[1]


def broken_row(rooms: Floats, asked: Floats, enough: float = 1 - LEAST_EXCESS) -> tuple[Floats, float] | None:
    """Return (R,) prices y >= 0 and the largest Σ_r y_r rooms_rp of (R, P) patterns, which Σ_r y_r asked_r exceeds.

    None if a mix delivers that part of what is asked. What nobody asks for gets the price that it can have besides, so that time
    does not move there next.
    """
    some = asked > 0
    deliverable, own = best_mix(rooms[some], asked[some])
    if deliverable >= enough:
        return None
    prices = np.zeros(len(asked))
    prices[some] = own
    used = own @ rooms[some]
    most = float(used.max())
    for r in np.flatnonzero(~some).tolist():
        there = rooms[r] > 0
        prices[r] = float(((most - used[there]) / rooms[r, there]).min(initial=np.inf)) if there.any() else 0.0
        used = used + prices[r] * rooms[r]
    return prices, max(most, float(used.max()))


def best_mix(rooms: Floats, asked: Floats) -> tuple[float, Floats]:
    """Return the most α <= 1 with Σ_p λ_p rooms_rp >= α asked_r and Σ_p λ_p <= 1, and the prices y >= 0 of the rows.

    By duality Σ_r y_r asked_r = 1 and Σ_r y_r rooms_rp <= α for every pattern p where α < 1.
    """
    rows, patterns = rooms.shape
    matrix = np.empty((rows + 1, patterns + 1))
    matrix[:rows, :patterns], matrix[rows, :patterns] = -rooms, 1.0
    matrix[:rows, patterns], matrix[rows, patterns] = asked, 0.0
    program = LinearProgram(
        costs=np.append(np.zeros(patterns), -1.0),
        offset=0.0,
        matrix=_by_columns(matrix),
        limits=np.append(np.zeros(rows), 1.0),
        equalities=0,
        lower=np.zeros(patterns + 1),
        upper=np.append(np.full(patterns, np.inf), 1.0),
    )
    answer = solved_once(program)
    return -answer.value, answer.duals[:-1]


def _by_columns(matrix: Floats) -> sp.csc_array:
    """The same matrix as sparse, its zeros kept: hardly any are there."""
    import scipy.sparse as sp

    rows, columns = matrix.shape
    starts = np.arange(0, matrix.size + 1, rows)
    return sp.csc_array((matrix.T.ravel(), np.tile(np.arange(rows), columns), starts), shape=matrix.shape)
