"""What every policy is: options that are stored, a view of the matrix, and a decision."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.problem import AllocationProblem

__all__ = ["Decision", "Policy", "numbers_by_job", "option"]

Floats = NDArray[np.float64]


def option(default: Any, text: str) -> Any:
    """Return a dataclass field for a policy's option, with the text that `gavel policies show` prints."""
    return dataclasses.field(default=default, metadata={"help": text})


def numbers_by_job(policy: Policy, method: str, values: object, problem: AllocationProblem) -> Floats:
    """Return what a policy's method returned as an (N,) array, or raise `InputError` when it is none or not all finite."""
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    if numbers.shape != (problem.num_jobs,) or not np.isfinite(numbers).all():
        text = f"must return a finite number for each of the {problem.num_jobs} jobs, returned {values!r}"
        raise InputError(Fault(f"policy {policy.name}", method, text))
    return numbers


@dataclass(frozen=True)
class Decision:
    """What a policy decides: (N, K) time fractions; value, proven bound and (K,) prices, or None where there is no program.

    objective_scale: the size of the objective's terms, which counts for the gap where they cancel out to a value near 0.
    """

    time_fractions: Floats
    objective_value: float | None = None
    objective_bound: float | None = None
    shadow_prices: Floats | None = None
    objective_scale: float = 0.0


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

    @abstractmethod
    def decide(self, problem: AllocationProblem) -> Decision:
        """Return the decision for a problem in which every job can run somewhere; its jobs come sorted by id."""

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

    @property
    def needs(self) -> tuple[str, ...]:
        """Arrays of the problem that may be unknown (NaN) for a job, but that this policy cannot do without."""
        return ()

    def check(self, problem: AllocationProblem) -> None:
        """Raise `InputError` if a job that can run lacks what this policy needs to know of it."""
        active = problem.select(np.flatnonzero(problem.runnable.any(axis=1)))
        self.view(active)
        for field in self.needs:
            active.required(field, self.name)

    def view(self, problem: AllocationProblem) -> AllocationProblem:
        """Return the problem as this policy sees it.

        agnostic: T_ij := 1 (view "ones") or T_ij := T_i,reference (view "reference"); zeros stay zero.
        """
        if not self.agnostic:
            return problem
        speed = np.ones(problem.num_jobs) if self.agnostic_view == "ones" else self._reference_speed(problem)
        return replace(problem, throughputs=np.where(problem.throughputs > 0, speed[:, None], 0.0))

    def _reference_speed(self, problem: AllocationProblem) -> Floats:
        types = problem.accelerator_types
        if self.reference is None:
            raise InputError(Fault(f"policy {self.name}", "reference", f"is needed with agnostic; one of {', '.join(types)}"))
        if self.reference not in types:
            text = f"{self.reference!r} is not an accelerator type of this problem{nearest(self.reference, types)}"
            raise UnknownNameError(Fault(f"policy {self.name}", "reference", text))
        speed: Floats = problem.throughputs[:, types.index(self.reference)]
        stuck = [problem.job_ids[i] for i in np.flatnonzero(speed <= 0)]
        text = f"cannot run on the reference accelerator {self.reference!r}, so its speed there cannot stand for the others"
        InputError.raise_any([Fault(f"job {job!r}", "", text) for job in stuck])
        return speed
