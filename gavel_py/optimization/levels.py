"""What a level asks of all jobs, and which level is affordable at given prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.certificates import CheapestMix, Prices
from gavel_py.optimization.chambers import Chambers
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.array_validation import returned_numbers

__all__ = ["PLATEAU", "Demand", "LevelCertificate", "Levels", "digit"]

Floats = NDArray[np.float64]

FREE = 1e-9
"""Throughput that costs no more than this part of what a job's dearest time costs can be had for nothing."""
MOST_HALVINGS = 3_000
PLATEAU = 1e-12
"""By how much what costs the same at several levels may seem to differ."""
MOST_STILL = 20
"""How often the cost may stay what it is at a worse level, in steps that double from one digit on."""
MOST_STEP = 1e9
"""By what a level changes at most when a worse one is looked for."""


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
        self.spread = max(abs(halved - self.alone), digit(self.alone if given is None else 0.0))
        for throughputs in (jobs.fastest, jobs.fastest / 2) if given is None else ():
            self._check_inverse(throughputs)

    def equal_prices(self) -> Prices:
        """Return the same price for every GPU, all of them together worth 1; limits are free."""
        capacities = self.jobs.capacities
        return Prices(np.full(len(capacities), 1 / capacities.sum()), np.zeros(len(self.chambers.one.limits[1])))

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
            cheap = self.worse_of(cheap, dear + self.worse * digit(dear) * 2.0**still)
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
        digits = self.worse * 8 * digit(level)
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
class LevelCertificate:
    """Proves a level: prices p of the GPUs at which every job's cheapest way to what it needs at a better level costs too much."""

    levels: Levels
    prices: Prices

    @property
    def jobs(self) -> JobClasses:
        return self.levels.jobs

    def value(self, fractions: Floats) -> float:
        """Return the level of the job that is worst off with these (G, K) time fractions."""
        return self.levels.reached(self._throughputs(fractions))

    def bound(self) -> float:
        """Return the best level that is affordable at these prices (`Levels.affordable`)."""
        return self.levels.affordable(self.levels.alone, self.prices)

    def scale(self, fractions: Floats) -> float:
        """Return by how much the level would get worse with half the throughputs: what counts where the level itself is near 0."""
        throughputs = self._throughputs(fractions)
        return abs(self.levels.reached(throughputs / 2) - self.levels.reached(throughputs))

    @property
    def scarcity(self) -> Prices:
        """The prices at which all that is needed costs all that there is."""
        return self.prices

    def _throughputs(self, fractions: Floats) -> Floats:
        throughputs: Floats = (self.jobs.throughputs * fractions) @ np.ones(fractions.shape[1])
        return throughputs


def digit(level: float) -> float:
    """Return the least difference that can be told at this level."""
    return float(np.spacing(abs(level)))
