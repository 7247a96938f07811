"""A linear program that bounds the makespan of jobs that wait for each other, on accelerator types of different speeds.

    min θ:  Σ_j x_vj = 1,  Σ_v s_v d_vj x_vj <= c_j θ,  f_v >= f_u + Σ_j d_vj x_vj where v waits for u,  f_v <= θ

x_vj is the part of job v that runs on type j, d_vj the seconds that the whole job would take there, s_v its gang, f_v its end. The
bound holds for every schedule, with or without preemption, and is at least as tight as the two classical bounds, total work and
longest path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavel_py.errors import ProofError
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import LinearProgram, Solution, solved_once
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.workflows import WorkflowGraph

TOLERANCE = 1e-6
"""Accepted relative difference of the program's value and the bound that its duals prove."""


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
    if not proven >= solution.value * (1 - TOLERANCE):
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
