"""Gangs that are to be placed, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.placement.kinds import Kind
from gavel_py.scheduling.placement.layout import NODE
from gavel_py.scheduling.placement.needs import Needs

__all__ = ["Crowd"]

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Crowd:
    """M gangs, those on one type in a row and of these the one first that matters most.

    sizes: (M,) GPUs; types: (M,) rising, their numbers in the layout, -1 for one that has no nodes;
    scopes: (M,) places in `SCOPES`; evens: (M,) bool, who must have as many GPUs on each node; kinds: (M,) values of `Kind`;
    fewest: (M,) nodes on which each must be at least, told where its kind matters; needs: by gang, what each of its GPUs needs on
    its node;
    held: (H,) GPUs that they had until now, by number, -1 for one that is not there; owners: (H,) whose they were, rising.
    """

    sizes: Indices
    types: Indices
    scopes: Indices
    evens: NDArray[np.bool_]
    kinds: NDArray[np.int8]
    fewest: Indices
    needs: Sequence[Needs]
    held: Indices
    owners: Indices

    def __len__(self) -> int:
        return len(self.sizes)

    def on_type(self, number: int, first_gpu: int) -> tuple[int, Crowd]:
        """Return where the gangs on a type begin, and these by themselves, their GPUs numbered from this one."""
        start, stop = np.searchsorted(self.types, [number, number + 1]).tolist()
        gangs, held = slice(start, stop), slice(*np.searchsorted(self.owners, [start, stop]).tolist())
        numbers, owners = self.held[held] - first_gpu, self.owners[held] - start
        what = self.sizes[gangs], self.types[gangs], self.scopes[gangs], self.evens[gangs], self.kinds[gangs], self.fewest[gangs]
        return start, Crowd(*what, self.needs[gangs], numbers, owners)

    def with_kinds_on(self, nodes: int) -> Crowd:
        """Return the same gangs on one type of so many nodes, where no kind matters that a gang could not or must have anyhow."""
        if not self.kinds.any():
            return self
        may_spread = (self.sizes > self.fewest) & (self.fewest < nodes) & (self.scopes != NODE) & ~self.evens
        return replace(self, kinds=np.where(may_spread, self.kinds, Kind.ANY).astype(np.int8))
