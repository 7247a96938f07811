"""The best level at which every job can be given what it needs: Newton's method on how many GPUs a level takes."""

from __future__ import annotations

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
from gavel_py.proof import CheapestMix
from gavel_py.solver import LinearSolver, Solution

__all__ = ["BestLevel", "Demand", "Levels", "find_best_level"]

Floats = NDArray[np.float64]

MOST_PROGRAMS = 30
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
    """

    def __init__(self, demand: Demand, jobs: JobClasses) -> None:
        self.demand = demand
        self.jobs = jobs
        self.chambers = Chambers(jobs)
        self.worse = -1.0 if demand.direction == "max" else 1.0
        self.alone = self.reached(jobs.fastest)
        if not np.isfinite(self.alone):
            text = "must return numbers of at least 0 and not only 0, which grow as the level gets better"
            raise InputError(Fault(f"policy {demand.name}", "need", text))
        self.spread = max(abs(self.reached(jobs.fastest / 2) - self.alone), _digit(self.alone))
        for throughputs in (jobs.fastest, jobs.fastest / 2):
            self._check_inverse(throughputs)

    def reached(self, throughputs: Floats) -> float:
        """Return the worst level of any job with these (G,) throughputs per job."""
        levels = self._level(throughputs)
        return float(levels.min() if self.worse < 0 else levels.max())

    def worse_of(self, one: float, other: float) -> float:
        """Return the worse of two levels."""
        return min(one, other) if self.worse < 0 else max(one, other)

    def needs(self, level: float) -> Floats:
        """Return (G,) what a job of each class needs at this level, at most its fastest throughput."""
        return np.minimum(self._need(level), self.jobs.fastest)

    def rates(self, needs: Floats) -> Floats:
        """Return (G,) by how much each need grows per unit of θ as the level gets better, at the level of these needs.

        From the inverse, since its steps can be parts of each job's own need, whatever the scales of the others.
        """
        step, some = 1e-4, needs > 0
        around = np.where(some, needs, self.jobs.fastest)
        worse, better = (self._level(around * (1 + way * step)) for way in (-1, 1))
        apart = np.maximum(np.abs(worse - better), np.spacing(np.abs(worse)))  # no less than a digit of the level can tell
        return np.where(some, 2 * step * around / apart, 0.0)

    def affordable(self, start: float, prices: Floats) -> float:
        """Return the best level, `start` or worse, that is affordable at these prices, Σ p_j c_j = 1.

        That is where Σ_g n_g h_g(need_g(θ)) = 1, h_g as in `CheapestMix`. No better level can be reached: what a job gets is
        worth at least h_g, and all GPUs are worth 1.
        """
        from scipy.optimize import brentq

        chambers, counts = self.chambers, self.jobs.counts
        mix = CheapestMix(chambers.throughputs, chambers.runnable, chambers.num_gpus, prices)

        def cost(level: float) -> float:
            return float(counts @ mix.costs(chambers.lengths, self.needs(level)))

        def excess(level: float) -> float:
            # Needs in proportion to the level, or to its inverse, make nearly a straight line of this.
            return cost(level) - 1 if self.worse < 0 else 1 - 1 / max(cost(level), 1e-300)

        dear, cheap, price = start, start, cost(start)
        while price > 1 + 1e-14:
            dear = cheap
            cheap = cheap * price**self.worse if cheap > 0 else cheap + self.worse * self.spread * price
            price, before = cost(cheap), price
            if price >= before:
                text = f"must return less at level {cheap:.6g} than at level {dear:.6g}, which is better"
                raise InputError(Fault(f"policy {self.demand.name}", "need", text))
        if price >= 1 or cheap == start:
            return cheap
        found: float = brentq(excess, dear, cheap, xtol=1e-15 * self.spread, rtol=4 * np.finfo(float).eps)
        return found

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

    fractions: (G, K) time of each class's jobs; prices: (K,) per GPU, Σ p_j c_j = 1, which prove that no level is better;
    shadow_prices: (K,) by how much the level gets better per extra GPU, for the first small part of one.
    """

    fractions: Floats
    prices: Floats
    shadow_prices: Floats


