"""Throughputs of co-located jobs and of consolidated and spread gangs: several throughputs of a job on one accelerator type.

`PairSpeeds` has the throughputs of two jobs on the same GPUs, by pair class. `PlacementSpeeds` has those of gangs on as few nodes
as possible (consolidated) and on more (spread).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.problem.arrays import Floats, Indices, Mask, faults_of_kinds, faults_of_speeds
from gavel_py.problem.tolerances import FLOAT_ROUNDING

if TYPE_CHECKING:
    from gavel_py.problem.cluster import Cluster
    from gavel_py.problem.eligibility import GpuMemory
    from gavel_py.problem.job import Job

Measured: TypeAlias = "Callable[[Sequence[Job], Sequence[str]], Floats | None]"
"""A function of jobs and K types that returns steps/s, NaN if not measured, or None if nothing was: for pairs (Q, Q, K), of the
first beside the second of Q jobs of different pair classes; for placements (N, K), of spread gangs."""


@dataclass(frozen=True, eq=False)
class PairSpeeds:
    """Throughputs of pairs of jobs that share GPUs, by Q pair classes.

    A pair without gain, T_ab/T_a + T_ba/T_b <= 1, never helps: if the two jobs take turns on the same GPUs for these parts of the
    time, each does the same work.

    Attributes:
        kinds: (N,) the pair class of each job, -1 for jobs that are never co-located.
        speeds: (Q, Q, K) steps/s of a gang of class a that shares each of its GPUs with a gang of class b, 0 if not possible.
        sizes: (Q,) GPUs of the gangs.
        alone: (Q, K) steps/s of a gang alone, which also bounds its co-located throughput.
        min_gain: Co-located pairs must gain more than this.
        fits: (Q, Q, K) whether both jobs fit the memory of a GPU, None if unknown.
        per_node: (Q,) GPUs that gangs need on each of their nodes, 0 for any number.
    """

    kinds: Indices
    speeds: Floats
    sizes: Indices
    alone: Floats
    min_gain: float = 1.0
    fits: Mask | None = None
    per_node: Indices | None = None

    @property
    def gains(self) -> Floats:
        """(Q, Q, K) T_ab/T_a + T_ba/T_b, the joint work of both over the work of one alone; 0 if not possible."""
        alone = self.alone[:, None, :]
        parts = np.divide(self.speeds, alone, out=np.full(self.speeds.shape, np.inf), where=alone > 0)
        return np.where(self.possible, parts + parts.swapaxes(0, 1), 0.0)

    @property
    def possible(self) -> Mask:
        """(Q, Q, K) the pairs of equal gangs that the same nodes can hold and in which both have a throughput."""
        both = (self.speeds > 0) & (self.speeds.swapaxes(0, 1) > 0)
        possible: Mask = both & ((self.sizes[:, None] == self.sizes) & self.divide_alike)[:, :, None]
        return possible

    @property
    def divide_alike(self) -> Mask:
        """(Q, Q) the pairs that the same nodes can hold: both need the same number of GPUs on each, or one accepts any number."""
        if self.per_node is None:
            return np.ones((len(self.sizes), len(self.sizes)), dtype=bool)
        is_free = self.per_node == 0
        alike: Mask = is_free[:, None] | is_free | (self.per_node[:, None] == self.per_node)
        return alike

    @property
    def useful(self) -> Mask:
        """(Q, Q, K) the pairs with a gain above `min_gain`."""
        return self.gains > self.min_gain + FLOAT_ROUNDING

    def select(self, rows: Indices) -> PairSpeeds:
        """Return the throughputs of some of the jobs."""
        return replace(self, kinds=self.kinds[rows])


def pair_speeds(
    jobs: Sequence[Job],
    accelerators: Sequence[str],
    throughputs: Floats,
    measured: Measured | None,
    memory: GpuMemory,
    min_gain: float,
) -> PairSpeeds | None:
    """Return the throughputs of pairs of these jobs, None if none was measured.

    throughputs: (N, K) of each job alone; min_gain: as in the result. Jobs of a pair class have the same type and gang size, need
    the same number of GPUs on each node, and fit GPU memory beside the same jobs. Pairs that exceed the memory of a GPU have
    throughput 0. Jobs with a fraction of a GPU are in no pair.
    """
    keys = [
        (job.job_type, job.whole_gpus, max(0, job.split), row.tobytes())
        for job, row in zip(jobs, memory.num_compatible, strict=True)
    ]
    whole = [job.num_gpus >= 1 for job in jobs]
    # Sorted, so that the result does not depend on the order of the jobs.
    numbers = {key: n for n, key in enumerate(sorted(set(compress(keys, whole))))}
    kinds = np.array([numbers[key] if is_whole else -1 for key, is_whole in zip(keys, whole, strict=True)], dtype=np.int64)
    known, first = np.unique(kinds, return_index=True)
    first = first[known >= 0]
    found = measured([jobs[i] for i in first.tolist()], accelerators) if measured is not None and len(first) else None
    if found is None or not np.nan_to_num(found).any():
        return None
    sizes, per_node = np.array([key[1:3] for key in numbers], dtype=np.int64).T
    fits = memory.together(first)
    pairs = _limited(kinds, np.where(fits, np.nan_to_num(found), 0.0), sizes, throughputs)
    return replace(pairs, min_gain=min_gain, fits=fits, per_node=per_node)


def given_pairs(kinds: ArrayLike | None, speeds: ArrayLike | None, num_gpus: Floats, throughputs: Floats) -> PairSpeeds:
    """Return the throughputs of pairs from arrays (`AllocationProblem.from_arrays`); raises `InputError` for invalid arrays."""
    refuse(
        "",
        (kinds is None, "pair_kinds", "is required with pair_throughputs"),
        (speeds is None, "pair_throughputs", "is required with pair_kinds"),
    )
    table, numbers = _array("pair_throughputs", speeds).astype(float), _array("pair_kinds", kinds)
    jobs, types = throughputs.shape
    shape, absent = (len(table), types), "two jobs cannot share"
    wrong = faults_of_speeds("pair_throughputs", table, shape, f"kinds, {types}", absent)
    InputError.raise_any(wrong or faults_of_kinds("pair_kinds", numbers, jobs, len(table), "that cannot share"))
    sizes, shares = np.ones(len(table), dtype=np.int64), numbers >= 0
    sizes[numbers[shares]] = num_gpus[shares]
    other = shares & (sizes[numbers] != num_gpus)  # fractions of a GPU became 0
    gangs = {int(kind): " and ".join(f"{size:g}" for size in np.unique(num_gpus[numbers == kind])) for kind in numbers[other]}
    text = "kind {} has gangs of {} GPUs, but only equal gangs of whole GPUs can share in pairs"
    InputError.raise_any([Fault("", "pair_kinds", text.format(kind, found)) for kind, found in sorted(gangs.items())])
    return _limited(numbers.astype(np.int64), table, sizes, throughputs)


def _array(field: str, values: ArrayLike | None) -> NDArray[Any]:
    try:
        array = np.asarray(None if np.ma.is_masked(values) else values)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    refuse("", (array.dtype.kind not in "iuf", field, "must be an array of numbers without masked entries"))
    return array


def _limited(kinds: Indices, speeds: Floats, sizes: Indices, throughputs: Floats) -> PairSpeeds:
    """Return the pairs with throughputs capped at those alone, of a class's fastest job, since types may be closed to others."""
    alone = np.zeros((len(sizes), throughputs.shape[1]))
    shares = kinds >= 0
    for j, fast in enumerate(throughputs.T):
        np.maximum.at(alone[:, j], kinds[shares], fast[shares])
    return PairSpeeds(kinds, np.minimum(speeds, alone[:, None]), sizes, alone)


