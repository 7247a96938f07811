"""Constraints on the types of single jobs, on preemption, and the cost of change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator

from gavel_py.errors import Fault
from gavel_py.io.records import Name, Positive
from gavel_py.optimization.formulation.linear_rows import Need, Place
from gavel_py.policies.constraints.base import Constraint, Scope, listed
from gavel_py.problem.arrays import Indices, Mask


def _one_or_more(value: object) -> object:
    if isinstance(value, list | tuple) and not value:
        raise ValueError("must name at least one")
    return listed(value)


Names = Annotated[tuple[Name, ...], BeforeValidator(listed)]
OneOrMore = Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)]


class Pin(Constraint):
    """Restrict a job to accelerator types: X_ij = 0 on all others. It conflicts if the job can run on none of them.

    Attributes:
        job: The job's id.
        accelerators: One or more types.
    """

    never_soft = "can only hold or not"

    job: Name
    accelerators: OneOrMore

    @property
    def text(self) -> str:
        return f"the pin of job {self.job!r} to {', '.join(self.accelerators)}"

    def faults(self, scope: Scope) -> list[Fault]:
        return self._unknown_types(scope, "accelerators", self.accelerators)

    def places(self, scope: Scope) -> list[Place]:
        return [_at_most(self.text, scope.jobs(self.job, self), scope.columns(self.accelerators), insists=True)]


class Forbid(Constraint):
    """Keep a job off accelerator types: X_ij = 0 there.

    Attributes:
        job: The job's id.
        accelerators: Types; if empty, the job gets no time at all.
    """

    never_soft = "can only hold or not"

    job: Name
    accelerators: Names = ()

    @property
    def text(self) -> str:
        return f"the ban of job {self.job!r}" + (f" from {', '.join(self.accelerators)}" if self.accelerators else "")

    def faults(self, scope: Scope) -> list[Fault]:
        return self._unknown_types(scope, "accelerators", self.accelerators)

    def places(self, scope: Scope) -> list[Place]:
        banned = self.accelerators or scope.problem.accelerator_types
        return [_at_most(self.text, scope.jobs(self.job, self), ~scope.columns(banned))]


class KeepRunning(Constraint):
    """Do not preempt running jobs: X_ij = 1 on the type j where job i runs (`running_on`).

    Jobs that can no longer run on their type are left out. It conflicts with limits that require GPUs of these jobs.

    Attributes:
        jobs: Ids of jobs; None for all.
    """

    never_soft = "can only hold or not"

    jobs: OneOrMore | None = None

    @property
    def text(self) -> str:
        return "no preemption of running jobs" + ("" if self.jobs is None else f" {', '.join(repr(job) for job in self.jobs)}")

    def places(self, scope: Scope) -> list[Place]:
        rows, types = self._kept(scope)
        return [Place(self._name_of(scope), rows, types[:, None] == np.arange(len(scope.problem.capacities)), insists=True)]

    def needs(self, scope: Scope) -> list[Need]:
        rows, types = self._kept(scope)
        return [Need(self._name_of(scope), rows, scope.problem.throughputs[rows, types])]

    def _name_of(self, scope: Scope) -> Callable[[int], str]:
        return lambda i: f"no preemption of running job {scope.problem.job_ids[i]!r}"

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

    The sum is over the types where a job can run.

    Attributes:
        cost: Loss of the objective per GPU that changes.
    """

    never_soft = "is a price itself"

    cost: Positive

    @property
    def text(self) -> str:
        return f"the cost of change, {self.cost:g} per GPU"


def _at_most(name: str, rows: Indices, types: Mask, *, insists: bool = False) -> Place:
    return Place(lambda i: name, rows, np.tile(types, (len(rows), 1)), insists)  # noqa: ARG005
