"""Gangs that must have the same number of GPUs on each of their nodes, as launchers ask that start as many processes on each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.cluster import Cluster

__all__ = ["even_nodes", "even_parts", "largest_even_gang"]

Indices = NDArray[np.int64]


def even_parts(size: int) -> Iterator[tuple[int, int]]:
    """The ways to split a gang evenly, as (nodes, GPUs on each), on the fewest nodes first.

    >>> list(even_parts(6))
    [(1, 6), (2, 3), (3, 2), (6, 1)]
    """
    return ((nodes, size // nodes) for nodes in range(1, size + 1) if size % nodes == 0)


def even_nodes(size: int, room: Indices, regions: Indices) -> tuple[Indices, int] | None:
    """Return the nodes of one region on which a gang can be split evenly, and its GPUs on each; None where there are none.

    room: (nodes,) the GPUs that each has for the gang; regions: (nodes,) the number of the region of each. The fewest nodes, of
    the region with the least room on such nodes, and there the tightest.
    """
    for count, part in even_parts(size):
        holes = np.flatnonzero(room >= part)
        here = regions[holes]
        enough = np.flatnonzero(np.bincount(here) >= count)
        if len(enough):
            region = enough[np.bincount(here, weights=room[holes])[enough].argmin()]
            nodes = holes[here == region]
            return nodes[np.argsort(room[nodes], kind="stable")][:count], part
    return None


def largest_even_gang(
    cluster: Cluster, accelerator: str, size: int, locality: str, *, cpus_per_gpu: float = 0.0, memory_gb_per_gpu: float = 0.0
) -> float:
    """Return the largest gang of at most this size that an empty cluster can hold on this type, split evenly; as `largest_gang`."""
    needs = {"cpus_per_gpu": cpus_per_gpu, "memory_gb_per_gpu": memory_gb_per_gpu}
    if size <= cluster.largest_gang(accelerator, "node", **needs):
        return float(size)
    nodes = cluster.nodes_of(accelerator)
    regions: dict[str, int] = {}
    numbers = np.array([regions.setdefault(cluster.region_of(node, locality), len(regions)) for node in nodes], dtype=np.int64)
    room = np.array([cluster.usable_gpus(node, **needs) for node in nodes], dtype=np.int64)
    for smaller in range(size, 0, -1):
        if even_nodes(smaller, room, numbers) is not None:
            return float(smaller)
    return cluster.largest_gang(accelerator, locality, **needs)
