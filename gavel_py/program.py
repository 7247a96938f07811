"""The cvxpy program of an allocation: variables, throughput expressions, valid-allocation constraints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gavel_py.errors import InputError
from gavel_py.job_classes import JobClasses
from gavel_py.numbering import content_keys, hash_of, position_keys
from gavel_py.proof import priced_bound
from gavel_py.rules import scale_of
from gavel_py.solver import ConicProgram, LinearProgram, LinearSolver, Solution, compiled

__all__ = ["Program", "check_objective"]

Floats = NDArray[np.float64]

ROUNDING = 1e-9
NOISE = 1e-12


class Program:
    """Valid allocations as a linear program over classes of equal jobs, for policies to write objectives on.

    There is one variable for each pair where a job of class g can run on type j (`jobs.runnable`), so a job never gets time
    where it cannot run; x_gj in [0, 1] is the time of each job of the class. The constraints are those of Gavel (OSDI 2020,
    section 3.1): Σ_j x_gj <= 1 for every class, Σ_g n_g s_g x_gj <= c_j for every type; n_g: jobs of the class. To these
    come the limits that `jobs.rules` ask for.

    throughput: (G,) Σ_j T_gj x_gj, steps/s; normalized_throughput: (G,) v_g = throughput_g / P_g;
    time: (G,) Σ_j x_gj; gpus: (K,) Σ_g n_g s_g x_gj. All are affine expressions, one entry per class; reduce them with
    `total` and `minimum`, which know how many jobs a class has, never with a bare sum.
    most: the most that each x can be, min(1, c_j / (n_g s_g)), one number for each pair that can run, class by class;
    jobs: the classes with their attributes; weights, steps_remaining: (G,) of them, if the policy declares that it reads these;
    num_gpus: (G,); num_jobs: N.
    """

    def __init__(
        self, jobs: JobClasses, *, time_limits: cp.Expression | float = 1.0, capacity_factor: cp.Expression | float = 1.0
    ) -> None:
        self.jobs = jobs
        self.rows, self.columns = np.nonzero(jobs.runnable)
        gpus = (jobs.counts * jobs.num_gpus)[self.rows]
        units = np.where(jobs.capacities > 0, jobs.capacities, 1.0)
        # The variables are x in parts of the most that it can be, and capacities are 1, so that HiGHS's absolute tolerances
        # mean the same for 2 GPUs and for 10^7, and for one job and for a million.
        self.most: Floats = np.minimum(1.0, units[self.columns] / gpus)
        self._units = units
        # No bound but those of the rows, whose dual values it would take over; but without any, the dual simplex method has a far
        # longer way, hence twice as much as can be.
        top = np.full(len(self.rows), 2.0) if isinstance(capacity_factor, float) else 2.0 / self.most
        self._parts = cp.Variable(len(self.rows), bounds=[0, top])
        self.time = self.by_job(np.ones(len(self.rows)))
        self._used = self._matrix(self.columns, gpus * self.most / units[self.columns], len(units)) @ self._parts
        self._time = self.time <= time_limits
        self._capacity = self._used <= capacity_factor
        limits, most = jobs.limits
        # Limits are in parts of themselves, and grow by such a part where capacities do.
        further = (capacity_factor - 1) * jobs.limits_grow
        self._limits = self._limit_matrix(limits) @ self._parts <= most + further if len(most) else None
        self.compiled: LinearProgram | None = None
        self._solution: Solution | None = None
        self._own: list[cp.Constraint] = []

    @cached_property
    def throughput(self) -> cp.Expression:
        """(G,) Σ_j T_gj x_gj, steps/s."""
        return self.by_job(self.jobs.throughputs[self.rows, self.columns])

    @cached_property
    def normalized_throughput(self) -> cp.Expression:
        """(G,) v_g = throughput_g / P_g."""
        return self.by_job(self.jobs.throughputs[self.rows, self.columns] / self.jobs.equal_share[self.rows])

    @cached_property
    def gpus(self) -> cp.Expression:
        """(K,) Σ_g n_g s_g x_gj."""
        return cp.multiply(self._units, self._used)

    @cached_property
    def penalty(self) -> cp.Expression:
        """What the objective loses by rules that may be broken at a price: a convex number."""
        rules, jobs = self.jobs.rules, self.jobs
        losses: list[cp.Expression] = [cp.Constant(0.0)]
        for row in rules.soft_rows:
            costs = row.costs(jobs.rows, jobs.num_gpus)
            used = self._limit_matrix(sp.csr_array(costs.reshape(1, -1) / scale_of(row.most, costs))) @ self._parts
            losses.append((row.penalty or 0.0) * cp.pos(used - row.most / scale_of(row.most, costs))[0])
        for floor in rules.soft_floors:
            least = floor.throughputs[jobs.rows]
            some = np.flatnonzero(least > 0)
            if len(some):
                short = cp.pos(1 - cp.multiply(1 / least[some], self.throughput[some]))
                losses.append((floor.penalty or 0.0) * (jobs.counts[some].astype(float) @ short))
        if rules.switch_cost:
            gpus = (jobs.counts * jobs.num_gpus)[self.rows]
            before = jobs.before[self.rows, self.columns]
            moved = cp.abs(cp.multiply(self.most, self._parts) - before)
            losses.append(rules.switch_cost * (gpus @ moved))
        return cp.sum(cp.hstack(losses)) if len(losses) > 1 else losses[0]

    @property
    def floors(self) -> list[cp.Constraint]:
        """The throughputs that single jobs must have by the rules, each in parts of itself."""
        some = np.flatnonzero(self.jobs.floors > 0)
        if not len(some):
            return []
        return [cp.multiply(1 / self.jobs.floors[some], self.throughput[some]) >= 1]

    @property
    def rules(self) -> list[cp.Constraint]:
        """What the rules ask for beside the limits: floors, and objectives that must stay what they are."""
        return [*self.floors, *(kept(self) for kept in self.jobs.rules.kept)]

    @property
    def num_jobs(self) -> int:
        """N, the number of jobs in all classes."""
        return self.jobs.num_jobs

    @property
    def weights(self) -> Floats:
        """(G,) w_g; the policy must declare it."""
        weights: Floats = self.jobs.weights
        return weights

    @property
    def num_gpus(self) -> NDArray[np.float64]:
        """(G,) s_g, GPUs of each gang."""
        return self.jobs.num_gpus

    @property
    def steps_remaining(self) -> Floats:
        """(G,) n_g; the policy must declare it."""
        steps: Floats = self.jobs.steps_remaining
        return steps

    def by_job(self, coefficients: Floats) -> cp.Expression:
        """Return the (G,) expression Σ_j a_gj x_gj; `coefficients` has one a_gj for each pair that can run, class by class."""
        return self._matrix(self.rows, coefficients * self.most, len(self.jobs)) @ self._parts

    def total(self, expression: cp.Expression) -> cp.Expression:
        """Return the sum over all jobs of a (G,) expression, Σ_g n_g e_g."""
        return self.jobs.counts.astype(float) @ expression

    def minimum(self, expression: cp.Expression) -> cp.Expression:
        """Return the least entry over all jobs of a (G,) concave expression, for use in an objective to be maximised."""
        return cp.min(expression)

    def maximize(self, objective: cp.Expression, solver: LinearSolver) -> Floats:
        """Solve for the best valid allocation that keeps the rules and return it, (G, K)."""
        self.compile(cp.Maximize(objective), self.rules)
        solution = self.solve(solver, "sum")
        for variable in self.own_variables(objective):
            variable.value = solution.values[self.columns_of(variable)].reshape(variable.shape, order="F")
        return self.fractions_of(solution)

    def cones(self, objective: cp.Expression) -> ConicProgram:
        """Compile the program of a concave objective that is not linear, with the rules; its answer is `answered`."""
        limits = [] if self._limits is None else [self._limits]
        return ConicProgram(cp.Problem(cp.Maximize(objective), [self._time, self._capacity, *limits, *self.rules]))

    @property
    def answered(self) -> Floats:
        """The (G, K) time fractions that stand in the variables now."""
        return self.matrix_of(np.maximum(self._parts.value, 0.0) * self.most)

    def own_variables(self, objective: cp.Expression) -> list[cp.Variable]:
        """Return the variables that an objective has brought along."""
        return [variable for variable in objective.variables() if variable.id != self._parts.id]

    def compile(self, objective: cp.Maximize | cp.Minimize, constraints: Iterable[cp.Constraint] = ()) -> None:
        """Compile the program of this objective with these constraints, beside the limits."""
        self._own = [*constraints]
        limits = [] if self._limits is None else [self._limits]
        self.compiled = compiled(cp.Problem(objective, [self._time, self._capacity, *limits, *self._own]))

    def solve(self, solver: LinearSolver, name: str) -> Solution:
        """Solve the compiled program, from the basis that the solver keeps under `name`."""
        program = self.program
        self._solution = solver.solve(program, name, *self.keys)
        return self._solution

    def solve_with(self, limits: Floats, solver: LinearSolver, name: str) -> None:
        """Solve the program that the solver has just solved once more, with these right-hand sides from now on."""
        self._solution = solver.again(limits, keep=name)
        self.compiled = self._solution.program

    def solve_again(
        self, solver: LinearSolver, name: str, worth: Floats, most: Mapping[cp.Variable, float], start: str | None
    ) -> Solution:
        """Solve for max Σ a_gj x_gj in the same program, with upper bounds on some variables.

        It starts from the basis kept as `start`, if given, which must still be feasible, else from that kept under `name`.

        worth: one a_gj for each pair that can run, class by class.
        """
        program = self.program
        costs, upper = np.zeros(len(program.costs)), program.upper.copy()
        costs[program.columns[self._parts.id]] = -worth * self.most
        for variable, bound in most.items():
            upper[program.columns[variable.id]] = bound
        return solver.solve(replace(program, costs=costs, upper=upper), name, *self.keys, feasible=start)

    @property
    def program(self) -> LinearProgram:
        """The program as compiled last."""
        if self.compiled is None:
            raise RuntimeError("the program has not been compiled")
        return self.compiled

    @property
    def solution(self) -> Solution:
        """The optimum found last."""
        if self._solution is None:
            raise RuntimeError("the program has not been solved")
        return self._solution

    @property
    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The keys of columns and rows: what tells of the same class and type has the same key in every program."""
        program = self.program
        classes, count = self.jobs.keys, len(self.jobs)
        columns = position_keys(len(program.costs), "column")
        columns[program.columns[self._parts.id]] = content_keys([classes[self.rows], self.columns], len(self.rows))
        rows = position_keys(len(program.limits), "row")
        rows[program.rows[self._capacity.id]] = position_keys(len(self._units), "type")
        if self._limits is not None:
            rows[program.rows[self._limits.id]] = position_keys(self._limits.size, "limit")
        for position, constraint in enumerate([self._time, *self._own]):
            if constraint.size == count:
                tag = np.full(count, hash_of("class") + position, dtype=np.uint64)
                rows[program.rows[constraint.id]] = content_keys([classes, tag], count)
        return columns, rows

    def fractions_of(self, solution: Solution) -> Floats:
        """Return a solution's time fractions x, (G, K)."""
        parts = solution.values[self.program.columns[self._parts.id]]
        return self.matrix_of(np.where(parts > NOISE, parts, 0.0) * self.most)

    def matrix_of(self, values: Floats) -> Floats:
        """Return one value per pair that can run as a (G, K) table with 0 elsewhere."""
        table = np.zeros(self.jobs.throughputs.shape)
        table[self.rows, self.columns] = values
        return table

    @property
    def capacity_rows(self) -> slice:
        """The rows of the capacities in the compiled program; their limits and duals are in parts of c_j."""
        return self.program.rows[self._capacity.id]

    @property
    def limit_rows(self) -> slice:
        """The rows of the rules' limits in the compiled program, each in parts of itself."""
        return slice(0, 0) if self._limits is None else self.program.rows[self._limits.id]

    def limit_duals(self, solution: Solution) -> Floats:
        """Return (R,) the dual values of the limits, >= 0."""
        return solution.duals[self.limit_rows]

    @property
    def time_rows(self) -> slice:
        """The rows of the jobs' time in the compiled program."""
        return self.program.rows[self._time.id]

    def columns_of(self, variable: cp.Variable) -> slice:
        """The columns of a variable in the compiled program."""
        return self.program.columns[variable.id]

    def rows_of(self, constraint: cp.Constraint) -> slice:
        """The rows of a constraint in the compiled program."""
        return self.program.rows[constraint.id]

    def prices(self, solution: Solution) -> Floats:
        """Return (K,) the dual values of the capacities: objective per GPU of each type, >= 0; 0 for a type without GPUs."""
        duals = solution.duals[self.capacity_rows] / self._units
        prices: Floats = np.where(self.jobs.capacities > 0, duals, 0.0)
        return prices

    def shadow_prices(self, solver: LinearSolver) -> Floats:
        """Return (K,) by how much the objective just maximised grows per extra GPU, for the first small part of a GPU.

        At a kink, dual values are not unique, and only the least are right for more GPUs: those of the program with a few more, as
        long as they account for all that these gain.
        """
        solution, rows = self.solution, self.capacity_rows
        prices = self.prices(solution)
        for j in np.flatnonzero(prices > 0) if not solution.has_unique_duals else ():
            raw = float(solution.duals[rows][j])
            for more in (1e-5, 1e-8):
                limits = self.program.limits.copy()
                limits[rows][j] += more
                found = solver.again(limits)
                price = float(found.duals[rows][j])
                if solution.value - found.value - price * more <= 1e-6 * raw * more:
                    prices[j] = min(raw, price) / self._units[j]
                    break
        return prices

    def value(self, objective: cp.Expression, fractions: Floats) -> float:
        """Return the objective at this (G, K) allocation, recomputed."""
        self._parts.value = fractions[self.rows, self.columns] / self.most
        return float(objective.value)

    def bound(self) -> float:
        """Return an upper bound on the objective just maximised, over all valid allocations.

        Weak duality: with duals y of the rows that a policy's objective and constraints added (kinks such as `minimum` become
        rows), objective <= constant + Σ_g n_g Σ_j G_gj x_gj for every valid x, whatever y >= 0 is; `priced_bound` then bounds
        the sum.
        """
        solution, program = self.solution, self.program
        duals, capacity = solution.duals, solution.duals[self.capacity_rows]
        times = duals[self.time_rows]
        slopes = -(program.costs + program.matrix.T @ duals)
        own = np.arange(len(slopes))[program.columns[self._parts.id]]
        counts, gangs = self.jobs.counts[self.rows], self.jobs.num_gpus[self.rows]
        # What the valid-allocation rows contributed is taken out again: priced_bound accounts for these itself.
        gains = (slopes[own] / self.most + times[self.rows]) / counts + self.prices(solution)[self.columns] * gangs
        constant = duals @ program.limits - program.offset - times.sum() - capacity.sum()
        others = np.delete(np.arange(len(slopes)), own)
        return float(
            constant + _most(solution, slopes, others) + priced_bound(self.jobs, self.matrix_of(gains), self.prices(solution))
        )

    def net_gains(self) -> Floats:
        """Return (G, K) by how much the objective just maximised grows per unit of a job's time on a type, less what all that this
        takes would be worth elsewhere, at the dual values: none is above 0, and what is below is given no time.
        """
        slopes = -(self.program.costs + self.program.matrix.T @ self.solution.duals)
        return self.matrix_of(slopes[self.program.columns[self._parts.id]] / self.most / self.jobs.counts[self.rows])

    def linear_bound(self, objective: cp.Expression, prices: Floats) -> float:
        """Return an upper bound on an objective that is linear in the time fractions, at any prices >= 0."""
        constant, gains = self.linear_parts(objective)
        return constant + priced_bound(self.jobs, gains, prices)

    def linear_parts(self, objective: cp.Expression) -> tuple[float, Floats]:
        """Return a and (G, K) gains of a job's time such that the linear objective is a + Σ_g n_g Σ_j gain_gj x_gj."""
        self._parts.value = np.zeros(len(self.rows))
        slope = objective.grad.get(self._parts, self._parts.value)  # a plain number where there is one variable only
        slopes = np.ravel(slope.toarray() if sp.issparse(slope) else slope)
        return float(objective.value), self.matrix_of(slopes / self.most / self.jobs.counts[self.rows])

    def seen_as(self, jobs: JobClasses) -> Program:
        """Return the same program for a policy that sees other throughputs of the same classes."""
        if jobs is self.jobs:
            return self
        other = copy(self)
        other.jobs = jobs
        for name in ("throughput", "normalized_throughput", "penalty"):
            other.__dict__.pop(name, None)
        return other

    @property
    def scale(self) -> float:
        """The largest coefficient of the objective, as compiled."""
        return float(np.abs(self.program.costs).max(initial=0.0))

    def _limit_matrix(self, limits: sp.csr_array) -> sp.csr_array:
        """(R, pairs) what each variable takes of the (R, G·K) limits."""
        own = limits[:, self.rows * len(self._units) + self.columns]
        return sp.csr_array(own @ sp.diags_array(self.jobs.counts[self.rows] * self.most))

    def _matrix(self, positions: NDArray[np.int64], coefficients: Floats, count: int) -> sp.csr_array:
        """The (count, pairs) matrix with each pair's coefficient in the row at its position."""
        pairs = np.arange(len(self.rows))
        return sp.csr_array((coefficients, (positions, pairs)), shape=(count, len(pairs)))


