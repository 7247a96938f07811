"""Schedules of workflows on an idle cluster: where and when each job runs, and a bound on the gap to the least makespan.

`makespan_bound` computes the bound by a linear program of jobs that wait for each other, on accelerator types of different speeds.

    min θ:  Σ_j x_vj = 1,  Σ_v s_v d_vj x_vj <= c_j θ,  f_v >= f_u + Σ_j d_vj x_vj where v waits for u,  f_v <= θ

x_vj is the part of job v that runs on type j, d_vj the seconds that the whole job would take there, s_v its gang, f_v its end. The
bound holds for every schedule, with or without preemption, and is at least as tight as the two classical bounds, total work and
longest path.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gavel_py.errors import Fault, InputError, ProofError
from gavel_py.io.tabular import Tabular, array_of
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import LinearProgram, Solution, solved_once
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import FINISHED, even_nodes
from gavel_py.problem.job import Job
from gavel_py.problem.job_set import JobSet
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.profile import Profile
from gavel_py.problem.tolerances import PROOF_TOLERANCE
from gavel_py.problem.workflows import WorkflowGraph, check_parents


@dataclass(frozen=True)
class ScheduledJob:
    """When and where a job runs in a schedule, without interruption.

    Attributes:
        job_id: The job.
        accelerator: Type of its GPUs.
        gpus: Its GPUs, as (node, index).
        start_seconds: Start, from the start of the schedule.
        end_seconds: End.
    """

    job_id: str
    accelerator: str
    gpus: tuple[tuple[str, int], ...]
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class WorkflowSchedule(Tabular):
    """A schedule of jobs that wait for each other, with a bound that no schedule can beat.

    Attributes:
        jobs: {job_id: ScheduledJob} in the order of their starts.
        makespan_seconds: End of the last job.
        bound_seconds: A proven bound: no schedule ends earlier, even with preemption.
        makespans: {rule: makespan} of the list schedules that were compared; the best one is the schedule.
    """

    jobs: Mapping[str, ScheduledJob]
    makespan_seconds: float
    bound_seconds: float
    makespans: Mapping[str, float]

    @property
    def gap(self) -> float:
        """The excess of the makespan over the bound, as a part of the bound."""
        return self.makespan_seconds / self.bound_seconds - 1 if self.bound_seconds else 0.0

    @property
    def rule(self) -> str:
        """The rule by which jobs were ordered."""
        return min(self.makespans, key=self.makespans.__getitem__)

    def to_columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return a table with a row for each job, as {column: (N,) array}."""
        rows = self.jobs.values()
        columns = {
            name: array_of(getattr(each, name) for each in rows)
            for name in ("job_id", "accelerator", "start_seconds", "end_seconds")
        }
        return columns | {"nodes": array_of("|".join(dict.fromkeys(node for node, _ in each.gpus)) for each in rows)}

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        return {
            "makespan_seconds": self.makespan_seconds,
            "bound_seconds": self.bound_seconds,
            "gap": self.gap,
            "rule": self.rule,
            "makespans": dict(self.makespans),
            "jobs": [
                {
                    "job_id": each.job_id,
                    "accelerator": each.accelerator,
                    "gpus": [list(gpu) for gpu in each.gpus],
                    "start_seconds": each.start_seconds,
                    "end_seconds": each.end_seconds,
                }
                for each in self.jobs.values()
            ],
        }

    def _title(self) -> str:
        return f"{len(self.jobs)} jobs, {self.makespan_seconds:g} s"


RANKS, PROGRAM = "upward ranks", "linear program"


