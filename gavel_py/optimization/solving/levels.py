"""Levels of a demand: what each level asks of all jobs, in few rows, and which level is affordable at given prices.

`Levels` are the needs of all jobs at a level, and `Levels.affordable` is the best level at given prices, by which
`LevelCertificate` proves one. `Chambers` are jobs of one kind that need different throughputs, reduced to a few rows without loss,
and expanded again:

Let T_1 <= ... <= T_K be the throughputs of a kind of jobs on its types, and P(τ) = {x >= 0: Σ_j T_j x_j >= τ, Σ_j x_j <= 1} the
ways to give a job the throughput τ. While τ stays between two neighbouring T (in one chamber), P(τ) keeps its shape, and Σ_i P(τ_i)
= {x >= 0: Σ_j T_j x_j >= Σ_i τ_i, Σ_j x_j <= n}: n jobs are one row. docs/exact-reduction.md has the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.checking.certificates import CheapestMix, Prices
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.array_validation import returned_numbers
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.row_hashing import content_keys

JUST_ABOVE = 4e-9
"""Relative difference of throughputs that the solver's tolerance, 1e-9, does not tell apart."""

NOTHING = 1e-250
"""A need that can be divided by nothing is none."""


@dataclass(frozen=True)
class Slots:
    """The S pairs (kind, chamber) with jobs in them. kinds, chambers, counts (jobs), needs (sum over jobs): (S,).

    of: (G,) slot of each class; keys: (S,) what tells of the same kind and chamber has the same key in every problem.
    """

    kinds: Indices
    chambers: Indices
    counts: Floats
    needs: Floats
    of: Indices
    keys: NDArray[np.uint64]

    @property
    def means(self) -> Floats:
        """(S,) the mean need of the jobs in each slot."""
        return self.needs / self.counts


