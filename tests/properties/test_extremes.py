"""Degenerate and extreme problems: each has a proven answer, on the first route."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gavel_py as gp


def long_here(steps: float, seconds: float) -> dict[str, Any]:
    """Two jobs that have been in the system for a long time, all of it counted as isolated time."""
    return {"steps_remaining": [steps] * 2, "elapsed_seconds": [seconds] * 2, "isolated_seconds": [seconds] * 2}


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "one job on one type": ([[3.0]], [1], {}),
    "all throughputs equal": ([[1, 1, 1]] * 5, [1, 2, 3], {}),
    "throughputs over 12 orders": ([[1e-6, 1e6], [1e6, 1e-6], [1, 1]], [2, 3], {}),
    "throughputs that nearly tie": ([[1, 1 + 1e-12], [1 + 1e-9, 1], [1, 1 - 1e-15]], [1, 1], {}),
    "no GPUs of one type, ten million of another": ([[1, 2], [2, 1]], [0, 1e7], {}),
    "weights over 12 orders": ([[1, 2]] * 3, [1, 1], {"weights": [1e-6, 1, 1e6]}),
    "more GPUs than jobs": ([[1, 2]], [100, 100], {}),
    "one job bounds all": ([[1, 1]] * 3, [50, 50], {"weights": [1, 1, 100]}),
    "one step and 10^12": ([[1, 2]] * 3, [1, 1], {"steps_remaining": [1, 1e12, 1e6]}),
    "longer here than the fair finish time": ([[1, 2]] * 3, [1, 1], {"elapsed_seconds": [1e9, 0, 5]}),
    "one step to go after 10^9 s": ([[1e6, 2e6]] * 2, [1, 1], long_here(1, 1e9)),
    "one step to go after 10^15 s": ([[1e6, 2e6]] * 2, [1, 1], long_here(1, 1e15)),
    "a job that has finished": ([[1, 2]] * 3, [1, 1], {"steps_remaining": [0, 1, 2]}),
    "gangs that just fit": ([[1, 2]] * 4, [8, 4], {"num_gpus": [8, 4, 8, 1]}),
}


@pytest.mark.parametrize("policy", ["max_total_throughput", "max_min_fairness", "min_makespan", "finish_time_fairness"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_solved_and_proven(case: str, policy: str) -> None:
    throughputs, capacities, arrays = CASES[case]
    arrays = {"steps_remaining": [10.0] * len(throughputs)} | arrays
    allocation = gp.solve(gp.AllocationProblem.from_arrays(throughputs, capacities, **arrays), policy)
    proof = allocation.verify()
    assert proof.gap is not None
    assert proof.gap <= 1e-9
    assert proof.violation <= 1e-9
    assert allocation.route is not None
    assert allocation.route.failed == ()
    assert allocation.shadow_prices is not None
    assert np.isfinite(allocation.shadow_prices).all()


@pytest.mark.parametrize("policy", ["max_total_throughput", "max_min_fairness", "min_makespan", "finish_time_fairness"])
@pytest.mark.parametrize("seed", range(8))
def test_wild_numbers_are_solved_and_proven(seed: int, policy: str) -> None:
    chance = np.random.default_rng(seed)
    jobs, types, kinds = 30, int(chance.integers(1, 9)), 4
    table = np.where(chance.random((kinds, types)) < 0.2, 0, 10 ** chance.uniform(-6, 6, (kinds, types)))
    table[0, 0] = 1.0
    elapsed = 10 ** chance.uniform(0, 9, jobs)
    problem = gp.AllocationProblem.from_types(
        table,
        chance.integers(0, kinds, jobs),
        [8, *chance.choice([0, 1, 8, 10**4, 10**7], types - 1)],
        num_gpus=chance.choice([1, 2, 4, 8], kinds)[chance.integers(0, kinds, jobs)],
        weights=10 ** chance.uniform(-6, 6, jobs),
        steps_remaining=10 ** chance.uniform(0, 12, jobs),
        elapsed_seconds=elapsed,
        isolated_seconds=elapsed * chance.random(jobs),
    )
    proof = gp.solve(problem, policy).verify()
    assert proof.gap is not None
    assert proof.gap <= 1e-6
