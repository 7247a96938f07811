"""Shadow prices are one-sided derivatives: δ more GPUs gain at most price·δ, and for small δ just that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import crowds

POLICIES = ["max_total_throughput", "max_min_fairness", "min_makespan", "finish_time_fairness"]


def with_more(problem: gp.AllocationProblem, policy: gp.Policy, column: int, more: float) -> float:
    """The optimum with more GPUs of one type, normalisers frozen."""
    capacities = problem.capacities.copy()
    capacities[column] += more
    value = gp.solve(problem.with_capacities(capacities), policy).objective_value
    assert value is not None
    return value


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(50, costly=True))
@given(problem=crowds(max_jobs=10, max_types=4), data=st.data())
def test_gains_are_at_most_the_price_and_tend_to_it(name: str, problem: gp.AllocationProblem, data: st.DataObject) -> None:
    able = np.flatnonzero(problem.runnable.any(axis=1))
    assume(able.size > 0)
    problem, policy = problem.select(able), gp.resolve_policy(name)
    allocation = gp.solve(problem, policy)
    value, prices = allocation.objective_value, allocation.shadow_prices
    assert value is not None
    assert prices is not None
    column = data.draw(st.sampled_from(np.flatnonzero(problem.capacities > 0).tolist()))
    sign = -1 if name in ("min_makespan", "finish_time_fairness") else 1
    gains = {more: sign * (with_more(problem, policy, column, more) - value) for more in (1e-3, 0.1, 1.0, 10.0)}
    for more, gain in gains.items():
        assert gain <= prices[column] * more * (1 + 1e-5) + 1e-9 * abs(value)
    # The value may bend within a millionth of a GPU, and the smallest steps drown in rounding: one of them is right.
    tiny = [sign * (with_more(problem, policy, column, more) - value) / more for more in (1e-6, 1e-7, 1e-8)]
    steepness = [gains[1e-3] / 1e-3, *tiny]
    assert any(each == pytest.approx(prices[column], rel=1e-3, abs=1e-6 * abs(value)) for each in steepness)


def test_at_a_kink_the_price_is_that_of_more_and_not_of_fewer() -> None:
    """Two jobs on two GPUs: one GPU fewer costs a job all its time, one more helps nobody."""
    allocation = gp.solve(gp.AllocationProblem.from_arrays([[1.0], [1.0]], [2]), "max_total_throughput")
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == [0]
    allocation = gp.solve(gp.AllocationProblem.from_arrays([[1.0], [1.0]], [2]), "max_min_fairness")
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == [0]


def test_a_job_of_another_scale_does_not_blur_the_price() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[1.0], [1.0]], [1], steps_remaining=[4, 1e5], elapsed_seconds=[1e7, 10], isolated_seconds=[1e7, 10]
    )
    allocation = gp.solve(problem, "finish_time_fairness")
    policy = gp.resolve_policy("finish_time_fairness")
    assert allocation.objective_value is not None
    assert allocation.shadow_prices is not None
    gain = allocation.objective_value - with_more(problem, policy, 0, 1e-3)
    assert gain / 1e-3 == pytest.approx(allocation.shadow_prices[0], rel=0.01)
