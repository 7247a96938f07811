"""Throughputs of elastic jobs by accelerator type and number of GPUs.

An elastic job may run on one of several numbers of GPUs. `GpuCounts` has the throughput of each number on each type, once for all
jobs with the same throughputs (a kind), and whether a cluster can hold each number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from gavel_py.errors import Fault, InputError, MissingThroughputError, faults_among, refuse
from gavel_py.problem.arrays import faults_of_kinds, faults_of_speeds

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats, Indices, Mask
    from gavel_py.problem.cluster import Cluster
    from gavel_py.problem.job import Job
    from gavel_py.problem.profile import Profile


NO_SPEED = "its throughput is 0 on every number of GPUs"
"""Why an elastic job without any throughput is excluded."""


@dataclass(frozen=True, eq=False)
class GpuCounts:
    """Throughputs of elastic jobs, by Q kinds of jobs with the same throughputs.

    Attributes:
        kinds: (N,) the kind of each job, -1 for a job whose number of GPUs is fixed.
        counts: (L,) all numbers of GPUs, ascending.
        speeds: (Q, K, L) steps/s on counts[l] GPUs of type j, 0 where that number is not offered.
        fits: (Q, K, L) whether the nodes of the type can hold that many GPUs of one such job.
    """

    kinds: Indices
    counts: Indices
    speeds: Floats
    fits: Mask

    @cached_property
    def able(self) -> Mask:
        """(Q, K, L) whether jobs of a kind may have time."""
        return self.fits & (self.speeds > 0)

    @cached_property
    def per_gpu(self) -> Floats:
        """(Q, K) steps/s of each GPU at the smallest number offered on the type, 0 if none is."""
        offered = self.speeds > 0
        smallest = offered.argmax(axis=2)
        speeds = np.take_along_axis(self.speeds, smallest[:, :, None], axis=2)[:, :, 0]
        return np.where(offered.any(axis=2), speeds / self.counts[smallest], 0.0)

    @cached_property
    def best(self) -> Floats:
        """(Q, K) steps/s at the best number of GPUs that a type can hold, 0 if it can hold none."""
        best: Floats = np.where(self.able, self.speeds, 0.0).max(axis=2, initial=0.0)
        return best

    @cached_property
    def largest_by_type(self) -> Floats:
        """(Q, K) the largest number of GPUs on which a job may run on each type, 0 for none."""
        largest: Floats = np.where(self.able, self.counts, 0).max(axis=2, initial=0).astype(float)
        return largest

    @cached_property
    def largest(self) -> Floats:
        """(Q,) the largest number of GPUs on which a job may run, 0 for none."""
        largest: Floats = self.largest_by_type.max(axis=1, initial=0.0)
        return largest

    @cached_property
    def smallest(self) -> Floats:
        """(Q,) the smallest number of GPUs on which a job may run, 1 for none."""
        able: Mask = np.logical_or.reduce(self.able, axis=1)
        return np.where(able.any(axis=1), self.counts[able.argmax(axis=1)], 1).astype(float)

    @property
    def is_elastic(self) -> Mask:
        """(N,) whether a job may run on several numbers of GPUs."""
        return self.kinds >= 0

    def by_job(self, of_kinds: Any, others: Any) -> Any:
        """Return a (Q, ...) table expanded to all jobs, with the rows of `others` for jobs whose number of GPUs is fixed."""
        table = np.array(others)
        table[self.is_elastic] = of_kinds[self.kinds[self.is_elastic]]
        return table

    def rates(self, table: Floats, type_index: Indices | None, *, by_job: bool) -> tuple[Floats, Indices | None]:
        """Return the throughputs of all jobs, per GPU for elastic ones, as a table and the row of each job in it.

        table: of all jobs without a `type_index`, else of job types; by_job: whether the table must have a row for each job.
        """
        if type_index is not None:
            return np.vstack([table, self.per_gpu]), np.where(self.is_elastic, len(table) + self.kinds, type_index)
        if self.is_elastic.all() and not by_job:
            return self.per_gpu, self.kinds
        return self.by_job(self.per_gpu, table), None

    def units(self, num_gpus: Floats) -> Floats:
        """Return (N,) s_i, 1 for elastic jobs, since each of their GPUs is a unit."""
        return np.where(self.is_elastic, 1.0, num_gpus)

    def reasons(self, types: Sequence[str], excluded: Collection[int]) -> dict[int, str]:
        """Return {row: reason} of the elastic jobs for which no number of GPUs fits. excluded: all jobs that can run nowhere."""
        found = {}
        for i in np.flatnonzero(self.is_elastic).tolist() if excluded else ():
            kind = int(self.kinds[i])
            if i not in excluded or self.able[kind].any():
                continue
            sizes = [self.counts[speeds > 0].tolist() for speeds in self.speeds[kind]]
            text = "; ".join(f"{name}: {', '.join(map(str, each))}" for name, each in zip(types, sizes, strict=True) if each)
            found[i] = f"no number of GPUs that it can run on fits ({text})" if text else NO_SPEED
        return found

    def within(self, capacities: Floats) -> GpuCounts:
        """Return the throughputs restricted to the numbers of GPUs that the types have."""
        return replace(self, fits=self.fits & (self.counts <= capacities[:, None]))

    def restricted(self, rows: Indices, numbers: Mask) -> GpuCounts:
        """Return the throughputs with some of the jobs restricted to (K, L) numbers of GPUs."""
        kinds = self.kinds.copy()
        kinds[rows] += np.where(kinds[rows] >= 0, len(self.speeds), 0)
        used, places = np.unique(np.maximum(kinds, 0), return_inverse=True)
        speeds, fits = np.tile(self.speeds, (2, 1, 1)), np.concatenate([self.fits, self.fits & numbers])
        return _sorted(GpuCounts(np.where(kinds >= 0, places.ravel(), -1), self.counts, speeds[used], fits[used]))

    def select(self, rows: Indices) -> GpuCounts:
        """Return the throughputs of some of the jobs."""
        return replace(self, kinds=self.kinds[rows])

    def refused(self, i: int, asked: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return which of the numbers of GPUs that an elastic job requests have no throughput, and which no type can hold."""
        speeds, able = (np.logical_or.reduce(table[self.kinds[i]], axis=0) for table in (self.speeds > 0, self.able))
        measured, offered = (set(self.counts[found].tolist()) for found in (speeds, able))
        return [n for n in asked if n not in measured], [n for n in asked if n in measured - offered]

    def able_at(self, i: int, count: float) -> Mask:
        """Return (K,) whether an elastic job may have time on this number of GPUs of each type."""
        able: Mask = self.able[self.kinds[i]][:, self.counts == count].any(axis=1)
        return able

    def speeds_at(self, jobs: Indices, types: Indices, counts: Indices) -> Floats:
        """Return (P,) steps/s of elastic jobs on numbers of GPUs of types, 0 where that number is not offered; all (P,)."""
        places = np.minimum(np.searchsorted(self.counts, counts), len(self.counts) - 1)
        offered = self.counts[places] == counts
        return np.where(offered, self.speeds[self.kinds[jobs], types, places], 0.0)

    def offered(self, i: int, j: int) -> dict[int, float]:
        """Return {number of GPUs: steps/s} of an elastic job on a type."""
        kind = self.kinds[i]
        return {int(self.counts[place]): float(self.speeds[kind, j, place]) for place in np.flatnonzero(self.able[kind, j])}


