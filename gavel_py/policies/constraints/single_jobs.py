"""Constraints on single jobs: their types and throughputs, preemption, and the cost of change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator

from gavel_py.errors import Fault, check_together
from gavel_py.io.records import Name, Positive, Seconds
from gavel_py.optimization.formulation.linear_rows import Need, Place
from gavel_py.policies.constraints.base import Constraint, Scope, listed, same_name, uniform_place
from gavel_py.problem.arrays import Floats, Indices, Mask


def _one_or_more(value: object) -> object:
    check_together((isinstance(value, list | tuple) and not value, "must name at least one"))
    return listed(value)


Names = Annotated[tuple[Name, ...], BeforeValidator(listed)]
OneOrMore = Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)]


class Pin(Constraint):
    """Restrict a job to accelerator types: X_ij = 0 on all others. It conflicts if the job can run on none of them.

    Attributes:
        job: The job's id.
        accelerators: The only types on which it may run, one or more.
    """

    never_soft = "either holds or does not"

    job: Name
    accelerators: OneOrMore

    @property
    def text(self) -> str:
        return f"the pin of job {self.job!r} to {', '.join(self.accelerators)}"

    def faults(self, scope: Scope) -> list[Fault]:
        return self._unknown_types(scope, "accelerators", self.accelerators)

    def places(self, scope: Scope) -> list[Place]:
        return [uniform_place(self.text, scope.jobs(self.job, self), scope.columns(self.accelerators), insists=True)]


class Forbid(Constraint):
    """Keep a job off accelerator types: X_ij = 0 there.

    Attributes:
        job: The job's id.
        accelerators: Types on which it may not run; if empty, the job gets no time at all.
    """

    never_soft = "either holds or does not"

    job: Name
    accelerators: Names = ()

    @property
    def text(self) -> str:
        return f"the ban of job {self.job!r}" + (f" from {', '.join(self.accelerators)}" if self.accelerators else "")

    def faults(self, scope: Scope) -> list[Fault]:
        return self._unknown_types(scope, "accelerators", self.accelerators)

    def places(self, scope: Scope) -> list[Place]:
        banned = self.accelerators or scope.problem.accelerator_types
        return [uniform_place(self.text, scope.jobs(self.job, self), ~scope.columns(banned))]


class KeepRunning(Constraint):
    """Do not preempt running jobs: X_ij = 1 on the type j where job i runs (`running_on`).

    Jobs that can no longer run on their type are left out. It conflicts with limits that require GPUs of these jobs.

    Attributes:
        jobs: Ids of jobs that are not preempted; None for all that run.
    """

    never_soft = "either holds or does not"

    jobs: OneOrMore | None = None

    @property
    def text(self) -> str:
        return "no preemption of running jobs" + ("" if self.jobs is None else f" {', '.join(repr(job) for job in self.jobs)}")

    def places(self, scope: Scope) -> list[Place]:
        rows, types = self._kept(scope)
        return [Place(self._name_of(scope), rows, types[:, None] == np.arange(len(scope.problem.capacities)), insists=True)]

    def needs(self, scope: Scope) -> list[Need]:
        rows, types = self._kept(scope)
        return [Need(self._name_of(scope), rows, scope.problem.throughputs[rows, types], types=types)]

    def _name_of(self, scope: Scope) -> Callable[[int], str]:
        return partial(_no_preemption, scope.problem.job_ids)

    def _kept(self, scope: Scope) -> tuple[Indices, Indices]:
        """Return the rows of the running jobs to keep, and their types."""
        problem = scope.original
        named: Mask | bool = True
        if self.jobs is not None:
            named = scope.mask(np.concatenate([scope.jobs(job, self) for job in self.jobs]))
        rows = np.flatnonzero((problem.running_on >= 0) & named)
        rows = rows[problem.runnable[rows, problem.running_on[rows]]]
        return rows, problem.running_on[rows]


class SwitchCost(Constraint):
    """Charge the objective for changes of the allocation: cost · Σ_ij s_i |X_ij − previous_ij| (`previous_fractions`).

    The sum is over the types where a job can run. An elastic job counts for one GPU, whatever its number of GPUs.

    Attributes:
        cost: Loss of the objective per GPU that a job gains or loses on a type.
    """

    never_soft = "is itself a price"

    cost: Positive

    @property
    def text(self) -> str:
        return f"the cost of change, {self.cost:g} per GPU"


class MinThroughput(Constraint):
    """Require a throughput of a job: thr_i >= rate.

    It conflicts if the job's fastest accelerator type gives less, or if other constraints require the GPUs.

    Attributes:
        job: The job's id.
        rate: Its least throughput, steps per second.
    """

    job: Name
    rate: Positive

    @property
    def text(self) -> str:
        return f"the throughput of {self.rate:g} steps/s for job {self.job!r}"

    def needs(self, scope: Scope) -> list[Need]:
        rows = _able(self, scope, scope.jobs(self.job, self))
        return [Need(same_name(self.text), rows, np.full(len(rows), self.rate), self.penalty)]


class Deadline(Constraint):
    """Require that jobs end by their deadlines: thr_i >= n_i / d_i, n_i steps remaining, d_i seconds from now to the deadline.

    It conflicts if a deadline is past or too near. A soft deadline is missed by 1 − thr_i · d_i / n_i, like `MinThroughput` with
    this rate, and by 1 if it is past; it includes the latest ends of jobs for which others with deadlines wait.

    Attributes:
        job: The job's id; None for all jobs that have a deadline and can run.
        seconds: Time d_i until the deadline, from now; None for the deadlines of the jobs.
    """

    job: Name | None = None
    seconds: Seconds | None = None

    @property
    def text(self) -> str:
        subject = "the deadlines of all jobs" if self.job is None else f"the deadline of job {self.job!r}"
        return subject if self.seconds is None else f"{subject} in {self.seconds:g} s"

    def faults(self, scope: Scope) -> list[Fault]:
        problem, rows = scope.problem, self._concerned(scope)
        text = "is unknown, but a deadline needs it"
        unknown = rows[np.isnan(problem.steps_remaining[rows])].tolist()
        faults = [Fault(f"job {problem.job_ids[i]!r}", "steps_remaining", text) for i in unknown]
        if self.job is not None and not len(rows) and len(scope.jobs(self.job, self)):
            faults.append(self._fault("seconds", "must be given: the job has no deadline of its own"))
        return faults

    def needs(self, scope: Scope) -> list[Need]:
        problem, rows = scope.problem, self._concerned(scope)
        if self.job is None:
            rows = rows[problem.runnable[rows].any(axis=1)]  # the others are excluded, with a reason
            if not len(rows):
                scope.warn(self, "no job has a deadline")
        rows = _able(self, scope, rows)
        seconds = self._seconds(scope, rows)
        least = np.divide(problem.steps_remaining[rows], seconds, out=np.full(len(rows), np.inf), where=seconds > 0)
        return [Need(partial(_deadline_of, problem.job_ids, rows, seconds), rows, least, self.penalty)]

    def _concerned(self, scope: Scope) -> Indices:
        """Return the rows of the unfinished jobs with a deadline to which this constraint applies."""
        rows = np.flatnonzero(scope.unfinished) if self.job is None else scope.jobs(self.job, self)
        return rows[~np.isnan(self._seconds(scope, rows))]

    def _seconds(self, scope: Scope, rows: Indices) -> Floats:
        """Return the seconds to the deadlines of these jobs, NaN for jobs without one."""
        if self.seconds is not None:
            return np.full(len(rows), self.seconds)
        own, problem = scope.problem.deadlines_seconds[rows], scope.problem
        return own if self.penalty is None else np.fmin(own, problem.latest_end_seconds[rows])


def _able(constraint: Constraint, scope: Scope, rows: Indices) -> Indices:
    """Return the jobs that can run, for a soft constraint; a hard one keeps all jobs, and conflicts if one cannot run."""
    if constraint.penalty is None:
        return rows
    idle = rows[~scope.problem.runnable[rows].any(axis=1)]
    for job_id in (scope.problem.job_ids[i] for i in idle.tolist()):
        scope.warn(constraint, f"job {job_id!r} is excluded: {scope.problem.excluded[job_id]}")
    return np.setdiff1d(rows, idle)


def _no_preemption(job_ids: Sequence[str], i: int) -> str:
    return f"no preemption of running job {job_ids[i]!r}"


def _deadline_of(job_ids: Sequence[str], rows: Indices, seconds: Floats, i: int) -> str:
    left = float(seconds[np.searchsorted(rows, i)])
    when = f"in {left:g} s" if left > 0 else f"which passed {abs(left):g} s ago"
    return f"the deadline of job {job_ids[i]!r} {when}"
