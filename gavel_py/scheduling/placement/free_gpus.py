"""Free GPUs, CPUs and memory while a round is planned, and the nodes on which a gang fits best.

`FreeResources` is what is free on all types. On one type, `FreeRoom` says how many GPUs are free on each node, and `FreeGpus` which
ones. `FreeGpuIndex` keeps the nodes of a type by how many GPUs each has for a gang, so that the node that fits best is found in a
few steps. `find_kind` finds room for a gang on the fewest nodes of its type, or on more than these.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.eligibility import even_nodes
from gavel_py.scheduling.placement.gangs import PlacementPreference
from gavel_py.scheduling.placement.topology import (
    ANYWHERE,
    NO_LOADS,
    NODE,
    NOTHING,
    RACK,
    Gpu,
    Layout,
    Resources,
    TypeLayout,
    room_for,
)

ALL_NODES = -1
"""The mask in which each node is."""


def mask_of(nodes: NDArray[np.bool_]) -> int:
    """Return the number whose bit n says whether node n is one of these."""
    return int.from_bytes(np.packbits(nodes, bitorder="little").tobytes(), "little")


class FreeGpuIndex:
    """room: (nodes,) the GPUs that each node has, at most `most`, not to be changed but by `change`; total: of all nodes; among: a
    mask of nodes.

    Nodes with equal room are kept as one number, a bit for each: the first of equals is its lowest bit, and a copy to try
    something on is made of few numbers.
    """

    __slots__ = ("_masks", "room", "total")

    def __init__(self, room: Indices, most: int) -> None:
        self.room, self.total = room, int(room.sum())
        self._masks = [0] * (most + 1)
        counts = np.flatnonzero(np.bincount(room))
        bits = np.packbits(room == counts[:, None], axis=1, bitorder="little")  # a row for each number of GPUs, all at once
        for count, row in zip(counts.tolist(), bits, strict=True):
            self._masks[count] = int.from_bytes(row.tobytes(), "little")

    def copy(self) -> FreeGpuIndex:
        """Return the same, to be changed by itself."""
        made = object.__new__(FreeGpuIndex)
        made.room, made._masks, made.total = self.room.copy(), self._masks.copy(), self.total
        return made

    def change(self, gpus: Mapping[int, int], sign: int) -> None:
        """Note that nodes have so many GPUs more, or less where `sign` is -1."""
        room, masks = self.room, self._masks
        for node, count in gpus.items():
            before, bit = room.item(node), 1 << node
            after = before + sign * count
            room[node] = after
            self.total += after - before
            masks[before] ^= bit
            masks[after] ^= bit

    def tightest(self, size: int, among: int = ALL_NODES, below: int | None = None) -> int | None:
        """Return the node with the least room of at least `size`, the first of equals; below: only nodes with less room."""
        for mask in self._masks[size:below]:
            here = mask & among
            if here:
                return (here & -here).bit_length() - 1
        return None

    def count(self, among: int = ALL_NODES) -> int:
        """Return how many of these nodes have any room."""
        return sum((mask & among).bit_count() for mask in self._masks[1:] if mask)

    def fullest(self, nodes: int, among: int = ALL_NODES) -> int:
        """Return the room of so many of these nodes, those with the most."""
        room = 0
        for count in range(len(self._masks) - 1, 0, -1):
            here = min(nodes, (self._masks[count] & among).bit_count())
            room, nodes = room + here * count, nodes - here
            if not nodes:
                break
        return room

    def least_first(self, among: int = ALL_NODES) -> Iterator[int]:
        """Yield these nodes, those with the least room first, the first of equals first; not those without any."""
        for mask in self._masks[1:]:
            yield from _nodes_in(mask & among)

    def most_first(self, among: int = ALL_NODES) -> Iterator[int]:
        """Yield these nodes, those with the most room first, the first of equals first; not those without any."""
        for mask in self._masks[:0:-1]:
            yield from _nodes_in(mask & among)


def _nodes_in(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class FreeRoom:
    """GPUs that nobody has, by node; nodes by their numbers there.

    counts: (nodes,) GPUs; cpus, memory_gb: (nodes,) what is left of them; all three change with what is taken and given back.
    A region is what a gang of some locality may span: a node, a rack, or everything. Its room for a gang is the GPUs that are free
    there with the CPUs and the memory that each of them needs on its node.
    """

    def __init__(self, layout: TypeLayout, counts: Indices, cpus: Floats, memory_gb: Floats) -> None:
        self.layout, self._cpus, self._memory = layout, cpus, memory_gb
        self._most = int(layout.sizes.max(initial=0))
        self._holes = FreeGpuIndex(counts, self._most)

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

    def limits(self, needs: Resources) -> bool:
        """Say whether a gang with these needs may lack anything but GPUs."""
        return self.layout.limited and needs != NOTHING

    def holes(self, needs: Resources = NOTHING) -> FreeGpuIndex:
        """Return the room on each node, not to be changed."""
        if not self.limits(needs):
            return self._holes
        return FreeGpuIndex(room_for(needs, self._holes.room, self._cpus, self._memory), self._most)

    def take(self, parts: Mapping[int, int], needs: Resources = NOTHING) -> None:
        """Take so many GPUs of each node, with what they need."""
        self._change(parts, -1, needs)

    def give_back(self, parts: Mapping[int, int], needs: Resources = NOTHING) -> None:
        """Give back so many GPUs of each node, with what they need."""
        self._change(parts, 1, needs)

    def _change(self, parts: Mapping[int, int], sign: int, needs: Resources) -> None:
        self._holes.change(parts, sign)
        if self.limits(needs):
            for node, gpus in parts.items():
                self._cpus[node] += sign * gpus * needs.cpus
                self._memory[node] += sign * gpus * needs.memory_gb

    def fit(self, size: int, scope: int, needs: Resources = NOTHING, *, even: bool = False) -> dict[int, int] | None:
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

    def regions(self, holes: FreeGpuIndex, size: int, scope: int) -> Iterator[int]:
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

    def _even(self, holes: FreeGpuIndex, size: int, scope: int) -> dict[int, int] | None:
        for within in range(RACK, scope + 1):
            found = even_nodes(size, holes.room, self.layout.regions[within])
            if found is not None:
                return dict.fromkeys(found[0].tolist(), found[1])
        return None


def gathered(holes: FreeGpuIndex, size: int, among: int) -> dict[int, int]:
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


class FreeGpus:
    """GPUs of one type that nobody has, nodes and GPUs by their numbers there; room: how many of them are where.

    free: (GPUs,) bool; cpus, memory_gb: (nodes,) what is left of them, which changes with the GPUs.
    """

    def __init__(self, layout: TypeLayout, free: NDArray[np.bool_], cpus: Floats, memory_gb: Floats) -> None:
        gpus = np.flatnonzero(free)
        counts = np.bincount(layout.node_of[gpus], minlength=len(layout.sizes))
        self.layout, self.room = layout, FreeRoom(layout, counts, cpus, memory_gb)
        self._free: dict[int, list[int]] = {}
        flat, end = gpus.tolist(), 0
        there = np.flatnonzero(counts)
        for n, count in zip(there.tolist(), counts[there].tolist(), strict=True):
            start, end = end, end + count
            self._free[n] = flat[start:end]

    def take_tightest(self, size: int) -> list[int] | None:
        """Take GPUs on the node where the fewest are left over, for a gang that needs nothing else; None when no node has room."""
        n = self.room.holes().tightest(size)
        if n is None:
            return None
        free = self._free[n]
        gpus = free[:size]
        del free[:size]
        self.room.take({n: size})
        return gpus

    def take(self, gpus: Sequence[int], needs: Resources = NOTHING) -> None:
        """Mark free GPUs as taken, with what they need."""
        there = self.layout.by_node(gpus)
        for n, numbers in there.items():
            free = self._free[n]
            for number in numbers:
                free.remove(number)
        self.room.take({n: len(numbers) for n, numbers in there.items()}, needs)

    def give_back(self, gpus: Sequence[int], needs: Resources = NOTHING) -> None:
        """Mark GPUs as free again."""
        there = self.layout.by_node(gpus)
        for n, numbers in there.items():
            free = self._free.setdefault(n, [])
            for number in numbers:
                insort(free, number)
        self.room.give_back({n: len(numbers) for n, numbers in there.items()}, needs)

    def find(self, size: int, scope: int, needs: Resources = NOTHING, *, even: bool = False) -> list[int] | None:
        """Return `size` free GPUs for a gang, on the nodes where it fits best (`FreeRoom.fit`), or None where it fits nowhere."""
        parts = self.room.fit(size, scope, needs, even=even)
        return None if parts is None else self.lowest(parts)

    def lowest(self, parts: Mapping[int, int]) -> list[int]:
        """Return as many free GPUs of each node as `parts` says, the lowest ones."""
        return [gpu for n, count in parts.items() for gpu in self._free[n][:count]]


def find_kind(kind: int, room: FreeRoom, size: int, scope: int, fewest: int, needs: Resources = NOTHING) -> dict[int, int] | None:
    """Return {node: GPUs} within one region of the scope, on no more than the fewest nodes (together) or on more (apart), or None.

    One rack if possible; always the region with the least room.
    """
    if kind == PlacementPreference.APART:
        return _apart(room, size, scope, fewest, needs)
    return _together(room, size, scope, fewest, needs)


def _together(room: FreeRoom, size: int, scope: int, fewest: int, needs: Resources) -> dict[int, int] | None:
    """Room where the fullest holes, as many as there are to be nodes, are enough."""
    if fewest == 1:
        return room.fit(size, NODE, needs)
    holes = room.holes(needs)
    regions = room.regions(holes, size, scope)
    among = next((region for region in regions if holes.fullest(fewest, region) >= size), None)
    return None if among is None else gathered(holes, size, among)


def _apart(room: FreeRoom, size: int, scope: int, fewest: int, needs: Resources) -> dict[int, int] | None:
    """Room in the smallest holes, so that large ones stay whole, but no more of each than leaves one for every further node."""
    if size <= fewest:
        return None
    holes = room.holes(needs)
    regions = room.regions(holes, size, scope)
    among = next((region for region in regions if holes.count(region) > fewest), None)
    return None if among is None else _parts(holes, among, size, fewest + 1)


def _parts(holes: FreeGpuIndex, among: int, size: int, least: int) -> dict[int, int]:
    """{node: GPUs} of a gang on these nodes, the smallest holes first, at least on so many of them."""
    parts: dict[int, int] = {}
    for n in holes.least_first(among):
        further = max(0, least - len(parts) - 1)
        parts[n] = min(holes.room.item(n), size - further)
        size -= parts[n]
        if not size:
            break
    return parts


class FreeResources:
    """free: (GPUs,) bool; cpus, memory_gb: (nodes,) what is left, infinite where a node does not say what it has."""

    def __init__(self, layout: Layout, taken: Iterable[Gpu] = (), loads: Mapping[str, Resources] = NO_LOADS) -> None:
        self.layout = layout
        self.free = np.ones(layout.num_gpus, dtype=bool)
        self.cpus, self.memory_gb = layout.cpus.copy(), layout.memory_gb.copy()
        self.take(layout.numbers(list(taken)))
        for name, load in loads.items():
            n = layout.number.get(name)
            if n is not None:
                self.cpus[n] -= load.cpus
                self.memory_gb[n] -= load.memory_gb

    def take(self, gpus: Indices, needs: Resources = NOTHING) -> None:
        """Take GPUs by number, each with what it needs; -1 stands for one that is not there."""
        here = gpus[gpus >= 0]
        self.free[here] = False
        if needs != NOTHING:
            np.subtract.at(self.cpus, self.layout.node_of[here], needs.cpus)
            np.subtract.at(self.memory_gb, self.layout.node_of[here], needs.memory_gb)

    def room(self, needs: Resources = NOTHING) -> Indices:
        """Return (nodes,) the GPUs that are free on each node with what they need."""
        counts = np.bincount(self.layout.node_of[self.free], minlength=len(self.layout.names))
        return room_for(needs, counts, self.cpus, self.memory_gb) if self.layout.limited else counts

    def splits_evenly(self, size: int, scope: int, needs: Resources = NOTHING) -> NDArray[np.bool_]:
        """Return (types,) bool, where one region of the scope has room for such a gang, as many of its GPUs on each node."""
        layout, room = self.layout, self.room(needs)
        there = zip(layout.parts, np.split(room, layout.starts[NODE][1:-1]) if layout.parts else (), strict=True)
        return np.array([even_nodes(size, here, part.regions[scope]) is not None for part, here in there], dtype=bool)

    def largest_free(self, needs: Resources = NOTHING) -> Indices:
        """Return (scopes, types) the largest gang with such needs that fits one region of each scope."""
        layout, room = self.layout, self.room(needs)
        holes = np.zeros((3, len(layout.types)), dtype=np.int64)
        if layout.types:
            racks = np.bincount(layout.regions[RACK], weights=room).astype(np.int64)
            holes[NODE] = np.maximum.reduceat(room, layout.starts[NODE][:-1])
            holes[RACK] = np.maximum.reduceat(racks, layout.starts[RACK][:-1])
            holes[ANYWHERE] = np.add.reduceat(room, layout.starts[NODE][:-1])
        return holes
