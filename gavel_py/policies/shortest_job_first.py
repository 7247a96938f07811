"""Shortest job first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import option
from gavel_py.policies.ordered import OrderedPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class ShortestJobFirst(OrderedPolicy):
    """Run the jobs that can end soonest first.

    Shortest job first: ascending best-case time n_i / max_j T_ij, over the types where job i can run.

    n_i: steps remaining (`by="remaining"`, also known as SRTF) or total steps (`by="total"`). By remaining steps, the jobs of a
    workflow share its place: the sum over its unfinished jobs, Σ_v n_v / max_j T_vj.
    Source: Gavel (OSDI 2020), section 4.2, in its lexicographic form: it then serves the other jobs.
    """

    by: Literal["remaining", "total"] = option("remaining", "order jobs by their remaining steps or by their total steps")

    agnostic_view = "reference"

    @property
    def reads(self) -> tuple[str, ...]:
        return ("steps_remaining", "workflow_seconds") if self.by == "remaining" else ("total_steps",)

    @property
    def by_job(self) -> bool:
        return True

    def sort_key(self, jobs: JobClasses) -> Floats:
        steps: Floats = getattr(jobs, self.reads[0])
        alone = steps / jobs.fastest
        if self.by == "total":
            return alone
        return np.where(jobs.workflow_seconds > 0, jobs.workflow_seconds, alone)
