"""The best level less what the rules that may be broken cost: level and cost in one linear program."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import Prices, within_capacity
from gavel_py.optimization.formulation.program import Program
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.compilation import COMPILE_SECONDS
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.optimization.solving.levels import Levels
from gavel_py.optimization.solving.time_limit import TimeLimitReached
from gavel_py.problem.arrays import Floats

MOST_CUTS = 40

CLOSE = 1e-9
"""The gap with which a level is taken, in parts of its size."""

NEXT_TO_NOTHING = 1e-3
"""The part of what level and penalties may be, of which the accepted gap is what valid allocations may be off by (1e-9)."""

LEAST_PART = 1e-7
"""A need below this part of a job's fastest throughput makes its row no larger than one of this part does."""

STILL = 1e-12
"""A step that moves the level by no more than this part of its size moves nothing."""


@dataclass(frozen=True)
class _ChargedLevel:
    """A level less penalties; program: it knows the penalties."""

    levels: Levels
    program: Program

    @property
    def jobs(self) -> JobClasses:
        return self.program.jobs

    def value(self, fractions: Floats) -> float:
        """Return the level that (G, K) time fractions reach, made worse by what is lost."""
        throughputs = np.einsum("ij,ij->i", self.jobs.throughputs, fractions)
        return self.levels.reached(throughputs) + self.levels.worse * self.program.value(self.program.penalty, fractions)

    def scale(self, fractions: Floats) -> float:
        """Return by how much the level would get worse with half the throughputs, and what is lost."""
        throughputs = np.einsum("ij,ij->i", self.jobs.throughputs, fractions)
        spread = abs(self.levels.reached(throughputs / 2) - self.levels.reached(throughputs))
        return spread + abs(self.program.value(self.program.penalty, fractions))


@dataclass(frozen=True)
class ChargedCertificate(_ChargedLevel):
    """Proves a level less what is lost by broken rules, with the dual values of the last program (`Program.bound`).

    The program asks for needs that are tangents of the true ones, and so no larger where these are convex in the level.
    at: the level from which the program counts.
    """

    at: float

    def bound(self) -> float:
        """Return a bound on it that no valid allocation which keeps the other rules can beat."""
        return self.at - self.levels.worse * self.program.bound()

    def scale(self, fractions: Floats) -> float:
        """Return by how much the level would get worse with half the throughputs, and what is lost.

        Where both are next to 0, or cancel out, a small part of what they may be: rounding does not become less with them.
        """
        return max(super().scale(fractions), NEXT_TO_NOTHING * max(self.levels.spread, self.program.scale))

    @property
    def scarcity(self) -> Prices:
        """The dual values of capacities and limits."""
        return self.program.scarcity


@dataclass(frozen=True)
class PricedChargedLevel(_ChargedLevel):
    """Bounds a level less penalties at any prices: by the best level, since penalties only make it worse; no program is solved."""

    prices: Prices

    def bound(self) -> float:
        """Return a bound on it that no valid allocation can beat."""
        return self.levels.affordable(self.levels.alone, self.prices)

    @property
    def scarcity(self) -> Prices:
        """The prices."""
        return self.prices


def find_charged_level(levels: Levels, solver: LinearSolver) -> tuple[Floats, ChargedCertificate]:
    """Return (G, K) the time fractions with the best level less penalties, and their certificate.

    max δ − penalty(X) such that thr_g >= n_g + r_g δ for the tangents of the needs at the levels tried so far; δ: how much better
    than the last of these. Tangents lie below convex needs, so each program promises too much, and its promise is the next level.
    """
    level, cuts = levels.alone, list[tuple[float, Floats, Floats]]()
    best, least = np.zeros(levels.jobs.throughputs.shape), np.inf  # a job without any time may have no makespan
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
        if np.isfinite(least) and _is_settled(certificate, best, gain, promised == level):
            return best, certificate
        level = promised
    raise SolverError(f"the level and the cost of broken rules have not settled after {MOST_CUTS} programs")


def _is_settled(certificate: ChargedCertificate, fractions: Floats, gain: float, stays: bool) -> bool:
    """Say whether the level is proven, or moves no further."""
    value, bound = certificate.value(fractions), certificate.bound()
    size = max(abs(value), certificate.scale(fractions))
    still = STILL * max(size, certificate.levels.spread)
    return abs(bound - value) <= CLOSE * size or abs(gain) <= still or stays


def _promised(levels: Levels, level: float, gain: float) -> float:
    """Return the level that is better by `gain`; rounding may lead beyond 0, where there may be no needs."""
    promised = level - levels.worse * gain
    return 0.0 if abs(promised) <= CLOSE * max(abs(level), levels.spread) else promised


def _program(levels: Levels, cuts: list[tuple[float, Floats, Floats]], solver: LinearSolver) -> tuple[Program, float]:
    """Solve the program of these tangents; return it, and by how much it promises to improve on the last level."""
    jobs, last = levels.jobs, cuts[-1][0]
    program, unit = Program(jobs), _unit(levels, *cuts[-1][1:])
    better = cp.Variable(bounds=[-np.inf, max(0.0, levels.worse * (last - levels.alone)) / unit])
    enough = []
    for at, needs, rates in cuts:
        ahead = levels.worse * (at - last)  # by how much the last level is better than that of this tangent
        # In parts of the need, a small need would make a huge row and lose dual values; in parts of the fastest, most of the need.
        scale = 1 / np.maximum(np.sqrt(needs * jobs.fastest), np.maximum(rates * unit, LEAST_PART * jobs.fastest))
        speeds = cp.multiply(scale, program.throughput)
        enough.append(speeds >= scale * (needs + rates * ahead) + cp.multiply(scale * rates * unit, better))
    program.compile(cp.Maximize(unit * better - program.penalty), [*enough, *program.rules])
    solution = program.solve(solver, "charged level")
    return program, unit * float(solution.values[program.columns_of(better)][0])


def _unit(levels: Levels, needs: Floats, rates: Floats) -> float:
    """What a level is counted in: the step that doubles the need that is most sensitive to it, so that coefficients are near 1."""
    some = rates > 0
    return float((needs[some] / rates[some]).min()) if some.any() else levels.spread
