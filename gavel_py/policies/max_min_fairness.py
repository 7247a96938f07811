"""Max-min fairness, by the throughputs as they are or with caution where they are estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.errors import refuse
from gavel_py.optimization.checking.certificates import Prices
from gavel_py.optimization.formulation.linear_rows import Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import Decision, Policy, option
from gavel_py.policies.composition import Then
from gavel_py.policies.demand import DemandPolicy
from gavel_py.policies.linear_sums import LinearSumPolicy
from gavel_py.policies.sums import SumPolicy
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import SOLVER_TOLERANCE

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program
    from gavel_py.optimization.solving.highs import LinearSolver

LOSS = 10 * SOLVER_TOLERANCE
"""Relative loss of the level that is allowed in favour of `efficiency`, so that errors of the solver's rows do not limit it."""


@dataclass(frozen=True, kw_only=True)
class MaxMinFairness(DemandPolicy):
    """Make the worst-off job as fast as possible.

    Max-min fairness (least attained service in Gavel): max θ with thr_i >= θ · w_i · P_i / s_i.

    θ = min_i s_i·thr_i / (w_i·P_i); w_i: weight, P_i: throughput of an equal share, s_i: GPUs of the gang.
    Source: Gavel (OSDI 2020), sections 4.1 and 4.2.

    caution = κ > 0: thr_i counts less what it loses if one of the job's estimates is κ standard deviations too high, the one that
    costs most: thr_i - max_j (1 - exp(-κ u_ij)) T_ij X_ij, u: `AllocationProblem.uncertainty`. Without estimates, nothing
    changes. Source: Bertsimas and Sim, The price of robustness (Operations Research 52, 2004), with a budget of 1.
    """

    caution: float = option(0.0, "guard each job against one estimate that is this many standard deviations too high; 1.64: 95 %")

    needs_are_convex = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.caution:
            from gavel_py.io.records import NotNegative, check

            where, text = f"policy {self.name}", "has no meaning with agnostic, which ignores throughputs"
            check(where, **{"option caution": (self.caution, NotNegative)})
            refuse(where, (self.agnostic, "option caution", text))

    @property
    def reads(self) -> tuple[str, ...]:
        return ("weights", "uncertainty") if self.caution else ("weights",)

    @property
    def is_plain(self) -> bool:
        return not self.caution

    def need(self, jobs: JobClasses, level: float) -> Floats:
        needs: Floats = level * jobs.weights * jobs.equal_share / jobs.num_gpus
        return needs

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        return self._cautious(jobs).decide(jobs, solver) if self._guards(jobs) else super().decide(jobs, solver)

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        if self._guards(jobs):
            return self._cautious(jobs).keep(jobs, decision, tolerance)
        return super().keep(jobs, decision, tolerance)

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        if self._guards(jobs):
            return self._cautious(jobs).best_of(jobs, candidates, prices)
        return super().best_of(jobs, candidates, prices)

    def objective(self, program: Program) -> cp.Expression:
        return CautiousLevel(caution=self.caution).objective(program) if self._guards(program.jobs) else super().objective(program)

    def _guards(self, jobs: JobClasses) -> bool:
        """Return whether the throughputs of some job are uncertain, and the policy is cautious."""
        return self.caution > 0 and bool(jobs.uncertainty.any())

    def _cautious(self, jobs: JobClasses) -> Policy:
        """Return the policy of the linear programs with caution; soft constraints are weighed against the level."""
        level = CautiousLevel(caution=self.caution)
        return Then(level, Efficiency(), tolerance=LOSS) if self.efficiency and not jobs.rules.has_penalties else level


@dataclass(frozen=True, kw_only=True)
class CautiousLevel(SumPolicy):
    """Maximise min_i s_i / w_i · (v_i - max_j (1 - exp(-κ u_ij)) v_ij), v_ij = T_ij X_ij / P_i, the part of v_i on type j.

    caution: κ. Columns of one type share its estimate, so that their parts count together.
    """

    caution: float

    def objective(self, program: Program) -> cp.Expression:
        import cvxpy as cp

        jobs, rows, columns = program.jobs, program.rows, program.columns
        share = jobs.equal_share[rows]
        speeds = np.divide(jobs.throughputs[rows, columns], share, out=np.zeros(len(rows)), where=share > 0)
        parts = (jobs.num_gpus / jobs.weights)[rows] * speeds
        # `minimum` scales the level only, but the rows of the largest losses must be of a size of about 1 as well.
        unit = float(np.median(parts[parts > 0])) if parts.any() else 1.0
        parts /= unit
        at_risk = -np.expm1(-self.caution * jobs.uncertainty[rows, columns]) * parts
        types = np.arange(len(jobs.capacities)) if jobs.columns is None else jobs.columns.source
        losses = [program.by_job(np.where(types[columns] == j, at_risk, 0.0)) for j in np.unique(types[columns[at_risk > 0]])]
        level = program.by_job(parts)
        if losses:
            level = level - (cp.maximum(*losses) if len(losses) > 1 else losses[0])
        some = np.flatnonzero(jobs.equal_share > 0)
        return unit * program.minimum(level if len(some) == len(jobs) else level[some])


@dataclass(frozen=True, kw_only=True)
class Efficiency(LinearSumPolicy):
    """Maximise Σ s_i · v_i, the objective among all answers with the best level."""

    def gains(self, jobs: JobClasses) -> Floats:
        share = jobs.equal_share[:, None]
        speeds = np.divide(jobs.throughputs, share, out=np.zeros(jobs.throughputs.shape), where=share > 0)
        return jobs.num_gpus[:, None] * speeds
