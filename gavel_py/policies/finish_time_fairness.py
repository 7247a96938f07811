"""Finish-time fairness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.demand import DemandPolicy
from gavel_py.problem.arrays import Floats

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program


@dataclass(frozen=True, kw_only=True)
class FinishTimeFairness(DemandPolicy):
    """Keep every job close to its fair finish time.

    Finish-time fairness: min θ with thr_i >= n_i / (θ · D_i - t_i): no job ends later than θ times its fair finish time.

    θ = max_i (t_i + n_i / thr_i) / D_i; n_i: steps remaining, t_i: seconds since arrival, D_i = (seconds of isolated work done
    so far) + n_i / iso_i, iso_i: steps/s in the isolated share, 1/N of each type (`JobClasses.isolated_throughput`).
    Source: Gavel (OSDI 2020), section 4.2; Themis (NSDI 2020), section 3.
    """

    direction = "min"
    agnostic_view = "reference"
    needs_are_convex = True
    reads = ("steps_remaining", "elapsed_seconds", "isolated_seconds")

    def need(self, jobs: JobClasses, level: float) -> Floats:
        left = level * self._fair_seconds(jobs) - jobs.elapsed_seconds
        needs: Floats = np.divide(jobs.steps_remaining, left, out=np.full(left.shape, np.inf), where=left > 0)
        return needs

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:
        levels: Floats = (jobs.elapsed_seconds + jobs.steps_remaining / throughputs) / self._fair_seconds(jobs)
        return levels

    def objective(self, program: Program) -> cp.Expression:
        import cvxpy as cp

        jobs = program.jobs
        left = cp.multiply(jobs.steps_remaining, cp.inv_pos(program.throughput))
        return cp.max(cp.multiply(1 / self._fair_seconds(jobs), jobs.elapsed_seconds + left))

    def _fair_seconds(self, jobs: JobClasses) -> Floats:
        seconds: Floats = jobs.isolated_seconds + jobs.steps_remaining / jobs.isolated_throughput
        return seconds