def schedule_workflows(jobs: Iterable[Job], cluster: Cluster, profile: Profile) -> WorkflowSchedule:
    """Schedule jobs that wait for each other on an idle cluster so that the last one ends early, and bound how early it could end.

    Two list schedules are made, and the shorter one is returned. Both take the jobs in an order, among those whose parents are
    scheduled already, and give each the GPUs on which it ends first: by upward ranks (longest path to an end, at mean speed; HEFT,
    Topcuoglu et al., TPDS 2002), and by the longest path of the times in the linear program of the bound. The bound is

        min θ:  Σ_j x_vj = 1,  Σ_v s_v d_vj x_vj <= c_j θ,  f_v >= f_u + Σ_j d_vj x_vj where v waits for u,  f_v <= θ

    with x_vj the part of job v on type j, d_vj its seconds there and s_v its gang; it is computed from the duals, by weak duality.

    All jobs succeed: `afterok` and `afterany` are the same here. Finished jobs are left out. Gangs are whole, without preemption,
    and keep their locality and their division over nodes, with the speed of their faster placement; a fraction of a GPU takes a
    whole one. CPUs and memory of nodes determine on which types a gang may run, but not how many gangs fit on a node. The bound
    counts the GPUs of a type, not what its nodes have room for, which may leave a gap that no schedule closes.

    Args:
        jobs: The jobs, each with `total_steps` or a duration.
        cluster: The cluster.
        profile: Throughputs by job type, gang size and accelerator type.

    Returns:
        The schedule, the bound and their gap.

    Raises:
        InputError: Jobs wait for each other in a cycle, for one that does not exist, or for the failure of one; a job has no known
            length or can run nowhere.
        ProofError: The bound could not be proven.

    >>> import gavel_py as gp
    >>> jobs = [gp.Job("a", total_steps=10), gp.Job("b", total_steps=20, depends_on=["a"]), gp.Job("c", total_steps=25)]
    >>> speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 3, job_ids=["a", "b", "c"], accelerators=["v100"])
    >>> schedule = gp.schedule_workflows(jobs, gp.Cluster.from_counts({"v100": 2}), speeds)
    >>> schedule.makespan_seconds, schedule.bound_seconds
    (30.0, 30.0)
    """
    all_jobs = jobs if isinstance(jobs, JobSet) else JobSet(jobs)
    check_parents(all_jobs)
    text = "is not chosen by a schedule of workflows, whose bound needs num_gpus"
    InputError.raise_any([Fault(job.where, "gpu_counts", text) for job in all_jobs if job.is_elastic])
    alone = [job.without_dependencies() for job in all_jobs]
    problem = AllocationProblem.from_jobs(alone, cluster, profile)
    left = [n for n, job in enumerate(all_jobs) if problem.excluded.get(job.job_id) != FINISHED]
    unfinished = JobSet(all_jobs.jobs[n] for n in left)
    if not left:
        return WorkflowSchedule({}, 0.0, 0.0, {RANKS: 0.0, PROGRAM: 0.0})
    problem = problem.select(np.array(left))
    _check_lengths(unfinished, problem)
    with np.errstate(divide="ignore"):
        durations = np.where(problem.runnable, problem.steps_remaining[:, None] / problem.throughputs, np.inf)
    graph = WorkflowGraph(unfinished)
    bound = makespan_bound(durations, problem.num_gpus, problem.capacities, graph)
    mean = np.divide(np.where(problem.runnable, durations, 0.0).sum(axis=1), problem.runnable.sum(axis=1))
    orders = {
        RANKS: -np.array(graph.longest_paths(mean.tolist())),
        PROGRAM: -np.array(graph.longest_paths(bound.durations.tolist())),
    }
    floor = _Floor(unfinished, cluster.known_to(profile))
    schedules = {rule: floor.schedule(order.tolist(), durations, graph) for rule, order in orders.items()}
    makespans = {rule: max(each.end_seconds for each in schedule) for rule, schedule in schedules.items()}
    best = min(makespans, key=makespans.__getitem__)
    ordered = sorted(schedules[best], key=lambda each: each.start_seconds)
    return WorkflowSchedule({each.job_id: each for each in ordered}, makespans[best], bound.seconds, makespans)


