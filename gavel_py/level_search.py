"""The best level at which every job can be given what it needs: Newton's method on how many GPUs a level takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, Protocol

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from gavel_py.array_checks import returned_numbers
from gavel_py.chambers import Chambers, Slots
from gavel_py.errors import Fault, InputError, SolverError
from gavel_py.job_classes import JobClasses
from gavel_py.program import Program
from gavel_py.proof import CheapestMix, Prices
from gavel_py.solver import LinearSolver, Solution

__all__ = ["BestLevel", "Demand", "Levels", "find_best_level"]

Floats = NDArray[np.float64]

MOST_PROGRAMS = 30
FREE = 1e-9
"""Throughput that costs no more than this part of what a job's dearest time costs can be had for nothing."""
MOST_HALVINGS = 3_000
PLATEAU = 1e-12
"""By how much what costs the same at several levels may seem to differ."""
MOST_STILL = 20
"""How often the cost may stay what it is at a worse level, in steps that double from one digit on."""
MOST_STEP = 1e9
"""By what a level changes at most when a worse one is looked for."""
ROUNDING = 1e-12
"""What is reached to the last bit may look infeasible in the next to last."""


class Demand(Protocol):
    """What a demand policy says: need_g(θ), and its inverse, the level θ that a throughput amounts to."""

    @property
    def direction(self) -> Literal["max", "min"]:
        """Whether the level is to be as large as possible or as small."""

    @property
    def name(self) -> str:
        """The policy's name, for messages."""

    def need(self, jobs: JobClasses, level: float) -> Floats:
        """Return (G,) steps/s that a job of each class needs at this level."""

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:
        """Return (G,) the level that each class reaches with these steps/s per job."""


