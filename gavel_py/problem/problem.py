"""The `AllocationProblem`: jobs, throughputs and capacities of one allocation as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from gavel_py.errors import nearest
from gavel_py.io.names import NumberedNames
from gavel_py.problem.arrays import (
    ARRAYS,
    JOB,
    JOB_ATTRIBUTES,
    TYPE,
    UNKNOWN_WORK,
    Array,
    ArrayChecker,
    Floats,
    Indices,
    Mask,
    OptionalArrays,
    RunningOn,
    check_number,
    fair_shares,
    isolated_throughputs,
    labels_of,
    table_shape,
)
from gavel_py.problem.eligibility import FINISHED, screen
from gavel_py.problem.gpu_counts import GpuCounts, given_counts
from gavel_py.problem.pair_throughputs import PairSpeeds, PlacementSpeeds, given_pairs, pair_speeds
from gavel_py.problem.row_hashing import number_equal, size_numbers
from gavel_py.problem.workflows import WorkflowGraph, WorkflowOutlook, has_dependencies, seconds_left

if TYPE_CHECKING:
    from gavel_py.problem.cluster import Cluster
    from gavel_py.problem.from_jobs import Hosts
    from gavel_py.problem.job import Job
    from gavel_py.problem.job_set import JobSet
    from gavel_py.problem.profile import Profile


WHERE_JOBS_RUN = ("throughputs", "runnable", "type_index", "units")
"""The further arrays with one entry or row per job."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AllocationProblem:
    """N jobs and K accelerator types as arrays; build one with `from_arrays`, `from_types` or `from_jobs`.

    Arrays not listed here are (N,), one number per job. Unknown numbers are NaN.

    Attributes:
        job_ids: N ids.
        accelerator_types: K names.
        throughputs: (N, K) T_ij, steps/s of the whole gang, 0 where it cannot run.
        capacities: (K,) c_j, GPUs.
        runnable: (N, K) whether a job may get time on a type.
        excluded: {job_id: reason} of the jobs that get no time.
        prices_per_hour: (K,) price of one GPU.
        tenants: N names, empty for none.
        num_gpus: (N,) s_i, whole numbers or fractions of one GPU; 1 for elastic jobs, whose throughputs are those of each GPU at
            the smallest number that is offered.
        weights: (N,) w_i; the weight of a workflow is divided among its jobs that are ready.
        ready_tasks: (N,) jobs of its workflow that are ready, itself among them.
        workflow_seconds: (N,) remaining work of all unfinished jobs of its workflow, in seconds on their fastest types; 0 if it
            is the only one.
        path_seconds: (N,) longest path of jobs that wait for it, from its end, in seconds on their fastest types.
        latest_end_seconds: (N,) seconds until it must end so that jobs that wait for it can meet their deadlines on their fastest
            types.
        running_on: (N,) column of the type on which a job runs, -1 for none.
        previous_fractions: (N, K) time fractions of the last allocation.
        uncertainty: (N, K) standard deviation of log(T_ij / P_i), 0 where throughputs are known.
        type_index: (N,) equal numbers for jobs with the same throughputs, None if not given.
        share_capacities: (K,) GPUs for the normalisers; they differ from `capacities` only after `with_capacities`.
        hosts: The nodes of the cluster, None if unknown or ignored.
        pairs: Throughputs of co-located jobs, None without co-location.
        units: N units of the throughputs, None if the profile has a single unit or none.
        gpu_parts: (K,) GPUs per requested GPU, ½ in pair columns, n in columns for n GPUs; None if all are 1.
        counts: Throughputs of elastic jobs by number of GPUs, None without such jobs.
    """

    job_ids: Sequence[str]
    accelerator_types: tuple[str, ...]
    throughputs: Floats
    capacities: Floats
    runnable: Mask
    excluded: dict[str, str]
    prices_per_hour: Floats
    tenants: Sequence[str]
    num_gpus: Floats
    weights: Floats
    priorities: Floats
    steps_remaining: Floats
    total_steps: Floats
    arrival_seconds: Floats
    elapsed_seconds: Floats
    waiting_seconds: Floats
    isolated_seconds: Floats
    attained_gpu_seconds: Floats
    deadlines_seconds: Floats
    ready_tasks: Floats
    workflow_seconds: Floats
    path_seconds: Floats
    latest_end_seconds: Floats
    running_on: Indices
    previous_fractions: Floats
    uncertainty: Floats
    type_index: Indices | None = None
    share_capacities: Floats
    hosts: Hosts | None = None
    pairs: PairSpeeds | None = None
    units: Sequence[str] | None = None
    gpu_parts: Floats | None = None
    counts: GpuCounts | None = None

    @cached_property
    def num_jobs(self) -> int:
        """N, including excluded jobs."""
        return len(self.job_ids)

    @property
    def mixed_units(self) -> tuple[str, ...]:
        """The units of the throughputs of the jobs that are not excluded, if there are several; else empty."""
        if self.units is None:
            return ()
        units = dict.fromkeys(unit for unit, job_id in zip(self.units, self.job_ids, strict=True) if job_id not in self.excluded)
        return tuple(units) if len(units) > 1 else ()

    @cached_property
    def speeds(self) -> PlacementSpeeds | None:
        """Throughputs of consolidated and spread gangs, None if no difference is known."""
        return None if self.hosts is None else self.hosts.speeds

    @cached_property
    def equal_share(self) -> Floats:
        """(N,) P_i = Σ_j T_ij c_j / C, steps/s of a job that divides its time over types in proportion to their capacities.

        The normaliser of Gavel (OSDI 2020, section 4.1), independent of N, gang sizes and weights. For elastic jobs it is that of
        one GPU, P_i = Σ_j (T_ij(m_ij) / m_ij) c_j / C, m_ij: the smallest number of GPUs offered on type j.
        """
        return self.throughputs @ (self.share_capacities / (self.share_capacities.sum() or 1.0))

    @cached_property
    def fair_share(self) -> Floats:
        """(N,) min(1, w_i C / (s_i Σ w)), the part of its time that a job has on its slice of the cluster (`fair_shares`).

        For elastic jobs, min(largest number of GPUs, w_i C / Σ w), the GPUs of that slice that it can use.
        """
        if self.counts is None:
            return fair_shares(self.num_gpus, self.weights, self.share_capacities, self.runnable)
        gpus = self.counts.by_job(np.maximum(1.0, self.counts.largest), self.num_gpus)
        shares: Floats = fair_shares(gpus, self.weights, self.share_capacities, self.runnable) * gpus / self.num_gpus
        return shares

    @cached_property
    def isolated_throughput(self) -> Floats:
        """(N,) iso_i, steps/s in the isolated share of 1/N of the cluster, N the jobs that can run (`isolated_throughputs`).

        Of an elastic job, as if it had one GPU.
        """
        return isolated_throughputs(self.throughputs, self.num_gpus, self.share_capacities, self.num_jobs - len(self.excluded))

    @cached_property
    def fastest(self) -> Floats:
        """(N,) max_j T_ij over the types where the job can run, on its best number of GPUs; 0 for excluded jobs."""
        fastest: Floats = np.where(self.runnable, self.best_throughputs, 0.0).max(axis=1, initial=0.0)
        return fastest

    @property
    def best_throughputs(self) -> Floats:
        """(N, K) T_ij, of elastic jobs on the best number of GPUs that the type can hold."""
        return self.throughputs if self.counts is None else self.counts.by_job(self.counts.best, self.throughputs)

    @property
    def least_gpus(self) -> Floats:
        """(N,) s_i, of elastic jobs the smallest number of GPUs, 1 for none."""
        return self.num_gpus if self.counts is None else self.counts.by_job(self.counts.smallest, self.num_gpus)

    @property
    def most_gpus(self) -> Floats:
        """(N,) s_i, of elastic jobs the largest number of GPUs, 0 for none."""
        return self.num_gpus if self.counts is None else self.counts.by_job(self.counts.largest, self.num_gpus)

    @property
    def most_gpus_by_type(self) -> Floats:
        """(N, K) the GPUs that a job has on each type where it can run, of elastic jobs the largest number; 0 elsewhere."""
        gpus = np.where(self.runnable, self.num_gpus[:, None], 0.0)
        return gpus if self.counts is None else np.where(self.runnable, self.counts.by_job(self.counts.largest_by_type, gpus), 0.0)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n}: {c:g}" for n, c in zip(self.accelerator_types, self.capacities, strict=True))
        return f"AllocationProblem({self.num_jobs} jobs, {len(self.excluded)} of them excluded; GPUs {counts})"

    def with_capacities(self, capacities: ArrayLike, *, largest_gangs: ArrayLike | None = None) -> AllocationProblem:
        """Return the problem with other capacities and unchanged normalisers, to find the value of more GPUs.

        Args:
            capacities: (K,) GPUs. Types that a gang no longer fits are closed to it; closed types do not open.
            largest_gangs: (N, K) GPUs of each type that one gang may span under its locality; by default all.

        Raises:
            InputError: An array is not valid.
        """
        check = ArrayChecker()
        axis = ("accelerator type", self.accelerator_types)
        counts = check.numbers("capacities", capacities, 0, "at least 0", [axis])
        spans = check.numbers("largest_gangs", largest_gangs, np.inf, "at least 0", [("job", self.job_ids), axis])
        check.finish()
        spans = np.minimum(spans, counts)
        runnable, reasons = screen(self.accelerator_types, self.throughputs, self.runnable, self.num_gpus, spans)
        excluded = {self.job_ids[row]: reason for row, reason in reasons.items()}
        kept = None if self.counts is None else self.counts.within(counts)
        if kept is not None:
            runnable &= kept.by_job(kept.able.any(axis=2), np.broadcast_to(np.True_, runnable.shape))
        return replace(self, capacities=counts, runnable=runnable, excluded=excluded | self.excluded, counts=kept)

    def select(self, rows: Indices | Mask) -> AllocationProblem:
        """Return the problem of some jobs only.

        Args:
            rows: Their rows, in the order of the result, or an (N,) mask, which may be labelled by job id.

        Raises:
            InputError: A mask is not valid.
        """
        check = ArrayChecker()
        if np.ma.is_masked(rows):
            check.add("", "rows", "must have no masked entries")
        elif np.asarray(rows).dtype == bool:
            rows = check.in_order("rows", rows, [("job", self.job_ids)])
        check.finish()
        rows = np.arange(self.num_jobs)[rows]
        by_job = {name: getattr(self, name) for name in (*JOB_ATTRIBUTES, *WHERE_JOBS_RUN)}
        picked: dict[str, Any] = {
            name: values[rows] if isinstance(values, np.ndarray) else tuple(values[i] for i in rows.tolist())
            for name, values in by_job.items()
            if values is not None
        }
        excluded = {job: self.excluded[job] for job in picked["job_ids"] if job in self.excluded}
        parts: dict[str, Any] = {
            "hosts": None if self.hosts is None else self.hosts.select(rows),
            "pairs": None if self.pairs is None else self.pairs.select(rows),
            "counts": None if self.counts is None else self.counts.select(rows),
        }
        return replace(self, excluded=excluded, **parts, **picked)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @classmethod
    def from_arrays(cls, throughputs: ArrayLike, capacities: ArrayLike, **arrays: Unpack[OptionalArrays]) -> AllocationProblem:
        """Build a problem from arrays.

        A pandas Series or DataFrame is aligned by its labels, job ids and accelerator types; a default index 0, 1, 2, ... means
        positions, and other labels are an error. A DataFrame of throughputs names jobs and types. Masked and missing numbers count
        as NaN, missing tenants as none.

        Args:
            throughputs: (N, K) steps/s of the whole gang, 0 = cannot run.
            capacities: (K,) GPUs.
            arrays: Optional arrays, (N,) unless stated, with their defaults: accelerator_types (K,), prices_per_hour (K,) of one
                GPU, job_ids, tenants, num_gpus (1; whole numbers, or fractions of one GPU), weights (1), priorities (0),
                steps_remaining (total_steps if given, else unknown), total_steps (unknown), arrival_seconds (0), elapsed_seconds
                since arrival (0), waiting_seconds (0), isolated_seconds (0), attained_gpu_seconds (0), deadlines_seconds from now
                (NaN = none), ready_tasks (1), workflow_seconds (0), path_seconds (0), latest_end_seconds (NaN = none),
                running_on (type name or column; None or -1 = not running), previous_fractions (N, K) (0), uncertainty
                (N, K), the standard deviation of log(T_ij / P_i) (0; P_i: `equal_share`).
                For co-location: pair_kinds, the pair class of each job (whole numbers, -1 = never co-located), and
                pair_throughputs (classes, classes, K), steps/s of a job of the first class while each of its GPUs is shared with a
                job of the second class (0 = not possible).
                For elastic jobs: count_kinds, the kind of each job (whole numbers, -1 = num_gpus is fixed), gpu_counts (L,), all
                numbers of GPUs, ascending, and count_throughputs (kinds, K, L), steps/s of a job on that many GPUs (0 = not
                offered). The throughputs and num_gpus of elastic jobs are not read.

        Raises:
            InputError: All faults of the arrays, each with its job and field.
        """
        jobs, types = table_shape("throughputs", "jobs", throughputs, capacities)
        return cls._from_table(ArrayChecker(), throughputs, None, jobs, types, capacities, arrays)

    @classmethod
    def from_types(
        cls, type_throughputs: ArrayLike, type_index: ArrayLike, capacities: ArrayLike, **arrays: Unpack[OptionalArrays]
    ) -> AllocationProblem:
        """Build a problem of many jobs of few types: job i has the throughputs in row type_index[i] of a table.

        Equals from_arrays(type_throughputs[type_index], capacities, ...), but is faster, since equal jobs are known.

        Args:
            type_throughputs: (C, K) steps/s of a gang of each job type, 0 = cannot run.
            type_index: (N,) whole numbers from 0 to C - 1.
            capacities: (K,) GPUs.
            arrays: As in `from_arrays`, with one entry per job.

        >>> import gavel_py as gp
        >>> problem = gp.AllocationProblem.from_types([[4.0, 1.0], [1.0, 1.0]], [0, 1, 1, 0], [2, 1])
        >>> problem.throughputs[:, 0].tolist()
        [4.0, 1.0, 1.0, 4.0]

        Raises:
            InputError: All faults of the arrays, each with its job and field.
        """
        check = ArrayChecker()
        rows, types = table_shape("type_throughputs", "job types", type_throughputs, capacities)
        index = check.indices("type_index", type_index, rows)
        return cls._from_table(check, type_throughputs, (index, type_index), len(index), types, capacities, arrays)

    @classmethod
    def _from_table(
        cls,
        check: ArrayChecker,
        table: ArrayLike,
        type_index: tuple[Indices, ArrayLike] | None,
        num_jobs: int,
        num_types: int,
        capacities: ArrayLike,
        arrays: OptionalArrays,
    ) -> AllocationProblem:
        """Build a problem from a table of throughputs; type_index: the validated numbers, and the argument as given.

        Job ids and types that are not given are the labels of the table, if it has any.
        """
        known = OptionalArrays.__annotations__
        for name in set(arrays) - set(known):
            raise TypeError(f"unexpected keyword argument {name!r}{nearest(name, known)}")
        names, type_names = arrays.get("job_ids"), arrays.get("accelerator_types")
        names = labels_of(table) if names is None and type_index is None else names
        type_names = labels_of(table, 1) if type_names is None else type_names  # type: ignore[assignment]
        ids = check.unique_names("job_ids", names, num_jobs, "", "job")
        types = tuple(check.unique_names("accelerator_types", type_names, num_types, "type-", "accelerator type"))
        index = None if type_index is None else check.in_order("type_index", type_index[0], [("job", ids)], type_index[1])
        pair_kinds = check.in_order("pair_kinds", arrays.get("pair_kinds"), [("job", ids)])
        counts = check.numbers("capacities", capacities, 0, "at least 0", [("accelerator type", types)])
        by_count = arrays.get("count_kinds"), arrays.get("gpu_counts"), arrays.get("count_throughputs")
        elastic = given_counts(*by_count, len(ids), counts)
        found: dict[str, Any] = {"job_ids": ids, "accelerator_types": types, "capacities": counts, "counts": elastic}
        found["tenants"] = check.texts("tenants", arrays.get("tenants"), ("job", ids))
        rows = ("job", ids) if index is None else ("job type", NumberedNames("", len(np.asarray(table))))
        speeds = check.numbers("throughputs", table, 0, "at least 0", [rows, ("accelerator type", types)])
        found |= checked(check, arrays, ids, types)
        problem = build(*_screened(found, speeds, index))
        pair_throughputs = arrays.get("pair_throughputs")
        if pair_kinds is None and pair_throughputs is None:
            return problem
        return replace(problem, pairs=given_pairs(pair_kinds, pair_throughputs, problem.num_gpus, problem.throughputs))

    @classmethod
    def from_jobs(
        cls,
        jobs: Iterable[Job],
        cluster: Cluster,
        profile: Profile,
        *,
        now_seconds: float = 0.0,
        waiting_seconds: ArrayLike | None = None,
        isolated_seconds: ArrayLike | None = None,
        attained_gpu_seconds: ArrayLike | None = None,
        running_on: RunningOn = None,
        previous_fractions: ArrayLike | None = None,
        whole_gangs: bool = True,
        sharing: bool = False,
        min_gain: float = 1.0,
        allow_unknown_types: bool = False,
        by_workflow: bool = True,
    ) -> AllocationProblem:
        """Build a problem from jobs and a cluster, with throughputs from a profile.

        A job gets no time on types that it does not allow, on which no nodes within its locality can hold its gang, or whose GPUs
        have too little memory. A job that waits for an unfinished one among the jobs is excluded, and so is one that can never
        start since a job whose failure it needs has finished; jobs that are not among them count as ended.

        Args:
            jobs: Jobs with unique ids.
            cluster: The cluster.
            profile: Throughputs by job type, gang size and accelerator type.
            now_seconds: Current time, on the clock of arrivals and deadlines.
            waiting_seconds: As in `from_arrays`, in the order of the jobs, like the next four.
            isolated_seconds: As in `from_arrays`.
            attained_gpu_seconds: As in `from_arrays`.
            running_on: As in `from_arrays`.
            previous_fractions: As in `from_arrays`.
            whole_gangs: Whether allocations are limited to what patterns of whole gangs and the CPUs and memory of nodes can
                deliver (`gang_rows`, `node_rows`), and gangs have the throughput of their faster placement, consolidated or spread,
                if the profile has both (`placement_speeds`). False: as published by Gavel; three GPUs hold one and a half gangs of
                two, and all gangs are consolidated.
            sharing: Whether pairs of jobs with equal gangs may share GPUs, if the profile has their throughputs (`PairSpeeds`).
            min_gain: Pairs share GPUs only if their joint work exceeds this multiple of the work of one alone. 1 admits every pair
                that can help.
            allow_unknown_types: Whether accelerator types that the profile lacks are left out with a `GavelWarning`
                (`Cluster.known_to`) instead of an error.
            by_workflow: Whether a workflow counts as a whole: its weight is divided among its jobs that are ready, and policies
                know its remaining work (`workflow_seconds`, `path_seconds`, `latest_end_seconds`). False: each job by itself.

        Raises:
            MissingThroughputError: The profile lacks a throughput.
            InputError: Any other fault of the arguments.
        """
        from gavel_py.problem.from_jobs import complete, job_units, look_up  # records of pydantic, which arrays do not need
        from gavel_py.problem.job import requests_of
        from gavel_py.problem.job_set import JobSet

        check_number("now_seconds", now_seconds)
        check_number("min_gain", min_gain, least=1)
        job_set = jobs if isinstance(jobs, JobSet) else JobSet(jobs)
        cluster = cluster.known_to(profile, allow_unknown_types=allow_unknown_types)
        gangs, requests = look_up(job_set, cluster, profile, whole_gangs=whole_gangs), requests_of(job_set)
        complete(job_set, requests, gangs.placeable, gangs.fastest(gangs.consolidated), cluster, profile)
        given: dict[str, Any] = {
            "waiting_seconds": waiting_seconds,
            "isolated_seconds": isolated_seconds,
            "attained_gpu_seconds": attained_gpu_seconds,
            "running_on": running_on,
            "previous_fractions": previous_fractions,
        }
        measured, names = getattr(profile, "pair_matrix", None), cluster.profile_names
        arrays = gangs.arrays(cluster) | {
            "job_ids": tuple(job.job_id for job in job_set),
            "tenants": tuple(job.tenant for job in job_set),
            "pairs": pair_speeds(job_set, names, gangs.consolidated, measured, gangs.memory, min_gain) if sharing else None,
            "units": job_units(job_set, profile),
        }
        given |= columns_at(requests, now_seconds) | arrays
        arrays |= checked(ArrayChecker(), given, arrays["job_ids"], cluster.accelerator_names, ARRAYS | UNKNOWN_WORK)
        problem = build(arrays, gangs.reasons)
        is_alone = not has_dependencies(job_set) and not any(job.workflow for job in job_set)
        return problem if is_alone else problem._with_workflows(job_set, now_seconds, by_workflow=by_workflow)

    def _with_workflows(self, jobs: JobSet, now_seconds: float, *, by_workflow: bool) -> AllocationProblem:
        """Return the problem in which jobs that wait for an unfinished one, or can never start, are excluded with the reason."""
        graph, finished = WorkflowGraph(jobs), (self.steps_remaining == 0).tolist()
        waiting = graph.waiting(finished.__getitem__)
        runnable, left_out = self.runnable.copy(), sorted((waiting.blocked | waiting.never).items())
        runnable[[row for row, _ in left_out]] = False
        reasons = {self.job_ids[row]: reason for row, reason in left_out}
        problem = replace(self, runnable=runnable, excluded=self.excluded | reasons)
        if not by_workflow:
            return problem
        seconds = seconds_left(self.steps_remaining, self.fastest)
        return with_outlook(problem, graph.outlook(seconds, self.deadlines_seconds + now_seconds, waiting), now_seconds)


