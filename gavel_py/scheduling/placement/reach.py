"""How near together a gang of some size could be on the GPUs of a type, if none of the gangs that are to be placed had any."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.placement.layout import SCOPES, TypeLayout
from gavel_py.scheduling.placement.needs import NOTHING, Needs, room_for

__all__ = ["Reach"]


class Reach:
    """free: (GPUs,) bool, those that the gangs share; cpus, memory_gb: (nodes,) what there is of them."""

    def __init__(
        self, layout: TypeLayout, free: NDArray[np.bool_], cpus: NDArray[np.float64], memory_gb: NDArray[np.float64]
    ) -> None:
        self._layout, self._free, self._cpus, self._memory = layout, free, cpus, memory_gb
        self._largest: dict[Needs, list[int]] = {}

    def narrowest(self, size: int, scope: int, needs: Needs = NOTHING) -> int:
        """Return the narrowest scope, within this one, in which a gang of this size would fit; this one if it fits in none."""
        if needs not in self._largest:
            self._largest[needs] = self._room(needs)
        return next((within for within in range(scope + 1) if self._largest[needs][within] >= size), scope)

    def _room(self, needs: Needs) -> list[int]:
        """The largest room of one region of each scope."""
        counts = np.bincount(self._layout.node_of[self._free], minlength=len(self._layout.sizes))
        room = room_for(needs, counts, self._cpus, self._memory)
        return [int(np.bincount(self._layout.regions[scope], weights=room).max(initial=0)) for scope in range(len(SCOPES))]
