"""CPUs and host memory that GPUs need on their node, and how many GPUs of a node have them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOTHING", "NO_LOADS", "Needs", "room_for"]

ROUNDING = 1e-9


class Needs(NamedTuple):
    """What each GPU of a gang needs on its node, or what some gangs on a node need there together; memory_gb in GB."""

    cpus: float = 0.0
    memory_gb: float = 0.0


NOTHING = Needs()
NO_LOADS: Mapping[str, Needs] = MappingProxyType({})


def room_for(needs: Needs, gpus: NDArray[np.int64], cpus: NDArray[np.float64], memory_gb: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return (nodes,) how many of the free GPUs of each node can have what they need of its free CPUs and memory."""
    for there, per_gpu in ((cpus, needs.cpus), (memory_gb, needs.memory_gb)):
        if per_gpu > 0:
            gpus = np.minimum(gpus, np.floor(np.maximum(0.0, there) / per_gpu + ROUNDING)).astype(np.int64)
    return gpus
