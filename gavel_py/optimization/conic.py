"""The best allocation for a concave objective with curves: interior point for cones, and Newton's method where it falls short."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import SolverError
from gavel_py.optimization.program import Program
from gavel_py.optimization.proof import Prices, gap, within_capacity
from gavel_py.optimization.solver import COMPILE_SECONDS, CONES_SECONDS, ConicProgram, LinearSolver
from gavel_py.optimization.tangents import ConcaveCertificate, tangent
from gavel_py.optimization.time_limit import TimeLimitReached

__all__ = ["ALGORITHM", "maximize_concave"]

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

ALGORITHM = "conic interior point"

STEPS = (0.8, 0.5, 0.3, 0.95)
"""Lengths of steps to try. Each loses its way on some programs; hardly ever do two of them on the same."""

ENOUGH = 1e-8
"""A gap with which no better answer is looked for, if nothing else is asked for."""

DUST = 1e-9
"""A part of a job's time and of its throughput that is only how near an interior point comes to 0."""

CRUMB, MORE = 1e-6, 1e-10
"""Parts of the most time that a job can have on a type. Of a crumb, some digits may be wrong, and so may be the slope of a steep
curve there; at a little more it is not too large, which is what a bound needs."""

ROUNDING = 1e-12


def maximize_concave(
    program: Program, objective: cp.Expression, solver: LinearSolver, sign: float = 1.0, enough: float = ENOUGH
) -> tuple[Floats, ConcaveCertificate]:
    """Return the (G, K) time fractions that are best for a concave objective, and what proves them.

    enough: a gap with which no better answer is looked for.

    Raises `SolverError` where no answer is found, `TimeLimitReached` with the best one found by then.
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
    """Time fractions, values of the objective's own variables, and the gap of their proof."""

    fractions: Floats
    own: list[Floats]
    gap: float = np.inf


class _Search:
    """Looks for an answer with a small gap and keeps the best."""

    def __init__(self, program: Program, objective: cp.Expression, solver: LinearSolver, sign: float) -> None:
        self._program, self._objective, self._solver, self._sign = program, objective, solver, sign
        self._own = program.own_variables(objective)
        self._best: _Answer | None = None
        self._proven: tuple[_Answer, ConcaveCertificate] | None = None
        self._failure = SolverError("there is no answer")

    @property
    def gap(self) -> float:
        """The gap of the best answer."""
        return np.inf if self._best is None else self._best.gap

    @property
    def known(self) -> tuple[tuple[Floats, ...], tuple[Prices, ...]]:
        """The best answer and its prices, as far as there are any."""
        fractions = () if self._best is None else (self._best.fractions,)
        return fractions, () if self._proven is None else (self._proven[1].scarcity,)

    def try_cones(self, cones: ConicProgram, step: float) -> None:
        """Solve with steps of this length."""
        try:
            self._consider(self._solved(cones, step))
        except SolverError as error:
            self._failure = error

    def try_newton(self) -> bool:
        """Go on from the best answer by a step of Newton's method, and say whether that has halved the gap."""
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
        """The best answer and what proves it, with the program as it was for this answer."""
        if self._best is None:
            raise self._failure
        return self._best.fractions, self._certificate(self._best)

    def _solved(self, cones: ConicProgram, step: float) -> _Answer:
        """The answer of the conic solver without dust."""
        self._solver.iterations += cones.solve(step, self._solver.limit)
        self._solver.programs += 1
        fractions = self._program.answered
        speeds = fractions * self._program.jobs.throughputs
        dust = (fractions < DUST * fractions.max(axis=1, keepdims=True)) & (speeds < DUST * speeds.max(axis=1, keepdims=True))
        return _Answer(np.where(dust, 0.0, fractions), [variable.value for variable in self._own])

    def _consider(self, answer: _Answer) -> None:
        """Prove an answer and keep it if it is the best. Jobs with crumbs get nothing or, if that is not good, a little more."""
        times, most = answer.fractions, self._program.matrix_of(self._program.most)
        poor = (times <= CRUMB * most).all(axis=1, keepdims=True)
        crumbs: tuple[Floats | float, ...] = (0.0, times + MORE * most) if poor.any() else (0.0,)
        for crumb in crumbs:
            fractions = within_capacity(self._program.jobs, np.where(poor, crumb, times))
            try:
                certificate = self._certificate(replace(answer, fractions=fractions))
            except SolverError as error:
                self._failure = error
                continue
            found = gap(certificate.value(fractions), certificate.bound(), certificate.scale(fractions))
            if found < self.gap:
                self._best = replace(answer, fractions=fractions, gap=found)
                self._proven = self._best, certificate
            if found <= ENOUGH:
                return

    def _certificate(self, answer: _Answer) -> ConcaveCertificate:
        """Solve the linear program of the tangent at an answer, whose dual values bound the objective."""
        if self._proven is not None and self._proven[0] is answer:
            return self._proven[1]
        self._proven = None
        self._value(answer)
        above = tangent(self._objective)
        self._solver.limit.check(COMPILE_SECONDS * len(self._program.rows))
        self._program.compile(cp.Maximize(above), self._program.rules)
        if self._own:
            self._program.check_bounded()
        self._program.solve(self._solver, "sum")
        return ConcaveCertificate(self._program, self._objective, above, self._sign)

    def _between(self, before: _Answer, after: _Answer) -> _Answer:
        """The farthest of the points on the way from one answer to another that is not worse than the first."""
        value = self._value(before)
        for part in (1.0, 0.5, 0.25, 0.1, 0.01):
            way = _Answer(
                before.fractions + part * (after.fractions - before.fractions),
                [old + part * (new - old) for old, new in zip(before.own, after.own, strict=True)],
            )
            if self._value(way) >= value - ROUNDING * abs(value):
                return way
        return before

    def _value(self, answer: _Answer) -> float:
        """The objective of an answer, which from here on stands in the variables."""
        for variable, value in zip(self._own, answer.own, strict=True):
            variable.save_value(value)
        return self._program.value(self._objective, answer.fractions)
