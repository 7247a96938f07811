"""The columns of an allocation program: one for each accelerator type, or several for a type with several placements or sizes.

`Columns` has one column for each type. `PlacementColumns` has a second one for the slower placement of gangs, `ElasticColumns` one
for each number of GPUs, and `colocation.PairColumns` one for each group of partners. They share an interface, so that callers do
not depend on their kind: `aggregate` and `expand` convert answers, and `separate` returns the rows that an answer breaks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from gavel_py.optimization.checking.time_shares import CountTimes, Pairs, TimeShares
from gavel_py.optimization.formulation.cuts import ONE_EACH, gang_rows, placement_rows
from gavel_py.optimization.formulation.linear_rows import Limit, Load, Row, Rules, floors_of
from gavel_py.optimization.formulation.packings import fraction_rows, limit_rows, packing_rows
from gavel_py.optimization.job_classes import ColumnTable, JobClasses
from gavel_py.problem.arrays import Floats, Indices, Mask

if TYPE_CHECKING:
    from gavel_py.problem.gpu_counts import GpuCounts
    from gavel_py.problem.problem import AllocationProblem


@dataclass(frozen=True, eq=False)
class Columns(ColumnTable):
    """The columns of a program, here one for each of K types, and what answers in them mean."""

    @classmethod
    def of_types(cls, problem: AllocationProblem, rules: Rules) -> Columns:
        """Return one column for each type."""
        count = len(problem.capacities)
        return Columns(problem, problem, rules, np.arange(count), np.ones(count), {})

    @cached_property
    def columns_of(self) -> dict[int, dict[int, float]]:
        """{type: {column: part of a GPU}}."""
        found: dict[int, dict[int, float]] = {}
        for column, (j, part) in enumerate(zip(self.source.tolist(), self.parts.tolist(), strict=True)):
            found.setdefault(j, {})[column] = part
        return found

    def with_rows(self, rows: Iterable[Row]) -> Self:
        """Return the same columns with further rows."""
        return replace(self, rules=self.rules.also(Rules(rows=tuple(rows))))

    def with_only(self, some: Collection[Row], of: Collection[Row]) -> Self:
        """Return the same columns with only some of these rows, which go last."""
        rules = replace(self.rules, rows=(*(row for row in self.rules.rows if row not in of), *some))
        joint = {j: rules.hard_rows.index(self.rules.hard_rows[place]) for j, place in self.joint.items()}
        return replace(self, rules=rules, joint=joint)

    def aggregate(self, fractions: Floats) -> Floats:
        """Return (M, K) the time on types of (M, K') columns."""
        count = len(self.base.capacities)
        if len(self.source) == count:
            return fractions
        times = fractions[:, :count].copy()
        for column in range(count, len(self.source)):  # one by one, so that the sums of equal jobs are equal to the last bit
            times[:, self.source[column]] += fractions[:, column]
        return times

    def expand(self, times: Floats, spread: Floats | None, counts: CountTimes | None = None) -> Floats:  # noqa: ARG002
        """Return the (N, K') time in columns.

        times: (N, K) on types; spread: (N, K) the part of it on more nodes than needed, default none; counts: that of elastic jobs.
        """
        return times

    def spread(self, times: TimeShares) -> Floats | None:
        """Return (N, K) the time of gangs on more nodes than they need, None if the placement does not matter."""
        speeds = self.base.speeds
        if speeds is None:
            return None
        return np.where(speeds.spread_is_faster, times.by_job(times.fractions[:, : len(self.base.capacities)]), 0.0)

    def repaired(self, jobs: JobClasses, fractions: Floats) -> Floats:  # noqa: ARG002
        """Return (G, K') fractions that satisfy the rows between columns exactly, not only within the solver's tolerance."""
        return fractions

    def pairs_of(self, times: TimeShares, chosen: Pairs | None) -> Pairs | None:  # noqa: ARG002
        """Return the pairs of jobs that share GPUs, None if the problem has no pairs. chosen: pairs that the policy has chosen."""
        return None if self.base.pairs is None else Pairs.nobody()

    def counts_of(self, times: TimeShares) -> CountTimes | None:  # noqa: ARG002
        """Return the times of elastic jobs by type and number of GPUs, None without such jobs."""
        return None

    def gains_of(self, pairs: Pairs) -> Floats | None:  # noqa: ARG002
        """Return (P,) the gains of these pairs, None if no two jobs gain by sharing GPUs."""
        return None

    def columns_for(self, a: int, b: int, j: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Return the columns in which jobs of groups a and b share GPUs of type j with each other, None if no jobs share GPUs."""
        return None

    def lacks_rows(self, times: TimeShares) -> bool:  # noqa: ARG002
        """Return whether an answer with more GPUs may break rows on partners that are not in the program, so that it gains less."""
        return False

    def separate(self, times: TimeShares) -> tuple[list[Row], Columns]:
        """Return the rows that an answer breaks, if any, and the columns of these rows.

        Types get a second column if the answer has more time in the faster placement of gangs than nodes have room for.
        """
        rows: list[Row] = [*type_rows(self.problem, times.fractions, self.columns_of)]
        rows += self._limit_rows(self.problem, times.fractions)
        return (rows, self) if rows else self._separate_placements(times.fractions)

    def _limit_rows(self, problem: AllocationProblem, fractions: Floats) -> list[Load]:
        limits = [row for row in self.rules.rows if isinstance(row, Limit) and row.at_once]
        return limit_rows(problem, limits, fractions, self.parts) if limits else []

    def _separate_placements(self, fractions: Floats) -> tuple[list[Row], Columns]:
        if not placement_rows(self.problem, fractions):
            return [], self
        columns = placement_columns(self.base, self.rules)
        return [*placement_rows(columns.problem, columns.expand(fractions, None), columns.second)], columns


def type_rows(problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH) -> list[Load]:
    """Return the rows of whole gangs, and of jobs that need fractions, CPUs or memory, that (N, K) `fractions` break.

    columns: as in `gang_rows`.
    """
    hosts = problem.hosts
    if hosts is None:
        return []
    rows = [] if (problem.num_gpus == 1).all() else gang_rows(problem, fractions, columns)
    has_fractions = bool((problem.num_gpus < 1).any())
    rows += fraction_rows(problem, fractions, columns) if has_fractions else []
    if has_fractions or hosts.per_gpu.any():
        rows += packing_rows(problem, fractions, columns)
    return rows


def with_columns(
    problem: AllocationProblem, source: Indices, parts: Floats, names: Iterable[str], throughputs: Floats, able: Mask
) -> AllocationProblem:
    """Return the problem with further columns of these names, (N, further) throughputs and jobs that can use them."""
    types = source[len(problem.capacities) :]
    return replace(
        problem,
        accelerator_types=(*problem.accelerator_types, *names),
        throughputs=np.column_stack([problem.throughputs, throughputs]),
        type_index=None,
        # At least what the row for all columns of a type allows.
        capacities=problem.capacities[source] / parts,
        share_capacities=np.concatenate([problem.share_capacities, np.zeros(len(types))]),
        runnable=np.column_stack([problem.runnable, problem.runnable[:, types] & able]),
        prices_per_hour=problem.prices_per_hour[source],
        gpu_parts=parts,
        previous_fractions=np.column_stack([problem.previous_fractions, np.zeros((problem.num_jobs, len(types)))]),
        uncertainty=problem.uncertainty[:, source],  # the same estimate underlies all columns of a type
    )


def with_rules(
    problem: AllocationProblem, rules: Rules, source: Indices, parts: Floats, *, per_gpu: bool = False
) -> tuple[Rules, dict[int, int]]:
    """Return the rules over all columns, with a row for the GPUs of each type that has several, and `Columns.joint`.

    per_gpu: whether a job takes CPUs and memory in proportion to its GPUs in a column, instead of in full. Places are
    unchanged, since they restrict types.
    """
    wider = tuple(_wider(row, source, parts, parts if per_gpu else np.ones(len(parts))) for row in rules.rows)
    known = dict(zip(map(id, rules.rows), wider, strict=True))
    constraints = tuple(replace(each, rows=tuple(known[id(row)] for row in each.rows)) for each in rules.constraints)
    types = np.unique(source[len(problem.capacities) :]).tolist()
    all_jobs = np.broadcast_to(np.True_, problem.num_jobs)
    joint = tuple(
        Limit(f"the GPUs of {problem.accelerator_types[j]}", all_jobs, np.where(source == j, parts, 0.0), float(gpus))
        for j, gpus in zip(types, problem.capacities[types].tolist(), strict=True)
    )
    first = sum(row.penalty is None for row in wider)
    places = {j: first + n for n, j in enumerate(types)}
    return _with_full_times(problem, replace(rules, rows=(*wider, *joint), constraints=constraints), source), places


def _with_full_times(problem: AllocationProblem, rules: Rules, source: Indices) -> Rules:
    """Return the rules in which jobs that must have all of their time on a type may have it in any column, at any throughput."""
    needs = [need for each in rules.constraints for need in each.needs]
    types, names = np.full(problem.num_jobs, -1), list[str]()
    for need in needs:
        if need.types is not None and len(need.rows):
            types[need.rows] = need.types
            names.append(need.name_of(need.rows.item(0)))
    count = int((types >= 0).sum())
    if not count:
        return rules
    loads = {column: -(types == j).astype(float) for column, j in enumerate(source.tolist()) if (types == j).any()}
    name = names[0] + (f" and {count - 1} more" if count > 1 else "")
    row = Load(name, loads, len(source), -float(count))  # no job can have more than all of the time
    floors = floors_of([need for need in needs if need.types is None], problem.fastest)
    return replace(rules, rows=(*rules.rows, row), floors=floors)


def _wider(row: Row, source: Indices, parts: Floats, resources: Floats) -> Row:
    """Return a row over all columns: GPUs count by the part that a job has of them, other resources by `resources`."""
    if isinstance(row, Limit):
        counted = resources < max(row.below, 2.0)  # 2 or more in columns of elastic jobs only: their number of GPUs
        return replace(row, per_gpu=np.where(counted, row.per_gpu[source] * parts, 0.0))
    if isinstance(row, Load):
        loads = {column: row.loads[j] * resources[column] for column, j in enumerate(source.tolist()) if j in row.loads}
        return replace(row, loads=loads, num_types=len(source))
    raise TypeError(f"no form over several columns is known for {row!r}")


@dataclass(frozen=True, eq=False)
class PlacementColumns(Columns):
    """Columns by placement; the first of a type is for the faster placement of each gang.

    second: {type: the column of the slower placement}.
    """

    second: Mapping[int, int]

    def expand(self, times: Floats, spread: Floats | None, counts: CountTimes | None = None) -> Floats:  # noqa: ARG002
        """Return the (N, K') time in columns; without `spread`, all of it is in the faster placement."""
        columns = np.zeros(self.problem.throughputs.shape)
        columns[:, : times.shape[1]] = times
        for j, other in self.second.items() if spread is not None else ():
            apart, further = self._apart[:, j], spread[:, j]  # type: ignore[index]
            columns[:, other] = np.where(apart, times[:, j] - further, further)
            columns[:, j] = np.where(apart, further, times[:, j] - further)
        return np.maximum(columns, 0.0)

    def spread(self, times: TimeShares) -> Floats:
        columns = times.fractions
        spread = np.where(self._apart, columns[:, : self.base.throughputs.shape[1]], 0.0)
        for j, other in self.second.items():
            spread[:, j] += np.where(self._apart[:, j], 0.0, columns[:, other])
        return spread

    def _separate_placements(self, fractions: Floats) -> tuple[list[Row], Columns]:
        return [*placement_rows(self.problem, fractions, self.second)], self

    @property
    def _apart(self) -> Mask:
        """(N, K) where gangs are faster if spread."""
        assert self.base.speeds is not None  # noqa: S101
        return self.base.speeds.spread_is_faster


def placement_columns(problem: AllocationProblem, rules: Rules) -> PlacementColumns:
    """Return the columns with a second one for each type on which the placement of some gang matters."""
    speeds = problem.speeds
    assert speeds is not None  # noqa: S101
    useful = speeds.differ & (speeds.slower > 0)
    types = np.flatnonzero((problem.runnable & useful).any(axis=0)).tolist()
    source = np.concatenate([np.arange(len(problem.capacities)), types]).astype(np.int64)
    parts = np.ones(len(source))

    def widened(narrow: AllocationProblem) -> AllocationProblem:
        names = (f"{problem.accelerator_types[j]} (slower placement)" for j in types)
        return with_columns(narrow, source, parts, names, speeds.slower[:, types], useful[:, types])

    wider, joint = with_rules(problem, rules, source, parts)
    constraints = tuple(
        replace(each, places=tuple(replace(place, allowed=place.allowed[:, source]) for place in each.places))
        for each in wider.constraints
    )
    wider = replace(wider, constraints=constraints, unplaced=None if rules.unplaced is None else widened(rules.unplaced))
    second = {j: len(problem.capacities) + n for n, j in enumerate(types)}
    return PlacementColumns(problem, widened(problem), wider, source, parts, joint, second)


@dataclass(frozen=True, eq=False)
class ElasticColumns(Columns):
    """A column for each accelerator type and number of GPUs that some elastic job can use.

    X_i(j,n) is the time for which job i runs on n GPUs of type j:

        Σ_j,n X_i(j,n) <= 1,     Σ_i Σ_n n X_i(j,n) <= c_j.

    The first column of a type is for gangs with a fixed number of GPUs, and for one GPU of an elastic job. Each further number n
    has a column, in which a job takes n GPUs for each GPU that it requests; elastic jobs request 1. These are ordinary columns and
    rows, so every policy that solves programs chooses numbers of GPUs. The columns exist for one job of each class of equal jobs
    only (`widened`).

    Attributes:
        counts: The throughputs.
        sizes: (K',) GPUs in each column.
    """

    counts: GpuCounts
    sizes: Indices

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        types = self.base.accelerator_types
        further = range(len(types), len(self.source))
        return (*types, *(f"{types[self.source[column]]} x{self.sizes[column]}" for column in further))

    @property
    def partner_groups(self) -> Indices:
        return self.counts.kinds

    @cached_property
    def _tables(self) -> tuple[Floats, Mask]:
        """(Q + 1, K') throughputs of the kinds in all columns, and where they may have time; the last row is for fixed gangs."""
        types, places = self.source, np.searchsorted(self.counts.counts, self.sizes)
        places = np.minimum(places, len(self.counts.counts) - 1)
        offered = self.counts.counts[places] == self.sizes
        speeds, able = self.counts.speeds[:, types, places] * offered, self.counts.able[:, types, places] & offered
        fixed = np.arange(len(types)) < len(self.base.capacities)
        return np.vstack([speeds, np.zeros(len(types))]), np.vstack([able, fixed])

    def widened(self, problem: AllocationProblem, rows: Indices) -> AllocationProblem:
        narrow = problem.select(rows)
        assert narrow.counts is not None  # noqa: S101
        kinds, types = narrow.counts.kinds, len(self.base.capacities)
        speeds, able = self._tables[0][kinds], self._tables[1][kinds]
        names = self.accelerator_types[types:]
        wide = with_columns(narrow, self.source, self.parts, names, speeds[:, types:], able[:, types:])
        return replace(wide, runnable=wide.runnable & able)

    def expand(self, times: Floats, spread: Floats | None, counts: CountTimes | None = None) -> Floats:  # noqa: ARG002
        """Return the (N, K') time in columns; time on a number of GPUs that has no column, and so no speed, is left out."""
        columns, fixed = np.zeros((len(times), len(self.source))), ~self.counts.is_elastic
        columns[fixed, : times.shape[1]] = times[fixed]
        if counts is not None:
            same = (self.source == counts.types[:, None]) & (self.sizes == counts.counts[:, None])
            some = same.any(axis=1)
            columns[counts.jobs[some], same.argmax(axis=1)[some]] = counts.times[some]
        return columns

    def repaired(self, jobs: JobClasses, fractions: Floats) -> Floats:
        """Return (G, K') fractions that keep the row for the GPUs of a type exactly, not only within the solver's tolerance."""
        used = self.gpus(fractions, jobs.counts * jobs.num_gpus)
        room = np.divide(self.base.capacities, used, out=np.ones_like(used), where=used > self.base.capacities)
        return fractions * room[self.source]

    def counts_of(self, times: TimeShares) -> CountTimes:
        """Return the times of elastic jobs by type and number of GPUs."""
        jobs = times.classes
        assert jobs is not None  # noqa: S101
        some = (times.fractions > 0) & (self.counts.kinds[jobs.rows] >= 0)[:, None]
        number, (_, columns) = some.sum(axis=1), np.nonzero(some)
        first = np.concatenate([[0], np.cumsum(number)[:-1]])
        of_each = number[jobs.index]
        rows = np.repeat(np.arange(len(of_each)), of_each)
        starts = np.repeat(np.cumsum(of_each) - of_each, of_each)
        entries = first[jobs.index[rows]] + np.arange(len(rows)) - starts
        chosen = columns[entries]
        return CountTimes(jobs.jobs[rows], self.source[chosen], self.sizes[chosen], times.fractions[some][entries])

    def separate(self, times: TimeShares) -> tuple[list[Row], Columns]:
        """Return the rows of whole gangs and of fractions that an answer breaks; each column has gangs of its own size."""
        if self.base.hosts is None and not any(getattr(row, "at_once", False) for row in self.rules.rows):
            return [], self
        wide, fractions = self.widened(self.base, np.arange(self.base.num_jobs)), times.by_job(times.fractions)
        rows = [*gang_rows(wide, fractions, self.columns_of), *fraction_rows(wide, fractions, self.columns_of)]
        return [*rows, *self._limit_rows(wide, fractions)], self


def elastic_columns(problem: AllocationProblem, rules: Rules, counts: GpuCounts) -> Columns:
    """Return the columns of all numbers of GPUs that some job can use and a type can hold."""
    types = len(problem.capacities)
    present = np.unique(counts.kinds[counts.is_elastic & problem.runnable.any(axis=1)])
    offered = counts.able[present].any(axis=0) & (counts.counts > 1)
    where, places = np.nonzero(offered)
    source = np.concatenate([np.arange(types), where]).astype(np.int64)
    sizes = np.concatenate([np.ones(types, dtype=np.int64), counts.counts[places]])
    wider, joint = with_rules(problem, rules, source, sizes.astype(float), per_gpu=True)
    return ElasticColumns(problem, problem, wider, source, sizes.astype(float), joint, counts, sizes)
