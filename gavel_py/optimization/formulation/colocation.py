"""Jobs that share GPUs: a column for each kind of partner, the rows that partners keep, and the pairs of jobs that follow.

X_i(b,j) is the time for which job i shares GPUs of type j with some job of kind b. That says all that there is to say of pairs:
time that jobs of kind a spend with partners of kind b can be dealt out to pairs of them if and only if it is as much as these spend
with partners of kind a (a table with given sums of rows and columns), and within one kind if no job has more of it than all others
of its kind together (`deal`). A pair has its GPUs once, so each of the two counts for half of them:

    Σ_j X_ij + Σ_b,j X_i(b,j) <= 1,     Σ_i s_i (X_ij + ½ Σ_b X_i(b,j)) <= c_j,
    Σ_{i of kind a} X_i(b,j) = Σ_{k of kind b} X_k(a,j).

These are columns and rows like any other, so every policy that solves programs shares GPUs without knowing of it. `Balance` is the
last of these rows in either direction, and `SelfPairingCut` is the row by which no job is its own partner. The columns are written
down for one job of each class of equal jobs (`PairColumns`): all of them would be many times the arrays of the problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.checking.time_shares import ClassTimes
from gavel_py.optimization.formulation.columns import FurtherColumns, with_columns, with_rules
from gavel_py.optimization.formulation.linear_rows import Load, Row, Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.pair_throughputs import PairSpeeds
from gavel_py.problem.problem import AllocationProblem


class Members:
    """Which jobs are of which kind, for the many rows that ask about the same jobs one after the other. kinds: (N,)."""

    def __init__(self, kinds: Indices, count: int) -> None:
        self.kinds = kinds
        self._count = count
        self._asked: tuple[Indices, list[Indices]] | None = None

    def of(self, rows: Indices) -> list[Indices]:
        """Return for each kind the places of its jobs among those in these rows."""
        if self._asked is None or self._asked[0] is not rows:
            order = np.argsort(self.kinds[rows], kind="stable")
            ends = np.searchsorted(self.kinds[rows][order], np.arange(self._count + 1))
            self._asked = rows, [order[start:end] for start, end in pairwise(ends.tolist())]
        return self._asked[1]


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

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:
        table = np.zeros(len(rows) * self.num_columns)
        places, values = self.entries(rows, num_gpus)
        table[places] = values
        return table.reshape(len(rows), self.num_columns)

    def entries(self, rows: Indices, num_gpus: Floats) -> tuple[Indices, Floats]:  # noqa: ARG002
        by_kind = self.members.of(rows)
        one, other = (by_kind[kind] for kind in self.of)
        places = np.concatenate([one * self.num_columns + self.columns[0], other * self.num_columns + self.columns[1]])
        values = np.ones(len(places))
        values[len(one) :] = -1.0
        return places, values

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        one, other = (
            time_fractions[self.members.kinds == kind, column].sum() for kind, column in zip(self.of, self.columns, strict=True)
        )
        return float(one - other)


@dataclass(frozen=True, eq=False)
class SelfPairingCut:
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

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:  # noqa: ARG002
        table = np.zeros((len(rows), self.num_columns))
        table[:, self.column] = self.signs[rows]
        return table

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        return float(self.signs @ time_fractions[:, self.column])


LEAST_EXCESS = 1e-9


class Shared(NamedTuple):
    """What a column is: time on `type` with a partner that stands at place `rank` among the kinds of the same gang size."""

    rank: int
    type: int


@dataclass(frozen=True, eq=False)
class Sides:
    """The M places where two kinds of jobs share, of each two kinds and type one. one, other: (M,) the kinds, one <= other; types:
    (M,); column, their_column: (M,) the columns in which each of the two spends the time with the other.
    """

    one: Indices
    other: Indices
    types: Indices
    column: Indices
    their_column: Indices

    def those(self, which: Mask) -> list[tuple[int, int, int, int, int]]:
        """Return some of them, one after the other."""
        table = np.stack([self.one, self.other, self.types, self.column, self.their_column])
        return [(a, b, j, one, other) for a, b, j, one, other in table[:, which].T.tolist()]


@dataclass(frozen=True, eq=False)
class PairColumns(FurtherColumns):
    """In the first column of a type nobody shares; shared: what the others are; sides: who shares where; speeds: (Q + 1, others)
    steps/s of the jobs of each kind there, 0 where they do not share; the last row is for those that share with nobody.
    """

    pairs: PairSpeeds
    shared: tuple[Shared, ...]
    sides: Sides
    speeds: Floats

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        """The names of all columns."""
        types = self.base.accelerator_types
        return (*types, *(f"{types[each.type]} shared {each.rank}" for each in self.shared))

    def widened(self, narrow: AllocationProblem) -> AllocationProblem:
        """Return the problem of some jobs with all columns."""
        assert narrow.pairs is not None  # noqa: S101
        speeds, names = self.speeds[narrow.pairs.kinds], self.accelerator_types[len(self.base.capacities) :]
        return with_columns(narrow, self.source, self.parts, names, speeds, speeds > 0)

    def columns_for(self, a: int, b: int, j: int) -> tuple[int, int]:
        """Return the columns in which jobs of kinds a and b, who may share on type j, spend the time with each other."""
        sides = self.sides
        (at,) = np.flatnonzero((sides.one == min(a, b)) & (sides.other == max(a, b)) & (sides.types == j))
        columns = int(sides.column[at]), int(sides.their_column[at])
        return columns if a <= b else columns[::-1]

    def by_kind(self, jobs: JobClasses, columns: Floats) -> Floats:
        """Return (Q + 1, K') the time of all jobs of each kind, from (G, K') that of each class's jobs."""
        time = np.zeros((len(self.speeds), columns.shape[1]))
        np.add.at(time, self.pairs.kinds[jobs.rows], jobs.counts[:, None] * columns)
        return time

    def repaired(self, jobs: JobClasses, columns: Floats) -> Floats:
        """Return (G, K') time of each class's jobs in which partners have just the same time, and types no more than their GPUs.

        What is too much by a solver's tolerance is taken away.
        """
        time, sides = self.by_kind(jobs, columns), self.sides
        theirs = time.copy()
        theirs[sides.one, sides.column] = time[sides.other, sides.their_column]
        theirs[sides.other, sides.their_column] = time[sides.one, sides.column]
        columns = columns * np.divide(theirs, time, out=np.ones_like(time), where=time > theirs)[self.pairs.kinds[jobs.rows]]
        used = self.gpus(columns, jobs.counts * jobs.num_gpus)
        room = np.divide(self.base.capacities, used, out=np.ones_like(used), where=used > self.base.capacities)
        repaired: Floats = columns * room[self.source]
        return repaired

    def over_all(self, row: Load) -> Load:
        """Return a rule on GPUs of types as one on all columns, in each of which a job has its part of them."""
        halves = {j: (loads, loads / 2) for j, loads in row.loads.items()}
        places = enumerate(zip(self.source.tolist(), self.parts.tolist(), strict=True))
        loads = {column: halves[j][part < 1] for column, (j, part) in places if j in halves}
        return replace(row, loads=loads, num_types=len(self.source))


