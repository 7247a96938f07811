"""How fast gangs are on as few nodes as possible, and on more: both kinds of placement use the GPUs of the same type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job

__all__ = ["PlacementSpeeds", "fewest_nodes", "placement_speeds"]

Floats = NDArray[np.float64]

Mask = NDArray[np.bool_]

Measured = Callable[[Sequence[Job], Sequence[str]], Floats | None]

"""From jobs and accelerator types to (N, K) steps/s of spread gangs, NaN where they were not measured; None if nothing was."""


@dataclass(frozen=True, eq=False)
class PlacementSpeeds:
    """consolidated, spread: (N, K) steps/s of each gang on the fewest nodes that hold it, and on more.

    spread is NaN where it was not measured, or a gang cannot be on more nodes, or may not by its locality.
    """

    consolidated: Floats
    spread: Floats

    @cached_property
    def differ(self) -> Mask:
        """(N, K) where both kinds are known, and one of them is faster."""
        differ: Mask = ~np.isnan(self.spread) & (self.spread != self.consolidated)
        return differ

    @cached_property
    def apart(self) -> Mask:
        """(N, K) where a gang is faster on more nodes than it needs."""
        apart: Mask = self.differ & (np.nan_to_num(self.spread) > self.consolidated)
        return apart

    @property
    def faster(self) -> Floats:
        """(N, K) steps/s of the faster kind."""
        faster: Floats = np.where(self.apart, self.spread, self.consolidated)
        return faster

    @property
    def slower(self) -> Floats:
        """(N, K) steps/s of the slower kind, 0 where there is none."""
        slower: Floats = np.where(self.apart, self.consolidated, np.where(self.differ, self.spread, 0.0))
        return slower

    def select(self, rows: NDArray[np.int64]) -> PlacementSpeeds:
        """Return the same for these jobs only."""
        return PlacementSpeeds(self.consolidated[rows], self.spread[rows])


def placement_speeds(
    jobs: Sequence[Job], cluster: Cluster, consolidated: Floats, measured: Measured | None
) -> PlacementSpeeds | None:
    """Return what is known of both kinds of placement, None if nothing of these gangs when spread; measured: see `Measured`."""
    several = np.array([job.num_gpus > 1 and job.locality != "node" and not job.even_split for job in jobs], dtype=bool)
    if measured is None or not several.any():
        return None
    rows = np.flatnonzero(several)
    gangs = [jobs[i] for i in rows.tolist()]
    found = measured(gangs, cluster.accelerator_names)
    if found is None:
        return None
    spread = np.full(consolidated.shape, np.nan)
    spread[rows] = np.where(_could_be_apart(gangs, cluster), found, np.nan)
    return None if np.isnan(spread).all() else PlacementSpeeds(consolidated, spread)


def fewest_nodes(cluster: Cluster, accelerator: str, size: int) -> int:
    """Return on how many nodes of a type a gang must be at least; all of them where they do not hold it."""
    sizes = sorted((node.num_gpus for node in cluster.nodes_of(accelerator)), reverse=True)
    return int(np.searchsorted(np.cumsum(sizes), size)) + 1 if sum(sizes) >= size else len(sizes)


def _could_be_apart(gangs: Sequence[Job], cluster: Cluster) -> Mask:
    """(gangs, K) whether there is a region within a gang's locality with room on more nodes than it needs."""
    names = cluster.accelerator_names
    rows: dict[tuple[int, str], list[bool]] = {}
    for size, locality in {(job.whole_gpus, job.locality) for job in gangs}:
        rows[size, locality] = [_has_region(cluster, name, size, locality) for name in names]
    return np.array([rows[job.whole_gpus, job.locality] for job in gangs], dtype=bool)


def _has_region(cluster: Cluster, accelerator: str, size: int, locality: str) -> bool:
    least = fewest_nodes(cluster, accelerator, size)
    regions: dict[tuple[bool, str], list[int]] = {}
    for node in cluster.nodes_of(accelerator):
        key = (False, "") if locality == "any" else (node.rack is None, node.rack or node.name)
        regions.setdefault(key, []).append(node.num_gpus)
    return any(len(held) > least and sum(held) >= size > least for held in regions.values())
