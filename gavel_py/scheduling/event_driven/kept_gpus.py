"""Which GPUs nobody has, kept from one decision to the next while all nodes are up and say nothing of CPUs and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.cluster import Node
from gavel_py.scheduling.assignment import Assignment
from gavel_py.scheduling.event_driven.gang_on_type import GangOnType
from gavel_py.scheduling.placement.crowd import Crowd
from gavel_py.scheduling.placement.free_gpus import FreeGpus
from gavel_py.scheduling.placement.kinds import Kind
from gavel_py.scheduling.placement.layout import Layout
from gavel_py.scheduling.placement.needs import NOTHING
from gavel_py.scheduling.placement.placement import hardest_first, place_on_type
from gavel_py.scheduling.placement.reach import Reach
from gavel_py.scheduling.placement.righting import Misplaced, put_right
from gavel_py.scheduling.placement.seeking import find_kind
from gavel_py.scheduling.placement.settling import Settlement
from gavel_py.scheduling.placement.stock import Stock

__all__ = ["KeptGpus", "crowd_of"]

Held = tuple[Assignment, GangOnType, list[int]]
"""What a gang holds, which gang that is, and the numbers of its GPUs."""

Floats = NDArray[np.float64]


class KeptGpus:
    """The GPUs of these nodes; type_of: {job_id: number of the type} of who holds some.

    gang: the gang of a job on a type, by their names.
    """

    def __init__(self, nodes: Sequence[Node], gang: Callable[[str, str], GangOnType]) -> None:
        self.layout = Layout(nodes)
        self._gang, self._stock = gang, Stock(self.layout)
        parts = self.layout.parts
        names = self.layout.named(range(self.layout.num_gpus))
        self._names = [names[part.gpus] for part in parts]
        self._numbers = [{gpu: i for i, gpu in enumerate(here)} for here in self._names]
        self._reach = [Reach(part, self._stock.free[part.gpus], *self._limits(t)) for t, part in enumerate(parts)]
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
            gpus = None if gang.kind == Kind.APART else free.take_tightest(gang.size)
            if gpus is None:
                parts = None if gang.kind == Kind.ANY else find_kind(gang.kind, free.room, gang.size, gang.scope, gang.fewest)
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
        settled = self._settled(number, crowd_of(gangs, gpus), new)
        if not settled.placed.all():
            return None
        found = {}
        for i, numbers in settled.found.items():
            gang, had = gangs[i], before[i]
            made = self._named(number, numbers)
            kept = had if had is not None and had == made else made
            found[gang.job_id] = self._hold(kept, gang, numbers)
        return found

    def _settled(self, number: int, crowd: Crowd, starters: Set[str]) -> Settlement:
        """Place gangs on a type as `place_on_type` does, on what is known to be free while those stay that stand."""
        for job_id in starters & self._on[number].keys():
            self.release(job_id)
        stays = np.bincount(crowd.owners, minlength=len(crowd)) > 0
        settled = Settlement(self._free_of(number), crowd, stays, self._reach[number])
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
        is_apart = gang.kind != Kind.ANY and assignment.num_nodes > gang.fewest
        if gang.kind != Kind.ANY and is_apart != (gang.kind == Kind.APART):
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


def crowd_of(gangs: Sequence[GangOnType], held: Sequence[Sequence[int]]) -> Crowd:
    """Return gangs on one type, the one first that matters most, with the GPUs that they had."""
    return Crowd(
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
