"""The current allocation of a scheduler: the policy's input, the problem and solution, and what they give the jobs of now.

Between two solves jobs may come and go. `reuse_allocation` then keeps the solution for the jobs that it covers, and
`ReusedAllocation` maps their rows. A `LazyAllocation` of the event-driven mode is solved only if it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.allocation.result import Allocation
from gavel_py.errors import ProofError
from gavel_py.io.names import natural_key
from gavel_py.io.snapshots import decode, encode
from gavel_py.policies.base import AllocationStatus
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.compiling import placed
from gavel_py.problem.from_jobs import Profile, hosts_of, largest_gangs
from gavel_py.problem.job import Job, with_steps
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.colocation.groups import ColocationPromises, promises_of
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.problem_cache import GANG_FIELDS, ProblemCache

if TYPE_CHECKING:
    from gavel_py.allocation.solver import Solver
    from gavel_py.optimization.checking.time_shares import Pairs
    from gavel_py.problem.arrays import Floats, Indices, Mask
    from gavel_py.problem.cluster import Cluster
    from gavel_py.scheduling.jobs import JobRegistry
    from gavel_py.scheduling.round import Assignment


@dataclass(frozen=True, eq=False)
class PolicyInput:
    """What a policy decides on at one time, for N jobs: the arguments of `AllocationProblem.from_jobs` but nodes and profile."""

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

    @classmethod
    def of(
        cls,
        registry: JobRegistry,
        now_seconds: float,
        running: Mapping[str, Assignment],
        before: CurrentAllocation | None,
        *,
        with_history: bool = True,
        **options: Any,
    ) -> PolicyInput:
        """Return the input for all jobs in the system.

        Args:
            registry: The jobs and their histories.
            now_seconds: The time of the decision.
            running: Gangs that may continue where they run.
            before: The current allocation; None if there is none, or the policy does not read it.
            with_history: Whether time that is counted in rounds (waiting, isolated, attained) is read; zeros otherwise.
            options: whole_gangs, sharing and min_gain.
        """
        jobs = registry.in_order
        waiting = isolated = attained = (0.0,) * len(jobs)
        if with_history:
            histories = [registry.histories[job.job_id] for job in jobs]
            ids, speeds = ((), ()) if before is None else (before.problem.job_ids, before.problem.isolated_throughput.tolist())
            speed_of = dict(zip(ids, speeds, strict=True))
            waiting = tuple(max(0.0, now_seconds - each.waiting_since_seconds) for each in histories)
            isolated = tuple(
                each.isolated_seconds
                if each.steps_counted == job.steps_done
                else each.isolated(job.steps_done, speed_of.get(job.job_id, 0.0))
                for job, each in zip(jobs, histories, strict=True)
            )
            attained = tuple(each.attained_gpu_seconds for each in histories)
        running_on = tuple(running[job.job_id].accelerator if job.job_id in running else None for job in jobs)
        previous = None if before is None else before.fractions_for(jobs)
        return cls(now_seconds, jobs, waiting, isolated, attained, running_on, previous, **options)

    @classmethod
    def of_new(cls, jobs: Sequence[Job], whole_gangs: bool) -> PolicyInput:
        """Return the input as if these jobs were new and alone, to check whether a policy can decide on them."""
        zeros = (0.0,) * len(jobs)
        return cls(0.0, tuple(jobs), zeros, zeros, zeros, (None,) * len(jobs), None, whole_gangs)

    def to_dict(self) -> dict[str, Any]:
        """Return the input as plain data, except for the jobs."""
        return {field.name: encode(getattr(self, field.name)) for field in fields(self) if field.name != "jobs"}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], jobs: tuple[Job, ...]) -> PolicyInput:
        """Restore an input from `to_dict`."""
        return cls(jobs=jobs, **{name: decode(value) for name, value in document.items()})

    def problem(self, nodes: NodeStates, profile: Profile, cache: ProblemCache | None = None) -> AllocationProblem:
        """Return the problem on the nodes that are up; normalisers are those of the whole cluster."""
        whole = self.problem_if_up(nodes, profile, cache)
        available = nodes.available
        if available is nodes.cluster:
            return whole
        problem = whole.with_capacities(available.capacities, largest_gangs=largest_gangs(self.jobs, available))
        why = {i: reason if i in whole.excluded else f"{nodes.reason}: {reason}" for i, reason in problem.excluded.items()}
        hosts = whole.hosts
        if hosts is not None:
            hosts = hosts_of(self.jobs, available, hosts.speeds, hosts.gpu_memory)
        return replace(problem, excluded=why, hosts=hosts)

    def problem_if_up(self, nodes: NodeStates, profile: Profile, cache: ProblemCache | None = None) -> AllocationProblem:
        """Return the problem as it would be with all nodes up."""
        cached = None if cache is None else cache.problem(self, nodes.cluster, profile)
        if cached is not None:
            return cached
        options = {name: value for name, value in vars(self).items() if name != "jobs"}
        return AllocationProblem.from_jobs(self.jobs, nodes.cluster, profile, **options)


@dataclass(frozen=True, eq=False)
class ReusedAllocation:
    """How a solution applies to N jobs other than those that it was solved for."""

    rows: Indices  # (N,) the row of each job in the solution, -1 for jobs that it does not cover
    solved_seconds: float  # the time of the solve

    def to_dict(self) -> dict[str, Any]:
        """Return the rows and the time as plain data."""
        return {"rows": encode(self.rows), "asked_seconds": self.solved_seconds}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], allocation: Allocation) -> ReusedAllocation:
        """Restore from `to_dict`; raises `ValueError` for rows that the allocation does not have."""
        rows = np.asarray(decode(document["rows"]))
        if not np.isin(rows, np.arange(-1, len(allocation.job_ids))).all():
            raise ValueError("the allocation in force has no such rows")
        return cls(rows, float(document["asked_seconds"]))

    @cached_property
    def covered(self) -> Mask:
        """(N,) the jobs that the solution covers."""
        covered: Mask = self.rows >= 0
        return covered

    def rows_of(self, table: Floats) -> Floats:
        """Return (N, K) the rows of these jobs in a table of the solution, 0 for jobs that it does not cover."""
        found = np.zeros((len(self.rows), table.shape[1]))
        found[self.covered] = table[self.rows[self.covered]]
        return found

    def pairs(self, pairs: Pairs) -> Pairs:
        """Return the pairs of which both jobs are present; a job that has lost its partner keeps its time alone."""
        last = max(self.rows.max(initial=-1), pairs.first.max(initial=-1), pairs.second.max(initial=-1))
        row_of = np.full(int(last) + 1, -1, dtype=np.int64)
        row_of[self.rows[self.covered]] = np.flatnonzero(self.covered)
        first, second = row_of[pairs.first], row_of[pairs.second]
        both = np.flatnonzero((first >= 0) & (second >= 0))
        return replace(pairs.at(both), first=first[both], second=second[both])


@dataclass(frozen=True, eq=False)
class CurrentAllocation:
    """An allocation with its input and problem, for N jobs and K accelerator types."""

    policy_input: PolicyInput  # the input of the policy, or what it would be for the jobs that a reused allocation applies to
    nodes: Mapping[str, Any]  # states of the nodes at the solve (`NodeStates.to_dict`)
    problem: AllocationProblem  # the problem of this input, with the types that constraints forbid removed
    allocation: Allocation  # the solution
    runnable_if_up: Mask  # (N, K) where each job can run on nodes that are up, or could if all were: deficits there are kept
    reused: ReusedAllocation | None = None  # none while the solution is for just these jobs
    note: str = ""  # A note for the rounds that follow the allocation

    def to_dict(self) -> dict[str, Any]:
        """Return the allocation and its input as plain data."""
        return {
            "question": self.policy_input.to_dict(),
            "jobs": [job.model_dump(mode="json") for job in self.jobs],
            "nodes": dict(self.nodes),
            "runnable": encode(self.problem.runnable),
            "excluded": dict(self.problem.excluded),
            "lasting": encode(self.runnable_if_up),
            "allocation": self.allocation.to_dict(),
            **({} if self.reused is None else {"carried": self.reused.to_dict()}),
            **({"note": self.note} if self.note else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], cluster: Cluster, profile: Profile) -> CurrentAllocation:
        """Restore the current allocation from `to_dict`; raises `ValueError` for arrays of different shapes."""
        policy_input = PolicyInput.from_dict(document["question"], tuple(Job(**job) for job in document["jobs"]))
        nodes = NodeStates.from_dict(cluster, document["nodes"])
        # Constraints change `runnable` and `excluded`; the rest of the problem follows from the input.
        problem = replace(
            policy_input.problem(nodes, profile), runnable=decode(document["runnable"]), excluded=dict(document["excluded"])
        )
        allocation = Allocation.from_dict(document["allocation"])
        runnable, reused = np.asarray(decode(document["lasting"])), None
        if "carried" in document:
            reused = ReusedAllocation.from_dict(document["carried"], allocation)
        found = cls(policy_input, nodes.to_dict(), problem, allocation, runnable, reused, document.get("note", ""))
        if not problem.throughputs.shape == problem.runnable.shape == runnable.shape == found.fractions.shape:
            raise ValueError("the arrays of the allocation in force do not fit each other")
        return found

    @property
    def is_time_limited(self) -> bool:
        """Whether the time limit ended the solve."""
        return self.allocation.status is AllocationStatus.TIME_LIMIT

    @property
    def is_up_to_date(self) -> bool:
        """Whether this is the policy's complete answer for just these jobs."""
        return self.reused is None and not self.is_time_limited

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs as they were in the input."""
        return self.policy_input.jobs

    @property
    def solved_seconds(self) -> float:
        """The time of the solve."""
        return self.policy_input.now_seconds if self.reused is None else self.reused.solved_seconds

    @cached_property
    def fractions(self) -> Floats:
        """(N, K) time fractions."""
        fractions = self.allocation.time_fractions
        return fractions if self.reused is None else self.reused.rows_of(fractions)

    def fractions_for(self, jobs: Sequence[Job]) -> Floats:
        """Return (len(jobs), K) the time fractions of other jobs, 0 for jobs that have arrived since."""
        row_of = {job_id: row for row, job_id in enumerate(self.problem.job_ids)}
        rows = np.array([row_of.get(job.job_id, len(row_of)) for job in jobs], dtype=np.int64)
        zeros = np.zeros((1, len(self.problem.accelerator_types)))
        fractions: Floats = np.concatenate([self.fractions, zeros])[rows]
        return fractions

    @property
    def excluded(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that can run nowhere."""
        return dict(self.allocation.excluded if self.reused is None else self.problem.excluded)

    def has_same_solution(self, other: object) -> bool:
        """Return whether another current allocation has the same solution, whatever its jobs."""
        return self is other or (isinstance(other, CurrentAllocation) and self.allocation is other.allocation)

    @cached_property
    def spread_fractions(self) -> Floats | None:
        """(N, K) the part of the time fractions promised on spread placements, NaN where the placement makes no difference.

        None if it makes none for any job.
        """
        speeds, spread = self.problem.speeds, self.allocation.spread_fractions
        if speeds is None or spread is None:
            return None
        return np.where(speeds.differ, spread if self.reused is None else self.reused.rows_of(spread), np.nan)

    @cached_property
    def colocation_promises(self) -> ColocationPromises | None:
        """The time promised with partners, None if there is none."""
        pairs, throughputs = self.allocation.pairs, self.problem.pairs
        if pairs is not None and self.reused is not None:
            pairs = self.reused.pairs(pairs)
        if pairs is None or throughputs is None or not len(pairs):
            return None
        return promises_of(pairs, throughputs.kinds, self.jobs, self.problem.accelerator_types)

    def present(self, registry: JobRegistry) -> Mask:
        """Return (N,) the jobs that are still in the system with the same request for GPUs, and have steps left."""
        now = list(map(registry.jobs.get, self.problem.job_ids))
        there = [job is then or (job is not None and same_gang(then, job)) for then, job in zip(self.jobs, now, strict=True)]
        steps = np.array([0.0 if job is None else job.steps_done for job in now])
        # Unknown total steps are NaN, for which the comparison is false.
        present: Mask = np.array(there, dtype=bool) & ~(steps >= self.problem.total_steps)
        return present

    def unfinished(self, registry: JobRegistry, among: Set[str]) -> tuple[str, ...]:
        """Return those jobs among these that are in the system and, as far as is known, have steps left."""
        total = zip(self.problem.job_ids, self.problem.total_steps.tolist(), strict=True)
        there = ((job_id, steps) for job_id, steps in total if job_id in among and job_id in registry)
        return tuple(job_id for job_id, steps in there if not registry.known(job_id).steps_done >= steps)


