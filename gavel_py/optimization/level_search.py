"""The best level at which every job can be given what it needs: Newton's method on how many GPUs a level takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.factor_program import FactorProgram
from gavel_py.optimization.levels import PLATEAU, Levels, digit
from gavel_py.optimization.proof import Prices
from gavel_py.optimization.solver import LinearSolver
from gavel_py.optimization.time_limit import TimeLimitReached

__all__ = ["BestLevel", "find_best_level"]

Floats = NDArray[np.float64]

MOST_PROGRAMS = 30
ROUNDING = 1e-12
"""What is reached to the last bit may look infeasible in the next to last."""


@dataclass(frozen=True)
class BestLevel:
    """The allocation of the best level.

    level: θ; fractions: (G, K) time of each class's jobs; prices: which prove that no level is better;
    shadow_prices: (K,) by how much the level gets better per extra GPU, for the first small part of one.
    """

    level: float
    fractions: Floats
    prices: Prices
    shadow_prices: Floats | None


def find_best_level(levels: Levels, solver: LinearSolver, *, efficiency: bool, shadow_prices: bool = True) -> BestLevel:
    """Find the best level, and among its allocations, with `efficiency`, the one with the most Σ_i s_i v_i.

    For a level θ, a linear program finds the least factor ϕ by which all capacities would have to be multiplied. Its dual
    values are prices at which GPUs cost no more than needed, and these tell which level is affordable: the next θ. ϕ is
    convex in the needs, so this is Newton's method from the side of the levels that are too good; it ends at ϕ = 1.
    """
    prices = _start_prices(levels, solver.prices)
    level, program = levels.affordable(levels.alone, prices), None
    scaled: tuple[Floats, ...] = ()  # what the last program gives with the GPUs that there are
    try:
        for attempt in range(MOST_PROGRAMS):
            needs = levels.needs(level)
            slots = levels.chambers.slots(needs)
            if program is None or not program.fits(slots):
                program = FactorProgram(levels.chambers, slots)
            program.solve(slots, solver)
            if program.factor <= 1 + (ROUNDING if levels.given is None else 100 * PLATEAU) or level == levels.given:
                break
            if solver.limit.is_set:
                scaled = (levels.chambers.expand(slots, program.times, needs) / program.factor,)
            prices = program.prices
            # Where the needs depend on the last digits of the level, the last step has to be one of these digits.
            digits = level + levels.worse * max(digit(level), digit(levels.spread)) * 4**attempt
            level = levels.worse_of(levels.affordable(level, prices), digits)
            if levels.given is not None and levels.worse_of(level, levels.given) == level:
                level = levels.given
    except TimeLimitReached as reached:
        raise TimeLimitReached(None, reached.fractions + scaled, (*reached.prices, prices)) from None
    assert program is not None  # noqa: S101
    # At what is given, several prices may account for all GPUs; those that led here are the ones that say no to more.
    if level != levels.alone and levels.given is None and not levels.jobs.rules:
        prices = program.prices
    solver.prices = prices.gpus
    reached_times = program.times
    try:
        gains = program.shadow_prices(levels, level, needs, solver) if shadow_prices else None
        times = program.efficient_times(solver) if efficiency else reached_times
    except TimeLimitReached:  # the level is the best one; what a further stage would have made of it is not known
        fractions = levels.chambers.expand(program.slots, reached_times, needs)
        raise TimeLimitReached(None, (fractions,), (prices,)) from None
    return BestLevel(level, levels.chambers.expand(program.slots, times, needs), prices, gains)


def _start_prices(levels: Levels, kept: Floats | None) -> Prices:
    """The prices of the last solve, if they are prices of these types; else the same for every GPU; limits are for free."""
    capacities, equal = levels.jobs.capacities, levels.equal_prices()
    if kept is None or kept.shape != capacities.shape or not kept @ capacities > 0:
        return equal
    return Prices(kept / (kept @ capacities), equal.limits)
