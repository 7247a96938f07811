"""Concave objectives with curves: a conic interior point method, Newton's method, and proofs by tangents.

`maximize_concave` solves the conic program, and continues with Newton's method if the gap is too large. A tangent touches the
objective at a point and is nowhere below it, so a bound on the tangent also bounds the objective. The bound follows from the dual
values of a linear program (`ConcaveCertificate`), or from any prices of GPUs (`PricedTangent`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.elementwise.elementwise import Elementwise

from gavel_py.errors import InputError, SolverError
from gavel_py.optimization.checking.certificates import Prices, gap, priced_bound, within_capacity
from gavel_py.optimization.formulation.linear_rows import shortfalls
from gavel_py.optimization.formulation.matrices import SumCertificate
from gavel_py.optimization.formulation.program import Program
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.best_responses import tightest_prices
from gavel_py.optimization.solving.compilation import COMPILE_SECONDS, CONES_SECONDS, ConicProgram
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimitReached
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import FLOAT_ROUNDING, SOLVER_TOLERANCE

logger = logging.getLogger(__name__)

NUDGE = 1e-4
"""Relative change of an argument for the second derivative."""

TENTH = 0.1


class _OfObjective:
    """Base class of the certificates of a concave objective."""

    program: Program
    objective: cp.Expression
    sign: float

    @property
    def jobs(self) -> JobClasses:
        return self.program.jobs

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) time fractions."""
        with np.errstate(all="ignore"):
            return self.sign * self.program.value(self.objective, fractions)


@dataclass(frozen=True)
class ConcaveCertificate(_OfObjective, SumCertificate):
    """Proves a concave objective f by its tangent f' at the answer X: f <= f' everywhere, and a linear program bounds f'.

    sign: -1 where the policy's objective is the negative of f.
    """

    program: Program
    objective: cp.Expression
    tangent: cp.Expression
    sign: float = 1.0

    def scale(self, fractions: Floats) -> float:
        """Return the larger of the tangent's largest coefficient and ten times the loss if all jobs have a tenth less time.

        For Σ w log v, whose value may be 0, the latter is about Σ w.
        """
        return max(_cost_of_less(self, fractions), self.program.scale)


@dataclass(frozen=True)
class PricedTangent(_OfObjective):
    """Bounds a concave objective f at any prices p >= 0 of GPUs, optimal or not.

    f is nowhere above its tangent plane a + Σ_g n_g Σ_j G_gj x_gj at some time fractions, which is at most
    a + `priced_bound` of G and p.

    Args:
        objective: f less the penalties of soft constraints.
        constant, gains: the tangent plane of f without penalties: a and (G, K).
        prices: (K,).
        least: (G,) the hard throughput floors.
        sign: -1 where the policy's objective is the negative of f.
    """

    program: Program
    objective: cp.Expression
    constant: float
    gains: Floats
    prices: Floats
    least: Floats
    sign: float = 1.0

    def bound(self) -> float:
        """Return a bound on the objective of all valid allocations."""
        return self.sign * (self.constant + priced_bound(self.jobs, self.gains, self.prices, self.least))

    def scale(self, fractions: Floats) -> float:
        """Return ten times the loss if all jobs have a tenth less time for a curved objective, otherwise 0."""
        return 0.0 if self.objective.is_pwl() else _cost_of_less(self, fractions)

    @property
    def scarcity(self) -> Prices:
        """The prices; limits have none."""
        return Prices(self.prices, np.zeros(len(self.jobs.limits[1])))