def solve_allocation(
    policy_input: PolicyInput, nodes: NodeStates, profile: Profile, solver: Solver, cache: ProblemCache | None = None
) -> CurrentAllocation:
    """Return the policy's allocation for this input on these nodes."""
    problem = policy_input.problem(nodes, profile, cache)
    allocation = solver.solve(problem)
    # The problem as it was solved: constraints may keep jobs off types, and rounds must do so too.
    solved = problem if allocation.evidence is None else allocation.evidence.base
    runnable = solved.runnable
    if nodes.available is not nodes.cluster:
        runnable = runnable | (policy_input.problem_if_up(nodes, profile, cache).runnable & ~problem.runnable)
    return CurrentAllocation(policy_input, nodes.to_dict(), solved, allocation, runnable)


def columns_of(problem: AllocationProblem, assignments: Mapping[str, Assignment]) -> Indices:
    """Return (N,) the column of the type that each job is assigned to, -1 for none."""
    numbers = {name: j for j, name in enumerate(problem.accelerator_types)}
    found = [numbers[assignments[i].accelerator] if i in assignments else -1 for i in problem.job_ids]
    return np.array(found, dtype=np.int64)


def same_gang(one: Job, other: Job) -> bool:
    """Return whether two jobs request the same GPUs (`GANG_FIELDS`)."""
    return one is other or all(getattr(one, name) == getattr(other, name) for name in GANG_FIELDS)


