"""Decisions of the published code that differ from ours, so that the differences can be measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.scheduling import choose_by_priority
from gavel_py.scheduling.mechanism.demand import RoundDemand

__all__ = ["InteriorFairness", "RandomTypeFifo", "ShuffledPriority", "all_on_v100"]

SLACK = 1e-6
"""Relative violation of the limits that the solver may leave."""


@cache
def _drawn(job_id: str, types: int) -> NDArray[np.float64]:
    return np.random.default_rng(int(job_id)).permutation(np.arange(1.0, types + 1))


@dataclass(frozen=True, kw_only=True)
class RandomTypeFifo(gp.OrderedPolicy):
    """First in, first out, each job on a random type with free GPUs, where it stays: the intention of the published FIFO."""

    preemptive: bool = gp.option(False, "running jobs keep their accelerator type")
    backfill: bool = gp.option(False, "allow later jobs to overtake one that does not fit")

    reads = ("arrival_seconds",)

    def sort_key(self, jobs: JobClasses) -> NDArray[np.float64]:
        arrivals: NDArray[np.float64] = jobs.arrival_seconds
        return arrivals

    def view(self, jobs: JobClasses) -> JobClasses:
        """Each job has its own random order of types, seeded by its id."""
        return jobs.with_throughputs(np.array([_drawn(jobs.example(row), len(jobs.capacities)) for row in range(len(jobs))]))


@dataclass(frozen=True, kw_only=True)
class InteriorFairness(gp.FormulaPolicy):
    """Max-min fairness as in the published code: the optimum of max θ, θ <= s_i·thr_i / P_i, that an interior-point method finds.

    There is no second objective. If all jobs fit, one of them determines the level, and the others get the centre of the optimal
    face. Clarabel replaces ECOS, which the published code calls.
    """

    def fractions(self, jobs: JobClasses) -> NDArray[np.float64]:
        import cvxpy as cp

        times = cp.Variable(jobs.throughputs.shape, nonneg=True)
        level = cp.Variable()
        gains = jobs.throughputs * jobs.runnable * (jobs.num_gpus / jobs.equal_share)[:, None]
        rules = [cp.sum(times, axis=1) <= 1, (jobs.counts * jobs.num_gpus) @ times <= jobs.capacities]
        cp.Problem(cp.Maximize(level), [*rules, cp.sum(cp.multiply(gains, times), axis=1) >= level]).solve(solver=cp.CLARABEL)
        fractions: NDArray[np.float64] = np.clip(times.value, 0.0, 1.0) * (1.0 - SLACK)
        return fractions


class ShuffledPriority:
    """The published mechanism of agnostic policies: types are assigned in turn, in a random order for each round."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)

    def __call__(self, demand: RoundDemand) -> NDArray[np.int64]:
        """Return the (N,) column on which each job runs, -1 for none."""
        return choose_by_priority(demand, type_order=self._chance.permutation(len(demand.capacities)).tolist())


def all_on_v100(demand: RoundDemand) -> NDArray[np.int64]:
    """FIFO of the published code in effect: each job gets all of its time on V100, column 0, whether or not GPUs are free.

    `FIFOPolicy` draws the index of a type, but then assigns the job to the type at which a loop variable was left, the last
    one by name. In rounds, all jobs take turns on V100, those with the least time there first; P100 and K80 are idle.
    """
    fractions = np.zeros_like(demand.fractions)
    fractions[:, 0] = demand.throughputs[:, 0] > 0
    return choose_by_priority(replace(demand, fractions=fractions, backfill=False))