def given_counts(
    kinds: ArrayLike | None, counts: ArrayLike | None, speeds: ArrayLike | None, num_jobs: int, capacities: Floats
) -> GpuCounts | None:
    """Return the throughputs from arrays (`AllocationProblem.from_arrays`), None if there are none.

    Raises `InputError` for invalid arrays.
    """
    given = {"count_kinds": kinds, "gpu_counts": counts, "count_throughputs": speeds}
    if all(each is None for each in given.values()):
        return None
    refuse("", *((each is None, name, f"is required with {', '.join(given)}") for name, each in given.items()))
    sizes, table, numbers = np.asarray(counts), np.asarray(speeds, dtype=float), np.asarray(kinds)
    is_list = sizes.ndim == 1 and sizes.dtype.kind in "iu" and len(sizes) > 0
    ascend = is_list and (sizes >= 1).all() and (np.diff(sizes) > 0).all()
    refuse("", (not ascend, "gpu_counts", f"must be whole numbers of GPUs in ascending order, found {counts!r}"))
    shape, absent = (len(capacities), len(sizes)), "a number of GPUs is not offered"
    wrong = faults_of_speeds("count_throughputs", table, shape, f"{len(capacities)}, {len(sizes)}", absent)
    InputError.raise_any(wrong or faults_of_kinds("count_kinds", numbers, num_jobs, len(table), "whose number of GPUs is fixed"))
    fits = np.broadcast_to(sizes <= capacities[:, None], table.shape)
    return _sorted(GpuCounts(numbers.astype(np.int64), sizes.astype(np.int64), table, fits))


