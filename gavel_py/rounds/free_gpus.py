"""The free GPUs of one accelerator type, node by node, and where a gang fits among them best."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gavel_py.even_splits import even_nodes
from gavel_py.rounds.layout import NODE, SCOPES, Gpu, TypeLayout
from gavel_py.rounds.needs import NOTHING, Needs, room_for

__all__ = ["SCOPES", "FreeGpus", "Gpu", "best_fit"]

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


class FreeGpus:
    """GPUs of one type that nobody has, nodes and GPUs by their numbers there.

    free: (GPUs,) bool; cpus, memory_gb: (nodes,) what is left of them, which changes with the GPUs.
    A region is what a gang of some locality may span: a node, a rack, or everything. Its room for a gang is the GPUs that are free
    there with the CPUs and the memory that each of them needs on its node.
    """

    def __init__(self, layout: TypeLayout, free: NDArray[np.bool_], cpus: Floats, memory_gb: Floats) -> None:
        self.layout, self._cpus, self._memory = layout, cpus, memory_gb
        gpus = np.flatnonzero(free)
        counts = np.bincount(layout.node_of[gpus], minlength=len(layout.sizes))
        self._counts = counts
        # Nodes by how many GPUs are free there, lowest number first; what no longer holds is dropped when it comes up.
        self._holes: list[list[int]] = [[] for _ in range(int(layout.sizes.max(initial=0)) + 1)]
        self._free: dict[int, list[int]] = {}
        flat, end = gpus.tolist(), 0
        there = np.flatnonzero(counts)
        for n, count in zip(there.tolist(), counts[there].tolist(), strict=True):
            start, end = end, end + count
            self._free[n] = flat[start:end]
            self._holes[count].append(n)

    @property
    def any_left(self) -> bool:
        """Whether any GPU is free."""
        return bool(self._counts.any())

    def limits(self, needs: Needs) -> bool:
        """Say whether a gang with these needs may lack anything but GPUs."""
        return self.layout.limited and needs != NOTHING

    def room(self, needs: Needs = NOTHING) -> Indices:
        """Return (nodes,) the room on each node, not to be changed."""
        return room_for(needs, self._counts, self._cpus, self._memory) if self.limits(needs) else self._counts

    def room_in_regions(self, scope: int, needs: Needs = NOTHING) -> Indices:
        """Return the room of each region for a gang."""
        return np.bincount(self.layout.regions[scope], weights=self.room(needs)).astype(np.int64)

    def take_tightest(self, size: int) -> list[int] | None:
        """Take GPUs on the node where the fewest are left over, for a gang that needs nothing else; None when no node has room."""
        n = self._tightest(size)
        if n is None:
            return None
        free = self._free[n]
        gpus = free[:size]
        del free[:size]
        self._changed(n, -size)
        return gpus

    def take(self, gpus: Iterable[int], needs: Needs = NOTHING) -> None:
        """Mark free GPUs as taken, with what they need."""
        for n, numbers in self._by_node(gpus).items():
            free = self._free[n]
            for number in numbers:
                free.remove(number)
            self._changed(n, -len(numbers), needs)

    def give_back(self, gpus: Iterable[int], needs: Needs = NOTHING) -> None:
        """Mark GPUs as free again."""
        for n, numbers in self._by_node(gpus).items():
            free = self._free.setdefault(n, [])
            for number in numbers:
                insort(free, number)
            self._changed(n, len(numbers), needs)

    def find(self, size: int, scope: int, needs: Needs = NOTHING, *, even: bool = False) -> list[int] | None:
        """Return `size` free GPUs for a gang, lowest first, or None when there is no room in any one region.

        One node if possible, else one rack, else the fewest nodes; always where the least is left over, so that large holes stay
        whole for large gangs. even: as many of them on each node.
        """
        if not self.limits(needs):
            n = self._tightest(size)
            if n is not None:
                return self._free[n][:size]
            if scope == NODE:
                return None
        room = self.room(needs)
        for within in range(scope + 1):
            regions = self.layout.regions[within]
            if even:
                found = even_nodes(size, room, regions)
                if found is not None:
                    return self.lowest(dict.fromkeys(found[0].tolist(), found[1]))
                continue
            region = best_fit(np.bincount(regions, weights=room), size)
            if region is not None:
                return self.gathered(np.flatnonzero(regions == region), room, size)
        return None

    def gathered(self, nodes: Indices, room: Indices, size: int) -> list[int]:
        """GPUs of the fewest of these nodes: the fullest holes whole, and for the rest the smallest hole that holds it."""
        parts: dict[int, int] = {}
        rest = size
        for n in nodes[np.argsort(-room[nodes], kind="stable")].tolist():
            if room[n] > rest:
                unused = nodes[room[nodes] < room[n]]
                tightest = best_fit(room[unused], rest)
                n = n if tightest is None else int(unused[tightest])
            parts[n] = min(rest, int(room[n]))
            rest -= parts[n]
            if not rest:
                break
        return self.lowest(parts)

    def lowest(self, parts: dict[int, int]) -> list[int]:
        """Return as many free GPUs of each node as `parts` says, the lowest ones."""
        return [gpu for n, count in parts.items() for gpu in self._free[n][:count]]

    def nodes_of(self, gpus: Iterable[int]) -> Counter[int]:
        """Return how many of these GPUs are on each node."""
        return Counter(self.layout.node_of[list(gpus)].tolist())

    def _tightest(self, size: int) -> int | None:
        """The node with the fewest free GPUs of those that have `size`, the first of equals."""
        count_of = self._counts.item
        for count in range(size, len(self._holes)):
            holes = self._holes[count]
            while holes and count_of(holes[0]) != count:
                heappop(holes)
            if holes:
                return holes[0]
        return None

    def _changed(self, n: int, gpus: int, needs: Needs = NOTHING) -> None:
        """Note that so many GPUs of a node are free that were not."""
        self._counts[n] += gpus
        heappush(self._holes[self._counts.item(n)], n)
        if self.limits(needs):
            self._cpus[n] += gpus * needs.cpus
            self._memory[n] += gpus * needs.memory_gb

    def _by_node(self, gpus: Iterable[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        numbers = list(gpus)
        for n, number in zip(self.layout.node_of[numbers].tolist(), numbers, strict=True):
            groups.setdefault(n, []).append(number)
        return groups


def best_fit(holes: NDArray[np.float64] | Indices, size: int) -> int | None:
    """The smallest hole of at least `size`, the first of equals."""
    fitting = np.flatnonzero(holes >= size)
    return int(fitting[holes[fitting].argmin()]) if fitting.size else None
