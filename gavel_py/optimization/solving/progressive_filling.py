"""Progressive filling: all jobs rise together; jobs that are saturated stop, and the others continue (Bertsekas and Gallager)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimitReached
from gavel_py.optimization.solving.level_search import BestLevel, find_best_level
from gavel_py.optimization.solving.levels import Levels
from gavel_py.problem.arrays import Floats

STOPPED = 1e-9
"""Relative distance to its top at which a job counts as stopped."""


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


@dataclass(frozen=True)
class Filled:
    """The levels and the best allocation of each, in order; the fractions of the last one are the allocation.

    first_stop: the first level as a demand that ends when one job stops, either for lack of GPUs or because it cannot run faster.
    """

    levels: tuple[Levels, ...]
    found: tuple[BestLevel, ...]
    first_stop: Levels


def fill(jobs: JobClasses, shares: Shares, solver: LinearSolver, name: str) -> Filled:
    """Raise all jobs, level by level, at the rates of `shares` until none can rise further.

    A level ends when the throughputs reached cost all resources at some prices. A job can then rise only as far as more throughput
    is free at these prices (`Levels.free_until`); there it stops, and the others continue. Each level is proven by its own prices,
    so that there are rarely more levels than types, and no integer program is needed.
    """
    units = jobs.equal_share / jobs.num_gpus  # steps/s per unit of service
    reached, tops, base = np.zeros(len(jobs)), jobs.fastest, 0.0
    first_stop = first_stop_of(jobs, shares, name)
    levels: list[Levels] = []
    found: list[BestLevel] = []
    while True:
        rise = shares.rise(np.where(reached < tops * (1 - STOPPED), (tops - reached) / units, 0.0))
        if not rise.most > 0:
            return Filled(tuple(levels), tuple(found), first_stop)
        step = Levels(_Step(name, rise, reached, units, tops, base), jobs, given=base)
        try:
            best = find_best_level(step, solver, efficiency=False, shadow_prices=not found)
        except TimeLimitReached:
            if not found:
                raise
            raise TimeLimitReached(None, (found[-1].fractions,), (found[0].prices,)) from None
        levels.append(step)
        found.append(best)
        # Throughput that rules require beyond the level (`Levels.needs`) is not a level: the job waits until the others catch up.
        reached, base, before = np.minimum(step.demand.need(jobs, best.level), tops), best.level, tops
        tops = np.minimum(tops, np.maximum(reached, step.free_until(best.level, best.prices)))
        if best.level < step.alone and np.array_equal(tops, before) and (reached < tops * (1 - STOPPED)).any():
            raise SolverError(f"no job can rise above level {best.level:.9g}, and the prices do not show which jobs stay there")


def first_stop_of(jobs: JobClasses, shares: Shares, name: str) -> Levels:
    """Return the first level as a demand that ends when one job stops (`Filled.first_stop`)."""
    units = jobs.equal_share / jobs.num_gpus
    demand = _FirstStop(name, shares.rise(jobs.fastest / units), np.zeros(len(jobs)), units, jobs.fastest, 0.0)
    return Levels(demand, jobs, given=0.0)


@dataclass(frozen=True)
class _Step:
    """One level as a demand: the throughputs reached before, and the rise above them."""

    name: str
    rise: Rise
    reached: Floats
    units: Floats
    tops: Floats
    base: float
    direction: Literal["max"] = "max"

    def need(self, jobs: JobClasses, level: float) -> Floats:  # noqa: ARG002
        """Return (G,) steps/s."""
        needs: Floats = self.reached + self.units * self.rise.services(max(0.0, level - self.base))
        return needs

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:  # noqa: ARG002
        """Return (G,) the level up to which the needs of each job are met, the highest one for jobs that cannot rise."""
        services = np.maximum(0.0, (throughputs - self.reached) / self.units)
        levels = self.rise.levels(services)
        return self.base + np.where(throughputs >= self.tops * (1 - STOPPED), self.rise.most, levels)


class _FirstStop(_Step):
    """The first level, ending when the first job stops."""

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:  # noqa: ARG002
        """Return (G,) the level up to which the needs of each job are met, none beyond its fastest throughput."""
        below = np.nextafter((self.tops - self.reached) / self.units, 0.0)
        return self.base + self.rise.levels(np.clip((throughputs - self.reached) / self.units, 0.0, below))
