"""What the published code decides where this product decides otherwise, so that the difference can be measured."""

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
"""What the solver leaves beyond the limits is less than this part."""


@cache
def _drawn(job_id: str, types: int) -> NDArray[np.float64]:
    return np.random.default_rng(int(job_id)).permutation(types) + 1.0


@dataclass(frozen=True, kw_only=True)
class RandomTypeFifo(gp.OrderedPolicy):
    """First in, first out, each job on a type drawn among those with room, where it stays: what the published FIFO is to do."""

    preemptive: bool = gp.option(False, "jobs that run keep their accelerator type")
    backfill: bool = gp.option(False, "let later jobs pass one that does not fit")

    reads = ("arrival_seconds",)

    def sort_key(self, jobs: JobClasses) -> NDArray[np.float64]:
        arrivals: NDArray[np.float64] = jobs.arrival_seconds
        return arrivals

    def view(self, jobs: JobClasses) -> JobClasses:
        """Each job sees the types in an order of its own, drawn by its id."""
        return jobs.with_throughputs(np.array([_drawn(jobs.example(row), len(jobs.capacities)) for row in range(len(jobs))]))


@dataclass(frozen=True, kw_only=True)
class InteriorFairness(gp.FormulaPolicy):
    """Max-min fairness as the published code solves it: that optimum of max θ, θ <= s_i·thr_i / P_i, which an interior point finds.

    There is no second objective. When all jobs fit, one of them sets the level, and the others have what the middle of all optima
    leaves them. Clarabel stands for ECOS, which the published code calls.
    """

    def fractions(self, jobs: JobClasses) -> NDArray[np.float64]:
        import cvxpy as cp

        times = cp.Variable(jobs.throughputs.shape, nonneg=True)
        level = cp.Variable()
        gains = jobs.throughputs * jobs.runnable * (jobs.num_gpus / jobs.equal_share)[:, None]
        rules = [cp.sum(times, axis=1) <= 1, (jobs.counts * jobs.num_gpus) @ times <= jobs.capacities]
        cp.Problem(cp.Maximize(level), [*rules, cp.sum(cp.multiply(gains, times), axis=1) >= level]).solve(solver=cp.CLARABEL)
        return np.clip(times.value, 0.0, 1.0) * (1.0 - SLACK)


class ShuffledPriority:
    """The published rule for rounds of agnostic policies: types are given away in turn, in an order drawn for each round."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)

    def __call__(self, demand: RoundDemand) -> NDArray[np.int64]:
        """Return the (N,) column on which each job runs, -1 for none."""
        return choose_by_priority(demand, type_order=self._chance.permutation(len(demand.capacities)).tolist())


def all_on_v100(demand: RoundDemand) -> NDArray[np.int64]:
    """What becomes of FIFO in the published code: each job is given all of its time on V100, column 0, with room or without.

    `FIFOPolicy` draws the index of a type at random, and then books the job on the type at which a loop variable was left, the last
    one by name. Rounds let all jobs take turns on V100, those first that had the least time there; P100 and K80 are idle.
    """
    fractions = np.zeros_like(demand.fractions)
    fractions[:, 0] = demand.throughputs[:, 0] > 0
    return choose_by_priority(replace(demand, fractions=fractions, backfill=False))
