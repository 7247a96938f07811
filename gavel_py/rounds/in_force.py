"""The allocation in force: what the policy was asked about, the problem that this came to, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation import Allocation
from gavel_py.allocator import Solver
from gavel_py.hosts import hosts_of
from gavel_py.job_arrays import Profile, largest_gangs
from gavel_py.jobs import Job
from gavel_py.problem import AllocationProblem
from gavel_py.rounds.assignment import Assignment
from gavel_py.rounds.job_book import JobBook
from gavel_py.rounds.node_states import NodeStates

__all__ = ["InForce", "Question", "columns_of", "question_of", "same_gang", "solved"]

Floats = NDArray[np.float64]

GANG_FIELDS = ("num_gpus", "job_type", "locality", "allowed_accelerators", "cpus_per_gpu", "memory_gb_per_gpu")
"""What a job asks of its GPUs, as far as it decides where its gang can be."""


@dataclass(frozen=True, eq=False)
class Question:
    """What the policy is asked at one time about N jobs; all but nodes and profile that its problem is made of."""

    now_seconds: float
    jobs: tuple[Job, ...]
    waiting_seconds: tuple[float, ...]
    isolated_seconds: tuple[float, ...]
    attained_gpu_seconds: tuple[float, ...]
    running_on: tuple[str | None, ...]
    previous_fractions: tuple[tuple[float, ...], ...] | None
    whole_gangs: bool

    def problem(self, nodes: NodeStates, profile: Profile) -> AllocationProblem:
        """Return the problem on the nodes as they are, with the normalisers of the whole cluster."""
        whole = self.whole(nodes, profile)
        here = nodes.available
        if here is nodes.cluster:
            return whole
        problem = whole.with_capacities(here.capacities, largest_gangs=largest_gangs(self.jobs, here))
        why = {i: reason if i in whole.excluded else f"{nodes.reason}: {reason}" for i, reason in problem.excluded.items()}
        return replace(problem, excluded=why, hosts=None if whole.hosts is None else hosts_of(self.jobs, here, whole.hosts.speeds))

    def whole(self, nodes: NodeStates, profile: Profile) -> AllocationProblem:
        """Return the problem as it would be if all nodes were up."""
        return AllocationProblem.from_jobs(
            self.jobs,
            nodes.cluster,
            profile,
            now_seconds=self.now_seconds,
            waiting_seconds=self.waiting_seconds,
            isolated_seconds=self.isolated_seconds,
            attained_gpu_seconds=self.attained_gpu_seconds,
            running_on=self.running_on,
            previous_fractions=self.previous_fractions,
            whole_gangs=self.whole_gangs,
        )


@dataclass(frozen=True, eq=False)
class InForce:
    """nodes: their states when it was solved (`NodeStates.to_dict`); problem: what was solved, constraints included;
    lasting: (N, K) bool, where a job may run on the nodes that are up, and where it could if all were: there it stays owed.
    """

    question: Question
    nodes: Mapping[str, Any]
    problem: AllocationProblem
    allocation: Allocation
    lasting: NDArray[np.bool_]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs as they were asked about."""
        return self.question.jobs

    def present(self, book: JobBook) -> NDArray[np.bool_]:
        """(N,) the jobs that are still in the system with the same gang, and have steps left."""
        unfinished = set(self.unfinished(book))
        return np.array([then.job_id in unfinished and same_gang(then, book.jobs[then.job_id]) for then in self.jobs], dtype=bool)

    def unfinished(self, book: JobBook) -> list[str]:
        """The jobs that are still in the system and have steps left, as far as is known."""
        total = zip(self.problem.job_ids, self.problem.total_steps.tolist(), strict=True)
        # Unknown steps are NaN, and no number reaches that.
        return [job_id for job_id, steps in total if job_id in book.jobs and not book.jobs[job_id].steps_done >= steps]


def question_of(
    book: JobBook, now_seconds: float, running: Mapping[str, Assignment], before: InForce | None, whole_gangs: bool
) -> Question:
    """Return what the policy is to be asked now. running: who may go on where it runs; before: the allocation in force so far."""
    jobs = book.in_order
    pasts = [book.standings[job.job_id] for job in jobs]
    speeds: dict[str, float] = {}
    if before is not None:
        speeds = dict(zip(before.problem.job_ids, before.problem.isolated_throughput.tolist(), strict=True))
    return Question(
        now_seconds=now_seconds,
        jobs=jobs,
        waiting_seconds=tuple(max(0.0, now_seconds - past.waiting_since_seconds) for past in pasts),
        isolated_seconds=tuple(
            past.isolated(job.steps_done, speeds.get(job.job_id, 0.0)) for job, past in zip(jobs, pasts, strict=True)
        ),
        attained_gpu_seconds=tuple(past.attained_gpu_seconds for past in pasts),
        running_on=tuple(running[job.job_id].accelerator if job.job_id in running else None for job in jobs),
        previous_fractions=None if before is None else _fractions_of(before.allocation, jobs),
        whole_gangs=whole_gangs,
    )


def solved(question: Question, nodes: NodeStates, profile: Profile, solver: Solver) -> InForce:
    """Ask the policy."""
    asked = question.problem(nodes, profile)
    allocation = solver.solve(asked)
    # The problem that was solved: constraints may keep jobs off types, and rounds must do so too.
    problem = asked if allocation.evidence is None else allocation.evidence.asked
    lasting = problem.runnable
    if nodes.available is not nodes.cluster:
        lasting = problem.runnable | (question.whole(nodes, profile).runnable & ~asked.runnable)
    return InForce(question, nodes.to_dict(), problem, allocation, lasting)


def columns_of(problem: AllocationProblem, assignments: Mapping[str, Assignment]) -> NDArray[np.int64]:
    """Return (N,) the column of the type that each job is assigned to, -1 for none."""
    numbers = {name: j for j, name in enumerate(problem.accelerator_types)}
    found = [numbers[assignments[i].accelerator] if i in assignments else -1 for i in problem.job_ids]
    return np.array(found, dtype=np.int64)


def same_gang(one: Job, other: Job) -> bool:
    """Say whether two jobs ask for the same GPUs."""
    if one is other:
        return True
    return all(getattr(one, name) == getattr(other, name) for name in GANG_FIELDS)


def _fractions_of(allocation: Allocation, jobs: tuple[Job, ...]) -> tuple[tuple[float, ...], ...]:
    """What the allocation gives these jobs, 0 for those that have come since."""
    none = (0.0,) * len(allocation.accelerator_types)
    rows = dict(zip(allocation.job_ids, (tuple(row) for row in allocation.time_fractions.tolist()), strict=True))
    return tuple(rows.get(job.job_id, none) for job in jobs)