def find_best_level(levels: Levels, solver: LinearSolver, efficiency: bool) -> BestLevel:
    """Find the best level, and among its allocations, with `efficiency`, the one with the most Σ_i s_i v_i.

    For a level θ, a linear program finds the least factor ϕ by which all capacities would have to be multiplied. Its dual
    values are prices at which GPUs cost no more than needed, and these tell which level is affordable: the next θ. ϕ is
    convex in the needs, so this is Newton's method from the side of the levels that are too good; it ends at ϕ = 1.
    """
    prices = _start_prices(levels.jobs.capacities, solver.prices)
    level, program = levels.affordable(levels.alone, prices), None
    for attempt in range(MOST_PROGRAMS):
        needs = levels.needs(level)
        slots = levels.chambers.slots(needs)
        if program is None or not program.fits(slots):
            program = FactorProgram(levels.chambers, slots)
        program.solve(slots, solver)
        if program.factor <= 1 + ROUNDING:
            break
        prices = program.prices
        # Where the needs depend on the last digits of the level, the last step has to be one of these digits.
        digits = level + levels.worse * max(_digit(level), _digit(levels.spread)) * 4**attempt
        level = levels.worse_of(levels.affordable(level, prices), digits)
    assert program is not None  # noqa: S101
    if level != levels.alone:
        prices = program.prices
    solver.prices = prices
    shadow_prices = program.shadow_prices(levels, level, needs, solver)
    times = program.efficient_times(solver) if efficiency else program.times
    return BestLevel(levels.chambers.expand(program.slots, times, needs), prices, shadow_prices)


def _digit(level: float) -> float:
    """The least difference that can be told at this level."""
    return float(np.spacing(abs(level)))


def _start_prices(capacities: Floats, kept: Floats | None) -> Floats:
    """The prices of the last solve, if they are prices of these types; else the same for every GPU."""
    if kept is None or kept.shape != capacities.shape or not kept @ capacities > 0:
        return _even(capacities)
    return kept / (kept @ capacities)


def _even(capacities: Floats) -> Floats:
    return np.full(len(capacities), 1 / capacities.sum())


class FactorProgram:
    """min ϕ such that the jobs of each slot get what they need with ϕ times all GPUs.

    y_sj is the time of all jobs of slot s on type j in parts of n_k, the jobs of its kind:
    Σ_j T_kj y_sj >= (their needs) / n_k, Σ_j y_sj <= (their number) / n_k, Σ_s n_k s_k y_sj <= ϕ c_j.
    For another level only the right-hand sides change.
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
    def prices(self) -> Floats:
        """(K,) p_j per GPU, Σ p_j c_j = 1 unless nothing is needed."""
        prices = self._program.prices(self._program.solution)
        worth = float(prices @ self.chambers.jobs.capacities)
        return prices / worth if worth > 0 else _even(self.chambers.jobs.capacities)

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
        rates = levels.chambers.sums(self.slots.of, levels.rates(needs), len(self.slots.kinds))
        rates = rates / self.chambers.counts[self.slots.kinds] / self._unit
        solution = self._program.solution
        price_of = self._ratio if solution.has_unique_duals else partial(self._shadow_price, solver)
        for j in np.flatnonzero(self._program.prices(solution) > 0):
            prices[j] = price_of(solution, int(j), rates) / levels.jobs.capacities[j]
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

    def _further(self, j: int, more: float, rates: Floats, solution: Solution, solver: LinearSolver) -> tuple[float, float]:
        """By how much better the level gets with `more` times c_j more GPUs of type j, and the price of type j there."""
        enough, capacity = self._program.rows_of(self._enough), self._program.capacity_rows
        further = 0.0
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
