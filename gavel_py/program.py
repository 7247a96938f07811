"""The cvxpy program of an allocation: variables, throughput expressions, valid-allocation constraints."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gavel_py.errors import InputError
from gavel_py.problem import AllocationProblem
from gavel_py.proof import priced_bound
from gavel_py.solver import SolvedProgram, solve_linear_program

__all__ = ["Program", "check_objective"]

Floats = NDArray[np.float64]

ROUNDING = 1e-9
NOISE = 1e-12


class Program:
    """Valid allocations as a linear program, for policies to write objectives on.

    There is one variable x_ij in [0, 1] for each pair where job i can run on type j (`problem.runnable`), so a job never
    gets time where it cannot run. The constraints are those of Gavel (OSDI 2020, section 3.1):
    Σ_j x_ij <= 1 for every job, Σ_i s_i x_ij <= c_j for every type.

    throughput: (N,) Σ_j T_ij x_ij, steps/s; normalized_throughput: (N,) v_i = throughput_i / P_i;
    time: (N,) Σ_j x_ij; gpus: (K,) Σ_i s_i x_ij. All are affine expressions over jobs; reduce them with `total` and
    `minimum`, which know how many jobs a row stands for, never with a bare sum.
    weights, num_gpus, steps_remaining: (N,) arrays of the jobs; all others are at `problem`.
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
        self._time = self.time <= 1
        # Divided by c_j, so that HiGHS's absolute tolerances mean the same for 2 GPUs and for 10^7.
        self._units = np.maximum(problem.capacities, 1.0)
        self._capacity = cp.multiply(1 / self._units, self.gpus) <= problem.capacities / self._units
        self._solved: SolvedProgram | None = None

    @property
    def weights(self) -> Floats:
        """(N,) w_i."""
        return self.problem.weights

    @property
    def num_gpus(self) -> NDArray[np.int64]:
        """(N,) s_i, GPUs of each gang."""
        return self.problem.num_gpus

    @property
    def steps_remaining(self) -> Floats:
        """(N,) n_i; raises `InputError` naming the jobs for which it is unknown."""
        return self.problem.required("steps_remaining", "this policy")

    def by_job(self, coefficients: Floats) -> cp.Expression:
        """Return the (N,) expression Σ_j a_ij x_ij; `coefficients` has one a_ij for each runnable pair, job by job."""
        return self._matrix(self.rows, coefficients, self.problem.num_jobs) @ self.fractions

    def total(self, expression: cp.Expression) -> cp.Expression:
        """Return the sum over all jobs of an (N,) expression."""
        return cp.sum(expression)

    def minimum(self, expression: cp.Expression) -> cp.Expression:
        """Return the least entry over all jobs of an (N,) concave expression, for use in an objective to be maximised."""
        return cp.min(expression)

    def maximize(self, objective: cp.Expression, *constraints: cp.Constraint) -> Floats:
        """Solve for the best valid allocation and return it, (N, K)."""
        problem = cp.Problem(cp.Maximize(objective), [self._time, self._capacity, *constraints])
        self._solved = solve_linear_program(problem)
        values = self.fractions.value
        return self.matrix_of(np.where(values > NOISE, values, 0.0))

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
        return float(objective.value)

    def bound(self) -> float:
        """Return an upper bound on the objective just maximised, over all valid allocations.

        Weak duality: with duals y of the rows that a policy's objective and constraints added (kinks such as `minimum` become
        rows), objective <= constant + Σ G_ij x_ij for every valid x, whatever y >= 0 is; `priced_bound` then bounds the sum.
        """
        solved = self._solved
        if solved is None:
            raise RuntimeError("bound() needs a program that maximize() has solved")
        times, prices = np.maximum(0.0, np.atleast_1d(self._time.dual_value)), self.prices
        slopes = -(solved.costs + solved.matrix.T @ solved.duals)
        own = np.arange(len(self.rows)) + solved.start_of[self.fractions.id]
        # What the valid-allocation rows contributed is taken out again: priced_bound accounts for these itself.
        gains = slopes[own] + times[self.rows] + prices[self.columns] * self.num_gpus[self.rows]
        constant = solved.duals @ solved.limits - solved.offset - times.sum() - prices @ self.problem.capacities
        others = np.delete(np.arange(len(slopes)), own)
        return float(constant + _most(solved, slopes, others) + priced_bound(self.problem, self.matrix_of(gains), prices))

    @property
    def scale(self) -> float:
        """The largest coefficient of the objective just maximised, as compiled."""
        return 0.0 if self._solved is None else float(np.abs(self._solved.costs).max(initial=0.0))

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


def _most(solved: SolvedProgram, slopes: Floats, columns: NDArray[np.int64]) -> float:
    """Return max Σ slope·z over the bounds of these columns, which stand for kinks of the objective.

    A column without a bound has slope 0 up to rounding, or there is no bound on the objective; the rounding counts at its value.
    """
    slope, value = slopes[columns], solved.values[columns]
    limit = np.where(slope > 0, solved.upper[columns], solved.lower[columns])
    rounding = np.abs(slope) <= ROUNDING * np.maximum(1.0, np.abs(solved.costs).max(initial=0.0))
    free = np.where(rounding, np.abs(slope) * (1 + np.abs(value)), np.inf)
    return float(np.where(np.isinf(limit), free, slope * np.where(np.isinf(limit), 0.0, limit)).sum())