def _check_lengths(jobs: JobSet, problem: AllocationProblem) -> None:
    faults = [Fault(job.where, "", problem.excluded[job.job_id]) for job in jobs if job.job_id in problem.excluded]
    unknown = np.isnan(problem.steps_remaining).tolist()
    text = "is unknown; a schedule needs total_steps, or duration_seconds with duration_accelerator"
    faults += [Fault(job.where, "total_steps", text) for job, is_unknown in zip(jobs, unknown, strict=True) if is_unknown]
    failing = [job for job in jobs if any(name.startswith("afternotok:") for name in job.depends_on)]
    faults += [Fault(job.where, "depends_on", "has afternotok, but in a schedule all jobs succeed") for job in failing]
    InputError.raise_any(faults)


class _Regions:
    """The regions of a type in which a gang of some locality must be. gpus: the GPUs of each region, numbered node by node."""

    def __init__(self, cluster: Cluster, accelerator: str, locality: str) -> None:
        nodes, numbers = cluster.nodes_of(accelerator), dict[str, int]()
        region_of = [numbers.setdefault(cluster.region_of(node, locality), len(numbers)) for node in nodes]
        self._region_of: Indices = np.array(region_of, dtype=np.int64)
        self._node_of: Indices = np.repeat(np.arange(len(nodes)), [node.num_gpus for node in nodes])
        self.gpus: list[Indices] = [np.flatnonzero(self._region_of[self._node_of] == n) for n in range(len(numbers))]

    def even_place(self, size: int, split: int, free: Floats, ready_at: float) -> Indices:
        """Return the GPUs on which a gang starts first with an even split, of which the regions must have one.

        Args:
            size: GPUs of the gang.
            split: As `Job.split`.
            free: (GPUs,) when each becomes free.
            ready_at: When the gang may start.
        """

        def place_at(time: float) -> tuple[Indices, int] | None:
            room = np.bincount(self._node_of[free <= time], minlength=len(self._region_of))
            return even_nodes(size, room, self._region_of, split)

        # Once there is room, it remains: no GPU is taken again after the time at which it becomes free.
        times = np.unique(np.maximum(free, ready_at)).tolist()
        start = times[bisect_left(times, True, key=lambda time: place_at(time) is not None)]
        found = place_at(start)
        assert found is not None  # noqa: S101
        gpus = [np.flatnonzero(self._node_of == node) for node in found[0].tolist()]
        return np.concatenate([each[_chosen(free[each], found[1], start)] for each in gpus])


