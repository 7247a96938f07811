"""Maximum progress rate."""

from __future__ import annotations

from dataclasses import dataclass

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.linear_sums import LinearSumPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class MaxProgressRate(LinearSumPolicy):
    """Complete the largest fraction of all jobs per second.

    Maximum progress rate: max Σ_i w_i thr_i(X) / n_i, the fractions of all jobs that are completed per second.

    w_i: weight; n_i: steps remaining. Source: shortest job first as a linear program; weights as in weighted completion time
    (Smith 1956: most weight per time left first).
    """

    agnostic_view = "reference"
    reads = ("weights", "steps_remaining")

    def gains(self, jobs: JobClasses) -> Floats:
        gains: Floats = (jobs.weights / jobs.steps_remaining)[:, None] * jobs.throughputs
        return gains