NEGLIGIBLE = 1e-9
"""Time fractions up to this are zero."""


def reuse_allocation(
    before: CurrentAllocation,
    policy_input: PolicyInput,
    nodes: NodeStates,
    profile: Profile,
    constraints: Sequence[Constraint],
    cache: ProblemCache,
) -> CurrentAllocation | None:
    """Return the solution of `before` applied to the jobs of now, None if it gives none of them any time.

    Jobs with the same request for GPUs keep their rows; all others get zeros. Normalisers, such as the equal share of N jobs, are
    those of the jobs of now, so that histories do not depend on how often allocations are solved.

    Args:
        before: The current allocation.
        policy_input: The input with which the policy would be called now.
        nodes: Their states, the same as at the solve.
        profile: The same as at the solve.
        constraints: Those of the policy.
        cache: Rows of jobs.
    """
    whole = policy_input.problem(nodes, profile, cache)
    problem = placed(whole, constraints)
    rows = _rows_in(before, policy_input, problem)
    known = rows >= 0
    runnable, runnable_if_up = problem.runnable.copy(), problem.runnable.copy()
    if nodes.available is not nodes.cluster:
        runnable_if_up |= policy_input.problem_if_up(nodes, profile, cache).runnable & ~whole.runnable
    # Constraints may restrict running jobs differently by now, but promises hold.
    runnable[known] = before.problem.runnable[rows[known]] & whole.runnable[known]
    runnable_if_up[known] = before.runnable_if_up[rows[known]]
    in_solution = rows if before.reused is None else np.where(known, before.reused.rows[rows], -1)
    reused = ReusedAllocation(in_solution, before.solved_seconds)
    found = CurrentAllocation(
        policy_input, before.nodes, replace(problem, runnable=runnable), before.allocation, runnable_if_up, reused
    )
    return found if (found.fractions[runnable] > NEGLIGIBLE).any() else None