class _Floor:
    """The GPUs of a cluster by type, and the regions in which a gang of each locality must be."""

    def __init__(self, jobs: Sequence[Job], cluster: Cluster) -> None:
        self._jobs, self._types = jobs, cluster.accelerator_names
        self._gpus = {
            name: [(node.name, n) for node in cluster.nodes_of(name) for n in range(node.num_gpus)] for name in self._types
        }
        localities = {job.locality if job.whole_gpus > 1 else "any" for job in jobs}
        self._regions = {(name, each): _Regions(cluster, name, each) for name in self._types for each in localities}

    def schedule(self, order: Sequence[float], durations: Floats, graph: WorkflowGraph) -> list[ScheduledJob]:
        """Return the list schedule of this order: each job, once its parents are scheduled, gets the GPUs where it ends first.

        order: (N,) smaller numbers first, equal ones by row.
        """
        free = [np.zeros(len(self._gpus[name])) for name in self._types]
        lengths, missing, ready_at = durations.tolist(), [len(each) for each in graph.parents], [0.0] * len(order)
        ready = [(order[row], row) for row, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        found = []
        while ready:
            row = heapq.heappop(ready)[1]
            column, gpus, start = self._first_end(row, free, ready_at[row], lengths[row])
            end = start + lengths[row][column]
            free[column][gpus] = end
            name = self._types[column]
            held = tuple(self._gpus[name][gpu] for gpu in gpus.tolist())
            found.append(ScheduledJob(self._jobs[row].job_id, name, held, start, end))
            for child in graph.children[row]:
                missing[child] -= 1
                ready_at[child] = max(ready_at[child], end)
                if not missing[child]:
                    heapq.heappush(ready, (order[child], child))
        return found

    def _first_end(self, row: int, free: list[Floats], ready_at: float, lengths: list[float]) -> tuple[int, Indices, float]:
        """Return the type and GPUs on which a job ends first, and when it starts there."""
        best, found = math.inf, (-1, np.zeros(0, dtype=np.int64), 0.0)
        for column, length in enumerate(lengths):
            if length == math.inf:
                continue
            for gpus in self._places(self._jobs[row], self._types[column], free[column], ready_at):
                start = max(ready_at, float(free[column][gpus].max()))
                if start + length < best:
                    best, found = start + length, (column, gpus, start)
        return found

    def _places(self, job: Job, accelerator: str, free: Floats, ready_at: float) -> Iterator[Indices]:
        """Yield the GPUs of a type on which a gang starts first: in each region, or, if it is split evenly, in the best one.

        free: (GPUs,) when each becomes free.
        """
        size = job.whole_gpus
        regions = self._regions[accelerator, job.locality if size > 1 else "any"]
        if size > 1 and job.split:
            yield regions.even_place(size, job.split, free, ready_at)
            return
        for region in regions.gpus:
            if len(region) >= size:
                yield region[_chosen(free[region], size, ready_at)]


def _chosen(times: Floats, size: int, ready_at: float) -> Indices:
    """Return the GPUs on which a gang starts first, preferably those that idle least before; times: when each becomes free."""
    idle = np.flatnonzero(times <= ready_at)
    if len(idle) < size:
        return np.argpartition(times, size - 1)[:size]
    return idle[np.argpartition(-times[idle], size - 1)[:size]]


@dataclass(frozen=True)
class MakespanBound:
    """seconds: the lower bound on the end of every schedule; starts, durations: (N,) seconds of each job in the answer."""

    seconds: float
    starts: Floats
    durations: Floats


def makespan_bound(durations: Floats, gangs: Floats, capacities: Floats, graph: WorkflowGraph) -> MakespanBound:
    """Return the bound of N jobs on K types, computed from the duals of the program.

    Args:
        durations: (N, K) d_vj, infinite where a job cannot run; finite somewhere for each job.
        gangs: (N,) GPUs of each job.
        capacities: (K,) GPUs.
        graph: Which job waits for which.

    Raises:
        ProofError: The duals prove less than the value of the program.
    """
    scale = max(graph.longest_paths(durations.min(axis=1).tolist()), default=0.0) or 1.0  # so that all coefficients are about 1
    parts = _Parts(durations / scale, gangs, capacities, graph)
    solution = solved_once(parts.program())
    proven = parts.proven(solution)
    if not proven >= solution.value * (1 - PROOF_TOLERANCE):
        raise ProofError(f"the duals prove a makespan of {proven * scale:g} s, but the program has {solution.value * scale:g} s")
    taken: Floats = np.bincount(parts.jobs, parts.durations * solution.values[: len(parts.jobs)], len(gangs)).astype(float) * scale
    ends = solution.values[len(parts.jobs) : -1] * scale
    return MakespanBound(proven * scale, ends - taken, taken)


class _Parts:
    """The program of the bound, in units of time in which its coefficients are about 1.

    Columns: x_vj where job v can run on type j, f_v, θ. Rows: the parts of each job add up to 1 (=); the GPUs of each type; each
    job ends after the jobs that it waits for, by at least its own time; the makespan is after each job for which no other waits.
    """

    def __init__(self, durations: Floats, gangs: Floats, capacities: Floats, graph: WorkflowGraph) -> None:
        self.jobs, self.types = np.nonzero(np.isfinite(durations))
        self.durations: Floats = durations[self.jobs, self.types]
        self.loads: Floats = gangs[self.jobs] * self.durations / capacities[self.types]
        self.num_types = len(capacities)
        self.graph = graph
        edges = [(parent, job) for job, parents in enumerate(graph.parents) for parent in parents or [-1]]
        self.parent, self.child = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        self.last: Indices = np.array([job for job, children in enumerate(graph.children) if not children], dtype=np.int64)

    def program(self) -> LinearProgram:
        """Return the program."""
        num_jobs, num_parts, num_edges = len(self.graph.parents), len(self.jobs), len(self.parent)
        end_of, makespan = num_parts + np.arange(num_jobs), num_parts + num_jobs
        types, edges = num_jobs + np.arange(self.num_types), num_jobs + self.num_types + np.arange(num_edges)
        lasts, parts = edges[-1] + 1 + np.arange(len(self.last)), np.arange(num_parts)
        waits = self.parent >= 0
        edge, part = self._parts_of_edges()
        entries = [
            (self.jobs, parts, np.ones(num_parts)),
            (types[self.types], parts, self.loads),
            (types, np.full(self.num_types, makespan), -np.ones(self.num_types)),
            (edges[edge], part, self.durations[part]),
            (edges, end_of[self.child], -np.ones(num_edges)),
            (edges[waits], end_of[self.parent[waits]], np.ones(int(waits.sum()))),
            (lasts, end_of[self.last], np.ones(len(lasts))),
            (lasts, np.full(len(lasts), makespan), -np.ones(len(lasts))),
        ]
        rows, columns, values = (np.concatenate(each) for each in zip(*entries, strict=True))
        order, size = np.lexsort((rows, columns)), (int(lasts[-1]) + 1, makespan + 1)
        matrix = SparseMatrix(rows[order], columns[order], values[order], size)
        costs, limits = np.zeros(size[1]), np.zeros(size[0])
        costs[makespan], limits[:num_jobs] = 1.0, 1.0
        return LinearProgram(costs, 0.0, matrix, limits, num_jobs, np.zeros(size[1]), np.full(size[1], np.inf))

    def _parts_of_edges(self) -> tuple[Indices, Indices]:
        """Return each pair of an edge and an x_vj of the job that waits, as two arrays of indices."""
        first = np.searchsorted(self.jobs, np.arange(len(self.graph.parents) + 1))
        counts = np.diff(first)[self.child]
        edge = np.repeat(np.arange(len(self.child)), counts)
        within = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
        return edge, first[self.child][edge] + within

    def proven(self, solution: Solution) -> float:
        """Return the makespan that the duals prove, by weak duality: GPUs at prices λ, and paths that carry a flow μ.

        Let λ >= 0, and let μ >= 0 be a flow along the edges, of which at most as much arrives at a job as leaves it, with Σ_j λ_j +
        (flow out of the last jobs) = 1. Then θ >= Σ_v min_j d_vj (s_v λ_j / c_j + μ_v), where μ_v is the flow that arrives at v.
        """
        num_jobs = len(self.graph.parents)
        duals = np.maximum(0.0, solution.duals[num_jobs:])
        prices, flows, ends = np.split(duals, [self.num_types, self.num_types + len(self.parent)])
        through = self._balanced(flows, ends)
        total = prices.sum() + ends.sum()
        costs = self.loads * prices[self.types] + self.durations * through[self.jobs]
        least = np.full(num_jobs, np.inf)
        np.minimum.at(least, self.jobs, costs)
        return float(least.sum() / total)

    def _balanced(self, flows: Floats, ends: Floats) -> Floats:
        """Return (N,) the flow through each job, lowered where more would arrive at it than leaves it."""
        allowed = [0.0] * len(self.graph.parents)
        for job, flow in zip(self.last.tolist(), ends.tolist(), strict=True):
            allowed[job] = flow
        into = np.bincount(self.child, flows, len(allowed)).tolist()
        first = np.searchsorted(self.child, np.arange(len(allowed) + 1)).tolist()
        parents, given = self.parent.tolist(), flows.tolist()
        through = [0.0] * len(allowed)
        for job in reversed(self.graph.order):
            through[job] = min(into[job], allowed[job])
            factor = through[job] / into[job] if into[job] else 0.0
            for edge in range(first[job], first[job + 1]):
                if parents[edge] >= 0:
                    allowed[parents[edge]] += given[edge] * factor
        return np.array(through)
