"""The cvxpy program of an allocation: variables, throughput expressions, valid-allocation constraints, and the cost of soft rules.

`Program` is what policies write objectives in, and `penalty_of` is what an objective loses by rules that may be broken at a price.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from functools import cached_property

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gavel_py.errors import InputError, SolverError, UnboundedError
from gavel_py.io.locking import Lock
from gavel_py.optimization.checking.certificates import priced_bound
from gavel_py.optimization.formulation.linear_rows import scale_of
from gavel_py.optimization.formulation.matrices import CAPACITY, LIMITS, PARTS, TIME, AllocationProgram, ProgramMatrices
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.highs import COMPILE_SECONDS, ConicProgram, LinearSolver, compiled, solved_once
from gavel_py.optimization.solving.lp_problem import Slices, Solution
from gavel_py.problem.arrays import Floats


def penalty_of(jobs: JobClasses, matrices: ProgramMatrices, parts: cp.Variable, throughput: cp.Expression) -> cp.Expression:
    """Return a convex number; parts: (P,) the variables; throughput: (G,) Σ_j T_gj x_gj of them."""
    rules = jobs.rules
    losses: list[cp.Expression] = [cp.Constant(0.0)]
    for row in rules.soft_rows:
        costs = row.costs(jobs.rows, jobs.num_gpus)
        used = matrices.of_limits(sp.csr_array(costs.reshape(1, -1) / scale_of(row.most, costs))) @ parts
        losses.append((row.penalty or 0.0) * cp.pos(used - row.most / scale_of(row.most, costs))[0])
    for floor in rules.soft_floors:
        penalty, least = floor.penalty or 0.0, floor.throughputs[jobs.rows]
        some = np.flatnonzero((least > 0) & np.isfinite(least))
        if len(some):
            short = cp.pos(1 - cp.multiply(1 / least[some], throughput[some]))
            losses.append(penalty * (jobs.counts[some].astype(float) @ short))
        losses.append(cp.Constant(penalty * float(jobs.counts[np.isinf(least)].sum())))  # missed whatever the jobs get
    if rules.switch_cost:
        gpus = (jobs.counts * jobs.num_gpus)[matrices.rows]
        before = jobs.before[matrices.rows, matrices.columns]
        moved = cp.abs(cp.multiply(matrices.sizes, parts) - before)
        losses.append(rules.switch_cost * (gpus @ moved))
    return cp.sum(cp.hstack(losses)) if len(losses) > 1 else losses[0]


ROUNDING = 1e-9

NOISE = 1e-12


class Program(AllocationProgram):
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

    def __init__(self, jobs: JobClasses, enough: Floats | None = None) -> None:
        super().__init__(jobs, enough)
        self._valuing = Lock()  # several threads may verify an allocation at once, and cvxpy evaluates what stands in the variables

    @cached_property
    def _parts(self) -> cp.Variable:
        return cp.Variable(len(self.rows), bounds=[0, self._matrices.tops])

    @cached_property
    def _used(self) -> cp.Expression:
        return self._matrices.used @ self._parts

    @cached_property
    def time(self) -> cp.Expression:
        """(G,) Σ_j x_gj."""
        return self.by_job(np.ones(len(self.rows)))

    @cached_property
    def _valid(self) -> dict[str, cp.Constraint]:
        """What makes an allocation valid, and the limits."""
        limits, most = self.jobs.limits
        valid = {TIME: self.time <= 1.0, CAPACITY: self._used <= 1.0}
        return valid | ({LIMITS: self._matrices.of_limits(limits) @ self._parts <= most} if len(most) else {})

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
        return cp.multiply(self._matrices.units, self._used)

    @cached_property
    def penalty(self) -> cp.Expression:
        """What the objective loses by rules that may be broken at a price: a convex number."""
        return penalty_of(self.jobs, self._matrices, self._parts, self.throughput)

    @property
    def rules(self) -> list[cp.Constraint]:
        """What the rules ask for beside the limits: floors, and objectives that must stay what they are."""
        floors = self.floor_matrix
        return [*([floors @ self._parts >= 1] if floors.shape[0] else []), *(kept(self) for kept in self.jobs.rules.kept)]

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
        return self.rows_by_job(coefficients) @ self._parts

    def total(self, expression: cp.Expression) -> cp.Expression:
        """Return the sum over all jobs of a (G,) expression, Σ_g n_g e_g."""
        return self.jobs.counts.astype(float) @ expression

    def minimum(self, expression: cp.Expression) -> cp.Expression:
        """Return the least entry over all jobs of a (G,) concave expression, for use in an objective to be maximised."""
        return cp.min(expression)

    def maximize(self, objective: cp.Expression, solver: LinearSolver) -> Floats:
        """Solve for the best valid allocation that keeps the rules and return it, (G, K)."""
        solver.limit.check(COMPILE_SECONDS * len(self.rows))
        self.compile_best(objective)
        solution = self.solve(solver, "sum")
        for variable in self.own_variables(objective):
            variable.value = solution.values[self.columns_of(variable)].reshape(variable.shape, order="F")
        return self.fractions_of(solution)

    def cones(self, objective: cp.Expression) -> ConicProgram:
        """Compile the program of a concave objective that is not linear, with the rules; its answer is `answered`."""
        return ConicProgram(cp.Problem(cp.Maximize(objective), [*self._valid.values(), *self.rules]))

    @property
    def answered(self) -> Floats:
        """The (G, K) time fractions that stand in the variables now."""
        return self.matrix_of(np.maximum(self._parts.value, 0.0) * self._matrices.sizes)

    def own_variables(self, objective: cp.Expression) -> list[cp.Variable]:
        """Return the variables that an objective has brought along."""
        return [variable for variable in objective.variables() if variable.id != self._parts.id]

    def compile(self, objective: cp.Maximize | cp.Minimize, constraints: Iterable[cp.Constraint] = ()) -> None:
        """Compile the program of this objective with these constraints, beside the limits."""
        own = [*constraints]
        program = compiled(cp.Problem(objective, [*self._valid.values(), *own]))
        valid: Slices = {name: program.rows[constraint.id] for name, constraint in self._valid.items()}
        rows = {**program.rows, **valid}
        columns: Slices = {**program.columns, PARTS: program.columns.get(self._parts.id, slice(0, 0))}
        self.compiled = replace(program, rows=rows, columns=columns)
        self._own = [rows[constraint.id] for constraint in own]

    def compile_best(self, objective: cp.Expression) -> None:
        """Compile the program of the valid allocation that keeps the rules and has the most of a concave objective.

        Raises `UnboundedError` where variables that the objective has brought along leave it without a bound.
        """
        own = self.own_variables(objective)
        if self.jobs.rules.kept or not objective.is_affine() or own:
            self.compile(cp.Maximize(objective), self.rules)
            if own:
                self.check_bounded()
            return
        self._take(self._matrices.best(*self._slopes(objective), self.floor_matrix))

    def check_bounded(self) -> None:
        """Raise `UnboundedError` if the compiled program has no best answer.

        Allocations are bounded, so it has one unless there is a direction of the other variables in which the objective improves
        without end. HiGHS may not end on such a program; the program that looks for the direction always has an optimum.
        """
        program = self.program
        others = np.delete(np.arange(len(program.costs)), np.arange(len(program.costs))[program.columns[PARTS]])
        direction = replace(
            program,
            costs=program.costs[others],
            offset=0.0,
            matrix=program.matrix[:, others],
            limits=np.zeros_like(program.limits),
            lower=np.where(np.isfinite(program.lower[others]), 0.0, -1.0),
            upper=np.where(np.isfinite(program.upper[others]), 0.0, 1.0),
            columns={},
        )
        if solved_once(direction).value < -ROUNDING * np.abs(program.costs).max(initial=0.0):
            raise UnboundedError("the objective improves without end; there is no allocation")

    def keeps_growing(self, objective: cp.Expression) -> bool:
        """Return whether the objective, at the current values, does not level off as its own variables grow.

        A curve such as log z has no bound, yet no direction in which it rises at a constant rate. (Without curves, `check_bounded`
        says it all.)
        """
        own = self.own_variables(objective)
        values = [variable.value for variable in own]
        if objective.is_pwl() or not own or any(value is None for value in values):
            return False
        found = []
        for factor in (1.0, 1e2, 1e4):
            for variable, value in zip(own, values, strict=True):
                variable.save_value(factor * value)
            found.append(objective.value)
        for variable, value in zip(own, values, strict=True):
            variable.save_value(value)
        near, far = np.diff(found)
        return bool(near > ROUNDING * abs(found[1]) and far >= near / 2)

    def columns_of(self, variable: cp.Variable) -> slice:
        """The columns of a variable in the compiled program."""
        return self.program.columns[variable.id]

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
                    prices[j] = min(raw, price) / self._matrices.units[j]
                    break
        return prices

    def value(self, objective: cp.Expression, fractions: Floats) -> float:
        """Return the objective at this (G, K) allocation, recomputed."""
        with self._valuing.held:
            self._parts.value = np.maximum(fractions[self.rows, self.columns], 0.0) / self._matrices.sizes
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
        own = np.arange(len(slopes))[program.columns[PARTS]]
        counts, gangs = self.jobs.counts[self.rows], self.jobs.num_gpus[self.rows]
        # What the valid-allocation rows contributed is taken out again: priced_bound accounts for these itself.
        gains = (slopes[own] / self._matrices.sizes + times[self.rows]) / counts + self.prices(solution)[self.columns] * gangs
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
        return self.matrix_of(slopes[self.program.columns[PARTS]] / self._matrices.sizes / self.jobs.counts[self.rows])

    @property
    def time_prices(self) -> Floats:
        """(G,) by how much the objective just maximised grows per unit of time that a job of each class has beyond all of it."""
        return self.solution.duals[self.time_rows] / self.jobs.counts

    def linear_parts(self, objective: cp.Expression) -> tuple[float, Floats]:
        """Return a and (G, K) gains of a job's time such that the linear objective is a + Σ_g n_g Σ_j gain_gj x_gj."""
        return self.tangent_plane(objective, np.zeros(self.jobs.throughputs.shape))

    def tangent_plane(self, objective: cp.Expression, fractions: Floats) -> tuple[float, Floats]:
        """Return a and (G, K) gains such that a + Σ_g n_g Σ_j gain_gj x_gj is nowhere below a concave objective, and touches it at
        these (G, K) time fractions; at a kink, one of several such planes. Variables of its own are those of the optimum there.

        Raises `SolverError` where the objective has no slope, `InputError` where it has curves and variables of its own.
        """
        sizes = self._matrices.sizes
        at = fractions[self.rows, self.columns] / sizes
        constant, slopes = self._slopes_of_own(objective, at) if self.own_variables(objective) else self._slopes(objective, at)
        return constant, self.matrix_of(slopes / sizes / self.jobs.counts[self.rows])

    def _slopes(self, objective: cp.Expression, parts: Floats | None = None) -> tuple[float, Floats]:
        """The tangent plane of an objective as a constant, and what each part is worth; `parts`: where, if that matters."""
        with self._valuing.held, np.errstate(all="ignore"):
            self._parts.value = np.zeros(len(self.rows)) if parts is None else parts
            slope = objective.grad.get(self._parts, np.zeros(len(self.rows)))
            if slope is None:
                raise SolverError("the objective has no slope at these time fractions")
            slopes = np.ravel(slope.toarray() if sp.issparse(slope) else slope)  # a plain number where there is one variable only
            return float(objective.value) - float(slopes @ self._parts.value), slopes

    def _slopes_of_own(self, objective: cp.Expression, parts: Floats) -> tuple[float, Floats]:
        """`_slopes` of an objective with variables of its own, which then have their best values for these parts."""
        fixed = self._parts == parts
        solution = solved_once(compiled(cp.Problem(cp.Maximize(objective), [fixed])))
        for variable in self.own_variables(objective):
            variable.value = solution.values[solution.program.columns[variable.id]].reshape(variable.shape, order="F")
        slopes = solution.duals[solution.program.rows[fixed.id]]
        return -solution.value - float(slopes @ parts), slopes

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
        """The largest coefficient of the objective, as compiled, for all of the time that a job can have."""
        costs = np.abs(self.program.costs)
        costs[self.program.columns[PARTS]] *= self.most / self._matrices.sizes
        return float(costs.max(initial=0.0))


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
