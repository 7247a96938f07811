"""Event-driven mode: decisions from what has changed, for ordered policies that give jobs all of their time or none.

`EventDrivenPlanner` makes the same decisions as a full `RoundPlanner` decision, GPU by GPU, in a fraction of the time: the `queue`
keeps jobs in the order of the policy, and `PlacementCache` the free GPUs. It leaves a decision to the full path if nodes are down,
jobs have deficits, or running gangs would have to make room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
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
from gavel_py.scheduling.placement.gangs import GangBatch, PlacementPreference
from gavel_py.scheduling.placement.migration import MisplacedGang, migrate_misplaced
from gavel_py.scheduling.placement.topology import ANYWHERE, NOTHING, Layout
from gavel_py.scheduling.round import Assignment

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats
    from gavel_py.problem.from_jobs import Profile
    from gavel_py.problem.nodes import Node
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


Held = tuple[Assignment, PlacementRequest, list[int]]
"""A gang's assignment, its request, and its GPUs by number."""


class PlacementCache:
    """The GPUs that gangs hold and the free GPUs of each type, kept between decisions while all nodes are up."""

    def __init__(self, nodes: Sequence[Node], gang: Callable[[str, str], PlacementRequest]) -> None:
        self.layout = Layout(nodes)
        self._gang, self._pool = gang, FreeResources(self.layout)
        parts = self.layout.parts
        names = self.layout.named(range(self.layout.num_gpus))
        self._names = [names[part.gpus] for part in parts]
        self._numbers = [{gpu: i for i, gpu in enumerate(here)} for here in self._names]
        self._domains = [PlacementDomains(part, self._pool.free[part.gpus], *self._limits(t)) for t, part in enumerate(parts)]
        self.clear()

    def clear(self) -> None:
        """Forget all gangs."""
        count = len(self.layout.parts)
        self._held: dict[str, Held] = {}
        self.type_of: dict[str, int] = {}  # {job_id: number of its type}
        self._on: list[dict[str, PlacementRequest]] = [{} for _ in range(count)]
        self._misplaced: list[dict[str, MisplacedGang]] = [{} for _ in range(count)]
        self._tried: list[tuple[object, ...]] = [()] * count
        self._free: list[FreeGpus | None] = [None] * count

    def update(self, running: Mapping[str, Assignment], changed: Set[str], affected: Set[str] | None = None) -> None:
        """Record which gangs hold GPUs.

        Args:
            running: All running gangs.
            changed: Jobs that may have changed their request.
            affected: Jobs that may hold other GPUs than recorded, including `changed`; None for all.
        """
        held = self._held
        for job_id in list(held) if affected is None else held.keys() & affected:
            if job_id in changed or running.get(job_id) is not held[job_id][0]:
                self.release(job_id)
        for job_id in running if affected is None else running.keys() & affected:
            if job_id not in held:
                gang = self._gang(job_id, running[job_id].accelerator)
                numbers = [self._numbers[gang.number][gpu] for gpu in running[job_id].gpus]
                self._free[gang.number] = None
                self._hold(running[job_id], gang, numbers)

    def release(self, job_id: str) -> None:
        """Record that a gang holds no GPUs."""
        _, gang, gpus = self._held.pop(job_id)
        del self._on[gang.number][job_id], self.type_of[job_id]
        self._misplaced[gang.number].pop(job_id, None)
        free = self._free[gang.number]
        if free is not None:
            free.give_back(gpus)

    def place(self, starting: Sequence[PlacementRequest]) -> dict[str, Assignment] | None:
        """Return {job_id: Assignment} of the gangs whose GPUs change when these gangs start.

        The result equals a placement of all gangs from scratch. If some gangs have no place, return None and forget all gangs.
        """
        found: dict[str, Assignment] = {}
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

    def _migrate(self, number: int, starting: Sequence[PlacementRequest]) -> dict[str, Assignment]:
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

    def _place_beside(self, number: int, gangs: Sequence[PlacementRequest]) -> dict[str, Assignment] | None:
        """Place gangs beside the running ones, None if one of these would have to move."""
        free, found = self._free_of(number), {}
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

    def _place_all(self, number: int, starting: Sequence[PlacementRequest]) -> dict[str, Assignment] | None:
        """Place all gangs of a type, None if some have no place."""
        new = {gang.job_id for gang in starting}
        running = [gang for job_id, gang in self._on[number].items() if job_id not in new]
        gangs = [gang for _, gang in sorted([*((g.rank_if_running, g) for g in running), *((g.rank_if_new, g) for g in starting)])]
        held = [[] if gang.job_id in new else self._held[gang.job_id][2] for gang in gangs]
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

    def _move(self, gang: PlacementRequest, gpus: list[int]) -> Assignment:
        """Record the GPUs of a gang; return its assignment, the same object as before if that is equal."""
        names, before = self._names[gang.number], self._held.get(gang.job_id)
        made = Assignment(self.layout.types[gang.number], [names[gpu] for gpu in gpus])
        return self._hold(before[0] if before is not None and before[0] == made else made, gang, gpus)

    def _hold(self, assignment: Assignment, gang: PlacementRequest, gpus: list[int]) -> Assignment:
        self._held[gang.job_id] = assignment, gang, gpus
        self._on[gang.number][gang.job_id] = gang
        self.type_of[gang.job_id] = gang.number
        is_spread = gang.preference != PlacementPreference.ANY and assignment.num_nodes > gang.min_nodes
        if gang.preference != PlacementPreference.ANY and is_spread != (gang.preference == PlacementPreference.SPREAD):
            parts = self.layout.parts[gang.number].parts_of(gpus)
            self._misplaced[gang.number][gang.job_id] = MisplacedGang(
                gpus, parts, gang.preference, gang.size, gang.scope, gang.min_nodes
            )
        else:
            self._misplaced[gang.number].pop(gang.job_id, None)
        return assignment

    def _free_of(self, number: int) -> FreeGpus:
        free = self._free[number]
        if free is None:
            part = self.layout.parts[number]
            there = np.ones(len(part.node_of), dtype=bool)
            there[[gpu for job_id in self._on[number] for gpu in self._held[job_id][2]]] = False
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


