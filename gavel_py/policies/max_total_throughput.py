"""Maximum total throughput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavel_py.policies.base import option
from gavel_py.policies.sums import SumPolicy

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program


@dataclass(frozen=True, kw_only=True)
class MaxTotalThroughput(SumPolicy):
    """Maximum total throughput: max Σ_i thr_i(X) / P_i.

    P_i: throughput of an equal share of the cluster, so that models of different step size compare;
    `normalized=False` takes Σ_i thr_i(X) in raw steps/s as Gavel does. Source: Gavel (OSDI 2020), section 4.2.
    """

    normalized: bool = option(True, "divide each job's throughput by that of an equal share; false: raw steps/s")

    def objective(self, program: Program) -> cp.Expression:
        return program.total(program.normalized_throughput if self.normalized else program.throughput)
