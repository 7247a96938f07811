"""The best level for a large number of different jobs by prices of GPUs: the method of `prices` for the demand family.

At prices p worth 1 in total (Σ_j p_j c_j = 1), the needs of a level cost Σ_i h_i(need_i(θ)). A level can be reached if and only if
this is at most 1 at all prices. `find_level` alternates between the prices with the highest cost and the level at which that
cost is 1, first on samples of jobs. Jobs that meet their needs on the same types at all prices of the box are fixed. A small
program shares the remaining GPUs among the others; it gives the exact level, its prices and its most efficient allocation.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import Prices
from gavel_py.optimization.formulation.linear_rows import Rules
from gavel_py.optimization.formulation.matrices import AllocationLP
from gavel_py.optimization.solving.best_responses import BestResponses
from gavel_py.optimization.solving.cutting_planes import PriceBox, minimum
from gavel_py.optimization.solving.highs import LinearSolver, Solution, TimeLimitReached
from gavel_py.optimization.solving.level_search import BestLevel, LevelDirection, one_sided_price
from gavel_py.optimization.solving.levels import Levels
from gavel_py.optimization.solving.price_decomposition import (
    ALGORITHM,
    KEPT,
    MOST_UNDECIDED,
    SAMPLED,
    SAMPLES,
    UNDECIDED,
    DualFunction,
    chosen_times,
    largest_gains,
    stopped_at,
)
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import FLOAT_ROUNDING

MOST_STEPS, MOST_BOXES, MOST_PROGRAMS = 40, 25, 12

CLOSE = 1e-3
"""Relative precision of the level of a sample."""

NARROW = 1e-10
"""Width of a box, relative to its prices, below which undecided jobs count as indifferent at equal prices."""

SLACK = 1e-10
"""Part of the needs that jobs may lack at the utopia bound, so that even the job that determines it keeps some free time."""

WIDER = 4.0
"""The next step of the level is expected to be at most this multiple of the last one."""


@dataclass(frozen=True)
class Point:
    """A level with prices, near which the best level is expected. reach: largest error of its needs, as a part of all GPUs."""

    level: float
    box: PriceBox
    reach: float


class PricedLevels:
    """The responses of all jobs, or a sample, to a level and prices."""

    def __init__(self, levels: Levels) -> None:
        jobs = levels.jobs
        self.levels, self.capacities = levels, jobs.capacities
        counts = jobs.counts.astype(float)
        speeds = np.where(jobs.runnable, jobs.throughputs, 0.0) if not jobs.runnable.all() else jobs.throughputs
        self._responses = BestResponses(None, jobs.num_gpus * counts, None, np.ascontiguousarray(speeds.T))

    def __len__(self) -> int:
        return len(self._responses)

    def at(self, level: float, step: int = 1) -> BestResponses:
        """Return the responses of every step-th row with the needs of a level. η is the improvement over that level."""
        needs = self.levels.needs(level)
        rates = np.where(needs < self.levels.jobs.fastest, self.levels.rates(needs), 0.0)
        rows = slice(0, len(self) // step * step, step)
        table = self._responses if step == 1 else self._responses.part(rows)
        return replace(table, needs=needs[rows], rates=rates[rows])

    def level_at(self, prices: Floats, level: float, step: int = 1) -> float:
        """Return the approximate level whose needs cost 1 at these prices, by Newton's method from a better level."""
        for _ in range(MOST_STEPS):
            sample = self.at(level, step)
            response = sample.at(prices)
            cost = -response.surplus * len(self) / len(sample)
            if abs(cost - 1) <= CLOSE or response.growth <= 0:
                break
            before, level = level, self.improved(level, (1 - cost) / (response.growth * len(self) / len(sample)))
            if level == before:  # all jobs can reach the utopia bound
                break
        return level

    def improved(self, level: float, amount: float) -> float:
        """Return a level better by an amount, at most the utopia bound."""
        levels = self.levels
        better = level - levels.worse * amount
        if levels.demand.direction == "min" and better <= 0:
            better = level / 2
        if levels.demand.direction == "max" and level >= 0:
            better = max(better, 0.0)  # rounding can lead below the level without any throughput
        return levels.worse_of(better, levels.alone)


def find_level(levels: Levels, solver: LinearSolver, *, efficiency: bool) -> BestLevel | None:
    """Return the allocation of the best level, as `level_search.find_best_level` does; None if prices do not find it."""
    priced, kept = PricedLevels(levels), solver.prices
    for start in (kept, None) if kept is not None else (None,):  # old prices may be those of a very different problem
        try:
            found = _found(priced, _first_point(priced, start), solver, efficiency=efficiency)
        except SolverError:
            continue
        if found is not None:
            return found
    return None


