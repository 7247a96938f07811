"""Free GPUs, CPUs and memory while a round is planned, and the nodes on which a gang fits best.

`FreeResources` covers all types. For one type, `FreeGpus` tracks which GPUs are free, `FreeRoom` the number on each node, and
`FreeGpuIndex` finds nodes by their number of free GPUs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.eligibility import ANY_SPLIT, even_nodes
from gavel_py.scheduling.placement.gangs import SPREAD
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
"""The mask of all nodes: every bit is set."""


def mask_of(nodes: NDArray[np.bool_]) -> int:
    """Return the integer in which bit n is set if node n is one of these."""
    return int.from_bytes(np.packbits(nodes, bitorder="little").tobytes(), "little")


class FreeGpuIndex:
    """Nodes of a type by their room, the number of GPUs that each has for a gang; finds the best fit in a few steps.

    A set of nodes with equal room is one integer with a bit for each node: its first node is the lowest bit, and copies are cheap.
    Arguments named `among` are such masks of nodes.

    Attributes:
        on: The room of each node, changed only by `change`; a list, since single elements of arrays are slow to read.
        total: Room of all nodes.
    """

    __slots__ = ("_masks", "on", "total")

    def __init__(self, room: Indices, max_room: int) -> None:
        self.on: list[int] = room.tolist()
        self.total = int(room.sum())
        self._masks = [0] * (max_room + 1)
        counts = np.flatnonzero(np.bincount(room))
        bits = np.packbits(room == counts[:, None], axis=1, bitorder="little")  # a row for each number of GPUs
        for count, row in zip(counts.tolist(), bits, strict=True):
            self._masks[count] = int.from_bytes(row.tobytes(), "little")

    def copy(self) -> FreeGpuIndex:
        """Return an independent copy."""
        made = object.__new__(FreeGpuIndex)
        made.on, made._masks, made.total = self.on.copy(), self._masks.copy(), self.total
        return made

    @property
    def room(self) -> Indices:
        """(nodes,) the room of each node."""
        return np.array(self.on, dtype=np.int64)

    def change(self, gpus: Mapping[int, int], sign: int) -> None:
        """Add {node: GPUs} to the room of nodes, or subtract them if `sign` is -1."""
        on, masks = self.on, self._masks
        for node, count in gpus.items():
            before, bit = on[node], 1 << node
            after = before + sign * count
            on[node] = after
            self.total += after - before
            masks[before] ^= bit
            masks[after] ^= bit

    def tightest(self, size: int, among: int = ALL_NODES, below: int | None = None) -> int | None:
        """Return the first node with the least room that is at least `size` and, if given, below `below`; None if none exists."""
        for mask in self._masks[size:below]:
            here = mask & among
            if here:
                return (here & -here).bit_length() - 1
        return None

    def fullest(self, nodes: int, among: int = ALL_NODES) -> int:
        """Return the total room of the `nodes` nodes with the most room."""
        room = 0
        for count in range(len(self._masks) - 1, 0, -1):
            here = min(nodes, (self._masks[count] & among).bit_count())
            room, nodes = room + here * count, nodes - here
            if not nodes:
                break
        return room

    def least_first(self, among: int = ALL_NODES) -> Iterator[int]:
        """Yield the nodes with any room, least room first."""
        for mask in self._masks[1:]:
            yield from _nodes_in(mask & among)

    def most_first(self, among: int = ALL_NODES) -> Iterator[int]:
        """Yield the nodes with any room, most room first."""
        for mask in self._masks[:0:-1]:
            yield from _nodes_in(mask & among)


def _nodes_in(mask: int) -> Iterator[int]:
    """Yield the nodes of a mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class FreeRoom:
    """Numbers of free GPUs on the nodes of a type, with the CPUs and memory left on them.

    A region is the largest set of nodes that a gang of some locality may span: a node, a rack, or all nodes. Its room for a gang is
    the number of its free GPUs for which the nodes have enough CPUs and memory.

    max_room: GPUs of the largest node.
    """

    def __init__(self, layout: TypeLayout, counts: Indices, cpus: Floats, memory_gb: Floats) -> None:
        self.layout, self._cpus, self._memory = layout, cpus, memory_gb
        self.max_room = int(layout.sizes.max(initial=0))
        self._index = FreeGpuIndex(counts, self.max_room)

    def copy(self) -> FreeRoom:
        """Return an independent copy, for trials."""
        made = object.__new__(FreeRoom)
        made.layout, made.max_room, made._index = self.layout, self.max_room, self._index.copy()
        limited = self.layout.limited
        made._cpus, made._memory = (self._cpus.copy(), self._memory.copy()) if limited else (self._cpus, self._memory)
        return made

    @property
    def any_left(self) -> bool:
        """Whether any GPU is free."""
        return self._index.total > 0

    def limits(self, per_gpu: Resources) -> bool:
        """Return whether CPUs or memory may limit a gang with this request per GPU."""
        return self.layout.limited and per_gpu != NOTHING

    def index(self, per_gpu: Resources = NOTHING) -> FreeGpuIndex:
        """Return the index of the room for a gang with this request; the caller must not change it."""
        if not self.limits(per_gpu):
            return self._index
        return FreeGpuIndex(room_for(per_gpu, self._index.room, self._cpus, self._memory), self.max_room)

    def take(self, parts: Mapping[int, int], per_gpu: Resources = NOTHING) -> None:
        """Take {node: GPUs} with the CPUs and memory of a request per GPU."""
        self._index.change(parts, -1)
        if self.limits(per_gpu):
            self._load(parts, -1, per_gpu)

    def give_back(self, parts: Mapping[int, int], per_gpu: Resources = NOTHING) -> None:
        """Give back {node: GPUs} with the CPUs and memory of a request per GPU."""
        self._index.change(parts, 1)
        if self.limits(per_gpu):
            self._load(parts, 1, per_gpu)

    def _load(self, parts: Mapping[int, int], sign: int, per_gpu: Resources) -> None:
        for node, gpus in parts.items():
            self._cpus[node] += sign * gpus * per_gpu.cpus
            self._memory[node] += sign * gpus * per_gpu.memory_gb

    def fit(self, size: int, scope: int, per_gpu: Resources = NOTHING, *, split: int = ANY_SPLIT) -> dict[int, int] | None:
        """Return {node: GPUs} for a gang, None if no region has room.

        One node if possible, else one rack, else the fewest nodes; always where the least room remains, so that large gangs still
        fit elsewhere (`FreeGpus.take_tightest` does the same for most gangs on one node). split: as `Job.split`.
        """
        index = self.index(per_gpu)
        if split <= 0 or split == size:
            node = index.tightest(size)
            if node is not None:
                return {node: size}
        if scope == NODE:
            return None
        if split:
            return self._even(index, size, scope, split)
        return next((gathered(index, size, among) for among in self.regions(index, size, scope)), None)

    def regions(self, index: FreeGpuIndex, size: int, scope: int) -> Iterable[int]:
        """Return masks of the multi-node regions with room for a gang: racks, least room first, and then all nodes."""
        whole = (ALL_NODES,) if scope >= ANYWHERE and index.total >= size else ()
        if scope < RACK or not self.layout.racked:
            return whole
        racks = self.layout.regions[RACK]
        rooms = np.bincount(racks, weights=index.room)
        enough = np.flatnonzero(rooms >= size)
        in_order = enough[np.argsort(rooms[enough], kind="stable")].tolist()
        return chain((mask_of(racks == rack) for rack in in_order), whole)

    def _even(self, index: FreeGpuIndex, size: int, scope: int, split: int) -> dict[int, int] | None:
        for within in range(RACK, scope + 1):
            found = even_nodes(size, index.room, self.layout.regions[within], split)
            if found is not None:
                return dict.fromkeys(found[0].tolist(), found[1])
        return None


