"""Max-min fairness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.policies.demand import DemandPolicy
from gavel_py.problem import AllocationProblem

__all__ = ["MaxMinFairness"]


@dataclass(frozen=True, kw_only=True)
class MaxMinFairness(DemandPolicy):
    """Max-min fairness (least attained service in Gavel): max θ with thr_i >= θ · w_i · P_i / s_i.

    θ = min_i s_i·thr_i / (w_i·P_i); w_i: weight, P_i: throughput of an equal share, s_i: GPUs of the gang.
    Source: Gavel (OSDI 2020), sections 4.1 and 4.2.
    """

    def need(self, problem: AllocationProblem, level: float) -> NDArray[np.float64]:
        return level * problem.weights * problem.equal_share / problem.num_gpus
