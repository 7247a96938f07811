"""The proportional share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.formulas import FormulaPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class Proportional(FormulaPolicy):
    """Spread the time of each job evenly over all GPUs.

    The proportional share, time over the types in proportion to their counts: x_ij = (c_j / C) · min(1, C / Σ_i s_i).

    C: all GPUs; Σ_i s_i: GPUs that all jobs that can run would take at once. Every job gets the same time, whatever its gang.
    Source: the equal share by which Gavel (OSDI 2020), section 4.1, normalises throughputs, as an allocation.
    """

    def fractions(self, jobs: JobClasses) -> Floats:
        total, wanted = jobs.capacities.sum(), jobs.counts @ jobs.num_gpus
        row: Floats = jobs.capacities / total * min(1.0, total / wanted)
        return np.broadcast_to(row, jobs.throughputs.shape)
