"""Minimum makespan."""

from __future__ import annotations

from dataclasses import dataclass

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.demand import DemandPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class MinMakespan(DemandPolicy):
    """End the last job as early as possible.

    Minimum makespan: min θ with thr_i >= n_i / θ, θ in seconds: the time until the last of these jobs ends.

    n_i: steps remaining; for a job that others wait for, also those that it would do in the seconds of the longest path of these,
    n_i + path_i · max_j T_ij. Exact: Newton's method, no bisection. Source: Gavel (OSDI 2020), section 4.2.
    """

    direction = "min"
    agnostic_view = "reference"
    needs_are_convex = True
    reads = ("steps_remaining", "path_seconds")

    def need(self, jobs: JobClasses, level: float) -> Floats:
        needs: Floats = (jobs.steps_remaining + jobs.path_seconds * jobs.fastest) / level
        return needs
