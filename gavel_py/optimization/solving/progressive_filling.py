"""Filling: all jobs rise together until some cannot, which stay where they are while the others rise on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.optimization.solving.level_search import BestLevel, find_best_level
from gavel_py.optimization.solving.levels import Levels
from gavel_py.optimization.solving.time_limit import TimeLimitReached
from gavel_py.problem.arrays import Floats

STOPPED = 1e-9
"""A job that is short of where it stops by no more than this part is there."""


class Rise(Protocol):
    """How the service of jobs rises with the level, as long as none is stopped but by its own room. Service: s_i · Δv_i."""

    @property
    def most(self) -> float:
        """The level at which nobody has room left."""

    def services(self, level: float) -> Floats:
        """Return (G,) the service of a job of each class at this level."""

    def levels(self, services: Floats) -> Floats:
        """Return (G,) the highest level at which each job has no more than this service."""


class Shares(Protocol):
    """Who rises how fast."""

    def rise(self, rooms: Floats) -> Rise:
        """Return how jobs rise that have (G,) room left, in units of service; those without room take no part."""


@dataclass(frozen=True)
class Filled:
    """The answer: the levels and what was found at each of them, in turn; the last one's fractions are the allocation.

    first_stop: the first level as a demand that ends where one job stops, be it for want of GPUs or since it cannot run faster.
    """

    levels: tuple[Levels, ...]
    found: tuple[BestLevel, ...]
    first_stop: Levels


def fill(jobs: JobClasses, shares: Shares, solver: LinearSolver, name: str) -> Filled:
    """Raise all jobs level by level, each as fast as `shares` says, until none can rise any more.

    A level ends where all that jobs have reached costs all that there is, at some prices. Then a job can rise no further than where
    more throughput would cost it anything (`Levels.free_until`): there it stops, and the others rise on. Prices are the proof, and
    the next level has others, so that there are hardly more levels than there are types; no program with whole numbers is needed.
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
        # What rules promise a job beyond its level (`Levels.needs`) is no level: it waits there until the others have caught up.
        reached, base, before = np.minimum(step.demand.need(jobs, best.level), tops), best.level, tops
        tops = np.minimum(tops, np.maximum(reached, step.free_until(best.level, best.prices)))
        if best.level < step.alone and np.array_equal(tops, before) and (reached < tops * (1 - STOPPED)).any():
            raise SolverError(f"at level {best.level:.9g} nobody can rise, and prices do not tell who is to stay there")


def first_stop_of(jobs: JobClasses, shares: Shares, name: str) -> Levels:
    """Return the first level as a demand that ends where one job stops (`Filled.first_stop`)."""
    units = jobs.equal_share / jobs.num_gpus
    alone = _FirstStop(name, shares.rise(jobs.fastest / units), np.zeros(len(jobs)), units, jobs.fastest, 0.0)
    return Levels(alone, jobs, given=0.0)


@dataclass(frozen=True)
class _Step:
    """One level as a demand: what jobs have reached, and what they are given above it."""

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
        """Return (G,) the level up to which each job has what it needs; jobs that cannot rise have it at every level."""
        services = np.maximum(0.0, (throughputs - self.reached) / self.units)
        levels = self.rise.levels(services)
        return self.base + np.where(throughputs >= self.tops * (1 - STOPPED), self.rise.most, levels)


class _FirstStop(_Step):
    """The first level with an end where the first job stops, be it for want of GPUs or since it cannot run any faster."""

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:  # noqa: ARG002
        """Return (G,) the level up to which each job has what it needs, and none beyond its fastest throughput."""
        below = np.nextafter((self.tops - self.reached) / self.units, 0.0)
        return self.base + self.rise.levels(np.clip((throughputs - self.reached) / self.units, 0.0, below))
