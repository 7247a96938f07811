"""Co-location: a column for each group of partners, rows that link the columns of partners, and the resulting pairs of jobs.

X_i(b,j) is the time for which job i shares GPUs of type j with some job of group b. This determines all pairs:
Jobs of two groups a and b can be paired if and only if those of a spend the same total time with partners of b as those of b with
partners of a (a table with given sums of rows and columns). Jobs of one group can be paired if and only if none spends more time
with partners of the group than all others together (`paired`).

A pair occupies its GPUs once, so each of its jobs counts for half of them:

    Σ_j X_ij + Σ_b,j X_i(b,j) <= 1,     Σ_i s_i (X_ij + ½ Σ_b X_i(b,j)) <= c_j,
    Σ_{i in group a} X_i(b,j) = Σ_{k in group b} X_k(a,j).

These are ordinary columns and rows, so every policy that solves programs can share GPUs. `Balance` is the last of these rows in one
direction, and `SelfPairingCut` the row that keeps a job from being its own partner. The columns exist for one job of each class of
equal jobs only (`PairColumns.widened`): for all jobs, they would take many times the memory of the problem.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.checking.time_shares import Pairs, TimeShares
from gavel_py.optimization.formulation.columns import Columns, type_rows, with_columns, with_rules
from gavel_py.optimization.formulation.linear_rows import Load, Row, Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.pair_throughputs import PairSpeeds
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import FLOAT_ROUNDING, SOLVER_TOLERANCE


class GroupMembers:
    """The members of each group among some jobs, cached for the many rows on these jobs. groups: (N,); count: number of groups."""

    def __init__(self, groups: Indices, count: int) -> None:
        self.groups = groups
        self._count = count
        self._cached: tuple[Indices, list[Indices]] | None = None

    def of(self, rows: Indices) -> list[Indices]:
        """Return for each group the positions of its jobs in `rows`."""
        if self._cached is None or self._cached[0] is not rows:
            order = np.argsort(self.groups[rows], kind="stable")
            ends = np.searchsorted(self.groups[rows][order], np.arange(self._count + 1))
            self._cached = rows, [order[start:end] for start, end in pairwise(ends.tolist())]
        return self._cached[1]


@dataclass(frozen=True, eq=False)
class Balance:
    """Σ_{i in group a} X_i,one − Σ_{k in group b} X_k,other <= 0: time in one column needs a partner in the other."""

    name: str
    members: GroupMembers
    of: tuple[int, int]
    columns: tuple[int, int]
    num_columns: int
    rhs: float = 0.0
    penalty: float | None = None
    grows: ClassVar[bool] = False

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return (self.members.groups,)

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:
        table = np.zeros(len(rows) * self.num_columns)
        places, values = self.entries(rows, num_gpus)
        table[places] = values
        return table.reshape(len(rows), self.num_columns)

    def entries(self, rows: Indices, num_gpus: Floats) -> tuple[Indices, Floats]:  # noqa: ARG002
        by_group = self.members.of(rows)
        one, other = (by_group[group] for group in self.of)
        places = np.concatenate([one * self.num_columns + self.columns[0], other * self.num_columns + self.columns[1]])
        values = np.ones(len(places))
        values[len(one) :] = -1.0
        return places, values

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        one, other = (
            time_fractions[self.members.groups == group, column].sum() for group, column in zip(self.of, self.columns, strict=True)
        )
        return float(one - other)


@dataclass(frozen=True, eq=False)
class SelfPairingCut:
    """X_i − Σ_{k != i of its group} X_k <= 0 in one column: no job is its own partner. signs: (N,) 1 for i, -1 for the rest."""

    name: str
    signs: Floats
    column: int
    num_columns: int
    rhs: float = 0.0
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


class PairColumn(NamedTuple):
    """A column: time on `type` with a partner of the group at position `rank` among the groups of the same gang size."""

    rank: int
    type: int


@dataclass(frozen=True, eq=False)
class Sides:
    """The M pairs of groups that share GPUs of a type.

    Attributes:
        one: (M,) the first group of each pair.
        other: (M,) the second group, one <= other.
        types: (M,) the accelerator type.
        column: (M,) the column in which the first group spends its time with the second.
        their_column: (M,) the column in which the second group spends its time with the first.
    """

    one: Indices
    other: Indices
    types: Indices
    column: Indices
    their_column: Indices

    def those(self, which: Mask) -> list[tuple[int, int, int, int, int]]:
        """Return the pairs of groups selected by a mask, as tuples."""
        table = np.stack([self.one, self.other, self.types, self.column, self.their_column])
        return [(a, b, j, one, other) for a, b, j, one, other in table[:, which].T.tolist()]


@dataclass(frozen=True, eq=False)
class PairColumns(Columns):
    """Columns of a program with co-location. The first column of a type is for time without a partner.

    shared: the other columns; sides: the pairs of groups that share; speeds: (Q + 1, others) steps/s of the jobs of each group in
    the other columns, 0 where they do not share, with a last row for jobs that never share.
    """

    pairs: PairSpeeds
    shared: tuple[PairColumn, ...]
    sides: Sides
    speeds: Floats

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        types = self.base.accelerator_types
        return (*types, *(f"{types[each.type]} shared {each.rank}" for each in self.shared))

    @property
    def partner_groups(self) -> Indices:
        return self.pairs.kinds

    def widened(self, problem: AllocationProblem, rows: Indices) -> AllocationProblem:
        narrow = problem.select(rows)
        assert narrow.pairs is not None  # noqa: S101
        speeds, names = self.speeds[narrow.pairs.kinds], self.accelerator_types[len(self.base.capacities) :]
        return with_columns(narrow, self.source, self.parts, names, speeds, speeds > 0)

    def columns_for(self, a: int, b: int, j: int) -> tuple[int, int]:
        sides = self.sides
        (at,) = np.flatnonzero((sides.one == min(a, b)) & (sides.other == max(a, b)) & (sides.types == j))
        columns = int(sides.column[at]), int(sides.their_column[at])
        return columns if a <= b else columns[::-1]

    def with_pairs(self, alone: Floats, pairs: Pairs) -> Floats:
        """Return the (N, K') time in columns of jobs alone, (N, K), and in pairs.

        Two jobs of a pair that has no columns, since it does not gain enough any more, take turns.
        """
        times, groups, sides = np.zeros((len(alone), len(self.source))), self.pairs.kinds, self.sides
        times[:, : alone.shape[1]] = alone
        keys = np.column_stack([groups[pairs.first], groups[pairs.second], pairs.types])
        known = set(zip(sides.one.tolist(), sides.other.tolist(), sides.types.tolist(), strict=True))
        for a, b, j in np.unique(keys, axis=0).tolist():
            here = (keys == (a, b, j)).all(axis=1)
            shares = (min(a, b), max(a, b), j) in known
            one, other = self.columns_for(a, b, j) if shares else (j, j)
            time = pairs.times[here] * (1.0 if shares else 0.5)
            np.add.at(times, (pairs.first[here], one), time)
            np.add.at(times, (pairs.second[here], other), time)
        return times

    def by_group(self, jobs: JobClasses, fractions: Floats) -> Floats:
        """Return (Q + 1, K') the total time of the jobs of each group, given (G, K') the time of a job of each class."""
        time = np.zeros((len(self.speeds), fractions.shape[1]))
        np.add.at(time, self.pairs.kinds[jobs.rows], jobs.counts[:, None] * fractions)
        return time

    def repaired(self, jobs: JobClasses, fractions: Floats) -> Floats:
        """Return (G, K') fractions in which partners have exactly equal times and no type exceeds its GPUs.

        Excess time, of the size of the solver's tolerance, is removed.
        """
        time, sides = self.by_group(jobs, fractions), self.sides
        theirs = time.copy()
        theirs[sides.one, sides.column] = time[sides.other, sides.their_column]
        theirs[sides.other, sides.their_column] = time[sides.one, sides.column]
        matched = np.divide(theirs, time, out=np.ones_like(time), where=time > theirs)
        fractions = fractions * matched[self.pairs.kinds[jobs.rows]]
        used = self.gpus(fractions, jobs.counts * jobs.num_gpus)
        room = np.divide(self.base.capacities, used, out=np.ones_like(used), where=used > self.base.capacities)
        return fractions * room[self.source]

    def pairs_of(self, times: TimeShares, chosen: Pairs | None) -> Pairs:
        return paired(self, times) if chosen is None else chosen

    def gains_of(self, pairs: Pairs) -> Floats:
        return self.pairs.gains[self.pairs.kinds[pairs.first], self.pairs.kinds[pairs.second], pairs.types]

    def separate(self, times: TimeShares) -> tuple[list[Row], Columns]:
        """Return broken rows on partners from a job's own group; if there are none, those on whole gangs and fractions."""
        own = self._self_pairing_rows(times)
        if own or self.base.hosts is None:
            return own, self
        parts = times.by_job(self.aggregate(times.fractions * self.parts))
        return [self._over_all_columns(row) for row in type_rows(self.base, parts)], self

    def lacks_rows(self, times: TimeShares) -> bool:
        """Return whether `_self_pairing_rows` has no row yet for some job that is alone in its class."""
        assert times.classes is not None  # noqa: S101
        jobs, groups = times.classes, self.pairs.kinds[times.classes.rows]
        cuts = (row for row in self.rules.rows if isinstance(row, SelfPairingCut))
        known = {(int(row.signs.argmax()), row.column) for row in cuts}
        own = self.sides.those(self.sides.one == self.sides.other)
        single = ((group, column, np.flatnonzero((groups == group) & (jobs.counts == 1))) for group, _, _, column, _ in own)
        return any((job, column) not in known for _, column, rows in single for job in jobs.rows[rows].tolist())

    def _self_pairing_rows(self, times: TimeShares) -> list[Row]:
        """Return rows for the jobs that have more time with partners of their own group than these have together.

        Equal jobs can be partners of each other, so such a job is alone in its class.
        """
        assert times.classes is not None  # noqa: S101
        rows: list[Row] = []
        jobs, groups = times.classes, self.pairs.kinds[times.classes.rows]
        for group, _, j, column, _ in self.sides.those(self.sides.one == self.sides.other):
            spent = np.where(groups == group, times.fractions[:, column], 0.0)
            g = int(spent.argmax())
            if 2 * spent[g] > jobs.counts @ spent + SOLVER_TOLERANCE:
                job = int(jobs.rows[g])
                name = f"partners of jobs like {self.base.job_ids[job]!r} on {self.base.accelerator_types[j]}"
                signs = -(self.pairs.kinds == group).astype(float)
                signs[job] = 1.0
                rows.append(SelfPairingCut(name, signs, column, len(self.source)))
        return rows

    def _over_all_columns(self, row: Load) -> Load:
        """Return a row on the GPUs of types as a row on all columns; in each column, a job takes a part of its GPUs."""
        halves = {j: (loads, loads / 2) for j, loads in row.loads.items()}
        places = enumerate(zip(self.source.tolist(), self.parts.tolist(), strict=True))
        loads = {column: halves[j][part < 1] for column, (j, part) in places if j in halves}
        return replace(row, loads=loads, num_types=len(self.source))


def pair_columns(problem: AllocationProblem, rules: Rules, pairs: PairSpeeds) -> Columns:
    """Return the columns of all pairs that gain enough, or one for each type if there are no such pairs."""
    one, other, where = np.nonzero(_useful(problem, pairs))
    if not len(one):
        return Columns.of_types(problem, rules)
    types, ranks = len(problem.capacities), _ranks(pairs.sizes)
    shared = tuple(PairColumn(*each) for each in np.unique(np.column_stack([ranks[other], where]), axis=0).tolist())
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
    balances = _balances(problem, pairs, sides, len(source))
    return PairColumns(problem, problem, wider.also(Rules(rows=balances)), source, parts, joint, pairs, shared, sides, speeds)


def _useful(problem: AllocationProblem, pairs: PairSpeeds) -> Mask:
    """Return (Q, Q, K) the pairs of groups that gain enough and have jobs that may run on the type."""
    shares = pairs.kinds >= 0
    groups, count = pairs.kinds[shares], len(pairs.sizes)
    there = np.stack([np.bincount(groups, able[shares], count) for able in problem.runnable.T], axis=1)
    useful: Mask = pairs.useful & (there[:, None] > 0) & (there > 0)
    own = np.arange(count)
    useful[own, own] &= there > 1  # no job is its own partner
    return useful


def _ranks(sizes: Indices) -> Indices:
    """Return (Q,) the position of each group among those of the same gang size."""
    alike = sizes[:, None] == sizes
    ranks: Indices = np.tril(alike, -1).sum(axis=1)
    return ranks


def _balances(problem: AllocationProblem, pairs: PairSpeeds, sides: Sides, num_columns: int) -> tuple[Balance, ...]:
    """Return the rows, in both directions, by which partners spend equal time with each other."""
    members = GroupMembers(pairs.kinds, len(pairs.sizes))
    rows = []
    for a, b, j, one, other in sides.those(sides.one != sides.other):
        name = f"partners on {problem.accelerator_types[j]}"
        rows += [
            Balance(name, members, (a, b), (one, other), num_columns),
            Balance(name, members, (b, a), (other, one), num_columns),
        ]
    return tuple(rows)


def paired(columns: PairColumns, times: TimeShares) -> Pairs:
    """Return the pairs in which jobs spend the time that their classes have in each column, sorted by type, then by job.

    On a type, the n_a and n_b jobs of two groups form at most n_a + n_b − 1 pairs: the times of the jobs of each group are laid end
    to end on a line, and jobs that overlap are partners for the overlap. For one group, the line is folded at half its length.
    """
    jobs = times.classes
    assert jobs is not None  # noqa: S101
    gains, sides, lines = columns.pairs.gains, columns.sides, _Lines(columns, jobs, times.fractions)
    spent = columns.by_group(jobs, times.fractions)
    found = [Pairs.nobody()]
    for a, b, j, one, other in sides.those((spent[sides.one, sides.column] > 0) & (spent[sides.other, sides.their_column] > 0)):
        line, opposite = lines.of(a, one), None if a == b else lines.of(b, other)
        if opposite is None:
            half = line.length / 2
            first, second, time = _overlaps(line, _Line(line.jobs, line.ends - half), half)
        else:
            first, second, time = _overlaps(line, opposite, min(line.length, opposite.length))
        each = np.full(time.shape, j), time, np.full(time.shape, gains[a, b, j])
        found.append(Pairs(np.minimum(first, second), np.maximum(first, second), *each))
    pairs = Pairs(*(np.concatenate([getattr(each, field.name) for each in found]) for field in fields(Pairs)))
    count = columns.base.num_jobs
    return pairs.at(np.argsort((pairs.types * count + pairs.first) * count + pairs.second))


class _Line(NamedTuple):
    """The times of jobs laid end to end. ends: where the time of each job ends."""

    jobs: Indices
    ends: Floats

    @property
    def length(self) -> float:
        return float(self.ends[-1])

    def at(self, places: Floats) -> Indices:
        """Return the jobs at these places."""
        return self.jobs[np.minimum(np.searchsorted(self.ends, places), len(self.jobs) - 1)]


class _Lines:
    """The jobs of each group, class by class. fractions: (G, K') of the classes."""

    def __init__(self, columns: PairColumns, jobs: JobClasses, fractions: Floats) -> None:
        self._fractions, self._counts = fractions, jobs.counts
        self._jobs = jobs.jobs[np.argsort(jobs.index.astype(np.min_scalar_type(len(jobs))), kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(jobs.counts)])
        groups = columns.pairs.kinds[jobs.rows]
        self._classes = [np.flatnonzero(groups == group) for group in range(len(columns.pairs.sizes))]

    def of(self, group: int, column: int) -> _Line:
        """Return the jobs of a group that have time in a column."""
        spent, counts = self._fractions[:, column], self._counts
        classes = self._classes[group][spent[self._classes[group]] > 0]
        # Each class starts at the sum of the totals of earlier classes, so that a million jobs add up exactly to the totals.
        starts = np.concatenate([[0.0], np.cumsum(counts[classes] * spent[classes])])
        ends = [start + spent[g] * np.arange(1, counts[g] + 1) for start, g in zip(starts.tolist(), classes.tolist(), strict=False)]
        jobs = [self._jobs[self._starts[g] : self._starts[g + 1]] for g in classes.tolist()]
        return _Line(np.concatenate(jobs), np.concatenate(ends))


def _overlaps(one: _Line, other: _Line, length: float) -> tuple[Indices, Indices, Floats]:
    """Return the pairs of different jobs that overlap on the first `length` of two lines, and for how long."""
    marks = np.unique(np.clip(np.concatenate([[0.0], one.ends, other.ends, [length]]), 0.0, length))
    middles, times = (marks[1:] + marks[:-1]) / 2, np.diff(marks)
    first, second = one.at(middles), other.at(middles)
    real = (times > max(FLOAT_ROUNDING, 4 * np.spacing(length))) & (first != second)
    return first[real], second[real], times[real]
