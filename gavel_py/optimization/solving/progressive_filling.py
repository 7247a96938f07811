"""Progressive filling: all jobs rise together; jobs that are saturated stop, and the others continue (Bertsekas and Gallager)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.job_classes import SAME_SPEED, JobClasses
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimitReached
from gavel_py.optimization.solving.level_search import BestLevel, find_best_level
from gavel_py.optimization.solving.levels import LevelCertificate, Levels
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import FLOAT_ROUNDING, LAST_DIGITS, LEAST_LEVEL, SOLVER_TOLERANCE

STOPPED = 10 * SOLVER_TOLERANCE
"""Relative distance to its top at which a job counts as stopped: errors of a few rows of the solver, and of the repair."""

HELD_BACK = 4 * LAST_DIGITS
"""Part of its throughput that a job gives up where it stops below its top, per square root of the number of classes, as the
rounding of costs. Types that stopped jobs use up then have slack, so that later levels are not infeasible by rounding. It must be
small: where a job's speeds hardly differ, others get many times what it gives up.
"""

AT_TOP = HELD_BACK / 10
"""Relative distance to its top, per square root of the number of classes, at which a level gives a job all of it. A job that stops
below it must not count as at its top.
"""


class Rise(Protocol):
    """The service of jobs, s_i · Δv_i, as a function of the level, limited only by the room of each job."""

    @property
    def most(self) -> float:
        """The level at which no job has room left."""

    def services(self, level: float) -> Floats:
        """Return (G,) the service of a job of each class at this level."""

    def levels(self, services: Floats) -> Floats:
        """Return (G,) the highest level at which each job has at most this service."""


class Shares(Protocol):
    """The rates at which jobs rise."""

    def rise(self, rooms: Floats) -> Rise:
        """Return the rise of jobs with (G,) room left, in units of service; jobs without room do not take part."""

    def risen(self, rise: Any, level: float) -> Shares:
        """Return the rates after the jobs have risen to a level."""


@dataclass(frozen=True)
class Filled:
    """The levels and the best allocation of each, in order; the fractions of the last one are the allocation.

    rising: (G,) for each level, the jobs that could still rise; reached: (G,) steps/s that a job of each class has in the end.
    """

    levels: tuple[Levels, ...]
    found: tuple[BestLevel, ...]
    rising: tuple[Mask, ...]
    reached: Floats

    @property
    def jobs(self) -> JobClasses:
        """The jobs that were raised."""
        return self.levels[0].jobs


class _Filling:
    """Jobs that rise level by level at the rates of `shares`, and what they have reached.

    A level ends when the throughputs reached cost all resources at some prices. A job can then rise only as far as more throughput
    is free at these prices (`Levels.free_until`); there it stops, and the others continue. Each level is proven by its own prices,
    so that there are rarely more levels than types, and no integer program is needed.

    reached, tops: (G,) steps/s that a job of each class has, and can have at most; base: the last level; demand: the present step;
    terms: the factor of `HELD_BACK` and `AT_TOP`.
    """

    demand: _Step

    def __init__(self, jobs: JobClasses, shares: Shares, name: str) -> None:
        self.jobs, self.shares, self.name = jobs, shares, name
        self.units = jobs.equal_share / jobs.num_gpus  # steps/s per unit of service
        self.terms = float(np.sqrt(len(jobs)))
        self.reached, self.tops, self.base = np.zeros(len(jobs)), _tops(jobs), 0.0

    @property
    def rising(self) -> Mask:
        """(G,) the jobs that can still rise."""
        return self.reached < self.tops * (1 - STOPPED)

    def next_level(self) -> Levels | None:
        """Return the next level as a demand, None if no job can rise."""
        if not self.rising.any():
            return None
        rise = self.shares.rise(np.where(self.rising, (self.tops - self.reached) / self.units, 0.0))
        if not rise.most > 0:
            return None
        self.demand = _Step(self.name, rise, self.reached, self.units, self.tops, self.base)
        return Levels(self.demand, self.jobs, given=self.base)

    def raise_to(self, best: BestLevel, step: Levels) -> None:
        """Raise the jobs to the best level of the present step, where some of them stop."""
        below, before = self.rising, self.tops
        # Throughput that rules require beyond the level (`Levels.needs`) is not a level: the job waits until the others catch up.
        reached = self.demand.need(self.jobs, best.level)
        self.shares, self.base = self.shares.risen(self.demand.rise, best.level - self.base), best.level
        tops = np.minimum(before, np.maximum(reached, step.free_until(best.level, best.prices)))
        has_stopped = below & (reached < before * (1 - STOPPED)) & (reached >= tops * (1 - STOPPED))
        self.tops = np.where(has_stopped, tops * (1 - HELD_BACK * self.terms), tops)
        self.reached = np.minimum(reached, self.tops)
        if best.level < step.alone and np.array_equal(self.tops, before) and self.rising.any():
            raise SolverError(f"no job can rise above level {best.level:.9g}, and the prices do not show which jobs stay there")


def fill(jobs: JobClasses, shares: Shares, solver: LinearSolver, name: str, *, prices: bool = True) -> Filled:
    """Raise all jobs at the rates of `shares`, level by level, until none can rise; prices: find those of the first level."""
    filling = _Filling(jobs, shares, name)
    levels: list[Levels] = []
    found: list[BestLevel] = []
    rising: list[Mask] = []
    while (step := filling.next_level()) is not None:
        try:
            best = find_best_level(step, solver, efficiency=False, shadow_prices=prices and not found)
        except TimeLimitReached:
            if not found:
                raise
            raise TimeLimitReached(None, (found[-1].fractions,), (found[0].prices,)) from None
        found.append(best)
        rising.append(filling.rising)
        at_top = filling.demand.need(jobs, best.level) >= filling.tops * (1 - AT_TOP * filling.terms)
        levels.append(copy(step))
        levels[-1].demand = replace(filling.demand, at_top=at_top)
        filling.raise_to(best, step)
    return Filled(tuple(levels), tuple(found), tuple(rising), filling.reached)


def _tops(jobs: JobClasses) -> Floats:
    """Return (G,) the throughput of each job on the slowest type that is as fast as its fastest one (`SAME_SPEED`)."""
    fast = jobs.runnable & (jobs.throughputs >= jobs.fastest[:, None] * (1 - SAME_SPEED))
    tops: Floats = np.where(fast, jobs.throughputs, np.inf).min(axis=1)
    return tops


def first_stop_of(jobs: JobClasses, shares: Shares, name: str) -> Levels:
    """Return the first level as a demand that ends when one job stops, either for lack of GPUs or because it cannot run faster."""
    units, tops = jobs.equal_share / jobs.num_gpus, _tops(jobs)
    return Levels(_FirstStop(name, shares.rise(tops / units), np.zeros(len(jobs)), units, tops, 0.0), jobs, given=0.0)


@dataclass(frozen=True)
class _Step:
    """One level as a demand: the throughputs reached before, and the rise above them.

    at_top: (G,) the jobs that have all of their top at the level found, up to `STOPPED`; while it is unknown, all of them.
    """

    name: str
    rise: Rise
    reached: Floats
    units: Floats
    tops: Floats
    base: float
    at_top: Mask | bool = True
    direction: Literal["max"] = "max"

    def need(self, jobs: JobClasses, level: float) -> Floats:  # noqa: ARG002
        """Return (G,) steps/s."""
        needs: Floats = self.reached + self.units * self.rise.services(max(0.0, level - self.base))
        return np.minimum(needs, self.tops)

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:  # noqa: ARG002
        """Return (G,) the level up to which the needs of each job are met, the highest one for jobs that cannot rise."""
        services = np.maximum(0.0, (throughputs - self.reached) / self.units)
        levels = self.rise.levels(services)
        return self.base + np.where(throughputs >= self.tops * (1 - STOPPED * self.at_top), self.rise.most, levels)


class _FirstStop(_Step):
    """The first level, ending when the first job stops."""

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:  # noqa: ARG002
        """Return (G,) the level up to which the needs of each job are met, none beyond its fastest throughput."""
        below = np.nextafter((self.tops - self.reached) / self.units, 0.0)
        return self.base + self.rise.levels(np.clip((throughputs - self.reached) / self.units, 0.0, below))


MORE = 1e-4
"""Part by which there are more GPUs of a type when their price is found; levels are exact to about 1e-10 of themselves."""

LEAST_SPARE = 1e-6
"""Part of the GPUs of a type from which on they count as to spare."""

NOISE = 1e-8
"""Part of a value by which it may change because of rounding."""


@dataclass(frozen=True)
class Groups:
    """Groups of jobs, such as tenants, whose work per unit of weight counts.

    of: (G,) the group of each class; weights: (M,); held: (M,) work that is not that of jobs.
    """

    of: Indices
    weights: Floats
    held: Floats

    def work(self, jobs: JobClasses, throughputs: Floats) -> Floats:
        """Return (M,) Σ_i s_i v_i / weight over the jobs of each group. throughputs: (G,) steps/s of a job of each class."""
        work = jobs.counts * jobs.num_gpus * throughputs / jobs.equal_share
        return (np.bincount(self.of, work, len(self.weights)) + self.held) / self.weights


@dataclass(frozen=True)
class GroupCertificate(LevelCertificate):
    """Proves the work of the worst-off group by the level at which its last job stops, given the levels before."""

    groups: Groups
    group: int

    def value(self, fractions: Floats) -> float:
        """Return the work of the worst-off group per unit of weight with these (G, K) time fractions."""
        return float(self.groups.work(self.jobs, self._throughputs(fractions)).min())

    def bound(self) -> float:
        """Return the work of this group, per unit of weight, at the best level that is affordable at these prices."""
        return float(self.groups.work(self.jobs, self.levels.needs(super().bound()))[self.group])

    def scale(self, fractions: Floats) -> float:
        """Return the level, of which a group whose turn has not come may have a small part only."""
        return max(abs(super().value(fractions)), LEAST_LEVEL * self.levels.alone)


@dataclass(frozen=True)
class StoppedCertificate(LevelCertificate):
    """Bounds what the worst-off group has when a time limit ends the search; `levels` is the first stop.

    The value is what each group has at least once all jobs have reached the level of the worst-off one. It is no more than at the
    optimum, where all jobs have reached that level as well.
    """

    groups: Groups

    def value(self, fractions: Floats) -> float:
        """Return the work that the worst-off group must have, per unit of weight, at the level of (G, K) time fractions."""
        return float(self.groups.work(self.jobs, self.levels.needs(super().value(fractions))).min())

    def bound(self) -> float:
        """Return a bound for any prices of GPUs: a unit of a group's work costs no less than where it is cheapest."""
        jobs, prices = self.jobs, self.prices.gpus
        costs = np.divide(prices, jobs.throughputs, out=np.full(jobs.throughputs.shape, np.inf), where=jobs.runnable)
        cheapest = np.full(len(self.groups.weights), np.inf)
        np.minimum.at(cheapest, self.groups.of, jobs.equal_share * costs.min(axis=1))
        spent, utopia = float(self.groups.weights @ cheapest), float(self.groups.work(jobs, jobs.fastest).min())
        return min(utopia, float(prices @ jobs.capacities + self.groups.held @ cheapest) / spent) if spent > 0 else utopia


