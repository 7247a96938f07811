"""Job queue and type selection of an ordered policy, updated for each decision by the jobs that have changed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import compress, count, islice, repeat
from operator import attrgetter, is_not, ne, not_
from typing import cast

import numpy as np

from gavel_py.errors import ProofError
from gavel_py.io.names import natural_key
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.arrays import Floats, returned_numbers
from gavel_py.problem.job import Job, with_steps
from gavel_py.scheduling.current_allocation import PolicyInput
from gavel_py.scheduling.jobs import GANG_KEY, JobTable
from gavel_py.scheduling.placement.gangs import PlacementPreference, Spans
from gavel_py.scheduling.placement.topology import NODE, SCOPES, Layout
from gavel_py.scheduling.problem_cache import ProblemCache, is_by_type

Position = tuple[float, float, tuple[tuple[str | int, ...], str]]


@dataclass(frozen=True, slots=True)
class JobProfile:
    """What policy and placement read of a job, equal for jobs with equal `GANG_FIELDS`. Types are columns."""

    size: int  # GPUs of the gang, 0 for a fractional job
    is_regular: bool  # whether the job requests whole GPUs without an even split
    types: list[int]  # types on which it can run, fastest first
    fastest: float  # steps/s on the first of them
    scope: int  # locality, as index into `SCOPES`
    preferences: list[int]  # by type, the `PlacementPreference`
    min_nodes: list[int]  # by type, the least number of nodes
    reason: str | None  # why it can run nowhere, None if it can


class JobProfiler:
    """Returns the profiles of jobs on a cluster with all nodes up, under one policy."""

    def __init__(self, policy: OrderedPolicy, table: JobTable, layout: Layout, spans: Spans, cache: ProblemCache) -> None:
        self._policy, self._table, self._layout, self._spans, self._cache = policy, table, layout, spans, cache
        # To a profile by job type, jobs with equal gang fields are equal.
        self._by_type = is_by_type(cache.profile)
        self._by_gang: dict[tuple[object, ...], JobProfile] = {}

    def knows(self, job: Job) -> bool:
        """Return whether the profile of a job is cached, and its total steps are known."""
        return self._by_type and job.total_steps is not None and GANG_KEY(job) in self._by_gang

    def __call__(self, job: Job) -> tuple[float, JobProfile]:
        """Return the total steps of a job, NaN if unknown, and its profile. Raises `InputError` as `Policy.check`."""
        if self.knows(job):
            assert job.total_steps is not None  # noqa: S101
            return job.total_steps, self._by_gang[GANG_KEY(job)]
        new = [with_steps(job, 0.0)]
        requests = self._table.requests_of(new)
        self._cache.complete(new, requests)
        problem = self._cache.problem_if_up(PolicyInput.of_new(new, requests, whole_gangs=self._cache.whole_gangs))
        jobs = self._policy.view(separate_jobs(problem, self._policy.name, self._policy.reads))
        is_eligible = len(jobs) > 0
        fastest_first = np.argsort(-jobs.throughputs[0], kind="stable").tolist() if is_eligible else []
        preferences, min_nodes = np.zeros(len(self._layout.types), dtype=np.int64), np.ones(len(self._layout.types), dtype=np.int64)
        scope = SCOPES.index(job.locality)
        if problem.speeds is not None:
            for j in np.flatnonzero(problem.speeds.differ[0]).tolist():
                min_nodes[j] = self._spans.min_nodes(self._layout.types[j], int(job.num_gpus))
                # As in `GangBatch.with_preferences_on`.
                if job.num_gpus > min_nodes[j] and min_nodes[j] < len(self._layout.parts[j].sizes) and scope != NODE:
                    preferences[j] = (
                        PlacementPreference.SPREAD if problem.speeds.spread_is_faster[0, j] else PlacementPreference.CONSOLIDATED
                    )
        job_profile = JobProfile(
            size=int(job.num_gpus),
            is_regular=job.num_gpus == int(job.num_gpus) and not (job.even_split and job.num_gpus > 1),
            types=[j for j in fastest_first if jobs.runnable[0, j]],
            fastest=float(jobs.fastest[0]) if is_eligible else 0.0,
            scope=scope,
            preferences=preferences.tolist(),
            min_nodes=min_nodes.tolist(),
            reason=problem.excluded.get(job.job_id),
        )
        if self._by_type and job.total_steps is not None:
            self._by_gang[GANG_KEY(job)] = job_profile
        return float(problem.total_steps[0]), job_profile


REMAINING = "steps_remaining"

FIXED: dict[str, Callable[[Job], float]] = {
    "num_gpus": attrgetter("num_gpus"),
    "weights": attrgetter("weight"),
    "priorities": attrgetter("priority"),
    "arrival_seconds": attrgetter("arrival_seconds"),
}
"""Fields that policies read and that change only with the job itself, as does its total number of steps."""

DECIDING_METHODS = ("sort_key", "view", "check", "serve", "seats", "decide")

BY_POSITION, JOB_ID = attrgetter("position"), attrgetter("job_id")


def can_keep_order(policy: OrderedPolicy) -> bool:
    """Return whether jobs can be kept in the order of a policy: its sort key reads each job by itself, and only what a queue knows.

    A subclass does not inherit `by_job` if it overrides a method that decides.
    """
    classes = type(policy).__mro__
    declared = next(i for i, each in enumerate(classes) if "by_job" in vars(each))
    is_overridden = any(name in vars(each) for each in classes[:declared] for name in DECIDING_METHODS)
    return policy.by_job and not is_overridden and set(policy.reads) <= {*FIXED, "total_steps", REMAINING}


class QueuedJob:
    """A job in the queue.

    `natural` is its id as a natural sort key, `total_steps` NaN if unknown, `numbers` the values of fields that the policy reads
    and that do not change, `restart_seconds` None for the default, and `position` the sort key in the queue.
    """

    __slots__ = ("job_id", "job_profile", "natural", "numbers", "position", "restart_seconds", "size", "total_steps", "types")

    def __init__(self, job: Job, total_steps: float, job_profile: JobProfile, reads: Iterable[str]) -> None:
        self.job_id, self.natural = job.job_id, natural_key(job.job_id)
        self.total_steps, self.job_profile = total_steps, job_profile
        self.size, self.types = job_profile.size, job_profile.types
        self.numbers = [total_steps if name == "total_steps" else float(FIXED[name](job)) for name in reads]
        self.restart_seconds = job.restart_seconds
        self.position: Position = (0.0, job.arrival_seconds, self.natural)


class _JobNumbers:
    """What `sort_key` reads of jobs: `fastest`, and the fields that the policy reads."""

    def __init__(self, fastest: Sequence[float], columns: dict[str, Floats]) -> None:
        self.fastest = np.array(fastest)
        self.__dict__.update(columns)

    def __len__(self) -> int:
        return len(self.fastest)


class JobQueue:
    """Jobs in the order in which an ordered policy serves them."""

    def __init__(self, policy: OrderedPolicy, profiler: Callable[[Job], tuple[float, JobProfile]]) -> None:
        self._policy, self._profiler = policy, profiler
        self._fixed = [name for name in policy.reads if name != REMAINING]
        self._has_moving_keys = REMAINING in policy.reads
        self.order: list[QueuedJob] = []  # the jobs that can run somewhere, first to be served first
        self._unusual: set[str] = set()
        self._done: set[str] = set()
        self.by_id: dict[str, QueuedJob] = {}  # {job_id: QueuedJob} of the jobs that can run somewhere
        self.excluded: dict[str, str] = {}  # {job_id: reason} of the others, in natural order

    def update(self, table: JobTable) -> bool:
        """Apply the changes recorded by the table; return whether event-driven decisions are possible.

        They are if every job has steps left and requests whole GPUs without an even split.
        """
        changed, table.changed = table.changed, set()
        progressed, table.progressed = table.progressed - changed, set()
        for job_id in self.by_id.keys() & changed:
            position = self.by_id.pop(job_id).position
            del self.order[bisect_left(self.order, position, key=BY_POSITION)]
        arrived = [
            QueuedJob(job, *self._profiler(job), self._fixed)
            for job in (table.job(table.by_id[job_id]) for job_id in changed if job_id in table)
        ]
        self._update_excluded(changed, arrived)
        arrived = [entry for entry in arrived if entry.job_profile.reason is None]
        self._unusual = (self._unusual - changed) | {entry.job_id for entry in arrived if not entry.job_profile.is_regular}
        self._done -= changed
        self.by_id |= {entry.job_id: entry for entry in arrived}
        updated = [*arrived, *map(self.by_id.__getitem__, progressed & self.by_id.keys())]
        left = self._left(table, updated)
        if self._has_moving_keys:
            self._set_keys(updated, {REMAINING: np.array(left)})
            self.order += arrived
            self.order.sort(key=BY_POSITION)
        else:
            self._set_keys(arrived, {})
            for entry in arrived:
                insort(self.order, entry, key=BY_POSITION)
        return not self._done and not self._unusual

    def _left(self, table: JobTable, updated: Sequence[QueuedJob]) -> list[float]:
        """Return the remaining steps of jobs, and record the jobs that have none."""
        ids = list(map(JOB_ID, updated))
        # For unknown total steps (NaN), max returns 0.
        steps = table.columns["steps_done"][list(map(table.by_id.__getitem__, ids))].tolist()
        left = [max(0.0, entry.total_steps - done) for entry, done in zip(updated, steps, strict=True)]
        if self._done or not all(left):
            self._done = self._done.difference(ids).union(compress(ids, map(not_, left)))
        return left

    def _update_excluded(self, changed: set[str], arrived: Sequence[QueuedJob]) -> None:
        new = {entry.job_id: entry.job_profile.reason for entry in arrived if entry.job_profile.reason is not None}
        if new or (self.excluded and changed.intersection(self.excluded)):
            left = {job_id: reason for job_id, reason in self.excluded.items() if job_id not in changed} | new
            self.excluded = {job_id: left[job_id] for job_id in sorted(left, key=natural_key)}

    def _set_keys(self, entries: Sequence[QueuedJob], columns: dict[str, Floats]) -> None:
        if not entries:
            return
        columns |= {name: np.array([entry.numbers[i] for entry in entries]) for i, name in enumerate(self._fixed)}
        numbers = _JobNumbers([entry.job_profile.fastest for entry in entries], columns)
        returned = self._policy.sort_key(cast("JobClasses", numbers))
        name = f"policy {self._policy.name}"
        keys = returned_numbers(returned, len(entries), name, "sort_key", "finite", lambda i: entries[i].job_id)
        for entry, key in zip(entries, keys.tolist(), strict=True):
            entry.position = (key, entry.position[1], entry.natural)


CHUNK = 16
"""Number of jobs for which the policy selects types at once, beyond those that have one."""

SIZE, TYPES = attrgetter("size"), attrgetter("types")

Runs = Callable[[Sequence[QueuedJob]], list[int]]


class IncrementalSelection:
    """The types that an ordered policy selects for the jobs of a queue, kept between decisions."""

    def __init__(self, policy: OrderedPolicy, capacities: Sequence[float]) -> None:
        self._policy, self._capacities = policy, list(capacities)
        # A policy with its own `seats` may change the type of a job even if no job before it has changed.
        self._is_regular = policy.preemptive and type(policy).seats is OrderedPolicy.seats
        self._all_wait = self._is_regular and not policy.backfill
        self.clear()

    def clear(self) -> None:
        """Drop the selection."""
        self._order: list[QueuedJob] = []
        self._free = self._capacities.copy()
        self._columns: dict[QueuedJob, int] = {}
        self._selected: dict[str, QueuedJob] = {}
        self._on_first_type: set[QueuedJob] = set()
        self._first_waiting: int | None = None

    def column_of(self, each: QueuedJob | None) -> int:
        """Return the column of the type on which a job has all of its time, -1 for none."""
        return -1 if each is None else self._columns.get(each, -1)

    def update(self, order: Sequence[QueuedJob], changed: Set[str], runs: Runs) -> set[str]:
        """Select types for the jobs in this order; return the ids of the jobs that have another type than before, or none any more.

        Args:
            order: The queue.
            changed: Ids of jobs that have arrived, changed or left.
            runs: Returns the columns on which jobs run, -1 for none.

        Raises:
            ProofError: The policy selected a type where a job cannot run, or more GPUs than there are.
        """
        gone = [self._selected[job_id] for job_id in self._selected.keys() & changed]
        for each in gone:
            self._deselect(each)
        before, self._order = self._order, list(order)
        unchanged = next(compress(count(), map(is_not, order, before)), min(len(order), len(before)))
        first = self._first_unsettled(unchanged)
        moved = {} if first is None else self._reselect(first, runs)
        for each in moved.keys() & self._columns.keys():
            self._deselect(each)
        for each, column in moved.items():
            if column >= 0:
                self._select(each, column)
        if min(self._free, default=0) < 0:
            raise ProofError("more GPUs were given than there are")
        return {each.job_id for each in (*gone, *moved)}

    def _first_unsettled(self, unchanged: int) -> int | None:
        """Return the index of the first job with a type that may change, None if there is none; the first `unchanged` jobs are as
        before.
        """
        if not self._policy.preemptive:
            return 0
        if not self._policy.backfill and self._first_waiting is not None and self._first_waiting < unchanged:
            return None  # all later jobs still wait
        if not self._is_regular:
            return unchanged
        # A job on its fastest type keeps it as long as all jobs before it keep the types that they had beside it, in any order.
        unsettled = map(not_, map(self._on_first_type.__contains__, islice(self._order, unchanged, None)))
        return next(compress(count(unchanged), unsettled), len(self._order))

    def _reselect(self, first: int, runs: Runs) -> dict[QueuedJob, int]:
        """Let the policy select types for the jobs from this index on; return the columns that differ, -1 for none."""
        self._first_waiting = None
        moved: dict[QueuedJob, int] = {}
        if first == len(self._order):
            return moved
        free, end = self._free_for(first)
        start, end = first, end + CHUNK
        while start < len(self._order) and not (self._all_wait and self._first_waiting is not None):
            part = self._order[start:end]
            running_on = [] if self._is_regular else runs(part)  # without regard to where jobs run
            columns, _ = self._policy.seats(list(map(TYPES, part)), list(map(SIZE, part)), running_on, free)
            had = list(map(self._columns.get, part, repeat(-1)))
            moved |= {part[i]: columns[i] for i in compress(count(), map(ne, columns, had))}
            if self._first_waiting is None and -1 in columns:
                self._first_waiting = start + columns.index(-1)
            start, end = end, end + CHUNK
        return moved

    def _free_for(self, first: int) -> tuple[list[float], int]:
        """Return the free GPUs by type for the jobs from this index on, and the index after the last of them with a type."""
        free, end = self._free.copy(), first
        # If all jobs after the first that waits wait too, all jobs before `first` have a type.
        left = len(self._columns) - first if self._all_wait else len(self._order)
        while left > 0 and end < len(self._order):
            part = self._order[end : end + left]
            had = list(map(self._columns.get, part, repeat(-1)))
            for column, size in zip(had, map(SIZE, part), strict=True):
                if column >= 0:
                    free[column] += size
            end += len(part)
            left -= len(part) - had.count(-1)
        return free, end

    def _select(self, each: QueuedJob, column: int) -> None:
        if column not in each.types:
            raise ProofError(f"job {each.job_id!r} was given time where it cannot run")
        self._free[column] -= each.size
        self._columns[each] = column
        self._selected[each.job_id] = each
        if column == each.types[0]:
            self._on_first_type.add(each)

    def _deselect(self, each: QueuedJob) -> None:
        self._free[self._columns.pop(each)] += each.size
        del self._selected[each.job_id]
        self._on_first_type.discard(each)
