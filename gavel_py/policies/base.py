"""What every policy is: options that are stored, a view of the matrix, and a decision."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.job_classes import JobClasses, separate_jobs
from gavel_py.problem import AllocationProblem
from gavel_py.proof import Certificate

if TYPE_CHECKING:
    from gavel_py.solver import LinearSolver

__all__ = ["Decision", "Policy", "option"]

Floats = NDArray[np.float64]


def option(default: Any, text: str) -> Any:
    """Return a dataclass field for a policy's option, with the text that `gavel policies show` prints."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Decision:
    """What a policy decides: (G, K) time fractions of each job of a class; certificate and (K,) prices where there is a program."""

    time_fractions: Floats
    certificate: Certificate | None = None
    shadow_prices: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """A rule that turns an `AllocationProblem` into time fractions. It has options, and no state between calls.

    Subclass one of the three families (`OrderedPolicy`, `SumPolicy`, `DemandPolicy`). A policy's name is its class's name
    in lower case with underscores.
    """

    agnostic: bool = option(False, "treat all accelerator types as equally fast (the comparison of the Gavel paper)")
    reference: str | None = option(None, "with agnostic: the accelerator type whose speed counts for all types")

    agnostic_view: ClassVar[Literal["ones", "reference"]] = "ones"
    empty_objective: ClassVar[float | None] = 0.0

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

    def certificate(self, jobs: JobClasses, decision: Decision) -> Certificate | None:  # noqa: ARG002
        """Return what proves a decision made for slightly different throughputs for these jobs; None if nothing does."""
        return None

    @property
    def name(self) -> str:
        """The name under which it is known."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def label(self) -> str:
        """The name with the options that differ from their defaults, as the command line takes it: fifo,backfill=true."""
        options = (f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in self.changed_options.items())
        return ",".join([self.name, *options])

    @property
    def backfills(self) -> bool:
        """Whether GPUs that the allocation leaves idle may be given to other jobs for a round."""
        return True

    def check(self, problem: AllocationProblem) -> None:
        """Raise `InputError` if a job that can run lacks what this policy needs to know of it."""
        self.view(separate_jobs(problem, self.name, self.reads))

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
