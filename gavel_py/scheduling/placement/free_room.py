"""How many GPUs of one accelerator type are free on each node, and on which nodes a gang fits best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.eligibility import even_nodes
from gavel_py.scheduling.placement.holes import ALL_NODES, Holes, mask_of
from gavel_py.scheduling.placement.layout import ANYWHERE, NODE, RACK, TypeLayout
from gavel_py.scheduling.placement.needs import NOTHING, Needs, room_for

__all__ = ["FreeRoom", "gathered"]

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


class FreeRoom:
    """GPUs that nobody has, by node; nodes by their numbers there.

    counts: (nodes,) GPUs; cpus, memory_gb: (nodes,) what is left of them; all three change with what is taken and given back.
    A region is what a gang of some locality may span: a node, a rack, or everything. Its room for a gang is the GPUs that are free
    there with the CPUs and the memory that each of them needs on its node.
    """

    def __init__(self, layout: TypeLayout, counts: Indices, cpus: Floats, memory_gb: Floats) -> None:
        self.layout, self._cpus, self._memory = layout, cpus, memory_gb
        self._most = int(layout.sizes.max(initial=0))
        self._holes = Holes(counts, self._most)

    def copy(self) -> FreeRoom:
        """Return the same, to try something on."""
        made = object.__new__(FreeRoom)
        made.layout, made._most, made._holes = self.layout, self._most, self._holes.copy()
        limited = self.layout.limited
        made._cpus, made._memory = (self._cpus.copy(), self._memory.copy()) if limited else (self._cpus, self._memory)
        return made

    @property
    def any_left(self) -> bool:
        """Whether any GPU is free."""
        return self._holes.total > 0

    def limits(self, needs: Needs) -> bool:
        """Say whether a gang with these needs may lack anything but GPUs."""
        return self.layout.limited and needs != NOTHING

    def holes(self, needs: Needs = NOTHING) -> Holes:
        """Return the room on each node, not to be changed."""
        if not self.limits(needs):
            return self._holes
        return Holes(room_for(needs, self._holes.room, self._cpus, self._memory), self._most)

    def take(self, parts: Mapping[int, int], needs: Needs = NOTHING) -> None:
        """Take so many GPUs of each node, with what they need."""
        self._change(parts, -1, needs)

    def give_back(self, parts: Mapping[int, int], needs: Needs = NOTHING) -> None:
        """Give back so many GPUs of each node, with what they need."""
        self._change(parts, 1, needs)

    def _change(self, parts: Mapping[int, int], sign: int, needs: Needs) -> None:
        self._holes.change(parts, sign)
        if self.limits(needs):
            for node, gpus in parts.items():
                self._cpus[node] += sign * gpus * needs.cpus
                self._memory[node] += sign * gpus * needs.memory_gb

    def fit(self, size: int, scope: int, needs: Needs = NOTHING, *, even: bool = False) -> dict[int, int] | None:
        """Return {node: GPUs} of a gang, or None when there is no room in any one region.

        One node if possible, else one rack, else the fewest nodes; always where the least is left over, so that large holes stay
        whole for large gangs. even: as many of them on each node.
        """
        holes = self.holes(needs)
        node = holes.tightest(size)
        if node is not None:
            return {node: size}
        if scope == NODE:
            return None
        if even:
            return self._even(holes, size, scope)
        among = next(self.regions(holes, size, scope), None)
        return None if among is None else gathered(holes, size, among)

    def regions(self, holes: Holes, size: int, scope: int) -> Iterator[int]:
        """Yield the regions of several nodes with room for a gang, as masks: racks first, if there are any, then everything.

        Of racks those with the least room first, the first of equals first.
        """
        layout = self.layout
        if layout.racked and scope >= RACK:
            racks = layout.regions[RACK]
            rooms = np.bincount(racks, weights=holes.room)
            enough = np.flatnonzero(rooms >= size)
            yield from (mask_of(racks == rack) for rack in enough[np.argsort(rooms[enough], kind="stable")].tolist())
        if scope >= ANYWHERE and holes.total >= size:
            yield ALL_NODES

    def _even(self, holes: Holes, size: int, scope: int) -> dict[int, int] | None:
        for within in range(RACK, scope + 1):
            found = even_nodes(size, holes.room, self.layout.regions[within])
            if found is not None:
                return dict.fromkeys(found[0].tolist(), found[1])
        return None


def gathered(holes: Holes, size: int, among: int) -> dict[int, int]:
    """Return {node: GPUs} on the fewest of these nodes: the fullest holes whole, and for the rest the smallest that holds it."""
    parts: dict[int, int] = {}
    for fullest in holes.most_first(among):
        node, room = fullest, holes.room.item(fullest)
        if room > size:
            tightest = holes.tightest(size, among, below=room)
            node, room = (node, size) if tightest is None else (tightest, size)
        parts[node] = room
        size -= room
        if not size:
            break
    return parts
