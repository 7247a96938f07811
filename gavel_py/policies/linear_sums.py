"""The linear policies of the sum family: their gains are known as numbers, so that no expression is needed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavel_py.optimization.checking.certificates import within_capacity
from gavel_py.optimization.formulation.matrices import AllocationLP, LinearCertificate
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import Decision
from gavel_py.policies.sums import SumPolicy
from gavel_py.problem.arrays import Floats

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program
    from gavel_py.optimization.solving.highs import LinearSolver


@dataclass(frozen=True, kw_only=True)
class LinearSumPolicy(SumPolicy):
    """A sum that is linear in the times: max or min Σ_g n_g Σ_j G_gj x_gj.

    If nothing else needs an expression, its program is built from the gains alone, since importing cvxpy takes as long as many
    solves. A large number of different rows is solved by prices.
    """

    @abstractmethod
    def gains(self, jobs: JobClasses) -> Floats:
        """Return (G, K) G_gj, the gain of the objective by all of the time of a job of each class, where it can run.

        Args:
            jobs: The classes as this policy sees them.
        """

    def objective(self, program: Program) -> cp.Expression:
        return program.total(program.by_job(self.gains(program.jobs)[program.rows, program.columns]))

    @property
    def is_linear(self) -> bool:
        return type(self).objective is LinearSumPolicy.objective and self.is_plain

    def _gains(self, jobs: JobClasses) -> Floats | None:
        # A policy of a user may have another objective.
        return self.gains(jobs) if type(self).objective is LinearSumPolicy.objective else None

    def _decide_by_program(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        gains = self._gains(jobs)
        if gains is None or jobs.rules.has_penalties or jobs.rules.kept:
            return super()._decide_by_program(jobs, solver)
        program = AllocationLP(jobs, self.enough(jobs))
        coefficients = gains[program.rows, program.columns]
        program.compile_linear(0.0, self.sign * jobs.counts[program.rows] * (coefficients * program.sizes))
        fractions = within_capacity(jobs, program.fractions_of(program.solve(solver, "sum")))
        certificate = LinearCertificate(program, program.matrix_of(coefficients), self.sign)
        return Decision(fractions, certificate, program.shadow_prices(solver))
