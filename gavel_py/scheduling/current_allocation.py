"""The allocation in force: what the policy was asked, the problem that was solved, its answer, and what it gives the jobs of now.

`PolicyInput` is what the policy is asked, and `InForce` has the answer. `reused_allocation` keeps an allocation where the policy is
not to be asked again yet: `ReusedAllocation` says what it gives jobs that are not all those that it was solved for.
`LazyAllocation` is an allocation in force that has not been written down: it is made when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver
from gavel_py.errors import ProofError
from gavel_py.io.names import natural_key
from gavel_py.io.snapshots import decode, encode
from gavel_py.optimization.checking.time_shares import Pairs
from gavel_py.policies.base import AllocationStatus
from gavel_py.policies.constraints import Constraint, placed
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile, hosts_of, largest_gangs
from gavel_py.problem.job import Job, with_steps
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.colocation.groups import ColocationPromises, promises_of
from gavel_py.scheduling.jobs import JobRegistry
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.problem_cache import GANG_FIELDS, JobRows
from gavel_py.scheduling.round import Assignment


@dataclass(frozen=True, eq=False)
class ReusedAllocation:
    """rows: (N,) the row of each job in the allocation, -1 for those that it says nothing of; asked_seconds: when it was solved."""

    rows: NDArray[np.int64]
    asked_seconds: float

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """(N,) the jobs that the allocation is about."""
        known: NDArray[np.bool_] = self.rows >= 0
        return known

    def to_dict(self) -> dict[str, Any]:
        """Return the rows and the time as plain data."""
        return {"rows": encode(self.rows), "asked_seconds": self.asked_seconds}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], allocation: Allocation) -> ReusedAllocation:
        """Restore from `to_dict`; raises `ValueError` for rows that the allocation does not have."""
        rows = np.asarray(decode(document["rows"]))
        if not np.isin(rows, np.arange(-1, len(allocation.job_ids))).all():
            raise ValueError("the allocation in force has no such rows")
        return cls(rows, float(document["asked_seconds"]))

    def of(self, table: Floats) -> Floats:
        """Return (N, K) these jobs' rows of a table with a row for each job of the allocation, 0 where it says nothing of a job."""
        found = np.zeros((len(self.rows), table.shape[1]))
        found[self.known] = table[self.rows[self.known]]
        return found

    def pairs(self, pairs: Pairs) -> Pairs:
        """Return those of the pairs of which both are there: who has lost a partner has the time by itself."""
        last = max(self.rows.max(initial=-1), pairs.first.max(initial=-1), pairs.second.max(initial=-1))
        places = np.full(int(last) + 1, -1, dtype=np.int64)
        places[self.rows[self.known]] = np.flatnonzero(self.known)
        first, second = places[pairs.first], places[pairs.second]
        both = np.flatnonzero((first >= 0) & (second >= 0))
        return replace(pairs.at(both), first=first[both], second=second[both])


