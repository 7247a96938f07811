"""Maximum total throughput."""

from __future__ import annotations

from dataclasses import dataclass

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import option
from gavel_py.policies.linear_sums import LinearSumPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class MaxTotalThroughput(LinearSumPolicy):
    """Get the highest total speed of all jobs.

    Maximum total throughput: max Σ_i thr_i(X) / P_i.

    P_i: throughput of an equal share of the cluster, so that models of different step sizes are comparable;
    `normalized=False` uses Σ_i thr_i(X) in raw steps/s as Gavel does. Source: Gavel (OSDI 2020), section 4.2.
    """

    normalized: bool = option(True, "divide each job's throughput by that of an equal share; false: raw steps/s")

    @property
    def adds_raw_throughputs(self) -> bool:
        return not self.normalized and not self.is_agnostic

    @property
    def counts_gangs_whole(self) -> bool:
        return self.normalized

    def gains(self, jobs: JobClasses) -> Floats:
        return jobs.throughputs / jobs.equal_share[:, None] if self.normalized else jobs.throughputs
