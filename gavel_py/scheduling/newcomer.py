"""The place of the only gang that starts in a round, where it fits on one node and nobody has to move."""

from __future__ import annotations

from collections.abc import Iterable

from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job
from gavel_py.scheduling.assignment import Assignment

__all__ = ["place_of"]


def place_of(job: Job, accelerator: str, cluster: Cluster, held: Iterable[Assignment]) -> Assignment | None:
    """Return the free GPUs of the node where the least is left over, lowest first, as `place` would; None where no node has room.

    held: what all other gangs have, on nodes that are all up. None also where nodes limit CPUs or memory.
    """
    nodes = cluster.nodes_of(accelerator)
    if any(node.cpus is not None or node.memory_gb is not None for node in nodes):
        return None
    taken: dict[str, list[int]] = {}
    for other in held:
        if other.accelerator == accelerator:
            for name, index in other.gpus:
                taken.setdefault(name, []).append(index)
    best, room = None, 0
    for node in nodes:
        left = node.num_gpus - len(taken.get(node.name, ()))
        if left >= job.whole_gpus and (best is None or left < room):
            best, room = node, left
    if best is None:
        return None
    gone = set(taken.get(best.name, ()))
    free = [(best.name, index) for index in range(best.num_gpus) if index not in gone]
    return Assignment(accelerator, free[: job.whole_gpus])