def _sorted(found: GpuCounts) -> GpuCounts:
    """Return the same throughputs ordered by content, with equal kinds merged and without counts that have no throughput."""
    some: Mask = np.logical_or.reduce(found.speeds > 0, axis=(0, 1))
    some[0] |= not some.any()
    found = GpuCounts(found.kinds, found.counts[some], found.speeds[:, :, some], found.fits[:, :, some])
    rows = np.column_stack([found.speeds.reshape(len(found.speeds), -1), found.fits.reshape(len(found.fits), -1)])
    _, first, place = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    kinds = np.where(found.kinds >= 0, place.ravel()[found.kinds], -1)
    return GpuCounts(kinds, found.counts, found.speeds[first], found.fits[first])


def merged_counts(kinds: Indices, found: Sequence[GpuCounts]) -> GpuCounts:
    """Return the throughputs of N jobs from those of single jobs; kinds: (N,) the kind of each, -1 for fixed gangs."""
    sizes = np.unique(np.concatenate([each.counts for each in found]))
    shape = len(found), found[0].speeds.shape[1], len(sizes)
    speeds, fits = np.zeros(shape), np.zeros(shape, dtype=bool)
    for n, each in enumerate(found):
        places, kind = np.searchsorted(sizes, each.counts), int(each.kinds[0])
        speeds[n][:, places], fits[n][:, places] = each.speeds[kind], each.fits[kind]
    return _sorted(GpuCounts(kinds, sizes, speeds, fits))


def counts_of(job: Job, profile: Profile) -> tuple[int, ...]:
    """Return the numbers of GPUs that an elastic job requests; those of a range are the gang sizes in the profile."""
    if job.gpu_counts is not None:
        return job.gpu_counts
    known = getattr(profile, "gang_sizes", None)
    refuse(job.where, (known is None, "max_gpus", f"needs throughputs by gang size, which {profile.name} does not have"))
    found = tuple(int(size) for size in known or () if int(size) in job.allowed_counts)
    (least, most), part = job.gpu_range, job.split
    multiples = f" that is a multiple of {part}" if part > 1 else ""
    text = f"the profile {profile.name!r} has no gang of {least} to {most} GPUs{multiples}"
    MissingThroughputError.raise_any(faults_among(job.where, (not found, "max_gpus", text)))
    return found


def gpu_counts(jobs: Sequence[Job], cluster: Cluster, profile: Profile, usable: Any) -> GpuCounts | None:
    """Return the throughputs of the elastic jobs, None if there are none.

    usable: returns (V, K) whether each of V gangs with a fixed number of GPUs can be placed on a type.

    Raises:
        InputError: The profile has no throughputs by gang size.
        MissingThroughputError: It has none of the numbers of GPUs that a job requests.
    """
    from gavel_py.problem.job import GANG_KEY  # a record of pydantic, which arrays do not need

    keys = [GANG_KEY(job) if job.is_elastic else None for job in jobs]
    first = {key: job for key, job in zip(reversed(keys), reversed(jobs), strict=True) if key is not None}
    if not first:
        return None
    look_up: Any = getattr(profile, "count_matrix", None)
    text = f"needs throughputs by number of GPUs, which {profile.name} does not have"
    refuse(next(iter(first.values())).where, (look_up is None, "gpu_counts", text))
    asked = {key: counts_of(job, profile) for key, job in first.items()}
    counts = np.array(sorted({size for sizes in asked.values() for size in sizes}), dtype=np.int64)
    gangs = [job.with_gpus(size) for key, job in first.items() for size in asked[key]]
    kinds = np.repeat(np.arange(len(first)), [len(asked[key]) for key in first])
    places = np.searchsorted(counts, [gang.num_gpus for gang in gangs])
    measured, fitting = look_up(cluster.as_in_profile(gangs), cluster.profile_names), usable(gangs)
    _check_measured(gangs, kinds, np.isnan(measured), profile)
    shape = len(first), len(cluster.accelerator_names), len(counts)
    speeds, fits = np.zeros(shape), np.zeros(shape, dtype=bool)
    speeds[kinds, :, places], fits[kinds, :, places] = np.nan_to_num(measured), fitting
    number = {key: n for n, key in enumerate(first)}
    return _sorted(GpuCounts(np.array([-1 if key is None else number[key] for key in keys]), counts, speeds, fits))


def _check_measured(gangs: Sequence[Job], kinds: Indices, absent: Mask, profile: Profile) -> None:
    """Raise `MissingThroughputError` for jobs without a known throughput for any of their numbers of GPUs."""
    faults = []
    for kind in range(int(kinds[-1]) + 1):
        rows = np.flatnonzero(kinds == kind)
        if absent[rows].all():
            sizes = ", ".join(str(gangs[row].num_gpus) for row in rows.tolist())
            job = gangs[int(rows[0])]
            text = f"the profile {profile.name!r} has no throughput of {job.job_type!r} on any of {sizes} GPUs"
            faults.append(Fault(job.where, "gpu_counts", text))
    MissingThroughputError.raise_any(faults)
