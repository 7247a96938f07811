"""The cvxpy program of an allocation, with which policies write objectives: `AllocationLP` with expressions of its variables."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from gavel_py.errors import InputError, SolverError, UnboundedError, refuse
from gavel_py.io.locking import Lock
from gavel_py.optimization.formulation.linear_rows import SparseMatrix, scale_of
from gavel_py.optimization.formulation.matrices import AllocationLP, Blocks, SumCertificate
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.compilation import COMPILE_SECONDS, ConicProgram, compiled
from gavel_py.optimization.solving.highs import LinearSolver, solved_once
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import SOLVER_TOLERANCE


class Program(AllocationLP):
    """Valid allocations as a linear program over classes of equal jobs, for policies to write objectives on.

    There is one variable for each pair of a class g and a type j where a job of the class can run (`jobs.runnable`): x_gj in
    [0, 1], the time of each job of the class. The constraints are those of Gavel (OSDI 2020, section 3.1), Σ_j x_gj <= 1 for every
    class and Σ_g n_g s_g x_gj <= c_j for every type, where n_g is the number of jobs of the class, and the hard limits of
    `jobs.rules`.

    The expressions are affine and have one entry per class. Reduce them with `total` and `minimum`, which count the jobs of each
    class, never with a bare sum.

    Args:
        jobs: The job classes.
        enough: (G,) steps/s beyond which a job gains nothing, if there is such a throughput (`AllocationLP`).

    Attributes:
        throughput: (G,) Σ_j T_gj x_gj, steps/s.
        normalized_throughput: (G,) v_g = throughput_g / P_g.
        time: (G,) Σ_j x_gj.
        gpus: (K,) GPUs in use in each column, Σ_g n_g s_g a_j x_gj with a_j of `JobClasses.gpu_parts`.
        jobs: The classes with their attributes.
        rows: (P,) the class of each pair where jobs can run, class by class.
        columns: (P,) the type of each of these pairs.
        most: (P,) the largest possible x of each pair, min(1, c_j / (n_g s_g)).
        weights: (G,) weights of the jobs, if the policy declares that it reads them.
        steps_remaining: (G,) steps remaining, if the policy declares that it reads them.
        num_gpus: (G,) GPUs of each gang.
        num_jobs: N, the number of jobs.
    """

    def __init__(self, jobs: JobClasses, enough: Floats | None = None) -> None:
        super().__init__(jobs, enough)
        self.num_jobs, self.num_gpus = jobs.num_jobs, jobs.num_gpus
        self._valuing = Lock()  # threads may verify an allocation concurrently, and evaluation stores values in the variables

    @cached_property
    def _parts(self) -> cp.Variable:
        return cp.Variable(len(self.rows), bounds=[0, self.tops])

    @cached_property
    def time(self) -> cp.Expression:
        """(G,) Σ_j x_gj."""
        return self.by_job(np.ones(len(self.rows)))

    @cached_property
    def _valid(self) -> list[cp.Constraint]:
        """The constraints on time and capacity, and the hard limits if there are any."""
        limits, most = self.jobs.limits
        valid = [self.time <= 1.0, self.used.to_scipy() @ self._parts <= 1.0]
        return [*valid, self.limit_matrix(limits).to_scipy() @ self._parts <= most] if len(most) else valid

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
        """(K,) GPUs in use in each column, Σ_g n_g s_g a_j x_gj; a_j: GPUs per requested GPU."""
        return cp.multiply(self.units * self.jobs.gpu_parts, self.used.to_scipy() @ self._parts)

    @cached_property
    def penalty(self) -> cp.Expression:
        """The loss of the objective by broken soft rules and by changes, a convex scalar."""
        jobs, rules = self.jobs, self.jobs.rules
        losses: list[cp.Expression] = [cp.Constant(0.0)]
        for row in rules.soft_rows:
            costs = row.costs(jobs.rows, jobs.num_gpus)
            scale = scale_of(row.rhs, costs)
            places = np.flatnonzero(costs)
            limit = SparseMatrix(np.zeros_like(places), places, costs.ravel()[places] / scale, (1, costs.size))
            used = self.limit_matrix(limit).to_scipy() @ self._parts
            losses.append((row.penalty or 0.0) * cp.pos(used - row.rhs / scale)[0])
        for floor in rules.soft_floors:
            penalty, least = floor.penalty or 0.0, floor.throughputs[jobs.rows]
            some = np.flatnonzero((least > 0) & np.isfinite(least))
            if len(some):
                short = cp.pos(1 - cp.multiply(1 / least[some], self.throughput[some]))
                losses.append(penalty * (jobs.counts[some].astype(float) @ short))
            losses.append(cp.Constant(penalty * float(jobs.counts[np.isinf(least)].sum())))  # no throughput suffices
        if rules.switch_cost:
            types = self.columns if jobs.columns is None else jobs.columns.source[self.columns]
            at, place = np.unique(self.rows * len(jobs.capacities) + types, return_inverse=True)
            rows, types = np.divmod(at, len(jobs.capacities))
            times = SparseMatrix(place, np.arange(len(place)), self.sizes, (len(at), len(place))).to_scipy() @ self._parts
            moved = cp.abs(times - jobs.last_fractions[rows, types])
            losses.append(rules.switch_cost * ((jobs.counts * jobs.num_gpus)[rows] @ moved))
        return cp.sum(cp.hstack(losses)) if len(losses) > 1 else losses[0]

    @property
    def rules(self) -> list[cp.Constraint]:
        """The constraints of the rules other than limits: throughput floors, and earlier objectives that must be kept."""
        floors = self.floor_matrix.to_scipy()
        return [*([floors @ self._parts >= 1] if floors.shape[0] else []), *(kept(self) for kept in self.jobs.rules.kept)]

    @property
    def weights(self) -> Floats:
        """(G,) w_g; the policy must declare that it reads them."""
        weights: Floats = self.jobs.weights
        return weights

    @property
    def steps_remaining(self) -> Floats:
        """(G,) remaining steps; the policy must declare that it reads them."""
        steps: Floats = self.jobs.steps_remaining
        return steps

    def by_job(self, coefficients: Floats) -> cp.Expression:
        """Return the (G,) expression Σ_j a_gj x_gj.

        Args:
            coefficients: (P,) a_gj for each pair of a class and a type where its jobs can run (`rows`, `columns`).
        """
        return self.rows_by_job(coefficients).to_scipy() @ self._parts

    def total(self, expression: cp.Expression) -> cp.Expression:
        """Return the sum over all jobs of a (G,) expression, Σ_g n_g e_g."""
        return self.jobs.counts.astype(float) @ expression

    def minimum(self, expression: cp.Expression) -> cp.Expression:
        """Return the minimum over all jobs of a (G,) concave expression, for an objective to be maximised."""
        # The tolerances of solvers are absolute, so the epigraph variable must be about 1, whatever the unit of the expression. The
        # unit is its least positive value if all jobs get the same time on all types.
        whole = 1 / self.sizes  # all of the time on all types
        self._parts.value = whole / max(len(self.units), float((self.used.to_scipy() @ whole).max(initial=0.0)))
        values = expression.value
        self._parts.value = None
        positive = np.zeros(0) if values is None else values[(values > 0) & np.isfinite(values)]
        unit = float(positive.min()) if len(positive) else 1.0
        return unit * cp.min(expression / unit)

    def maximize(self, objective: cp.Expression, solver: LinearSolver) -> Floats:
        """Return the (G, K) valid allocation that keeps the rules and maximises a concave objective without curves.

        Raises `UnboundedError` if the objective's own variables leave it unbounded.
        """
        solver.limit.check(COMPILE_SECONDS * len(self.rows))
        own = self.own_variables(objective)
        if self.jobs.rules.kept or not objective.is_affine() or own:
            self.compile(cp.Maximize(objective), self.rules)
            if own:
                self.check_bounded()
        else:
            self.compile_linear(*self._slopes(objective))
        solution = self.solve(solver, "sum")
        for variable in own:
            variable.value = solution.values[self.program.columns[variable.id]].reshape(variable.shape, order="F")
        return self.fractions_of(solution)

    def cones(self, objective: cp.Expression) -> ConicProgram:
        """Compile the program that maximises a concave objective under the rules for Clarabel. Read its answer with `answered`."""
        return ConicProgram(cp.Problem(cp.Maximize(objective), [*self._valid, *self.rules]))

    @property
    def answered(self) -> Floats:
        """(G, K) the time fractions stored in cvxpy's variables."""
        return self.matrix_of(np.maximum(self._parts.value, 0.0) * self.sizes)

    def own_variables(self, objective: cp.Expression) -> list[cp.Variable]:
        """Return the cvxpy variables of an objective that are not variables of this program."""
        return [variable for variable in objective.variables() if variable.id != self._parts.id]

    def compile(self, objective: cp.Maximize | cp.Minimize, constraints: Iterable[cp.Constraint] = ()) -> None:
        """Compile the program of this objective over the valid allocations, with further constraints."""
        own = [*constraints]
        self.program = program = compiled(cp.Problem(objective, [*self._valid, *own]))
        time, capacity, limits = (*(program.rows[constraint.id] for constraint in self._valid), slice(0, 0))[:3]
        parts = program.columns.get(self._parts.id, slice(0, 0))
        self.blocks = Blocks(parts, time, capacity, limits, tuple(program.rows[constraint.id] for constraint in own), slice(0, 0))

    def check_bounded(self) -> None:
        """Raise `UnboundedError` if the compiled program is unbounded.

        Allocations are bounded, so it is unbounded only in a direction of the other variables. HiGHS may not terminate on an
        unbounded program; the program that searches for such a direction always has an optimum.
        """
        program = self.program
        others = np.delete(np.arange(len(program.costs)), np.arange(len(program.costs))[self.blocks.parts])
        direction = replace(
            program,
            costs=program.costs[others],
            offset=0.0,
            matrix=program.matrix.take_columns(others),
            limits=np.zeros_like(program.limits),
            lower=np.where(np.isfinite(program.lower[others]), 0.0, -1.0),
            upper=np.where(np.isfinite(program.upper[others]), 0.0, 1.0),
            columns={},
        )
        if solved_once(direction).value < -SOLVER_TOLERANCE * np.abs(program.costs).max(initial=0.0):
            raise UnboundedError("the objective is unbounded; there is no optimal allocation")

    def keeps_growing(self, objective: cp.Expression) -> bool:
        """Return whether the objective keeps growing as its own variables are scaled up from their current values.

        A curve such as log z is unbounded, although it grows at a constant rate in no direction. (`check_bounded` covers objectives
        without curves.)
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
        return bool(near > SOLVER_TOLERANCE * abs(found[1]) and far >= near / 2)

    def value(self, objective: cp.Expression, fractions: Floats) -> float:
        """Return the value of the objective at (G, K) time fractions."""
        with self._valuing.held:
            self._parts.value = np.maximum(fractions[self.rows, self.columns], 0.0) / self.sizes
            return float(objective.value)

    def tangent_plane(self, objective: cp.Expression, fractions: Floats | None = None) -> tuple[float, Floats]:
        """Return a and (G, K) gains of a tangent plane a + Σ_g n_g Σ_j gain_gj x_gj of a concave objective.

        The plane is nowhere below the objective. A linear objective is its own plane. At a kink, it is one of several. The
        objective's own variables get their best values for these fractions.

        Args:
            objective: A concave scalar.
            fractions: (G, K) where the plane touches it; by default, where no job has any time.

        Raises:
            SolverError: The objective has no slope there.
            InputError: It has curves and own variables.
        """
        at = np.zeros(len(self.rows)) if fractions is None else fractions[self.rows, self.columns] / self.sizes
        own = self.own_variables(objective)
        if not own:
            constant, slopes = self._slopes(objective, at)
        else:
            fixed = self._parts == at
            solution = solved_once(compiled(cp.Problem(cp.Maximize(objective), [fixed])))
            for variable in own:
                variable.value = solution.values[solution.program.columns[variable.id]].reshape(variable.shape, order="F")
            slopes = solution.duals[solution.program.rows[fixed.id]]
            constant = -solution.value - float(slopes @ at)
        return constant, self.matrix_of(slopes / self.sizes / self.jobs.counts[self.rows])

    def _slopes(self, objective: cp.Expression, parts: Floats | None = None) -> tuple[float, Floats]:
        """Return the tangent plane of an objective at (P,) `parts`, default 0, as a constant and (P,) slopes."""
        with self._valuing.held, np.errstate(all="ignore"):
            self._parts.value = np.zeros(len(self.rows)) if parts is None else parts
            slope = objective.grad.get(self._parts, np.zeros(len(self.rows)))
            if slope is None:
                raise SolverError("the objective has no gradient at these time fractions")
            slopes = np.ravel(slope.toarray() if sp.issparse(slope) else slope)  # a scalar if there is only one variable
            return float(objective.value) - float(slopes @ self._parts.value), slopes

    def seen_as(self, jobs: JobClasses) -> Program:
        """Return the same program for a policy with another view of the throughputs of the same classes."""
        if jobs is self.jobs:
            return self
        other = copy(self)
        other.jobs = jobs
        for name in ("throughput", "normalized_throughput", "penalty"):
            other.__dict__.pop(name, None)
        return other


@dataclass(frozen=True)
class ExpressionCertificate(SumCertificate):
    """The certificate of a sum that is written as an expression. sign: -1 if the policy's objective is the negative of it."""

    program: Program
    objective: cp.Expression
    sign: float = 1.0

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) time fractions."""
        return self.sign * self.program.value(self.objective, fractions)


def check_objective(objective: object, direction: str = "max") -> cp.Expression:
    """Return the expression to maximise for an objective; raises `InputError` unless it is a scalar of the right curvature."""
    if not isinstance(objective, cp.Expression) or objective.size != 1:
        raise InputError(f"a policy's objective must be a scalar cvxpy expression, found {objective!r}")
    is_least = direction == "min"
    refuse(
        "",
        (is_least and not objective.is_convex(), "", "this policy's objective is minimised and must be convex; this one is not"),
        (not is_least and not objective.is_concave(), "", "a policy's objective is maximised and must be concave; this one is not"),
    )
    return -objective if is_least else objective
