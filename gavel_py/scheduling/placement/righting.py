"""Moving gangs that are not of their kind, when all have their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gavel_py.scheduling.placement.free_gpus import FreeGpus
from gavel_py.scheduling.placement.free_room import FreeRoom
from gavel_py.scheduling.placement.kinds import Kind
from gavel_py.scheduling.placement.needs import NOTHING, Needs
from gavel_py.scheduling.placement.seeking import find_kind

__all__ = ["Misplaced", "put_right"]

MOST_EXCHANGED = 32
"""Gangs that are tried at once: each try takes all of them anew, and leaves out those for which it has failed."""


class Misplaced(NamedTuple):
    """A gang that is not of its kind on the GPUs that it has, `parts` of them on each node; the rest as in `Crowd`."""

    gpus: list[int]
    parts: Mapping[int, int]
    kind: int
    size: int
    scope: int
    fewest: int
    needs: Needs = NOTHING


def put_right(free: FreeGpus, gangs: Sequence[Misplaced]) -> dict[int, list[int]]:
    """Move gangs to free GPUs, their own included, or on each other's; return those that move, by place, and their GPUs.

    Those that matter most come first. Who moves is of its kind then; the others stay where they are.
    """
    righting = _Righting(free, gangs)
    wrong = list(range(len(gangs)))
    while wrong:
        before = len(righting.found)
        righting.move(wrong)
        if len(righting.found) == before:
            righting.exchange(wrong)
        wrong = [gang for gang in wrong if gang not in righting.found] if len(righting.found) > before else []
    return righting.found


class _Righting:
    """Gangs by their places; found: those that have moved, and where to."""

    def __init__(self, free: FreeGpus, gangs: Sequence[Misplaced]) -> None:
        self._free, self._gangs = free, gangs
        self.found: dict[int, list[int]] = {}

    def move(self, wrong: Sequence[int]) -> None:
        """Move each gang for which free GPUs and its own are enough."""
        for gang in wrong:
            if self._free.room.any_left:
                self._change(self._placed(self._without([gang]), [gang]))

    def exchange(self, wrong: Sequence[int]) -> None:
        """Let gangs change places all at once: those that cannot be of their kind then are left out, and it is tried anew."""
        groups = [wrong[start : start + MOST_EXCHANGED] for start in range(0, len(wrong), MOST_EXCHANGED)]
        for group in groups:
            gangs = sorted(group, key=lambda i: (self._gangs[i].kind == Kind.APART, -self._gangs[i].size))
            room = self._without(gangs)
            while len(gangs) > 1:
                after = self._placed(room.copy(), gangs)
                if len(after) == len(gangs):
                    self._change(after)
                    break
                for gang in gangs:
                    if gang not in after:
                        room.take(self._gangs[gang].parts, self._gangs[gang].needs)
                gangs = list(after)

    def _without(self, gangs: Sequence[int]) -> FreeRoom:
        """What would be free if these gangs had nothing."""
        room = self._free.room.copy()
        for gang in gangs:
            room.give_back(self._gangs[gang].parts, self._gangs[gang].needs)
        return room

    def _placed(self, room: FreeRoom, gangs: Sequence[int]) -> dict[int, dict[int, int]]:
        """Place gangs in this room, one after the other; return {node: GPUs} of those that are of their kind there."""
        found: dict[int, dict[int, int]] = {}
        for gang in gangs:
            each = self._gangs[gang]
            parts = find_kind(each.kind, room, each.size, each.scope, each.fewest, each.needs)
            if parts is not None:
                room.take(parts, each.needs)
                found[gang] = parts
        return found

    def _change(self, after: Mapping[int, Mapping[int, int]]) -> None:
        """Let gangs give back their GPUs, and then take others."""
        for gang in after:
            self._free.give_back(self._gangs[gang].gpus, self._gangs[gang].needs)
        for gang, parts in after.items():
            self.found[gang] = self._free.lowest(parts)
            self._free.take(self.found[gang], self._gangs[gang].needs)
