"""Max-min fairness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.demand import DemandPolicy


@dataclass(frozen=True, kw_only=True)
class MaxMinFairness(DemandPolicy):
    """Max-min fairness (least attained service in Gavel): max θ with thr_i >= θ · w_i · P_i / s_i.

    θ = min_i s_i·thr_i / (w_i·P_i); w_i: weight, P_i: throughput of an equal share, s_i: GPUs of the gang.
    Source: Gavel (OSDI 2020), sections 4.1 and 4.2.
    """

    needs_are_convex: ClassVar[bool] = True

    reads = ("weights",)

    def need(self, jobs: JobClasses, level: float) -> NDArray[np.float64]:
        needs: NDArray[np.float64] = level * jobs.weights * jobs.equal_share / jobs.num_gpus
        return needs