def check_objective(objective: object, direction: str = "max") -> cp.Expression:
    """Return what is to be maximised for a policy's objective; raises `InputError` when it is not one number of the right curve."""
    if not isinstance(objective, cp.Expression) or objective.size != 1:
        raise InputError(f"a policy's objective must be one cvxpy number, found {objective!r}")
    if direction == "min":
        if not objective.is_convex():
            raise InputError("this policy's objective is minimised and must be convex; it is not")
        return -objective
    if not objective.is_concave():
        raise InputError("a policy's objective is maximised and must be concave; this one is not")
    return objective


def _most(solution: Solution, slopes: Floats, columns: NDArray[np.int64]) -> float:
    """Return max Σ slope·z over the bounds of these columns, which stand for kinks of the objective.

    A column without a bound has slope 0 up to rounding, or there is no bound on the objective; the rounding counts at its value.
    """
    program = solution.program
    slope, value = slopes[columns], solution.values[columns]
    limit = np.where(slope > 0, program.upper[columns], program.lower[columns])
    rounding = np.abs(slope) <= ROUNDING * np.maximum(1.0, np.abs(program.costs).max(initial=0.0))
    free = np.where(rounding, np.abs(slope) * (1 + np.abs(value)), np.inf)
    return float(np.where(np.isinf(limit), free, slope * np.where(np.isinf(limit), 0.0, limit)).sum())