@dataclass(frozen=True, eq=False)
class PlacementSpeeds:
    """Throughputs of gangs by placement.

    consolidated: (N, K) steps/s of each gang on the fewest nodes that hold it; spread: (N, K) on more nodes, NaN if not measured or
    if the gang or its locality does not allow it.
    """

    consolidated: Floats
    spread: Floats

    @cached_property
    def differ(self) -> Mask:
        """(N, K) whether both throughputs are known and different."""
        differ: Mask = ~np.isnan(self.spread) & (self.spread != self.consolidated)
        return differ

    @cached_property
    def spread_is_faster(self) -> Mask:
        """(N, K) whether a gang is faster when spread."""
        return self.differ & (np.nan_to_num(self.spread) > self.consolidated)

    @property
    def faster(self) -> Floats:
        """(N, K) steps/s of the faster placement."""
        return np.where(self.spread_is_faster, self.spread, self.consolidated)

    @property
    def slower(self) -> Floats:
        """(N, K) steps/s of the slower placement, 0 if there is none."""
        return np.where(self.spread_is_faster, self.consolidated, np.where(self.differ, self.spread, 0.0))

    def select(self, rows: Indices) -> PlacementSpeeds:
        """Return the throughputs of some of the jobs."""
        return PlacementSpeeds(self.consolidated[rows], self.spread[rows])


