"""A problem with a column for each kind of partner: jobs that share GPUs, as time fractions of single jobs.

X_i(b,j) is the time for which job i shares GPUs of type j with some job of kind b. That says all that there is to say of pairs:
time that jobs of kind a spend with partners of kind b can be dealt out to pairs of them if and only if it is as much as these
spend with partners of kind a (a table with given sums of rows and columns), and within one kind if no job has more of it than all
others of its kind together (`pairing`). A pair has its GPUs once, so each of the two counts for half of them:

    Σ_j X_ij + Σ_b,j X_i(b,j) <= 1,     Σ_i s_i (X_ij + ½ Σ_b X_i(b,j)) <= c_j,
    Σ_{i of kind a} X_i(b,j) = Σ_{k of kind b} X_k(a,j).

These are columns and rows as any other, so every policy that solves programs shares GPUs without knowing of it. The columns are
written down for one job of each class of equal jobs: all of them would be many times the arrays of the problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.further_columns import FurtherColumns, with_columns, with_rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.pair_rows import Balance, Company, Members
from gavel_py.optimization.rules import Load, Row, Rules
from gavel_py.optimization.times import ClassTimes
from gavel_py.problem.colocation_throughputs import PairSpeeds
from gavel_py.problem.problem import AllocationProblem

__all__ = ["PairColumns", "Sides", "lonely_rows", "pair_columns"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

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

    def mended(self, jobs: JobClasses, columns: Floats) -> Floats:
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
        mended: Floats = columns * room[self.source]
        return mended

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
    return replace(made, rules=replace(wider, rows=(*wider.rows, *_balances(made)), mend=made.mended))


def lonely_rows(made: PairColumns, times: ClassTimes) -> list[Row]:
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
            rows.append(Company(name, signs, column, len(made.source)))
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
