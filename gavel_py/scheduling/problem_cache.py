"""The rows of jobs in a problem, kept from one allocation to the next: few jobs come and go, and the others are as they were."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, get_args

import numpy as np

from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.problem.from_jobs import Hosts, Profile, gpu_memory
from gavel_py.problem.job import PROGRESS, Job, Locality, with_steps
from gavel_py.problem.pair_throughputs import PairSpeeds, PlacementSpeeds, pair_speeds
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.colocation.groups import PairTable
from gavel_py.throughput_profiles import ThroughputProfile

if TYPE_CHECKING:
    from gavel_py.scheduling.current_allocation import PolicyInput

GANG_FIELDS = (
    "num_gpus",
    "job_type",
    "locality",
    "even_split",
    "allowed_accelerators",
    "cpus_per_gpu",
    "memory_gb_per_gpu",
    "gpu_memory_gb",
)
"""What a job asks of its GPUs, as far as it decides where its gang can be."""

LIKE = attrgetter(*GANG_FIELDS)
"""All of a job that decides where its gang may run, and how fast, where a profile knows job types."""

LOCALITIES: tuple[Locality, ...] = get_args(Locality)

BY_TYPE = 5
"""What there is to know of a job on each type, see `JobRows._looked_up`."""

NUMBERS = ("num_gpus", "weight", "priority", "arrival_seconds")

MOST_UNUSED, SOME_UNUSED = 4, 20_000
"""Rows are dropped when there are so many times more of them than jobs, and so many besides."""


class JobRows:
    """What does not change of the rows of jobs, for one cluster and one profile."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[Job, int]] = {}
        self._table: Floats = np.zeros((0, 0))
        self._whole_gangs = True
        self._cluster: Cluster | None = None
        self._profile: Profile | None = None
        self._reasons: dict[str, str] = {}
        self._like: dict[tuple[object, ...], tuple[Floats, str | None]] = {}
        self._pair_table: PairTable | None = None

    def problem(self, question: PolicyInput, cluster: Cluster, profile: Profile) -> AllocationProblem | None:
        """Return the problem as `AllocationProblem.from_jobs` would, None where that must be asked: a job has no steps left."""
        if not question.jobs:
            return None
        same = cluster is self._cluster and profile is self._profile and question.whole_gangs == self._whole_gangs
        if not same or len(self._jobs) > MOST_UNUSED * len(question.jobs) + SOME_UNUSED:
            self._forget(cluster, profile, question.whole_gangs, keep_like=same)
        rows = [self._row(job) for job in question.jobs]
        return self._built(question, self._table[rows])

    def _forget(self, cluster: Cluster, profile: Profile, whole_gangs: bool, *, keep_like: bool) -> None:
        self._cluster, self._profile, self._whole_gangs = cluster, profile, whole_gangs
        self._jobs, self._reasons = {}, {}
        self._like = {} if not keep_like else self._like
        self._pair_table = self._pair_table if keep_like else None
        self._table = np.zeros((0, BY_TYPE * len(cluster.accelerator_names) + len(NUMBERS) + 5))

    def _row(self, job: Job) -> int:
        """The row of a job, looked up if it is new or has changed."""
        known = self._jobs.get(job.job_id)
        if known is not None and known[0] is job:
            return known[1]
        if known is None or known[0].__dict__ | {PROGRESS: job.steps_done} != job.__dict__:
            row = len(self._jobs) if known is None else known[1]
            self._add(job, row)
        else:
            row = known[1]
        self._jobs[job.job_id] = job, row
        return row

    def _add(self, job: Job, row: int) -> None:
        """Keep all that there is to know of one job."""
        speeds, reason, total, deadline = self._looked_up(job)
        numbers = [getattr(job, name) for name in NUMBERS]
        needs = [job.cpus_per_gpu, job.memory_gb_per_gpu, LOCALITIES.index(job.locality)]
        if row >= len(self._table):
            self._table = np.concatenate([self._table, np.zeros((max(64, len(self._table)), self._table.shape[1]))])
        self._table[row] = np.concatenate([speeds, numbers, needs, (total, deadline)])
        self._reasons.pop(job.job_id, None)
        if reason is not None:
            self._reasons[job.job_id] = reason

    def _looked_up(self, job: Job) -> tuple[Floats, str | None, float, float]:
        """(5·K,) throughputs, where it may run, those of both placements, and GPU memory; why it can run nowhere; total steps;
        deadline.
        """
        assert self._cluster is not None  # noqa: S101
        assert self._profile is not None  # noqa: S101
        # A profile by job type knows nothing else of a job. Deadlines and steps that are to be worked out are not worth it.
        plain = type(self._profile) is ThroughputProfile and job.total_steps is not None and job.deadline_factor is None
        like = LIKE(job)
        if plain and like in self._like:
            deadline = np.nan if job.deadline_seconds is None else job.deadline_seconds
            return *self._like[like], job.total_steps, deadline  # type: ignore[return-value]
        alone = AllocationProblem.from_jobs([with_steps(job, 0.0)], self._cluster, self._profile, whole_gangs=self._whole_gangs)
        none = np.full(alone.throughputs.shape[1], np.nan)
        kinds = (alone.throughputs[0], none) if alone.speeds is None else (alone.speeds.consolidated[0], alone.speeds.spread[0])
        memory = gpu_memory([job], self._cluster, self._profile).needed[0]
        speeds, reason = np.concatenate([alone.throughputs[0], alone.runnable[0], *kinds, memory]), alone.excluded.get(job.job_id)
        if plain:
            self._like[like] = speeds, reason
        return speeds, reason, float(alone.total_steps[0]), float(alone.deadlines_seconds[0])

    def _built(self, question: PolicyInput, rows: Floats) -> AllocationProblem | None:
        assert self._cluster is not None  # noqa: S101
        jobs, now, cluster = question.jobs, question.now_seconds, self._cluster
        types, none = cluster.accelerator_names, np.zeros(len(question.jobs))
        by_type = np.split(rows[:, : BY_TYPE * len(types)], BY_TYPE, axis=1)
        throughputs, runnable, consolidated, spread, taken = map(np.ascontiguousarray, by_type)
        gangs, weights, priorities, arrivals, cpus, memory, locality, total, deadlines = rows[:, BY_TYPE * len(types) :].T.copy()
        remaining = np.maximum(none, total - np.array([job.steps_done for job in jobs]))
        if (remaining == 0).any():
            return None
        ids, columns = tuple(job.job_id for job in jobs), {name: column for column, name in enumerate(types)}
        columns[None] = -1  # type: ignore[index]
        previous = question.previous_fractions
        hosts = None
        if question.whole_gangs:
            speeds = None if np.isnan(spread).all() else PlacementSpeeds(consolidated, spread)
            places = np.array(LOCALITIES)[locality.astype(np.int64)]
            hosts = Hosts(
                cluster.node_sizes,  # type: ignore[arg-type]
                cluster.cpus,
                cluster.memory_gb,
                places,
                cpus,
                memory,
                speeds,
                GpuMemory(taken, cluster.gpu_memory_gb),
                cluster.node_rooms,
            )
        return AllocationProblem(
            job_ids=ids,
            accelerator_types=types,
            throughputs=throughputs,
            capacities=cluster.capacities,
            share_capacities=cluster.capacities,
            runnable=runnable.astype(bool),
            excluded={job_id: self._reasons[job_id] for job_id in ids if job_id in self._reasons} if self._reasons else {},
            prices_per_hour=cluster.prices_per_hour,
            tenants=tuple(job.tenant for job in jobs),
            num_gpus=gangs,
            weights=weights,
            priorities=priorities,
            steps_remaining=remaining,
            total_steps=total,
            arrival_seconds=arrivals,
            elapsed_seconds=np.maximum(none, now - arrivals),
            waiting_seconds=np.array(question.waiting_seconds, dtype=float),
            isolated_seconds=np.array(question.isolated_seconds, dtype=float),
            attained_gpu_seconds=np.array(question.attained_gpu_seconds, dtype=float),
            deadlines_seconds=deadlines - now,
            running_on=np.array([columns[name] for name in question.running_on], dtype=np.int64),  # type: ignore[index]
            previous_fractions=np.broadcast_to(0.0, throughputs.shape) if previous is None else np.array(previous, dtype=float),
            hosts=hosts,
            pairs=self._pairs(question, cluster, np.where(np.isnan(consolidated), throughputs, consolidated), taken),
        )

    def _pairs(self, question: PolicyInput, cluster: Cluster, alone: Floats, taken: Floats) -> PairSpeeds | None:
        """What is known of these jobs as pairs, None where nobody is to share; taken: (N, K) of GPU memory."""
        assert self._profile is not None  # noqa: S101
        if not question.sharing:
            return None
        if self._pair_table is None:
            self._pair_table = PairTable(self._profile)
        memory = GpuMemory(taken, cluster.gpu_memory_gb)
        found = pair_speeds(question.jobs, cluster.accelerator_names, alone, self._pair_table, memory)
        return None if found is None else replace(found, min_gain=question.min_gain)
