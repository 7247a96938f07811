"""Conversion of jobs, a cluster and a profile to arrays: throughputs, remaining steps, deadlines, and where each gang fits.

`Hosts` has the node topology for gangs: GPUs per node and rack, CPUs and memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import InputError, UnknownNameError, faults_among, unknown_names
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.arrays import JOB, TYPE, ArrayChecker, Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import EVEN_SPLIT, NO_RACKS, GpuMemory, even_nodes, screen
from gavel_py.problem.gpu_counts import GpuCounts, gpu_counts
from gavel_py.problem.job import HOST_FIELDS, Job, host_requests_of, with_values
from gavel_py.problem.pair_throughputs import PlacementSpeeds, placement_speeds
from gavel_py.problem.profile import Profile


@dataclass(frozen=True, eq=False)
class Hosts:
    """The nodes of K accelerator types, and the resource requests of N jobs.

    Attributes:
        gpus: By locality and type, the GPUs of each node ("node") or rack ("rack"; a node without rack counts as one).
        cpus, memory_gb: (K,) sums over the nodes of a type, infinite if unknown for one of them.
        localities: (N,) those of the jobs.
        per_gpu: (N, 2) CPUs and memory that each GPU of a job requires (`host_requests_of`).
        speeds: Throughputs of consolidated and spread gangs, None if no difference is known.
        gpu_memory: GB per GPU of jobs and types.
        rooms: For each type, the GPUs, CPUs and memory, GB, of each node.
    """

    gpus: dict[Literal["node", "rack"], tuple[tuple[int, ...], ...]]
    cpus: Floats
    memory_gb: Floats
    localities: NDArray[np.str_]
    per_gpu: Floats
    speeds: PlacementSpeeds | None = None
    gpu_memory: GpuMemory | None = None
    rooms: tuple[tuple[tuple[int, float, float], ...], ...] = ()

    def select(self, rows: Indices) -> Hosts:
        """Return the same nodes with some of the jobs."""
        return replace(
            self,
            localities=self.localities[rows],
            per_gpu=self.per_gpu[rows],
            speeds=self.speeds and self.speeds.select(rows),
            gpu_memory=self.gpu_memory and replace(self.gpu_memory, needed=self.gpu_memory.needed[rows]),
        )


def hosts_of(
    cluster: Cluster, localities: NDArray[np.str_], per_gpu: Floats, speeds: PlacementSpeeds | None, gpu_memory: GpuMemory | None
) -> Hosts:
    """Return the nodes of a cluster with the requests of jobs."""
    return Hosts(
        cluster.node_sizes,  # type: ignore[arg-type]
        cluster.cpus,
        cluster.memory_gb,
        localities,
        per_gpu,
        speeds,
        gpu_memory,
        cluster.node_rooms,
    )


@dataclass(frozen=True)
class Gangs:
    """Where N jobs can run on a cluster, how fast, and why they cannot.

    Attributes:
        throughputs: (N, K) steps/s as in `AllocationProblem`.
        consolidated: (N, K) steps/s of consolidated gangs.
        runnable: (N, K) whether a job with steps left can run on a type.
        reasons: {row: why} of the jobs that can run nowhere.
        placeable: (N,) whether a type can hold the gang, even if it has no throughput there.
        uncertainty: (N, K) as in `AllocationProblem`.
        memory: GB per GPU of jobs and types.
        counts: Throughputs of elastic jobs, None if there are none.
        hosts: As in `AllocationProblem`.
    """

    throughputs: Floats
    consolidated: Floats
    runnable: Mask
    reasons: Mapping[int, str]
    placeable: Mask
    uncertainty: Floats
    memory: GpuMemory
    counts: GpuCounts | None
    hosts: Hosts | None

    def fastest(self, throughputs: Floats) -> Floats:
        """Return (N,) steps/s on the fastest type; throughputs: those of the class, or only of consolidated gangs."""
        best = throughputs if self.counts is None else self.counts.by_job(self.counts.best, throughputs)
        fastest: Floats = np.where(self.runnable, best, 0.0).max(axis=1, initial=0.0)
        return fastest

    def arrays(self, cluster: Cluster) -> dict[str, Any]:
        """Return the arrays of a problem that follow from the cluster and the profile."""
        return {
            "throughputs": self.throughputs,
            "runnable": self.runnable,
            "uncertainty": self.uncertainty,
            "counts": self.counts,
            "hosts": self.hosts,
            "accelerator_types": cluster.accelerator_names,
            "capacities": cluster.capacities,
            "prices_per_hour": cluster.prices_per_hour,
        }


def look_up(jobs: Sequence[Job], cluster: Cluster, profile: Profile, *, whole_gangs: bool) -> Gangs:
    """Return where jobs can run, and how fast. Raises `InputError` for what the profile does not have, or has wrong."""
    jobs = _with_known_names(jobs, cluster, profile)
    names = cluster.accelerator_names
    allowed = _allowed(jobs, names)
    spans = largest_gangs(jobs, cluster)
    sizes = np.array([job.num_gpus for job in jobs], dtype=float)
    memory = gpu_memory(jobs, cluster, profile)
    usable = allowed & (sizes[:, None] <= spans) & memory.fits
    counts = gpu_counts(jobs, cluster, profile, lambda gangs: usable_types(gangs, cluster, profile))
    if counts is not None:
        usable = counts.by_job(counts.able.any(axis=2), usable)
        memory = replace(memory, needed=np.where(counts.is_elastic[:, None], np.nan, memory.needed))
        spans, sizes = np.where(counts.is_elastic[:, None], usable, spans), counts.units(sizes)  # in units of one GPU
    restricted = _restricted(jobs, cluster.profile_names, usable if counts is None else usable & ~counts.is_elastic[:, None])
    consolidated = profile.matrix(restricted, cluster.profile_names)
    uncertainty = _uncertainty(restricted, cluster, profile)
    speeds = None
    if counts is not None:
        consolidated = counts.by_job(counts.per_gpu, consolidated)
        uncertainty = _elastic_uncertainty(jobs, cluster, profile, counts, uncertainty)
    elif whole_gangs:  # of elastic jobs, only consolidated gangs are known
        speeds = placement_speeds(jobs, cluster, consolidated, getattr(profile, "spread_matrix", None))
    check = ArrayChecker()  # a profile may be the caller's own
    axes = [(JOB, [job.job_id for job in jobs]), (TYPE, names)]
    throughputs = check.numbers("throughputs", consolidated if speeds is None else speeds.faster, 0, "at least 0", axes)
    uncertainty = check.numbers("uncertainty", uncertainty, 0, "at least 0", axes)
    check.finish()
    runnable, reasons = screen(names, throughputs, allowed, sizes, spans, memory=memory)
    if not any(node.rack for node in cluster.nodes):
        on_racks = [row for row, why in reasons.items() if jobs[row].locality == "rack" and "fits nowhere" in why]
        reasons |= {row: reasons[row] + NO_RACKS for row in on_racks}
    reasons |= {} if counts is None else counts.reasons(names, reasons)
    localities, per_gpu = np.array([job.locality for job in jobs], dtype=np.str_), host_requests_of(jobs)
    hosts = hosts_of(cluster, localities, per_gpu, speeds, memory) if whole_gangs else None
    return Gangs(
        throughputs, consolidated, runnable, reasons, np.logical_or.reduce(usable, axis=1), uncertainty, memory, counts, hosts
    )


COMPLETED = ("total_steps", "deadline_seconds")
"""Columns of requests that `complete` fills in."""


def depends_on_throughputs(job: Job) -> bool:
    """Return whether the steps or the deadline of a job depend on its throughputs."""
    return job.duration_seconds is not None or job.deadline_factor is not None


def complete(
    jobs: Sequence[Job], requests: Mapping[str, Floats], placeable: Mask, fastest: Floats, cluster: Cluster, profile: Profile
) -> list[int]:
    """Fill in the steps and deadlines of jobs that depend on throughputs, in their `requests_of`; return their rows.

    Steps are duration x throughput on the named accelerator, without a look-up for jobs that no type can hold. A deadline by factor
    is a multiple of the duration on the fastest accelerator, from the arrival.

    placeable: as in `Gangs`; fastest: (N,) steps/s of consolidated gangs on the fastest type.
    """
    steps, deadlines = (requests[name] for name in COMPLETED)
    faults = []
    rows = [row for row, job in enumerate(jobs) if depends_on_throughputs(job)]
    for i, job in zip(rows, _with_known_names([jobs[row] for row in rows], cluster, profile), strict=True):
        if job.duration_seconds is not None and job.duration_accelerator is not None and placeable[i]:
            steps[i] = job.duration_seconds * profile.job_throughput(job, job.duration_accelerator)
            problem = f"its throughput on {job.duration_accelerator!r} is 0, so the duration gives no steps"
            faults += faults_among(job.where, (not steps[i] > 0, "duration_accelerator", problem))
        if job.deadline_factor is not None:
            has_steps = job.total_steps is not None or job.duration_seconds is not None
            faults += faults_among(job.where, (not has_steps, "deadline_factor", "needs total_steps (or a duration) as well"))
            if fastest[i] > 0:
                deadlines[i] = job.arrival_seconds + job.deadline_factor * steps[i] / fastest[i]
    InputError.raise_any(faults)
    return rows


def usable_types(gangs: Sequence[Job], cluster: Cluster, profile: Profile) -> Mask:
    """Return (V, K) whether each gang is allowed on a type that can hold it."""
    fitting = np.array([[gang.num_gpus] for gang in gangs], dtype=float) <= largest_gangs(gangs, cluster)
    return _allowed(gangs, cluster.accelerator_names) & fitting & gpu_memory(gangs, cluster, profile).fits


def job_units(jobs: Sequence[Job], profile: Profile) -> tuple[str, ...] | None:
    """Return the unit of the throughputs of each job, None if the profile has a single one or no units."""
    look_up = getattr(profile, "job_units", None)
    return None if look_up is None else look_up(jobs)


def _with_known_names(jobs: Sequence[Job], cluster: Cluster, profile: Profile) -> Sequence[Job]:
    """Return the jobs with known names for types that differ in case only; raises `UnknownNameError` for unknown types."""
    known = {*cluster.accelerator_names, *cluster.left_out, *profile.accelerators}
    named = {name for job in jobs for name in job.allowed_accelerators or ()} | {job.duration_accelerator for job in jobs}
    if named - known <= {None}:
        return jobs
    written = [
        (job, field, name)
        for job in jobs
        for field, names in (
            ("allowed_accelerators", job.allowed_accelerators),
            ("duration_accelerator", job.duration_accelerator and (job.duration_accelerator,)),
        )
        for name in names or ()
        if name not in known
    ]
    meant = {name: same_accelerator(name, known) or name for _, _, name in written}
    problem = "is in neither the cluster nor the profile"
    UnknownNameError.raise_any(
        [
            fault
            for job, field, name in written
            if meant[name] not in known
            for fault in unknown_names(job.where, field, [name], sorted(known), problem, noun="accelerator")
        ]
    )
    return [
        with_values(
            job.on_renamed(lambda name: meant.get(name, name)),
            {"duration_accelerator": job.duration_accelerator and meant.get(job.duration_accelerator, job.duration_accelerator)},
        )
        for job in jobs
    ]


def _allowed(jobs: Sequence[Job], names: Sequence[str]) -> Mask:
    rows = {key: [key is None or name in key for name in names] for key in {job.allowed_accelerators for job in jobs}}
    return np.array([rows[job.allowed_accelerators] for job in jobs], dtype=bool).reshape(len(jobs), len(names))


def largest_gangs(jobs: Sequence[Job], cluster: Cluster) -> Floats:
    """Return (N, K) GPUs of each type that one gang may span in an empty cluster, given its locality, CPUs and memory."""
    names = cluster.accelerator_names
    rows: dict[tuple[str, tuple[float, ...], int, int], list[float]] = {}
    known = any(node.cpus is not None for node in cluster.nodes), any(node.memory_gb is not None for node in cluster.nodes)
    requests = map(tuple, (host_requests_of(jobs) * known).tolist())
    keys = [
        (job.locality, each, job.whole_gpus if (split := job.split) else 0, split) for job, each in zip(jobs, requests, strict=True)
    ]
    for locality, each, size, split in set(keys):
        needs = dict(zip(HOST_FIELDS, each, strict=True))
        rows[locality, each, size, split] = [
            largest_even_gang(cluster, name, size, locality, split=split, **needs)
            if size > 1
            else cluster.largest_gang(name, locality, **needs)
            for name in names
        ]
    return np.array([rows[key] for key in keys], dtype=float).reshape(len(jobs), len(names))


def largest_even_gang(
    cluster: Cluster, accelerator: str, size: int, locality: str, *, split: int = EVEN_SPLIT, **needs: float
) -> float:
    """Return the largest gang of at most this size that an empty cluster can hold with an even split.

    needs: what each GPU requires on its node, as for `Cluster.largest_gang`.
    """
    if split == EVEN_SPLIT and size <= cluster.largest_gang(accelerator, "node", **needs):
        return float(size)
    nodes = cluster.nodes_of(accelerator)
    regions: dict[str, int] = {}
    numbers = np.array([regions.setdefault(cluster.region_of(node, locality), len(regions)) for node in nodes], dtype=np.int64)
    per_gpu = [needs.get(name, 0.0) for name in HOST_FIELDS]
    room = np.array([int(node.usable_gpus(*per_gpu)) for node in nodes], dtype=np.int64)
    for smaller in range(size, 0, -1):
        if even_nodes(smaller, room, numbers, split) is not None:
            return float(smaller)
    return 0.0 if split > 0 else cluster.largest_gang(accelerator, locality, **needs)


def gpu_memory(jobs: Sequence[Job], cluster: Cluster, profile: Profile) -> GpuMemory:
    """Return the GPU memory of types, and that of jobs: the job's own value, or else that of the profile."""
    names = cluster.profile_names
    look_up = getattr(profile, "memory_matrix", None)
    found = None if look_up is None else look_up(cluster.as_in_profile(jobs), names)
    known = np.full((len(jobs), len(names)), np.nan) if found is None else found
    own = np.array([np.nan if job.gpu_memory_gb is None else job.gpu_memory_gb for job in jobs], dtype=float)[:, None]
    return memory_on(cluster, np.where(np.isnan(own), known, own))