@dataclass(frozen=True, eq=False)
class PolicyInput:
    """What the policy is asked at one time about N jobs; all but nodes and profile that its problem is made of."""

    now_seconds: float
    jobs: tuple[Job, ...]
    waiting_seconds: tuple[float, ...]
    isolated_seconds: tuple[float, ...]
    attained_gpu_seconds: tuple[float, ...]
    running_on: tuple[str | None, ...]
    previous_fractions: Floats | None
    whole_gangs: bool
    sharing: bool = False
    min_gain: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the input as plain data, except for the jobs."""
        return {field.name: encode(getattr(self, field.name)) for field in fields(self) if field.name != "jobs"}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], jobs: tuple[Job, ...]) -> PolicyInput:
        """Restore an input from `to_dict`."""
        return cls(jobs=jobs, **{name: decode(value) for name, value in document.items()})

    def problem(self, nodes: NodeStates, profile: Profile, rows: JobRows | None = None) -> AllocationProblem:
        """Return the problem on the nodes as they are, with the normalisers of the whole cluster; rows: what is known of jobs."""
        whole = self.whole(nodes, profile, rows)
        here = nodes.available
        if here is nodes.cluster:
            return whole
        problem = whole.with_capacities(here.capacities, largest_gangs=largest_gangs(self.jobs, here))
        why = {i: reason if i in whole.excluded else f"{nodes.reason}: {reason}" for i, reason in problem.excluded.items()}
        known = whole.hosts
        return replace(
            problem, excluded=why, hosts=None if known is None else hosts_of(self.jobs, here, known.speeds, known.gpu_memory)
        )

    def whole(self, nodes: NodeStates, profile: Profile, rows: JobRows | None = None) -> AllocationProblem:
        """Return the problem as it would be if all nodes were up."""
        known = None if rows is None else rows.problem(self, nodes.cluster, profile)
        if known is not None:
            return known
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
            sharing=self.sharing,
            min_gain=self.min_gain,
        )


@dataclass(frozen=True, eq=False)
class InForce:
    """nodes: their states when it was solved (`NodeStates.to_dict`); problem: what was solved, constraints included; allocation:
    the answer; lasting: (N, K) bool, where a job may run on the nodes that are up, and where it could if all were: there it stays
    owed; carried: None as long as question and problem are those of the allocation. Else they are about the jobs that were there
    later, and this says what it gives them; note: what the rounds that follow it should say.
    """

    question: PolicyInput
    nodes: Mapping[str, Any]
    problem: AllocationProblem
    allocation: Allocation
    lasting: NDArray[np.bool_]
    carried: ReusedAllocation | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the allocation and its input as plain data."""
        return {
            "question": self.question.to_dict(),
            "jobs": [job.model_dump(mode="json") for job in self.question.jobs],
            "nodes": dict(self.nodes),
            "runnable": encode(self.problem.runnable),
            "excluded": dict(self.problem.excluded),
            "lasting": encode(self.lasting),
            "allocation": self.allocation.to_dict(),
            **({} if self.carried is None else {"carried": self.carried.to_dict()}),
            **({"note": self.note} if self.note else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], cluster: Cluster, profile: Profile) -> InForce:
        """Restore the allocation in force from `to_dict`; raises `ValueError` for arrays of different shapes."""
        question = PolicyInput.from_dict(document["question"], tuple(Job(**job) for job in document["jobs"]))
        nodes = NodeStates.from_dict(cluster, document["nodes"])
        # Constraints change `runnable` and `excluded`; the rest of the problem follows from the input.
        problem = replace(
            question.problem(nodes, profile), runnable=decode(document["runnable"]), excluded=dict(document["excluded"])
        )
        allocation = Allocation.from_dict(document["allocation"])
        lasting, carried = np.asarray(decode(document["lasting"])), None
        if "carried" in document:
            carried = ReusedAllocation.from_dict(document["carried"], allocation)
        found = cls(question, nodes.to_dict(), problem, allocation, lasting, carried, document.get("note", ""))
        if not problem.throughputs.shape == problem.runnable.shape == lasting.shape == found.fractions.shape:
            raise ValueError("the arrays of the allocation in force do not fit each other")
        return found

    @property
    def is_stopped(self) -> bool:
        """Whether the time limit has ended the solve."""
        return self.allocation.status is AllocationStatus.TIME_LIMIT

    @property
    def is_answer(self) -> bool:
        """Whether the policy has been asked about just these jobs, and has had the time to answer."""
        return self.carried is None and not self.is_stopped

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs as they were asked about."""
        return self.question.jobs

    @property
    def asked_seconds(self) -> float:
        """When the policy was asked for the allocation."""
        return self.question.now_seconds if self.carried is None else self.carried.asked_seconds

    @cached_property
    def fractions(self) -> Floats:
        """(N, K) the parts of their time that jobs are given."""
        fractions = self.allocation.time_fractions
        return fractions if self.carried is None else self.carried.of(fractions)

    @property
    def excluded(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that can run nowhere."""
        return dict(self.allocation.excluded if self.carried is None else self.problem.excluded)

    def is_same_as(self, before: object) -> bool:
        """Say whether another one in force is of the same answer, whoever is there."""
        return self is before or (isinstance(before, InForce) and self.allocation is before.allocation)

    @cached_property
    def apart(self) -> Floats | None:
        """(N, K) the part of the time fractions for which gangs are to be spread, NaN where it is no matter; None: nowhere."""
        speeds, spread = self.problem.speeds, self.allocation.spread_fractions
        if speeds is None or spread is None:
            return None
        return np.where(speeds.differ, spread if self.carried is None else self.carried.of(spread), np.nan)

    @cached_property
    def colocation_promises(self) -> ColocationPromises | None:
        """What is promised of time in company, None if it is nothing."""
        pairs, shares = self._pairs, self.problem.pairs
        if pairs is None or shares is None or not len(pairs):
            return None
        return promises_of(pairs, shares.kinds, self.jobs, self.problem.accelerator_types)

    @property
    def _pairs(self) -> Pairs | None:
        pairs = self.allocation.pairs
        return pairs if pairs is None or self.carried is None else self.carried.pairs(pairs)

    def present(self, book: JobRegistry) -> NDArray[np.bool_]:
        """(N,) the jobs that are still in the system with the same gang, and have steps left."""
        now = list(map(book.jobs.get, self.problem.job_ids))
        there = [job is then or (job is not None and same_gang(then, job)) for then, job in zip(self.jobs, now, strict=True)]
        steps = np.array([0.0 if job is None else job.steps_done for job in now])
        # Unknown steps are NaN, and no number reaches that.
        present: NDArray[np.bool_] = np.array(there, dtype=bool) & ~(steps >= self.problem.total_steps)
        return present

    def unfinished(self, book: JobRegistry, among: Set[str]) -> tuple[str, ...]:
        """Those of these jobs that are still in the system and have steps left, as far as is known."""
        total = zip(self.problem.job_ids, self.problem.total_steps.tolist(), strict=True)
        # Unknown steps are NaN, and no number reaches that.
        there = ((job_id, steps) for job_id, steps in total if job_id in among and job_id in book)
        return tuple(job_id for job_id, steps in there if not book.known(job_id).steps_done >= steps)


