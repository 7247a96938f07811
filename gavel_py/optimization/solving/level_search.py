"""Search for the best level at which every job gets the throughput it needs: Newton's method on the capacity factor of a level.

The capacity factor of a level is the least factor by which all GPUs must be multiplied to meet the needs of all jobs
(`CapacityFactorLP`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import Prices
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.formulation.matrices import AllocationLP
from gavel_py.optimization.solving.highs import LinearSolver, Solution, TimeLimitReached
from gavel_py.optimization.solving.levels import NEARLY, Cells, Chambers, Levels, digit
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import FLOAT_ROUNDING, MET, SOLVER_TOLERANCE

SLIGHTLY = 1e-6
"""Relative increase of a need that moves it across the border of its chamber."""

MOST_BELOW = 1e6
"""A coefficient of a second row of needs (`CapacityFactorLP`) below minus this is left out, since HiGHS would not solve the row."""

EXTRA_GPUS = (1e-5, 1e-8)
"""Numbers of additional GPUs with which a shadow price is computed, as parts of the capacity of a type."""


class CapacityFactorLP(AllocationLP):
    """min ϕ such that ϕ times all GPUs meet the needs of the jobs in each cell (`Cells`).

    With y_sj the total time of the jobs of cell s on type j, divided by n_k, the jobs of its group:
    Σ_j T_kj y_sj >= (sum of their needs) / n_k, Σ_j y_sj <= (their number) / n_k, Σ_s n_k s_k y_sj <= ϕ c_j. Limits grow with ϕ as
    well, so that some ϕ is always enough, and ϕ = 1 is the problem itself. Another level changes right-hand sides only.

    Needs between types of nearly equal speed (`Chambers.is_near`) have a second row, which follows from those of needs and time:
    Σ_j (T_kj - B) y_sj >= the sum of (need - B) / n_k over nearly fastest types j, with B the speed of the slower one. Divided by
    the small difference of both speeds, it is as exact as any other. Slower types are left out, which only relaxes the row: their
    coefficients would be large, and the row of needs counts their time exactly.
    """

    def __init__(self, chambers: Chambers, cells: Cells) -> None:
        self.chambers = chambers
        self.cells = cells
        super().__init__(chambers.jobs.rows_as(chambers.first[cells.groups], chambers.counts[cells.groups], cells.keys))
        near, borders = chambers.is_near(cells), chambers.borders_below(cells)
        self._cells = np.append(np.arange(len(cells.groups)), np.flatnonzero(near))
        self._borders = np.append(np.zeros(len(near)), borders[near])
        needed, self._largest = self._rows_of_needs(near, borders)
        self.compile_factor(needed, self._least(cells), self._time_limits(cells))
        self._is_solved = False

    def fits(self, cells: Cells) -> bool:
        """Return whether these cells change right-hand sides only."""
        return np.array_equal(self.cells.keys, cells.keys)

    def solve_for(self, cells: Cells, solver: LinearSolver, name: str = "level") -> None:
        """Find the least factor for these cells. name: the name of the basis."""
        self.cells = cells
        if self._is_solved:
            limits = self.program.limits.copy()
            limits[self.blocks.own[0]] = -self._least(cells)
            limits[self.blocks.time] = self._time_limits(cells)
            self.solve_with(limits, solver, name)
        else:
            self.solve(solver, name)
        self._is_solved = True

    def _time_limits(self, cells: Cells) -> Floats:
        return cells.counts / self.chambers.counts[cells.groups]

    def _rows_of_needs(self, near: Mask, borders: Floats) -> tuple[SparseMatrix, Floats]:
        """Return the rows of all cells, then the second ones of the (S,) near cells, and the unit of each (`normalized_rows`)."""
        speeds = self.jobs.throughputs[self.rows, self.columns]
        needed, units = self.normalized_rows(speeds)
        if not near.any():
            return needed, units
        above = np.where(near[self.rows], speeds - borders[self.rows], 1.0)
        fastest = self.jobs.fastest[self.rows]
        least = np.maximum(-NEARLY * fastest, -MOST_BELOW * (fastest - borders[self.rows]))
        second, widths = self.normalized_rows(np.where(above > least, above, 0.0))
        number, pairs = len(near) + np.cumsum(near) - 1, np.flatnonzero(near[self.rows])
        both = SparseMatrix(
            np.append(needed.rows, number[second.rows[pairs]]),
            np.append(needed.columns, second.columns[pairs]),
            np.append(needed.values, second.values[pairs]),
            (len(self._cells), needed.shape[1]),
        )
        return both, np.append(units, widths[near])

    def _least(self, cells: Cells) -> Floats:
        """Return the right-hand sides of the rows of needs."""
        rows = self._cells
        return (cells.needs[rows] - self._borders * cells.counts[rows]) / self._all_counts / self._largest

    @property
    def _all_counts(self) -> Floats:
        """The number of jobs in the group of each row of needs."""
        return self.chambers.counts[self.cells.groups[self._cells]]

    @property
    def factor(self) -> float:
        """ϕ, the least factor."""
        return float(self.solution.values[self.blocks.factor][0])

    @property
    def times(self) -> Floats:
        """(S, K) mean time of the jobs of each cell."""
        return self.fractions_of(self.solution)

    def fractions_of(self, solution: Solution) -> Floats:
        """Return (S, K) the mean time of the jobs of each cell."""
        scale = self.chambers.counts[self.cells.groups] / self.cells.counts
        return super().fractions_of(solution) * scale[:, None]

    def candidate(self, solution: Solution) -> Floats:
        return self.fractions_of(solution)[self.cells.of]

    def scarcity_of(self, solution: Solution) -> Prices:
        """Return prices at which capacities and growing limits are worth 1 in total; if all needs are 0, GPUs have equal prices."""
        capacities = self.chambers.jobs.capacities
        prices = super().scarcity_of(solution)
        worth = float(prices.gpus @ capacities + prices.limits @ self.chambers.jobs.limits_grow)
        return prices.scaled(1 / worth) if worth > 0 else Prices(np.full(len(capacities), 1 / capacities.sum()), prices.limits)

    def efficient_times(self, solver: LinearSolver) -> Floats:
        """Return (S, K) mean times that keep the level and maximise Σ_i s_i v_i."""
        jobs, rows = self.jobs, self.rows
        worth = (jobs.counts * jobs.num_gpus / jobs.equal_share)[rows] * jobs.throughputs[rows, self.columns]
        # If GPUs are scarce, only a few times can still change; if they are plentiful, nearly all times do.
        start = "level" if self.factor > 1 - 1e-6 else None
        return self.fractions_of(self.solve_again(solver, "efficiency", worth, max(1.0, self.factor), start))

    def level_prices(self, levels: Levels, level: float, needs: Floats, solver: LinearSolver) -> Floats:
        """Return the shadow price of each of K types: the gain of the level per extra GPU, for a small part of a GPU.

        At a kink, dual values are not unique, and only the smallest are right for more GPUs. The level is then found again with
        slightly more GPUs δ_j of type j, and the dual values there are right if they account for its whole gain.
        """
        prices = np.zeros(len(self.type_rows))
        if abs(level - levels.alone) <= SOLVER_TOLERANCE * levels.spread:
            return prices  # some job has its fastest throughput, which more GPUs cannot change
        program, has_rules = self, bool(levels.jobs.rules)
        if has_rules:  # rules may fill a type at any level, and its dual values are then unrelated to the level
            program = self._at_better_needs(levels, needs, solver)
        solution, rates = program.solution, program._rates(levels, needs)
        size = max(abs(level), levels.spread if levels.given is None else 0.0) or abs(levels.alone)
        at = program._beyond(rates * (1e-7 * size), solver) if has_rules else solution
        for j, rows in enumerate(program.type_rows):
            if not (levels.jobs.capacities[j] > 0 and at.duals[rows].sum() > 0):
                continue
            direction = LevelDirection(program.blocks.own[0], rates, rows, program.blocks.factor)
            price = direction.price(at)
            if has_rules and not np.isfinite(price):  # scarce because of rules, not because of the level
                continue
            if has_rules or not solution.has_unique_duals:
                price = one_sided_price(price, direction, solution, solver, price if has_rules else 0.0)
            prices[j] = price / levels.jobs.capacities[j]
        return prices

    def _rates(self, levels: Levels, needs: Floats) -> Floats:
        """Return (S,) the increase of each row's need per unit of θ; needs that rules set do not depend on θ."""
        rising = np.where(needs > levels.jobs.floors, levels.rates(needs), 0.0)
        rates = levels.chambers.sums(self.cells.of, rising, len(self.cells.groups))
        return rates[self._cells] / self._all_counts / self._largest

    def _at_better_needs(self, levels: Levels, needs: Floats, solver: LinearSolver) -> CapacityFactorLP:
        """Return the solved program with these needs, in the cells of a slightly better level.

        If rules fill a type, this may be the best level at which some job needs no other type. Its chamber ends there.
        """
        more = np.where(needs > levels.jobs.floors, needs * (1 + SLIGHTLY), needs)
        cells = levels.chambers.cells(np.minimum(more, levels.jobs.fastest))
        cells = replace(cells, needs=levels.chambers.sums(cells.of, needs, len(cells.groups)))
        if self.fits(cells):
            return self
        program = CapacityFactorLP(levels.chambers, cells)
        program.solve_for(cells, solver, "better level")
        return program

    def _beyond(self, more: Floats, solver: LinearSolver) -> Solution:
        """Return the optimum with needs increased by (S,) `more`, above capacity, or that of the present needs if this fails."""
        limits = self.solution.program.limits.copy()
        limits[self.blocks.own[0]] -= more
        try:
            return solver.again(limits)
        except SolverError:
            return self.solution


