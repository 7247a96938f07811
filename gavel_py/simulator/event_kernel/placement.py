"""Placement of gangs by node, for records that do not depend on which GPUs of a node a gang holds."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from gavel_py.scheduling.event_driven import PlacementCache, move_misplaced
from gavel_py.scheduling.event_driven.queued_jobs import QueuedJob
from gavel_py.scheduling.placement.free_gpus import FreeRoom, find_preferred
from gavel_py.scheduling.placement.gangs import ANY_PLACEMENT, SPREAD
from gavel_py.scheduling.placement.topology import ANYWHERE, NOTHING, Resources

if TYPE_CHECKING:
    from gavel_py.scheduling.placement.free_gpus import FreeGpus
    from gavel_py.scheduling.placement.topology import Layout

Parts = Mapping[int, int]
"""{node: GPUs} of a gang, with the nodes of its type numbered from 0."""


class FreeNodes:
    """The free GPUs of one type by node: what `PlacementCache` uses of `FreeGpus`, with `Parts` in place of GPUs."""

    def __init__(self, room: FreeRoom) -> None:
        self.layout, self.room = room.layout, room

    def take_tightest(self, size: int) -> Parts:
        """Take GPUs of the tightest node that has this many; empty if none has."""
        node = self.room.index().tightest(size)
        return {} if node is None else self.take_lowest({node: size})

    def take_lowest(self, parts: Parts, per_gpu: Resources = NOTHING) -> Parts:
        """Take GPUs of these nodes."""
        self.room.take(parts, per_gpu)
        return parts

    def give_back(self, parts: Parts, per_gpu: Resources = NOTHING) -> None:
        """Make GPUs free again."""
        self.room.give_back(parts, per_gpu)


class NodePlacement(PlacementCache):
    """Places gangs that may span all nodes as `PlacementCache` does, by node: `QueuedJob.gpus` are `Parts`."""

    def __init__(self, layout: Layout, restart_seconds: float) -> None:
        super().__init__(layout, restart_seconds)
        self._regions = [[regions.tolist() for regions in part.regions] for part in layout.parts]

    def _parts_of(self, column: int, gpus: Any) -> Parts:  # noqa: ARG002
        return cast("Parts", gpus)

    def _free_of(self, column: int) -> FreeGpus:
        if self._free[column] is None:
            part = self._layout.parts[column]
            room = FreeRoom(part, part.sizes.copy(), *self._limits(column))
            for each in self._on[column].values():
                room.take(parts_held_by(each))
            self._free[column] = cast("FreeGpus", FreeNodes(room))
        return cast("FreeGpus", self._free[column])

    def _place_all(self, column: int, starting: Sequence[QueuedJob]) -> set[QueuedJob] | None:
        """Place gangs for which running ones have to move (`PlacementPass.place_all`): the hardest first, the others stay."""
        free, before = self._free_of(column), dict[QueuedJob, Any]()
        for each in starting:
            if each.runs_on >= 0:  # it was placed beside running gangs, without success
                self.release(each)
        waiting, step = sorted(starting, key=_rank), 0
        while step < len(waiting):
            each, step = waiting[step], step + 1
            parts = self._find(column, each)
            if parts is None:
                for other in self._fewest_to_move(column, each, set(waiting)):
                    before.setdefault(other, other.gpus)
                    self.release(other)
                    insort(waiting, other, lo=step, key=_rank)
                narrowest = self._domains[column].narrowest(each.size, ANYWHERE)
                parts = free.room.fit(each.size, narrowest) or free.room.fit(each.size, ANYWHERE)
                assert parts is not None  # noqa: S101  the order of service takes no more GPUs of a type than there are
            self._hold(each, column, free.take_lowest(cast("dict[int, int]", parts)))
        changed = {each for each in waiting if before.get(each) != each.gpus}
        wrong = {self._on[column][job_id]: misplaced for job_id, misplaced in self._misplaced[column].items()}
        for each, moved in move_misplaced(free, wrong).items():
            self._hold(each, column, moved)
            changed.add(each)
        return changed

    def _find(self, column: int, each: QueuedJob) -> Parts | None:
        """Return free GPUs for a gang, None if others would have to move to keep it together."""
        room, size, preference = self._free_of(column).room, each.size, each.profile.preferences[column]
        if preference != SPREAD and (node := room.index().tightest(size)) is not None:
            return {node: size}
        if preference != ANY_PLACEMENT:
            found = find_preferred(preference, room, size, ANYWHERE, each.profile.min_nodes[column])
            if found is not None:
                return found
        return room.fit(size, self._domains[column].narrowest(size, ANYWHERE))

    def _fewest_to_move(self, column: int, starts: QueuedJob, waiting: set[QueuedJob]) -> Sequence[QueuedJob]:
        """Return the fewest smaller gangs that must leave a region to keep a gang together, as `fewest_to_move`."""
        regions = self._regions[column][self._domains[column].narrowest(starts.size, ANYWHERE)]
        held: dict[int, dict[QueuedJob, int]] = {}
        for each in self._on[column].values():
            if each.size < starts.size and each not in waiting:
                for node, count in parts_held_by(each).items():
                    here = held.setdefault(regions[node], {})
                    here[each] = here.get(each, 0) + count
        needed = dict.fromkeys(held, starts.size)
        for region, room in zip(regions, self._free_of(column).room.index().on, strict=True):
            if region in needed:
                needed[region] -= room
        ways = [_fewest(held[region], needed[region]) for region in sorted(held)]
        return min((way for way in ways if way), key=lambda way: (len(way), sum(each.size for each in way)), default=())


def _fewest(held: Mapping[QueuedJob, int], needed: int) -> Sequence[QueuedJob]:
    """Return the fewest gangs that hold as many GPUs of a region as are needed, empty if all hold too few; held: by gang."""
    if sum(held.values()) < needed:
        return ()
    leaving = list[QueuedJob]()
    for gpus, _, _, each in sorted([(-gpus, each.size, each.importance, each) for each, gpus in held.items()]):
        leaving.append(each)
        needed += gpus
        if needed <= 0:
            break
    return leaving


def parts_held_by(each: QueuedJob) -> Parts:
    """Return {node: GPUs} of a gang that `NodePlacement` has placed."""
    return cast("Parts", each.gpus)


def _rank(each: QueuedJob) -> tuple[object, ...]:
    """Return the sort key in the order of placement: large before small, then the more important gangs."""
    return -each.size, each.importance
