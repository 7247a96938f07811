"""Conversion of jobs, a cluster and a profile to arrays: throughputs, remaining steps, deadlines, and where each gang fits.

`Hosts` has the node topology for gangs: GPUs per node and rack, CPUs and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.eligibility import GpuMemory, largest_even_gang
from gavel_py.problem.gpu_counts import GpuCounts, gpu_counts
from gavel_py.problem.pair_throughputs import PairSpeeds, PlacementSpeeds, pair_speeds, placement_speeds

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats, Indices, Mask
    from gavel_py.problem.cluster import Cluster
    from gavel_py.problem.job import Job


@dataclass(frozen=True, eq=False)
class Hosts:
    """The nodes of K accelerator types, and the resource requests of N jobs.

    Attributes:
        gpus: By locality and type, the GPUs of each node ("node") or rack ("rack"; a node without rack counts as one).
        cpus, memory_gb: (K,) sums over the nodes of a type, infinite if unknown for one of them.
        localities, cpus_per_gpu, memory_gb_per_gpu: (N,) requests of the jobs.
        speeds: Throughputs of consolidated and spread gangs, None if no difference is known.
        gpu_memory: GB per GPU of jobs and types.
        rooms: For each type, the GPUs, CPUs and memory, GB, of each node.
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

    def select(self, rows: Indices) -> Hosts:
        """Return the same nodes with some of the jobs."""
        memory = self.gpu_memory
        return replace(
            self,
            localities=self.localities[rows],
            cpus_per_gpu=self.cpus_per_gpu[rows],
            memory_gb_per_gpu=self.memory_gb_per_gpu[rows],
            speeds=None if self.speeds is None else self.speeds.select(rows),
            gpu_memory=None if memory is None else replace(memory, needed=memory.needed[rows]),
        )


def hosts_of(
    jobs: Sequence[Job], cluster: Cluster, speeds: PlacementSpeeds | None = None, gpu_memory: GpuMemory | None = None
) -> Hosts:
    """Return the nodes of a cluster with the resource requests of jobs; speeds: of consolidated and spread gangs."""
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


