"""The free GPUs of one accelerator type, node by node, and where a gang fits among them best."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gavel_py.cluster import Node
from gavel_py.jobs import Locality
from gavel_py.rounds.needs import NO_LOADS, NOTHING, Needs, room_for

__all__ = ["SCOPES", "FreeGpus", "Gpu"]

Indices = NDArray[np.int64]

Gpu = tuple[str, int]
"""A GPU: the name of its node, and its number there from 0."""

SCOPES: tuple[Locality, ...] = ("node", "rack", "any")
"""The localities, narrowest first."""


class FreeGpus:
    """GPUs of one type that nobody has; `taken` ones are left out from the start, and of CPUs and memory the `loads` by node.

    A region is what a gang of some locality may span: a node, a rack (a node without one is a rack of its own), or everything.
    Its room for a gang is the GPUs that are free there with the CPUs and the memory that each of them needs on its node.
    """

    def __init__(self, nodes: Sequence[Node], taken: Set[Gpu] = frozenset(), loads: Mapping[str, Needs] = NO_LOADS) -> None:
        self.names = [node.name for node in nodes]
        self._number = {name: n for n, name in enumerate(self.names)}
        self._free = [list(range(node.num_gpus)) for node in nodes]
        for name, index in taken:
            if name in self._number:
                self._free[self._number[name]].remove(index)
        self._counts = [len(free) for free in self._free]
        # Nodes by how many GPUs are free there, lowest number first; what no longer holds is dropped when it comes up.
        self._holes: list[list[int]] = [[] for _ in range(max(self._counts, default=0) + 1)]
        for n, count in enumerate(self._counts):
            self._holes[count].append(n)
        for holes in self._holes:
            heapify(holes)
        self._limited = any(node.cpus is not None or node.memory_gb is not None for node in nodes)
        used = [loads.get(name, NOTHING) for name in self.names]
        self._cpus = _left([node.cpus for node in nodes], [each.cpus for each in used])
        self._memory = _left([node.memory_gb for node in nodes], [each.memory_gb for each in used])
        racks: dict[tuple[bool, str], int] = {}
        keys = [(node.rack is None, node.rack or node.name) for node in nodes]
        self._regions: dict[str, Indices] = {
            "node": np.arange(len(nodes)),
            "rack": np.array([racks.setdefault(key, len(racks)) for key in keys], dtype=np.int64),
            "any": np.zeros(len(nodes), dtype=np.int64),
        }
        self._narrowest: dict[tuple[int, Locality, Needs], Locality] = {}
        self._at_first = np.array(self._counts, dtype=np.int64), self._cpus.copy(), self._memory.copy()

    def limits(self, needs: Needs) -> bool:
        """Say whether a gang with these needs may lack anything but GPUs."""
        return self._limited and needs != NOTHING

    def narrowest_scope(self, size: int, locality: Locality, needs: Needs = NOTHING) -> Locality:
        """Return the narrowest scope in which a gang of this size and locality would fit if nobody had any of the GPUs."""
        key = size, locality, needs
        if key not in self._narrowest:
            room = room_for(needs, *self._at_first)
            scopes = SCOPES[: SCOPES.index(locality) + 1]
            fitting = (scope for scope in scopes if self._by_region(room, scope).max(initial=0) >= size)
            self._narrowest[key] = next(fitting, locality)
        return self._narrowest[key]

    def region_of(self, gpu: Gpu, locality: Locality) -> int:
        """Return the region of a GPU."""
        return int(self._regions[locality][self._number[gpu[0]]])

    def room_in_regions(self, locality: Locality, needs: Needs = NOTHING) -> Indices:
        """Return the room of each region for a gang."""
        return self._by_region(self._room(needs), locality)

    def holds(self, gpus: Sequence[Gpu], locality: Locality, needs: Needs = NOTHING) -> bool:
        """Say whether all these GPUs exist here, are free with what they need, and lie in one region of the locality."""
        if not all(node in self._number and index in self._free[self._number[node]] for node, index in gpus):
            return False
        if self.limits(needs) and any(count > self._room_on(self._number[name], needs) for name, count in _by_node(gpus)):
            return False
        return len(gpus) == 1 or locality == "any" or len({self.region_of(gpu, locality) for gpu in gpus}) == 1

    def keep(self, gpus: Sequence[Gpu], locality: Locality, needs: Needs = NOTHING) -> bool:
        """Take these GPUs if they are free for a gang of this locality, and say whether they were."""
        name, index = gpus[0]
        n = self._number.get(name)
        if len(gpus) > 1 or n is None or self._limited:
            there = self.holds(gpus, locality, needs)
            if there:
                self.take(gpus, needs)
            return there
        if index not in self._free[n]:
            return False
        self._free[n].remove(index)
        self._changed(n, -1, needs)
        return True

    def take(self, gpus: Iterable[Gpu], needs: Needs = NOTHING) -> None:
        """Mark free GPUs as taken, with what they need."""
        for name, indices in _grouped(gpus).items():
            n = self._number[name]
            free = self._free[n]
            for index in indices:
                free.remove(index)
            self._changed(n, -len(indices), needs)

    def give_back(self, gpus: Iterable[Gpu], needs: Needs = NOTHING) -> None:
        """Mark GPUs as free again."""
        for name, indices in _grouped(gpus).items():
            n = self._number[name]
            for index in indices:
                insort(self._free[n], index)
            self._changed(n, len(indices), needs)

    def find(self, size: int, locality: Locality, needs: Needs = NOTHING) -> tuple[Gpu, ...] | None:
        """Return `size` free GPUs for a gang, lowest indices first, or None when there is no room in any one region.

        One node if possible, else one rack, else the fewest nodes; always where the least is left over, so that large holes stay
        whole for large gangs.
        """
        if not self.limits(needs):
            n = self._tightest(size)
            if n is not None:
                return self._first(n, size)
            if locality == "node":
                return None
        room = self._room(needs)
        for scope in SCOPES[: SCOPES.index(locality) + 1]:
            region = _best_fit(self._by_region(room, scope), size)
            if region is not None:
                return self._gathered(np.flatnonzero(self._regions[scope] == region), room, size)
        return None

    def _tightest(self, size: int) -> int | None:
        """The node with the fewest free GPUs of those that have `size`, the first of equals."""
        for count in range(size, len(self._holes)):
            holes = self._holes[count]
            while holes and self._counts[holes[0]] != count:
                heappop(holes)
            if holes:
                return holes[0]
        return None

    def _changed(self, n: int, gpus: int, needs: Needs) -> None:
        """Note that so many GPUs of a node are free that were not."""
        self._counts[n] += gpus
        heappush(self._holes[self._counts[n]], n)
        if self.limits(needs):
            self._cpus[n] += gpus * needs.cpus
            self._memory[n] += gpus * needs.memory_gb

    def _room(self, needs: Needs) -> Indices:
        """(nodes,) the room on each node."""
        counts = np.array(self._counts, dtype=np.int64)
        return room_for(needs, counts, self._cpus, self._memory) if self._limited else counts

    def _room_on(self, n: int, needs: Needs) -> int:
        here = slice(n, n + 1)
        return int(room_for(needs, np.array(self._counts[here]), self._cpus[here], self._memory[here])[0])

    def _by_region(self, room: Indices, locality: Locality) -> Indices:
        return np.bincount(self._regions[locality], weights=room).astype(np.int64)

    def _first(self, n: int, count: int) -> tuple[Gpu, ...]:
        name = self.names[n]
        return tuple((name, index) for index in self._free[n][:count])

    def _gathered(self, nodes: Indices, room: Indices, size: int) -> tuple[Gpu, ...]:
        """GPUs of the fewest of these nodes: the fullest holes whole, and for the rest the smallest hole that holds it."""
        gpus: list[Gpu] = []
        for n in nodes[np.argsort(-room[nodes], kind="stable")].tolist():
            rest = size - len(gpus)
            if room[n] > rest:
                unused = nodes[room[nodes] < room[n]]
                tightest = _best_fit(room[unused], rest)
                n = n if tightest is None else int(unused[tightest])
            gpus += self._first(n, min(rest, int(room[n])))
            if len(gpus) == size:
                break
        return tuple(gpus)


def _left(there: Sequence[float | None], used: Sequence[float]) -> NDArray[np.float64]:
    """What is left on each node, infinite where nobody has said what is there."""
    return np.array([np.inf if most is None else most - gone for most, gone in zip(there, used, strict=True)], dtype=float)


def _grouped(gpus: Iterable[Gpu]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for name, index in gpus:
        groups.setdefault(name, []).append(index)
    return groups


def _by_node(gpus: Iterable[Gpu]) -> Iterable[tuple[str, int]]:
    return Counter(name for name, _ in gpus).items()


def _best_fit(holes: Indices, size: int) -> int | None:
    """The smallest hole of at least `size`, the first of equals."""
    fitting = np.flatnonzero(holes >= size)
    return int(fitting[holes[fitting].argmin()]) if fitting.size else None