def with_outlook(problem: AllocationProblem, outlook: WorkflowOutlook, now_seconds: float) -> AllocationProblem:
    """Return the problem in which workflows count as a whole; outlook: remaining work and paths of those of the jobs."""
    seconds = seconds_left(problem.steps_remaining, problem.fastest)
    return replace(problem, **outlook.columns(problem.weights, seconds, problem.runnable, now_seconds))


def columns_at(requests: Mapping[str, Floats], now_seconds: float) -> dict[str, Floats]:
    """Return the arrays of a problem that follow from the requests of jobs (`problem.job.requests_of`) at a time."""
    return {name: requests[array.field] for name, array in ARRAYS.items() if array.field} | {
        "steps_remaining": np.maximum(0.0, requests["total_steps"] - requests["steps_done"]),
        "elapsed_seconds": np.maximum(0.0, now_seconds - requests["arrival_seconds"]),
        "deadlines_seconds": requests["deadline_seconds"] - now_seconds,
    }


def checked(
    check: ArrayChecker, given: Mapping[str, Any], ids: Sequence[str], types: Sequence[str], rules: Mapping[str, Array] = ARRAYS
) -> dict[str, Any]:
    """Return the arrays of numbers and types, with their defaults. Raises `InputError` with all faults found so far."""
    names = {JOB: (JOB, ids), TYPE: (TYPE, types)}
    found: dict[str, Any] = {
        name: check.numbers(name, given.get(name), array.default, array.rule, [names[axis] for axis in array.axes])
        for name, array in rules.items()
    }
    if given.get("steps_remaining") is None:
        found["steps_remaining"] = found["total_steps"]
    found["running_on"] = check.columns_of("running_on", given.get("running_on"), ids, types)
    check.finish()
    return found