def placement_speeds(
    jobs: Sequence[Job], cluster: Cluster, consolidated: Floats, measured: Measured | None
) -> PlacementSpeeds | None:
    """Return the throughputs of both placements, None if no spread gang was measured."""
    several = np.array([job.num_gpus > 1 and job.locality != "node" and not job.split for job in jobs], dtype=bool)
    if measured is None or not several.any():
        return None
    rows = np.flatnonzero(several)
    gangs = [jobs[i] for i in rows.tolist()]
    found = measured(gangs, cluster.profile_names)
    if found is None:
        return None
    spread = np.full(consolidated.shape, np.nan)
    spread[rows] = np.where(_can_be_spread(gangs, cluster), found, np.nan)
    return None if np.isnan(spread).all() else PlacementSpeeds(consolidated, spread)


def fewest_nodes(cluster: Cluster, accelerator: str, size: int) -> int:
    """Return the minimum number of nodes of a type for a gang; all of them if they are too few."""
    sizes = sorted((node.num_gpus for node in cluster.nodes_of(accelerator)), reverse=True)
    return int(np.searchsorted(np.cumsum(sizes), size)) + 1 if sum(sizes) >= size else len(sizes)


def _can_be_spread(gangs: Sequence[Job], cluster: Cluster) -> Mask:
    """Return (gangs, K) whether a region within a gang's locality has room for it on more nodes than it needs."""
    names = cluster.accelerator_names
    regions = {locality: [_regions(cluster, name, locality) for name in names] for locality in {job.locality for job in gangs}}
    rows = {
        (size, locality): [
            _has_room(held, size, fewest_nodes(cluster, name, size)) for name, held in zip(names, regions[locality], strict=True)
        ]
        for size, locality in {(job.whole_gpus, job.locality) for job in gangs}
    }
    return np.array([rows[job.whole_gpus, job.locality] for job in gangs], dtype=bool)


def _has_room(regions: Collection[Sequence[int]], size: int, nodes: int) -> bool:
    """Return whether one of these regions has room for a gang on more than this number of nodes."""
    return any(len(held) > nodes and sum(held) >= size > nodes for held in regions)


def _regions(cluster: Cluster, accelerator: str, locality: str) -> Collection[Sequence[int]]:
    """Return the GPUs of the nodes of a type in each region within a locality."""
    regions: dict[str, list[int]] = {}
    for node in cluster.nodes_of(accelerator):
        regions.setdefault(cluster.region_of(node, locality), []).append(node.num_gpus)
    return regions.values()
