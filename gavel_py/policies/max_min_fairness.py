"""Max-min fairness."""

from __future__ import annotations

from dataclasses import dataclass

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.demand import DemandPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class MaxMinFairness(DemandPolicy):
    """Make the worst-off job as fast as possible.

    Max-min fairness (least attained service in Gavel): max θ with thr_i >= θ · w_i · P_i / s_i.

    θ = min_i s_i·thr_i / (w_i·P_i); w_i: weight, P_i: throughput of an equal share, s_i: GPUs of the gang.
    Source: Gavel (OSDI 2020), sections 4.1 and 4.2.
    """

    needs_are_convex = True
    reads = ("weights",)

    def need(self, jobs: JobClasses, level: float) -> Floats:
        needs: Floats = level * jobs.weights * jobs.equal_share / jobs.num_gpus
        return needs