def worst_off(filled: Filled, groups: Groups) -> tuple[GroupCertificate, int]:
    """Return the proof of what the worst-off group has, and the number of the level at which its last job stops, from 0."""
    group = int(groups.work(filled.jobs, filled.reached).argmin())
    number = max(n for n, rising in enumerate(filled.rising) if rising[groups.of == group].any())
    return GroupCertificate(filled.levels[number], filled.found[number].prices, groups, group), number


def gains_of_more_gpus(filled: Filled, shares: Shares, groups: Groups, solver: LinearSolver) -> Floats:
    """Return (K,) what the worst-off group gains per extra GPU of each type, from a small part of one.

    More GPUs move each level and so what later levels start from, and at a kink also the jobs that stop there. So jobs are raised
    again with slightly more GPUs of the type, from the prices of the levels found and only until the worst-off group cannot rise.
    If a type has GPUs to spare, no level depends on it.
    """
    jobs, fractions = filled.jobs, filled.found[-1].fractions
    work = groups.work(jobs, filled.reached)
    value, rounding = float(work.min()), FLOAT_ROUNDING * float(work.max())  # of a group whose turn has not come, all is rounding
    used, capacities = (jobs.counts * jobs.num_gpus) @ fractions, jobs.capacities
    if jobs.columns is not None:
        used, capacities = jobs.columns.gpus(fractions, jobs.counts * jobs.num_gpus), jobs.columns.base.capacities
    prices = np.zeros(len(capacities))
    for j in np.flatnonzero((capacities > 0) & (used > capacities * (1 - LEAST_SPARE))).tolist():
        there = _least_work(jobs.with_more_gpus(j, MORE), shares, groups, solver, filled)
        if abs(there - value) > NOISE * max(there, value) + rounding:
            prices[j] = (there - value) / (MORE * capacities[j])
    return prices


def _least_work(jobs: JobClasses, shares: Shares, groups: Groups, solver: LinearSolver, like: Filled) -> float:
    """Return what the worst-off group has with these jobs, which rise like those of an earlier filling, until it cannot rise."""
    filling, found = _Filling(jobs, shares, like.levels[0].demand.name), iter(like.found)
    while (step := filling.next_level()) is not None:
        best = find_best_level(step, solver, efficiency=False, shadow_prices=False, near=next(found, None))
        filling.raise_to(best, step)
        if not filling.rising[groups.of == groups.work(jobs, filling.reached).argmin()].any():
            break
    return float(groups.work(jobs, filling.reached).min())
