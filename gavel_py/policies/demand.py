"""The demand family: the best level at which every job can be given what it needs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, ProofError
from gavel_py.policies.base import Decision, Policy, numbers_by_job, option
from gavel_py.problem import AllocationProblem
from gavel_py.proof import gap, priced_bound, tidied

__all__ = ["DemandPolicy"]

Floats = NDArray[np.float64]

NARROW_GAP = 1e-8
"""A wider gap calls for another scale; 1e-6 would do for the proof, but a good scale gives much less."""

MOST_SCALES = 4
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class DemandPolicy(Policy):
    """Find the best level θ at which every job i gets thr_i >= need_i(θ); write `need`.

    The needs are in proportion to θ (direction "max": the more the better) or to 1/θ (direction "min": θ is a time), so
    with ℓ = θ or 1/θ the best level is one linear program: max ℓ such that thr_i >= ℓ·need_i(1).
    """

    efficiency: bool = option(True, "among all answers of the best level, take the one with the most Σ s_i·v_i")

    direction: ClassVar[Literal["max", "min"]] = "max"

    @abstractmethod
    def need(self, problem: AllocationProblem, level: float) -> Floats:
        """Return (N,) the throughput in steps/s that each job needs at this level."""

    def decide(self, problem: AllocationProblem) -> Decision:
        need = numbers_by_job(self, "need", self.need(problem, 1.0), problem)
        if need.min() < 0 or need.max() <= 0:
            text = f"must return numbers of at least 0 and not only 0, returned {need!r}"
            raise InputError(Fault(f"policy {self.name}", "need", text))
        best = _best_level(problem, need, _highest(problem, need), self.efficiency)
        if self.direction == "max":
            return Decision(best.time_fractions, best.level, best.bound, best.prices)
        # θ = 1/ℓ falls by price/ℓ² per unit of ℓ gained; it is convex in the GPUs, so the slope bounds the gain.
        return Decision(best.time_fractions, 1 / best.level, 1 / best.bound, best.prices / best.level**2)


@dataclass(frozen=True)
class _Best:
    """An allocation, the level ℓ that it reaches, a proven bound on ℓ, and ℓ per GPU of each type."""

    time_fractions: Floats
    level: float
    bound: float
    prices: Floats


def _highest(problem: AllocationProblem, need: Floats) -> float:
    """A level that cannot be exceeded: no job is faster than alone on its best type, nor all together than all GPUs are."""
    alone = np.divide(problem.fastest, need, out=np.full_like(need, np.inf), where=need > 0).min()
    together = problem.capacities.sum() / float((need * problem.num_gpus / problem.fastest).sum())
    return float(min(alone, together))


def _best_level(problem: AllocationProblem, need: Floats, highest: float, efficiency: bool) -> _Best:
    """Find the best level as a multiple of `highest`, which is 1 or less.

    Where the level is a tiny part of `highest`, it drowns in the solver's tolerance, which is absolute. Then the gap to the bound
    is wide, but the bound is a better scale, and the program is solved again in that.
    """
    best = _solved(problem, need * highest, efficiency)
    for _ in range(MOST_SCALES):
        if gap(best.level, best.bound) <= NARROW_GAP:
            break
        highest *= best.bound
        best = _solved(problem, need * highest, efficiency)
    if best.level <= 0:
        raise ProofError("no level above 0 was found, though every job can run; the needs of the jobs differ by too much")
    return _Best(best.time_fractions, best.level * highest, best.bound * highest, best.prices * highest)


def _solved(problem: AllocationProblem, need: Floats, efficiency: bool) -> _Best:
    """Solve max ℓ such that thr_i >= ℓ·need_i, and with `efficiency` for the most Σ s_i·v_i at that level."""
    import cvxpy as cp

    from gavel_py.program import Program

    program = Program(problem)
    speeds = problem.throughputs / problem.fastest[:, None]  # 1 on each job's best type
    shares = need / problem.fastest  # time on its best type that a job needs at level 1
    received = program.by_job(speeds[program.rows, program.columns])
    level = cp.Variable(bounds=[0, None])
    enough = received >= shares * level
    fractions = program.maximize(level, enough)
    fractions = _topped_up(problem, fractions, speeds, shares * float(level.value))
    prices, duals = program.prices, np.maximum(0.0, np.atleast_1d(enough.dual_value))
    weight = float(duals @ shares)
    if weight <= 0:
        raise ProofError("the solver's duals prove no bound on the level")
    # For any duals λ >= 0 with Σ λ_i·share_i = 1, ℓ <= Σ λ_i·received_i, an affine function that prices bound.
    bound = priced_bound(problem, duals[:, None] * speeds / weight, prices)
    reached = _level(speeds, shares, fractions)
    if efficiency:
        reached *= 1 - ROUNDING  # what was reached to the last bit may look infeasible in the next to last
        most = program.total(cp.multiply(problem.num_gpus, program.normalized_throughput))
        fractions = program.maximize(most, received >= shares * reached)
        fractions = _topped_up(problem, fractions, speeds, shares * reached)
        reached = _level(speeds, shares, fractions)
    return _Best(fractions, reached, bound, prices)


def _level(speeds: Floats, shares: Floats, fractions: Floats) -> float:
    received = (speeds * fractions).sum(axis=1)
    return float(np.divide(received, shares, out=np.full_like(shares, np.inf), where=shares > 0).min())


def _topped_up(problem: AllocationProblem, fractions: Floats, speeds: Floats, owed: Floats) -> Floats:
    """Give each job that the solver's tolerance left short the rest on its best type, then tidy.

    A job of tiny need could otherwise be left with nothing, which is within 1e-9 of its need and yet a level of 0.
    """
    fractions = tidied(problem, fractions)
    best = np.where(problem.runnable, speeds, -1.0).argmax(axis=1)
    fractions[np.arange(len(best)), best] += np.maximum(0.0, owed - (speeds * fractions).sum(axis=1))
    return tidied(problem, fractions)