class Profile(Protocol):
    """The interface of throughput profiles that a problem reads (`gavel_py.throughput_profiles`).

    Six further methods are optional. `job_units(jobs)` returns the unit of the throughputs of each of N jobs, or None if all are
    the same. `count_matrix(jobs, accelerators)` returns `matrix` with NaN for unmeasured throughputs; elastic jobs need it, and
    `gang_sizes`, all measured gang sizes, if they request a range. The others return NaN for unmeasured values, or None if nothing
    was measured:
    `spread_matrix(jobs, accelerators)`: (N, K) steps/s of each gang on more nodes than it needs;
    `pair_matrix(jobs, accelerators)`: (Q, Q, K) steps/s of each of Q gangs while all its GPUs are shared with each other gang;
    `memory_matrix(jobs, accelerators)`: (N, K) GB of memory that each gang uses on each of its GPUs;
    `uncertainty_matrix(jobs, accelerators, shares)`: (N, K) standard deviation of log(T_ij / Σ_k T_ik share_k), from
    estimates of T.
    """

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Names of the known accelerator types."""
        ...

    def matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> Floats:
        """Return (N, K) steps/s of each whole gang on each type, consolidated.

        Args:
            jobs: N jobs.
            accelerators: Names of K types.

        Raises:
            MissingThroughputError: A throughput is unknown.
        """
        ...

    def job_throughput(self, job: Job, accelerator: str, placement: str = "consolidated") -> float:
        """Return the steps/s of the whole gang on one type.

        Args:
            job: The job.
            accelerator: Name of the type.
            placement: "consolidated" or "spread".

        Raises:
            MissingThroughputError: The throughput is unknown.
        """
        ...


@dataclass(frozen=True)
class JobArrays:
    """The arrays of N jobs that depend on cluster and profile.

    Attributes:
        throughputs, allowed, largest_gangs: (N, K).
        total_steps, steps_remaining, deadlines_seconds: (N,) the last from now; NaN = none.
        speeds: Throughputs of consolidated and spread gangs, None if the profile has no difference.
        memory: GB per GPU of jobs and types.
        uncertainty: (N, K) as in `AllocationProblem`, None if nothing is estimated.
        counts: Throughputs of elastic jobs, None if there are none.
        lack_racks: Whether the locality of a job is "rack", and no node has a rack.
    """

    throughputs: Floats
    allowed: Mask
    largest_gangs: Floats
    total_steps: Floats
    steps_remaining: Floats
    deadlines_seconds: Floats
    speeds: PlacementSpeeds | None
    memory: GpuMemory
    uncertainty: Floats | None
    counts: GpuCounts | None = None
    lack_racks: Sequence[bool] = ()

    def columns(self, jobs: Sequence[Job], now_seconds: float) -> dict[str, ArrayLike | None]:
        """Return the arrays of `JOB_COLUMNS` by name, except those about the past of jobs, which a caller provides."""
        return {
            "tenants": tuple(job.tenant for job in jobs),
            "num_gpus": [1 if job.is_elastic else job.num_gpus for job in jobs],  # each of its GPUs is a unit
            "weights": [job.weight for job in jobs],
            "priorities": [job.priority for job in jobs],
            "steps_remaining": self.steps_remaining,
            "total_steps": self.total_steps,
            "arrival_seconds": [job.arrival_seconds for job in jobs],
            "elapsed_seconds": [max(0.0, now_seconds - job.arrival_seconds) for job in jobs],
            "deadlines_seconds": self.deadlines_seconds,
        }

    def pairs(self, jobs: Sequence[Job], accelerators: Sequence[str], profile: Profile, min_gain: float) -> PairSpeeds | None:
        """Return the throughputs of co-located jobs, None if the profile has none."""
        found = pair_speeds(jobs, accelerators, self.throughputs, getattr(profile, "pair_matrix", None), self.memory)
        return None if found is None else replace(found, min_gain=min_gain)


def job_arrays(jobs: Sequence[Job], cluster: Cluster, profile: Profile, now_seconds: float) -> JobArrays:
    """Return the arrays of jobs that depend on the cluster or the profile."""
    names = cluster.accelerator_names
    jobs = _with_known_names(jobs, {*names, *cluster.left_out, *profile.accelerators})
    allowed = _allowed(jobs, names)
    spans = largest_gangs(jobs, cluster)
    gangs = np.array([job.num_gpus for job in jobs], dtype=float)[:, None]
    memory = gpu_memory(jobs, cluster, profile)
    usable = allowed & (gangs <= spans) & memory.fits
    counts = gpu_counts(jobs, cluster, profile, lambda gangs: usable_types(gangs, cluster, profile))
    if counts is not None:
        usable = counts.by_job(counts.able.any(axis=2), usable)
        memory = replace(memory, needed=np.where(counts.is_elastic[:, None], np.nan, memory.needed))
        spans = np.where(counts.is_elastic[:, None], usable, spans)  # in units of one GPU
    there = cluster.profile_names
    restricted = _restricted(jobs, there, usable if counts is None else usable & ~counts.is_elastic[:, None])
    throughputs = profile.matrix(restricted, there)
    if counts is not None:
        throughputs = counts.by_job(counts.per_gpu, throughputs)
    total_steps = _total_steps(jobs, profile, usable)
    done = np.array([job.steps_done for job in jobs], dtype=float)
    best = throughputs if counts is None else counts.by_job(counts.best, throughputs)
    fastest = np.where(usable, best, 0.0).max(axis=1, initial=0.0)
    deadlines = _deadlines(jobs, total_steps, fastest) - now_seconds
    speeds = None  # of elastic jobs, only consolidated gangs are known
    if counts is None:
        speeds = placement_speeds(jobs, cluster, throughputs, getattr(profile, "spread_matrix", None))
    uncertainty = _uncertainty(restricted, cluster, profile)
    if counts is not None:
        uncertainty = _elastic_uncertainty(jobs, cluster, profile, counts, uncertainty)
    remaining = np.maximum(0.0, total_steps - done)
    lack_racks = [] if any(node.rack for node in cluster.nodes) else [job.locality == "rack" for job in jobs]
    return JobArrays(
        throughputs, allowed, spans, total_steps, remaining, deadlines, speeds, memory, uncertainty, counts, lack_racks
    )


def usable_types(gangs: Sequence[Job], cluster: Cluster, profile: Profile) -> Mask:
    """Return (V, K) whether each gang is allowed on a type that can hold it."""
    sizes = np.array([gang.num_gpus for gang in gangs], dtype=float)[:, None]
    usable: Mask = _allowed(gangs, cluster.accelerator_names) & (sizes <= largest_gangs(gangs, cluster))
    return usable & gpu_memory(gangs, cluster, profile).fits


def job_units(jobs: Sequence[Job], profile: Profile) -> tuple[str, ...] | None:
    """Return the unit of the throughputs of each job, None if the profile has a single one or no units."""
    look_up = getattr(profile, "job_units", None)
    return None if look_up is None else look_up(jobs)


def _with_known_names(jobs: Sequence[Job], known: set[str]) -> Sequence[Job]:
    """Return the jobs with known names for types that differ in case only; raises `UnknownNameError` for unknown types."""
    found, faults = list(jobs), []
    for i, job in enumerate(jobs):
        changes: dict[str, Any] = {}
        for field in ("allowed_accelerators", "duration_accelerator"):
            given = getattr(job, field)
            written = (given,) if isinstance(given, str) else given or ()
            if known.issuperset(written):
                continue
            names = [same_accelerator(name, known) for name in written]
            changes[field] = names[0] if isinstance(given, str) else tuple(names)
            problem = "is in neither the cluster nor the profile"
            unknown = (name for name, other in zip(written, names, strict=True) if other is None)
            faults += [Fault(job.where, field, f"accelerator {n!r} {problem}{nearest(n, sorted(known))}") for n in unknown]
        if changes:
            found[i] = job.model_copy(update=changes)
    if faults:
        raise UnknownNameError(*faults)
    return found


def _allowed(jobs: Sequence[Job], names: Sequence[str]) -> Mask:
    rows: dict[tuple[str, ...] | None, list[bool]] = {None: [True] * len(names)}
    for job in jobs:
        allowed = job.allowed_accelerators
        if allowed is not None and allowed not in rows:
            rows[allowed] = [name in allowed for name in names]
    return np.array([rows[job.allowed_accelerators] for job in jobs], dtype=bool).reshape(len(jobs), len(names))


def largest_gangs(jobs: Sequence[Job], cluster: Cluster) -> Floats:
    """Return (N, K) GPUs of each type that one gang may span in an empty cluster, given its locality, CPUs and memory."""
    names = cluster.accelerator_names
    rows: dict[tuple[str, float, float, int, int], list[float]] = {}
    known = any(node.cpus is not None for node in cluster.nodes), any(node.memory_gb is not None for node in cluster.nodes)
    keys = [
        (job.locality, job.cpus_per_gpu * known[0], job.memory_gb_per_gpu * known[1], job.whole_gpus if job.split else 0, job.split)
        for job in jobs
    ]
    for locality, cpus, memory, size, split in set(keys):
        needs = {"cpus_per_gpu": cpus, "memory_gb_per_gpu": memory}
        rows[locality, cpus, memory, size, split] = [
            largest_even_gang(cluster, name, size, locality, split=split, **needs)
            if size > 1
            else cluster.largest_gang(name, locality, **needs)
            for name in names
        ]
    return np.array([rows[key] for key in keys], dtype=float).reshape(len(jobs), len(names))


def gpu_memory(jobs: Sequence[Job], cluster: Cluster, profile: Profile) -> GpuMemory:
    """Return the GPU memory of types, and that of jobs: the job's own value, or else that of the profile."""
    names = cluster.profile_names
    look_up = getattr(profile, "memory_matrix", None)
    found = None if look_up is None else look_up(cluster.as_in_profile(jobs), names)
    known = np.full((len(jobs), len(names)), np.nan) if found is None else found
    own = np.array([np.nan if job.gpu_memory_gb is None else job.gpu_memory_gb for job in jobs], dtype=float)[:, None]
    return GpuMemory(np.where(np.isnan(own), known, own), cluster.gpu_memory_gb)


