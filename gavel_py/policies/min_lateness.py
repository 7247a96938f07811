"""Minimum lateness."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.errors import GavelWarning
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.demand import DemandPolicy
from gavel_py.problem.arrays import Floats

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program


@dataclass(frozen=True, kw_only=True)
class MinLateness(DemandPolicy):
    """Miss deadlines by as little as possible.

    Minimum lateness: min θ with thr_i >= n_i / (d_i + θ): no job ends more than θ seconds after its deadline.

    θ = max_i n_i / thr_i - d_i; n_i: steps remaining, d_i: seconds from now to the deadline, below 0 where it has passed, or to the
    latest end with which jobs that wait for it can meet theirs, if that is earlier.
    θ below 0: every job ends at least -θ seconds before it. Jobs without a deadline need nothing and get what is left.
    Source: maximum lateness, Jackson (1955), for fractions of time.
    """

    direction = "min"
    agnostic_view = "reference"
    needs_are_convex = True
    reads = ("steps_remaining", "deadlines_seconds", "latest_end_seconds")

    def need(self, jobs: JobClasses, level: float) -> Floats:
        left = self._deadlines(jobs) + level
        needs: Floats = np.divide(jobs.steps_remaining, left, out=np.full(left.shape, np.inf), where=left > 0)
        return np.where(np.isnan(left), 0.0, needs)

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:
        deadlines = self._deadlines(jobs)
        return np.where(np.isnan(deadlines), -np.inf, jobs.steps_remaining / throughputs - deadlines)

    def objective(self, program: Program) -> cp.Expression:
        import cvxpy as cp

        deadlines = self._deadlines(program.jobs)
        due = np.flatnonzero(~np.isnan(deadlines))
        left = cp.multiply(program.steps_remaining[due], cp.inv_pos(program.throughput[due]))
        return cp.max(left - deadlines[due])

    def _deadlines(self, jobs: JobClasses) -> Floats:
        """Return (G,) d_i, all 0 with a warning if no job has a deadline, which may happen in a long-running scheduler."""
        deadlines: Floats = np.fmin(jobs.deadlines_seconds, jobs.latest_end_seconds)
        if not np.isnan(deadlines).all():
            return deadlines
        text = f"no job has a deadline, so {self.name} treats all as due now and minimises the last end, as min_makespan does"
        warnings.warn(text, GavelWarning, stacklevel=2)
        return np.zeros(len(jobs))