def pair_columns(problem: AllocationProblem, rules: Rules, pairs: PairSpeeds) -> PairColumns | None:
    """Return the columns of all pairs that gain enough, None if no two of these jobs do."""
    types, ranks = len(problem.capacities), _ranks(pairs.sizes)
    one, other, where = np.nonzero(_useful(problem, pairs))
    if not len(one):
        return None
    shared = tuple(Shared(*each) for each in np.unique(np.column_stack([ranks[other], where]), axis=0).tolist())
    place = np.zeros((len(ranks), types), dtype=np.int64)
    place[tuple(np.array(shared).T)] = types + np.arange(len(shared))
    speeds = np.zeros((len(pairs.sizes) + 1, len(shared)))
    speeds[one, place[ranks[other], where] - types] = pairs.speeds[one, other, where]
    once = one <= other
    one, other, where = one[once], other[once], where[once]
    sides = Sides(one, other, where, place[ranks[other], where], place[ranks[one], where])
    source = np.concatenate([np.arange(types), [each.type for each in shared]]).astype(np.int64)
    parts = np.repeat([1.0, 0.5], [types, len(shared)])
    wider, joint = with_rules(problem, rules, source, parts)
    made = PairColumns(problem, wider, source, parts, joint, pairs, shared, sides, speeds)
    return replace(made, rules=replace(wider, rows=(*wider.rows, *_balances(made)), mend=made.repaired))


