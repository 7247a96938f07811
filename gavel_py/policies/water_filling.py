"""Water-filling: lexicographic max-min fairness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.demand import FillingPolicy

if TYPE_CHECKING:
    from gavel_py.optimization.solving.progressive_filling import Shares


@dataclass(frozen=True, kw_only=True)
class WaterFilling(FillingPolicy):
    """Make the worst-off job fast, then the next, and so on.

    Water-filling: lexicographic max-min of u_i = s_i · v_i / w_i, v_i = thr_i / P_i: first the least, then the next, ...

    All jobs rise together until some cannot; these stay at their level, and the others continue. The vector v is unique. The
    objective value is the least u_i, as in max_min_fairness.
    Source: Gavel (OSDI 2020), section 4.3, there with whole-number programs.
    """

    reads = ("weights",)

    def shares(self, jobs: JobClasses) -> Shares:
        from gavel_py.policies.fair_queueing import ServiceTree

        none = np.zeros(len(jobs), dtype=np.int64)
        return ServiceTree(counts=jobs.counts, weights=jobs.weights, ranks=none, leaves=none)
