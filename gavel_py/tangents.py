"""Tangents of concave objectives, which touch them at a point and are nowhere below, and proofs by tangents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.elementwise.elementwise import Elementwise
from numpy.typing import NDArray

from gavel_py.errors import SolverError
from gavel_py.job_classes import JobClasses
from gavel_py.program import Program
from gavel_py.proof import Prices

__all__ = ["ConcaveCertificate", "carried_over", "tangent"]

Floats = NDArray[np.float64]

NUDGE = 1e-4
"""By which part of itself an argument is changed to see how a slope changes."""

TENTH = 0.1


@dataclass(frozen=True)
class ConcaveCertificate:
    """Proves a concave objective f by its tangent f' at the answer X: f <= f' everywhere, and a linear program bounds f'.

    sign: -1 where the policy's objective is the negative of f;
    prices: (K,) for a linear tangent that is proven with the prices of another program (`Program.linear_bound`).
    """

    program: Program
    objective: cp.Expression
    tangent: cp.Expression
    sign: float = 1.0
    prices: Floats | None = None

    @property
    def jobs(self) -> JobClasses:
        return self.program.jobs

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) time fractions."""
        with np.errstate(all="ignore"):
            return self.sign * self.program.value(self.objective, fractions)

    def bound(self) -> float:
        """Return a bound on the objective that no valid allocation which keeps the rules can beat."""
        most = self.program.bound() if self.prices is None else self.program.linear_bound(self.tangent, self.prices)
        return self.sign * most

    def scale(self, fractions: Floats) -> float:
        """Return the larger of the tangent's largest coefficient and ten times what a tenth less time for all jobs would cost.

        For Σ w log v, whose value may be 0, the latter is about Σ w.
        """
        cost = abs(self.value(fractions) - self.value((1 - TENTH) * fractions)) / TENTH
        largest = self.program.scale if self.prices is None else 0.0
        return max(cost if np.isfinite(cost) else 0.0, largest)

    @property
    def scarcity(self) -> Prices:
        """The dual values of capacities and limits."""
        if self.prices is not None:
            return Prices(self.prices, np.zeros(0))
        solution = self.program.solution
        return Prices(self.program.prices(solution), self.program.limit_duals(solution))


def carried_over(
    program: Program, objective: cp.Expression, fractions: Floats, sign: float, prices: Floats
) -> ConcaveCertificate | None:
    """Return what proves fractions that were found for slightly different throughputs, if a linear tangent and old prices do."""
    if program.own_variables(objective):
        return None
    program.value(objective, fractions)
    above = tangent(objective)
    return ConcaveCertificate(program, objective, above, sign, prices) if above.is_affine() else None


def tangent(expression: cp.Expression, *, bent: bool = False) -> cp.Expression:
    """Return an expression that is piecewise linear and touches a concave one at the current values from above.

    Kinks, such as a minimum, stay as they are; what is curved becomes its tangent plane in what it is a function of, so the rules
    by which the expression is known to be concave hold for the result too. (What is convex in it is touched from below.)
    bent: curves of one linear argument keep their second derivative, as in Newton's method. The result is no bound then.

    Raises `SolverError` where the curve has no slope.
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
    """The tangent plane of a curve at these points, as a function of its parts."""
    slopes = atom.grad
    plane = cp.Constant(atom.value)
    for point, part in zip(points, parts, strict=True):
        if not part.is_constant():
            slope = _matrix(slopes[point])
            if not np.isfinite(slope.data).all():
                raise SolverError(f"{type(atom).__name__} has no slope at the answer, which therefore cannot be proven")
            rise = slope.T @ cp.vec(part - point.value, order="F")
            plane = plane + cp.reshape(rise, atom.shape, order="F")
    return plane


def _bend(atom: cp.Expression, point: cp.Variable) -> Floats:
    """Half the second derivative of each entry; 0 where there is none."""
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
    """A slope as cvxpy tells it: a matrix, a number, or None where there is none."""
    if slope is None or np.isscalar(slope):
        slope = [[np.nan if slope is None else slope]]
    return sp.csc_array(slope)
