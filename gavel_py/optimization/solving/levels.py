"""Levels of a demand: the needs of all jobs at a level, reduced to few rows, and the best level that is affordable at given prices.

`Levels` computes the needs of jobs at a level and the best level at given prices, by which `LevelCertificate` proves a level.
`Chambers` reduces jobs that differ only in their needs to a few rows without loss, and expands the answer again:

Let T_1 <= ... <= T_K be the throughputs of a group of jobs on its types, and P(τ) = {x >= 0: Σ_j T_j x_j >= τ, Σ_j x_j <= 1} the
ways to give a job the throughput τ. While τ stays between two neighbouring T (in one chamber), P(τ) keeps its shape, and Σ_i P(τ_i)
= {x >= 0: Σ_j T_j x_j >= Σ_i τ_i, Σ_j x_j <= n}: n jobs are one row. docs/exact-reduction.md has the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.checking.certificates import Certificate, CheapestMix, Prices, Stages
from gavel_py.optimization.formulation.linear_rows import Rules, entries_of, scale_of
from gavel_py.optimization.job_classes import JobClasses, returned_numbers
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.row_hashing import content_keys
from gavel_py.problem.tolerances import DERIVATIVE_STEP, LAST_DIGITS, LEAST_LEVEL, SOLVER_TOLERANCE

JUST_ABOVE = 4 * SOLVER_TOLERANCE
"""Relative difference of throughputs that is within the solver's tolerance, with the rounding of both."""

NEARLY = 1e-3
"""Relative difference of speeds up to which a type is nearly as fast as a job's fastest one. Where a job needs both, the solver's
tolerance of its need may be a large part of the difference, and HiGHS drops pivots of up to 1e-7, such as those that weigh two of
these types against each other. So their difference must be a coefficient of its own.
"""

NOTHING = 1e-250
"""Needs up to this count as 0: dividing by them overflows."""


@dataclass(frozen=True)
class Cells:
    """The S pairs (group, chamber) with jobs in them. groups, chambers, counts (of jobs), needs (sum over jobs): (S,).

    of: (G,) the cell of each class; keys: (S,) hashes of content, so that a group and chamber has the same key in every problem.
    """

    groups: Indices
    chambers: Indices
    counts: Floats
    needs: Floats
    of: Indices
    keys: NDArray[np.uint64]

    @property
    def means(self) -> Floats:
        """(S,) the mean need of the jobs in each cell."""
        return self.needs / self.counts


