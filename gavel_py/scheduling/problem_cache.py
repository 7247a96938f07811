"""Builds allocation problems from the job table; the data of each gang from cluster and profile is looked up once.

The problem equals that of `AllocationProblem.from_jobs` field by field. Jobs with equal gangs (`JobTable.gangs`) share a row of
throughputs and eligibility; all other arrays are columns of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import JOB_COLUMNS, WORKFLOW_COLUMNS, Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import FINISHED, GpuMemory
from gavel_py.problem.from_jobs import Hosts, Profile, gpu_memory, job_units, largest_gangs, usable_types
from gavel_py.problem.gpu_counts import GpuCounts, gpu_counts, merged_counts
from gavel_py.problem.job import Job, with_values
from gavel_py.problem.pair_throughputs import PairSpeeds, PlacementSpeeds, pair_speeds
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.workflows import seconds_left
from gavel_py.scheduling.placement.topology import SCOPES
from gavel_py.throughput_profiles import ThroughputProfile

if TYPE_CHECKING:
    from gavel_py.scheduling.current_allocation import PolicyInput
    from gavel_py.scheduling.nodes import NodeStates

BY_TYPE = 6
"""Values of a gang by accelerator type: throughput, runnable, throughput consolidated and spread, uncertainty, GPU memory."""

REQUESTS = 4
"""Further values of a gang: CPUs and memory per GPU, locality as an index into `SCOPES`, and how it divides over nodes."""


def is_by_type(profile: Profile) -> bool:
    """Return whether a profile treats jobs with equal gangs alike; a user-defined class may distinguish them."""
    if type(profile) is ThroughputProfile or not isinstance(profile, ThroughputProfile):
        return type(profile) is ThroughputProfile
    # Imported here, since estimates take long to import and few profiles have them.
    from gavel_py.throughput_profiles.estimation.estimated_profile import EstimatedProfile

    return type(profile) is EstimatedProfile


@dataclass(eq=False)
class ProblemCache:
    """Rows of gangs for one cluster, one profile and one value of `whole_gangs`.

    Attributes:
        cluster: All nodes.
        profile: The throughputs.
        whole_gangs: As for `AllocationProblem.from_jobs`.
        models: A job of each gang (`JobTable.models`). Gangs may be added; a job may only be replaced by another with that gang.
    """

    cluster: Cluster
    profile: Profile
    whole_gangs: bool
    models: list[Job]
    _rows: Floats = field(init=False)
    _is_known: NDArray[np.bool_] = field(init=False)
    _fastest: Floats = field(init=False)
    _reasons: dict[int, str] = field(default_factory=dict)
    _elastic: dict[int, GpuCounts] = field(default_factory=dict)  # of each gang that is elastic
    _pair_table: PairTable | None = None
    _has_units: bool = field(init=False)

    def __post_init__(self) -> None:
        self._has_units = job_units(self.models[:1], self.profile) is not None
        self._rows = np.zeros((0, BY_TYPE * len(self.cluster.accelerator_names) + REQUESTS))
        self._is_known = np.zeros(0, dtype=bool)
        self._fastest = np.zeros(0)

    def holds_for(self, cluster: Cluster, profile: Profile, whole_gangs: bool, models: list[Job]) -> bool:
        """Return whether the cache was created for these arguments."""
        same = cluster is self.cluster and profile is self.profile and models is self.models
        return same and whole_gangs == self.whole_gangs

    def complete(self, jobs: Sequence[Job], requests: Mapping[str, NDArray[Any]]) -> None:
        """Look up the gangs of jobs, and fill in the steps and deadlines in their requests that depend on throughputs.

        Raises the same errors as `AllocationProblem.from_jobs`, about these jobs.
        """
        self._grow()
        gangs = requests["gangs"]
        for i in np.flatnonzero(~self._is_known[gangs])[::-1].tolist():  # the model may be a job that was refused; the first counts
            self.models[gangs.item(i)] = jobs[i]
        self._look_up(gangs)
        rows = [i for i, job in enumerate(jobs) if self.depends_on_throughputs(job)]
        if rows:
            found = self._problem_of([jobs[i] for i in rows])
            requests["total_steps"][rows] = found.total_steps
            requests["deadline_seconds"][rows] = found.deadlines_seconds

    @staticmethod
    def depends_on_throughputs(job: Job) -> bool:
        """Return whether the steps or the deadline of a job depend on its throughputs."""
        return job.duration_seconds is not None or job.deadline_factor is not None

    def gang_requests(self, gangs: Indices) -> tuple[Floats, Floats, Indices, Indices]:
        """Return (N,) CPUs per GPU, memory per GPU, locality as an index into `SCOPES`, and how the gang divides over nodes."""
        self._look_up(gangs)
        cpus, memory, locality, splits = self._rows[gangs, -REQUESTS:].T
        return cpus, memory, locality.astype(np.int64), splits.astype(np.int64)

    def memory_of(self, gangs: Indices) -> GpuMemory:
        """Return the GPU memory that gangs use on each type."""
        self._look_up(gangs)
        count = len(self.cluster.accelerator_names)
        return GpuMemory(self._rows[gangs, (BY_TYPE - 1) * count : BY_TYPE * count], self.cluster.gpu_memory_gb)

    def consolidated(self, gangs: Indices) -> Floats:
        """Return (N, K) steps/s of consolidated gangs."""
        self._look_up(gangs)
        count = len(self.cluster.accelerator_names)
        return self._rows[gangs, 2 * count : 3 * count]

    def can_run(self, gangs: Indices) -> Mask:
        """Return (N, K) whether gangs can run on each type while all nodes are up."""
        self._look_up(gangs)
        count = len(self.cluster.accelerator_names)
        can_run: Mask = self._rows[gangs, count : 2 * count] > 0
        return can_run

    def seconds_left(self, gangs: Indices, steps: Floats) -> Floats:
        """Return (N,) seconds that steps take on the fastest types while all nodes are up (`problem.workflows.seconds_left`)."""
        self._look_up(gangs)
        return seconds_left(steps, self._fastest[gangs])

    def problem(self, policy_input: PolicyInput, nodes: NodeStates) -> AllocationProblem:
        """Return the problem on the nodes that are up; normalisers are those of the whole cluster."""
        whole, available = self.problem_if_up(policy_input), nodes.available
        if available is nodes.cluster:
            return whole
        gangs, place = np.unique(policy_input.gangs, return_inverse=True)
        spans = largest_gangs([self.models[gang] for gang in gangs.tolist()], available)[place.ravel()]
        if whole.counts is not None:
            whole = replace(whole, counts=self._counts_on(available, gangs, place.ravel()))
        problem = whole.with_capacities(available.capacities, largest_gangs=spans)
        why = {i: reason if i in whole.excluded else f"{nodes.reason}: {reason}" for i, reason in problem.excluded.items()}
        hosts = None
        if whole.hosts is not None:
            there = {"gpus": available.node_sizes, "cpus": available.cpus, "memory_gb": available.memory_gb}
            hosts = replace(whole.hosts, **there, rooms=available.node_rooms)  # type: ignore[arg-type]
        return replace(problem, excluded=why, hosts=hosts)

    def problem_if_up(self, policy_input: PolicyInput) -> AllocationProblem:
        """Return the problem as it would be with all nodes up."""
        cluster, requests, gangs = self.cluster, policy_input.requests, policy_input.gangs
        self._look_up(gangs)
        rows, types = self._rows[gangs], cluster.accelerator_names
        by_type = np.split(rows[:, : BY_TYPE * len(types)], BY_TYPE, axis=1)
        throughputs, can_run, consolidated, spread, uncertainty, memory_used = map(np.ascontiguousarray, by_type)
        zeros, total = np.zeros(len(gangs)), requests["total_steps"]
        remaining = np.maximum(zeros, total - requests["steps_done"])
        runnable, finished = can_run.astype(bool), remaining == 0
        runnable[finished] = False
        idle = np.flatnonzero(~runnable.any(axis=1)).tolist()
        ids, previous = policy_input.job_ids, policy_input.previous_fractions
        used = GpuMemory(memory_used, cluster.gpu_memory_gb)
        counts = self._counts(gangs)
        workflows = {name: np.broadcast_to(JOB_COLUMNS[name][0], zeros.shape) for name in WORKFLOW_COLUMNS}
        weights = requests["weight"]
        if policy_input.outlook is not None:
            left, now = self.seconds_left(gangs, remaining), policy_input.now_seconds
            workflows |= policy_input.outlook.columns(weights, left, runnable, now)
            weights = workflows.pop("weights")
        return AllocationProblem(
            job_ids=ids,
            accelerator_types=types,
            throughputs=throughputs,
            capacities=cluster.capacities,
            share_capacities=cluster.capacities,
            runnable=runnable,
            excluded={ids[i]: FINISHED if finished[i] else self._reasons[gangs.item(i)] for i in idle},
            prices_per_hour=cluster.prices_per_hour,
            tenants=policy_input.tenants,
            num_gpus=requests["num_gpus"] if counts is None else counts.units(requests["num_gpus"]),
            weights=weights,
            **workflows,
            priorities=requests["priority"],
            steps_remaining=remaining,
            total_steps=total,
            arrival_seconds=requests["arrival_seconds"],
            elapsed_seconds=np.maximum(zeros, policy_input.now_seconds - requests["arrival_seconds"]),
            waiting_seconds=policy_input.waiting_seconds,
            isolated_seconds=policy_input.isolated_seconds,
            attained_gpu_seconds=policy_input.attained_gpu_seconds,
            deadlines_seconds=requests["deadline_seconds"] - policy_input.now_seconds,
            running_on=policy_input.running_on,
            previous_fractions=np.broadcast_to(0.0, throughputs.shape) if previous is None else previous,
            uncertainty=uncertainty,
            counts=counts,
            hosts=self._hosts(rows, PlacementSpeeds(consolidated, spread), used, counts) if self.whole_gangs else None,
            pairs=self._pairs(policy_input, np.where(np.isnan(consolidated), throughputs, consolidated), used),
            units=job_units([self.models[gang] for gang in gangs.tolist()], self.profile) if self._has_units else None,
        )

    def _counts(self, gangs: Indices) -> GpuCounts | None:
        """Return the throughputs of elastic jobs, None without any; gangs: (N,)."""
        found = [self._elastic[gang] for gang in np.unique(gangs).tolist() if gang in self._elastic] if self._elastic else []
        if not found:
            return None
        number = np.full(int(gangs.max()) + 1, -1, dtype=np.int64)
        number[[gang for gang in np.unique(gangs).tolist() if gang in self._elastic]] = np.arange(len(found))
        return merged_counts(number[gangs], found)

    def _counts_on(self, available: Cluster, gangs: Indices, place: Indices) -> GpuCounts | None:
        """Return the throughputs of elastic jobs on the nodes that are up; gangs: distinct ones; place: (N,) of the jobs."""
        models = [self.models[gang] for gang in gangs.tolist()]
        found = gpu_counts(models, available, self.profile, lambda some: usable_types(some, available, self.profile))
        return None if found is None else found.select(place)

    def _hosts(self, rows: Floats, speeds: PlacementSpeeds, used: GpuMemory, counts: GpuCounts | None) -> Hosts:
        cpus, memory, locality, _ = rows[:, -REQUESTS:].T.copy()
        return Hosts(
            self.cluster.node_sizes,  # type: ignore[arg-type]
            self.cluster.cpus,
            self.cluster.memory_gb,
            np.array(SCOPES)[locality.astype(np.int64)],
            cpus,
            memory,
            None if counts is not None or np.isnan(speeds.spread).all() else speeds,
            used,
            self.cluster.node_rooms,
        )

    def _look_up(self, gangs: Indices) -> None:
        """Add the rows of new gangs."""
        self._grow()
        is_new = ~self._is_known[gangs]
        new = np.unique(gangs[is_new]).tolist() if is_new.any() else []
        while new:
            # An updated job may be the model of two gangs, but the ids of a problem must be unique.
            by_id = {self.models[gang].job_id: gang for gang in new}
            self._add(list(by_id.values()))
            new = [gang for gang in new if not self._is_known[gang]]

    def _grow(self) -> None:
        """Make room for the rows of all gangs."""
        if len(self._rows) < len(self.models):
            more = max(len(self.models), 2 * len(self._rows)) - len(self._rows)
            self._rows = np.concatenate([self._rows, np.zeros((more, self._rows.shape[1]))])
            self._is_known = np.concatenate([self._is_known, np.zeros(more, dtype=bool)])
            self._fastest = np.concatenate([self._fastest, np.zeros(more)])

    def _add(self, gangs: list[int]) -> None:
        models = [self.models[gang] for gang in gangs]
        found = self._problem_of(models)
        unknown = np.full(found.throughputs.shape, np.nan)
        placements = (found.throughputs, unknown) if found.speeds is None else (found.speeds.consolidated, found.speeds.spread)
        memory = gpu_memory(models, self.cluster, self.profile).needed
        requests = [(job.cpus_per_gpu, job.memory_gb_per_gpu, SCOPES.index(job.locality), job.split) for job in models]
        by_type = [found.throughputs, found.runnable, *placements, found.uncertainty, memory]
        self._rows[gangs] = np.hstack([*by_type, np.array(requests, dtype=float)])
        self._is_known[gangs], self._fastest[gangs] = True, found.fastest
        for i, (gang, model) in enumerate(zip(gangs, models, strict=True)):
            if found.counts is not None and model.is_elastic:
                self._elastic[gang] = found.counts.select(np.array([i]))
            if model.job_id in found.excluded:
                self._reasons[gang] = found.excluded[model.job_id]

    def _problem_of(self, jobs: Sequence[Job]) -> AllocationProblem:
        """Return the problem of these jobs, as if they had done no steps and had no dependencies."""
        new = [with_values(job, {"steps_done": 0.0, "depends_on": ()}) for job in jobs]
        return AllocationProblem.from_jobs(new, self.cluster, self.profile, whole_gangs=self.whole_gangs, by_workflow=False)

    def _pairs(self, policy_input: PolicyInput, single: Floats, used: GpuMemory) -> PairSpeeds | None:
        """Return the throughputs of pairs, None without sharing; single: (N, K) throughputs of single jobs."""
        if not policy_input.sharing:
            return None
        if self._pair_table is None:
            self._pair_table = PairTable(getattr(self.profile, "pair_matrix", None))
        found = pair_speeds(policy_input.jobs.tolist(), self.cluster.profile_names, single, self._pair_table, used)
        return None if found is None else replace(found, min_gain=policy_input.min_gain)


class PairTable:
    """Caches a profile's `pair_matrix` for all combinations of job type and gang size so far."""

    def __init__(self, measured: Callable[[Sequence[Job], Sequence[str]], Floats | None] | None) -> None:
        self._measured = measured
        self._jobs: list[Job] = []
        self._numbers: dict[tuple[str, float], int] = {}
        self._table: Floats | None = None

    def __call__(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> Floats | None:
        """Return (Q, Q, K) steps/s as `pair_matrix` does, None if unknown; accelerators must be the same in every call."""
        if self._measured is None:
            return None
        classes = [(job.job_type, job.num_gpus) for job in jobs]
        for job_class, job in zip(classes, jobs, strict=True):
            if job_class not in self._numbers:
                self._numbers[job_class] = len(self._jobs)
                self._jobs.append(job)
        if self._table is None or len(self._table) < len(self._jobs):
            self._table = self._measured(self._jobs, accelerators)
        at = [self._numbers[each] for each in classes]
        return None if self._table is None else self._table[np.ix_(at, at)]
