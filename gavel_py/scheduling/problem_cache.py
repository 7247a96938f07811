"""The input of policies, read from the job table, and the allocation problems that are built from it.

The problem equals that of `AllocationProblem.from_jobs` field by field. The data of each gang (`JobTable.gangs`) from cluster and
profile is looked up once; all other arrays are columns of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.io.snapshots import decode, encode
from gavel_py.problem.arrays import ARRAYS, UNKNOWN_WORK, ArrayChecker, Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.problem.from_jobs import (
    Gangs,
    complete,
    depends_on_throughputs,
    hosts_of,
    job_units,
    largest_gangs,
    look_up,
    memory_on,
    usable_types,
)
from gavel_py.problem.gpu_counts import GpuCounts, gpu_counts, merged_counts
from gavel_py.problem.job import NUMBERS, Job, host_requests_of, with_values
from gavel_py.problem.job_table import Objects, objects_of
from gavel_py.problem.pair_throughputs import PairSpeeds, PlacementSpeeds, pair_speeds
from gavel_py.problem.problem import AllocationProblem, build, checked, columns_at, with_outlook
from gavel_py.problem.profile import Profile
from gavel_py.problem.workflows import WorkflowOutlook, seconds_left
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.options import DEFAULTS, AllocationOptions
from gavel_py.scheduling.placement.topology import SCOPES

BY_TYPE, RUNNABLE, CONSOLIDATED, MEMORY = 6, 1, 2, 5
"""Values of a gang by accelerator type: throughput, runnable, throughput consolidated and spread, uncertainty, GPU memory; and the
places of some of them."""

PER_GPU, LOCALITY, SPLIT, PLACEABLE, FASTEST, FASTEST_CONSOLIDATED = slice(-7, -5), -5, -4, -3, -2, -1
"""Places of further values of a gang: CPUs and memory per GPU, locality as an index into `SCOPES`, how it divides over nodes,
whether a type can hold it, and steps/s on its fastest type, in its faster placement and consolidated."""


def is_by_type(profile: Profile) -> bool:
    """Return whether a profile treats jobs with equal gangs alike; a user-defined class may distinguish them."""
    return getattr(profile, "is_by_type", False)


HISTORY = ("waiting_seconds", "isolated_seconds", "attained_gpu_seconds", "running_on", "previous_fractions")
"""The arrays of a problem that are about the past of the jobs."""

OF_INPUT = ("sharing", "min_gain")
"""The options with which a problem is built; the others are about its solution."""


@dataclass(frozen=True, eq=False)
class PolicyInput:
    """The input of a policy at one time, for N jobs: the arguments of `AllocationProblem.from_jobs` except nodes and profile.

    Attributes:
        now_seconds: The time.
        rows: (N,) rows of the jobs in the `JobTable`.
        jobs: (N,) the jobs; their steps done are in `requests`.
        gangs: (N,) as in `JobTable`.
        requests: The columns `NUMBERS`.
        history: The arrays `HISTORY`; some or all may be absent if no policy reads them.
        options: What allocations take into account.
        outlook: Remaining work and paths of the jobs' workflows; None if workflows do not count.
    """

    now_seconds: float
    rows: Indices
    jobs: Objects
    gangs: Indices
    requests: dict[str, NDArray[Any]]
    history: dict[str, NDArray[Any]]
    options: AllocationOptions = DEFAULTS
    outlook: WorkflowOutlook | None = None

    @classmethod
    def of_new(cls, jobs: Sequence[Job], requests: dict[str, NDArray[Any]]) -> PolicyInput:
        """Return the input in which these jobs are new and alone, to check whether a policy can decide on them."""
        return cls(0.0, np.full(len(jobs), -1), objects_of(jobs), requests["gangs"], requests, {})

    @cached_property
    def job_ids(self) -> tuple[str, ...]:
        """(N,) ids of the jobs."""
        return tuple(map(attrgetter("job_id"), self.jobs.tolist()))

    def to_dict(self, table: ScheduledJobs, places: Mapping[int, int]) -> dict[str, Any]:
        """Return the input as plain data; places: {row: place of the job among those that are saved}."""
        # Jobs whose requests have changed since are saved as they were.
        same = self.gangs == table.gangs[self.rows]
        for name in NUMBERS:
            now, then = table.columns[name][self.rows], self.requests[name]
            same &= (now == then) | (np.isnan(now) & np.isnan(then)) | (name == "steps_done")
        return {
            "now_seconds": self.now_seconds,
            "jobs": [places[row] for row in self.rows.tolist()],
            "steps_done": encode(self.requests["steps_done"]),
            "changed": [[i, self.jobs[i].model_dump(mode="json")] for i in np.flatnonzero(~same).tolist()],
            **{name: encode(self.history.get(name)) for name in HISTORY},
            **{name: getattr(self.options, name) for name in OF_INPUT},
            **({} if self.outlook is None else {"outlook": list(map(encode, self.outlook))}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], table: ScheduledJobs, cache: ProblemCache) -> PolicyInput:
        """Restore an input from `to_dict`, with the jobs of a table in the order in which they were saved."""
        rows = np.array(document["jobs"], dtype=np.int64)
        jobs, gangs, requests, steps = table.jobs[rows], table.gangs[rows], table.requests_at(rows), decode(document["steps_done"])
        for i in np.flatnonzero(requests["steps_done"] != steps).tolist():
            jobs[i] = with_values(jobs[i], {"steps_done": steps.item(i)})
        requests["steps_done"] = steps
        for i, fields in document["changed"]:
            jobs[i] = with_values(Job(**fields), {"steps_done": steps.item(i)})
        # The requests of jobs that have left are not complete.
        others = np.union1d(np.flatnonzero(~table.is_present[rows]), [i for i, _ in document["changed"]]).astype(np.int64)
        if len(others):
            own = table.requests_of(jobs[others].tolist())
            cache.complete(jobs[others].tolist(), own)
            gangs[others] = own.pop("gangs")
            for name, column in own.items():
                requests[name][others] = column
        history = {name: decode(document[name]) for name in HISTORY if document[name] is not None}
        options = AllocationOptions(**{name: document[name] for name in OF_INPUT})
        outlook = WorkflowOutlook(*map(decode, document["outlook"])) if "outlook" in document else None
        return cls(float(document["now_seconds"]), rows, jobs, gangs, requests, history, options, outlook)


@dataclass(eq=False)
class ProblemCache:
    """Rows of gangs for one cluster, one profile and one value of `whole_gangs`.

    Attributes:
        cluster: All nodes.
        profile: The throughputs.
        whole_gangs: As for `AllocationProblem.from_jobs`.
        models: A job of each gang (`GangNumbers.models`). Gangs may be added; a job may only be replaced by another with that gang.
    """

    cluster: Cluster
    profile: Profile
    whole_gangs: bool
    models: list[Job]
    _rows: Floats = field(init=False)
    _is_known: NDArray[np.bool_] = field(init=False)
    _reasons: dict[int, str] = field(default_factory=dict)
    _elastic: dict[int, GpuCounts] = field(default_factory=dict)  # of each gang that is elastic
    _pair_table: PairTable | None = None
    _has_units: bool = field(init=False)

    def __post_init__(self) -> None:
        self._has_units = job_units(self.models[:1], self.profile) is not None
        self._rows = np.zeros((0, BY_TYPE * len(self.cluster.accelerator_names) - PER_GPU.start))
        self._is_known = np.zeros(0, dtype=bool)

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
        if any(map(depends_on_throughputs, jobs)):
            placeable, fastest = self._rows[gangs][:, [PLACEABLE, FASTEST_CONSOLIDATED]].T
            rows = complete(jobs, requests, placeable > 0, fastest, self.cluster, self.profile)
            ids, own = [jobs[row].job_id for row in rows], {name: column[rows] for name, column in requests.items()}
            checked(ArrayChecker(), columns_at(own, 0.0), ids, self.cluster.accelerator_names, ARRAYS | UNKNOWN_WORK)

    def gang_requests(self, gangs: Indices) -> tuple[Floats, Indices, Indices]:
        """Return (N, 2) CPUs and memory per GPU, (N,) localities, as indices into `SCOPES`, and how gangs divide over nodes."""
        self._look_up(gangs)
        rows = self._rows[gangs]
        return rows[:, PER_GPU], rows[:, LOCALITY].astype(np.int64), rows[:, SPLIT].astype(np.int64)

    def memory_of(self, gangs: Indices) -> GpuMemory:
        """Return the GPU memory that gangs use on each type."""
        return memory_on(self.cluster, self._by_type(gangs, MEMORY))

    def consolidated(self, gangs: Indices) -> Floats:
        """Return (N, K) steps/s of consolidated gangs."""
        return self._by_type(gangs, CONSOLIDATED)

    def can_run(self, gangs: Indices) -> Mask:
        """Return (N, K) whether gangs can run on each type while all nodes are up."""
        return self._by_type(gangs, RUNNABLE) > 0

    def _by_type(self, gangs: Indices, place: int) -> Floats:
        self._look_up(gangs)
        count = len(self.cluster.accelerator_names)
        return self._rows[gangs, place * count : (place + 1) * count]

    def seconds_left(self, gangs: Indices, steps: Floats) -> Floats:
        """Return (N,) seconds that steps take on the fastest types while all nodes are up (`problem.workflows.seconds_left`)."""
        self._look_up(gangs)
        return seconds_left(steps, self._rows[gangs, FASTEST])

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
        asked = whole.hosts
        hosts = asked and hosts_of(available, asked.localities, asked.per_gpu, asked.speeds, asked.gpu_memory)
        return replace(problem, excluded=why, hosts=hosts)

    def problem_if_up(self, policy_input: PolicyInput) -> AllocationProblem:
        """Return the problem as it would be with all nodes up."""
        indices, found = policy_input.gangs, self._gangs(policy_input.gangs)
        arrays = found.arrays(self.cluster) | columns_at(policy_input.requests, policy_input.now_seconds) | policy_input.history
        arrays |= {
            "job_ids": policy_input.job_ids,
            "tenants": tuple(job.tenant for job in policy_input.jobs.tolist()),
            "units": job_units([self.models[gang] for gang in indices.tolist()], self.profile) if self._has_units else None,
            "pairs": self._pairs(policy_input, found),
        }
        problem = build(arrays, found.reasons)
        outlook = policy_input.outlook
        return problem if outlook is None else with_outlook(problem, outlook, policy_input.now_seconds)

    def runnable_if_up(self, policy_input: PolicyInput, problem: AllocationProblem, nodes: NodeStates) -> Mask:
        """Return (N, K) where jobs cannot run in their `problem`, but could if all nodes were up."""
        if nodes.available is nodes.cluster:
            return np.zeros(problem.runnable.shape, dtype=bool)
        return self.problem_if_up(policy_input).runnable & ~problem.runnable

    def _gangs(self, gangs: Indices) -> Gangs:
        """Return where jobs can run, and how fast; gangs: (N,) the gang of each."""
        self._look_up(gangs)
        rows = self._rows[gangs]
        by_type = np.split(rows[:, : BY_TYPE * len(self.cluster.accelerator_names)], BY_TYPE, axis=1)
        throughputs, can_run, consolidated, spread, uncertainty, needed = map(np.ascontiguousarray, by_type)
        memory, counts, hosts = memory_on(self.cluster, needed), self._counts(gangs), None
        if self.whole_gangs:
            speeds = None if counts is not None or np.isnan(spread).all() else PlacementSpeeds(consolidated, spread)
            localities = np.array(SCOPES)[rows[:, LOCALITY].astype(np.int64)]
            hosts = hosts_of(self.cluster, localities, rows[:, PER_GPU].copy(), speeds, memory)
        runnable, placeable = can_run.astype(bool), rows[:, PLACEABLE] > 0
        reasons = {i: self._reasons[gangs.item(i)] for i in np.flatnonzero(~runnable.any(axis=1)).tolist()}
        return Gangs(throughputs, consolidated, runnable, reasons, placeable, uncertainty, memory, counts, hosts)

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

    def _look_up(self, gangs: Indices) -> None:
        """Add the rows of new gangs."""
        self._grow()
        is_new = ~self._is_known[gangs]
        if is_new.any():
            self._add(np.unique(gangs[is_new]).tolist())

    def _grow(self) -> None:
        """Make room for the rows of all gangs."""
        if len(self._rows) < len(self.models):
            more = max(len(self.models), 2 * len(self._rows)) - len(self._rows)
            self._rows = np.concatenate([self._rows, np.zeros((more, self._rows.shape[1]))])
            self._is_known = np.concatenate([self._is_known, np.zeros(more, dtype=bool)])

    def _add(self, gangs: list[int]) -> None:
        models = [self.models[gang] for gang in gangs]
        found = look_up(models, self.cluster, self.profile, whole_gangs=self.whole_gangs)
        speeds = None if found.hosts is None else found.hosts.speeds
        spread = np.full(found.throughputs.shape, np.nan) if speeds is None else speeds.spread
        by_type = [found.throughputs, found.runnable, found.consolidated, spread, found.uncertainty, found.memory.needed]
        fastest = found.fastest(found.throughputs), found.fastest(found.consolidated)
        ways = np.array([(SCOPES.index(job.locality), job.split) for job in models], dtype=float)
        self._rows[gangs] = np.column_stack([*by_type, host_requests_of(models), ways, found.placeable, *fastest])
        self._is_known[gangs] = True
        self._reasons |= {gangs[row]: reason for row, reason in found.reasons.items()}
        for i, (gang, model) in enumerate(zip(gangs, models, strict=True)):
            if found.counts is not None and model.is_elastic:
                self._elastic[gang] = found.counts.select(np.array([i]))

    def _pairs(self, policy_input: PolicyInput, found: Gangs) -> PairSpeeds | None:
        """Return the throughputs of pairs, None without sharing."""
        if not policy_input.options.sharing:
            return None
        if self._pair_table is None:
            self._pair_table = PairTable(getattr(self.profile, "pair_matrix", None))
        jobs, names = policy_input.jobs.tolist(), self.cluster.profile_names
        return pair_speeds(jobs, names, found.consolidated, self._pair_table, found.memory, policy_input.options.min_gain)


class PairTable:
    """Caches a profile's `pair_matrix` for all combinations of job type and gang size so far."""

    def __init__(self, measured: Callable[[Sequence[Job], Sequence[str]], Floats | None] | None) -> None:
        self._measured = measured
        self._jobs: dict[tuple[str, float], Job] = {}
        self._table: Floats | None = None

    def __call__(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> Floats | None:
        """Return (Q, Q, K) steps/s as `pair_matrix` does, None if unknown; accelerators must be the same in every call."""
        if self._measured is None:
            return None
        classes = [(job.job_type, job.num_gpus) for job in jobs]
        for job_class, job in zip(classes, jobs, strict=True):
            self._jobs.setdefault(job_class, job)
        if self._table is None or len(self._table) < len(self._jobs):
            self._table = self._measured(list(self._jobs.values()), accelerators)
        numbers = {job_class: number for number, job_class in enumerate(self._jobs)}
        at = [numbers[each] for each in classes]
        return None if self._table is None else self._table[np.ix_(at, at)]