def build(arrays: dict[str, Any], reasons: Mapping[int, str]) -> AllocationProblem:
    """Return the problem of valid arrays: those of files, of `from_arrays`, or of a scheduler.

    Args:
        arrays: The attributes by name. Those with a default (`ARRAYS`) may be absent; `num_gpus` of elastic jobs is not read, and
            `runnable` says where jobs could run if they had not finished.
        reasons: {row: why} of the jobs that can run nowhere.
    """
    ids, counts, finished = arrays["job_ids"], arrays["counts"], np.flatnonzero(arrays["steps_remaining"] == 0)
    lengths = {JOB: len(ids), TYPE: len(arrays["capacities"])}
    found: dict[str, Any] = {"running_on": np.broadcast_to(np.int64(-1), len(ids))} | {
        name: np.broadcast_to(np.float64(array.default), [lengths[axis] for axis in array.axes]) for name, array in ARRAYS.items()
    }
    found |= arrays
    if len(finished):
        found["runnable"] = arrays["runnable"].copy()
        found["runnable"][finished] = False
        reasons = {**reasons, **dict.fromkeys(finished.tolist(), FINISHED)}
    if counts is not None:
        found["num_gpus"] = counts.units(found["num_gpus"])
    excluded = {ids[row]: reasons[row] for row in sorted(reasons)}
    return AllocationProblem(excluded=excluded, share_capacities=arrays["capacities"], **found)