@dataclass(frozen=True)
class EventDecision:
    """An event-driven decision."""

    assignments: dict[str, Assignment]  # {job_id: Assignment} of the jobs that run, all of their time
    excluded: dict[str, str]  # {job_id: reason} of the jobs that can run nowhere
    moved: Set[str] | None  # jobs whose GPUs may differ between the latest round, now and this decision; None if unknown

    def accelerators(self) -> dict[str, str]:
        """Return {job_id: type} of the jobs that run."""
        return {job_id: held.accelerator for job_id, held in self.assignments.items()}


class EventDrivenPlanner:
    """Decides at events from what has changed, for one policy, profile and cluster; options as for `RoundScheduler`."""

    @staticmethod
    def can(policy: Policy, state: SchedulerState) -> bool:
        """Return whether policy and cluster allow event-driven decisions at all."""
        if not isinstance(policy, OrderedPolicy) or policy.fractional or policy.constraints or not can_keep_order(policy):
            return False
        return all(node.cpus is None and node.memory_gb is None for node in state.nodes.cluster.nodes)

    def __init__(
        self,
        policy: OrderedPolicy,
        state: SchedulerState,
        profile: Profile,
        *,
        whole_gangs: bool,
        restart_seconds: float,
        round_seconds: float,
    ) -> None:
        cluster = state.nodes.cluster
        self._profile = profile
        self.policy, self._restart_seconds, self._round_seconds = policy, restart_seconds, round_seconds
        self.profiler = JobProfiler(policy, state.nodes, profile, whole_gangs, state.problem_cache)
        self._queue = JobQueue(policy, self.profiler)
        self._gpus = PlacementCache(cluster.nodes, self._gang)
        self._names = cluster.accelerator_names
        self._columns = {name: column for column, name in enumerate(self._names)}
        self._selection = IncrementalSelection(policy, cluster.capacities.tolist())
        numbers = self._gpus.layout.type_number
        self._column_of = {number: self._columns[name] for name, number in numbers.items()} | {-1: -1}
        self._decisions = 0
        self._hysteresis: dict[tuple[int, float], float] = {}
        self._changed: set[str] = set()
        self._latest: tuple[EventDecision, set[str]] | None = None
        state.registry.track()

    def holds_for(self, policy: Policy, profile: Profile, restart_seconds: float) -> bool:
        """Return whether this planner was made for these arguments."""
        return policy is self.policy and profile is self._profile and restart_seconds == self._restart_seconds

    @property
    def audit_is_due(self) -> bool:
        """Whether the latest decision must be compared with a solve for all jobs."""
        return self._decisions % AUDIT_EVERY == 1

    def decide(self, state: SchedulerState) -> EventDecision | None:
        """Return the decision, None if it must be made in full."""
        self._changed |= state.registry.changed
        if not self._queue.update(state.registry) or not state.nodes.all_up or state.ledger.has_deficits(self._queue.by_id):
            return None
        affected, self._latest = self._affected(state), None  # None until the decision is complete
        if not self._all_known(state.running, affected):
            return None
        self._gpus.update(state.running, self._changed, affected)
        if affected is None:
            self._selection.clear()
        changed, self._changed = self._changed, set()
        reselected = self._selection.update(self._queue.order, changed, self._runs)
        stop, start = self._differences(
            self._queue.by_id.keys() | state.running.keys() if affected is None else affected | reselected
        )
        for job_id in stop:
            self._gpus.release(job_id)
        found = self._gpus.place(start)
        if found is None:
            return None
        self._decisions += 1
        before, now = state.gangs.moved, {*stop, *found}
        moved = None if before is None else before | now
        self._latest = EventDecision(_updated_assignments(state.gangs.shared_view(), stop, found), self._queue.excluded, moved), now
        return self._latest[0]

    def _affected(self, state: SchedulerState) -> Set[str] | None:
        """Return the jobs that may run elsewhere or have changed since the latest decision, None for all."""
        if self._latest is None or state.gangs.moved is None:
            return None
        decision, now = self._latest
        # The decision may have begun as it was, or only in part, after further events.
        began = state.last is not None and state.last.assignments is decision.assignments
        return state.gangs.moved | self._changed | now if began else None

    def _all_known(self, running: Mapping[str, Assignment], affected: Set[str] | None) -> bool:
        """Return whether the running jobs are in the queue and share no GPUs."""
        known = self._queue.by_id
        there = running.keys() if affected is None else running.keys() & affected
        return all(job_id in known and not running[job_id].shared_with for job_id in there)

    def _runs(self, order: Sequence[QueuedJob]) -> list[int]:
        """Return the columns on which jobs run, -1 for none."""
        type_of, columns = self._gpus.type_of, self._column_of
        return [columns[type_of.get(each.job_id, -1)] for each in order]

    def _differences(self, affected: Set[str]) -> tuple[list[str], list[PlacementRequest]]:
        """Return which of these jobs must stop where they run, and requests of those that start, in the order of the queue."""
        type_of, stop, start = self._gpus.type_of, [], []
        for job_id in affected:
            each = self._queue.by_id.get(job_id)
            runs, selected = self._column_of[type_of.get(job_id, -1)], self._selection.column_of(each)
            if runs != selected and runs >= 0:
                stop.append(job_id)
            if runs != selected and selected >= 0 and each is not None:
                start.append(each)
        start.sort(key=BY_POSITION)
        return stop, [self._gang(each.job_id, self._names[self._selection.column_of(each)]) for each in start]

    def _gang(self, job_id: str, accelerator: str) -> PlacementRequest:
        each, column = self._queue.by_id[job_id], self._columns[accelerator]
        job_profile = each.job_profile
        restart = self._restart_seconds if each.restart_seconds is None else each.restart_seconds
        key = job_profile.size, restart
        if key not in self._hysteresis:
            rounds = np.array([restart]) / self._round_seconds
            self._hysteresis[key] = float(hysteresis_of(np.ones(1), np.array([job_profile.size]), rounds)[0])
        number = self._gpus.layout.type_number[accelerator]
        preference, min_nodes = job_profile.preferences[column], job_profile.min_nodes[column]
        return PlacementRequest(
            job_id, number, job_profile.size, job_profile.scope, preference, min_nodes, each.natural, self._hysteresis[key]
        )


def _updated_assignments(
    running: dict[str, Assignment], stop: Sequence[str], found: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Return the assignments after some gangs have stopped and others have got other GPUs."""
    if not stop and not found:
        return running
    held = running.copy()
    for job_id in stop:
        del held[job_id]
    if not found:
        return held
    held |= found
    names = sorted(held)
    return dict(zip(names, map(held.__getitem__, names), strict=True))