def _rows_in(before: CurrentAllocation, policy_input: PolicyInput, problem: AllocationProblem) -> Indices:
    """Return (N,) the row of each job in the current allocation, -1 for new jobs, changed gangs and excluded jobs."""
    excluded = before.problem.excluded.keys() | problem.excluded.keys()
    rows = {job.job_id: row for row, job in enumerate(before.jobs) if job.job_id not in excluded}
    found = [
        row if (row := rows.get(job.job_id, -1)) >= 0 and same_gang(before.jobs[row], job) else -1 for job in policy_input.jobs
    ]
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class LazyAllocation:
    """An allocation that the event-driven mode has derived from changes, solved only if it is read or audited."""

    now_seconds: float  # the time of the decision
    jobs: Mapping[str, Job]  # {job_id: Job} in the system then
    steps: Mapping[str, float]  # {job_id: steps done} that the jobs do not contain yet
    running: Mapping[str, Assignment]  # gangs that ran before the decision
    accelerators: Callable[[], Mapping[str, str]]  # returns {job_id: type} of the jobs that have all of their time on a type
    excluded: Mapping[str, str]  # {job_id: reason} of the jobs that can run nowhere
    whole_gangs: bool  # as for `AllocationProblem.from_jobs`
    solve: Callable[[PolicyInput], CurrentAllocation]  # solves for all jobs

    def in_order(self, job_ids: Iterable[str]) -> tuple[str, ...]:
        """Return job ids in the order of an allocation."""
        return tuple(sorted(job_ids, key=natural_key))

    def resolve(self) -> CurrentAllocation:
        """Solve for all jobs and return the allocation. Raises `ProofError` if it is not what the event-driven mode derived."""
        steps, in_order = self.steps, (self.jobs[job_id] for job_id in self.in_order(self.jobs))
        jobs = tuple(with_steps(job, steps[job.job_id]) if job.job_id in steps else job for job in in_order)
        running_on = tuple(self.running[job.job_id].accelerator if job.job_id in self.running else None for job in jobs)
        new = PolicyInput.of_new(jobs, self.whole_gangs)
        found = self.solve(replace(new, now_seconds=self.now_seconds, running_on=running_on))
        types, fractions = found.problem.accelerator_types, found.allocation.time_fractions
        given = {
            job_id: types[row.index(1.0)]
            for job_id, row in zip(found.problem.job_ids, fractions.tolist(), strict=True)
            if any(row) and row.count(0.0) == len(row) - 1
        }
        if given != self.accelerators() or float(fractions.sum()) != len(given):
            raise ProofError("the jobs in turn were given other time than the policy gives them when it is asked about all of them")
        return found
