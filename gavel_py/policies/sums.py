"""The sum family: one concave objective over all jobs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.job_classes import JobClasses
from gavel_py.policies.base import Decision, Policy
from gavel_py.proof import within_capacity

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.program import Program
    from gavel_py.solver import LinearSolver

__all__ = ["SumPolicy"]


@dataclass(frozen=True, kw_only=True)
class SumPolicy(Policy):
    """Maximise an objective over the valid allocations; write `objective`, and value, bound and prices follow."""

    @abstractmethod
    def objective(self, program: Program) -> cp.Expression:
        """Return the number to maximise: a concave cvxpy expression of the program's throughputs."""

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        from gavel_py.program import Program, check_objective

        program = Program(jobs)
        objective = check_objective(self.objective(program))
        fractions = within_capacity(jobs, program.maximize(objective, solver))
        if (jobs.counts > 1).any():
            self._check_counts(program, objective, fractions)
        return Decision(fractions, SumCertificate(program, objective), program.shadow_prices(solver))

    def _check_counts(self, program: Program, objective: cp.Expression, fractions: NDArray[np.float64]) -> None:
        """Raise `InputError` if the objective changes when the same jobs with the same time stand in other classes."""
        from gavel_py.program import Program

        jobs = program.jobs.one_apart()
        other = Program(jobs)
        same = self.objective(other)
        theirs, ours = other.own_variables(same), program.own_variables(objective)
        if any(variable.size != 1 for variable in theirs):
            text = "has variables of its own with more than one entry, which cannot stand for classes of jobs"
            raise InputError(Fault(f"policy {self.name}", "objective", text))
        for variable, known in zip(theirs, ours, strict=True):
            variable.value = known.value
        again = np.concatenate([fractions, fractions[program.jobs.counts > 1]])
        value, expected = other.value(same, again), program.value(objective, fractions)
        if abs(value - expected) > 1e-6 * max(abs(value), abs(expected), program.scale):
            text = (
                f"depends on how equal jobs are counted (it is {expected:.6g}, and {value:.6g} when classes are split): "
                "reduce over jobs with program.total and program.minimum, never with cp.sum, cp.min and the like; "
                'or make every job a class of its own with reads = ("job_ids",)'
            )
            raise InputError(Fault(f"policy {self.name}", "objective", text))

    def certificate(self, jobs: JobClasses, decision: Decision) -> SumCertificate | None:
        from gavel_py.program import Program, check_objective

        solved = decision.certificate
        if not isinstance(solved, SumCertificate):
            return None
        program = Program(jobs)
        objective = check_objective(self.objective(program))
        prices = solved.program.prices(solved.program.solution)
        return SumCertificate(program, objective, prices) if objective.is_affine() else None


@dataclass(frozen=True)
class SumCertificate:
    """Proves a sum: the objective as an expression, and the bound that the program's dual values give (`Program.bound`).

    prices: (K,) for a linear sum that is proven with the prices of another program (`Program.linear_bound`).
    """

    program: Program
    objective: cp.Expression
    prices: NDArray[np.float64] | None = None

    @property
    def jobs(self) -> JobClasses:
        return self.program.jobs

    def value(self, fractions: NDArray[np.float64]) -> float:
        """Return the objective of (G, K) time fractions."""
        return self.program.value(self.objective, fractions)

    def bound(self) -> float:
        """Return an upper bound on the objective over all valid allocations."""
        return self.program.bound() if self.prices is None else self.program.linear_bound(self.objective, self.prices)

    def scale(self, fractions: NDArray[np.float64]) -> float:  # noqa: ARG002
        """Return the largest coefficient of the objective; 0 where jobs were merged, which cannot be bounded in parts of it."""
        return self.program.scale if self.prices is None else 0.0
