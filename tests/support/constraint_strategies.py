"""Random problems with tenants, prices, deadlines and previous allocations, and random constraints on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import gavel_py as gp

__all__ = ["constraints", "tenanted"]

TENANTS = ("red", "blue", "green")


@st.composite
def tenanted(draw: st.DrawFn, max_jobs: int = 8, max_types: int = 3, *, distinct: bool = False) -> gp.AllocationProblem:
    """Draw a problem in which many jobs are equal, or with `distinct` none."""
    n, k, kinds = draw(st.integers(1, max_jobs)), draw(st.integers(1, max_types)), draw(st.integers(1, 3))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = chance.choice([0.0, 1.0, 2.0, 4.0, 0.37, 9.1], (kinds, k), p=[0.15, 0.2, 0.2, 0.2, 0.15, 0.1])
    speeds = table[chance.integers(0, kinds, n)] * (1 + 0.01 * np.arange(n)[:, None] * distinct)
    capacities = chance.choice([0, 1, 2, 3, 5, 8], k)
    gangs = chance.choice(draw(st.sampled_from([[1], [1, 2], [1, 2, 4]])), n)
    runs = (speeds > 0) & (gangs[:, None] <= capacities)
    past = chance.random((n, k)) * chance.choice([0.0, 1.0], (n, 1))
    return gp.AllocationProblem.from_arrays(
        speeds,
        capacities,
        job_ids=[f"job-{i}" for i in chance.permutation(n)],
        tenants=chance.choice(TENANTS, n).tolist(),
        num_gpus=gangs,
        weights=chance.choice([1.0, 2.0, 0.3], n),
        steps_remaining=chance.choice([10.0, 60.0, 1000.0], n),
        deadlines_seconds=np.where(chance.random(n) < 0.5, np.nan, chance.choice([20.0, 100.0, 3000.0], n)),
        prices_per_hour=chance.choice([0.5, 1.0, 3.0, 0.0], k),
        running_on=[int(chance.choice(np.flatnonzero(row))) if row.any() and chance.random() < 0.25 else -1 for row in runs],
        previous_fractions=past / np.maximum(1.0, past.sum(axis=1, keepdims=True)),
    )


@st.composite
def constraints(draw: st.DrawFn, problem: gp.AllocationProblem, *, soft: bool = False, most: int = 4) -> list[gp.Constraint]:
    """Draw a few constraints on a problem, which may conflict; `soft`: some are soft, and sometimes a change has a cost."""
    found = [draw(st.sampled_from(KINDS))(draw, problem) for _ in range(draw(st.integers(0, most)))]
    if soft:
        price = st.sampled_from([0.01, 0.3, 1.0, 20.0])
        found = [each if each.never_soft or draw(st.booleans()) else each.soft(draw(price)) for each in found]
        found += [gp.SwitchCost(draw(st.sampled_from([0.01, 0.2, 2.0])))] * draw(st.integers(0, 1))
    return found


def _job(draw: st.DrawFn, problem: gp.AllocationProblem) -> str:
    return draw(st.sampled_from(list(problem.job_ids)))


def _tenant(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(TENANTS))


def _min_throughput(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:
    job = _job(draw, problem)
    fastest = float(problem.fastest[list(problem.job_ids).index(job)]) or 1.0
    return gp.MinThroughput(job, fastest * draw(st.sampled_from([0.01, 0.3, 0.5, 0.9, 1.0, 1.2])))


def _deadline(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:
    if np.isnan(problem.deadlines_seconds).all() or draw(st.booleans()):
        return gp.Deadline(_job(draw, problem), draw(st.sampled_from([-60.0, 1.0, 10.0, 100.0, 1e4, 1e6])))
    return gp.Deadline()


def _budget(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:
    whole = float(problem.prices_per_hour @ problem.capacities)
    return gp.CostBudget(whole * draw(st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0, 2.0])))


def _max_gpus(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:
    whom: dict[str, str] = draw(st.sampled_from([{}, {"tenant": _tenant(draw)}, {"job": _job(draw, problem)}]))
    where = draw(st.sampled_from([None, *problem.accelerator_types]))
    return gp.MaxGpus(draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.5])), accelerator=where, **whom)


def _quota(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:  # noqa: ARG001
    guaranteed, borrowable = draw(st.sampled_from([(True, True), (True, False), (False, False)]))
    size: dict[str, float] = draw(st.sampled_from([{"share": 0.1}, {"share": 0.4}, {"gpus": 1.0}, {"gpus": 3.0}, {"gpus": 0.0}]))
    return gp.Quota(_tenant(draw), guaranteed=guaranteed, borrowable=borrowable, **size)


def _reserve(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:
    columns = np.flatnonzero(problem.capacities > 0).tolist()
    if not columns:
        return gp.MaxGpus(1.0)
    j = draw(st.sampled_from(columns))
    meant: list[dict[str, Any]] = [{"reserved_for": _tenant(draw)}, {"min_gang": 2}, {"reserved_for": [_job(draw, problem)]}]
    part = draw(st.sampled_from([0.25, 0.5, 1.0]))
    return gp.Reserve(problem.accelerator_types[j], float(problem.capacities[j]) * part, **draw(st.sampled_from(meant)))


def _pin(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:
    return gp.Pin(_job(draw, problem), draw(st.lists(st.sampled_from(problem.accelerator_types), min_size=1, unique=True)))


def _forbid(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:
    return gp.Forbid(_job(draw, problem), draw(st.lists(st.sampled_from(problem.accelerator_types), unique=True)))


def _keep_running(draw: st.DrawFn, problem: gp.AllocationProblem) -> gp.Constraint:
    return gp.KeepRunning() if draw(st.booleans()) else gp.KeepRunning(_job(draw, problem))


KINDS: list[Callable[[st.DrawFn, gp.AllocationProblem], gp.Constraint]] = [
    *(_min_throughput, _deadline, _budget, _max_gpus, _quota, _reserve, _pin, _forbid, _keep_running)
]