def policy_input_at_event(
    book: JobRegistry, now_seconds: float, running: Mapping[str, Assignment], before: InForce | None, **options: Any
) -> PolicyInput:
    """Return what the policy is to be asked where no time is counted in rounds; before: None where it does not ask for it."""
    jobs = book.in_order
    nothing = (0.0,) * len(jobs)
    running_on = tuple(running[job.job_id].accelerator if job.job_id in running else None for job in jobs)
    previous = None if before is None else _fractions_of(before, jobs)
    return PolicyInput(now_seconds, jobs, nothing, nothing, nothing, running_on, previous, **options)


def policy_input_of(
    book: JobRegistry, now_seconds: float, running: Mapping[str, Assignment], before: InForce | None, **options: Any
) -> PolicyInput:
    """Return what the policy is to be asked now.

    running: who may go on where it runs; before: the allocation in force so far; options: whole_gangs, sharing and min_gain.
    """
    jobs = book.in_order
    pasts = [book.standings[job.job_id] for job in jobs]
    speeds: dict[str, float] = {}
    if before is not None:
        speeds = dict(zip(before.problem.job_ids, before.problem.isolated_throughput.tolist(), strict=True))
    return PolicyInput(
        now_seconds=now_seconds,
        jobs=jobs,
        waiting_seconds=tuple(max(0.0, now_seconds - past.waiting_since_seconds) for past in pasts),
        isolated_seconds=tuple(
            past.isolated_seconds
            if past.steps_counted == job.steps_done
            else past.isolated(job.steps_done, speeds.get(job.job_id, 0.0))
            for job, past in zip(jobs, pasts, strict=True)
        ),
        attained_gpu_seconds=tuple(past.attained_gpu_seconds for past in pasts),
        running_on=tuple(running[job.job_id].accelerator if job.job_id in running else None for job in jobs),
        previous_fractions=None if before is None else _fractions_of(before, jobs),
        **options,
    )


def new_only(jobs: Sequence[Job], whole_gangs: bool) -> PolicyInput:
    """Return what a policy would be asked if there were no other jobs, to see whether it can be asked about these."""
    zeros = (0.0,) * len(jobs)
    return PolicyInput(0.0, tuple(jobs), zeros, zeros, zeros, (None,) * len(jobs), None, whole_gangs)


def solved(question: PolicyInput, nodes: NodeStates, profile: Profile, solver: Solver, rows: JobRows | None = None) -> InForce:
    """Ask the policy; rows: what is known of jobs."""
    asked = question.problem(nodes, profile, rows)
    allocation = solver.solve(asked)
    # The problem that was solved: constraints may keep jobs off types, and rounds must do so too.
    problem = asked if allocation.evidence is None else allocation.evidence.asked
    lasting = problem.runnable
    if nodes.available is not nodes.cluster:
        lasting = problem.runnable | (question.whole(nodes, profile, rows).runnable & ~asked.runnable)
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


