"""What every policy is: options that are stored, a view of the matrix, and a decision."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.optimization.checking.certificates import Certificate, Prices
from gavel_py.optimization.formulation.colocation import Pairs
from gavel_py.optimization.formulation.linear_rows import Broken, Rules
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.optimization.solving.free_times import FreeTimes
from gavel_py.policies.constraints import Constraint, given_constraints
from gavel_py.problem.arrays import Floats
from gavel_py.problem.problem import AllocationProblem

if TYPE_CHECKING:
    from gavel_py.optimization.solving.highs import LinearSolver


class AllocationStatus(StrEnum):
    """How an allocation came about. Of those with an objective, all but `TIME_LIMIT` are proven optimal."""

    OPTIMAL = "optimal"
    """A linear or concave program, solved to a proven optimum."""
    ORDERED = "ordered"
    """Jobs were served in an order; there is no objective."""
    FORMULA = "formula"
    """A formula stated it, to compare with; there is no objective."""
    EMPTY = "empty"
    """There is no job to allocate to."""
    TIME_LIMIT = "time_limit"
    """The time limit of the solve was reached. The allocation is valid, and its gap says how far from optimal it may be."""


def option(default: Any, text: str) -> Any:
    """Return a dataclass field for a policy's option, with the text that `gavel policies show` prints."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Decision:
    """What a policy decides: (G, K) time fractions of each job of a class; certificate and (K,) prices where there is a program.

    algorithm: what found the answer, if not the solver that the policy was given; notes: what its reader should know; pairs: who
    shares GPUs with whom, where the policy says it itself.
    """

    time_fractions: Floats
    certificate: Certificate | None = None
    shadow_prices: Floats | None = None
    algorithm: str | None = None
    notes: tuple[str, ...] = ()
    pairs: Pairs | None = None


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """A rule that turns an `AllocationProblem` into time fractions. It has options, and no state between calls.

    Subclass one of the three families (`OrderedPolicy`, `SumPolicy`, `DemandPolicy`), or `FormulaPolicy` to compare with. A
    policy's name is its class's name in lower case with underscores. constraints: what its allocations must keep; a list will do.
    """

    agnostic: bool = option(False, "treat all accelerator types as equally fast (the comparison of the Gavel paper)")
    reference: str | None = option(None, "with agnostic: the accelerator type whose speed counts for all types")

    constraints: tuple[Constraint, ...] = ()

    family: ClassVar[str] = "own"
    agnostic_view: ClassVar[Literal["ones", "reference"]] = "ones"
    empty_objective: ClassVar[float | None] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraints", given_constraints(self.constraints, f"policy {self.name}"))

    @property
    def reads(self) -> tuple[str, ...]:
        """The attributes of jobs that this policy reads, beside throughputs, gang sizes and the types where they may run.

        Jobs that agree in all of them are equal to the policy and share one row of its program. Names of arrays of
        `AllocationProblem`: ("weights",), ("steps_remaining", "elapsed_seconds"), ... A policy writes `reads = (...)` in its
        class. Steps that are read must be known of every job.
        """
        return ()

    reduces: ClassVar[bool] = True

    @abstractmethod
    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        """Return the decision for classes of jobs that can all run somewhere."""

    def guess(self, jobs: JobClasses) -> Floats | None:  # noqa: ARG002
        """Return (G, K) a good allocation that takes no solver, which may exceed what rules allow; None if none is known.

        It is one of the candidates where a time limit ends the solve (`best_of`).
        """
        return None

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:  # noqa: ARG002
        """Return the best of some allocations with the best bound that follows from some prices.

        This is for allocations and prices that come from elsewhere than an optimum of these jobs: from a solve that its time limit
        ended, or from slightly different throughputs. Any prices give a bound, by weak duality.

        Args:
            jobs: The classes as this policy sees them.
            candidates: Valid allocations, each (G, K).
            prices: Prices of GPUs and limits; there may be none.

        Returns:
            A decision without a certificate where the policy has no objective, or none that can be bounded.
        """
        return Decision(candidates[-1])

    @property
    def name(self) -> str:
        """The name under which it is known."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def status(self) -> AllocationStatus:
        """How its allocations come about."""
        return AllocationStatus.ORDERED if self.empty_objective is None else AllocationStatus.OPTIMAL

    @property
    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as plain data that JSON can hold."""
        return self._changed()

    @property
    def label(self) -> str:
        """The name with the options that differ from their defaults, as the command line takes it: fifo,backfill=true."""
        options = (f"{name}={_text(value)}" for name, value in self._changed().items())
        return ",".join([self.name, *options])

    def _changed(self) -> dict[str, Any]:
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        values.pop("constraints")
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def backfills(self) -> bool:
        """Whether GPUs that the allocation leaves idle may be given to other jobs for a round."""
        return True

    def check(self, problem: AllocationProblem) -> None:
        """Raise `InputError` if a job that can run lacks what this policy needs to know of it."""
        self.view(separate_jobs(problem, self.name, self.reads))

    def check_rules(self, jobs: JobClasses, solver: LinearSolver) -> Floats | None:
        """Return (G, K) time fractions that keep all constraints, or None if it is easy to keep them.

        Raises:
            InputError: Constraints cannot all hold, or not under this policy.
        """
        if self.agnostic and jobs.rules.floors:
            text = "sees no throughputs with agnostic, so it can promise none: leave out constraints on throughputs and deadlines"
            raise InputError(Fault(f"policy {self.name}", "constraints", text))
        if self.empty_objective is None:
            if jobs.rules.has_penalties:
                text = "has no objective to weigh soft constraints and the cost of change against; make them hard or leave them out"
                raise InputError(Fault(f"policy {self.name}", "constraints", text))
        elif jobs.rules.can_conflict:
            from gavel_py.optimization.checking.infeasibility import check_rules

            return check_rules(jobs, solver)
        return None

    def check_kept(self, broken: Sequence[Broken]) -> None:
        """Raise `InputError` if a policy that searches for nothing has come to an answer that breaks rules."""
        text = f"is not kept by {self.name}, which does not look for another allocation; a policy with an objective does"
        InputError.raise_any([Fault(f"constraint {each.name}", "", text) for each in broken])

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:  # noqa: ARG002
        """Return the rules by which another policy keeps what this one has decided, its objective to a part of `tolerance`."""
        raise InputError(Fault(f"policy {self.name}", "", "has no objective that a second policy could keep"))

    @property
    def is_agnostic(self) -> bool:
        """Whether all types are equally fast to it, so that on which of them a job runs is left to chance."""
        return self.agnostic

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes | None:  # noqa: ARG002
        """Return which total times of jobs are as good as those of a decision, for an agnostic policy; None if nothing is known."""
        return None

    def view(self, jobs: JobClasses) -> JobClasses:
        """Return the jobs as this policy sees them.

        agnostic: T_ij := 1 (view "ones") or T_ij := T_i,reference (view "reference"). Where a job cannot run it still gets no
        time, but normalisers are taken from the whole matrix, as always before any masking.
        """
        if not self.agnostic:
            return jobs
        speed = np.ones(len(jobs)) if self.agnostic_view == "ones" else self._reference_speed(jobs)
        return jobs.with_throughputs(np.repeat(speed[:, None], len(jobs.capacities), axis=1))

    def _reference_speed(self, jobs: JobClasses) -> Floats:
        types = jobs.accelerator_types
        if self.reference is None:
            raise InputError(Fault(f"policy {self.name}", "reference", f"is needed with agnostic; one of {', '.join(types)}"))
        if self.reference not in types:
            text = f"{self.reference!r} is not an accelerator type of this problem{nearest(self.reference, types)}"
            raise UnknownNameError(Fault(f"policy {self.name}", "reference", text))
        speed: Floats = jobs.throughputs[:, types.index(self.reference)]
        text = f"cannot run on the reference accelerator {self.reference!r}, so its speed there cannot stand for the others"
        InputError.raise_any([Fault(f"job {job!r}", "", text) for job in jobs.names(speed <= 0)])
        return speed


def _text(value: object) -> str:
    """An option's value as the command line takes it."""
    if isinstance(value, tuple):
        return ":".join(map(_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
