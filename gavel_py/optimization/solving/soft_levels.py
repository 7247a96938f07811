"""The penalized level: the best level less the penalties of soft rules, in one linear program."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import Prices, within_capacity
from gavel_py.optimization.formulation.program import Program
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.compilation import COMPILE_SECONDS
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimitReached
from gavel_py.optimization.solving.levels import Levels
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import FLOAT_ROUNDING, SOLVER_TOLERANCE

MOST_CUTS = 40

NEXT_TO_NOTHING = 1e-3
"""Gaps are relative to at least this part of the scale of level and penalties; 1e-6 of it is the tolerance of validity, 1e-9."""

LEAST_PART = 1e-7
"""Smallest need, as a part of a job's fastest throughput, for the scale of its row."""


@dataclass(frozen=True)
class _ChargedLevel:
    """A level less penalties. program: the program of the penalties."""

    levels: Levels
    program: Program

    @property
    def jobs(self) -> JobClasses:
        return self.program.jobs

    def value(self, fractions: Floats) -> float:
        """Return the level of (G, K) time fractions less their penalties."""
        throughputs = np.einsum("ij,ij->i", self.jobs.throughputs, fractions)
        return self.levels.reached(throughputs) + self.levels.worse * self.program.value(self.program.penalty, fractions)

    def scale(self, fractions: Floats) -> float:
        """Return the change of the level when throughputs are halved, plus the penalties."""
        throughputs = np.einsum("ij,ij->i", self.jobs.throughputs, fractions)
        spread = abs(self.levels.reached(throughputs / 2) - self.levels.reached(throughputs))
        return spread + abs(self.program.value(self.program.penalty, fractions))


@dataclass(frozen=True)
class ChargedCertificate(_ChargedLevel):
    """Proves a penalized level by the dual values of the last program (`AllocationLP.bound`).

    The needs in the program are tangents of the true needs, and never exceed them if these are convex in the level. at: the level
    to which the program's variable is relative.
    """

    at: float

    def bound(self) -> float:
        """Return a bound for all valid allocations that keep the hard rules."""
        return self.at - self.levels.worse * self.program.bound()

    def scale(self, fractions: Floats) -> float:
        """Return the change of the level when throughputs are halved, plus the penalties.

        At least a small part of the largest possible size, since rounding errors do not shrink with the value.
        """
        return max(super().scale(fractions), NEXT_TO_NOTHING * max(self.levels.spread, self.program.scale))

    @property
    def scarcity(self) -> Prices:
        """The dual values of capacities and limits."""
        return self.program.scarcity

    def net_gains(self) -> Floats:
        """Return (G, K') the reduced gains of the program."""
        return self.program.net_gains()


@dataclass(frozen=True)
class PricedChargedLevel(_ChargedLevel):
    """Bounds a penalized level at any prices by the best level without penalties, without solving a program."""

    prices: Prices

    def bound(self) -> float:
        """Return a bound for all valid allocations."""
        return self.levels.affordable(self.levels.alone, self.prices)

    @property
    def scarcity(self) -> Prices:
        """The prices."""
        return self.prices


def find_charged_level(levels: Levels, solver: LinearSolver) -> tuple[Floats, ChargedCertificate]:
    """Return (G, K) the time fractions with the best penalized level, and their certificate.

    max δ − penalty(X) such that thr_g >= n_g + r_g δ for the tangents of the needs at the levels tried so far (Kelley's cutting
    planes), where δ is the improvement over the last level. Tangents lie below convex needs, so each program is too optimistic, and
    its level is the next to try. If none of the levels tried is finite, the time fractions are those of the last one: the hard
    rules may leave a job without time.
    """
    level, cuts = levels.alone, list[tuple[float, Floats, Floats]]()
    best, least = np.zeros(levels.jobs.throughputs.shape), np.inf  # without any time, a level such as a makespan is infinite
    for _ in range(MOST_CUTS):
        needs = levels.needs(level)
        cuts.append((level, needs, np.where(needs > levels.jobs.floors, levels.rates(needs), 0.0)))
        try:
            solver.limit.check(COMPILE_SECONDS * len(cuts) * levels.jobs.throughputs.size)
            program, gain = _program(levels, cuts, solver)
        except TimeLimitReached as reached:
            raise TimeLimitReached(None, (*reached.fractions, best), reached.prices) from None
        certificate = ChargedCertificate(levels, program, level)
        fractions = within_capacity(levels.jobs, program.fractions_of(program.solution))
        if levels.worse * certificate.value(fractions) < least:
            best, least = fractions, levels.worse * certificate.value(fractions)
        promised = _promised(levels, level, gain)
        if np.isfinite(least) and _has_converged(certificate, best, gain, promised == level):
            return best, certificate
        level = promised
    if np.isinf(least):
        return fractions, certificate
    raise SolverError(f"the level and the cost of violated rules have not converged after {MOST_CUTS} programs")


def _has_converged(certificate: ChargedCertificate, fractions: Floats, gain: float, stays: bool) -> bool:
    """Return whether the level is proven, or no longer changes."""
    value, bound = certificate.value(fractions), certificate.bound()
    size = max(abs(value), certificate.scale(fractions))
    still = FLOAT_ROUNDING * max(size, certificate.levels.spread)
    return abs(bound - value) <= SOLVER_TOLERANCE * size or abs(gain) <= still or stays


def _promised(levels: Levels, level: float, gain: float) -> float:
    """Return the level better by `gain`; 0 if rounding leads beyond 0, where needs may not be defined."""
    promised = level - levels.worse * gain
    return 0.0 if abs(promised) <= SOLVER_TOLERANCE * max(abs(level), levels.spread) else promised


def _program(levels: Levels, cuts: list[tuple[float, Floats, Floats]], solver: LinearSolver) -> tuple[Program, float]:
    """Solve the program of these tangents; return it with its improvement over the last level."""
    jobs, last = levels.jobs, cuts[-1][0]
    program, unit = Program(jobs), _unit(levels, *cuts[-1][1:])
    better = cp.Variable(bounds=[-np.inf, max(0.0, levels.worse * (last - levels.alone)) / unit])
    enough = []
    for at, needs, rates in cuts:
        ahead = levels.worse * (at - last)  # how much better the last level is than that of this tangent
        # Rows relative to a small need would be huge and lose dual values; relative to the fastest throughput, needs are lost.
        scale = 1 / np.maximum(np.sqrt(needs * jobs.fastest), np.maximum(rates * unit, LEAST_PART * jobs.fastest))
        speeds = cp.multiply(scale, program.throughput)
        enough.append(speeds >= scale * (needs + rates * ahead) + cp.multiply(scale * rates * unit, better))
    program.compile(cp.Maximize(unit * better - program.penalty), [*enough, *program.rules])
    solution = program.solve(solver, "charged level")
    return program, unit * float(solution.values[program.program.columns[better.id]][0])


def _unit(levels: Levels, needs: Floats, rates: Floats) -> float:
    """Return the unit of the level in a program: the step that doubles the most sensitive need, so that coefficients are near 1."""
    some = rates > 0
    return float((needs[some] / rates[some]).min()) if some.any() else levels.spread