@dataclass(frozen=True)
class LevelDirection:
    """What the level and the GPUs of a type move in a program that finds ϕ, the least factor of all GPUs.

    Attributes:
        needs: Rows that rise with the level.
        rates: Their increase per unit of the level.
        gpus: Rows of the type, which c_j more GPUs raise by 1.
        factor: Column of ϕ.
    """

    needs: Indices | slice
    rates: Floats
    gpus: Indices | slice
    factor: Indices | slice

    def price(self, solution: Solution) -> float:
        """Return the gain of the level per c_j GPUs, at constant ϕ, by the dual values of a solution."""
        slope = float(solution.duals[self.needs] @ self.rates)
        return float(solution.duals[self.gpus].sum()) / slope if slope > 0 else np.inf

    def gain_of(self, more: float, gain: float, start: Solution, solver: LinearSolver) -> tuple[float, float]:
        """Return the gain of the level with `more` times c_j more GPUs, and the price there. gain: a guess; start: without them."""
        for _ in range(4):
            limits = start.program.limits.copy()
            limits[self.needs] -= self.rates * gain
            limits[self.gpus] += more
            found = solver.again(limits)
            over, slope = float(found.values[self.factor][0]) - 1, float(found.duals[self.needs] @ self.rates)
            if abs(over) <= 1e-9 * more or slope <= 0:
                break
            gain -= over / slope
        return gain, self.price(found)


