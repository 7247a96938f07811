"""Event-driven mode: decisions from what has changed, for ordered policies that give jobs all of their time or none.

`EventDrivenPlanner` makes the same decisions as a full `RoundPlanner` decision, GPU by GPU, in a fraction of the time: the `queue`
keeps jobs in the order of the policy, and `PlacementCache` the free GPUs. It leaves a decision to the full path if nodes are down,
jobs have deficits, or running gangs would have to make room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavel_py.policies import OrderedPolicy, Policy
from gavel_py.scheduling.event_driven.queue import (
    BY_POSITION,
    IncrementalSelection,
    JobProfiler,
    JobQueue,
    QueuedJob,
    can_keep_order,
)
from gavel_py.scheduling.mechanism.demand import hysteresis_of
from gavel_py.scheduling.placement import hardest_first, place_on_type
from gavel_py.scheduling.placement.assign import PlacementDomains, PlacementPass
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeResources, find_preferred
from gavel_py.scheduling.placement.gangs import GangBatch, HeldGpus, PlacementPreference
from gavel_py.scheduling.placement.migration import MisplacedGang, migrate_misplaced
from gavel_py.scheduling.placement.topology import ANYWHERE, NOTHING, Layout
from gavel_py.scheduling.round import Assignments

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats, Indices
    from gavel_py.problem.from_jobs import Profile
    from gavel_py.scheduling.problem_cache import ProblemCache
    from gavel_py.scheduling.state import SchedulerState

__all__ = ["EventDrivenPlanner", "PlacementCache", "PlacementRequest", "batch_of"]

Natural = tuple[tuple[str | int, ...], str]


class PlacementRequest(NamedTuple):
    """A gang to be placed on a type."""

    job_id: str  # the job
    number: int  # the type, by its number in the layout
    size: int  # GPUs
    scope: int  # as in `GangBatch`
    preference: int  # as in `GangBatch`
    min_nodes: int  # as in `GangBatch`
    natural: Natural  # the job's id as a natural sort key
    hysteresis: float  # the job's hysteresis h in rounds

    @property
    def rank_if_running(self) -> tuple[float, Natural]:
        """Sort key of importance among the gangs of the type if it runs there, as in `SelectedGangs`."""
        return -(1.0 + self.hysteresis), self.natural

    @property
    def rank_if_new(self) -> tuple[float, Natural]:
        """Sort key of importance if it is to start there."""
        return -1.0, self.natural

    @property
    def hardest_first(self) -> tuple[bool, int, Natural]:
        """Sort key in the order of placement among gangs that start (`hardest_first`)."""
        return self.scope == ANYWHERE, -self.size, self.natural


Gpus = tuple[int, list[int]]
"""Number of a type, and GPUs of the cluster by number."""


class PlacementCache:
    """The GPUs that gangs hold and the free GPUs of each type, kept between decisions while all nodes are up."""

    def __init__(self, layout: Layout, gang: Callable[[str, int], PlacementRequest]) -> None:
        self.layout, self._gang, self._pool = layout, gang, FreeResources(layout)
        parts = layout.parts
        self._domains = [PlacementDomains(part, self._pool.free[part.gpus], *self._limits(t)) for t, part in enumerate(parts)]
        self.clear()

    def clear(self) -> None:
        """Forget all gangs."""
        count = len(self.layout.parts)
        self._held: dict[str, tuple[PlacementRequest, list[int]]] = {}  # requests and GPUs, numbered within their types
        self.type_of: dict[str, int] = {}  # {job_id: number of its type}
        self._on: list[dict[str, PlacementRequest]] = [{} for _ in range(count)]
        self._misplaced: list[dict[str, MisplacedGang]] = [{} for _ in range(count)]
        self._tried: list[tuple[object, ...]] = [()] * count
        self._free: list[FreeGpus | None] = [None] * count

    def update(self, running: Mapping[str, Gpus], among: Iterable[str], changed: Set[str]) -> None:
        """Record which gangs hold GPUs.

        Args:
            running: The GPUs of those gangs among these jobs that run.
            among: Jobs that may hold other GPUs than recorded.
            changed: Jobs that may have changed their request.
        """
        for job_id in among:
            now, before = running.get(job_id), self._held.get(job_id)
            if before is not None and (job_id in changed or now != self._gpus_of(*before)):
                self.release(job_id)
                before = None
            if now is not None and before is None:
                number, gpus = now
                self._free[number] = None
                self._hold(self._gang(job_id, number), [gpu - self.layout.parts[number].gpus.start for gpu in gpus])

    @property
    def jobs(self) -> Iterable[str]:
        """Ids of the gangs that hold GPUs."""
        return self._held

    def _gpus_of(self, gang: PlacementRequest, gpus: list[int]) -> Gpus:
        start = self.layout.parts[gang.number].gpus.start
        return gang.number, [start + gpu for gpu in gpus]

    def release(self, job_id: str) -> None:
        """Record that a gang holds no GPUs."""
        gang, gpus = self._held.pop(job_id)
        del self._on[gang.number][job_id], self.type_of[job_id]
        self._misplaced[gang.number].pop(job_id, None)
        free = self._free[gang.number]
        if free is not None:
            free.give_back(gpus)

    def place(self, starting: Sequence[PlacementRequest]) -> dict[str, Gpus] | None:
        """Return {job_id: type and GPUs} of the gangs whose GPUs change when these gangs start.

        The result equals a placement of all gangs from scratch. If some gangs have no place, return None and forget all gangs.
        """
        found: dict[str, Gpus] = {}
        by_type: list[list[PlacementRequest]] = [[] for _ in self._on]
        for gang in starting:
            by_type[gang.number].append(gang)
        for number, gangs in enumerate(by_type):
            placed = self._place_beside(number, gangs) if gangs else {}
            if placed is None:
                placed = self._place_all(number, gangs)
            elif self._misplaced[number]:
                placed |= self._migrate(number, gangs)
            if placed is None:
                self.clear()
                return None
            found |= placed
        return found

    def _migrate(self, number: int, starting: Sequence[PlacementRequest]) -> dict[str, Gpus]:
        """Move misplaced gangs as `migrate_misplaced` does; no other gangs move."""
        new, free, wrong = {gang.job_id for gang in starting}, self._free_of(number), self._misplaced[number]
        # On the same free GPUs, migration would fail again.
        attempt = list(wrong.values()), new & wrong.keys(), free.room.index().room.tobytes()
        if attempt == self._tried[number]:
            return {}
        here = [self._on[number][job_id] for job_id in wrong]
        gangs = sorted(here, key=lambda gang: gang.rank_if_new if gang.job_id in new else gang.rank_if_running)
        moved = migrate_misplaced(free, [wrong[gang.job_id] for gang in gangs])
        found = {gangs[i].job_id: self._move(gangs[i], gpus) for i, gpus in moved.items()}
        self._tried[number] = () if found else attempt
        return found

    def _place_beside(self, number: int, gangs: Sequence[PlacementRequest]) -> dict[str, Gpus] | None:
        """Place gangs beside the running ones, None if one of these would have to move."""
        free, found = self._free_of(number), dict[str, Gpus]()
        for gang in sorted(gangs, key=lambda gang: gang.hardest_first):
            gpus = None if gang.preference == PlacementPreference.SPREAD else free.take_tightest(gang.size)
            if gpus is None:
                if gang.preference != PlacementPreference.ANY:
                    parts = find_preferred(gang.preference, free.room, gang.size, gang.scope, gang.min_nodes)
                    gpus = None if parts is None else free.lowest(parts)
                if gpus is None:
                    gpus = free.find(gang.size, self._domains[number].narrowest(gang.size, gang.scope))
                if gpus is None:
                    return None
                free.take(gpus)
            found[gang.job_id] = self._move(gang, gpus)
        return found

    def _place_all(self, number: int, starting: Sequence[PlacementRequest]) -> dict[str, Gpus] | None:
        """Place all gangs of a type, None if some have no place."""
        new = {gang.job_id for gang in starting}
        running = [gang for job_id, gang in self._on[number].items() if job_id not in new]
        gangs = [gang for _, gang in sorted([*((g.rank_if_running, g) for g in running), *((g.rank_if_new, g) for g in starting)])]
        held = [[] if gang.job_id in new else self._held[gang.job_id][1] for gang in gangs]
        placement = self._run_pass(number, batch_of(gangs, held), new)
        if not placement.placed.all():
            return None
        return {gangs[i].job_id: self._move(gangs[i], gpus) for i, gpus in placement.found.items()}

    def _run_pass(self, number: int, batch: GangBatch, starting: Set[str]) -> PlacementPass:
        """Place gangs on a type as `place_on_type` does, at first on the GPUs that are free while running gangs stay."""
        for job_id in starting & self._on[number].keys():
            self.release(job_id)
        stays = np.bincount(batch.owners, minlength=len(batch)) > 0
        placement = PlacementPass(self._free_of(number), batch, stays, self._domains[number])
        placement.place_all(hardest_first(batch))
        if placement.placed.all():
            placement.migrate_misplaced()
            return placement
        self._free[number] = None
        return place_on_type(self._pool, number, batch)

    def _move(self, gang: PlacementRequest, gpus: list[int]) -> Gpus:
        """Record the GPUs of a gang; return its type and GPUs."""
        self._hold(gang, gpus)
        return self._gpus_of(gang, gpus)

    def _hold(self, gang: PlacementRequest, gpus: list[int]) -> None:
        self._held[gang.job_id] = gang, gpus
        self._on[gang.number][gang.job_id] = gang
        self.type_of[gang.job_id] = gang.number
        self._misplaced[gang.number].pop(gang.job_id, None)
        if gang.preference != PlacementPreference.ANY:
            parts = self.layout.parts[gang.number].parts_of(gpus)
            if (len(parts) > gang.min_nodes) != (gang.preference == PlacementPreference.SPREAD):
                misplaced = MisplacedGang(gpus, parts, gang.preference, gang.size, gang.scope, gang.min_nodes)
                self._misplaced[gang.number][gang.job_id] = misplaced

    def _free_of(self, number: int) -> FreeGpus:
        free = self._free[number]
        if free is None:
            part = self.layout.parts[number]
            there = np.ones(len(part.node_of), dtype=bool)
            there[[gpu for job_id in self._on[number] for gpu in self._held[job_id][1]]] = False
            self._free[number] = free = FreeGpus(part, there, *self._limits(number))
        return free

    def _limits(self, number: int) -> tuple[Floats, Floats]:
        nodes = self.layout.parts[number].nodes
        return self._pool.cpus[nodes], self._pool.memory_gb[nodes]


def batch_of(gangs: Sequence[PlacementRequest], held: Sequence[Sequence[int]]) -> GangBatch:
    """Return gangs on one type, most important first, as a batch; held: the GPUs of each gang so far."""
    return GangBatch(
        sizes=np.array([gang.size for gang in gangs], dtype=np.int64),
        types=np.array([gang.number for gang in gangs], dtype=np.int64),
        scopes=np.array([gang.scope for gang in gangs], dtype=np.int64),
        even_splits=np.zeros(len(gangs), dtype=bool),
        preferences=np.array([gang.preference for gang in gangs], dtype=np.int8),
        min_nodes=np.array([gang.min_nodes for gang in gangs], dtype=np.int64),
        per_gpu=[NOTHING] * len(gangs),
        held=np.array([gpu for gpus in held for gpu in gpus], dtype=np.int64),
        owners=np.repeat(np.arange(len(gangs)), [len(gpus) for gpus in held]),
    )


AUDIT_EVERY = 1_000
"""Number of decisions of which one is compared with a solve for all jobs."""


@dataclass(frozen=True, eq=False)
class EventDecision:
    """An event-driven decision."""

    rows: Indices  # (N,) rows of the jobs that run, all of their time, sorted by their ids
    held: HeldGpus  # (N,) their GPUs
    excluded: dict[str, str]  # {job_id: reason} of the jobs that can run nowhere


class EventDrivenPlanner:
    """Decides at events from what has changed, for one policy, profile and cluster; options as for `RoundScheduler`."""

    @staticmethod
    def can(policy: Policy, state: SchedulerState) -> bool:
        """Return whether policy and cluster allow event-driven decisions at all."""
        if not isinstance(policy, OrderedPolicy) or policy.fractional or policy.constraints or not can_keep_order(policy):
            return False
        return all(node.cpus is None and node.memory_gb is None for node in state.nodes.cluster.nodes)

    def __init__(
        self, policy: OrderedPolicy, state: SchedulerState, cache: ProblemCache, *, restart_seconds: float, round_seconds: float
    ) -> None:
        layout = state.layout
        self._profile = cache.profile
        self.policy, self._restart_seconds, self._round_seconds = policy, restart_seconds, round_seconds
        self.profiler = JobProfiler(policy, state.table, layout, state.spans, cache)
        self._queue = JobQueue(policy, self.profiler)
        self._gpus = PlacementCache(layout, self._gang)
        self._names = layout.types
        self._selection = IncrementalSelection(policy, state.nodes.cluster.capacities.tolist())
        self._decisions = 0
        self._hysteresis: dict[tuple[int, float], float] = {}
        self._changed: set[str] = set()
        self._latest: tuple[EventDecision, set[str]] | None = None
        state.table.track()

    def holds_for(self, policy: Policy, profile: Profile, restart_seconds: float) -> bool:
        """Return whether this planner was made for these arguments."""
        return policy is self.policy and profile is self._profile and restart_seconds == self._restart_seconds

    @property
    def audit_is_due(self) -> bool:
        """Whether the latest decision must be compared with a solve for all jobs."""
        return self._decisions % AUDIT_EVERY == 1

    def decide(self, state: SchedulerState) -> EventDecision | None:
        """Return the decision, None if it must be made in full."""
        table = state.table
        self._changed |= table.changed
        if not self._queue.update(table) or not state.nodes.all_up or self._has_deficits(state):
            return None
        affected, self._latest = self._affected(state), None  # None until the decision is complete
        among = {*self._gpus.jobs, *state.running} if affected is None else affected
        running = {job_id: gpus for job_id in among if (gpus := _gpus_of(state, job_id)) is not None}
        if state.gangs.are_shared or not running.keys() <= self._queue.by_id.keys():
            return None
        self._gpus.update(running, among, self._changed)
        if affected is None:
            self._selection.clear()
        changed, self._changed = self._changed, set()
        reselected = self._selection.update(self._queue.order, changed, self._runs)
        stop, start = self._differences(self._queue.by_id.keys() | running.keys() if affected is None else affected | reselected)
        for job_id in stop:
            self._gpus.release(job_id)
        found = self._gpus.place(start)
        if found is None:
            return None
        self._decisions += 1
        latest = state.last.assignments if state.last is not None else None
        if not stop and not found and isinstance(latest, Assignments) and state.gangs.holds(state.last_rows, latest.held):
            decision = EventDecision(state.last_rows, latest.held, self._queue.excluded)
        else:
            decision = self._decision(state, stop, found)
        self._latest = decision, {*stop, *found}
        return self._latest[0]

    def _has_deficits(self, state: SchedulerState) -> bool:
        """Return whether a job in the queue has a deficit, as after rounds that were counted."""
        if not state.ledger.deficits.any():
            return False
        rows = [state.table.by_id[job_id] for job_id in self._queue.by_id]
        return bool(state.ledger.deficits[rows].any())

    def _affected(self, state: SchedulerState) -> Set[str] | None:
        """Return the jobs that may run elsewhere or have changed since the latest decision, None for all."""
        if self._latest is None or state.gangs.moved is None or state.last is None:
            return None
        decision, now = self._latest
        # The decision may have begun as it was, or only in part, after further events.
        began = isinstance(state.last.assignments, Assignments) and state.last.assignments.held is decision.held
        # Rows of jobs that were forgotten have no id.
        moved = {job_id for row in state.gangs.moved if (job_id := state.table.ids[row]) is not None}
        return moved | self._changed | now if began else None

    def _decision(self, state: SchedulerState, stop: Sequence[str], found: Mapping[str, Gpus]) -> EventDecision:
        """Return the decision in which some gangs stop and others get these GPUs."""
        table, runs = state.table, state.gangs.types >= 0
        changed = [table.by_id[job_id] for job_id in found]
        runs[[row for job_id in stop if (row := table.row_of(job_id)) is not None]] = False
        runs[changed] = True
        rows, places = state.sorted_by_id(runs), np.zeros(table.capacity, dtype=np.int64)
        held = state.gangs.of(rows)
        if found:
            places[rows] = np.arange(len(rows))
            held = held.replaced(places[changed], HeldGpus.of(*zip(*found.values(), strict=True)))
        return EventDecision(rows, held, self._queue.excluded)

    def _runs(self, order: Sequence[QueuedJob]) -> list[int]:
        """Return the columns on which jobs run, -1 for none."""
        type_of = self._gpus.type_of
        return [type_of.get(each.job_id, -1) for each in order]

    def _differences(self, affected: Set[str]) -> tuple[list[str], list[PlacementRequest]]:
        """Return which of these jobs must stop where they run, and requests of those that start, in the order of the queue."""
        type_of, stop, start = self._gpus.type_of, [], []
        for job_id in affected:
            each = self._queue.by_id.get(job_id)
            runs, selected = type_of.get(job_id, -1), self._selection.column_of(each)
            if runs != selected and runs >= 0:
                stop.append(job_id)
            if runs != selected and selected >= 0 and each is not None:
                start.append(each)
        start.sort(key=BY_POSITION)
        return stop, [self._gang(each.job_id, self._selection.column_of(each)) for each in start]

    def _gang(self, job_id: str, column: int) -> PlacementRequest:
        each = self._queue.by_id[job_id]
        job_profile = each.job_profile
        restart = self._restart_seconds if each.restart_seconds is None else each.restart_seconds
        key = job_profile.size, restart
        if key not in self._hysteresis:
            rounds = np.array([restart]) / self._round_seconds
            self._hysteresis[key] = float(hysteresis_of(np.ones(1), np.array([job_profile.size]), rounds)[0])
        preference, min_nodes = job_profile.preferences[column], job_profile.min_nodes[column]
        return PlacementRequest(
            job_id, column, job_profile.size, job_profile.scope, preference, min_nodes, each.natural, self._hysteresis[key]
        )


def _gpus_of(state: SchedulerState, job_id: str) -> Gpus | None:
    """Return the type and GPUs of a job, None if it holds none."""
    row = state.table.by_id.get(job_id)
    column = -1 if row is None else state.gangs.types.item(row)
    return None if row is None or column < 0 else (column, state.gangs.gpus_of(row))
