"""From jobs, a cluster and a profile to arrays: throughputs, work left, deadlines, and where each gang fits.

`Hosts` is what the nodes of a cluster mean for gangs beyond the number of GPUs: how many GPUs share a node or a rack, with what
CPUs and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.names import same_name
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import GpuMemory, largest_even_gang
from gavel_py.problem.job import Job
from gavel_py.problem.pair_throughputs import PairSpeeds, PlacementSpeeds, pair_speeds, placement_speeds


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

    def select(self, rows: Indices) -> Hosts:
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


class Profile(Protocol):
    """What a problem needs of a throughput profile (`gavel_py.throughput_profiles`).

    One that knows of spread gangs has also `spread_matrix(jobs, accelerators)`: (N, K) steps/s of each whole gang on more nodes
    than it needs, NaN where that was not measured, or None if it never was. One that knows of jobs that share GPUs has
    `pair_matrix(jobs, accelerators)`: (Q, Q, K) steps/s of each of Q gangs while it shares all its GPUs with each other, likewise.
    One that knows of GPU memory has `memory_matrix(jobs, accelerators)`: (N, K) GB that each gang takes of each GPU, likewise.
    """

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def accelerators(self) -> tuple[str, ...]:
        """The accelerator types that it knows."""
        ...

    def matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> Floats:
        """(N, K) steps/s of each whole gang on each type, consolidated."""
        ...

    def job_throughput(self, job: Job, accelerator: str, placement: str = "consolidated") -> float:
        """Steps/s of the whole gang on one type; `MissingThroughputError` for a placement ("spread") of which nothing is known."""
        ...


@dataclass(frozen=True)
class JobArrays:
    """throughputs, allowed, largest_gangs: (N, K); total_steps, steps_remaining, deadlines_seconds (from now): (N,), NaN = none;
    speeds: of both kinds of placement, None where the profile knows of no difference; memory: of GPUs.
    """

    throughputs: Floats
    allowed: Mask
    largest_gangs: Floats
    total_steps: Floats
    steps_remaining: Floats
    deadlines_seconds: Floats
    speeds: PlacementSpeeds | None
    memory: GpuMemory

    def columns(self, jobs: Sequence[Job], now_seconds: float) -> dict[str, ArrayLike | None]:
        """Return what is known of each of these jobs, by the names that `JOB_COLUMNS` has, but for what it has been through."""
        return {
            "num_gpus": [job.num_gpus for job in jobs],
            "weights": [job.weight for job in jobs],
            "priorities": [job.priority for job in jobs],
            "steps_remaining": self.steps_remaining,
            "total_steps": self.total_steps,
            "arrival_seconds": [job.arrival_seconds for job in jobs],
            "elapsed_seconds": [max(0.0, now_seconds - job.arrival_seconds) for job in jobs],
            "deadlines_seconds": self.deadlines_seconds,
        }

    def pairs(self, jobs: Sequence[Job], accelerators: Sequence[str], profile: Profile, min_gain: float) -> PairSpeeds | None:
        """Return the speeds of jobs that share GPUs, None where the profile knows of none."""
        found = pair_speeds(jobs, accelerators, self.throughputs, getattr(profile, "pair_matrix", None), self.memory)
        return None if found is None else replace(found, min_gain=min_gain)


def job_arrays(jobs: Sequence[Job], cluster: Cluster, profile: Profile, now_seconds: float) -> JobArrays:
    """Look up and convert everything about the jobs that depends on the cluster or the profile."""
    names = cluster.accelerator_names
    jobs = _spelled(jobs, {*names, *cluster.left_out, *profile.accelerators})
    allowed = _allowed(jobs, names)
    spans = largest_gangs(jobs, cluster)
    gangs = np.array([job.num_gpus for job in jobs], dtype=float)[:, None]
    memory = gpu_memory(jobs, cluster, profile)
    usable = allowed & (gangs <= spans) & memory.fits
    throughputs = _throughputs(jobs, names, profile, usable)
    total_steps = _total_steps(jobs, profile, usable)
    done = np.array([job.steps_done for job in jobs], dtype=float)
    fastest = np.where(usable, throughputs, 0.0).max(axis=1, initial=0.0)
    deadlines = _deadlines(jobs, total_steps, fastest) - now_seconds
    speeds = placement_speeds(jobs, cluster, throughputs, getattr(profile, "spread_matrix", None))
    return JobArrays(throughputs, allowed, spans, total_steps, np.maximum(0.0, total_steps - done), deadlines, speeds, memory)


def _spelled(jobs: Sequence[Job], known: set[str]) -> Sequence[Job]:
    """Return the jobs with the known spelling of types that they write in another case; raises for types that are not known."""
    found, faults = list(jobs), []
    for i, job in enumerate(jobs):
        changes: dict[str, Any] = {}
        for field, given in (
            ("allowed_accelerators", job.allowed_accelerators),
            ("duration_accelerator", job.duration_accelerator),
        ):
            asked = (given,) if isinstance(given, str) else given or ()
            if known.issuperset(asked):
                continue
            names = [same_name(name, known) for name in asked]
            changes[field] = names[0] if isinstance(given, str) else tuple(names)
            problem = "is in neither the cluster nor the profile"
            unknown = (name for name, other in zip(asked, names, strict=True) if other is None)
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
    """Return (N, K) GPUs of each type that one gang may span in an empty cluster: its locality, CPUs and memory allow no more."""
    names = cluster.accelerator_names
    rows: dict[tuple[str, float, float, int], list[float]] = {}
    counted = any(node.cpus is not None for node in cluster.nodes), any(node.memory_gb is not None for node in cluster.nodes)
    asked = [
        (job.locality, job.cpus_per_gpu * counted[0], job.memory_gb_per_gpu * counted[1], job.whole_gpus if job.even_split else 0)
        for job in jobs
    ]
    for where, cpus, memory, even in set(asked):
        needs = {"cpus_per_gpu": cpus, "memory_gb_per_gpu": memory}
        spans = (
            largest_even_gang(cluster, name, even, where, **needs) if even > 1 else cluster.largest_gang(name, where, **needs)
            for name in names
        )
        rows[where, cpus, memory, even] = list(spans)
    return np.array([rows[key] for key in asked], dtype=float).reshape(len(jobs), len(names))


def gpu_memory(jobs: Sequence[Job], cluster: Cluster, profile: Profile) -> GpuMemory:
    """Return what each job takes of the memory of each of its GPUs, as it says itself, or else as the profile says."""
    names = cluster.accelerator_names
    look_up = getattr(profile, "memory_matrix", None)
    found = None if look_up is None else look_up(jobs, names)
    known = np.full((len(jobs), len(names)), np.nan) if found is None else found
    own = np.array([np.nan if job.gpu_memory_gb is None else job.gpu_memory_gb for job in jobs], dtype=float)[:, None]
    return GpuMemory(np.where(np.isnan(own), known, own), cluster.gpu_memory_gb)


def _throughputs(jobs: Sequence[Job], names: Sequence[str], profile: Profile, usable: Mask) -> Floats:
    """Look up (N, K) steps/s; where a job can never be placed, no measurement is asked for."""
    asking = [job if row.all() else _restricted(job, names, row) for job, row in zip(jobs, usable, strict=True)]
    return profile.matrix(asking, names)


def _restricted(job: Job, names: Sequence[str], usable: Mask) -> Job:
    return job.model_copy(update={"allowed_accelerators": tuple(n for n, u in zip(names, usable, strict=True) if u)})


def _total_steps(jobs: Sequence[Job], profile: Profile, usable: Mask) -> Floats:
    """total_steps, or duration x throughput on the named accelerator, or NaN; no look-up for jobs that can run nowhere."""
    total = np.full(len(jobs), np.nan)
    faults = []
    for i, job in enumerate(jobs):
        if job.total_steps is not None:
            total[i] = job.total_steps
        elif job.duration_seconds is not None and job.duration_accelerator is not None and usable[i].any():
            total[i] = job.duration_seconds * profile.job_throughput(job, job.duration_accelerator)
            if not total[i] > 0:
                problem = f"its throughput on {job.duration_accelerator!r} is 0, so the duration gives no number of steps"
                faults.append(Fault(job.where, "duration_accelerator", problem))
    InputError.raise_any(faults)
    return total


def _deadlines(jobs: Sequence[Job], total_steps: Floats, fastest: Floats) -> Floats:
    """Absolute deadlines; a factor counts the job's duration on its fastest accelerator, from its arrival."""
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
