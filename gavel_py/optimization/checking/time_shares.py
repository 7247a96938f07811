"""Answers of a program: the time fractions of all jobs, and the pairs of jobs that share GPUs.

`laid_end_to_end` divides the same time among jobs in another way.

A proof may check one job of each class, counted as often as the class has jobs, instead of all N jobs, if the jobs of a class are
equal in everything that is checked (`TimeShares.stand_for_all`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import ProofError
from gavel_py.io.snapshots import decode, encode
from gavel_py.optimization.formulation.linear_rows import Broken, Row, Rules, entries_of, scale_of, shortfalls
from gavel_py.problem.row_hashing import Numbering
from gavel_py.problem.tolerances import DEFICIT_ROUNDING, SOLVER_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.optimization.job_classes import JobClasses
    from gavel_py.problem.arrays import Floats, Indices, Mask
    from gavel_py.problem.problem import AllocationProblem


@dataclass(frozen=True, eq=False)
class TimeShares:
    """Time fractions in the columns of a program, with a row for each job or for one job of each class.

    Attributes:
        problem: The problem of the M jobs in the rows, with all K' columns.
        fractions: (M, K') the time of each job in each column.
        classes: The G = M classes, each with one job in the rows; None if the rows are all jobs.
    """

    problem: AllocationProblem
    fractions: Floats
    classes: JobClasses | None = None

    @classmethod
    def of_classes(cls, problem: AllocationProblem, jobs: JobClasses, fractions: Floats) -> TimeShares:
        """Return the answer from (G, K') fractions of the classes: by job, unless some columns exist for classes only."""
        return cls(problem, jobs.expanded(fractions)) if jobs.wide is None else cls(jobs.wide, fractions, jobs)

    def by_job(self, table: Floats) -> Floats:
        """Return an (M, ...) table expanded to the N jobs."""
        return table if self.classes is None else self.classes.expanded(table)

    def by_class(self, jobs: JobClasses) -> Floats:
        """Return (G, K') fractions of the classes of a certificate; raises `ProofError` if those of equal jobs differ."""
        if self.classes is not None:
            return self.fractions
        by_class = self.fractions[jobs.rows]
        if not np.array_equal(jobs.expanded(by_class), self.fractions):
            raise ProofError(
                "jobs that are equal to the policy have different time fractions, so its objective cannot be recomputed"
            )
        return by_class

    @property
    def num_gpus(self) -> Floats:
        """(M,) GPUs of all jobs that a row stands for."""
        return self.problem.num_gpus if self.classes is None else self.classes.counts * self.problem.num_gpus

    @cached_property
    def throughputs(self) -> Floats:
        """(M,) steps/s of the job in each row."""
        throughputs: Floats = np.einsum("ij,ij->i", self.problem.throughputs, self.fractions)
        return throughputs

    @cached_property
    def job_throughputs(self) -> Floats:
        """(N,) steps/s of each job."""
        return self.throughputs if self.classes is None else self.classes.by_job(self.throughputs)

    def used(self, row: Row) -> float:
        """Return Σ a_ij X_ij over all jobs, the left-hand side of a row."""
        if self.classes is None:
            return row.used(self.problem, self.fractions)
        places, values = entries_of(row, self.classes.rows, self.problem.num_gpus)
        return float(values @ (self.classes.counts[:, None] * self.fractions).ravel()[places])

    def moved(self, source: Indices) -> float:
        """Return the number of GPUs that change hands, Σ_ij s_i |X_ij − previous_ij| over the types where jobs can run.

        source: (K',) the type of each column; X_ij is the time in all columns of type j.
        """
        problem, moved = self.problem, 0.0
        for j in np.unique(source).tolist():
            columns = source == j
            change = (self.fractions[:, columns] - problem.previous_fractions[:, columns]).sum(axis=1)
            moved += float(self.num_gpus @ np.where(problem.runnable[:, columns].any(axis=1), np.abs(change), 0.0))
        return moved

    def violation(self) -> float:
        """Return the largest violation of the constraints of valid allocations.

        X_ij >= 0; Σ_j X_ij <= 1; Σ_i s_i X_ij <= c_j, in parts of c_j; X_ij = 0 where job i cannot run on type j.
        """
        fractions, runnable, capacities = self.fractions, self.problem.runnable, self.problem.capacities
        if not fractions.size:
            return 0.0
        if not np.isfinite(fractions).all():
            return np.inf
        used = self.num_gpus @ fractions
        times = fractions @ np.ones(len(capacities))  # faster than a sum over short rows
        misplaced = 0.0 if runnable.all() else float(np.where(runnable, 0.0, np.abs(fractions)).max())
        excess = float(((used - capacities) / np.maximum(1.0, capacities)).max(initial=0.0))
        return max(0.0, -float(fractions.min()), float(times.max()) - 1.0, excess, misplaced)

    def broken(self, rules: Rules) -> list[Broken]:
        """Return all hard rules that are broken by more than rounding, limits first."""
        if not rules:
            return []
        over = self._excess(rules)
        found = [Broken(rules.hard_rows[r].name, float(over[r])) for r in np.flatnonzero(over > SOLVER_TOLERANCE).tolist()]
        jobs = None if self.classes is None else self.classes.rows
        for floor in rules.floors:
            if floor.penalty is None:
                short = shortfalls(floor.throughputs if jobs is None else floor.throughputs[jobs], self.throughputs)
                broken = np.flatnonzero(short > SOLVER_TOLERANCE).tolist()
                found += [Broken(floor.name_of(m if jobs is None else int(jobs[m])), float(short[m])) for m in broken]
        return found

    def _excess(self, rules: Rules) -> Floats:
        """Return (R,) the excess of each hard row relative to its size, <= 0 for rows that hold."""
        if self.classes is None:
            problem = self.problem
            excess = np.array([self.used(row) - row.rhs for row in rules.hard_rows])
            for r in np.flatnonzero(excess > 0).tolist():
                row = rules.hard_rows[r]
                excess[r] /= abs(row.rhs) or scale_of(0.0, row.costs(np.arange(problem.num_jobs), problem.num_gpus))
            return excess
        jobs = self.classes if self.classes.rules is rules else replace(self.classes, rules=rules)
        costs, most = jobs.limits
        return costs @ (jobs.counts[:, None] * self.fractions).ravel() - most

    def stand_for_all(self, rules: Rules) -> bool:
        """Return whether the jobs of each class are equal in everything that a proof checks, these rules included."""
        jobs = self.classes
        if jobs is None:
            return True
        able = slice(None) if jobs.num_jobs == jobs.problem.num_jobs else jobs.jobs
        return all(
            np.array_equal(column[able], column[jobs.rows].take(jobs.index, axis=0)) for column in _checked(jobs.problem, rules)
        )


def _checked(problem: AllocationProblem, rules: Rules) -> Iterator[NDArray[np.generic]]:
    """Yield all columns of a problem and its rules on which a proof depends."""
    yield from (problem.throughputs, problem.runnable, problem.num_gpus)
    if problem.pairs is not None:
        yield problem.pairs.kinds
    if problem.counts is not None:
        yield problem.counts.kinds
    yield from {id(column): column for row in rules.hard_rows for column in row.split}.values()
    yield from (floor.throughputs for floor in rules.floors)


@dataclass(frozen=True, eq=False)
class CountTimes:
    """The times of elastic jobs on each number of GPUs: P entries, by job.

    Attributes:
        jobs: (P,) rows of the jobs.
        types: (P,) columns of the accelerator types.
        counts: (P,) numbers of GPUs.
        times: (P,) parts of wall-clock time, above 0.
    """

    jobs: Indices
    types: Indices
    counts: Indices
    times: Floats

    def __len__(self) -> int:
        """P."""
        return len(self.times)

    def of(self, i: int) -> list[tuple[int, int, float]]:
        """Return the (type, number of GPUs, time) of the job in row i."""
        start, end = np.searchsorted(self.jobs, [i, i + 1]).tolist()
        columns = (self.types[start:end].tolist(), self.counts[start:end].tolist(), self.times[start:end].tolist())
        return list(zip(*columns, strict=True))

    def by_job(self, shape: tuple[int, int]) -> tuple[Floats, Floats]:
        """Return (N, K) the time of elastic jobs on each type, and the GPUs that they hold there on average."""
        places, size = self.jobs * shape[1] + self.types, shape[0] * shape[1]
        time, gpus = (np.bincount(places, each, size).astype(float) for each in (self.times, self.times * self.counts))
        return time.reshape(shape), gpus.reshape(shape)

    def on(self, count: float) -> CountTimes:
        """Return the entries of one number of GPUs."""
        some = self.counts == count
        return CountTimes(self.jobs[some], self.types[some], self.counts[some], self.times[some])

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Return the entries by column."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of jobs that share GPUs.

    Attributes:
        first: (P,) rows of one job of each pair.
        second: (P,) rows of the other.
        types: (P,) columns of the accelerator types.
        times: (P,) part of wall-clock time.
        gains: (P,) throughput of both relative to that of one job alone, T_ab/T_a + T_ba/T_b.
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
        """Return the pairs at these positions."""
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


@dataclass(frozen=True, eq=False)
class KeptTimes:
    """The times of N jobs in an earlier allocation, 0 for jobs that it does not cover.

    Attributes:
        covered: (N,) the jobs that it covers.
        times: (N, K) time fractions; those in pairs and on several numbers of GPUs are part of them.
        spread: As `Allocation.spread_fractions`.
        pairs: As `Allocation.pairs`.
        counts: As `Allocation.counts`.
    """

    covered: Mask
    times: Floats
    spread: Floats | None = None
    pairs: Pairs | None = None
    counts: CountTimes | None = None


@dataclass(frozen=True, eq=False)
class TimesByType:
    """The times of N jobs by type. time_fractions, spread_fractions, counts: as in an `Allocation`."""

    time_fractions: Floats
    spread_fractions: Floats | None = None
    counts: CountTimes | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the times as plain data."""
        found: dict[str, Any] = encode(vars(self) | {"counts": None if self.counts is None else self.counts.to_dict()})
        return found

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> TimesByType:
        """Restore the times from `to_dict`."""
        times = decode(document)
        return cls(**times | {"counts": None if times["counts"] is None else CountTimes(**times["counts"])})


NEGLECTED = DEFICIT_ROUNDING / 2
"""Part of a job's time up to which it ends where a column ends; rounds neglect it."""


def laid_end_to_end(times: Floats, pools: Numbering, places: Indices) -> Floats:
    """Return (B, M) times of jobs laid end to end over the columns of their pool, so that few jobs are divided.

    Each job has the same time in all, and each pool the same time in each column, up to `NEGLECTED`. In a pool, at most one job is
    divided for each end of a column. Jobs stay in the columns in which they run, as far as these are long enough; the others fill
    what is left, first jobs first.

    Args:
        times: (B, M) times of jobs in columns.
        pools: B jobs in P pools.
        places: (B,) the column in which a job runs, -1 for none.
    """
    lengths = np.einsum("ij->i", times)
    totals = np.stack([np.bincount(pools.index, column, len(pools.first)).astype(float) for column in times.T], axis=1)
    order = np.lexsort([_chosen_columns(lengths, totals, pools.index, places), pools.index])
    ends, column_ends = np.cumsum(lengths[order]), np.cumsum(totals).reshape(totals.shape)
    after = np.minimum(np.searchsorted(ends, column_ends), len(ends) - 1)
    for near in (ends[after], ends[np.maximum(after - 1, 0)]):
        column_ends = np.where(np.abs(column_ends - near) <= NEGLECTED, near, column_ends)
    column_starts = np.append(0.0, column_ends.ravel()[:-1]).reshape(totals.shape)
    starts, pool = np.append(0.0, ends[:-1]), pools.index[order]
    overlaps = np.minimum(ends[:, None], column_ends[pool]) - np.maximum(starts[:, None], column_starts[pool])
    laid = np.zeros_like(times)
    laid[order] = np.maximum(overlaps, 0.0)
    is_whole = np.einsum("ij->i", laid > 0, dtype=np.int64) == 1
    return np.where(is_whole[:, None] & (laid > 0), lengths[:, None], laid)  # exactly, as sums of many times are rounded


def _chosen_columns(lengths: Floats, totals: Floats, pools: Indices, places: Indices) -> Indices:
    """Return (B,) the column of each job if whole jobs are to fill (P, M) `totals` as well as possible."""
    chosen, shape = places.copy(), totals.shape
    placed = np.flatnonzero(places >= 0)
    cells = pools[placed] * shape[1] + places[placed]
    stays = _middles(lengths[placed], cells) <= totals.ravel()[cells]
    chosen[placed[~stays]] = -1
    left = np.maximum(0.0, totals - np.bincount(cells[stays], lengths[placed[stays]], totals.size).reshape(shape))
    others = np.flatnonzero(chosen < 0)
    passed = _middles(lengths[others], pools[others])[:, None] > np.cumsum(left, axis=1)[pools[others]]
    chosen[others] = np.minimum(passed.sum(axis=1), shape[1] - 1)
    return chosen


def _middles(lengths: Floats, groups: Indices) -> Floats:
    """Return the middle of each job if the jobs of each group are laid end to end from 0."""
    sums = np.bincount(groups, lengths)
    order = np.argsort(groups, kind="stable")
    middles = np.empty(len(lengths))
    middles[order] = np.cumsum(lengths[order]) - lengths[order] / 2
    return middles - (np.cumsum(sums) - sums)[groups]
