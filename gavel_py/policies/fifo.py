"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import option
from gavel_py.policies.ordered import OrderedPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class Fifo(OrderedPolicy):
    """Run jobs in the order of their arrival.

    First in, first out: jobs in order of arrival, each on the fastest accelerator type that is free.

    A job that does not fit blocks all later ones, unless `backfill` is set.
    Source: Gavel (OSDI 2020), section 4.2.
    """

    backfill: bool = option(False, "allow later jobs to overtake one that does not fit; otherwise GPUs may stay idle")

    reads = ("arrival_seconds",)

    @property
    def by_job(self) -> bool:
        return True

    def sort_key(self, jobs: JobClasses) -> Floats:
        arrivals: Floats = jobs.arrival_seconds
        return arrivals