def one_sided_price(raw: float, direction: LevelDirection, start: Solution, solver: LinearSolver, guess: float = 0.0) -> float:
    """Return the price of more GPUs of a type. raw: its price by some dual values; guess: of the gain per c_j GPUs."""
    for more in EXTRA_GPUS:
        try:
            gain, price = direction.gain_of(more, guess * more, start, solver)
        except SolverError:  # more than the next job can reach
            continue
        if abs(gain - price * more) <= 1e-6 * raw * more:
            return min(raw, price)
    return raw


MOST_PROGRAMS = 30

STILL = FLOAT_ROUNDING / 4
"""Rise above a given level, as a part of the utopia bound, that is rounding of costs. Other jobs would lack it at their tops."""


@dataclass(frozen=True)
class BestLevel:
    """The allocation with the best level.

    Attributes:
        level: θ.
        fractions: (G, K) time of a job of each class.
        prices: Prices that prove that no level is better.
        shadow_prices: (K,) gain of the level per extra GPU, for a small part of one.
        algorithm: The algorithm, if it was not that of the solver.
    """

    level: float
    fractions: Floats
    prices: Prices
    shadow_prices: Floats | None
    algorithm: str | None = None


JUST_BEYOND = 1e-3
"""Part of a level by which the search for that of a similar demand starts beyond it."""


