"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import option
from gavel_py.policies.ordered import OrderedPolicy


@dataclass(frozen=True, kw_only=True)
class Fifo(OrderedPolicy):
    """First in, first out: jobs in order of arrival, each on the fastest accelerator type that is free.

    A job that does not fit makes all later ones wait, unless `backfill` is set.
    Source: Gavel (OSDI 2020), section 4.2.
    """

    backfill: bool = option(False, "let later jobs pass one that does not fit; without it GPUs may stay idle")

    reads = ("arrival_seconds",)

    @property
    def by_job(self) -> bool:
        return True

    def sort_key(self, jobs: JobClasses) -> NDArray[np.float64]:
        arrivals: NDArray[np.float64] = jobs.arrival_seconds
        return arrivals
