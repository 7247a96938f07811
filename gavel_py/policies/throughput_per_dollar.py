"""Throughput per dollar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.linear_sums import LinearSumPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class ThroughputPerDollar(LinearSumPolicy):
    """Get the most throughput per dollar.

    Throughput per dollar: max Σ_i Σ_j T_ij X_ij / price_j.

    T_ij: steps/s of the whole gang; price_j: of an hour of one GPU, above 0 for every type that has GPUs and a job to run on
    them. Source: Gavel (OSDI 2020), section 4.2, the cost policy without SLOs, in raw steps/s.
    """

    agnostic_view = "reference"

    def view(self, jobs: JobClasses) -> JobClasses:
        prices = jobs.prices_per_hour
        unusable = np.flatnonzero(jobs.runnable.any(axis=0) & ~(prices > 0))
        found = {jobs.type_names[j]: "unknown" if np.isnan(prices[j]) else "0" for j in unusable.tolist()}
        text = f"but {self.name} divides by it; every type on which a job can run needs a price above 0"
        InputError.raise_any(
            [Fault(f"accelerator type {name!r}", "price_per_hour", f"is {what}, {text}") for name, what in found.items()]
        )
        return super().view(jobs)

    @property
    def adds_raw_throughputs(self) -> bool:
        return True

    def gains(self, jobs: JobClasses) -> Floats:
        return np.divide(jobs.throughputs, jobs.prices_per_hour, out=np.zeros(jobs.throughputs.shape), where=jobs.runnable)