def best_priced(
    program: Program, objective: cp.Expression, sign: float, candidates: Sequence[Floats], prices: Sequence[Floats]
) -> tuple[Floats, PricedTangent | None]:
    """Return the best of several (G, K) time fractions for a concave objective, and the certificate of the best prices.

    The best equal price of all GPUs is tried too. There is no certificate if the objective has no slope, or has both curves
    and own variables.
    """
    charged = objective - program.penalty if program.jobs.rules.has_penalties else objective
    own = program.own_variables(charged)
    values = [_value_at(program, charged, fractions, own=bool(own)) for fractions in candidates]
    fractions, jobs = candidates[int(np.argmax(values))], program.jobs
    try:
        constant, gains = program.tangent_plane(objective, fractions)
    except (SolverError, InputError):
        return fractions, None
    least = np.minimum(jobs.floors, jobs.fastest)
    best = tightest_prices(jobs, gains, prices, least)
    return fractions, PricedTangent(program, charged, constant, gains, best, least, sign)


def _value_at(program: Program, objective: cp.Expression, fractions: Floats, *, own: bool) -> float:
    """Return the objective at these fractions with the best values of own variables; -inf if that is not finite."""
    if own:
        try:
            program.tangent_plane(objective, fractions)  # finds these values
        except (SolverError, InputError):
            return -np.inf
    with np.errstate(all="ignore"):
        value = program.value(objective, fractions)
    return value if np.isfinite(value) else -np.inf


def _cost_of_less(certificate: ConcaveCertificate | PricedTangent, fractions: Floats) -> float:
    cost = abs(certificate.value(fractions) - certificate.value((1 - TENTH) * fractions)) / TENTH
    return cost if np.isfinite(cost) else 0.0


def tangent(expression: cp.Expression, *, bent: bool = False) -> cp.Expression:
    """Return a piecewise linear expression that touches a concave one at the current values and is nowhere below it.

    Kinks, such as a minimum, remain. Each curved atom becomes its tangent plane as a function of its arguments, so that cvxpy's
    rules still prove the result concave. (The tangent planes of convex atoms are below them.) bent: curves of one linear argument
    keep their second derivative, for Newton's method. The result is then not a bound.

    Raises `SolverError` where a curve has no slope.
    """
    if expression.is_pwl():
        return expression
    parts = [tangent(part, bent=bent) for part in expression.args]
    points = [part if part.is_constant() else cp.Variable(part.shape, value=part.value) for part in expression.args]
    atom = expression.copy(points)
    if atom.is_pwl():
        return expression.copy(parts)
    plane = _plane(atom, points, parts)
    is_bent = bent and isinstance(atom, Elementwise) and len(parts) == 1 and parts[0].is_affine()
    return plane + cp.multiply(_bend(atom, points[0]), cp.square(parts[0] - points[0].value)) if is_bent else plane


def _plane(atom: cp.Expression, points: list[cp.Expression], parts: list[cp.Expression]) -> cp.Expression:
    """Return the tangent plane of an atom at these points, as a function of its parts."""
    slopes = atom.grad
    plane = cp.Constant(atom.value)
    for point, part in zip(points, parts, strict=True):
        if not part.is_constant():
            slope = _matrix(slopes[point])
            if not np.isfinite(slope.data).all():
                raise SolverError(f"{type(atom).__name__} has no gradient at the answer, so the answer cannot be proven")
            rise = slope.T @ cp.vec(part - point.value, order="F")
            plane = plane + cp.reshape(rise, atom.shape, order="F")
    return plane


def _bend(atom: cp.Expression, point: cp.Variable) -> Floats:
    """Return half the second derivative of each entry, 0 where there is none."""
    value = point.value
    step = NUDGE * np.where(value == 0, NUDGE, np.abs(value))
    slopes = []
    for sign in (1, -1):
        point.value = value + sign * step
        slopes.append(_matrix(atom.grad[point]).diagonal().reshape(atom.shape, order="F"))
    point.value = value
    bend: Floats = (slopes[0] - slopes[1]) / (4 * step)
    return np.where(np.isfinite(bend), bend, 0.0)


def _matrix(slope: Any) -> sp.csc_array:
    """Return a slope of cvxpy, which is a matrix, a number or None, as a matrix; NaN for None."""
    if slope is None or np.isscalar(slope):
        slope = [[np.nan if slope is None else slope]]
    return sp.csc_array(slope)


ALGORITHM = "conic interior point"