def _found(priced: PricedLevels, point: Point, solver: LinearSolver, *, efficiency: bool) -> BestLevel | None:
    """Return the best level around a point, or on samples first if it may be anywhere."""
    try:
        for size in [size for size in SAMPLES if 4 * size <= len(priced)] if point.reach >= 1 else []:
            narrowed = _narrowed(priced, point, len(priced) // size, solver)
            if narrowed is None:
                break
            part = SAMPLED / np.sqrt(size)
            point = Point(narrowed[1].level, PriceBox.around(narrowed[1].box.prices, part), part)
        narrowed = _narrowed(priced, point, 1, solver)
        if narrowed is not None:
            return _finished(priced, *narrowed, solver, efficiency=efficiency)
    except TimeLimitReached:  # the program's own candidates are for the undecided jobs only
        raise stopped_at(priced.at(point.level), point.box.prices) if point.reach < 1 else TimeLimitReached() from None
    return _alone(priced, point.box.prices, solver)


def _alone(priced: PricedLevels, prices: Floats, solver: LinearSolver) -> BestLevel | None:
    """Return the most efficient allocation in which all jobs reach the utopia bound, which more GPUs would not change."""
    levels, jobs = priced.levels, priced.levels.jobs
    cost = -priced.at(levels.alone).at(prices).surplus
    if cost > 1:
        return None
    floor = jobs.floor(levels.demand.name, levels.needs(levels.alone) * (1 - SLACK))
    gains = (jobs.num_gpus / jobs.equal_share)[:, None] * jobs.throughputs
    kept, solver.prices = solver.prices, None
    found = largest_gains(jobs.with_rules(jobs.rules.also(Rules(floors=(floor,)))), gains, solver)
    solver.prices = kept
    none = np.zeros(len(prices))
    return None if found is None else BestLevel(levels.alone, found[0], Prices(prices, np.zeros(0)), none, ALGORITHM)


def _first_point(priced: PricedLevels, kept: Floats | None) -> Point:
    """Return the prices of the last solve with their level, or all prices around equal ones."""
    levels, capacities = priced.levels, priced.capacities
    step = max(1, len(priced) // SAMPLES[0])
    if kept is not None and kept.shape == capacities.shape and kept @ capacities > 0:
        prices, part = kept / (kept @ capacities), KEPT / np.sqrt(len(priced))
        level = priced.level_at(prices, priced.level_at(prices, levels.alone, step))
        return Point(level, PriceBox.around(prices, part), max(part, 4 * CLOSE))
    prices = levels.equal_prices().gpus
    box = PriceBox(np.zeros(len(prices)), np.where(capacities > 0, 1 / np.maximum(capacities, 1e-300), 0.0), prices)
    return Point(priced.level_at(prices, levels.alone, step), box, 1.0)


def _narrowed(priced: PricedLevels, point: Point, step: int, solver: LinearSolver) -> tuple[DualFunction, Point] | None:
    """Return a dual function with few undecided rows around the best level, None if all jobs reach the utopia bound."""
    level, box, reach, moves = point.level, point.box, point.reach, 0
    responses = priced.at(level, step)
    part = len(responses) / len(priced)  # at these prices, all GPUs together are worth 1
    capacities = priced.capacities * part
    dual = DualFunction(responses, capacities, solver.limit)
    growth = _growth(dual, box.prices) / part
    for _ in range(MOST_BOXES):
        dual.fix(box, reach / growth)
        found = minimum(dual.at, box, priced.capacities, size=part)
        growth = _growth(dual, found.prices) / part
        better = priced.improved(level, found.value / part / growth)
        if found.is_inside and better == priced.levels.alone and found.value >= 0:
            return None
        off, level = abs(better - level) * growth, better
        if not found.is_inside or off > reach:
            moves += 1
            box, reach = box.moved(found.prices, 2.0**moves), max(reach, WIDER * off)
            dual = DualFunction(priced.at(level, step), capacities, solver.limit)
            continue
        dual.renew(priced.at(level, step))
        is_small = len(dual.undecided) <= UNDECIDED or float((box.high - box.low).max()) <= NARROW * float(box.high.max())
        if off <= CLOSE and (step > 1 or is_small):
            return dual, Point(level, replace(box, prices=found.prices), reach)
        box = replace(box, prices=found.prices) if step > 1 else box.shrunk(found.prices)
        reach = reach if step > 1 else max(reach / 8, WIDER * off, FLOAT_ROUNDING)
    raise SolverError("the prices of the best level were not found")


def _growth(dual: DualFunction, prices: Floats) -> float:
    """Return the increase of the cost of the needs per unit of η."""
    return max(dual.active.at(prices).growth + float(dual.growing @ prices), 1e-300)


class UndecidedLP(AllocationLP):
    """min ϕ such that ϕ times all GPUs suffice for the fixed jobs and for the needs of undecided jobs, which share the rest."""

    def __init__(self, priced: PricedLevels, dual: DualFunction) -> None:
        jobs, rows = priced.levels.jobs, dual.undecided
        self.of = rows
        super().__init__(jobs.rows_as(rows, jobs.counts[rows], jobs.keys[rows]))
        own, self._largest = self.normalized_rows(self.jobs.throughputs[self.rows, self.columns])
        self.compile_factor(own, dual.active.needs / self._largest)  # type: ignore[operator]
        self.program = replace(self.program, limits=self._limits(dual))

    def _limits(self, dual: DualFunction) -> Floats:
        limits: Floats = self.program.limits.copy()
        limits[self.blocks.capacity] = -dual.used / self.units
        limits[self.blocks.own[0]] = -(dual.active.needs / self._largest)  # type: ignore[operator]
        return limits

    def again(self, dual: DualFunction, solver: LinearSolver) -> None:
        """Solve with the needs of another level."""
        self.solve_with(self._limits(dual), solver, "level")

    @property
    def factor(self) -> float:
        """ϕ."""
        return float(self.solution.values[self.blocks.factor][0])

    def growth(self, dual: DualFunction) -> float:
        """Return the increase of ϕ per unit of η."""
        return float(self.solution.duals @ self._rates(dual))

    def _rates(self, dual: DualFunction) -> Floats:
        """Return the change of the needs and the fixed jobs in each row per unit of η."""
        rates = np.zeros(len(self.program.limits))
        rates[self.blocks.capacity] = dual.growing / self.units
        rates[self.blocks.own[0]] = dual.active.rates / self._largest  # type: ignore[operator]
        return rates

    def gains_of_more(self, dual: DualFunction, solver: LinearSolver) -> Floats:
        """Return (K,) the improvement of the level per extra GPU of each type, for a small part of a GPU.

        At a kink, dual values are not unique, as in `CapacityFactorLP.level_prices`.
        """
        rates, gains = self._rates(dual), np.zeros(len(self.units))
        for j, rows in enumerate(self.type_rows):
            if not self.solution.duals[rows].sum() > 0:
                continue
            direction = LevelDirection(slice(None), rates, rows, self.blocks.factor)
            price = direction.price(self.solution)
            if not self.solution.has_unique_duals:
                with suppress(TimeLimitReached):  # the level is exact, and its price is one of several
                    price = one_sided_price(price, direction, self.solution, solver)
            gains[j] = price / self.units[j]
        return gains

    def efficient(self, solver: LinearSolver) -> Solution:
        """Return the optimum of max Σ_i s_i v_i with the same level."""
        jobs, rows = self.jobs, self.rows
        worth = (jobs.counts * jobs.num_gpus / jobs.equal_share)[rows] * jobs.throughputs[rows, self.columns]
        return self.solve_again(solver, "efficiency", worth, max(1.0, self.factor), "level")


def _finished(
    priced: PricedLevels, dual: DualFunction, point: Point, solver: LinearSolver, *, efficiency: bool
) -> BestLevel | None:
    """Return the best level exactly, by Newton's method on ϕ = 1 with few undecided jobs; None if fixed jobs would change types."""
    if len(dual.undecided) > MOST_UNDECIDED:
        raise SolverError("too many jobs are indifferent at the prices of the best level")
    level, program = point.level, None
    for _ in range(MOST_PROGRAMS):
        if program is None:
            program = UndecidedLP(priced, dual)
            program.solve(solver, "level")
        else:
            program.again(dual, solver)
        growth = program.growth(dual)
        over = program.factor - 1
        if abs(over) <= FLOAT_ROUNDING or growth <= 0:
            break
        level = priced.improved(level, -over / growth)
        dual.renew(priced.at(level))
    else:
        return None
    if growth <= 0 or abs(level - point.level) * growth > point.reach:
        return None
    scarcity = program.scarcity
    prices = scarcity.scaled(1 / float(scarcity.gpus @ priced.capacities))
    gains = program.gains_of_more(dual, solver)
    solution = program.efficient(solver) if efficiency else program.solution
    fractions = chosen_times(dual)
    fractions[dual.undecided] = program.fractions_of(solution)
    used = (priced.levels.jobs.counts * priced.levels.jobs.num_gpus) @ fractions
    fractions /= max(1.0, float(np.divide(used, priced.capacities, out=np.zeros_like(used), where=priced.capacities > 0).max()))
    solver.prices = prices.gpus
    return BestLevel(level, fractions, Prices(prices.gpus, np.zeros(0)), gains, ALGORITHM)
