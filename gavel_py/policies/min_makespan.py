"""Minimum makespan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.demand import DemandPolicy


@dataclass(frozen=True, kw_only=True)
class MinMakespan(DemandPolicy):
    """Minimum makespan: min θ with thr_i >= n_i / θ, θ in seconds: the time until the last of these jobs ends.

    n_i: steps remaining. Exact: Newton's method, no bisection. Source: Gavel (OSDI 2020), section 4.2.
    """

    direction: ClassVar[Literal["max", "min"]] = "min"
    agnostic_view: ClassVar[Literal["ones", "reference"]] = "reference"
    needs_are_convex: ClassVar[bool] = True

    reads = ("steps_remaining",)

    def need(self, jobs: JobClasses, level: float) -> NDArray[np.float64]:
        needs: NDArray[np.float64] = jobs.steps_remaining / level
        return needs
