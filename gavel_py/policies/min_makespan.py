"""Minimum makespan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.policies.demand import DemandPolicy
from gavel_py.problem import AllocationProblem

__all__ = ["MinMakespan"]


@dataclass(frozen=True, kw_only=True)
class MinMakespan(DemandPolicy):
    """Minimum makespan: min θ with thr_i >= n_i / θ, θ in seconds: the time until the last of these jobs ends.

    n_i: steps remaining. One linear program in 1/θ, exact; no bisection. Source: Gavel (OSDI 2020), section 4.2.
    """

    direction: ClassVar[Literal["max", "min"]] = "min"
    agnostic_view: ClassVar[Literal["ones", "reference"]] = "reference"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("steps_remaining",)

    def need(self, problem: AllocationProblem, level: float) -> NDArray[np.float64]:
        return problem.required("steps_remaining", self.name) / level
