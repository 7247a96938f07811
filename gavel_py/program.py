"""The cvxpy program of an allocation: variables, throughput expressions, valid-allocation constraints."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gavel_py.errors import InputError
from gavel_py.problem import AllocationProblem
from gavel_py.solver import solve_linear_program

__all__ = ["Program"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """A variable that stands for the least entry of an expression: value <= expression, entry by entry."""

    variable: cp.Variable
    expression: cp.Expression
    constraint: cp.Constraint


class Program:
    """Valid allocations as a linear program, for policies to write objectives on.

    There is one variable x_ij in [0, 1] for each pair where job i can run on type j (`problem.runnable`), so a job never
    gets time where it cannot run. The constraints are those of Gavel (OSDI 2020, section 3.1):
    Σ_j x_ij <= 1 for every job, Σ_i s_i x_ij <= c_j for every type.

    throughput: (N,) Σ_j T_ij x_ij, steps/s; normalized_throughput: (N,) v_i = throughput_i / P_i;
    time: (N,) Σ_j x_ij; gpus: (K,) Σ_i s_i x_ij. All are affine expressions over jobs; reduce them with `total` and
    `minimum`, which know how many jobs a row stands for, never with a bare sum.
    The arrays of the problem (weights, steps_remaining, ...) are at `problem`.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.rows, self.columns = np.nonzero(problem.runnable)
        self.fractions = cp.Variable(len(self.rows), bounds=[0, 1])
        throughputs = problem.throughputs[self.rows, self.columns]
        self.throughput = self.by_job(throughputs)
        self.normalized_throughput = self.by_job(throughputs / problem.equal_share[self.rows])
        self.time = self.by_job(np.ones(len(self.rows)))
        self.gpus = self._matrix(self.columns, problem.num_gpus[self.rows], len(problem.capacities)) @ self.fractions
        # Divided by c_j, so that HiGHS's absolute tolerances mean the same for 2 GPUs and for 10^7.
        self._units = np.maximum(problem.capacities, 1.0)
        self._capacity = cp.multiply(1 / self._units, self.gpus) <= problem.capacities / self._units
        self._levels: list[Level] = []

    def by_job(self, coefficients: Floats) -> cp.Expression:
        """Return the (N,) expression Σ_j a_ij x_ij; `coefficients` has one a_ij for each runnable pair, job by job."""
        return self._matrix(self.rows, coefficients, self.problem.num_jobs) @ self.fractions

    def total(self, expression: cp.Expression) -> cp.Expression:
        """Return the sum over all jobs of an (N,) expression."""
        return cp.sum(expression)

    def minimum(self, expression: cp.Expression) -> cp.Expression:
        """Return the least entry over all jobs of an (N,) concave expression, for use in an objective to be maximised."""
        level = cp.Variable()
        self._levels.append(Level(level, expression, level <= expression))
        return level

    def maximize(self, objective: cp.Expression, *constraints: cp.Constraint) -> Floats:
        """Solve for the best valid allocation and return it, (N, K)."""
        valid = [self.time <= 1, self._capacity, *(level.constraint for level in self._levels)]
        solve_linear_program(cp.Problem(cp.Maximize(objective), valid + list(constraints)))
        return self.matrix_of(self.fractions.value)

    def matrix_of(self, values: Floats) -> Floats:
        """Return one value per runnable pair as an (N, K) table with 0 elsewhere."""
        table = np.zeros(self.problem.throughputs.shape)
        table[self.rows, self.columns] = values
        return table

    @property
    def prices(self) -> Floats:
        """(K,) dual values of the capacities after `maximize`: objective per GPU of each type, >= 0."""
        return np.maximum(0.0, np.asarray(self._capacity.dual_value) / self._units)

    def value(self, objective: cp.Expression, time_fractions: Floats) -> float:
        """Return the objective at this (N, K) allocation, recomputed."""
        self.fractions.value = time_fractions[self.rows, self.columns]
        for level in self._levels:
            level.variable.value = float(np.min(level.expression.value))
        return float(objective.value)

    def gains(self, objective: cp.Expression) -> Floats:
        """(N, K) slopes G of an affine function that is nowhere below the concave objective and touches it at the answer.

        It is the objective's gradient, where each level min_i e_i(x) is replaced by Σ_i λ_i e_i(x) with the level's duals,
        λ >= 0 and Σ λ = 1: an average is never below the minimum, whatever the λ. Call it after `value`.
        """
        slopes = objective.grad
        gains = _dense(slopes.get(self.fractions), len(self.rows))
        for level in self._levels:
            share = _dense(slopes.get(level.variable), 1)[0]
            duals = np.maximum(0.0, np.atleast_1d(level.constraint.dual_value))
            weights = duals / duals.sum() if duals.sum() > 0 else np.full(len(duals), 1 / len(duals))
            gradient = level.expression.grad.get(self.fractions)
            if gradient is not None:
                gains += share * (gradient @ weights)
        return self.matrix_of(gains)

    def _matrix(self, positions: NDArray[np.int64], coefficients: NDArray[np.generic], count: int) -> sp.csr_array:
        """The (count, pairs) matrix with each pair's coefficient in the row at its position."""
        pairs = np.arange(len(self.rows))
        return sp.csr_array((coefficients.astype(float), (positions, pairs)), shape=(count, len(pairs)))


def check_objective(objective: object) -> cp.Expression:
    """Return a policy's objective, or raise `InputError` when it is not one concave number."""
    if not isinstance(objective, cp.Expression) or objective.size != 1:
        raise InputError(f"a policy's objective must be one cvxpy number, found {objective!r}")
    if not objective.is_concave():
        raise InputError("a policy's objective is maximised and must be concave; this one is not")
    return objective


def _dense(gradient: object, size: int) -> Floats:
    if gradient is None:
        return np.zeros(size)
    dense = gradient.toarray() if sp.issparse(gradient) else gradient  # type: ignore[attr-defined]
    return np.asarray(dense, dtype=float).reshape(size)