STEPS = (0.8, 0.5, 0.3, 0.95)
"""Step lengths to try. Each fails on some programs, but two of them rarely fail on the same program."""

ENOUGH = 1e-8
"""Default gap at which the search ends."""

CRUMB, MORE = 1e-6, 1e-10
"""Parts of the largest time of a job on a type. A time up to CRUMB may have wrong digits, and the slope of a steep curve there may
be wrong too. With MORE added, the slope is small enough for a bound.
"""


def maximize_concave(
    program: Program, objective: cp.Expression, solver: LinearSolver, sign: float = 1.0, enough: float = ENOUGH
) -> tuple[Floats, ConcaveCertificate]:
    """Return the best (G, K) time fractions for a concave objective, and their certificate.

    enough: the gap at which the search ends.

    Raises `SolverError` if no answer is found, `TimeLimitReached` with the best one so far.
    """
    solver.limit.check(CONES_SECONDS * len(program.rows))
    search, cones = _Search(program, objective, solver, sign), program.cones(objective)
    with np.errstate(all="ignore"):
        try:
            for step in STEPS:
                search.try_cones(cones, step)
                while search.gap > enough and search.try_newton():
                    pass
                logger.debug("cones with steps of %g, then Newton's method: gap %.1e", step, search.gap)
                if search.gap <= enough:
                    break
            return search.result()
        except TimeLimitReached as reached:
            fractions, prices = search.known
            raise TimeLimitReached(None, reached.fractions + fractions, reached.prices + prices) from None


@dataclass(frozen=True)
class _Answer:
    """Time fractions, values of the objective's own variables, and the gap of their proof.

    touching: the time fractions at which the tangent of the proof touches the objective, None for those of the answer.
    """

    fractions: Floats
    own: list[Floats]
    gap: float = np.inf  # or, if that is worse, how far rules are broken
    touching: Floats | None = None


def _broken(jobs: JobClasses, fractions: Floats) -> float:
    """Return the part by which (G, K) time fractions break a rule, as an interior point may where rules leave hardly any room."""
    if not jobs.rules:
        return 0.0
    costs, most = jobs.limits
    over = costs @ (jobs.counts[:, None] * fractions).ravel() - most
    short = shortfalls(jobs.floors, (jobs.throughputs * fractions).sum(axis=1))
    return max(float(over.max(initial=0.0)), float(short.max(initial=0.0)))


