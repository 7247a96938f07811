"""The isolated share."""

from __future__ import annotations

from dataclasses import dataclass

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.formulas import FormulaPolicy
from gavel_py.problem.arrays import Floats, isolated_shares


@dataclass(frozen=True, kw_only=True)
class Isolated(FormulaPolicy):
    """Give each job an equal part of every GPU type.

    The isolated share, an N-th of each accelerator type for each job: x_ij = (c_j / N) / s_i, divided by max(1, Σ_j x_ij).

    N: jobs that can run; s_i: GPUs of the gang. It is the baseline of finish-time fairness.
    Source: Themis (NSDI 2020), section 3; Gavel (OSDI 2020), section 4.2.
    """

    def fractions(self, jobs: JobClasses) -> Floats:
        return isolated_shares(jobs.num_gpus, jobs.capacities, jobs.num_jobs)