def gathered(index: FreeGpuIndex, size: int, among: int) -> dict[int, int]:
    """Return {node: GPUs} on the fewest of these nodes: all GPUs of those with the most room, and the rest on the tightest node."""
    parts: dict[int, int] = {}
    for fullest in index.most_first(among):
        node, room = fullest, index.on[fullest]
        if room > size:
            tightest = index.tightest(size, among, below=room)
            node, room = (node, size) if tightest is None else (tightest, size)
        parts[node] = room
        size -= room
        if not size:
            break
    return parts


class FreeGpus:
    """Free GPUs of one type, with the CPUs and memory left on its nodes; GPUs and nodes numbered within the type."""

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

    def take_tightest(self, size: int, count: int = 1) -> list[int]:
        """Take GPUs for equal gangs without other requests, each on the tightest node at its turn; return them, gang after gang.

        They are those of `count` gangs, or of fewer, or none, once no node has room for another one.
        """
        index, gpus = self.room.index(), list[int]()
        while count and (n := index.tightest(size)) is not None:
            # With each gang, the node has even less room: it stays the tightest one until it has too little.
            free, here = self._free[n], min(count, index.on[n] // size)
            gpus += free[: here * size]
            del free[: here * size]
            index.change({n: here * size}, -1)
            count -= here
        return gpus

    def take_lowest(self, parts: Mapping[int, int], per_gpu: Resources = NOTHING) -> list[int]:
        """Take the lowest free GPUs of each node, for {node: number of GPUs}, with a request per GPU; return them."""
        gpus = list[int]()
        for n, count in parts.items():
            free = self._free[n]
            gpus += free[:count]
            del free[:count]
        self.room.take(parts, per_gpu)
        return gpus

    def take(self, gpus: Sequence[int], per_gpu: Resources = NOTHING) -> None:
        """Take free GPUs, with a request per GPU."""
        there = self.layout.by_node(gpus)
        for n, numbers in there.items():
            free = self._free[n]
            for number in numbers:
                free.remove(number)
        self.room.take({n: len(numbers) for n, numbers in there.items()}, per_gpu)

    def give_back(self, gpus: Sequence[int], per_gpu: Resources = NOTHING) -> None:
        """Make GPUs free again, with a request per GPU."""
        there = self.layout.by_node(gpus)
        for n, numbers in there.items():
            free = self._free.setdefault(n, [])
            for number in numbers:
                insort(free, number)
        self.room.give_back({n: len(numbers) for n, numbers in there.items()}, per_gpu)

    def has(self, gpu: int) -> bool:
        """Return whether a GPU is free."""
        return gpu in self._free.get(self.layout.node_of.item(gpu), ())

    def exchange(self, taken: int, free: int) -> None:
        """Take a free GPU in place of another one of the same node, which is free then."""
        here = self._free[self.layout.node_of.item(taken)]
        here.remove(taken)
        insort(here, free)


def find_preferred(
    preference: int, room: FreeRoom, size: int, scope: int, min_nodes: int, per_gpu: Resources = NOTHING
) -> dict[int, int] | None:
    """Return {node: GPUs} for a gang in its preferred placement, None if there is no room.

    A consolidated gang gets `min_nodes` nodes, a spread one more; in the region with the least room, in one rack if possible.
    """
    if preference == SPREAD:
        return _spread(room, size, scope, min_nodes, per_gpu)
    return _consolidated(room, size, scope, min_nodes, per_gpu)


def _consolidated(room: FreeRoom, size: int, scope: int, min_nodes: int, per_gpu: Resources) -> dict[int, int] | None:
    """Return {node: GPUs} on `min_nodes` nodes of a region in which the nodes with the most room are enough."""
    index = room.index(per_gpu)
    if min_nodes == 1:
        node = index.tightest(size)
        return None if node is None else {node: size}
    for among in room.regions(index, size, scope):
        if index.fullest(min_nodes, among) >= size:
            return gathered(index, size, among)
    return None


def _spread(room: FreeRoom, size: int, scope: int, min_nodes: int, per_gpu: Resources) -> dict[int, int] | None:
    """Return {node: GPUs} on more than `min_nodes` nodes, least room first; size: > min_nodes."""
    index = room.index(per_gpu)
    for among in room.regions(index, size, scope):
        parts, left = dict[int, int](), size
        for further, n in zip(chain(range(min_nodes, 0, -1), repeat(0)), index.least_first(among), strict=False):
            parts[n] = here = min(index.on[n], left - further)  # one GPU is left for each further node
            left -= here
            if not left:
                return parts
    return None


class FreeResources:
    """Free GPUs, CPUs and memory of a cluster.

    `free` is (GPUs,) whether each is free; `cpus` and `memory_gb` are (nodes,), infinite if unknown; `num_open` is (types,) the
    number of nodes on which gangs may start.
    """

    def __init__(self, layout: Layout, taken: Iterable[Gpu] = (), loads: Mapping[str, Resources] = NO_LOADS) -> None:
        self.layout = layout
        self.free = np.ones(len(layout.node_of), dtype=bool)
        self.num_open = [len(part.sizes) for part in layout.parts]
        self.cpus, self.memory_gb = layout.cpus.copy(), layout.memory_gb.copy()
        if gpus := list(taken):
            self.take(layout.numbers(gpus))
        for name, load in loads.items():
            n = layout.number.get(name)
            if n is not None:
                self.cpus[n] -= load.cpus
                self.memory_gb[n] -= load.memory_gb

    def copy(self) -> FreeResources:
        """Return an independent copy."""
        made = object.__new__(FreeResources)
        made.layout, made.free, made.num_open = self.layout, self.free.copy(), self.num_open
        made.cpus, made.memory_gb = self.cpus.copy(), self.memory_gb.copy()
        return made

    def take(self, gpus: Indices, per_gpu: Resources = NOTHING) -> None:
        """Take GPUs by number, ignoring -1, with a request per GPU."""
        here = gpus[gpus >= 0]
        self.free[here] = False
        if per_gpu != NOTHING:
            np.subtract.at(self.cpus, self.layout.node_of[here], per_gpu.cpus)
            np.subtract.at(self.memory_gb, self.layout.node_of[here], per_gpu.memory_gb)

    def room(self, per_gpu: Resources = NOTHING) -> Indices:
        """Return (nodes,) the free GPUs of each node that its CPUs and memory can serve."""
        counts = np.bincount(self.layout.node_of[self.free], minlength=len(self.layout.names))
        return room_for(per_gpu, counts, self.cpus, self.memory_gb) if self.layout.limited else counts

    def splits_evenly(self, size: int, scope: int, split: int, per_gpu: Resources = NOTHING) -> NDArray[np.bool_]:
        """Return (types,) whether a region of the scope has room for a gang with equal numbers of GPUs per node (`Job.split`)."""
        layout, room = self.layout, self.room(per_gpu)
        there = zip(layout.parts, np.split(room, layout.starts[NODE][1:-1]) if layout.parts else (), strict=True)
        return np.array([even_nodes(size, here, part.regions[scope], split) is not None for part, here in there], dtype=bool)

    def largest_free(self, per_gpu: Resources = NOTHING) -> Indices:
        """Return (scopes, types) the size of the largest gang that fits one region of each scope."""
        layout, room = self.layout, self.room(per_gpu)
        largest = np.zeros((3, len(layout.types)), dtype=np.int64)
        types = np.flatnonzero(np.diff(layout.starts[NODE]))  # those with nodes
        if len(types):
            racks = np.bincount(layout.regions[RACK], weights=room).astype(np.int64)
            largest[NODE, types] = np.maximum.reduceat(room, layout.starts[NODE][types])
            largest[RACK, types] = np.maximum.reduceat(racks, layout.starts[RACK][types])
            largest[ANYWHERE, types] = np.add.reduceat(room, layout.starts[NODE][types])
        return largest
