"""Least attained service."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gavel_py.errors import refuse
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import option
from gavel_py.policies.ordered import OrderedPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class LeastAttainedService(OrderedPolicy):
    """Run the jobs with the least GPU time so far first.

    Least attained service: jobs with the fewest GPU-seconds so far first, in queues from one threshold to the next.

    Queue q holds the jobs with thresholds[q-1] <= a_i < thresholds[q], a_i: GPU-seconds received so far, the time run times
    the GPUs of the gang. Within a queue jobs go in order of arrival. Without thresholds, the order is that of a_i itself.
    Source: discretised two-dimensional LAS, Tiresias (NSDI 2019), section 3.2.
    """

    thresholds: tuple[float, ...] = option((3600.0,), "GPU-seconds at which jobs change queues; none: order by GPU-seconds")

    reads = ("attained_gpu_seconds",)

    def __post_init__(self) -> None:
        super().__post_init__()
        found = self.thresholds
        ascend = all(math.isfinite(t) and t > 0 for t in found) and all(a < b for a, b in pairwise(found))
        text = f"must be GPU-seconds above 0, each larger than the one before, found {':'.join(map(str, found))}"
        refuse(f"policy {self.name}", (not ascend, "option thresholds", text))

    @property
    def changes_at(self) -> Mapping[str, tuple[float, ...]]:
        return {"attained_gpu_seconds": self.thresholds} if self.thresholds else {}

    @property
    def by_job(self) -> bool:
        return True

    def sort_key(self, jobs: JobClasses) -> Floats:
        attained: Floats = jobs.attained_gpu_seconds
        return np.searchsorted(self.thresholds, attained, side="right").astype(float) if self.thresholds else attained