def _fractions_of(before: InForce, jobs: tuple[Job, ...]) -> Floats:
    """(N, K) what the allocation in force gives these jobs, 0 for those that have come since."""
    row_of = {job_id: row for row, job_id in enumerate(before.problem.job_ids)}
    rows = np.array([row_of.get(job.job_id, len(row_of)) for job in jobs], dtype=np.int64)
    none = np.zeros((1, len(before.problem.accelerator_types)))
    fractions: Floats = np.concatenate([before.fractions, none])[rows]
    return fractions


NOTHING = 1e-9
"""A part of the time that is told from none."""


def reused_allocation(
    before: InForce, question: PolicyInput, nodes: NodeStates, profile: Profile, constraints: Sequence[Constraint], rows: JobRows
) -> InForce | None:
    """Return the allocation in force for the jobs of now, None where it would give none of them anything.

    question: what the policy would be asked now; nodes, profile: as they were when it was solved.
    Jobs that are still there with the same gang keep their rows, and all others have rows of zeros: nothing is promised to them.
    What depends on who is there, such as the share of an N-th of the cluster, is that of now: the past of jobs does not depend on
    how often allocations are solved.
    """
    asked = question.problem(nodes, profile, rows)
    problem = placed(asked, constraints)
    kept = _kept(before, question, problem)
    known = kept >= 0
    runnable, lasting = problem.runnable.copy(), problem.runnable.copy()
    if nodes.available is not nodes.cluster:
        lasting |= question.whole(nodes, profile, rows).runnable & ~asked.runnable
    # Constraints may say something else of jobs that run by now, and what was promised holds.
    runnable[known] = before.problem.runnable[kept[known]] & asked.runnable[known]
    lasting[known] = before.lasting[kept[known]]
    at = kept if before.carried is None else np.where(known, before.carried.rows[kept], -1)
    carried = ReusedAllocation(at, before.asked_seconds)
    made = InForce(question, before.nodes, replace(problem, runnable=runnable), before.allocation, lasting, carried)
    return made if (made.fractions[runnable] > NOTHING).any() else None


def _kept(before: InForce, question: PolicyInput, problem: AllocationProblem) -> NDArray[np.int64]:
    """(N,) the rows that the jobs of now have in what is in force, -1 for jobs that have come or changed their gang since.

    Where a job could run nowhere, then or now, its row means nothing.
    """
    out = before.problem.excluded.keys() | problem.excluded.keys()
    rows = {job.job_id: row for row, job in enumerate(before.jobs) if job.job_id not in out}
    found = [row if (row := rows.get(job.job_id, -1)) >= 0 and same_gang(before.jobs[row], job) else -1 for job in question.jobs]
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class LazyAllocation:
    """jobs, steps: those that were asked about, and the progress of some; running: who ran then; given: who was given all of its
    time, and on which type; excluded: who can run nowhere, and why; solve: asks the policy in full.
    """

    now_seconds: float
    jobs: Mapping[str, Job]
    steps: Mapping[str, float]
    running: Mapping[str, Assignment]
    given: Callable[[], Mapping[str, str]]
    excluded: Mapping[str, str]
    whole_gangs: bool
    solve: Callable[[PolicyInput], InForce]

    def in_order(self, job_ids: Iterable[str]) -> tuple[str, ...]:
        """Return these jobs in the order of an allocation."""
        return tuple(sorted(job_ids, key=natural_key))

    def in_force(self) -> InForce:
        """Return the same as an answer of the policy to the whole question. Raises `ProofError` where that is another."""
        steps, there = self.steps, (self.jobs[job_id] for job_id in self.in_order(self.jobs))
        jobs = tuple(with_steps(job, steps[job.job_id]) if job.job_id in steps else job for job in there)
        running_on = tuple(self.running[job.job_id].accelerator if job.job_id in self.running else None for job in jobs)
        nothing = (0.0,) * len(jobs)
        question = PolicyInput(self.now_seconds, jobs, nothing, nothing, nothing, running_on, None, self.whole_gangs)
        found = self.solve(question)
        types, fractions = found.problem.accelerator_types, found.allocation.time_fractions
        given = {
            job_id: types[row.index(1.0)]
            for job_id, row in zip(found.problem.job_ids, fractions.tolist(), strict=True)
            if any(row) and row.count(0.0) == len(row) - 1
        }
        if given != self.given() or float(fractions.sum()) != len(given):
            raise ProofError("the jobs in turn were given other time than the policy gives them when it is asked about all of them")
        return found
