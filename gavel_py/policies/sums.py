"""The sum family: one concave objective over all jobs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavel_py.policies.base import Decision, Policy
from gavel_py.problem import AllocationProblem
from gavel_py.proof import tidied

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.program import Program

__all__ = ["SumPolicy"]


@dataclass(frozen=True, kw_only=True)
class SumPolicy(Policy):
    """Maximise an objective over the valid allocations; write `objective`, and value, bound and prices follow."""

    @abstractmethod
    def objective(self, program: Program) -> cp.Expression:
        """Return the number to maximise: a concave cvxpy expression of the program's throughputs."""

    def decide(self, problem: AllocationProblem) -> Decision:
        from gavel_py.program import Program, check_objective

        program = Program(problem)
        objective = check_objective(self.objective(program))
        fractions = tidied(problem, program.maximize(objective))
        # Bound and prices are those of the solve; the value is that of the tidied fractions.
        bound, prices = program.bound(), program.prices
        return Decision(fractions, program.value(objective, fractions), bound, prices, program.scale)
