"""The sum family: one concave objective over all jobs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.job_classes import JobClasses
from gavel_py.policies.base import Decision, Policy
from gavel_py.proof import Certificate, Prices, within_capacity
from gavel_py.rules import Gains, Rules

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.policies.composition import WeightedSum
    from gavel_py.program import Program
    from gavel_py.solver import LinearSolver

__all__ = ["SumPolicy"]


@dataclass(frozen=True, kw_only=True)
class SumPolicy(Policy):
    """Maximise an objective over the valid allocations; write `objective`, and value, bound and prices follow.

    direction: "max", or "min" for an objective that is to be as small as possible, such as a cost.
    """

    family: ClassVar[str] = "sum"
    direction: ClassVar[Literal["max", "min"]] = "max"

    @abstractmethod
    def objective(self, program: Program) -> cp.Expression:
        """Return the number to maximise (minimise): a concave (convex) cvxpy expression of the program's throughputs."""

    @property
    def sign(self) -> float:
        """1 where the objective is maximised, -1 where it is minimised."""
        return 1.0 if self.direction == "max" else -1.0

    @property
    def is_plain(self) -> bool:
        """Whether its objective is all that there is to it, so that it can be a term of a sum of policies."""
        return True

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        from gavel_py.program import Program, check_objective

        program = Program(jobs)
        objective = check_objective(self.objective(program), self.direction)
        charged = objective - program.penalty if jobs.rules.has_penalties else objective
        certificate: Certificate
        if charged.is_pwl():
            fractions = within_capacity(jobs, program.maximize(charged, solver))
            certificate, algorithm = SumCertificate(program, charged, self.sign), None
        else:
            from gavel_py.conic import ALGORITHM, maximize_concave

            fractions, certificate = maximize_concave(program, charged, solver, self.sign)
            algorithm = ALGORITHM
        if (jobs.counts > 1).any():
            self._check_counts(program, objective, fractions)
        return Decision(fractions, certificate, program.shadow_prices(solver), algorithm)

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        from gavel_py.program import Program, check_objective

        certificate = decision.certificate
        assert certificate is not None  # noqa: S101
        program, fractions = Program(jobs), decision.time_fractions
        objective = check_objective(self.objective(program), self.direction)
        value = program.value(objective, fractions)
        least = value - tolerance * max(abs(value), certificate.scale(fractions))
        if not objective.is_pwl():
            text = "has a curved objective, which no linear program can keep, so it cannot come before another policy"
            raise InputError(Fault(f"policy {self.name}", "", text))
        if not objective.is_affine():
            return Rules(kept=(lambda other: check_objective(self.objective(other), self.direction) >= least,))
        constant, gains = program.linear_parts(objective)
        index = np.full(jobs.problem.num_jobs, -1)
        index[jobs.jobs] = jobs.index
        return Rules(rows=(Gains(f"the objective of {self.name}", gains, least - constant, index),))

    def __mul__(self, weight: float) -> WeightedSum:
        from gavel_py.policies.composition import WeightedSum

        return WeightedSum(terms=((weight, self),))

    __rmul__ = __mul__

    def __add__(self, other: SumPolicy) -> WeightedSum:
        return self * 1.0 + other * 1.0 if isinstance(other, SumPolicy) else NotImplemented

    def _check_counts(self, program: Program, objective: cp.Expression, fractions: NDArray[np.float64]) -> None:
        """Raise `InputError` if the objective changes when the same jobs with the same time stand in other classes."""
        from gavel_py.program import Program, check_objective

        jobs = program.jobs.one_apart()
        other = Program(jobs)
        same = check_objective(self.objective(other), self.direction)
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

    def certificate(self, jobs: JobClasses, decision: Decision) -> Certificate | None:
        from gavel_py.program import Program, check_objective
        from gavel_py.tangents import ConcaveCertificate, carried_over

        solved = decision.certificate
        if not isinstance(solved, SumCertificate | ConcaveCertificate):
            return None
        program = Program(jobs)
        objective = check_objective(self.objective(program), self.direction)
        prices = solved.program.prices(solved.program.solution)
        if isinstance(solved, ConcaveCertificate):
            fractions = solved.jobs.spread(decision.time_fractions)[jobs.rows]
            return carried_over(program, objective, fractions, self.sign, prices)
        return SumCertificate(program, objective, self.sign, prices) if objective.is_affine() else None


@dataclass(frozen=True)
class SumCertificate:
    """Proves a sum: what is maximised as an expression, and the bound that the program's dual values give (`Program.bound`).

    sign: -1 where the policy's objective is the negative of it;
    prices: (K,) for a linear sum that is proven with the prices of another program (`Program.linear_bound`).
    """

    program: Program
    objective: cp.Expression
    sign: float = 1.0
    prices: NDArray[np.float64] | None = None

    @property
    def jobs(self) -> JobClasses:
        return self.program.jobs

    def value(self, fractions: NDArray[np.float64]) -> float:
        """Return the objective of (G, K) time fractions."""
        return self.sign * self.program.value(self.objective, fractions)

    def bound(self) -> float:
        """Return a bound on the objective that no valid allocation which keeps the rules can beat."""
        most = self.program.bound() if self.prices is None else self.program.linear_bound(self.objective, self.prices)
        return self.sign * most

    def scale(self, fractions: NDArray[np.float64]) -> float:  # noqa: ARG002
        """Return the largest coefficient of the objective; 0 where jobs were merged, which cannot be bounded in parts of it."""
        return self.program.scale if self.prices is None else 0.0

    @property
    def scarcity(self) -> Prices:
        """The dual values of capacities and limits."""
        solution = self.program.solution
        return Prices(self.program.prices(solution), self.program.limit_duals(solution))
