"""Shadow prices are one-sided derivatives: δ more GPUs gain at most price·δ, and for small δ just that."""

from __future__ import annotations

from collections.abc import Callable

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
    value = solved_with_more(problem, policy, column, more).objective_value
    assert value is not None
    return value


def solved_with_more(problem: gp.AllocationProblem, policy: gp.Policy, column: int, more: float) -> gp.Allocation:
    capacities = problem.capacities.copy()
    capacities[column] += more
    return gp.solve(problem.with_capacities(capacities), policy)


def needed_rows(allocation: gp.Allocation) -> set[str]:
    """The rows of the program, of which some are added only when an answer breaks them."""
    assert allocation.evidence is not None
    return {row.name for row in allocation.evidence.rules.rows}


def check(problem: gp.AllocationProblem, name: str, column: int) -> None:
    policy = gp.resolve_policy(name)
    allocation = gp.solve(problem, policy)
    value, prices = allocation.objective_value, allocation.shadow_prices
    assert value is not None
    assert prices is not None
    sign = -1 if name in ("min_makespan", "finish_time_fairness") else 1
    gains = {more: sign * (with_more(problem, policy, column, more) - value) for more in (1e-3, 0.1, 1.0, 10.0)}
    for more, gain in gains.items():
        assert gain <= prices[column] * more * (1 + 1e-5) + 1e-9 * abs(value)
    if needed_rows(solved_with_more(problem, policy, column, 1e-3)) != needed_rows(allocation):
        return  # more GPUs gain less than at the same rows
    # The value may bend within a millionth of a GPU, and the smallest steps drown in rounding: one of them is right.
    tiny = [sign * (with_more(problem, policy, column, more) - value) / more for more in (1e-6, 1e-7, 1e-8)]
    steepness = [gains[1e-3] / 1e-3, *tiny]
    assert any(each == pytest.approx(prices[column], rel=1e-3, abs=1e-6 * abs(value)) for each in steepness)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(50, costly=True))
@given(problem=crowds(max_jobs=10, max_types=4), data=st.data())
def test_gains_are_at_most_the_price_and_tend_to_it(name: str, problem: gp.AllocationProblem, data: st.DataObject) -> None:
    able = np.flatnonzero(problem.runnable.any(axis=1))
    assume(able.size > 0)
    check(problem.select(able), name, data.draw(st.sampled_from(np.flatnonzero(problem.capacities > 0).tolist())))


def elastic(chance: np.random.Generator) -> gp.AllocationProblem:
    jobs, types, sizes = chance.integers(1, 6), chance.integers(1, 3), [1, 2, 4][: chance.integers(2, 4)]
    return gp.AllocationProblem.from_arrays(
        np.ones((jobs, types)),
        chance.integers(1, 9, types),
        count_kinds=chance.integers(0, 2, jobs),
        gpu_counts=sizes,
        count_throughputs=np.cumsum(chance.choice([0.2, 0.5, 1.0], (2, types, len(sizes))), axis=2),
        steps_remaining=chance.choice([10.0, 60.0], jobs),
    )


def sharing(chance: np.random.Generator) -> gp.AllocationProblem:
    jobs, types = chance.integers(2, 6), chance.integers(1, 3)
    alone = chance.choice([1.0, 2.0, 3.0], (2, types))
    kinds = chance.integers(0, 2, jobs)
    return gp.AllocationProblem.from_arrays(
        alone[kinds],
        chance.integers(1, 4, types),
        pair_kinds=kinds,
        pair_throughputs=alone[:, None, :] * chance.choice([0.5, 0.75, 1.0], (2, 2, types)),
        steps_remaining=chance.choice([10.0, 60.0], jobs),
    )


@pytest.mark.parametrize("draw", [elastic, sharing])
@pytest.mark.parametrize("name", ["max_total_throughput", "max_min_fairness", "min_makespan"])
@settings(max_examples=examples(40, costly=True))
@given(seed=st.integers(0, 2**32 - 1))
def test_a_type_with_several_columns_has_one_price(name: str, draw: Callable[..., gp.AllocationProblem], seed: int) -> None:
    """One more GPU of a type is one more for all numbers of GPUs, or partners, of its jobs."""
    problem = draw(np.random.default_rng(seed))
    check(problem, name, seed % len(problem.capacities))


def test_the_price_of_a_gpu_for_jobs_that_share() -> None:
    """By hand: on c GPUs, three jobs that lose nothing by sharing run 2 c / 3 of the time each."""
    problem = gp.AllocationProblem.from_arrays(np.full((3, 1), 4.0), [1], pair_kinds=[0] * 3, pair_throughputs=[[[4.0]]])
    allocation = gp.solve(problem, "max_min_fairness")
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == pytest.approx([allocation.objective_value])


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
