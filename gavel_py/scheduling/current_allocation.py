"""The current allocation of a scheduler: the problem, and the solution applied to the current jobs.

Between two solves, jobs may arrive and leave. `reuse_allocation` then keeps the solution for the jobs that it covers, and
`ReusedAllocation` maps their rows. `whole_jobs` divides the times so that few jobs move between types of equal speed. A
`LazyAllocation` of the event-driven mode is solved only when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.result import Allocation, unpromised
from gavel_py.errors import ProofError
from gavel_py.io.names import natural_key
from gavel_py.io.snapshots import decode_array, encode
from gavel_py.optimization.checking.time_shares import CountTimes, KeptTimes, Pairs, TimesByType, TimeShares, laid_end_to_end
from gavel_py.optimization.formulation.columns import Columns
from gavel_py.optimization.formulation.cuts import SCOPES
from gavel_py.optimization.formulation.linear_rows import Limit, Load, Rules
from gavel_py.policies.base import AllocationStatus, Policy
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.compiling import placed
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job
from gavel_py.problem.job_table import Objects
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.row_hashing import number_equal, size_numbers
from gavel_py.problem.tolerances import INPUT_ROUNDING, SOLVER_TOLERANCE
from gavel_py.problem.workflows import WorkflowOutlook
from gavel_py.scheduling.colocation.groups import ColocationPromises, promises_of
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.mechanism.demand import SpeedTable
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.placement.gangs import preferences_of
from gavel_py.scheduling.problem_cache import PolicyInput, ProblemCache
from gavel_py.scheduling.round import Assignments, Fallback

if TYPE_CHECKING:
    from gavel_py.allocation.solver import Solver


@dataclass(frozen=True, eq=False)
class ReusedAllocation:
    """The mapping from a solution to N jobs that differ from those for which it was solved."""

    rows: Indices  # (N,) the row of each job in the solution, -1 for jobs that it does not cover
    solved_seconds: float  # the time of the solve

    def to_dict(self) -> dict[str, Any]:
        """Return the rows and the time as plain data."""
        return {"rows": encode(self.rows), "solved_seconds": self.solved_seconds}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], count: int, allocation: Allocation) -> ReusedAllocation:
        """Restore from `to_dict`, for this number of jobs; raises `ValueError` for rows that the allocation does not have."""
        rows = decode_array(document["rows"], (count,), range(-1, len(allocation.job_ids)))
        return cls(rows, float(document["solved_seconds"]))

    @cached_property
    def covered(self) -> Mask:
        """(N,) the jobs that the solution covers."""
        return self.rows >= 0

    def kept(self, allocation: Allocation, unsolved: Mask | None) -> KeptTimes:
        """Return the times of the solution for these jobs, without jobs whose time no solve has decided on (`unsolved`)."""
        covered = self.covered if unsolved is None else self.covered & ~unsolved[self.rows]
        solved = replace(self, rows=np.where(covered, self.rows, -1))
        spread, pairs, counts = allocation.spread_fractions, allocation.pairs, allocation.counts
        if counts is not None:
            row_of = np.full(len(allocation.job_ids), -1)
            row_of[solved.rows[covered]] = np.flatnonzero(covered)
            some = row_of[counts.jobs] >= 0
            counts = CountTimes(row_of[counts.jobs[some]], counts.types[some], counts.counts[some], counts.times[some])
        return KeptTimes(
            covered,
            solved.rows_of(allocation.time_fractions),
            None if spread is None else solved.rows_of(spread),
            None if pairs is None else solved.pairs(pairs),
            counts,
        )

    def rows_of(self, table: Floats) -> Floats:
        """Return (N, K) the rows of these jobs in a table of the solution, 0 for jobs that it does not cover."""
        found = np.zeros((len(self.rows), table.shape[1]))
        found[self.covered] = table[self.rows[self.covered]]
        return found

    def pairs(self, pairs: Pairs) -> Pairs:
        """Return the pairs of which both jobs are present; a job that has lost its partner keeps its time alone."""
        last = max(self.rows.max(initial=-1), pairs.first.max(initial=-1), pairs.second.max(initial=-1))
        row_of = np.full(int(last) + 1, -1, dtype=np.int64)
        row_of[self.rows[self.covered]] = np.flatnonzero(self.covered)
        first, second = row_of[pairs.first], row_of[pairs.second]
        both = np.flatnonzero((first >= 0) & (second >= 0))
        return replace(pairs.at(both), first=first[both], second=second[both])


@dataclass(frozen=True, eq=False)
class CurrentAllocation:
    """An allocation with its input and problem, for N jobs and K accelerator types."""

    policy_input: PolicyInput  # the input of the policy; for a reused allocation, the input for the present jobs
    nodes: Mapping[str, Any]  # states of the nodes at the solve (`NodeStates.to_dict`)
    problem: AllocationProblem  # the problem of this input, with the types that constraints forbid removed
    allocation: Allocation  # the solution
    runnable_if_up: Mask  # (N, K) where each job can run, or could if all nodes were up: deficits there are kept
    reused: ReusedAllocation | None = None  # None if the solution is for exactly these jobs
    note: str = ""  # a note for the rounds that follow the allocation
    fallback: Fallback | None = None  # for the rounds that follow it, None if its solve did not fail
    unsolved: Mask | None = None  # (rows of the solution,) the jobs whose time no solve has decided on, None for none
    whole: TimesByType | None = None  # the times that rounds follow (`whole_jobs`), None for those of the solution

    def to_dict(self, table: ScheduledJobs, places: Mapping[int, int]) -> dict[str, Any]:
        """Return the allocation and its input as plain data; places: as for `PolicyInput.to_dict`."""
        return {
            "input": self.policy_input.to_dict(table, places),
            "nodes": dict(self.nodes),
            "runnable": encode(self.problem.runnable),
            "excluded": dict(self.problem.excluded),
            "runnable_if_up": encode(self.runnable_if_up),
            "allocation": self.allocation.to_dict(by_column=True),
            **({} if self.reused is None else {"reused": self.reused.to_dict()}),
            **({"note": self.note} if self.note else {}),
            **({} if self.fallback is None else {"fallback": asdict(self.fallback)}),
            **({} if self.unsolved is None else {"unsolved": encode(self.unsolved)}),
            **({} if self.whole is None else {"whole": self.whole.to_dict()}),
        }

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], cluster: Cluster, table: ScheduledJobs, cache: ProblemCache
    ) -> CurrentAllocation:
        """Restore the current allocation from `to_dict`; raises `ValueError` for arrays of different shapes."""
        policy_input = PolicyInput.from_dict(document["input"], table, cache)
        nodes = NodeStates.from_dict(cluster, document["nodes"])
        # Constraints change `runnable` and `excluded`; the rest of the problem follows from the input.
        problem = cache.problem(policy_input, nodes)
        shape = count, _ = problem.throughputs.shape
        problem = replace(problem, runnable=decode_array(document["runnable"], shape), excluded=dict(document["excluded"]))
        allocation = Allocation.from_dict(document["allocation"])
        runnable, reused = decode_array(document["runnable_if_up"], shape), None
        if "reused" in document:
            reused = ReusedAllocation.from_dict(document["reused"], count, allocation)
        fallback = Fallback(**document["fallback"]) if "fallback" in document else None
        solved = len(allocation.job_ids)
        unsolved = decode_array(document["unsolved"], (solved,)).astype(bool) if "unsolved" in document else None
        whole = TimesByType.from_dict(document["whole"]) if "whole" in document else None
        arrays = nodes.to_dict(), problem, allocation, runnable, reused
        found = cls(policy_input, *arrays, document.get("note", ""), fallback, unsolved, whole)
        times = allocation.time_fractions if whole is None else whole.time_fractions
        if found.fractions.shape != shape or times.shape != allocation.time_fractions.shape:
            raise ValueError("the time fractions are not those of the jobs of the problem")
        return found

    @property
    def rows(self) -> Indices:
        """(N,) rows of the jobs in the `JobTable`."""
        return self.policy_input.rows

    @property
    def jobs(self) -> Objects:
        """(N,) the jobs."""
        return self.policy_input.jobs

    @property
    def is_time_limited(self) -> bool:
        """Whether the time limit ended the solve."""
        return self.allocation.status is AllocationStatus.TIME_LIMIT

    @property
    def is_up_to_date(self) -> bool:
        """Whether this is the policy's complete answer for exactly these jobs."""
        return self.reused is None and not self.is_time_limited

    @property
    def solved_seconds(self) -> float:
        """The time of the solve."""
        return self.policy_input.now_seconds if self.reused is None else self.reused.solved_seconds

    @property
    def followed(self) -> TimesByType | Allocation:
        """The times that rounds follow, for the jobs of the solution."""
        return self.allocation if self.whole is None else self.whole

    @cached_property
    def fractions(self) -> Floats:
        """(N, K) time fractions that rounds follow."""
        return self._current(self.followed.time_fractions)

    def _current(self, table: Floats) -> Floats:
        """Return (N, K) the rows of the present jobs in a table of the solution."""
        return table if self.reused is None else self.reused.rows_of(table)

    def restart_seconds(self, default: float) -> Floats:
        """Return (N,) what a restart of each job costs: its own value, or else the default."""
        return np.where(np.isnan(own := self.policy_input.requests["restart_seconds"]), default, own)

    @cached_property
    def promised(self) -> Floats:
        """(N, K) the promise per round: time fractions; for elastic jobs, multiplied by their GPUs."""
        times, counts = self.followed.time_fractions, self.followed.counts
        if counts is None:
            return self.fractions
        elastic, held = counts.by_job(times.shape)
        return self._current(times - elastic + held)

    def counts_of(self, i: int) -> list[tuple[int, int, float]]:
        """Return the (type, number of GPUs, time) of an elastic job, none for other jobs."""
        row = i if self.reused is None else int(self.reused.rows[i])
        counts = self.followed.counts
        return [] if counts is None or row < 0 else counts.of(row)

    def promised_options(self, speeds: SpeedTable, deficits: Floats) -> Mask:
        """Return (N, C) the options in which jobs are promised time, or have a deficit; deficits: (N, K).

        For a deficit on a type where an elastic job is promised no time, this is its smallest number of GPUs.
        """
        found = np.zeros((len(self.rows), len(speeds.types)), dtype=bool)
        lacking = (self.promised > SOLVER_TOLERANCE) | (deficits > SOLVER_TOLERANCE)
        counts = self.problem.counts
        offered = speeds.table[speeds.kinds] > 0
        for j in range(len(self.problem.capacities)):
            options = np.flatnonzero(speeds.types == j)
            first = options[offered[:, options].argmax(axis=1)] if len(options) else options
            rows = np.flatnonzero(lacking[:, j] & offered[:, options].any(axis=1))
            found[rows, first[rows]] = True
        for i in np.flatnonzero(counts.is_elastic).tolist() if counts is not None else ():
            times = [each for each in self.counts_of(i) if each[2] > SOLVER_TOLERANCE]
            for j in {j for j, _, _ in times}:
                found[i, speeds.types == j] = False
            for j, size, _ in times:
                found[i, (speeds.types == j) & (speeds.gpus == size)] = True
        return found & offered

    def units_of(self, gpus: Floats) -> Floats | None:
        """Return (N,) the units that a round on these GPUs counts: the GPUs of an elastic job, else 1; None if it is 1 for all."""
        counts = self.problem.counts
        return None if counts is None else np.where(counts.is_elastic, gpus, 1.0)

    def index_of(self, table: ScheduledJobs) -> Indices:
        """Return (rows,) the index of each job of the table in this allocation, -1 for jobs without one."""
        index = np.full(table.capacity, -1, dtype=np.int64)
        index[self.rows] = np.arange(len(self.rows))
        return index

    def fractions_for(self, table: ScheduledJobs, rows: Indices, *, followed: bool = False) -> Floats:
        """Return (len(rows), K) the time fractions of other jobs, 0 for jobs that have arrived since.

        followed: whether to return those that rounds follow, instead of those of the policy.
        """
        times = self.fractions if followed else self._current(self.allocation.time_fractions)
        return np.concatenate([times, np.zeros((1, times.shape[1]))])[self.index_of(table)[rows]]

    @property
    def excluded(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that cannot run anywhere."""
        return dict(self.allocation.excluded if self.reused is None else self.problem.excluded)

    def has_same_solution(self, other: object) -> bool:
        """Return whether another current allocation has the same solution, even for other jobs."""
        return self is other or (isinstance(other, CurrentAllocation) and self.allocation is other.allocation)

    @cached_property
    def spread_fractions(self) -> Floats | None:
        """(N, K) the part of the time fractions promised on spread placements, NaN where the placement makes no difference.

        None if it makes none for any job.
        """
        speeds, spread = self.problem.speeds, self.followed.spread_fractions
        if speeds is None or spread is None:
            return None
        return np.where(speeds.differ, self._current(spread), np.nan)

    @cached_property
    def spread_is_faster(self) -> Mask | None:
        """(N, K) whether the job is faster when spread, None if no difference is known."""
        return None if self.problem.speeds is None else self.problem.speeds.spread_is_faster

    def preferences(
        self, running_on: Indices, is_spread: Mask, deficits: Floats, spread_deficits: Floats, restart_rounds: Floats
    ) -> NDArray[np.int8]:
        """Return (N, K) the `PlacementPreference` of each job on each type.

        Args:
            running_on: (N,) columns of the types of running gangs, -1 for others.
            is_spread: (rows,) whether a gang is on more nodes than it needs.
            deficits: (N, K) the deficits.
            spread_deficits: (rows, K) the part of the deficits that belongs to spread placements.
            restart_rounds: (N,) the cost of a restart.
        """
        spread, faster = self.spread_fractions, self.spread_is_faster
        if spread is None or faster is None:
            return np.zeros((), dtype=np.int8)
        runs_spread, running = np.zeros(spread.shape), np.flatnonzero(running_on >= 0)
        runs_spread[running, running_on[running]] = np.where(is_spread[self.rows[running]], 1.0, -1.0)
        return preferences_of(self.fractions, spread, faster, deficits, spread_deficits[self.rows], runs_spread, restart_rounds)

    @cached_property
    def colocation_promises(self) -> ColocationPromises | None:
        """The time promised with partners, None if there is none."""
        pairs, throughputs = self.allocation.pairs, self.problem.pairs
        if pairs is not None and self.reused is not None:
            pairs = self.reused.pairs(pairs)
        if pairs is None or throughputs is None or not len(pairs):
            return None
        return promises_of(pairs, throughputs.kinds, self.jobs.tolist(), self.problem.accelerator_types)

    def present(self, table: ScheduledJobs) -> Mask:
        """Return (N,) the jobs that are still in the system with the same request for GPUs, and have steps left."""
        same_gang = table.gangs[self.rows] == self.policy_input.gangs
        # Unknown total steps are NaN, for which the comparison is false.
        done = table.columns["steps_done"][self.rows] >= self.problem.total_steps
        present: Mask = table.is_present[self.rows] & same_gang & ~done
        return present

    def unfinished(self, table: ScheduledJobs, rows: Indices) -> Indices:
        """Return those of these rows that are in the system and not known to be finished, in the order of the jobs."""
        among = np.zeros(table.capacity, dtype=bool)
        among[rows] = True
        done = table.columns["steps_done"][self.rows] >= self.problem.total_steps
        return self.rows[among[self.rows] & table.is_present[self.rows] & ~done]


def solve_allocation(
    policy_input: PolicyInput,
    nodes: NodeStates,
    solve: Callable[[AllocationProblem], Allocation],
    cache: ProblemCache,
    before: Callable[[], Floats] | None = None,
) -> CurrentAllocation:
    """Return the policy's allocation for this input on these nodes; before: as for `whole_jobs`."""
    problem = cache.problem(policy_input, nodes)
    allocation = solve(problem)
    # The problem as it was solved: constraints may keep jobs off types, and rounds must do the same.
    solved = problem if allocation.evidence is None else allocation.evidence.base
    runnable = solved.runnable | cache.runnable_if_up(policy_input, problem, nodes)
    whole = whole_jobs(allocation, policy_input.gangs, problem.running_on, before)
    return CurrentAllocation(policy_input, nodes.to_dict(), solved, allocation, runnable, whole=whole)


def whole_jobs(
    allocation: Allocation, kinds: Indices, running_on: Indices, before: Callable[[], Floats] | None = None
) -> TimesByType | None:
    """Return the times of an allocation with few jobs divided between columns of equal speed; None if nothing changes.

    Equal jobs have equal times, so if two types are equally fast, each job has time on both, and moves between them for nothing.
    Here, the times of such jobs are laid end to end (`laid_end_to_end`), separately for jobs that differ in their gang size, in the
    columns where they have time, or in a row that tells these columns apart. Their time in each column stays the same, and so do
    the throughput and the time of each job, the objective, its prices and all rows. Jobs with partners keep their times.

    Where parts of gangs take turns with larger gangs, there may be no room for a whole one. So the result is checked like that of a
    solve (`Columns.separate`), and types on which it could not be delivered are left as they are.

    Args:
        allocation: An allocation with its evidence, of N jobs.
        kinds: (N,) equal numbers only for jobs with equal throughputs.
        running_on: (N,) the type on which each job runs, -1 for none.
        before: Returns (N, K) earlier times, which waiting jobs keep as far as possible.
    """
    evidence, pairs = allocation.evidence, allocation.pairs
    if evidence is None:
        return None
    columns, shared = evidence.columns, np.zeros((1, 1))
    if pairs is not None:
        columns, shared = Columns.of_types(columns.base, columns.rules), pairs.by_job(*allocation.time_fractions.shape)
    times = columns.expand(allocation.time_fractions, allocation.spread_fractions, allocation.counts)
    movable = (times > SOLVER_TOLERANCE) & ~shared.any(axis=1, keepdims=True)
    while sets := _equally_fast(columns, kinds, movable):
        laid = _laid(columns, times, sets, running_on, None if before is None else before())
        rows, wider = columns.separate(TimeShares(columns.problem, laid - shared / 2))
        types = [wider.source[column] for row in rows if isinstance(row, Load) for column in row.loads]
        closed = np.isin(columns.source, types)
        if not movable[:, closed].any():
            shares = TimeShares(columns.problem, laid)
            spread = None if allocation.spread_fractions is None else columns.spread(shares)
            return TimesByType(columns.aggregate(laid), spread, _counts(columns, laid))
        movable &= ~closed
    return None


def _laid(
    columns: Columns, times: Floats, sets: Sequence[tuple[Indices, Indices]], running_on: Indices, before: Floats | None
) -> Floats:
    """Return the (N, K') times with those of jobs in each set of columns of equal speed laid end to end."""
    laid = times.copy()
    for equal, jobs in sets:
        types = columns.source[equal]
        place_of = np.full(len(columns.base.capacities) + 1, -1)  # the last one for jobs that do not run
        place_of[types[::-1]] = np.arange(len(types))[::-1]
        places = place_of[running_on[jobs]]
        first = np.argsort(places < 0, kind="stable")  # those that run here are the first to stay
        jobs, places = jobs[first], places[first]
        if before is not None:
            waits = np.flatnonzero(places < 0)
            kept = before[jobs[waits]][:, types]
            places[waits] = np.where(kept.max(axis=1) > 0, kept.argmax(axis=1), -1)
        rows, pools = laid[jobs], number_equal(_apart(columns, equal, jobs), len(jobs))
        rows[:, equal] = laid_end_to_end(rows[:, equal], pools, places)
        laid[jobs] = rows
    return laid


def _counts(columns: Columns, laid: Floats) -> CountTimes | None:
    """Return the times of elastic jobs by type and number of GPUs, None without such jobs; laid: (N, K')."""
    counts = columns.base.counts
    if counts is None:
        return None
    jobs, chosen = np.nonzero((laid > 0) & counts.is_elastic[:, None])
    return CountTimes(jobs, columns.source[chosen], columns.parts[chosen].astype(np.int64), laid[jobs, chosen])


def _equally_fast(columns: Columns, kinds: Indices, movable: Mask) -> list[tuple[Indices, Indices]]:
    """Return the sets of columns in which some jobs have time at the same speed, with the rows of these jobs."""
    rows = np.flatnonzero(np.einsum("ij->i", movable, dtype=np.int64) > 1)
    alike = number_equal([kinds[rows], *movable[rows].T], len(rows))
    one = rows[alike.first]
    wide = columns.widened(columns.problem, one)
    problem, own = (columns.problem, one) if wide is None else (wide, slice(None))
    speeds = np.where(movable[one], problem.throughputs[own], np.inf)
    order = np.argsort(speeds, axis=1, kind="stable")
    ranked, unsure = (np.take_along_axis(table, order, axis=1) for table in (speeds, problem.uncertainty[own]))
    same = (ranked[:, 1:] <= ranked[:, :-1] * (1 + INPUT_ROUNDING)) & (unsure[:, 1:] == unsure[:, :-1]) & np.isfinite(ranked[:, 1:])
    found = dict[tuple[int, ...], list[int]]()
    for g in np.flatnonzero(same.any(axis=1)).tolist():
        for equal in np.split(order[g], np.flatnonzero(~same[g]) + 1):
            if len(equal) > 1:
                found.setdefault(tuple(sorted(equal.tolist())), []).append(g)
    return [(np.array(equal), rows[np.isin(alike.index, classes)]) for equal, classes in found.items()]


def _apart(columns: Columns, equal: Indices, jobs: Indices) -> list[NDArray[np.generic]]:
    """Return columns in which jobs must agree to be laid together over some columns of equal speed."""
    problem, rules = columns.base, columns.rules.rows
    telling = [row for row in rules if not (isinstance(row, Limit) and np.ptp(row.per_gpu[equal]) == 0)]
    keys = [size_numbers(problem.num_gpus), *Rules(rows=tuple(telling)).kind_columns()]
    if problem.counts is not None:
        keys.append(problem.counts.is_elastic)
    own = [key[jobs] for key in keys]
    if problem.hosts is not None:
        own += [problem.hosts.localities[jobs] == scope for scope in SCOPES]
    return own


def unpromised_allocation(policy_input: PolicyInput, nodes: NodeStates, policy: Policy, cache: ProblemCache) -> CurrentAllocation:
    """Return an allocation that promises no time, for mechanisms that decide without one."""
    problem = cache.problem(policy_input, nodes)
    runnable = problem.runnable | cache.runnable_if_up(policy_input, problem, nodes)
    return CurrentAllocation(policy_input, nodes.to_dict(), problem, unpromised(problem, policy), runnable)


def least_gpus(problem: AllocationProblem) -> Indices:
    """Return (N,) the GPUs of gangs, of elastic jobs the smallest number."""
    gpus = np.ceil(problem.num_gpus)
    return (gpus if problem.counts is None else problem.counts.by_job(problem.counts.smallest, gpus)).astype(np.int64)


def whole_sizes(problem: AllocationProblem) -> Floats:
    """Return (N,) gang sizes, NaN for jobs that are elastic or may share GPUs."""
    varies = np.full(len(problem.num_gpus), problem.pairs is not None)
    if problem.counts is not None:
        varies |= problem.counts.is_elastic
    return np.where(varies, np.nan, problem.num_gpus)


def speeds_of(problem: AllocationProblem) -> SpeedTable:
    """Return the throughputs of all jobs by type and number of GPUs, 0 where they cannot run."""
    counts, gpus, types = problem.counts, np.ceil(problem.num_gpus).astype(np.int64), len(problem.capacities)
    fixed = np.ones(problem.num_jobs, dtype=bool) if counts is None else ~counts.is_elastic
    rows = np.flatnonzero(fixed)
    alike = number_equal([*problem.throughputs[rows].T, gpus[rows]], len(rows))
    one = rows[alike.first]
    sizes = np.unique(np.concatenate([gpus[one], [] if counts is None else counts.counts])).astype(np.int64)
    first = 0 if counts is None else len(counts.speeds)
    table = np.zeros((first + len(one), types, len(sizes)))
    kinds = np.zeros(problem.num_jobs, dtype=np.int64)
    if counts is not None:
        table[:first, :, np.searchsorted(sizes, counts.counts)] = np.where(counts.able, counts.speeds, 0.0)
        kinds = counts.kinds.copy()
    table[first + np.arange(len(one)), :, np.searchsorted(sizes, gpus[one])] = problem.throughputs[one]
    kinds[rows] = first + alike.index
    flat = table.reshape(len(table), types * len(sizes))  # without jobs, NumPy cannot infer a length
    some = np.flatnonzero((flat > 0).any(axis=0))
    where, places = np.divmod(some, len(sizes))
    return SpeedTable(kinds, where, sizes[places], flat[:, some])


def keep_allocation(
    before: CurrentAllocation | None,
    policy_input: PolicyInput,
    nodes: NodeStates,
    solver: Solver,
    table: ScheduledJobs,
    cache: ProblemCache,
) -> CurrentAllocation:
    """Return the times of the last solve, with isolated shares of what it leaves for jobs that it does not cover (`kept_answer`).

    before: the current allocation, whose solve may have failed too; None if there is none. Other arguments as for
    `reuse_allocation`.
    """
    shape = len(policy_input.rows), len(nodes.cluster.accelerator_names)
    kept, note = KeptTimes(np.zeros(shape[0], dtype=bool), np.zeros(shape)), ""
    if before is not None:
        reused = reuse_allocation(before, policy_input, nodes, solver.policy.constraints, table, cache).reused
        assert reused is not None  # noqa: S101
        kept = reused.kept(before.allocation, before.unsolved)
    total, others = len(kept.covered), int((~kept.covered).sum())
    if others < total:
        note = f"the times of the last solve are kept for {total - others} of {total} jobs" + ("; " if others else "")
    if others:
        note += f"{others} of {total} jobs have equal parts of the free GPUs"
    found = solve_allocation(policy_input, nodes, lambda problem: solver.keep(problem, kept), cache)
    return replace(found, note="; ".join([note, *found.allocation.notes]), unsolved=~kept.covered)


def reuse_allocation(
    before: CurrentAllocation,
    policy_input: PolicyInput,
    nodes: NodeStates,
    constraints: Sequence[Constraint],
    table: ScheduledJobs,
    cache: ProblemCache,
) -> CurrentAllocation:
    """Return the solution of `before` applied to the current jobs.

    Jobs with the same request for GPUs keep their rows; all others get zeros. Normalisers, such as the equal share of N jobs, are
    those of the current jobs, so that histories do not depend on how often allocations are solved.

    Args:
        before: The current allocation.
        policy_input: The input with which the policy would be called now.
        nodes: The states of the nodes. Jobs that the solution covers do not run on types on which they could not run at the solve.
        constraints: The constraints of the policy.
        table: The jobs.
        cache: The problem cache, with the same profile as at the solve.
    """
    whole = cache.problem(policy_input, nodes)
    problem = placed(whole, constraints)
    rows = _rows_in(before, policy_input, problem, table)
    known = rows >= 0
    runnable, runnable_if_up = problem.runnable.copy(), problem.runnable | cache.runnable_if_up(policy_input, whole, nodes)
    # Constraints may restrict running jobs differently by now, but promises hold.
    runnable[known] = before.problem.runnable[rows[known]] & whole.runnable[known]
    runnable_if_up[known] = before.runnable_if_up[rows[known]]
    in_solution = rows if before.reused is None else np.where(known, before.reused.rows[rows], -1)
    reused = ReusedAllocation(in_solution, before.solved_seconds)
    problem = replace(problem, runnable=runnable)
    found = CurrentAllocation(policy_input, before.nodes, problem, before.allocation, runnable_if_up, reused)
    return replace(found, fallback=before.fallback, unsolved=before.unsolved, whole=before.whole)


def _rows_in(before: CurrentAllocation, policy_input: PolicyInput, problem: AllocationProblem, table: ScheduledJobs) -> Indices:
    """Return (N,) the row of each job in the current allocation, -1 for new jobs, changed gangs and excluded jobs."""
    rows = before.index_of(table)[policy_input.rows]
    same = (rows >= 0) & (before.policy_input.gangs[rows] == policy_input.gangs) if len(before.rows) else rows >= 0
    excluded = before.problem.excluded.keys() | problem.excluded.keys()
    if excluded:
        same &= np.array([job_id not in excluded for job_id in policy_input.job_ids], dtype=bool)
    return np.where(same, rows, -1)


@dataclass(eq=False)
class LazyAllocation:
    """An allocation that the event-driven mode has derived from changes, solved only if it is read or audited.

    The job table continues to change. Everything that a policy could have read in it is kept: the progress of all jobs, where they
    ran, and the rows of jobs that are replaced later (`remember`, `remember_progress`).
    """

    note: ClassVar[str] = ""
    fallback: ClassVar[Fallback | None] = None

    now_seconds: float  # the time of the decision
    table: ScheduledJobs  # the jobs, as they are now
    was_present: Mask  # (rows,) the jobs in the system then
    running_on: Indices  # (rows,) then
    assignments: Assignments  # the jobs that have all of their time on a type
    excluded: Mapping[str, str]  # {job_id: reason} of the jobs that cannot run anywhere
    solve: Callable[[PolicyInput], CurrentAllocation] = field(repr=False)  # solves for all jobs
    outlook: WorkflowOutlook | None = None  # (rows,) then, None if the policy does not read it
    replaced: dict[int, tuple[Job, int, Floats]] = field(default_factory=dict)  # {row: job, gang and requests before}
    steps_done: Floats | None = None  # (rows,) then, None while progress is unchanged

    @property
    def rows(self) -> Indices:
        """Rows of the jobs in the system then."""
        return np.flatnonzero(self.was_present)

    def remember(self, row: int) -> None:
        """Keep the present job of a row, which is about to be replaced."""
        requests = np.concatenate(list(self.table.requests_at(np.array([row])).values()))
        self.replaced.setdefault(row, (self.table.jobs[row], int(self.table.gangs[row]), requests))

    def remember_progress(self) -> None:
        """Keep the present progress of all jobs, which is about to change."""
        if self.steps_done is None:
            self.steps_done = self.table.columns["steps_done"].copy()

    def resolve(self) -> CurrentAllocation:
        """Solve for all jobs and return the allocation. Raises `ProofError` if it differs from what event-driven mode derived."""
        table = self.table
        rows = np.array(sorted(self.rows.tolist(), key=lambda row: natural_key(str(table.ids[row]))), dtype=np.int64)
        jobs, gangs, requests = table.jobs[rows], table.gangs[rows], table.requests_at(rows)
        for i in np.flatnonzero(np.isin(rows, list(self.replaced))).tolist():
            jobs[i], gangs[i], earlier = self.replaced[rows.item(i)]
            for column, value in zip(requests.values(), earlier.tolist(), strict=True):
                column[i] = value
        if self.steps_done is not None:
            requests["steps_done"] = self.steps_done[rows]
        history = {
            **dict.fromkeys(("waiting_seconds", "isolated_seconds", "attained_gpu_seconds"), np.zeros(len(rows))),
            "running_on": self.running_on[rows],
        }
        outlook = None if self.outlook is None else self.outlook.take(rows)
        found = self.solve(PolicyInput(self.now_seconds, rows, jobs, gangs, requests, history, outlook=outlook))
        fractions, place = found.allocation.time_fractions, {job_id: i for i, job_id in enumerate(found.problem.job_ids)}
        expected = np.zeros_like(fractions)
        expected[[place[job_id] for job_id in self.assignments.ids], self.assignments.held.types] = 1.0
        if not np.array_equal(fractions, expected):
            raise ProofError("the jobs served one by one have other times than the policy gives them when it solves for all jobs")
        return found
