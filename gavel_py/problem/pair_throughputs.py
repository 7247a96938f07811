"""Throughputs where a type has several: of jobs that share their GPUs with another job, and of gangs on few nodes or on more.

`PairSpeeds` has the throughputs of two kinds of jobs on the same GPUs. `PlacementSpeeds` has those of gangs on as few nodes as
possible and spread over more; both kinds of placement use the GPUs of the same type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.problem.job import Job

Measured = Callable[[Sequence[Job], Sequence[str]], Floats | None]
"""From jobs and K types to steps/s, NaN where that was not measured. Pairs: (Q, Q, K), of the first with the second of Q jobs of
different kinds. Placements: (N, K), of spread gangs, or None if nothing was measured."""

ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class PairSpeeds:
    """kinds: (N,) the kind of each job, -1 for jobs that share with nobody; speeds: (Q, Q, K) steps/s of a gang of kind a on type j
    that shares each of its GPUs with one of kind b, 0 where they cannot; sizes: (Q,) GPUs of their gangs; alone: (Q, K) steps/s of
    a gang that shares with nobody, than which nobody is faster in company, whatever was measured; min_gain: only pairs that gain
    more are to share; fits: (Q, Q, K) whether a GPU has the memory of both, None where nobody was asked.

    A pair that is no gain, T_ab/T_a + T_ba/T_b <= 1, never helps: the two can take turns on the same GPUs for these parts of the
    time, with which each does as much.
    """

    kinds: Indices
    speeds: Floats
    sizes: Indices
    alone: Floats
    min_gain: float = 1.0
    fits: Mask | None = None

    @property
    def gains(self) -> Floats:
        """(Q, Q, K) T_ab/T_a + T_ba/T_b, what the two do together in parts of what one of them does alone; 0 where they cannot."""
        alone = self.alone[:, None, :]
        parts = np.divide(self.speeds, alone, out=np.full(self.speeds.shape, np.inf), where=alone > 0)
        gains: Floats = np.where(self.possible, parts + parts.swapaxes(0, 1), 0.0)
        return gains

    @property
    def possible(self) -> Mask:
        """(Q, Q, K) the pairs of which both have a throughput."""
        both = (self.speeds > 0) & (self.speeds.swapaxes(0, 1) > 0)
        possible: Mask = both & (self.sizes[:, None] == self.sizes)[:, :, None]
        return possible

    @property
    def useful(self) -> Mask:
        """(Q, Q, K) the pairs that gain enough."""
        useful: Mask = self.gains > self.min_gain + ROUNDING
        return useful

    def select(self, rows: Indices) -> PairSpeeds:
        """Return the same for these jobs only."""
        return replace(self, kinds=self.kinds[rows])


def pair_speeds(
    jobs: Sequence[Job], accelerators: Sequence[str], throughputs: Floats, measured: Measured | None, memory: GpuMemory
) -> PairSpeeds | None:
    """Return what is known of pairs of these jobs, None if nothing is.

    throughputs: (N, K) of each alone; measured: see `Measured`. Two whose memory no GPU of a type has do not share there, whatever
    was measured. Jobs are of one kind where they are as fast, and fit beside the same jobs. Pairs are of whole gangs: a job with a
    fraction of a GPU is of none.
    """
    rows = [(job.job_type, job.whole_gpus, row.tobytes()) for job, row in zip(jobs, memory.company, strict=True)]
    whole = [job.num_gpus >= 1 for job in jobs]
    numbers = {
        kind: n for n, kind in enumerate(sorted(set(compress(rows, whole))))
    }  # so that the order of the jobs changes nothing
    kinds = np.array([numbers[row] if able else -1 for row, able in zip(rows, whole, strict=True)], dtype=np.int64)
    there, first = np.unique(kinds, return_index=True)
    first = first[there >= 0]
    found = measured([jobs[i] for i in first.tolist()], accelerators) if measured is not None and len(first) else None
    if found is None or not np.nan_to_num(found).any():
        return None
    sizes = np.array([size for _, size, _ in numbers], dtype=np.int64)
    fits = memory.together(first)
    return replace(_limited(kinds, np.where(fits, np.nan_to_num(found), 0.0), sizes, throughputs), fits=fits)


def given_pairs(kinds: ArrayLike | None, speeds: ArrayLike | None, num_gpus: Floats, throughputs: Floats) -> PairSpeeds:
    """Return the speeds of pairs that a caller gives as arrays (`AllocationProblem.from_arrays`); raises `InputError`."""
    for name, given, other in (("pair_kinds", kinds, "pair_throughputs"), ("pair_throughputs", speeds, "pair_kinds")):
        if given is None:
            raise InputError(Fault("", name, f"is needed with {other}"))
    table, numbers = _array("pair_throughputs", speeds).astype(float), _array("pair_kinds", kinds)
    jobs, types = throughputs.shape
    if table.ndim != 3 or table.shape[0] != table.shape[1] or table.shape[2] != types:
        text = f"must have the shape (kinds, kinds, {types}), found {table.shape}"
        raise InputError(Fault("", "pair_throughputs", text))
    if not (np.isfinite(table) & (table >= 0)).all():
        raise InputError(
            Fault("", "pair_throughputs", "must be finite numbers of at least 0, in steps/s; 0 where two cannot share")
        )
    most = len(table) - 1
    if numbers.shape != (jobs,) or numbers.dtype.kind not in "iu" or not ((numbers >= -1) & (numbers <= most)).all():
        text = f"must be {jobs} whole numbers from 0 to {most}, or -1 for a job that shares with nobody"
        raise InputError(Fault("", "pair_kinds", text))
    sizes, shares = np.ones(len(table), dtype=np.int64), numbers >= 0
    sizes[numbers[shares]] = num_gpus[shares]
    other = shares & (sizes[numbers] != num_gpus)  # a fraction has become 0
    if other.any():
        kind = numbers[other].min()
        found = " and ".join(f"{size:g}" for size in np.unique(num_gpus[numbers == kind]).tolist())
        text = f"kind {kind} has gangs of {found} GPUs, and only equal whole gangs share two by two"
        raise InputError(Fault("", "pair_kinds", text))
    numbers = numbers.astype(np.int64)
    return _limited(numbers, table, sizes, throughputs)


def _array(field: str, values: ArrayLike | None) -> NDArray[Any]:
    try:
        array = np.asarray(None if np.ma.is_masked(values) else values)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise InputError(Fault("", field, "must be an array of numbers, none of them masked"))
    return array


def _limited(kinds: Indices, speeds: Floats, sizes: Indices, throughputs: Floats) -> PairSpeeds:
    """The pairs, nobody faster than alone; alone, the fastest of the jobs of a kind counts, since some may not run everywhere."""
    alone = np.zeros((len(sizes), throughputs.shape[1]))
    shares = kinds >= 0
    for j, fast in enumerate(throughputs.T):
        np.maximum.at(alone[:, j], kinds[shares], fast[shares])
    return PairSpeeds(kinds, np.minimum(speeds, alone[:, None]), sizes, alone)


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

    def select(self, rows: Indices) -> PlacementSpeeds:
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