class _Search:
    """Searches for an answer with a small gap and keeps the best."""

    def __init__(self, program: Program, objective: cp.Expression, solver: LinearSolver, sign: float) -> None:
        self._program, self._objective, self._solver, self._sign = program, objective, solver, sign
        self._own = program.own_variables(objective)
        self._best: _Answer | None = None
        self._proven: tuple[_Answer, ConcaveCertificate] | None = None
        self._failure = SolverError("no answer was found")

    @property
    def gap(self) -> float:
        """The gap of the best answer."""
        return np.inf if self._best is None else self._best.gap

    @property
    def known(self) -> tuple[tuple[Floats, ...], tuple[Prices, ...]]:
        """The best answer and its prices, if there are any."""
        fractions = () if self._best is None else (self._best.fractions,)
        return fractions, () if self._proven is None else (self._proven[1].scarcity,)

    def try_cones(self, cones: ConicProgram, step: float) -> None:
        """Solve the conic program with steps of this length."""
        try:
            self._consider(self._solved(cones, step))
        except SolverError as error:
            self._failure = error

    def try_newton(self) -> bool:
        """Improve the best answer by a step of Newton's method; return whether that has halved the gap."""
        before = self._best
        if before is None:
            return False
        self._value(before)
        try:
            self._solver.limit.check(CONES_SECONDS * len(self._program.rows))
            model = self._program.cones(tangent(self._objective, bent=True))
            self._consider(self._between(before, self._solved(model, STEPS[0])))
        except SolverError:
            return False
        return 2 * self.gap < before.gap

    def result(self) -> tuple[Floats, ConcaveCertificate]:
        """Return the best answer and its certificate, with the program as solved for this answer."""
        if self._best is None:
            raise self._failure
        return self._best.fractions, self._certificate(self._best)

    def _solved(self, cones: ConicProgram, step: float) -> _Answer:
        """Return the answer of the conic solver with times of the size of its tolerance set to 0."""
        self._solver.iterations += cones.solve(step, self._solver.limit)
        self._solver.programs += 1
        fractions = self._program.answered
        speeds = fractions * self._program.jobs.throughputs
        dust = (fractions < SOLVER_TOLERANCE * fractions.max(axis=1, keepdims=True)) & (
            speeds < SOLVER_TOLERANCE * speeds.max(axis=1, keepdims=True)
        )
        return _Answer(np.where(dust, 0.0, fractions), [variable.value for variable in self._own])

    def _consider(self, answer: _Answer) -> None:
        """Prove an answer and keep it if it is the best.

        Jobs with tiny times (`CRUMB`) get none or, if that is not a good answer, slightly more. The optimum of a steep curve may be
        closer to 0 than an interior point can get, where slopes differ widely. Then the tangent at CRUMB gives a better
        bound.
        """
        times, largest = answer.fractions, self._program.matrix_of(self._program.most)
        poor = (times <= CRUMB * largest).all(axis=1, keepdims=True)
        rest = within_capacity(self._program.jobs, np.where(poor, 0.0, times))
        if self._prove(replace(answer, fractions=rest)) or not poor.any():
            return
        more = replace(answer, fractions=within_capacity(self._program.jobs, np.where(poor, times + MORE * largest, times)))
        if not self._prove(more):
            self._prove(more, np.where(poor, CRUMB * largest, times))

    def _prove(self, answer: _Answer, touching: Floats | None = None) -> bool:
        """Prove an answer by a tangent at its own or other fractions, keep it if best, and return whether its gap is small."""
        answer = replace(answer, touching=touching)
        try:
            certificate = self._certificate(answer)
        except SolverError as error:
            self._failure = error
            return False
        found = gap(certificate.value(answer.fractions), certificate.bound(), certificate.scale(answer.fractions))
        found = max(found, ENOUGH * _broken(self._program.jobs, answer.fractions) / SOLVER_TOLERANCE)
        if found < self.gap:
            self._best = replace(answer, gap=found)
            self._proven = self._best, certificate
        return found <= ENOUGH

    def _certificate(self, answer: _Answer) -> ConcaveCertificate:
        """Solve the linear program of the tangent at an answer; its dual values bound the objective."""
        if self._proven is not None and self._proven[0] is answer:
            return self._proven[1]
        self._proven = None
        self._value(answer if answer.touching is None else replace(answer, fractions=answer.touching))
        above = tangent(self._objective)
        self._solver.limit.check(COMPILE_SECONDS * len(self._program.rows))
        self._program.compile(cp.Maximize(above), self._program.rules)
        if self._own:
            self._program.check_bounded()
        self._program.solve(self._solver, "sum")
        return ConcaveCertificate(self._program, self._objective, above, self._sign)

    def _between(self, before: _Answer, after: _Answer) -> _Answer:
        """Return the farthest point between two answers, of a few tried, that is not worse than the first.

        An answer that breaks rules may have a better value than the optimum.
        """
        if _broken(self._program.jobs, before.fractions) > SOLVER_TOLERANCE:
            return after
        value = self._value(before)
        for part in (1.0, 0.5, 0.25, 0.1, 0.01):
            way = _Answer(
                before.fractions + part * (after.fractions - before.fractions),
                [old + part * (new - old) for old, new in zip(before.own, after.own, strict=True)],
            )
            if self._value(way) >= value - FLOAT_ROUNDING * abs(value):
                return way
        return before

    def _value(self, answer: _Answer) -> float:
        """Return the objective of an answer, and store the answer in the variables."""
        for variable, value in zip(self._own, answer.own, strict=True):
            variable.save_value(value)
        return self._program.value(self._objective, answer.fractions)