def self_pairing_rows(made: PairColumns, times: ClassTimes) -> list[Row]:
    """Return rows for the jobs that are promised more time with partners of their own kind than these have.

    Jobs that are equal have each other, so these are the only ones of their class.
    """
    rows: list[Row] = []
    jobs, kinds = times.jobs, made.pairs.kinds[times.jobs.rows]
    for kind, _, j, column, _ in made.sides.those(made.sides.one == made.sides.other):
        spent = np.where(kinds == kind, times.fractions[:, column], 0.0)
        g = int(spent.argmax())
        if 2 * spent[g] > jobs.counts @ spent + LEAST_EXCESS:
            job = int(jobs.rows[g])
            name = f"partners of the kind of job {made.base.job_ids[job]!r} on {made.base.accelerator_types[j]}"
            signs = -(made.pairs.kinds == kind).astype(float)
            signs[job] = 1.0
            rows.append(SelfPairingCut(name, signs, column, len(made.source)))
    return rows


def _useful(problem: AllocationProblem, pairs: PairSpeeds) -> Mask:
    """(Q, Q, K) the pairs that gain enough, of kinds of which there are jobs that may run on the type."""
    shares = pairs.kinds >= 0
    kinds, count = pairs.kinds[shares], len(pairs.sizes)
    there = np.stack([np.bincount(kinds, able[shares], count) for able in problem.runnable.T], axis=1)
    useful: Mask = pairs.useful & (there[:, None] > 0) & (there > 0)
    own = np.arange(count)
    useful[own, own] &= there > 1  # nobody is its own partner
    return useful


def _ranks(sizes: Indices) -> Indices:
    """(Q,) the place of each kind among those of the same size."""
    alike = sizes[:, None] == sizes
    ranks: Indices = np.tril(alike, -1).sum(axis=1)
    return ranks


def _balances(made: PairColumns) -> list[Balance]:
    """Both directions of the rows by which partners have each other for the same time."""
    members, count = Members(made.pairs.kinds, len(made.pairs.sizes)), len(made.source)
    rows = []
    for a, b, j, one, other in made.sides.those(made.sides.one != made.sides.other):
        name = f"partners on {made.base.accelerator_types[j]}"
        rows += [Balance(name, members, (a, b), (one, other), count), Balance(name, members, (b, a), (other, one), count)]
    return rows


