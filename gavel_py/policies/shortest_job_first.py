"""Shortest job first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import option
from gavel_py.policies.ordered import OrderedPolicy


@dataclass(frozen=True, kw_only=True)
class ShortestJobFirst(OrderedPolicy):
    """Shortest job first: ascending best-case time n_i / max_j T_ij, over the types where job i can run.

    n_i: steps remaining (`by="remaining"`, also known as SRTF) or total steps (`by="total"`).
    Source: Gavel (OSDI 2020), section 4.2, in its lexicographic form: it goes on to serve the others.
    """

    by: Literal["remaining", "total"] = option("remaining", "which steps count: those remaining, or the job's total")

    agnostic_view: ClassVar[Literal["ones", "reference"]] = "reference"

    @property
    def reads(self) -> tuple[str, ...]:
        return ("steps_remaining" if self.by == "remaining" else "total_steps",)

    @property
    def by_job(self) -> bool:
        return True

    def sort_key(self, jobs: JobClasses) -> NDArray[np.float64]:
        steps: NDArray[np.float64] = getattr(jobs, self.reads[0])
        return steps / jobs.fastest