class Levels:
    """A demand on the jobs of a problem: what each level takes, checked.

    worse: the direction in θ in which jobs need less, +1 or -1; alone: the best level that every job could reach if it were
    alone; spread: by how much that level gets worse when all throughputs are halved, a natural unit for steps in θ.
    given: the level that all jobs are known to have been given already, if so; needs and levels then are known to fit each other,
    and needs may stay the same over some levels.
    """

    def __init__(self, demand: Demand, jobs: JobClasses, *, given: float | None = None) -> None:
        self.given = given
        self.demand = demand
        self.jobs = jobs
        self.chambers = Chambers(jobs)
        self.worse = -1.0 if demand.direction == "max" else 1.0
        self.alone = self.reached(jobs.fastest)
        if not np.isfinite(self.alone):
            text = "must return numbers of at least 0 and not only 0, which grow as the level gets better"
            raise InputError(Fault(f"policy {demand.name}", "need", text))
        halved = self.reached(jobs.fastest / 2) if given is None else self.alone
        self.spread = max(abs(halved - self.alone), _digit(self.alone if given is None else 0.0))
        for throughputs in (jobs.fastest, jobs.fastest / 2) if given is None else ():
            self._check_inverse(throughputs)

    def reached(self, throughputs: Floats) -> float:
        """Return the worst level of any job with these (G,) throughputs per job."""
        levels = self._level(throughputs)
        return float(levels.min() if self.worse < 0 else levels.max())

    def worse_of(self, one: float, other: float) -> float:
        """Return the worse of two levels."""
        return min(one, other) if self.worse < 0 else max(one, other)

    def needs(self, level: float) -> Floats:
        """Return (G,) what a job of each class needs at this level or by the rules, at most its fastest throughput."""
        return np.minimum(np.maximum(self._need(level), self.jobs.floors), self.jobs.fastest)

    def rates(self, needs: Floats) -> Floats:
        """Return (G,) by how much each need grows per unit of θ as the level gets better, at the level of these needs.

        From the inverse, since its steps can be parts of each job's own need, whatever the scales of the others.
        """
        step, some = 1e-4, needs > 0
        around = np.where(some, needs, self.jobs.fastest)
        worse, better = (self._level(around * (1 + way * step)) for way in (-1, 1))
        # A job that asks for nothing may have a level of no number, and no rate.
        some &= np.isfinite(worse) & np.isfinite(better)
        worse, better = np.where(some, worse, 1.0), np.where(some, better, 1.0)
        apart = np.maximum(np.abs(worse - better), np.spacing(np.abs(worse)))  # no less than a digit of the level can tell
        return np.where(some, 2 * step * around / apart, 0.0)

    def affordable(self, start: float, prices: Prices) -> float:
        """Return the best level, `start` or worse, that is affordable at these prices.

        That is where Σ_g n_g h_g(need_g(θ)) is what there is to be sold, h_g as in `CheapestMix`. No better level can be
        reached: what a job gets is worth at least h_g, and what all jobs get together is worth at most `Prices.worth`.
        """
        chambers = self.chambers
        mix = CheapestMix(chambers.throughputs, chambers.runnable, prices.costs(chambers.one))
        least = self._sum(mix.costs(chambers.lengths, np.minimum(self.jobs.floors, self.jobs.fastest)))
        worth = prices.worth(chambers.one)
        # Costs are counted from what they are at any level, in parts of what is left for levels, so that 1 is all of it.
        rounding = 1e-14 * max(1.0, abs(worth), abs(least))
        left = max(worth - least, rounding)

        def cost(level: float) -> float:
            return (self._sum(mix.costs(chambers.lengths, self.needs(level))) - least) / left

        def excess(level: float) -> float:
            # Needs in proportion to the level, or to its inverse, make nearly a straight line of this.
            return cost(level) - all_of_it if self.worse < 0 else 1 - 1 / max(cost(level), 1e-300)

        # Needs that are given may cost all that there is over many levels, of which the best is wanted.
        all_of_it = 1 + rounding / left if self.given is None else max(1.0, cost(self.given)) + PLATEAU
        dear, cheap, price, still = start, start, cost(start), 0
        while price > all_of_it:
            dear, before = cheap, price
            # Where needs may stay the same over some levels, a step of their excess may lead nowhere.
            factor = min(price if self.given is None else max(price, 2.0), MOST_STEP)
            cheap = cheap * factor**self.worse if cheap > 0 else cheap + self.worse * self.spread * factor
            cheap = self.worse_of(cheap, dear + self.worse * _digit(dear) * 2.0**still)
            if self.given is not None and cheap <= self.given:
                return self._between(excess, dear, self.given)
            price = cost(cheap)
            # A few digits of the level may not show in the cost.
            still += price >= before and self.given is None
            if still > MOST_STILL:
                text = f"must return less at level {cheap:.6g} than at level {dear:.6g}, which is better"
                raise InputError(Fault(f"policy {self.demand.name}", "need", text))
        if cheap == start:
            return cheap
        return self._between(excess, dear, cheap)

    def _sum(self, costs: Floats) -> float:
        """Σ_g n_g cost_g; not by a matrix product, whose threads wait for one another where the machine is busy."""
        return float(np.einsum("g,g->", self._counts, costs))

    @cached_property
    def _counts(self) -> Floats:
        return self.jobs.counts.astype(float)

    def _between(self, excess: Callable[[float], float], dear: float, cheap: float) -> float:
        """Return the level between a dear and a cheap one at which there is no excess."""
        from scipy.optimize import brentq

        if excess(cheap) >= 0:
            return cheap
        size = max(abs(dear), abs(cheap))
        digit = max(1e-15 * (min(self.spread, size) if self.given is None else size), np.finfo(float).tiny)
        # Where rules leave next to nothing for levels, the excess is nearly a step, which takes halving many times.
        found: float = brentq(excess, dear, cheap, xtol=digit, rtol=4 * np.finfo(float).eps, maxiter=MOST_HALVINGS)
        return found

    def free_until(self, level: float, prices: Prices) -> Floats:
        """Return (G,) up to which throughput a job of each class can rise above this level at no cost.

        Up to a corner of h_g, or not at all where it has passed it. If all that is needed costs all that there is, no job can
        rise higher, whatever the others do beyond their needs.
        """
        chambers = self.chambers
        mix = CheapestMix(chambers.throughputs, chambers.runnable, prices.costs(chambers.one))
        # What GPUs cost and what a rule to get more takes off may cancel out but for rounding errors.
        dearest = np.where(chambers.runnable, prices.sizes(chambers.one), 0.0).max(axis=1)
        return np.maximum(mix.free_until(chambers.lengths, FREE * dearest / chambers.fastest), self.needs(level))

    def _check_inverse(self, throughputs: Floats) -> None:
        """Raise `InputError` unless the job that is worst off needs just the throughput that it has."""
        level = self.reached(throughputs)
        # A job whose need depends on the last digits of the level may need anything between these.
        digits = self.worse * 8 * _digit(level)
        least, part, most = (float((self._need(level + way * digits) / throughputs).max()) for way in (1, 0, -1))
        if not (least <= 1.01 and most >= 0.99):
            text = (
                f"does not fit `need`: at level {level:.6g}, which is said to be that of the job that is worst off, it needs "
                f"{part:.4g} times what it has; unless needs are in proportion to the level, or for direction 'min' to its "
                "inverse, write `level` as well"
            )
            raise InputError(Fault(f"policy {self.demand.name}", "level", text))

    def _need(self, level: float) -> Floats:
        return self._numbers("need", self.demand.need(self.jobs, level), "at least 0 or infinite")

    def _level(self, throughputs: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return self._numbers("level", self.demand.level(self.jobs, throughputs), "a number")

    def _numbers(self, method: str, values: object, rule: str) -> Floats:
        return returned_numbers(values, len(self.jobs), f"policy {self.demand.name}", method, rule, self.jobs.example)


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
    for attempt in range(MOST_PROGRAMS):
        needs = levels.needs(level)
        slots = levels.chambers.slots(needs)
        if program is None or not program.fits(slots):
            program = FactorProgram(levels.chambers, slots)
        program.solve(slots, solver)
        if program.factor <= 1 + (ROUNDING if levels.given is None else 100 * PLATEAU) or level == levels.given:
            break
        prices = program.prices
        # Where the needs depend on the last digits of the level, the last step has to be one of these digits.
        digits = level + levels.worse * max(_digit(level), _digit(levels.spread)) * 4**attempt
        level = levels.worse_of(levels.affordable(level, prices), digits)
        if levels.given is not None and levels.worse_of(level, levels.given) == level:
            level = levels.given
    assert program is not None  # noqa: S101
    # At what is given, several prices may account for all GPUs; those that led here are the ones that say no to more.
    if level != levels.alone and levels.given is None and not levels.jobs.rules:
        prices = program.prices
    solver.prices = prices.gpus
    gains = program.shadow_prices(levels, level, needs, solver) if shadow_prices else None
    times = program.efficient_times(solver) if efficiency else program.times
    return BestLevel(level, levels.chambers.expand(program.slots, times, needs), prices, gains)


def _digit(level: float) -> float:
    """The least difference that can be told at this level."""
    return float(np.spacing(abs(level)))


def _start_prices(levels: Levels, kept: Floats | None) -> Prices:
    """The prices of the last solve, if they are prices of these types; else the same for every GPU; limits are for free."""
    capacities = levels.jobs.capacities
    if kept is None or kept.shape != capacities.shape or not kept @ capacities > 0:
        kept = np.ones(len(capacities))
    return Prices(kept / (kept @ capacities), np.zeros(len(levels.chambers.one.limits[1])))


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
        self._factor = cp.Variable(bounds=[0, None])
        self._program = Program(jobs, time_limits=self._time_limits(slots), capacity_factor=self._factor)
        speeds = jobs.throughputs[self._program.rows, self._program.columns]
        self._unit = np.zeros(len(one))  # the most steps/s that a slot's jobs could have on one type, so that rows are about 1
        np.maximum.at(self._unit, self._program.rows, speeds * self._program.most)
        self._enough = self._program.by_job(speeds / self._unit[self._program.rows]) >= self._shares(slots)
        self._program.compile(cp.Minimize(self._factor), [self._enough])
        self._is_solved = False

    def fits(self, slots: Slots) -> bool:
        """Whether this is the program of these slots, but for its right-hand sides."""
        return np.array_equal(self.slots.keys, slots.keys)

    def solve(self, slots: Slots, solver: LinearSolver) -> None:
        """Find the least factor for these slots."""
        self.slots = slots
        if self._is_solved:
            limits = self._program.program.limits.copy()
            limits[self._program.rows_of(self._enough)] = -self._shares(slots)
            limits[self._program.time_rows] = self._time_limits(slots)
            self._program.solve_with(limits, solver, "level")
        else:
            self._program.solve(solver, "level")
        self._is_solved = True

    def _time_limits(self, slots: Slots) -> Floats:
        return slots.counts / self.chambers.counts[slots.kinds]

    def _shares(self, slots: Slots) -> Floats:
        return slots.needs / self.chambers.counts[slots.kinds] / self._unit

    @property
    def factor(self) -> float:
        """ϕ, the factor by which the GPUs would have to be multiplied."""
        return float(self._program.solution.values[self._factor_column][0])

    @property
    def prices(self) -> Prices:
        """What is scarce; capacities and limits are worth 1 in all unless nothing is needed."""
        solution, capacities = self._program.solution, self.chambers.jobs.capacities
        prices = Prices(self._program.prices(solution), self._program.limit_duals(solution))
        worth = float(prices.gpus @ capacities + prices.limits.sum())
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
        return self._times(program.solve_again(solver, "efficiency", worth, {self._factor: max(1.0, self.factor)}, start))

    def shadow_prices(self, levels: Levels, level: float, needs: Floats, solver: LinearSolver) -> Floats:
        """Return (K,) by how much the level gets better per extra GPU, for the first small part of a GPU.

        At a kink, prices are not unique, and only the least ones are right for more GPUs: with a few more GPUs δ_j of type j the
        level is found once more, d further on, and the prices there are the right ones if they account for all of d.
        """
        prices = np.zeros(len(levels.jobs.capacities))
        if level == levels.alone:
            return prices  # one job is as fast as it can be, and no GPU changes that
        rising = np.where(needs > levels.jobs.floors, levels.rates(needs), 0.0)  # a floor does not rise with the level
        rates = levels.chambers.sums(self.slots.of, rising, len(self.slots.kinds))
        rates = rates / self.chambers.counts[self.slots.kinds] / self._unit
        solution = self._program.solution
        if levels.jobs.rules:  # what rules ask for may fill a type whatever the level is, and then says nothing of the others
            return self._shadow_prices_beyond(levels, level, rates, solver)
        price_of = self._ratio if solution.has_unique_duals else partial(self._shadow_price, solver)
        for j in np.flatnonzero(self._program.prices(solution) > 0):
            prices[j] = price_of(solution, int(j), rates) / levels.jobs.capacities[j]
        return prices

    def _shadow_prices_beyond(self, levels: Levels, level: float, rates: Floats, solver: LinearSolver) -> Floats:
        """The shadow prices from the program of a slightly better level, for which there are too few GPUs."""
        prices, solution = np.zeros(len(levels.jobs.capacities)), self._program.solution
        limits = solution.program.limits.copy()
        size = max(abs(level), levels.spread if levels.given is None else 0.0) or abs(levels.alone)
        limits[self._program.rows_of(self._enough)] -= rates * (1e-7 * size)
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
        enough, capacity = self._program.rows_of(self._enough), self._program.capacity_rows
        for _ in range(4):
            limits = solution.program.limits.copy()
            limits[enough] -= rates * further
            limits[capacity][j] += more
            found = solver.again(limits)
            over = float(found.values[self._factor_column][0]) - 1
            slope = float(found.duals[enough] @ rates)
            if abs(over) <= 1e-9 * more or slope <= 0:
                break
            further -= over / slope
        return further, self._ratio(found, j, rates)

    def _ratio(self, solution: Solution, j: int, rates: Floats) -> float:
        """dθ per dc_j along which ϕ stays the same."""
        slope = float(solution.duals[self._program.rows_of(self._enough)] @ rates)
        return float(solution.duals[self._program.capacity_rows][j]) / slope if slope > 0 else np.inf

    @cached_property
    def _factor_column(self) -> slice:
        return self._program.columns_of(self._factor)

    def _times(self, solution: Solution) -> Floats:
        scale = self.chambers.counts[self.slots.kinds] / self.slots.counts
        return self._program.fractions_of(solution) * scale[:, None]