class Chambers:
    """The kinds of jobs among classes: those with equal throughputs, gangs and types, in the same groups of rules.

    kinds: (Q,) one class of each kind; one: (Q rows) the jobs as if those of a kind were equal.
    """

    def __init__(self, jobs: JobClasses) -> None:
        self.jobs = jobs
        changes = np.flatnonzero(np.diff(jobs.kinds)) + 1  # classes come kind by kind
        self.kinds = np.concatenate([[0], changes])
        self.lengths = np.diff(np.append(self.kinds, len(jobs)))
        self.of_class = np.repeat(np.arange(len(self.kinds)), self.lengths)
        self.counts = np.add.reduceat(jobs.counts, self.kinds)
        self.one = jobs.rows_as(self.kinds, self.counts, jobs.kind_keys[self.kinds])
        self.throughputs = jobs.throughputs[self.kinds]
        self.runnable = jobs.runnable[self.kinds]
        self.num_gpus = jobs.num_gpus[self.kinds]
        self.fastest = jobs.fastest[self.kinds]
        below = self.runnable & (self.throughputs < self.fastest[:, None])
        self._borders = np.sort(np.where(below, self.throughputs, np.inf), axis=1)

    def slots(self, needs: Floats) -> Slots:
        """Sort the classes, one of whose jobs needs (G,) steps/s, at most its fastest throughput, into slots."""
        chamber = np.zeros(len(needs), dtype=np.int64)
        for column in self._borders.T:
            border = np.repeat(column, self.lengths)
            # A need above a border by less than the solver can tell counts as below it: that type is fast enough for it.
            chamber += (needs == border) | (needs > border * (1 + JUST_ABOVE))
        size = self._borders.shape[1] + 1
        code = self.of_class * size + chamber
        counts = self.sums(code, np.ones(len(needs)), len(self.kinds) * size)
        present = np.flatnonzero(counts)
        number = np.zeros(len(counts), dtype=np.int64)
        number[present] = np.arange(len(present))
        kinds, chambers = np.divmod(present, size)
        # A kind of one class is one row whatever its need is, and keeps its key when that moves to another chamber.
        named = np.where(self.lengths[kinds] > 1, chambers, 0)
        keys = content_keys([self.jobs.kind_keys[self.kinds[kinds]], named], len(kinds))
        return Slots(kinds, chambers, counts[present], self.sums(code, needs, len(counts))[present], number[code], keys)

    def sums(self, of: Indices, needs: Floats, count: int) -> Floats:
        """Return (count,) the sum over the jobs of each slot, `of` the classes, of what each needs."""
        return np.bincount(of, self.jobs.counts * needs, count).astype(float)

    def expand(self, slots: Slots, times: Floats, needs: Floats) -> Floats:
        """Return (G, K) the time of each class's jobs from (S, K) the mean time of each slot's; each gets what it needs.

        The mean time of a slot is a mix of corners of P(mean need), and every corner moves in a straight line with the need:
        the same mix of the corners of P(τ_i) is job i's share, and the shares add up to what the slot has.
        """
        borders = self._lower_borders(slots)
        base, slope = self._mixes(slots, times, borders)
        middle = base + slope * (slots.means - borders)[:, None]
        used: Floats = (slots.counts * self.num_gpus[slots.kinds]) @ middle
        room = np.divide(self.jobs.capacities, used, out=np.ones_like(used), where=used > self.jobs.capacities)
        fractions: Floats = (slope * room)[slots.of]
        fractions *= (needs - borders[slots.of])[:, None]
        fractions += (base * room)[slots.of]
        np.maximum(fractions, 0.0, out=fractions)
        total = fractions @ np.ones(fractions.shape[1])
        if total.max() > 1 + 1e-12:  # types of nearly the same speed: what rounding has added to the corners
            fractions /= np.maximum(1.0, total)[:, None]
        return fractions

    def _mixes(self, slots: Slots, times: Floats, borders: Floats) -> tuple[Floats, Floats]:
        """(S, K) A and B such that a job of need τ has the time A + B (τ - border), border the lower end of the chamber.

        Counted from there, and not from the mean, the least needs lose no digits to the largest.
        """
        speed, mean = self.throughputs[slots.kinds], slots.means
        lower, upper = self._sides(slots, borders)
        base, slope = np.zeros(speed.shape), np.zeros(speed.shape)
        weight = np.zeros(len(mean))
        free = np.where(upper, times, 0.0)
        for low in range(speed.shape[1]):
            left = np.where(lower[:, low], times[:, low], 0.0)
            for high in np.flatnonzero(free.any(axis=0)).tolist() if left.any() else ():
                # Corner: time on one slower and one faster type, all of it used, in proportion to how far the other is away.
                down, up = np.maximum(0.0, mean - speed[:, low]), np.maximum(0.0, speed[:, high] - mean)
                pairs = lower[:, low] & upper[:, high]
                most = np.divide(free[:, high] * up, down, out=np.full_like(mean, np.inf), where=pairs & (down > 0))
                slow = np.where(pairs, np.minimum(left, most), 0.0)
                fast = np.divide(slow * down, up, out=np.zeros_like(mean), where=pairs & (up > 0))
                left, weight = left - slow, weight + slow + fast
                free[:, high] = np.maximum(0.0, free[:, high] - fast)
                turn = np.divide(slow + fast, speed[:, high] - speed[:, low], out=np.zeros_like(mean), where=pairs)
                base[:, low] += turn * (speed[:, high] - borders)
                base[:, high] += turn * (borders - speed[:, low])
                slope[:, low] -= turn
                slope[:, high] += turn
            # What finds no partner is short of what is needed by no more than the solver's tolerance, and stays where it is.
            base[:, low] += left
            weight += left
        return self._fill(slots, free, np.maximum(0.0, 1.0 - weight), borders, base, slope)

    def _fill(
        self, slots: Slots, free: Floats, rest: Floats, borders: Floats, base: Floats, slope: Floats
    ) -> tuple[Floats, Floats]:
        """Add the corners with one type only: just as much time as is needed, or all of it. Their weights sum to `rest`."""
        mean = slots.means
        needed = mean > NOTHING
        speed = np.where(free > 0, self.throughputs[slots.kinds], 1.0)
        ratio = np.divide(speed, mean[:, None], out=np.ones_like(speed), where=needed[:, None])
        room = (free * (ratio - 1)).sum(axis=1)
        # t: which part of the time is just enough, rather than all that there is; 0 where time is short, 1 where speed is.
        t = np.divide(rest - free.sum(axis=1), room, out=np.zeros_like(rest), where=room > 0)
        t = np.clip(t, 0.0, 1.0)[:, None]
        enough, all_time = free * t * ratio, free * (1 - t)
        weight = (enough + all_time).sum(axis=1)
        # Weights that fall short of 1 by the solver's tolerance would leave a job short; they are made up for here.
        scale = np.divide(rest, weight, out=np.zeros_like(rest), where=weight > 0)
        scale = np.where(needed, scale, np.minimum(1.0, scale))[:, None]
        per_need = np.divide(enough * scale, speed)
        short = np.flatnonzero((weight <= 0) & (rest > 0))
        best = np.where(self.runnable, self.throughputs, -1.0).argmax(axis=1)[slots.kinds[short]]
        per_need[short, best] += rest[short] / self.fastest[slots.kinds[short]]
        return base + per_need * borders[:, None] + all_time * scale, slope + per_need

    def _lower_borders(self, slots: Slots) -> Floats:
        """(S,) the lower end of each slot's chamber, 0 for the lowest."""
        ends: Floats = np.hstack([np.zeros((len(self.kinds), 1)), self._borders])[slots.kinds, slots.chambers]
        return ends

    def _sides(self, slots: Slots, borders: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(S, K) the types slower than all needs of the slot, and the others."""
        speed, runnable = self.throughputs[slots.kinds], self.runnable[slots.kinds]
        lower = runnable & (speed < self.fastest[slots.kinds][:, None]) & (speed <= borders[:, None])
        return lower, runnable & ~lower


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
