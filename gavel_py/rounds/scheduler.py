"""The round scheduler: the state that lives on from round to round, around pure functions that decide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation import Allocation
from gavel_py.allocator import Solver
from gavel_py.cluster import Cluster
from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.job_arrays import Profile, known_part
from gavel_py.jobs import Job
from gavel_py.ordering import natural_key
from gavel_py.policies import Policy
from gavel_py.problem import AllocationProblem
from gavel_py.rounds.assignment import Assignment, Round
from gavel_py.rounds.delivery import DeliveryLedger, DeliveryReport
from gavel_py.rounds.mechanism import Mechanism, RoundDemand, choose_jobs
from gavel_py.rounds.planning import plan_round

__all__ = ["RoundScheduler"]


@dataclass
class _Standing:
    """One job's past: since when it has been waiting, the GPU-seconds it attained, and what its progress would have taken alone.

    isolated_seconds: Σ (steps done between two solves) / iso_i of the first of them; steps_counted: the steps in that sum.
    """

    waiting_since_seconds: float
    steps_counted: float
    isolated_seconds: float = 0.0
    attained_gpu_seconds: float = 0.0


class RoundScheduler:
    """Turns a policy's time fractions into rounds: which job runs on which GPUs from one round to the next.

    cluster: types that the profile does not know are left out, with a `GavelWarning`; policy: a name or a `Policy` object;
    round_seconds: length of a round; mechanism: who runs, given what is owed (`choose_jobs`).
    When a job came or went or reported progress, the allocation is solved anew at the start of the next round; else it is kept.
    A job's account (`delivery`) is kept after it has left, as long as the scheduler lives.
    Every round counts as `round_seconds` of promised, delivered and attained time, whenever the next one starts.

    Raises `InputError` (`UnknownNameError`) for a wrong argument.

    >>> import gavel_py as gp
    >>> speeds = gp.ThroughputProfile.from_matrix([[2.0], [2.0]], job_ids=["a", "b"], accelerators=["v100"])
    >>> scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds)
    >>> scheduler.submit(gp.Job("a"))
    >>> scheduler.submit(gp.Job("b"))
    >>> scheduler.next_round().assignments
    {'a': Assignment(accelerator='v100', gpus=[('v100-0', 0)])}
    """

    def __init__(
        self,
        cluster: Cluster,
        profile: Profile,
        policy: str | Policy = "max_min_fairness",
        round_seconds: float = 360.0,
        *,
        mechanism: Mechanism = choose_jobs,
    ) -> None:
        if not (_is_finite(round_seconds) and round_seconds > 0):
            problem = f"must be a finite number greater than 0, found {round_seconds!r}"
            raise InputError(Fault("round scheduler", "round_seconds", problem))
        self.cluster = known_part(cluster, profile)
        self.profile = profile
        self._solver = Solver(policy)  # it keeps the basis of the last program, so that few changes take little time
        self.round_seconds = float(round_seconds)
        self.mechanism = mechanism
        self._jobs: dict[str, Job] = {}
        self._standings: dict[str, _Standing] = {}
        self._ledger = DeliveryLedger(self.cluster.accelerator_names)
        self._solved: tuple[AllocationProblem, Allocation] | None = None
        self._changed = False
        self._running: Mapping[str, Assignment] = {}
        self._last: Round | None = None

    @property
    def policy(self) -> Policy:
        """The policy that decides on the allocation."""
        return self._solver.policy

    @policy.setter
    def policy(self, policy: str | Policy) -> None:
        self._solver = Solver(policy)
        self._changed = True

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs in the system with the progress last reported, sorted by job_id (`natural_key`)."""
        return tuple(self._jobs[job_id] for job_id in sorted(self._jobs, key=natural_key))

    @property
    def allocation(self) -> Allocation | None:
        """The allocation of the latest round; None before the first."""
        return None if self._solved is None else self._solved[1]

    def submit(self, job: Job) -> None:
        """Add a job, which the next round takes into account; a job that can run nowhere is excluded then, with the reason.

        A submitted job is there, whatever its `arrival_seconds`: that orders jobs and counts their time in the system.
        Raises `InputError` when its id was used before, when it does not fit cluster and profile
        (`AllocationProblem.from_jobs`), or lacks what the policy needs to know.
        """
        if not isinstance(job, Job):
            raise InputError(Fault("round scheduler", "", f"submit needs a Job, found {job!r}"))
        if job.job_id in self._standings:
            raise InputError(Fault(f"job {job.job_id!r}", "job_id", "was submitted before; job ids are used once"))
        # Better refused here than to stop every round from now on.
        self.policy.check(AllocationProblem.from_jobs([job], self.cluster, self.profile))
        self._jobs[job.job_id] = job
        self._standings[job.job_id] = _Standing(job.arrival_seconds, steps_counted=job.steps_done)
        self._changed = True

    def report(self, job_id: str, *, steps_done: float) -> None:
        """Note a job's progress: its steps done in all. With its last step it is finished, and no round will run it again.

        Raises `UnknownNameError` for a job that is not in the system, `InputError` for a wrong number.
        """
        job = self._known(job_id)
        if not (_is_finite(steps_done) and steps_done >= 0):
            problem = f"must be a finite number of at least 0, found {steps_done!r}"
            raise InputError(Fault(f"job {job_id!r}", "steps_done", problem))
        self._jobs[job_id] = job.model_copy(update={"steps_done": float(steps_done)})
        self._changed = True

    def complete(self, job_id: str) -> None:
        """Let a job that is done leave; raises `UnknownNameError`."""
        del self._jobs[self._known(job_id).job_id]
        self._changed = True

    def cancel(self, job_id: str) -> None:
        """Let a job leave that is not done; raises `UnknownNameError`."""
        self.complete(job_id)

    def next_round(self, now_seconds: float | None = None) -> Round:
        """Decide and return the next round.

        now_seconds: its start, by default `round_seconds` after the previous one, the first at 0. When this raises, the
        scheduler is as before: `InputError` for a time that goes backwards, and whatever `solve` raises.
        """
        start = self._start(now_seconds)
        solved = self._solve(start) if self._changed or self._solved is None else self._solved
        problem, allocation = solved
        previous, assignments = self._running, self._plan(problem, allocation)
        if solved is not self._solved:
            self._count_progress(problem)
        self._solved, self._changed = solved, False
        self._account(problem, allocation, assignments, start)
        self._running = assignments
        self._last = Round(
            index=0 if self._last is None else self._last.index + 1,
            start_seconds=start,
            # Copies: what the caller does with the lists must not change what runs.
            assignments={job_id: replace(held, gpus=list(held.gpus)) for job_id, held in assignments.items()},
            kept=tuple(job_id for job_id, held in assignments.items() if previous.get(job_id) == held),
            started=tuple(job_id for job_id, held in assignments.items() if previous.get(job_id) != held),
            preempted=tuple(i for i in _unfinished(problem) if i in previous and i not in assignments),
            excluded=dict(allocation.excluded),
        )
        return self._last

    def delivery(self) -> DeliveryReport:
        """Return what was promised and delivered so far, jobs that have left included."""
        return self._ledger.report()

    def _known(self, job_id: str) -> Job:
        if job_id not in self._jobs:
            text = f"there is no such job in the system{nearest(str(job_id), sorted(self._jobs))}"
            raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))
        return self._jobs[job_id]

    def _start(self, now_seconds: float | None) -> float:
        if now_seconds is None:
            return 0.0 if self._last is None else self._last.start_seconds + self.round_seconds
        earliest = -math.inf if self._last is None else self._last.start_seconds
        if not (_is_finite(now_seconds) and now_seconds >= earliest):
            since = "" if self._last is None else f", not before the previous round, which started at {earliest:g}"
            problem = f"must be a finite number{since}, found {now_seconds!r}"
            raise InputError(Fault("round scheduler", "now_seconds", problem))
        return float(now_seconds)

    def _solve(self, now_seconds: float) -> tuple[AllocationProblem, Allocation]:
        jobs = self.jobs
        standings = [self._standings[job.job_id] for job in jobs]
        problem = AllocationProblem.from_jobs(
            jobs,
            self.cluster,
            self.profile,
            now_seconds=now_seconds,
            waiting_seconds=[max(0.0, now_seconds - standing.waiting_since_seconds) for standing in standings],
            isolated_seconds=self._isolated_seconds(jobs),
            attained_gpu_seconds=[standing.attained_gpu_seconds for standing in standings],
            running_on=[self._running[job.job_id].accelerator if job.job_id in self._running else None for job in jobs],
            previous_fractions=self._previous_fractions(jobs),
        )
        allocation = self._solver.solve(problem)
        # The problem that was solved: constraints may keep jobs off types, and rounds must do so too.
        return problem if allocation.evidence is None else allocation.evidence.problem, allocation

    def _previous_fractions(self, jobs: tuple[Job, ...]) -> NDArray[np.float64] | None:
        """What the allocation in force gives these jobs, 0 for those that have come since."""
        if self._solved is None:
            return None
        allocation = self._solved[1]
        rows = {job_id: row for row, job_id in enumerate(allocation.job_ids)}
        known = np.vstack([allocation.time_fractions, np.zeros(len(allocation.accelerator_types))])
        return known[[rows.get(job.job_id, -1) for job in jobs]]

    def _isolated_seconds(self, jobs: tuple[Job, ...]) -> list[float]:
        """How long each job would have taken for its progress in its isolated share, as that was when the progress was made."""
        speeds: dict[str, float] = {}
        if self._solved is not None:
            speeds = dict(zip(self._solved[0].job_ids, self._solved[0].isolated_throughput.tolist(), strict=True))
        seconds = []
        for job in jobs:
            standing, speed = self._standings[job.job_id], speeds.get(job.job_id, 0.0)
            progress = max(0.0, job.steps_done - standing.steps_counted)
            seconds.append(standing.isolated_seconds + (progress / speed if speed > 0 else 0.0))
        return seconds

    def _count_progress(self, problem: AllocationProblem) -> None:
        for job_id, seconds in zip(problem.job_ids, problem.isolated_seconds.tolist(), strict=True):
            standing = self._standings[job_id]
            standing.isolated_seconds, standing.steps_counted = seconds, self._jobs[job_id].steps_done

    def _plan(self, problem: AllocationProblem, allocation: Allocation) -> dict[str, Assignment]:
        demand = RoundDemand(
            deficits=np.where(problem.runnable, self._ledger.deficits(problem.job_ids), 0.0),
            fractions=allocation.time_fractions,
            runnable=problem.runnable,
            throughputs=np.where(problem.runnable, problem.throughputs, 0.0),
            num_gpus=problem.num_gpus,
            capacities=problem.capacities.astype(np.int64),
            running_on=_columns(problem, self._running),
            backfill=self.policy.backfills and not self.policy.constraints,  # what is left over may be kept free by a constraint
        )
        return plan_round(demand, self.jobs, problem.accelerator_types, self.cluster.nodes, self._running, self.mechanism)

    def _account(
        self, problem: AllocationProblem, allocation: Allocation, assignments: Mapping[str, Assignment], start: float
    ) -> None:
        columns = _columns(problem, assignments)
        self._ledger.record(
            problem.job_ids, problem.num_gpus, problem.runnable, allocation.time_fractions, columns, self.round_seconds
        )
        for job_id in assignments:
            standing = self._standings[job_id]
            standing.attained_gpu_seconds += self.round_seconds * self._jobs[job_id].num_gpus
            standing.waiting_since_seconds = start + self.round_seconds


def _columns(problem: AllocationProblem, assignments: Mapping[str, Assignment]) -> NDArray[np.int64]:
    """(N,) the column of the type that each job is assigned to, -1 for none."""
    numbers = {name: j for j, name in enumerate(problem.accelerator_types)}
    found = [numbers[assignments[i].accelerator] if i in assignments else -1 for i in problem.job_ids]
    return np.array(found, dtype=np.int64)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _unfinished(problem: AllocationProblem) -> list[str]:
    return [job_id for job_id, steps in zip(problem.job_ids, problem.steps_remaining.tolist(), strict=True) if steps != 0]
