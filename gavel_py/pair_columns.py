"""A problem with a column for each kind of partner: jobs that share GPUs, as time fractions of single jobs.

X_i(b,j) is the time for which job i shares GPUs of type j with some job of kind b. That says all that there is to say of pairs:
time that jobs of kind a spend with partners of kind b can be dealt out to pairs of them if and only if it is as much as these
spend with partners of kind a (a table with given sums of rows and columns), and within one kind if no job has more of it than all
others of its kind together (`pairing`). A pair has its GPUs once, so each of the two counts for half of them:

    Σ_j X_ij + Σ_b,j X_i(b,j) <= 1,     Σ_i s_i (X_ij + ½ Σ_b X_i(b,j)) <= c_j,
    Σ_{i of kind a} X_i(b,j) = Σ_{k of kind b} X_k(a,j).

These are columns and rows as any other, so every policy that solves programs shares GPUs without knowing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.further_columns import FurtherColumns, with_columns, with_rules
from gavel_py.job_classes import JobClasses
from gavel_py.pair_speeds import PairSpeeds
from gavel_py.problem import AllocationProblem
from gavel_py.rules import Rules
from gavel_py.two_kinds import spread_part

__all__ = ["PairColumns", "Shared", "lonely_rows", "pair_columns"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

LEAST_EXCESS = 1e-9


class Shared(NamedTuple):
    """What a column is: time on `type` with a partner that stands at place `rank` among the kinds of the same gang size."""

    rank: int
    type: int


@dataclass(frozen=True, eq=False)
class PairColumns(FurtherColumns):
    """In the first column of a type nobody shares; shared: what the others are; useful: (Q, Q, K) the pairs that are there;
    partners: (Q, ranks) the kind at each rank for jobs of each kind, -1 for none.
    """

    pairs: PairSpeeds
    shared: tuple[Shared, ...]
    partners: Indices
    useful: Mask

    @cached_property
    def sides(self) -> tuple[tuple[int, int, int, int, int], ...]:
        """(a, b, type, column of a, column of b) of all kinds a <= b that share on a type."""
        places = {each: len(self.base.capacities) + n for n, each in enumerate(self.shared)}
        ranks = {(a, b): rank for a, row in enumerate(self.partners.tolist()) for rank, b in enumerate(row) if b >= 0}
        there = np.argwhere(self.useful).tolist()
        return tuple((a, b, j, places[Shared(ranks[a, b], j)], places[Shared(ranks[b, a], j)]) for a, b, j in there if a <= b)

    def mended(self, jobs: JobClasses, columns: Floats) -> Floats:
        """Return (G, K') time of each class's jobs in which partners have just the same time, and types no more than their GPUs.

        What is too much by a solver's tolerance is taken away.
        """
        columns = columns.copy()
        counts, kinds = jobs.counts.astype(float), self.pairs.kinds[jobs.rows]
        for a, b, _, one, other in self.sides:
            first, second = kinds == a, kinds == b
            time, their_time = counts[first] @ columns[first, one], counts[second] @ columns[second, other]
            if a != b and time != their_time:
                columns[first, one] *= min(1.0, their_time / time) if time else 1.0
                columns[second, other] *= min(1.0, time / their_time) if their_time else 1.0
        used = np.bincount(self.source, (counts * jobs.num_gpus) @ columns * self.parts, len(self.base.capacities))
        room = np.divide(self.base.capacities, used, out=np.ones_like(used), where=used > self.base.capacities)
        mended: Floats = columns * room[self.source]
        return mended

    def spread(self, columns: Floats) -> Floats | None:
        """Return (N, K) the part of it for which gangs are to be on more nodes than they need, None where nobody knows."""
        return spread_part(self.base, columns[:, : len(self.base.capacities)])


class Members:
    """Which jobs are of which kind, for the many rows that ask about the same jobs one after the other. kinds: (N,)."""

    def __init__(self, kinds: Indices, count: int) -> None:
        self.kinds = kinds
        self._count = count
        self._asked: tuple[Indices, list[Indices]] | None = None
        self._summed: tuple[Floats, Floats] | None = None

    def of(self, rows: Indices) -> list[Indices]:
        """Return for each kind the places of its jobs among those in these rows."""
        if self._asked is None or self._asked[0] is not rows:
            order = np.argsort(self.kinds[rows], kind="stable")
            ends = np.searchsorted(self.kinds[rows][order], np.arange(self._count + 1))
            self._asked = rows, [order[start:end] for start, end in pairwise(ends.tolist())]
        return self._asked[1]

    def sums(self, time_fractions: Floats) -> Floats:
        """Return (Q, K') the time of all jobs of each kind."""
        if self._summed is None or self._summed[0] is not time_fractions:
            sums = [time_fractions[rows].sum(axis=0) for rows in self.of(np.arange(len(self.kinds)))]
            self._summed = time_fractions, np.array(sums)
        return self._summed[1]


@dataclass(frozen=True, eq=False)
class Balance:
    """Σ_{i of kind a} X_i,one − Σ_{k of kind b} X_k,other <= 0: time in one column for which there is a partner in the other."""

    name: str
    members: Members
    of: tuple[int, int]
    columns: tuple[int, int]
    num_columns: int
    most: float = 0.0
    penalty: float | None = None
    grows: ClassVar[bool] = False

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return (self.members.kinds,)

    def costs(self, rows: Indices, num_gpus: Indices) -> Floats:
        table = np.zeros(len(rows) * self.num_columns)
        places, values = self.entries(rows, num_gpus)
        table[places] = values
        return table.reshape(len(rows), self.num_columns)

    def entries(self, rows: Indices, num_gpus: Indices) -> tuple[Indices, Floats]:  # noqa: ARG002
        by_kind = self.members.of(rows)
        one, other = (by_kind[kind] for kind in self.of)
        places = np.concatenate([one * self.num_columns + self.columns[0], other * self.num_columns + self.columns[1]])
        return places, np.repeat([1.0, -1.0], [len(one), len(other)])

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        sums = self.members.sums(time_fractions)
        return float(sums[self.of[0], self.columns[0]] - sums[self.of[1], self.columns[1]])


@dataclass(frozen=True, eq=False)
class Company:
    """X_i − Σ_{k != i of the same kind} X_k <= 0 in one column: nobody is its own partner. signs: (N,) 1 for i, -1 for the rest."""

    name: str
    signs: Floats
    column: int
    num_columns: int
    most: float = 0.0
    penalty: float | None = None
    grows: ClassVar[bool] = False

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return (self.signs,)

    def costs(self, rows: Indices, num_gpus: Indices) -> Floats:  # noqa: ARG002
        table = np.zeros((len(rows), self.num_columns))
        table[:, self.column] = self.signs[rows]
        return table

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        return float(self.signs @ time_fractions[:, self.column])


def pair_columns(problem: AllocationProblem, rules: Rules, pairs: PairSpeeds) -> PairColumns | None:
    """Return the problem with columns for all pairs that gain enough, None if no two of its jobs do."""
    partners = _partners(pairs.sizes)
    there = _there(problem, pairs)
    useful = pairs.useful & (there[:, None] > 0) & (there > 0)
    own = np.arange(len(there))
    useful[own, own] &= there > 1  # nobody is its own partner
    shared = tuple(
        Shared(rank, j)
        for rank in range(partners.shape[1])
        for j in range(len(problem.capacities))
        if any(b >= 0 and useful[a, b, j] for a, b in enumerate(partners[:, rank].tolist()))
    )
    if not shared:
        return None
    speeds = _speeds(problem, pairs, useful, partners, shared)
    source = np.concatenate([np.arange(len(problem.capacities)), [each.type for each in shared]]).astype(np.int64)
    parts = np.repeat([1.0, 0.5], [len(problem.capacities), len(shared)])

    def widened(narrow: AllocationProblem) -> AllocationProblem:
        names = (f"{problem.accelerator_types[each.type]} shared {each.rank}" for each in shared)
        return with_columns(narrow, source, parts, names, speeds, speeds > 0)

    wider, joint = with_rules(problem, rules, source, parts, None if rules.unplaced is None else widened(rules.unplaced))
    made = PairColumns(problem, widened(problem), wider, source, parts, joint, pairs, shared, partners, useful)
    return replace(made, rules=replace(wider, rows=(*wider.rows, *_balances(made)), mend=made.mended))


def lonely_rows(made: PairColumns, columns: Floats) -> list[Company]:
    """Return rows for the jobs that are promised more time with partners of their own kind than these have."""
    rows = []
    for kind, _, j, column, _ in (side for side in made.sides if side[0] == side[1]):
        members = made.pairs.kinds == kind
        times = np.where(members, columns[:, column], 0.0)
        job = int(times.argmax())
        if 2 * times[job] > times.sum() + LEAST_EXCESS:
            name = f"partners of the kind of job {made.base.job_ids[job]!r} on {made.base.accelerator_types[j]}"
            signs = np.where(np.arange(len(members)) == job, 1.0, -members.astype(float))
            rows.append(Company(name, signs, column, columns.shape[1]))
    return rows


def _there(problem: AllocationProblem, pairs: PairSpeeds) -> Indices:
    """(Q, K) how many jobs of each kind may run on each type."""
    counts = np.zeros((len(pairs.sizes), len(problem.capacities)), dtype=np.int64)
    shares = pairs.kinds >= 0
    np.add.at(counts, pairs.kinds[shares], problem.runnable[shares])
    return counts


def _partners(sizes: Indices) -> Indices:
    """(Q, ranks) the kinds of the same size, each at its place among them."""
    groups = {size: np.flatnonzero(sizes == size) for size in np.unique(sizes).tolist()}
    partners = np.full((len(sizes), max(map(len, groups.values()))), -1, dtype=np.int64)
    for kind, size in enumerate(sizes.tolist()):
        partners[kind, : len(groups[size])] = groups[size]
    return partners


def _speeds(problem: AllocationProblem, pairs: PairSpeeds, useful: Mask, partners: Indices, shared: Sequence[Shared]) -> Floats:
    """(N, columns) steps/s of each job in each column, 0 where it does not share."""
    speeds = np.zeros((problem.num_jobs, len(shared)))
    able = np.flatnonzero(pairs.kinds >= 0)
    for n, each in enumerate(shared):
        by_kind = np.zeros(len(pairs.sizes))
        some = np.flatnonzero(partners[:, each.rank] >= 0)
        there = partners[some, each.rank]
        by_kind[some] = np.where(useful[some, there, each.type], pairs.speeds[some, there, each.type], 0.0)
        speeds[able, n] = by_kind[pairs.kinds[able]]
    return speeds


def _balances(made: PairColumns) -> list[Balance]:
    """Both directions of the rows by which partners have each other for the same time."""
    members, count = Members(made.pairs.kinds, len(made.pairs.sizes)), made.problem.throughputs.shape[1]
    rows = []
    for a, b, j, one, other in made.sides:
        name = f"partners on {made.base.accelerator_types[j]}"
        if a != b:
            rows += [Balance(name, members, (a, b), (one, other), count), Balance(name, members, (b, a), (other, one), count)]
    return rows