def find_best_level(
    levels: Levels, solver: LinearSolver, *, efficiency: bool, shadow_prices: bool = True, near: BestLevel | None = None
) -> BestLevel:
    """Return the allocation of the best level; with `efficiency`, the one with the largest Σ_i s_i v_i.

    For a level θ, a linear program finds the capacity factor ϕ. Its dual values are prices at which the needs cost as much as
    possible, and the best level that is affordable at these prices is the next θ. ϕ is convex in the needs, so this is Newton's
    method from the side of the levels that are too good, and it ends at ϕ = 1.

    near: the best level of a similar demand, whose level is to be maximised too; the search starts from its prices.
    """
    prices, guess = _start_prices(levels, solver.prices), None
    if near is not None:
        prices, guess = near.prices, min(near.level * (1 + JUST_BEYOND), levels.alone)
    level, program = _above_rounding(levels, levels.affordable(levels.alone, prices, guess=guess)), None
    # A factor that exceeds 1 by this counts as 1: a level may look infeasible because of its last bit. A given level has the errors
    # of the levels before, and requirements are met to `MET` only.
    accepted = MET if levels.jobs.rules.can_conflict else FLOAT_ROUNDING if levels.given is None else SOLVER_TOLERANCE
    scaled: tuple[Floats, ...] = ()  # the last program's allocation, scaled down to the existing GPUs
    try:
        for attempt in range(MOST_PROGRAMS):
            needs = levels.needs(level)
            cells = levels.chambers.cells(needs)
            if program is None or not program.fits(cells):
                program = CapacityFactorLP(levels.chambers, cells)
            program.solve_for(cells, solver)
            if program.factor <= 1 + accepted or level == levels.given:
                break
            if solver.limit.is_set:
                scaled = (levels.chambers.expand(cells, program.times, needs) / program.factor,)
            prices = program.scarcity
            # If needs depend on the last digits of the level, the last step must be one such digit.
            digits = level + levels.worse * max(digit(level), digit(levels.spread)) * 4**attempt
            level = _above_rounding(levels, levels.worse_of(levels.affordable(level, prices), digits))
    except TimeLimitReached as reached:
        raise TimeLimitReached(None, reached.fractions + scaled, (*reached.prices, prices)) from None
    assert program is not None  # noqa: S101
    # At a given level, several prices may account for all GPUs. Only the prices that led to it rule out better levels.
    if level != levels.alone and levels.given is None and not levels.jobs.rules:
        prices = program.scarcity
    solver.prices = np.append(prices.gpus, prices.limits) if levels.jobs.rules.constraints else prices.gpus
    times = program.times
    try:
        gains = program.level_prices(levels, level, needs, solver) if shadow_prices else None
        best_times = program.efficient_times(solver) if efficiency else times
    except TimeLimitReached:  # the level is the best one, but its most efficient allocation is unknown
        fractions = levels.chambers.expand(program.cells, times, needs)
        raise TimeLimitReached(None, (fractions,), (prices,)) from None
    return BestLevel(level, levels.chambers.expand(program.cells, best_times, needs), prices, gains)


def _above_rounding(levels: Levels, level: float) -> float:
    """Return the level, or the given one if it is no better than that but for rounding of costs."""
    if levels.given is None or (level - levels.given) * -levels.worse > STILL * abs(levels.alone):
        return level
    return levels.given


def _start_prices(levels: Levels, kept: Floats | None) -> Prices:
    """Return the prices of the last solve, of GPUs and of limits as far as they were there, or else equal prices of all GPUs."""
    equal, count = levels.equal_prices(), len(levels.jobs.capacities)
    if kept is None or len(kept) < count:
        return equal
    prices = Prices(kept[:count], np.append(kept[count:], equal.limits)[: len(equal.limits)])
    worth = prices.worth(levels.chambers.representatives)
    return prices.scaled(1 / worth) if worth > 0 else equal
