"""Event-driven mode: incremental decisions, for ordered policies that give each job either all of the time or none.

`EventDrivenPlanner` makes the same decisions as `RoundPlanner`, GPU by GPU, in a fraction of the time: `queue` keeps jobs in the
order of the policy, and `PlacementCache` keeps the free GPUs. It leaves a decision to the full path if nodes are down, jobs have
deficits, or running gangs would have to make room.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from gavel_py.policies import OrderedPolicy, Policy
from gavel_py.problem.arrays import Floats
from gavel_py.scheduling.event_driven.queue import JobQueue, can_keep_order
from gavel_py.scheduling.event_driven.queued_jobs import JobProfiler, QueuedJob
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.jobs.waiting import workflow_seconds
from gavel_py.scheduling.mechanism.demand import hysteresis_of
from gavel_py.scheduling.options import JobTimes, TimedOrder
from gavel_py.scheduling.placement import hardest_first, place_on_type
from gavel_py.scheduling.placement.assign import PlacementDomains, PlacementPass, keep_own_gpus
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeResources, find_preferred
from gavel_py.scheduling.placement.gangs import ANY_PLACEMENT, SPREAD, GangBatch, HeldGpus
from gavel_py.scheduling.placement.migration import MisplacedGang, migrate_misplaced
from gavel_py.scheduling.placement.topology import ANYWHERE, NOTHING, Layout
from gavel_py.scheduling.problem_cache import ProblemCache
from gavel_py.scheduling.round import Assignments, GangChanges

if TYPE_CHECKING:
    from gavel_py.scheduling.state import SchedulerState

__all__ = ["EventDecision", "EventDrivenPlanner", "EventParts", "PlacementCache", "batch_of"]


BY_IMPORTANCE = attrgetter("importance")


@lru_cache
def _hysteresis(size: int, restart_rounds: float) -> float:
    """Return the hysteresis of a gang with a time fraction of 1 on its type."""
    return float(hysteresis_of(np.ones(1), np.array([size]), np.array([restart_rounds]))[0])


class PlacementCache:
    """The GPUs of each type that the gangs of a queue leave free, kept between decisions while all nodes are up."""

    def __init__(self, layout: Layout, restart_seconds: float = 0.0, round_seconds: float = 1.0) -> None:
        self._layout, self._pool = layout, FreeResources(layout)
        self._restart_seconds, self._round_seconds = restart_seconds, round_seconds
        self._domains = [
            PlacementDomains(part, self._pool.free[part.gpus], *self._limits(t)) for t, part in enumerate(layout.parts)
        ]
        self.clear()

    def clear(self) -> None:
        """Forget all gangs."""
        count = len(self._layout.parts)
        self._on: list[dict[str, QueuedJob]] = [{} for _ in range(count)]
        self._misplaced: list[dict[str, MisplacedGang]] = [{} for _ in range(count)]
        self._tried: list[tuple[object, ...]] = [()] * count
        self._has_changed = [True] * count
        self._free: list[FreeGpus | None] = [None] * count

    def hold(self, each: QueuedJob, column: int, gpus: list[int]) -> None:
        """Record that a gang runs on these GPUs; free GPUs are counted on first use."""
        self._hold(each, column, gpus)
        self._rank(each)

    def _rank(self, each: QueuedJob) -> None:
        """Set the importance of a running gang, with its hysteresis."""
        restart = self._restart_seconds if math.isnan(each.restart_seconds) else each.restart_seconds
        each.importance = -_hysteresis(each.size, restart / self._round_seconds), each.natural

    def _hold(self, each: QueuedJob, column: int, gpus: list[int]) -> None:
        """Record that a gang holds these GPUs, which have been taken or will be counted on first use."""
        each.runs_on, each.gpus, self._has_changed[column] = column, gpus, True
        self._on[column][each.job_id] = each
        self._misplaced[column].pop(each.job_id, None)
        misplaced = self._misplaced_on(each, column, gpus)
        if misplaced is not None:
            self._misplaced[column][each.job_id] = misplaced

    def _misplaced_on(self, each: QueuedJob, column: int, gpus: list[int]) -> MisplacedGang | None:
        """Return a gang as misplaced if these GPUs are not its preferred placement, None if they are."""
        preference, min_nodes = each.profile.preferences[column], each.profile.min_nodes[column]
        if preference == ANY_PLACEMENT:
            return None
        parts = self._parts_of(column, gpus)
        if (len(parts) > min_nodes) == (preference == SPREAD):
            return None
        return MisplacedGang(gpus, parts, preference, each.size, each.profile.scope, min_nodes)

    def _parts_of(self, column: int, gpus: Any) -> Mapping[int, int]:
        """Return {node: GPUs} of the GPUs of a gang."""
        return self._layout.parts[column].parts_of(gpus)

    def release(self, each: QueuedJob) -> None:
        """Record that a gang no longer holds GPUs."""
        column, gpus, each.runs_on, each.gpus = each.runs_on, each.gpus, -1, []
        self._has_changed[column] = True
        del self._on[column][each.job_id]
        self._misplaced[column].pop(each.job_id, None)
        free = self._free[column]
        if free is not None:
            free.give_back(gpus)

    def place(self, starting: Sequence[QueuedJob]) -> set[QueuedJob] | None:
        """Place gangs that start on their types, and return the gangs whose GPUs have changed.

        The result equals a placement of all gangs from scratch. If some gang has no place, return None and forget all gangs.
        """
        changed = set(starting)
        for each in starting:
            each.importance = 0.0, each.natural
        for column, misplaced in enumerate(self._misplaced):
            gangs = [each for each in starting if each.column == column]
            if gangs and not self._place_beside(column, gangs):
                moved = self._place_all(column, gangs)
            else:
                moved = self._migrate(column, gangs) if misplaced and self._has_changed[column] else set()
            if moved is None:
                self.clear()
                return None
            changed |= moved
        for each in starting:
            self._rank(each)
        return changed

    def _place_beside(self, column: int, gangs: Sequence[QueuedJob]) -> bool:
        """Place gangs beside the running ones; return False if a running gang would have to move."""
        free = self._free_of(column)
        for each in sorted(gangs, key=_hardest_first):
            size, scope, preference = each.size, each.profile.scope, each.profile.preferences[column]
            gpus = [] if preference == SPREAD else free.take_tightest(size)
            if not gpus:
                parts = None
                if preference != ANY_PLACEMENT:
                    parts = find_preferred(preference, free.room, size, scope, each.profile.min_nodes[column])
                if parts is None:
                    parts = free.room.fit(size, self._domains[column].narrowest(size, scope))
                if parts is None:
                    return False
                gpus = free.take_lowest(parts)
            self._hold(each, column, gpus)
        return True

    def _migrate(self, column: int, starting: Sequence[QueuedJob]) -> set[QueuedJob]:
        """Move misplaced gangs as `migrate_misplaced` does; no other gangs move."""
        free, wrong = self._free_of(column), self._misplaced[column]
        new = {each.job_id for each in starting} & wrong.keys()
        # On the same free GPUs, migration would fail again.
        attempt = list(wrong.values()), new, free.room.index().on.copy()
        if attempt == self._tried[column]:
            return set()
        moved = move_misplaced(free, {self._on[column][job_id]: misplaced for job_id, misplaced in wrong.items()})
        for each, gpus in moved.items():
            self._hold(each, column, gpus)
        self._tried[column], self._has_changed[column] = () if moved else attempt, bool(moved or new)
        return set(moved)

    def _place_all(self, column: int, starting: Sequence[QueuedJob]) -> set[QueuedJob] | None:
        """Place all gangs of a type, and return those whose GPUs have changed; None if some have no place."""
        for each in starting:
            if each.runs_on >= 0:  # it was placed beside running gangs, without success
                self.release(each)
        gangs = sorted([*self._on[column].values(), *starting], key=BY_IMPORTANCE)
        self._on[column] = {each.job_id: each for each in gangs}  # nearly sorted next time, and so sorted faster
        batch = batch_of(gangs, column)
        stays = np.bincount(batch.owners, minlength=len(batch)) > 0
        # At first on the GPUs that are free while running gangs stay.
        placement = PlacementPass(self._free_of(column), batch, stays, self._domains[column])
        placement.place_all(hardest_first(batch))
        if placement.placed.all():
            new = {gangs[i]: gpus for i, gpus in placement.found.items()}
            new |= self._migrated_after(column, new, placement.free)
            keep_own_gpus(new, attrgetter("gpus"), placement.free)
        else:
            self._free[column] = None
            placement = place_on_type(self._pool, column, batch)
            if not placement.placed.all():
                return None
            new = {gangs[i]: gpus for i, gpus in placement.found.items()}
        found = {each: gpus for each, gpus in new.items() if each.gpus != gpus}
        for each, gpus in found.items():
            self._hold(each, column, gpus)
        return set(found)

    def _migrated_after(self, column: int, new: Mapping[QueuedJob, list[int]], free: FreeGpus) -> dict[QueuedJob, list[int]]:
        """Move misplaced gangs after a placement of all gangs, and return the GPUs of those that move.

        new: the GPUs of the gangs that have got others in that placement.
        """
        wrong = {each: misplaced for each, gpus in new.items() if (misplaced := self._misplaced_on(each, column, gpus)) is not None}
        for job_id, misplaced in self._misplaced[column].items():
            if (each := self._on[column][job_id]) not in new:
                wrong[each] = misplaced
        return move_misplaced(free, wrong)

    def _free_of(self, column: int) -> FreeGpus:
        free = self._free[column]
        if free is None:
            part = self._layout.parts[column]
            there = np.ones(len(part.node_of), dtype=bool)
            there[[gpu for each in self._on[column].values() for gpu in each.gpus]] = False
            self._free[column] = free = FreeGpus(part, there, *self._limits(column))
        return free

    def _limits(self, column: int) -> tuple[Floats, Floats]:
        nodes = self._layout.parts[column].nodes
        return self._pool.cpus[nodes], self._pool.memory_gb[nodes]


def move_misplaced(free: FreeGpus, misplaced: Mapping[QueuedJob, MisplacedGang]) -> dict[QueuedJob, list[int]]:
    """Move misplaced gangs as `migrate_misplaced` does, and return the GPUs of those that move."""
    gangs = sorted(misplaced, key=BY_IMPORTANCE)
    return {gangs[i]: gpus for i, gpus in migrate_misplaced(free, [misplaced[each] for each in gangs]).items()}


def _hardest_first(each: QueuedJob) -> tuple[object, ...]:
    """Return the sort key in the order of placement among gangs that start (`hardest_first`)."""
    return each.profile.scope == ANYWHERE, -each.size, each.natural


def batch_of(gangs: Sequence[QueuedJob], column: int) -> GangBatch:
    """Return gangs on one type, most important first, as a batch."""
    count, profiles = len(gangs), [each.profile for each in gangs]
    return GangBatch(
        sizes=np.array([each.size for each in gangs], dtype=np.int64),
        types=np.full(count, column, dtype=np.int64),
        scopes=np.array([profile.scope for profile in profiles], dtype=np.int64),
        splits=np.zeros(count, dtype=np.int64),
        preferences=np.array([profile.preferences[column] for profile in profiles], dtype=np.int8),
        min_nodes=np.array([profile.min_nodes[column] for profile in profiles], dtype=np.int64),
        per_gpu=[NOTHING] * count,
        held=np.fromiter(chain.from_iterable([each.gpus for each in gangs]), dtype=np.int64),
        owners=np.repeat(np.arange(count), [len(each.gpus) for each in gangs]),
    )


class EventParts(NamedTuple):
    """What decides at events, apart from jobs and accounts: for a simulation that keeps its own."""

    policy: OrderedPolicy
    profiler: JobProfiler
    layout: Layout
    capacities: list[float]  # by type
    restart_seconds: float
    order: TimedOrder | None  # how time alone changes the order

    @classmethod
    def of(
        cls, policy: Policy, state: SchedulerState, cache: ProblemCache, restart_seconds: float, order: TimedOrder | None
    ) -> EventParts | None:
        """Return the parts of a policy that decides at events, which may read times; None for another one."""
        if not isinstance(policy, OrderedPolicy) or not cls.can(policy, JobTimes._fields):
            return None
        profiler = JobProfiler(policy, state.table, state.layout, state.spans, cache)
        return cls(policy, profiler, state.layout, state.nodes.cluster.capacities.tolist(), restart_seconds, order)

    @staticmethod
    def can(policy: Policy, further: Collection[str] = ()) -> bool:
        """Return whether a policy, which may read further fields, allows event-driven decisions."""
        is_whole = isinstance(policy, OrderedPolicy) and not policy.fractional and not policy.constraints
        return is_whole and can_keep_order(cast("OrderedPolicy", policy), further)


AUDIT_EVERY = 1_000
"""One decision out of this many is compared with a solve for all jobs."""


class EventDecision(NamedTuple):
    """An event-driven decision."""

    assignments: Assignments  # the jobs that run, with all of the time
    changes: GangChanges | None  # the differences from the latest round; None if they are not known
    excluded: dict[str, str]  # {job_id: reason} of the jobs that cannot run anywhere
    is_audited: bool  # whether it must be compared with a solve for all jobs


class EventDrivenPlanner:
    """Decides incrementally at events, for one policy, profile and cluster; options as for `RoundScheduler`."""

    def __init__(
        self,
        policy: OrderedPolicy,
        state: SchedulerState,
        cache: ProblemCache,
        restart_seconds: float,
        round_seconds: float,
        *,
        by_workflow: bool,
    ) -> None:
        self._made_for = policy, cache, restart_seconds, round_seconds, by_workflow
        self.profiler = JobProfiler(policy, state.table, state.layout, state.spans, cache)
        found = partial(workflow_seconds, state.table, state.blocked, cache, by_workflow=by_workflow)
        self._queue = JobQueue(policy, state.table, self.profiler, state.nodes.cluster.capacities.tolist(), found)
        self._gpus = PlacementCache(state.layout, restart_seconds, round_seconds)
        self._starts = [part.gpus.start for part in state.layout.parts]
        self._preemptive = policy.preemptive
        self._decisions = 0
        self._latest: Assignments | None = None  # of the latest decision, None until one is complete
        state.table.track()

    def holds_for(self, policy: Policy, cache: ProblemCache, *options: object) -> bool:
        """Return whether this planner was created with these arguments; options: the other arguments of `__init__`."""
        made_for, its_cache, *others = self._made_for
        return policy is made_for and cache is its_cache and others == list(options)

    def decide(self, state: SchedulerState) -> EventDecision | None:
        """Return the decision, or None if the full path must decide."""
        queue, latest = self._queue, self._latest
        self._latest = None  # until the decision is complete
        if not queue.update() or not state.nodes.all_up or state.gangs.are_shared:
            queue.removed = []  # the next decision starts from scratch
            return None
        # After further events, only part of the latest decision may have begun.
        began = latest is not None and state.last is not None and state.last.assignments is latest
        lost = self._lost(state) if began else None
        if lost is None and not self._start_anew(state):
            return None
        reselected = queue.select()
        affected = queue.by_row.values() if lost is None else dict.fromkeys([*reselected, *lost])
        stopped = [each for each in affected if each.column != each.runs_on >= 0]
        for each in stopped:
            self._gpus.release(each)
        found = self._gpus.place([each for each in affected if each.column >= 0 > each.runs_on])
        if found is None:
            return None
        self._decisions += 1
        changes = None
        if latest is None or lost is None:
            running = sorted((each for each in queue.by_row.values() if each.runs_on >= 0), key=attrgetter("job_id"))
            held = HeldGpus.of([each.runs_on for each in running], [self._place_of(each)[1] for each in running])
            self._latest = Assignments(tuple([each.job_id for each in running]), held, state.layout)
        else:
            self._latest, changes = self._changed(state.table, latest, stopped, lost, found)
        return EventDecision(self._latest, changes, queue.excluded, self._decisions % AUDIT_EVERY == 1)

    def _start_anew(self, state: SchedulerState) -> bool:
        """Read which gangs run, and clear the types of all jobs; return False if event-driven decisions are not possible."""
        self._gpus.clear()
        by_row, gangs = self._queue.by_row, state.gangs
        for each in by_row.values():
            each.runs_on, each.gpus = -1, []
        rows = gangs.rows.tolist()
        # Rounds that were counted may have left deficits.
        if not by_row.keys() >= set(rows) or (state.ledger.deficits.any() and state.ledger.deficits[list(by_row)].any()):
            return False
        for row in rows:
            column = gangs.types.item(row)
            self._gpus.hold(by_row[row], column, [gpu - self._starts[column] for gpu in gangs.gpus_of(row)])
        self._queue.clear()
        return True

    def _lost(self, state: SchedulerState) -> list[QueuedJob] | None:
        """Return the jobs whose gangs have changed or lost their GPUs since the latest round began, including jobs that have left.

        None if a gang runs that the round did not start.
        """
        queue, gangs, lost = self._queue, state.gangs, list[QueuedJob]()
        if gangs.moved is None or any(gangs.types.item(row) >= 0 for row in gangs.moved):
            return None
        for old in queue.removed:
            if old.runs_on < 0:
                continue
            each = queue.by_row.get(old.row)
            if gangs.types.item(old.row) < 0:
                self._gpus.release(old)
                lost.append(old)
            elif each is None:
                return None
            else:  # it has changed and continues to run
                self._gpus.hold(each, old.runs_on, old.gpus)
                lost.append(each)
                if not self._preemptive and each.runs_on in each.types:
                    queue.keep_running(each)
        queue.removed = []
        for each in [queue.by_row[row] for row in gangs.moved if row in queue.by_row]:
            if each.runs_on >= 0:
                self._gpus.release(each)
                lost.append(each)
                if not self._preemptive:
                    queue.deselect(each)
        return lost

    def _changed(
        self,
        table: ScheduledJobs,
        latest: Assignments,
        stopped: Sequence[QueuedJob],
        lost: Sequence[QueuedJob],
        found: Set[QueuedJob],
    ) -> tuple[Assignments, GangChanges]:
        """Return the new assignments, derived from the latest ones, and the changes."""
        new = {each.job_id: each for each in found}
        gone = {each.job_id: each for each in (*stopped, *lost) if each.runs_on < 0 and each.job_id not in new}
        waiting = sorted((each for each in gone.values() if table.by_id.get(each.job_id) == each.row), key=attrgetter("natural"))
        places = {job_id: self._place_of(each) for job_id, each in new.items()}
        changes = GangChanges(
            [each.row for each in stopped if each.job_id in gone],
            {each.row: places[job_id] for job_id, each in new.items()},
            tuple(sorted(new)),
            tuple([each.job_id for each in waiting]),
        )
        return latest.changed(gone, places), changes

    def _place_of(self, each: QueuedJob) -> tuple[int, list[int]]:
        """Return the type of a gang, and its GPUs by their numbers in the cluster."""
        start = self._starts[each.runs_on]
        return each.runs_on, [start + gpu for gpu in each.gpus]