NOTHING = 1e-12
"""A part of the time that is told from none."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of jobs that share GPUs.

    first, second: (P,) rows of the jobs; types: (P,) columns of the accelerator types; times: (P,) part of wall-clock time;
    gains: (P,) what both do together in parts of what one of them does alone in that time, T_ab/T_a + T_ba/T_b.
    """

    first: Indices
    second: Indices
    types: Indices
    times: Floats
    gains: Floats

    def __len__(self) -> int:
        """P."""
        return len(self.times)

    @classmethod
    def nobody(cls) -> Pairs:
        """Return no pairs."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, np.zeros(0), np.zeros(0))

    def at(self, places: Indices) -> Pairs:
        """Return these of the pairs."""
        return Pairs(*(getattr(self, field.name)[places] for field in fields(self)))

    def by_job(self, num_jobs: int, num_types: int) -> Floats:
        """Return (N, K) the time that each job spends in pairs."""
        places = np.concatenate([self.first, self.second]) * num_types + np.tile(self.types, 2)
        times: Floats = np.bincount(places, np.tile(self.times, 2), num_jobs * num_types).astype(float)
        return times.reshape(num_jobs, num_types)

    def to_list(self, job_ids: Sequence[str], accelerator_types: Sequence[str]) -> list[dict[str, Any]]:
        """Return the pairs as plain data."""
        columns = (self.first.tolist(), self.second.tolist(), self.types.tolist(), self.times.tolist(), self.gains.tolist())
        return [
            {"jobs": [job_ids[a], job_ids[b]], "accelerator": accelerator_types[j], "time_fraction": time, "gain": gain}
            for a, b, j, time, gain in zip(*columns, strict=True)
        ]

    @classmethod
    def from_list(cls, found: Sequence[dict[str, Any]], job_ids: Sequence[str], accelerator_types: Sequence[str]) -> Pairs:
        """Return the pairs that `to_list` described."""
        rows = {job_id: i for i, job_id in enumerate(job_ids)}
        first, second = (np.array([rows[each["jobs"][side]] for each in found], dtype=np.int64) for side in (0, 1))
        types = np.array([accelerator_types.index(each["accelerator"]) for each in found], dtype=np.int64)
        times, gains = (np.array([each[name] for each in found], dtype=float) for name in ("time_fraction", "gain"))
        return cls(first, second, types, times, gains)


def deal(made: PairColumns, times: ClassTimes) -> Pairs:
    """Return the pairs in which jobs spend the time that their classes have in each column; sorted by type, then by job.

    Of two kinds with n_a and n_b jobs that share there are at most n_a + n_b − 1 pairs on a type: both kinds stand in a row, each
    job as long as its time, and who stands opposite shares. Of one kind, the row is bent to a circle.
    """
    gains, sides, queues = made.pairs.gains, made.sides, _Queues(made, times)
    spent = made.by_kind(times.jobs, times.fractions)
    found = [Pairs.nobody()]
    for a, b, j, one, other in sides.those((spent[sides.one, sides.column] > 0) & (spent[sides.other, sides.their_column] > 0)):
        first, second, time = _around(queues.of(a, one)) if a == b else _opposite(queues.of(a, one), queues.of(b, other))
        each = np.full(time.shape, j), time, np.full(time.shape, gains[a, b, j])
        found.append(Pairs(np.minimum(first, second), np.maximum(first, second), *each))
    dealt = Pairs(*(np.concatenate([getattr(each, field.name) for each in found]) for field in fields(Pairs)))
    count = made.base.num_jobs
    return dealt.at(np.argsort((dealt.types * count + dealt.first) * count + dealt.second))


class _Queue(NamedTuple):
    """Jobs that stand in a row, each as long as its time: who, and where each of them ends."""

    jobs: Indices
    ends: Floats

    @property
    def length(self) -> float:
        return float(self.ends[-1])

    def at(self, places: Floats) -> Indices:
        """Return who stands there."""
        return self.jobs[np.minimum(np.searchsorted(self.ends, places), len(self.jobs) - 1)]


class _Queues:
    """The jobs of each kind, class by class."""

    def __init__(self, made: PairColumns, times: ClassTimes) -> None:
        jobs = times.jobs
        self._times = times
        self._jobs = jobs.jobs[np.argsort(jobs.index.astype(np.min_scalar_type(len(jobs))), kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(jobs.counts)])
        kinds = made.pairs.kinds[jobs.rows]
        self._classes = [np.flatnonzero(kinds == kind) for kind in range(len(made.pairs.sizes))]

    def of(self, kind: int, column: int) -> _Queue:
        """Return the jobs of a kind that have time in a column."""
        spent, counts = self._times.fractions[:, column], self._times.jobs.counts
        classes = self._classes[kind][spent[self._classes[kind]] > 0]
        # Where a class begins is counted from the others' totals, so that a million jobs add up no worse than their classes.
        starts = np.concatenate([[0.0], np.cumsum(counts[classes] * spent[classes])])
        ends = [start + spent[g] * np.arange(1, counts[g] + 1) for start, g in zip(starts.tolist(), classes.tolist(), strict=False)]
        who = [self._jobs[self._starts[g] : self._starts[g + 1]] for g in classes.tolist()]
        return _Queue(np.concatenate(who), np.concatenate(ends))


def _opposite(some: _Queue, others: _Queue) -> tuple[Indices, Indices, Floats]:
    """Who of the one row stands opposite to whom of the other, and for how long."""
    return _facing(some, others, min(some.length, others.length))


def _around(some: _Queue) -> tuple[Indices, Indices, Floats]:
    """Who stands opposite to whom on a circle: nobody to himself, as long as he takes up no more than half of it."""
    half = some.length / 2
    return _facing(some, _Queue(some.jobs, some.ends - half), half)


def _facing(some: _Queue, others: _Queue, length: float) -> tuple[Indices, Indices, Floats]:
    """Those who stand opposite to each other on the first `length`."""
    marks = np.unique(np.clip(np.concatenate([[0.0], some.ends, others.ends, [length]]), 0.0, length))
    middles, times = (marks[1:] + marks[:-1]) / 2, np.diff(marks)
    first, second = some.at(middles), others.at(middles)
    real = (times > max(NOTHING, 4 * np.spacing(length))) & (first != second)
    return first[real], second[real], times[real]
