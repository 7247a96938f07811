"""What nobody has while a round is being planned: GPUs, and the CPUs and memory of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.eligibility import even_nodes
from gavel_py.scheduling.placement.layout import ANYWHERE, NODE, RACK, Gpu, Layout
from gavel_py.scheduling.placement.needs import NO_LOADS, NOTHING, Needs, room_for

__all__ = ["Stock"]

Indices = NDArray[np.int64]


class Stock:
    """free: (GPUs,) bool; cpus, memory_gb: (nodes,) what is left, infinite where a node does not say what it has."""

    def __init__(self, layout: Layout, taken: Iterable[Gpu] = (), loads: Mapping[str, Needs] = NO_LOADS) -> None:
        self.layout = layout
        self.free = np.ones(layout.num_gpus, dtype=bool)
        self.cpus, self.memory_gb = layout.cpus.copy(), layout.memory_gb.copy()
        self.take(layout.numbers(list(taken)))
        for name, load in loads.items():
            n = layout.number.get(name)
            if n is not None:
                self.cpus[n] -= load.cpus
                self.memory_gb[n] -= load.memory_gb

    def take(self, gpus: Indices, needs: Needs = NOTHING) -> None:
        """Take GPUs by number, each with what it needs; -1 stands for one that is not there."""
        here = gpus[gpus >= 0]
        self.free[here] = False
        if needs != NOTHING:
            np.subtract.at(self.cpus, self.layout.node_of[here], needs.cpus)
            np.subtract.at(self.memory_gb, self.layout.node_of[here], needs.memory_gb)

    def room(self, needs: Needs = NOTHING) -> Indices:
        """Return (nodes,) the GPUs that are free on each node with what they need."""
        counts = np.bincount(self.layout.node_of[self.free], minlength=len(self.layout.names))
        return room_for(needs, counts, self.cpus, self.memory_gb) if self.layout.limited else counts

    def splits_evenly(self, size: int, scope: int, needs: Needs = NOTHING) -> NDArray[np.bool_]:
        """Return (types,) bool, where one region of the scope has room for such a gang, as many of its GPUs on each node."""
        layout, room = self.layout, self.room(needs)
        there = zip(layout.parts, np.split(room, layout.starts[NODE][1:-1]) if layout.parts else (), strict=True)
        return np.array([even_nodes(size, here, part.regions[scope]) is not None for part, here in there], dtype=bool)

    def largest_holes(self, needs: Needs = NOTHING) -> Indices:
        """Return (scopes, types) the largest gang with such needs that fits one region of each scope."""
        layout, room = self.layout, self.room(needs)
        holes = np.zeros((3, len(layout.types)), dtype=np.int64)
        if layout.types:
            racks = np.bincount(layout.regions[RACK], weights=room).astype(np.int64)
            holes[NODE] = np.maximum.reduceat(room, layout.starts[NODE][:-1])
            holes[RACK] = np.maximum.reduceat(racks, layout.starts[RACK][:-1])
            holes[ANYWHERE] = np.add.reduceat(room, layout.starts[NODE][:-1])
        return holes