def _screened(arrays: dict[str, Any], speeds: Floats, type_index: Indices | None) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the arrays with throughputs and where each job can run, and why it can run nowhere (`screen`).

    speeds: throughputs of the jobs, or of job types with `type_index`.
    """
    elastic, gangs, types = arrays["counts"], arrays["num_gpus"], arrays["accelerator_types"]
    shape = len(gangs), len(types)
    allowed, largest_gangs = np.broadcast_to(np.True_, shape), np.broadcast_to(arrays["capacities"], shape)
    if elastic is not None:
        speeds, type_index = elastic.rates(speeds, type_index, by_job=False)
        gangs = elastic.units(gangs)
        largest_gangs = elastic.by_job(elastic.able.any(axis=2), largest_gangs)  # in units of one GPU
    if type_index is None:
        runnable, reasons = screen(types, speeds, allowed, gangs, largest_gangs)
    else:  # jobs of the same type and gang size can run on the same types
        same = number_equal([type_index, size_numbers(gangs)], len(gangs))
        one, table, speeds = same.first, speeds[type_index[same.first]], speeds[type_index]
        runnable, reasons = screen(types, table, allowed[one], gangs[one], largest_gangs[one], same.index)
    reasons |= {} if elastic is None else elastic.reasons(types, reasons)
    return arrays | {"throughputs": speeds, "type_index": type_index, "runnable": runnable}, reasons
