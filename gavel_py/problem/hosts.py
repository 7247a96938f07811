"""What the nodes of a cluster mean for gangs beside the number of GPUs: how many stand together, with what CPUs and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.cluster import Cluster
from gavel_py.problem.gpu_memory import GpuMemory
from gavel_py.problem.jobs import Job
from gavel_py.problem.placement_speeds import PlacementSpeeds

__all__ = ["Hosts", "hosts_of"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Hosts:
    """The nodes of K accelerator types, and what N jobs ask of them.

    gpus: by locality, for each type the GPUs of each node ("node") or rack ("rack"; a node without one is one of its own);
    cpus, memory_gb: (K,) of all nodes of a type, infinite if one does not say;
    localities: (N,) of the jobs; cpus_per_gpu, memory_gb_per_gpu: (N,);
    speeds: of gangs on few nodes and on more, None where nobody knows of a difference; gpu_memory: of jobs and GPUs;
    rooms: for each type the GPUs, CPUs and GB of each node.
    """

    gpus: dict[Literal["node", "rack"], tuple[tuple[int, ...], ...]]
    cpus: Floats
    memory_gb: Floats
    localities: NDArray[np.str_]
    cpus_per_gpu: Floats
    memory_gb_per_gpu: Floats
    speeds: PlacementSpeeds | None = None
    gpu_memory: GpuMemory | None = None
    rooms: tuple[tuple[tuple[int, float, float], ...], ...] = ()

    def select(self, rows: NDArray[np.int64]) -> Hosts:
        """Return the same nodes for these jobs only."""
        cpus, memory = self.cpus_per_gpu[rows], self.memory_gb_per_gpu[rows]
        known = self.gpu_memory
        return replace(
            self,
            localities=self.localities[rows],
            cpus_per_gpu=cpus,
            memory_gb_per_gpu=memory,
            speeds=None if self.speeds is None else self.speeds.select(rows),
            gpu_memory=None if known is None else replace(known, needed=known.needed[rows]),
        )


def hosts_of(
    jobs: Sequence[Job], cluster: Cluster, speeds: PlacementSpeeds | None = None, gpu_memory: GpuMemory | None = None
) -> Hosts:
    """Return what there is to know of the nodes of a cluster for these jobs; speeds: those of both kinds of placement."""
    return Hosts(
        gpus=cluster.node_sizes,  # type: ignore[arg-type]
        cpus=cluster.cpus,
        memory_gb=cluster.memory_gb,
        localities=np.array([job.locality for job in jobs], dtype=np.str_),
        cpus_per_gpu=np.array([job.cpus_per_gpu for job in jobs], dtype=float),
        memory_gb_per_gpu=np.array([job.memory_gb_per_gpu for job in jobs], dtype=float),
        speeds=speeds,
        gpu_memory=gpu_memory,
        rooms=cluster.node_rooms,
    )
