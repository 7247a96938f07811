"""The best level at which every job can be given what it needs: Newton's method on the factor of GPUs that a level takes.

`FactorProgram` is the linear program of that factor: by how much all GPUs would have to be multiplied for jobs to get what they
need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import Prices
from gavel_py.optimization.formulation.matrices import AllocationProgram
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.optimization.solving.levels import PLATEAU, Chambers, Levels, Slots, digit
from gavel_py.optimization.solving.lp_problem import Solution
from gavel_py.optimization.solving.time_limit import TimeLimitReached
from gavel_py.problem.arrays import Floats

SLIGHTLY = 1e-6
"""In parts of a need: so much more is told from a need that is at a border."""


class FactorProgram:
    """min ϕ such that the jobs of each slot get what they need with ϕ times all GPUs.

    y_sj is the time of all jobs of slot s on type j in parts of n_k, the jobs of its kind:
    Σ_j T_kj y_sj >= (their needs) / n_k, Σ_j y_sj <= (their number) / n_k, Σ_s n_k s_k y_sj <= ϕ c_j; and limits grow
    with ϕ likewise, so that some ϕ is always enough and ϕ = 1 is the problem itself. Another level changes right-hand sides only.
    """

    def __init__(self, chambers: Chambers, slots: Slots) -> None:
        self.chambers = chambers
        self.slots = slots
        one = chambers.kinds[slots.kinds]
        jobs = chambers.jobs.rows_as(one, chambers.counts[slots.kinds], slots.keys)
        self._program = AllocationProgram(jobs)
        speeds = jobs.throughputs[self._program.rows, self._program.columns]
        self._unit = np.zeros(len(one))  # the most steps/s that a slot's jobs could have on one type, so that rows are about 1
        np.maximum.at(self._unit, self._program.rows, speeds * self._program.most)
        enough = self._program.rows_by_job(speeds / self._unit[self._program.rows])
        self._program.compile_factor(enough, self._shares(slots), self._time_limits(slots))
        self._is_solved = False

    def fits(self, slots: Slots) -> bool:
        """Whether this is the program of these slots, but for its right-hand sides."""
        return np.array_equal(self.slots.keys, slots.keys)

    def solve(self, slots: Slots, solver: LinearSolver, name: str = "level") -> None:
        """Find the least factor for these slots; name: that of the basis."""
        self.slots = slots
        try:
            if self._is_solved:
                limits = self._program.program.limits.copy()
                limits[self._program.own_rows] = -self._shares(slots)
                limits[self._program.time_rows] = self._time_limits(slots)
                self._program.solve_with(limits, solver, name)
            else:
                self._program.solve(solver, name)
        except TimeLimitReached as reached:
            if reached.solution is None:
                raise
            fractions = self._times(reached.solution)[slots.of]
            raise TimeLimitReached(reached.solution, (fractions,), (self._prices(reached.solution),)) from None
        self._is_solved = True

    def _time_limits(self, slots: Slots) -> Floats:
        return slots.counts / self.chambers.counts[slots.kinds]

    def _shares(self, slots: Slots) -> Floats:
        return slots.needs / self.chambers.counts[slots.kinds] / self._unit

    @property
    def factor(self) -> float:
        """ϕ, the factor by which the GPUs would have to be multiplied."""
        return float(self._program.solution.values[self._program.factor_column][0])

    @property
    def prices(self) -> Prices:
        """What is scarce; capacities and limits are worth 1 in all unless nothing is needed."""
        return self._prices(self._program.solution)

    def _prices(self, solution: Solution) -> Prices:
        capacities = self.chambers.jobs.capacities
        prices = Prices(self._program.prices(solution), self._program.limit_duals(solution))
        worth = float(prices.gpus @ capacities + prices.limits @ self.chambers.jobs.limits_grow)
        return prices.scaled(1 / worth) if worth > 0 else Prices(np.full(len(capacities), 1 / capacities.sum()), prices.limits)

    @property
    def times(self) -> Floats:
        """(S, K) mean time of the jobs of each slot, as solved."""
        return self._times(self._program.solution)

    def efficient_times(self, solver: LinearSolver) -> Floats:
        """Return (S, K) the mean times with the most Σ_i s_i v_i that keep the level."""
        program, jobs = self._program, self._program.jobs
        rows, columns = program.rows, program.columns
        worth = (jobs.counts * jobs.num_gpus / jobs.equal_share)[rows] * jobs.throughputs[rows, columns]
        # Where GPUs are scarce, there is little left to change; where there are plenty, nearly all of it.
        start = "level" if self.factor > 1 - 1e-6 else None
        return self._times(program.solve_again(solver, "efficiency", worth, max(1.0, self.factor), start))

    def shadow_prices(self, levels: Levels, level: float, needs: Floats, solver: LinearSolver) -> Floats:
        """Return (K,) by how much the level gets better per extra GPU, for the first small part of a GPU.

        At a kink, prices are not unique, and only the least ones are right for more GPUs: with a few more GPUs δ_j of type j the
        level is found once more, d further on, and the prices there are the right ones if they account for all of d.
        """
        prices = np.zeros(len(levels.jobs.capacities))
        if level == levels.alone:
            return prices  # one job is as fast as it can be, and no GPU changes that
        if levels.jobs.rules:  # what rules ask for may fill a type whatever the level is, and then says nothing of the others
            size = max(abs(level), levels.spread if levels.given is None else 0.0) or abs(levels.alone)
            return self._of_better(levels, needs, solver)._shadow_prices_beyond(levels, needs, size, solver)
        rates, solution = self._rates(levels, needs), self._program.solution
        price_of = self._ratio if solution.has_unique_duals else partial(self._shadow_price, solver)
        for j in np.flatnonzero(self._program.prices(solution) > 0):
            prices[j] = price_of(solution, int(j), rates) / levels.jobs.capacities[j]
        return prices

    def _rates(self, levels: Levels, needs: Floats) -> Floats:
        """By how much each row of what is needed rises per unit of θ; what rules ask for does not rise with the level."""
        rising = np.where(needs > levels.jobs.floors, levels.rates(needs), 0.0)
        rates = levels.chambers.sums(self.slots.of, rising, len(self.slots.kinds))
        return rates / self.chambers.counts[self.slots.kinds] / self._unit

    def _of_better(self, levels: Levels, needs: Floats, solver: LinearSolver) -> FactorProgram:
        """The program with these needs in the slots of a slightly better level.

        Where rules fill a type, the level may be the best at which some job needs no other one: then its slot ends here.
        """
        more = np.where(needs > levels.jobs.floors, needs * (1 + SLIGHTLY), needs)
        slots = levels.chambers.slots(np.minimum(more, levels.jobs.fastest))
        slots = replace(slots, needs=levels.chambers.sums(slots.of, needs, len(slots.kinds)))
        if self.fits(slots):
            return self
        program = FactorProgram(levels.chambers, slots)
        program.solve(slots, solver, "better level")
        return program

    def _shadow_prices_beyond(self, levels: Levels, needs: Floats, size: float, solver: LinearSolver) -> Floats:
        """The shadow prices from the program of a slightly better level, for which there are too few GPUs."""
        prices, solution, rates = np.zeros(len(levels.jobs.capacities)), self._program.solution, self._rates(levels, needs)
        limits = solution.program.limits.copy()
        limits[self._program.own_rows] -= rates * (1e-7 * size)
        try:
            beyond = solver.again(limits)
        except SolverError:
            beyond = solution
        for j in np.flatnonzero(self._program.prices(beyond) > 0):
            raw = best = self._ratio(beyond, int(j), rates)
            if not np.isfinite(raw):  # scarce for what rules ask for, and not for the level
                continue
            for more in (1e-5, 1e-8):
                try:
                    further, price = self._further(int(j), more, rates, solution, solver, raw * more)
                except SolverError:
                    continue
                if abs(further - price * more) <= 1e-6 * raw * more:
                    best = min(raw, price)
                    break
            prices[j] = best / levels.jobs.capacities[j]
        return prices

    def _shadow_price(self, solver: LinearSolver, solution: Solution, j: int, rates: Floats) -> float:
        """The price of type j per c_j GPUs."""
        raw = self._ratio(solution, j, rates)
        for more in (1e-5, 1e-8):
            try:
                further, price = self._further(j, more, rates, solution, solver)
            except SolverError:  # beyond what the next job can reach
                continue
            if abs(further - price * more) <= 1e-6 * raw * more:
                return min(raw, price)
        return raw

    def _further(
        self, j: int, more: float, rates: Floats, solution: Solution, solver: LinearSolver, further: float = 0.0
    ) -> tuple[float, float]:
        """By how much better the level gets with `more` times c_j more GPUs of type j, and the price of type j there."""
        enough, capacity = self._program.own_rows, self._program.capacity_rows
        for _ in range(4):
            limits = solution.program.limits.copy()
            limits[enough] -= rates * further
            limits[capacity][j] += more
            found = solver.again(limits)
            over = float(found.values[self._program.factor_column][0]) - 1
            slope = float(found.duals[enough] @ rates)
            if abs(over) <= 1e-9 * more or slope <= 0:
                break
            further -= over / slope
        return further, self._ratio(found, j, rates)

    def _ratio(self, solution: Solution, j: int, rates: Floats) -> float:
        """dθ per dc_j along which ϕ stays the same."""
        slope = float(solution.duals[self._program.own_rows] @ rates)
        return float(solution.duals[self._program.capacity_rows][j]) / slope if slope > 0 else np.inf

    def _times(self, solution: Solution) -> Floats:
        scale = self.chambers.counts[self.slots.kinds] / self.slots.counts
        return self._program.fractions_of(solution) * scale[:, None]


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