class Chambers:
    """The groups of job classes with equal throughputs, gang size, types and rules (`JobClasses.kinds`), cut into chambers.

    first: (Q,) the first class of each group; lengths, counts: (Q,) its numbers of classes and jobs; representatives: (Q rows) the
    jobs, as if all jobs of a group were equal.
    """

    def __init__(self, jobs: JobClasses) -> None:
        self.jobs = jobs
        changes = np.flatnonzero(np.diff(jobs.kinds)) + 1  # classes are sorted by group
        self.first = np.concatenate([[0], changes])
        self.lengths = np.diff(np.append(self.first, len(jobs)))
        self.counts = np.add.reduceat(jobs.counts, self.first)
        self.representatives = jobs.rows_as(self.first, self.counts, jobs.kind_keys[self.first])
        self.throughputs = jobs.throughputs[self.first]
        self.runnable = jobs.runnable[self.first]
        self.num_gpus = jobs.num_gpus[self.first]
        self.fastest = jobs.fastest[self.first]

    @cached_property
    def _borders(self) -> Floats:
        """(Q, K) the throughputs of the types that are slower than the fastest, in ascending order, infinite for the others."""
        below = self.runnable & (self.throughputs < self.fastest[:, None])
        return np.sort(np.where(below, self.throughputs, np.inf), axis=1)

    @cached_property
    def _lower_ends(self) -> Floats:
        """(Q, K + 1) the lower end of each chamber."""
        return np.hstack([np.zeros((len(self.first), 1)), self._borders])

    @cached_property
    def _near(self) -> Floats:
        """(Q,) the least throughput that is nearly the fastest."""
        near: Floats = self.fastest * (1 - NEARLY)
        return near

    def cells(self, needs: Floats) -> Cells:
        """Assign the classes to cells. needs: (G,) steps/s for a job of each class, at most its fastest throughput."""
        chamber = np.zeros(len(needs), dtype=np.int64)
        near = np.repeat(self._near, self.lengths)
        for column in self._borders.T:
            border = np.repeat(column, self.lengths)
            # A need that exceeds a border by less than the solver's tolerance counts as below it: that type is fast enough.
            # Between two types of nearly equal speed, this tolerance would be a large part of the chamber.
            just_above = np.where(border < near, JUST_ABOVE, 0.0)
            chamber += (needs == border) | (needs > border * (1 + just_above))
        size = self._borders.shape[1] + 1
        code = np.repeat(np.arange(len(self.first)), self.lengths) * size + chamber
        counts = self.sums(code, np.ones(len(needs)), len(self.first) * size)
        present = np.flatnonzero(counts)
        number = np.zeros(len(counts), dtype=np.int64)
        number[present] = np.arange(len(present))
        groups, chambers = np.divmod(present, size)
        # A group of one class is one row whatever its need, and keeps its key when the need moves to another chamber, unless
        # that chamber has rows of its own.
        named = np.where((self.lengths[groups] > 1) | self._is_near(groups, chambers), chambers, 0)
        keys = content_keys([self.jobs.kind_keys[self.first[groups]], named], len(groups))
        return Cells(groups, chambers, counts[present], self.sums(code, needs, len(counts))[present], number[code], keys)

    def borders_below(self, cells: Cells) -> Floats:
        """Return (S,) the lower end of each chamber: the throughput of the next slower type, 0 if there is none."""
        return self._lower_ends[cells.groups, cells.chambers]

    def is_near(self, cells: Cells) -> Mask:
        """Return (S,) whether a chamber lies between types that are nearly as fast as the fastest (`NEARLY`)."""
        return self._is_near(cells.groups, cells.chambers)

    def _is_near(self, groups: Indices, chambers: Indices) -> Mask:
        return self._lower_ends[groups, chambers] >= self._near[groups]

    def sums(self, of: Indices, needs: Floats, count: int) -> Floats:
        """Return (count,) the sum of (G,) needs over all jobs of each cell. of: (G,) the cell of each class."""
        return np.bincount(of, self.jobs.counts * needs, count).astype(float)

    def expand(self, cells: Cells, times: Floats, needs: Floats) -> Floats:
        """Return (G, K) the time of a job of each class, which meets its need, from the mean time of the jobs of each cell (S, K).

        The mean time of a cell is a mix of corners of P(mean need), and every corner moves in a straight line with the need: the
        same mix of the corners of P(τ_i) is the time of job i, and these times add up to those of the cell.
        """
        borders = self.borders_below(cells)
        base, slope = self._mixes(cells, times, borders)
        middle = base + slope * (cells.means - borders)[:, None]
        used: Floats = (cells.counts * self.num_gpus[cells.groups]) @ middle
        room = np.divide(self.jobs.capacities, used, out=np.ones_like(used), where=used > self.jobs.capacities)
        fractions: Floats = (slope * room)[cells.of]
        fractions *= (needs - borders[cells.of])[:, None]
        fractions += (base * room)[cells.of]
        np.maximum(fractions, 0.0, out=fractions)
        total = fractions @ np.ones(fractions.shape[1])
        if total.max() > 1 + 1e-12:  # rounding of corners between types of nearly equal speed
            fractions /= np.maximum(1.0, total)[:, None]
        return fractions

    def _mixes(self, cells: Cells, times: Floats, borders: Floats) -> tuple[Floats, Floats]:
        """Return (S, K) A and B such that a job of need τ has the time A + B (τ - border), border the lower end of the chamber.

        The formula is relative to the border instead of the mean, so that the smallest needs lose no digits to the largest.
        """
        speed, mean = self.throughputs[cells.groups], cells.means
        runnable = self.runnable[cells.groups]
        lower = runnable & (speed < self.fastest[cells.groups][:, None]) & (speed <= borders[:, None])  # slower than all needs
        upper = runnable & ~lower
        base, slope = np.zeros(speed.shape), np.zeros(speed.shape)
        weight = np.zeros(len(mean))
        free = np.where(upper, times, 0.0)
        for low in range(speed.shape[1]):
            left = np.where(lower[:, low], times[:, low], 0.0)
            for high in np.flatnonzero(free.any(axis=0)).tolist() if left.any() else ():
                # Corner: all of the time, on a slower and a faster type, each in proportion to the distance from the other's speed.
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
            # Because of the solver's tolerance, the rest has no faster type to balance it, and stays on its type.
            base[:, low] += left
            weight += left
        return self._fill(cells, free, np.maximum(0.0, 1.0 - weight), borders, base, slope)

    def _fill(
        self, cells: Cells, free: Floats, rest: Floats, borders: Floats, base: Floats, slope: Floats
    ) -> tuple[Floats, Floats]:
        """Add the corners with only one type: just enough time for the need, or all of the time. Their weights sum to `rest`."""
        mean = cells.means
        needed = mean > NOTHING
        speed = np.where(free > 0, self.throughputs[cells.groups], 1.0)
        ratio = np.divide(speed, mean[:, None], out=np.ones_like(speed), where=needed[:, None])
        room = (free * (ratio - 1)).sum(axis=1)
        # t: the part of the time in corners of just enough time; 0 if time is short, 1 if speed is.
        t = np.divide(rest - free.sum(axis=1), room, out=np.zeros_like(rest), where=room > 0)
        t = np.clip(t, 0.0, 1.0)[:, None]
        enough, all_time = free * t * ratio, free * (1 - t)
        weight = (enough + all_time).sum(axis=1)
        # Weights may sum to less than 1 by the solver's tolerance, which would leave a job short of its need.
        scale = np.divide(rest, weight, out=np.zeros_like(rest), where=weight > 0)
        scale = np.where(needed, scale, np.minimum(1.0, scale))[:, None]
        per_need = np.divide(enough * scale, speed)
        short = np.flatnonzero((weight <= 0) & (rest > 0))
        best = np.where(self.runnable, self.throughputs, -1.0).argmax(axis=1)[cells.groups[short]]
        per_need[short, best] += rest[short] / self.fastest[cells.groups[short]]
        return base + per_need * borders[:, None] + all_time * scale, slope + per_need