def memory_on(cluster: Cluster, needed: Floats) -> GpuMemory:
    """Return the GPU memory of the types of a cluster, and that of jobs: (N, K) GB on each GPU, NaN if unknown."""
    return GpuMemory(needed, cluster.gpu_memory_gb)


def _restricted(jobs: Sequence[Job], names: Sequence[str], usable: Mask) -> list[Job]:
    """Return the jobs, restricted to usable types: a profile may lack measurements where a job can never be placed.

    names: (K,) of the types, as in the profile.
    """
    return [
        job if job.allowed_accelerators is None and is_everywhere else job.allowing(compress(names, row))
        for job, row, is_everywhere in zip(jobs, usable, np.logical_and.reduce(usable, axis=1).tolist(), strict=True)
    ]


def _uncertainty(jobs: Sequence[Job], cluster: Cluster, profile: Profile) -> Floats | None:
    """Return `AllocationProblem.uncertainty` as the profile estimates it, None if it estimates nothing."""
    look_up = getattr(profile, "uncertainty_matrix", None)
    capacities = cluster.capacities
    found = None if look_up is None else look_up(jobs, cluster.profile_names, capacities / (capacities.sum() or 1.0))
    return None if found is None else np.nan_to_num(found)


def _elastic_uncertainty(
    jobs: Sequence[Job], cluster: Cluster, profile: Profile, counts: GpuCounts, fixed: Floats | None
) -> Floats | None:
    """Return the uncertainty with that of elastic jobs: on each type, that of the least certain number of GPUs.

    fixed: of the other jobs.
    """
    if getattr(profile, "uncertainty_matrix", None) is None:
        return fixed
    models: dict[tuple[int, str], Job] = {}  # jobs of several types may have the same throughputs
    elastic, names = np.flatnonzero(counts.is_elastic), cluster.profile_names
    for i in elastic.tolist():
        models.setdefault((counts.kinds.item(i), jobs[i].job_type), jobs[i])
    row_of = {key: row for row, key in enumerate(models)}
    kinds, found = np.array([kind for kind, _ in models], dtype=np.int64), np.zeros((len(models), len(names)))
    for place, count in enumerate(counts.counts.tolist()):
        gangs = [job.with_gpus(count).allowing(None) for job in models.values()]
        of_count = _uncertainty(_restricted(gangs, names, counts.able[kinds, :, place]), cluster, profile)
        if of_count is not None:
            found = np.maximum(found, of_count)
    if fixed is None and not found.any():
        return None
    uncertainty = np.zeros((len(jobs), len(names))) if fixed is None else fixed
    uncertainty[elastic] = found[[row_of[counts.kinds.item(i), jobs[i].job_type] for i in elastic.tolist()]]
    return uncertainty
