"""Maximum progress rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.linear_sums import LinearSumPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class MaxProgressRate(LinearSumPolicy):
    """Complete the largest fraction of all jobs per second.

    Maximum progress rate: max Σ_i w_i thr_i(X) / n_i, the fractions of all jobs that are completed per second.

    w_i: weight; n_i: steps remaining. Of a workflow, the fraction of what all its unfinished jobs have left counts: w_i is its
    weight, and n_i what job i would do in the seconds that they take on their fastest types.
    Source: shortest job first as a linear program; weights as in weighted completion time (Smith 1956: most weight per time left
    first).
    """

    agnostic_view = "reference"
    reads = ("weights", "steps_remaining", "ready_tasks", "workflow_seconds")

    def gains(self, jobs: JobClasses) -> Floats:
        steps = np.where(jobs.workflow_seconds > 0, jobs.workflow_seconds * jobs.fastest, jobs.steps_remaining)
        gains: Floats = (jobs.weights * jobs.ready_tasks / steps)[:, None] * jobs.throughputs
        return gains