MOST_STEPS, EPSILON = 3_000, float(np.finfo(float).eps)
"""Maximum number of steps of a search for a zero, and the distance from 1 to the next number."""

MOST_STILL = 20
"""Number of steps towards worse levels, doubling from one digit, in which the cost may stay the same."""

MOST_STEP = 1e9
"""Largest factor of a level's change in the search for a worse one."""

FIRST_STEP, WIDER_STEP = 4, 8
"""The first change of a level in that search, as a multiple of the excess of its cost, and the growth of the next ones, where needs
may stay the same over some levels.
"""


class Demand(Protocol):
    """The demand function of a policy, need_g(θ), and its inverse, the level θ that a throughput reaches."""

    @property
    def direction(self) -> Literal["max", "min"]:
        """Whether the level is maximised or minimised."""

    @property
    def name(self) -> str:
        """The policy's name, for messages."""

    def need(self, jobs: JobClasses, level: float) -> Floats:
        """Return (G,) steps/s that a job of each class needs at this level."""

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:
        """Return (G,) the level that each class reaches with these steps/s per job."""


class Levels:
    """A demand on the jobs of a problem, with checks of the values that the policy returns.

    Attributes:
        worse: The sign of a change of θ that lowers the needs, +1 or -1.
        alone: The utopia bound: the worst of the levels that single jobs would reach alone.
        spread: The change of that level when all throughputs are halved, a natural unit for steps in θ.
        given: The level that all jobs have already reached, if any. Needs and levels are then known to be inverse to each other,
        and
            needs may stay the same over some levels.
    """

    def __init__(self, demand: Demand, jobs: JobClasses, *, given: float | None = None) -> None:
        self.given = given
        self.demand = demand
        self.jobs = jobs
        self.chambers = Chambers(jobs)
        self.worse = -1.0 if demand.direction == "max" else 1.0
        self.alone = self.reached(jobs.fastest)
        if not np.isfinite(self.alone):
            text = "must return numbers of at least 0, not all of them 0, that grow as the level improves"
            raise InputError(Fault(f"policy {demand.name}", "need", text))
        halved = self.reached(jobs.fastest / 2) if given is None else self.alone
        self.spread = max(abs(halved - self.alone), digit(self.alone if given is None else 0.0))
        for throughputs in (jobs.fastest, jobs.fastest / 2) if given is None else ():
            self._check_inverse(throughputs)

    def equal_prices(self) -> Prices:
        """Return equal prices for all GPUs, worth 1 in total; limits are free."""
        capacities = self.jobs.capacities
        return Prices(np.full(len(capacities), 1 / capacities.sum()), np.zeros(len(self.chambers.representatives.limits[1])))

    def reached(self, throughputs: Floats) -> float:
        """Return the worst level of any job with these (G,) throughputs per job."""
        levels = self._level(throughputs)
        return float(levels.min() if self.worse < 0 else levels.max())

    def worse_of(self, one: float, other: float) -> float:
        """Return the worse of two levels."""
        return min(one, other) if self.worse < 0 else max(one, other)

    def needs(self, level: float) -> Floats:
        """Return (G,) the throughput that a job needs for this level and the rules, at most its fastest one."""
        return np.minimum(np.maximum(self._need(level), self.jobs.floors), self.jobs.fastest)

    def rates(self, needs: Floats) -> Floats:
        """Return (G,) the growth of each need per unit of θ as the level gets better, at the level of these needs.

        It is computed from the inverse, with steps relative to the need of each job, and so independent of the scales of the
        others.
        """
        step, some = 1e-4, needs > 0
        around = np.where(some, needs, self.jobs.fastest)
        worse, better = (self._level(around * (1 + way * step)) for way in (-1, 1))
        # A job without a need may have the level NaN; it then has no rate.
        some &= np.isfinite(worse) & np.isfinite(better)
        worse, better = np.where(some, worse, 1.0), np.where(some, better, 1.0)
        apart = np.maximum(np.abs(worse - better), np.spacing(np.abs(worse)))  # at least one digit of the level
        return np.where(some, 2 * step * around / apart, 0.0)

    def affordable(self, start: float, prices: Prices, *, guess: float | None = None) -> float:
        """Return the best level, `start` or worse, that is affordable at these prices: the dual bound. guess: a level just better.

        At this level, Σ_g n_g h_g(need_g(θ)) equals `Prices.worth`, with h_g of `CheapestMix`. No better level can be
        reached: a job's time costs at least h_g, and the time of all jobs together at most `Prices.worth`.
        """
        chambers = self.chambers
        mix = CheapestMix(chambers.throughputs, chambers.runnable, prices.costs(chambers.representatives))
        floors = np.minimum(self.jobs.floors, self.jobs.fastest)
        least = self._sum(mix.costs(chambers.lengths, floors)) if floors.any() or mix.lowest.any() else 0.0
        worth = prices.worth(chambers.representatives)
        # Costs beyond those of the rules' floors, divided by the worth that remains for levels, so that 1 is all of it.
        size = worth + 2 * float(np.maximum(0.0, -prices.limits * chambers.representatives.limits[1]).sum())
        # Rounding grows with the square root of the number of terms. Over a plateau, where the cost is the same at several levels,
        # it may exceed the worth by this much; without plateaus, the mean error is enough.
        terms = 1.0 if self.given is None else float(np.sqrt(len(self.jobs)))
        rounding = LAST_DIGITS * terms * max(1.0, size, abs(least))
        left = max(worth - least, rounding)

        def cost(level: float) -> float:
            return (self._sum(mix.costs(chambers.lengths, self.needs(level))) - least) / left

        def excess(level: float) -> float:
            # Nearly linear for needs that are proportional to the level, or to its inverse.
            return cost(level) - all_of_it if self.worse < 0 else 1 - 1 / max(cost(level), 1e-300)

        # Needs at a given level may cost all resources over many levels; the best of these is returned.
        all_of_it = (1.0 if self.given is None else max(1.0, cost(self.given))) + rounding / left
        first = start if guess is None else guess
        price = cost(first)
        if price <= all_of_it and first != start:  # better levels may be affordable as well
            first, price = start, cost(start)
        dear, cheap, still, part = first, first, 0, FIRST_STEP * (price - 1)
        while price > all_of_it:
            dear, before = cheap, price
            # If needs may stay the same over some levels, a step by their excess may have no effect.
            factor = min(price if self.given is None else max(price, 1 + part), MOST_STEP)
            part *= WIDER_STEP
            cheap = cheap * factor**self.worse if cheap > 0 else cheap + self.worse * self.spread * factor
            cheap = self.worse_of(cheap, dear + self.worse * digit(dear) * 2.0**still)
            if self.given is not None and cheap <= self.given:
                return self._between(excess, dear, self.given)
            price = cost(cheap)
            # A change of a few digits may not change the cost.
            still += price >= before and self.given is None
            if still > MOST_STILL:
                text = f"must return less at level {cheap:.6g} than at the better level {dear:.6g}"
                raise InputError(Fault(f"policy {self.demand.name}", "need", text))
        if cheap == first:
            return cheap
        return self._between(excess, dear, cheap)

    def _sum(self, costs: Floats) -> float:
        """Return Σ_g n_g cost_g, without a matrix product, since its threads wait for each other on a busy machine."""
        return float(np.einsum("g,g->", self._counts, costs))

    @cached_property
    def _counts(self) -> Floats:
        return self.jobs.counts.astype(float)

    def _between(self, excess: Callable[[float], float], dear: float, cheap: float) -> float:
        """Return the level at which the excess is 0, between an expensive and a cheap level."""
        size = max(abs(dear), abs(cheap))
        rounding = 1e-15 * (min(self.spread, size) if self.given is None else size)
        return _zero(excess, dear, cheap, max(rounding, np.finfo(float).tiny))

    def free_until(self, level: float, prices: Prices) -> Floats:
        """Return (G,) the throughput up to which a job can rise above this level at no cost: its zero-reduced-cost range.

        This is a corner of h_g, or the job's need if that is beyond the corner. If the needs cost all resources, no job can rise
        higher, even if others have more than they need.
        """
        chambers = self.chambers
        mix = CheapestMix(chambers.throughputs, chambers.runnable, prices.costs(chambers.representatives))
        # The cost of GPUs and the discount of a rule that requires time may cancel out, up to rounding.
        dearest = np.where(chambers.runnable, prices.sizes(chambers.representatives), 0.0).max(axis=1)
        return np.maximum(mix.free_until(chambers.lengths, SOLVER_TOLERANCE * dearest / chambers.fastest), self.needs(level))

    def _check_inverse(self, throughputs: Floats) -> None:
        """Raise `InputError` unless the job with the worst level needs exactly the throughput that it has."""
        level = self.reached(throughputs)
        # A need that depends on the last digits of the level may lie anywhere between these.
        digits = self.worse * 8 * digit(level)
        least, part, most = (float((self._need(level + way * digits) / throughputs).max()) for way in (1, 0, -1))
        if not (least <= 1.01 and most >= 0.99):
            text = (
                f"does not match `need`: at level {level:.6g}, that of the worst-off job, this job needs "
                f"{part:.4g} times what it has; unless needs are proportional to the level, or for direction 'min' to its "
                "inverse, define `level` as well"
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
    """Proves a level by prices of GPUs at which even the cheapest mixes for the needs of any better level cost too much."""

    levels: Levels
    prices: Prices

    @property
    def jobs(self) -> JobClasses:
        return self.levels.jobs

    @property
    def follows(self) -> bool:
        """Whether there are levels before this one, which a change of the resources moves as well."""
        return bool(self.levels.given)

    def value(self, fractions: Floats) -> float:
        """Return the worst level of any job with these (G, K) time fractions."""
        return self.levels.reached(self._throughputs(fractions))

    def bound(self) -> float:
        """Return the best level that is affordable at these prices (`Levels.affordable`)."""
        return self.levels.affordable(self.levels.alone, self.prices)

    def scale(self, fractions: Floats) -> float:
        """Return the size that counts if the level itself is near 0: its change when throughputs are halved.

        A level to be maximised may be nothing but rounding, where a job gets no time. Then a part of the utopia bound counts.
        """
        return max(self.change(fractions), LEAST_LEVEL * abs(self.levels.alone) if self.levels.worse < 0 else 0.0)

    def change(self, fractions: Floats) -> float:
        """Return the change of the level when the throughputs of these (G, K) time fractions are halved."""
        throughputs = self._throughputs(fractions)
        return abs(self.levels.reached(throughputs / 2) - self.levels.reached(throughputs))

    @property
    def scarcity(self) -> Prices:
        """The prices at which the needs cost all resources."""
        return self.prices

    def _throughputs(self, fractions: Floats) -> Floats:
        return (self.jobs.throughputs * fractions) @ np.ones(fractions.shape[1])


@dataclass(frozen=True)
class _PricesOfMore(Prices):
    """The same prices for more resources. more: the additional worth."""

    more: float

    def worth(self, jobs: JobClasses) -> float:
        return super().worth(jobs) + self.more


def level_per_part(certificate: LevelCertificate) -> float:
    """Return the improvement of the level per unit of worth of further resources, at the prices that prove the level."""
    more = _PricesOfMore(certificate.prices.gpus, certificate.prices.limits, DERIVATIVE_STEP)
    return abs(replace(certificate, prices=more).bound() - certificate.bound()) / DERIVATIVE_STEP


def limit_prices(certificate: Certificate | None, rules: Rules) -> Floats | None:
    """Return (R,) the shadow prices of `rules.hard_rows`: the largest gain of the objective per unit of relaxation of each row.

    Unless the optimum has a kink, this is the gain for the first small part of a unit. None if there are no prices.
    """
    while isinstance(certificate, Stages):
        certificate = certificate.of_value
    if certificate is None or not rules.hard_rows or (isinstance(certificate, LevelCertificate) and certificate.follows):
        return None
    jobs, prices = certificate.jobs, certificate.scarcity
    if len(prices.limits) < len(jobs.rules.hard_rows):
        return None
    parts = prices.over(jobs.rules, rules).limits
    scales = [scale_of(row.rhs, entries_of(row, jobs.rows, jobs.num_gpus)[1]) for row in rules.hard_rows]
    worth = level_per_part(certificate) if isinstance(certificate, LevelCertificate) else 1.0
    return parts * worth / scales


def _zero(excess: Callable[[float], float], dear: float, cheap: float, rounding: float) -> float:
    """Return the zero, up to rounding, of a function that is positive at `dear`; `cheap` if it is not negative there.

    Chandrupatla's method: inverse quadratic interpolation if three points lie on a smooth curve, otherwise bisection, for example
    if rules leave almost nothing for levels and the excess is nearly a step. (SciPy's methods would need fewer lines, but its
    import takes longer than a small problem.)

    Source: Chandrupatla, Advances in Engineering Software 28 (1997).
    """
    near, far, at_near, at_far = dear, cheap, excess(dear), excess(cheap)
    if at_far >= 0 or at_near <= 0:
        return cheap if at_far >= 0 else dear
    part = at_near / (at_near - at_far)  # most needs are proportional to the level
    for _ in range(MOST_STEPS):
        tried = near + part * (far - near)
        found = excess(tried)
        if (found > 0) == (at_near > 0):
            last, at_last = near, at_near
        else:
            last, at_last, far, at_far = far, at_far, near, at_near
        near, at_near = tried, found
        best, at_best = (near, at_near) if abs(at_near) < abs(at_far) else (far, at_far)
        least = (rounding + 2 * EPSILON * abs(best)) / abs(far - near)
        if at_best == 0 or least > 0.5:
            break
        width, height = (near - far) / (last - far), (at_near - at_far) / (at_last - at_far)
        part = 0.5
        if height**2 < width and (1 - height) ** 2 < 1 - width:
            part = at_near / (at_far - at_near) * at_last / (at_far - at_last)
            part += (last - near) / (far - near) * at_near / (at_last - at_near) * at_far / (at_last - at_far)
        part = min(max(part, least), 1 - least)
    return best


def digit(level: float) -> float:
    """Return the distance to the next floating-point number."""
    return float(np.spacing(abs(level)))