def _restricted(jobs: Sequence[Job], names: Sequence[str], usable: Mask) -> list[Job]:
    """Return the jobs, restricted to usable types: a profile may lack measurements where a job can never be placed.

    names: (K,) of the types, as in the profile.
    """

    def restricted(job: Job, row: Mask) -> Job:
        return job.model_copy(update={"allowed_accelerators": tuple(n for n, u in zip(names, row, strict=True) if u)})

    return [
        job if job.allowed_accelerators is None and row.all() else restricted(job, row)
        for job, row in zip(jobs, usable, strict=True)
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
        gangs = [job.model_copy(update={"num_gpus": count, "allowed_accelerators": None}) for job in models.values()]
        of_count = _uncertainty(_restricted(gangs, names, counts.able[kinds, :, place]), cluster, profile)
        if of_count is not None:
            found = np.maximum(found, of_count)
    if fixed is None and not found.any():
        return None
    uncertainty = np.zeros((len(jobs), len(names))) if fixed is None else fixed
    uncertainty[elastic] = found[[row_of[counts.kinds.item(i), jobs[i].job_type] for i in elastic.tolist()]]
    return uncertainty


def _total_steps(jobs: Sequence[Job], profile: Profile, usable: Mask) -> Floats:
    """Return total_steps, or duration x throughput on the named accelerator, or NaN; no look-up for jobs that can run nowhere."""
    total = np.full(len(jobs), np.nan)
    faults = []
    for i, job in enumerate(jobs):
        if job.total_steps is not None:
            total[i] = job.total_steps
        elif job.duration_seconds is not None and job.duration_accelerator is not None and usable[i].any():
            total[i] = job.duration_seconds * profile.job_throughput(job, job.duration_accelerator)
            if not total[i] > 0:
                problem = f"its throughput on {job.duration_accelerator!r} is 0, so the duration gives no steps"
                faults.append(Fault(job.where, "duration_accelerator", problem))
    InputError.raise_any(faults)
    return total


def _deadlines(jobs: Sequence[Job], total_steps: Floats, fastest: Floats) -> Floats:
    """Return absolute deadlines; a factor is a multiple of the job's duration on its fastest accelerator, from its arrival."""
    deadlines = np.full(len(jobs), np.nan)
    faults = []
    for i, job in enumerate(jobs):
        if job.deadline_seconds is not None:
            deadlines[i] = job.deadline_seconds
        elif job.deadline_factor is not None and job.total_steps is None and job.duration_seconds is None:
            faults.append(Fault(job.where, "deadline_factor", "needs total_steps (or a duration) as well"))
        elif job.deadline_factor is not None and fastest[i] > 0:
            deadlines[i] = job.arrival_seconds + job.deadline_factor * total_steps[i] / fastest[i]
    InputError.raise_any(faults)
    return deadlines
