"""The free GPUs of one accelerator type, node by node, and where a gang fits among them best."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from gavel_py.cluster import Node
from gavel_py.jobs import Locality

__all__ = ["SCOPES", "FreeGpus", "Gpu"]

Gpu = tuple[str, int]
"""A GPU: the name of its node, and its number there from 0."""

SCOPES: tuple[Locality, ...] = ("node", "rack", "any")
"""The localities, narrowest first."""


class FreeGpus:
    """GPUs of one type that nobody has; `taken` ones are left out from the start.

    counts: (nodes,) free GPUs of each node; a region is what a gang of some locality may span: a node, a rack (a node without one
    is a rack of its own), or everything.
    """

    def __init__(self, nodes: Sequence[Node], taken: Set[Gpu] = frozenset()) -> None:
        self.names = [node.name for node in nodes]
        self._number = {name: n for n, name in enumerate(self.names)}
        self._free = [[i for i in range(node.num_gpus) if (node.name, i) not in taken] for node in nodes]
        self.counts: NDArray[np.int64] = np.array([len(free) for free in self._free], dtype=np.int64)
        racks: dict[tuple[bool, str], int] = {}
        keys = [(node.rack is None, node.rack or node.name) for node in nodes]
        self._regions: dict[str, NDArray[np.int64]] = {
            "node": np.arange(len(nodes)),
            "rack": np.array([racks.setdefault(key, len(racks)) for key in keys], dtype=np.int64),
            "any": np.zeros(len(nodes), dtype=np.int64),
        }

        self._largest = {scope: int(self.free_in_regions(scope).max(initial=0)) for scope in SCOPES}

    def narrowest_scope(self, size: int, locality: Locality) -> Locality:
        """Return the narrowest scope in which a gang of this size and locality would fit if nobody had any of the GPUs."""
        scopes = SCOPES[: SCOPES.index(locality) + 1]
        return next((scope for scope in scopes if self._largest[scope] >= size), locality)

    def region_of(self, gpu: Gpu, locality: Locality) -> int:
        """Return the region of a GPU."""
        return int(self._regions[locality][self._number[gpu[0]]])

    def free_in_regions(self, locality: Locality) -> NDArray[np.int64]:
        """Return the free GPUs of each region."""
        free: NDArray[np.int64] = np.bincount(self._regions[locality], weights=self.counts).astype(np.int64)
        return free

    def holds(self, gpus: Sequence[Gpu], locality: Locality) -> bool:
        """Say whether all these GPUs exist here and are free, and lie in one region of the locality."""
        if not all(node in self._number and index in self._free[self._number[node]] for node, index in gpus):
            return False
        return len({self.region_of(gpu, locality) for gpu in gpus}) == 1

    def take(self, gpus: Iterable[Gpu]) -> None:
        """Mark free GPUs as taken."""
        for node, index in gpus:
            n = self._number[node]
            self._free[n].remove(index)
            self.counts[n] -= 1

    def give_back(self, gpus: Iterable[Gpu]) -> None:
        """Mark GPUs as free again."""
        for node, index in gpus:
            n = self._number[node]
            insort(self._free[n], index)
            self.counts[n] += 1

    def find(self, size: int, locality: Locality) -> tuple[Gpu, ...] | None:
        """Return `size` free GPUs for a gang, lowest indices first, or None when there are not enough in any one region.

        One node if possible, else one rack, else the fewest nodes; always where the least is left over, so that large holes stay
        whole for large gangs.
        """
        for scope in SCOPES[: SCOPES.index(locality) + 1]:
            region = _best_fit(self.free_in_regions(scope), size)
            if region is not None:
                return self._gathered(np.flatnonzero(self._regions[scope] == region), size)
        return None

    def _gathered(self, nodes: NDArray[np.int64], size: int) -> tuple[Gpu, ...]:
        """GPUs of the fewest of these nodes: the fullest holes whole, and for the rest the smallest hole that holds it."""
        gpus: list[Gpu] = []
        for n in nodes[np.argsort(-self.counts[nodes], kind="stable")].tolist():
            rest = size - len(gpus)
            if self.counts[n] > rest:
                unused = nodes[self.counts[nodes] < self.counts[n]]
                tightest = _best_fit(self.counts[unused], rest)
                n = n if tightest is None else int(unused[tightest])
            gpus += [(self.names[n], index) for index in self._free[n][:rest]]
            if len(gpus) == size:
                break
        return tuple(gpus)


def _best_fit(holes: NDArray[np.int64], size: int) -> int | None:
    """The smallest hole of at least `size`, the first of equals."""
    fitting = np.flatnonzero(holes >= size)
    return int(fitting[holes[fitting].argmin()]) if fitting.size else None
