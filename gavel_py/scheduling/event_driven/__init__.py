"""Decisions between which little changes: an ordered policy's pass over jobs kept in order, and places for those that start.

It is the same decision as that of `RoundPlanner`, which asks the policy about all jobs anew, wherever this one is made at all.
`EventDrivenPlanner` decides. `KeptGpus` knows which GPUs no job holds, from one decision to the next, while all nodes are up and
say nothing of CPUs and memory. `GangOnType` is a gang on an accelerator type, and its rank among the others there, in the same
order as when all jobs are chosen and placed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gavel_py.policies import OrderedPolicy, Policy
from gavel_py.problem.arrays import Floats
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.nodes import Node
from gavel_py.scheduling.event_driven.queue import BY_PLACE, JobProfiler, JobQueue, KeptSelection, QueuedJob, can_keep_order
from gavel_py.scheduling.mechanism.demand import hysteresis_of
from gavel_py.scheduling.placement import hardest_first, place_on_type
from gavel_py.scheduling.placement.assign import PlacementDomains, PlacementPass
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeResources, find_kind
from gavel_py.scheduling.placement.gangs import GangBatch, PlacementPreference
from gavel_py.scheduling.placement.migration import Misplaced, put_right
from gavel_py.scheduling.placement.topology import ANYWHERE, NOTHING, Layout
from gavel_py.scheduling.round import Assignment
from gavel_py.scheduling.state import SchedulerState

__all__ = ["EventDrivenPlanner", "GangOnType", "KeptGpus", "gang_batch_of"]

Natural = tuple[tuple[str | int, ...], str]


class GangOnType(NamedTuple):
    """A gang on a type; number: that of the type; scope, kind, fewest: as in `GangBatch`; natural: the job's id as a sort key;
    kept_for: how many rounds more than others it must be owed to whom it loses its place.
    """

    job_id: str
    number: int
    size: int
    scope: int
    kind: int
    fewest: int
    natural: Natural
    kept_for: float

    @property
    def standing(self) -> tuple[float, Natural]:
        """Where it comes among the gangs of its type when it runs there: who matters most comes first, as in `Selection`."""
        return -(1.0 + self.kept_for), self.natural

    @property
    def starting(self) -> tuple[float, Natural]:
        """Where it comes when it is to start there."""
        return -1.0, self.natural

    @property
    def hardest_first(self) -> tuple[bool, int, Natural]:
        """Where it comes among those that start when places are sought."""
        return self.scope == ANYWHERE, -self.size, self.natural


Held = tuple[Assignment, GangOnType, list[int]]
"""What a gang holds, which gang that is, and the numbers of its GPUs."""


class KeptGpus:
    """The GPUs of these nodes; type_of: {job_id: number of the type} of who holds some.

    gang: the gang of a job on a type, by their names.
    """

    def __init__(self, nodes: Sequence[Node], gang: Callable[[str, str], GangOnType]) -> None:
        self.layout = Layout(nodes)
        self._gang, self._stock = gang, FreeResources(self.layout)
        parts = self.layout.parts
        names = self.layout.named(range(self.layout.num_gpus))
        self._names = [names[part.gpus] for part in parts]
        self._numbers = [{gpu: i for i, gpu in enumerate(here)} for here in self._names]
        self._reach = [PlacementDomains(part, self._stock.free[part.gpus], *self._limits(t)) for t, part in enumerate(parts)]
        self.clear()

    def clear(self) -> None:
        """Forget who holds what."""
        count = len(self.layout.parts)
        self._held: dict[str, Held] = {}
        self.type_of: dict[str, int] = {}
        self._on: list[dict[str, GangOnType]] = [{} for _ in range(count)]
        self._wrong: list[dict[str, Misplaced]] = [{} for _ in range(count)]
        self._in_vain: list[tuple[object, ...]] = [()] * count
        self._free: list[FreeGpus | None] = [None] * count

    def follow(self, running: Mapping[str, Assignment], changed: Set[str], among: Set[str] | None = None) -> None:
        """Take note of who has got GPUs, and who has given them up; changed: jobs that may be others than they were.

        among: all that may hold others than is known here, and those that have changed; None where that may be anybody.
        """
        held = self._held
        for job_id in list(held) if among is None else held.keys() & among:
            if job_id in changed or running.get(job_id) is not held[job_id][0]:
                self.release(job_id)
        for job_id in running if among is None else running.keys() & among:
            if job_id not in held:
                gang = self._gang(job_id, running[job_id].accelerator)
                numbers = [self._numbers[gang.number][gpu] for gpu in running[job_id].gpus]
                self._free[gang.number] = None
                self._hold(running[job_id], gang, numbers)

    def release(self, job_id: str) -> None:
        """Take away what a gang holds."""
        _, gang, gpus = self._held.pop(job_id)
        del self._on[gang.number][job_id], self.type_of[job_id]
        self._wrong[gang.number].pop(job_id, None)
        free = self._free[gang.number]
        if free is not None:
            free.give_back(gpus)

    def place(self, starters: Sequence[GangOnType]) -> dict[str, Assignment] | None:
        """Return who gets other GPUs than it had, when these gangs start; None if there is not a place for all.

        It is what `placement` comes to when it places all gangs anew; then everything is forgotten here.
        """
        found: dict[str, Assignment] = {}
        by_type: list[list[GangOnType]] = [[] for _ in self._on]
        for gang in starters:
            by_type[gang.number].append(gang)
        for number, gangs in enumerate(by_type):
            placed = self._beside(number, gangs) if gangs else {}
            if placed is None:
                placed = self._anew(number, gangs)
            elif self._wrong[number]:
                placed |= self._righted(number, gangs)
            if placed is None:
                self.clear()
                return None
            found |= placed
        return found

    def _righted(self, number: int, starters: Sequence[GangOnType]) -> dict[str, Assignment]:
        """Move gangs of the wrong kind as `put_right` does; nobody else moves, so nobody else need be looked at."""
        new, free, wrong = {gang.job_id for gang in starters}, self._free_of(number), self._wrong[number]
        # What has been tried on the same free GPUs would come to nothing again.
        tried = list(wrong.values()), new & wrong.keys(), free.room.holes().room.tobytes()
        if tried == self._in_vain[number]:
            return {}
        here = [self._on[number][job_id] for job_id in wrong]
        gangs = sorted(here, key=lambda gang: gang.starting if gang.job_id in new else gang.standing)
        found = {}
        for i, gpus in put_right(free, [wrong[gang.job_id] for gang in gangs]).items():
            had, made = self._held[gangs[i].job_id][0], self._named(number, gpus)
            found[gangs[i].job_id] = self._hold(had if had == made else made, gangs[i], gpus)
        self._in_vain[number] = () if found else tried
        return found

    def _beside(self, number: int, gangs: Sequence[GangOnType]) -> dict[str, Assignment] | None:
        """Place gangs beside those that stand, none of which moves; None where one would have to."""
        free, found = self._free_of(number), {}
        for gang in sorted(gangs, key=lambda gang: gang.hardest_first):
            gpus = None if gang.kind == PlacementPreference.APART else free.take_tightest(gang.size)
            if gpus is None:
                parts = (
                    None
                    if gang.kind == PlacementPreference.ANY
                    else find_kind(gang.kind, free.room, gang.size, gang.scope, gang.fewest)
                )
                gpus = None if parts is None else free.lowest(parts)
                if gpus is None:
                    gpus = free.find(gang.size, self._reach[number].narrowest(gang.size, gang.scope))
                if gpus is None:
                    return None
                free.take(gpus)
            found[gang.job_id] = self._hold(self._named(number, gpus), gang, gpus)
        return found

    def _anew(self, number: int, starters: Sequence[GangOnType]) -> dict[str, Assignment] | None:
        """Place all gangs of a type, as those that start and those of the wrong kind need it; None if not all have a place."""
        new = {gang.job_id for gang in starters}
        stand = [gang for job_id, gang in self._on[number].items() if job_id not in new]
        gangs = [gang for _, gang in sorted([*((g.standing, g) for g in stand), *((g.starting, g) for g in starters)])]
        held = [self._held[gang.job_id] if gang.job_id not in new else None for gang in gangs]
        before = [None if each is None else each[0] for each in held]
        gpus = [[] if each is None else each[2] for each in held]
        settled = self._settled(number, gang_batch_of(gangs, gpus), new)
        if not settled.placed.all():
            return None
        found = {}
        for i, numbers in settled.found.items():
            gang, had = gangs[i], before[i]
            made = self._named(number, numbers)
            kept = had if had is not None and had == made else made
            found[gang.job_id] = self._hold(kept, gang, numbers)
        return found

    def _settled(self, number: int, crowd: GangBatch, starters: Set[str]) -> PlacementPass:
        """Place gangs on a type as `place_on_type` does, on what is known to be free while those stay that stand."""
        for job_id in starters & self._on[number].keys():
            self.release(job_id)
        stays = np.bincount(crowd.owners, minlength=len(crowd)) > 0
        settled = PlacementPass(self._free_of(number), crowd, stays, self._reach[number])
        settled.settle(hardest_first(crowd))
        if settled.placed.all():
            settled.put_right()
            return settled
        self._free[number] = None
        return place_on_type(self._stock, number, crowd)

    def _hold(self, assignment: Assignment, gang: GangOnType, gpus: list[int]) -> Assignment:
        self._held[gang.job_id] = assignment, gang, gpus
        self._on[gang.number][gang.job_id] = gang
        self.type_of[gang.job_id] = gang.number
        is_apart = gang.kind != PlacementPreference.ANY and assignment.num_nodes > gang.fewest
        if gang.kind != PlacementPreference.ANY and is_apart != (gang.kind == PlacementPreference.APART):
            parts = self.layout.parts[gang.number].parts_of(gpus)
            self._wrong[gang.number][gang.job_id] = Misplaced(gpus, parts, gang.kind, gang.size, gang.scope, gang.fewest)
        else:
            self._wrong[gang.number].pop(gang.job_id, None)
        return assignment

    def _named(self, number: int, gpus: Sequence[int]) -> Assignment:
        names = self._names[number]
        return Assignment(self.layout.types[number], [names[gpu] for gpu in gpus])

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
        return self._stock.cpus[nodes], self._stock.memory_gb[nodes]


def gang_batch_of(gangs: Sequence[GangOnType], held: Sequence[Sequence[int]]) -> GangBatch:
    """Return gangs on one type, the one first that matters most, with the GPUs that they had."""
    return GangBatch(
        sizes=np.array([gang.size for gang in gangs], dtype=np.int64),
        types=np.array([gang.number for gang in gangs], dtype=np.int64),
        scopes=np.array([gang.scope for gang in gangs], dtype=np.int64),
        evens=np.zeros(len(gangs), dtype=bool),
        kinds=np.array([gang.kind for gang in gangs], dtype=np.int8),
        fewest=np.array([gang.fewest for gang in gangs], dtype=np.int64),
        needs=[NOTHING] * len(gangs),
        held=np.array([gpu for gpus in held for gpu in gpus], dtype=np.int64),
        owners=np.repeat(np.arange(len(gangs)), [len(gpus) for gpus in held]),
    )


PROOF_EVERY = 1_000
"""So often, a decision is compared with that of the policy on the whole problem, with its proof."""


@dataclass(frozen=True)
class EventDecision:
    """What was decided: who runs where, all of its time; who can run nowhere, and why; moved: all who hold other GPUs than when the
    latest round began or get others now, None where that may be anybody.
    """

    assignments: dict[str, Assignment]
    excluded: dict[str, str]
    moved: Set[str] | None

    def given(self) -> dict[str, str]:
        """Return the type on which each job has all of its time."""
        return {job_id: held.accelerator for job_id, held in self.assignments.items()}


class EventDrivenPlanner:
    """What is kept for one policy and one cluster; the settings are those of `RoundScheduler`."""

    @staticmethod
    def can(policy: Policy, state: SchedulerState) -> bool:
        """Say whether decisions under this policy on this cluster may be made in turn."""
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
        self.looker = JobProfiler(policy, state.nodes, profile, whole_gangs, state.rows)
        self._line = JobQueue(policy, self.looker)
        self._gpus = KeptGpus(cluster.nodes, self._gang)
        self._names = cluster.accelerator_names
        self._columns = {name: column for column, name in enumerate(self._names)}
        self._seating = KeptSelection(policy, cluster.capacities.tolist())
        numbers = self._gpus.layout.type_number
        self._column_of = {number: self._columns[name] for name, number in numbers.items()} | {-1: -1}
        self._decisions = 0
        self._kept_for: dict[tuple[int, float], float] = {}
        self._changed: set[str] = set()
        self._latest: tuple[EventDecision, set[str]] | None = None
        state.book.follow()

    def holds_for(self, policy: Policy, profile: Profile, restart_seconds: float) -> bool:
        """Say whether what is kept is that for these."""
        return policy is self.policy and profile is self._profile and restart_seconds == self._restart_seconds

    @property
    def is_to_be_proven(self) -> bool:
        """Whether the policy is to be asked about all jobs now, to see that it comes to the same."""
        return self._decisions % PROOF_EVERY == 1

    def decide(self, state: SchedulerState) -> EventDecision | None:
        """Return the decision, None where `RoundPlanner` makes it: jobs are owed time, nodes are down, a gang makes room."""
        self._changed |= state.book.touched
        if not self._line.follow(state.book) or not state.nodes.all_up or state.ledger.owes_any_of(self._line.of):
            return None
        among, self._latest = self._unsure(state), None  # where this goes wrong, nothing is sure
        if not self._may_go_on(state.running, among):
            return None
        self._gpus.follow(state.running, self._changed, among)
        if among is None:
            self._seating.clear()
        changed, self._changed = self._changed, set()
        seated = self._seating.follow(self._line.order, changed, self._runs)
        stop, start = self._other(self._line.of.keys() | state.running.keys() if among is None else among | seated)
        found = self._placed(stop, start)
        if found is None:
            return None
        self._decisions += 1
        before, now = state.gangs.moved, {*stop, *found}
        moved = None if before is None else before | now
        self._latest = EventDecision(_with(state.gangs.as_now(), stop, found), self._line.excluded, moved), now
        return self._latest[0]

    def _unsure(self, state: SchedulerState) -> Set[str] | None:
        """The jobs that may run elsewhere than when the latest decision was made, or be others than then, None where any may."""
        if self._latest is None or state.gangs.moved is None:
            return None
        turns, now = self._latest
        # What was decided may have begun as it was, or else only in part, after this or that has happened.
        began = state.last is not None and state.last.assignments is turns.assignments
        return state.gangs.moved | self._changed | now if began else None

    def _may_go_on(self, running: Mapping[str, Assignment], among: Set[str] | None) -> bool:
        """Say whether all that run are in line, and share their GPUs with nobody."""
        known = self._line.of
        there = running.keys() if among is None else running.keys() & among
        return all(job_id in known and not running[job_id].shared_with for job_id in there)

    def _runs(self, order: Sequence[QueuedJob]) -> list[int]:
        """The column on which each of these jobs runs, -1 for none."""
        type_of, columns = self._gpus.type_of, self._column_of
        return [columns[type_of.get(each.job_id, -1)] for each in order]

    def _other(self, among: Set[str]) -> tuple[list[str], list[GangOnType]]:
        """Those of these jobs that have to stop where they run, and those that are to start, in the order of the line."""
        type_of, stop, start = self._gpus.type_of, [], []
        for job_id in among:
            each = self._line.of.get(job_id)
            runs, seat = self._column_of[type_of.get(job_id, -1)], self._seating.column_of(each)
            if runs != seat and runs >= 0:
                stop.append(job_id)
            if runs != seat and seat >= 0 and each is not None:
                start.append(each)
        start.sort(key=BY_PLACE)
        return stop, [self._gang(each.job_id, self._names[self._seating.column_of(each)]) for each in start]

    def _placed(self, stop: Iterable[str], start: Sequence[GangOnType]) -> dict[str, Assignment] | None:
        """Who gets other GPUs than it had, with a place for all that are to start, None if there is not."""
        for job_id in stop:
            self._gpus.release(job_id)
        return self._gpus.place(start)

    def _gang(self, job_id: str, accelerator: str) -> GangOnType:
        each, column = self._line.of[job_id], self._columns[accelerator]
        traits = each.traits
        restart = self._restart_seconds if each.restart_seconds is None else each.restart_seconds
        key = traits.size, restart
        if key not in self._kept_for:
            rounds = np.array([restart]) / self._round_seconds
            self._kept_for[key] = float(hysteresis_of(np.ones(1), np.array([traits.size]), rounds)[0])
        number = self._gpus.layout.type_number[accelerator]
        kind, fewest = traits.kinds[column], traits.fewest[column]
        return GangOnType(job_id, number, traits.size, traits.scope, kind, fewest, each.natural, self._kept_for[key])


def _with(running: dict[str, Assignment], stop: Sequence[str], found: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Who holds what once some have stopped and others have got other GPUs."""
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
