"""The free GPUs of one accelerator type, node by node."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.placement.free_room import FreeRoom
from gavel_py.scheduling.placement.layout import TypeLayout
from gavel_py.scheduling.placement.needs import NOTHING, Needs

__all__ = ["FreeGpus"]

Floats = NDArray[np.float64]


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

    def take(self, gpus: Sequence[int], needs: Needs = NOTHING) -> None:
        """Mark free GPUs as taken, with what they need."""
        there = self.layout.by_node(gpus)
        for n, numbers in there.items():
            free = self._free[n]
            for number in numbers:
                free.remove(number)
        self.room.take({n: len(numbers) for n, numbers in there.items()}, needs)

    def give_back(self, gpus: Sequence[int], needs: Needs = NOTHING) -> None:
        """Mark GPUs as free again."""
        there = self.layout.by_node(gpus)
        for n, numbers in there.items():
            free = self._free.setdefault(n, [])
            for number in numbers:
                insort(free, number)
        self.room.give_back({n: len(numbers) for n, numbers in there.items()}, needs)

    def find(self, size: int, scope: int, needs: Needs = NOTHING, *, even: bool = False) -> list[int] | None:
        """Return `size` free GPUs for a gang, on the nodes where it fits best (`FreeRoom.fit`), or None where it fits nowhere."""
        parts = self.room.fit(size, scope, needs, even=even)
        return None if parts is None else self.lowest(parts)

    def lowest(self, parts: Mapping[int, int]) -> list[int]:
        """Return as many free GPUs of each node as `parts` says, the lowest ones."""
        return [gpu for n, count in parts.items() for gpu in self._free[n][:count]]
