"""Nash welfare: proportional fairness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.errors import ProofError, refuse
from gavel_py.optimization.checking.certificates import Certificate, Prices
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimitReached
from gavel_py.policies.base import Decision, option
from gavel_py.policies.sums import SumPolicy
from gavel_py.problem.arrays import Floats

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program

ACCURACY, WORST = 1e-5, 1e-3
"""Error of the part that a job keeps: the target, and the largest that is accepted."""

NO_DISCOUNT = "the discount of strategy_proof is not part of this allocation, so jobs may gain by misreporting throughputs"


@dataclass(frozen=True, kw_only=True)
class NashWelfare(SumPolicy):
    """Balance speed and fairness (proportional fairness).

    Nash welfare (proportional fairness): max Σ_i w_i log v_i, v_i = thr_i / P_i.

    w_i: weight, P_i: steps/s of an equal share. No valid change has a positive sum of weighted relative gains.

    strategy_proof: each job's time is then multiplied by f_i = (Π_{k≠i} (u_k(all) / u_k(without i))^{w_k})^{1/w_i}, between 1/e and
    1; u = thr in the optimum with all jobs, and in that without i. No job then gains by misreporting
    its throughputs. Objective and proof are those of the allocation before this discount.
    Source: Nash (1950); Kelly (1997); the discount: Cole, Gkatzelis and Goel (EC 2013), Partial Allocation mechanism.

    Raises `InputError` for strategy_proof with constraints or in a composition.
    """

    strategy_proof: bool = option(False, "withhold time from jobs so that none gains by misreporting throughputs")

    reads = ("weights",)

    def objective(self, program: Program) -> cp.Expression:
        import cvxpy as cp

        return program.total(cp.multiply(program.weights, cp.log(program.normalized_throughput)))

    @property
    def backfills(self) -> bool:
        # Backfilling would give the discounted time back to the jobs.
        return not self.strategy_proof

    def check_rules(self, jobs: JobClasses, solver: LinearSolver) -> Floats | None:
        self._check_plain(not jobs.rules, "with constraints, since it withholds time from every job")
        return super().check_rules(jobs, solver)

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        self._check_plain(not jobs.rules, "after another policy, since it withholds time from every job")
        decision = super().decide(jobs, solver)
        if not self.strategy_proof or decision.certificate is None:
            return decision
        try:
            kept = np.array([self._kept_part(jobs, decision.time_fractions, g, solver) for g in range(len(jobs))])
        except TimeLimitReached:
            raise TimeLimitReached(None, (decision.time_fractions,), (decision.certificate.scarcity,)) from None
        return replace(
            decision, time_fractions=decision.time_fractions * kept[:, None], certificate=BeforeDiscount(decision.certificate, kept)
        )

    @property
    def is_plain(self) -> bool:
        return not self.strategy_proof

    def _check_plain(self, holds: bool, text: str) -> None:
        refuse(f"policy {self.name}", (self.strategy_proof and not holds, "option strategy_proof", f"cannot be used {text}"))

    def _kept_part(self, jobs: JobClasses, fractions: Floats, g: int, solver: LinearSolver) -> float:
        """Return f_g, the part of its time that a job of class g keeps, from the loss that its presence causes to others."""
        counts = jobs.counts - (np.arange(len(jobs)) == g)
        rows = np.flatnonzero(counts)
        if not len(rows):
            return 1.0
        others = jobs.rows_as(rows, counts[rows], jobs.keys[rows])
        with_all = np.einsum("ij,ij->i", others.throughputs, fractions[rows])
        without = self._optimum(others, float(jobs.weights[g]), solver)
        lost = (others.counts * others.weights) @ np.log(with_all / without)
        return float(np.clip(np.exp(lost / jobs.weights[g]), np.exp(-1.0), 1.0))

    def _optimum(self, jobs: JobClasses, weight: float, solver: LinearSolver) -> Floats:
        """Return (G,) steps/s in the optimum of these jobs, accurate enough for the discount of a job of this weight."""
        from gavel_py.optimization.formulation.program import Program
        from gavel_py.optimization.solving.concave import ENOUGH, maximize_concave

        program, total = Program(jobs), float(jobs.counts @ jobs.weights)
        enough = min(ENOUGH, ACCURACY * weight / total)
        fractions, certificate = maximize_concave(program, self.objective(program), solver, enough=enough)
        short = (certificate.bound() - certificate.value(fractions)) / weight
        if not short <= WORST:
            text = (
                f"the discount of a job of weight {weight:.3g} where all weights are {total + weight:.3g} may be off by {short:.2g}"
            )
            raise ProofError(f"{text} of it (at most {WORST:.2g} is accepted)")
        throughputs: Floats = np.einsum("ij,ij->i", jobs.throughputs, fractions)
        return throughputs

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        decision = super().best_of(jobs, candidates, prices)
        return replace(decision, certificate=None, notes=(NO_DISCOUNT,)) if self.strategy_proof else decision


@dataclass(frozen=True)
class BeforeDiscount:
    """The certificate of an allocation before a discount on the time of jobs. kept: (G,) the part kept by each class, 0 to 1."""

    whole: Certificate
    kept: Floats

    @property
    def jobs(self) -> JobClasses:
        return self.whole.jobs

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) discounted time fractions before their discount."""
        return self.whole.value(self._before(fractions))

    def bound(self) -> float:
        """Return the bound on the objective before the discount."""
        return self.whole.bound()

    def scale(self, fractions: Floats) -> float:
        """Return the size of the objective's terms before the discount."""
        return self.whole.scale(self._before(fractions))

    @property
    def scarcity(self) -> Prices:
        """The prices behind the bound."""
        return self.whole.scarcity

    def _before(self, fractions: Floats) -> Floats:
        return fractions / self.kept[:, None]
