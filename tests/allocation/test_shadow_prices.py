"""Shadow prices are one-sided derivatives: δ more GPUs gain at most price·δ, and for small δ just that."""

from __future__ import annotations

import dataclasses
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


def test_gpus_have_no_price_if_types_differ_in_the_last_digit_of_their_speed() -> None:
    """Two jobs run at full speed on 4 GPUs of either type, but .5 + .2 + .2 is less than .2 + .2 + .5, with 7 GPUs."""
    types = [[1.0] * 2] * 2
    faster = {"count_kinds": [0, 0], "gpu_counts": [1, 4], "count_throughputs": [[[0.2, 0.2 + 0.2 + 0.5], [0.5, 0.5 + 0.2 + 0.2]]]}
    problem = gp.AllocationProblem.from_arrays(types, [7, 5], steps_remaining=[10.0, 10.0], **faster)
    allocation = gp.solve(problem, "min_makespan")
    assert allocation.objective_value == pytest.approx(10 / 0.9)
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == [0, 0]


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


def partners(steps: list[float]) -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays(
        [[0.37]] * len(steps), [1], pair_kinds=[0] * len(steps), pair_throughputs=[[[0.333]]], steps_remaining=steps
    )


def test_a_price_that_rows_on_partners_may_lower_is_stated_as_at_most() -> None:
    """With more GPUs, the longer job would have more time with the other than this has with it, which a missing row forbids."""
    problem = partners([100, 400])
    allocation = gp.solve(problem, "min_makespan")
    assert allocation.objective_value is not None
    assert allocation.shadow_prices is not None
    gain = (allocation.objective_value - with_more(problem, gp.resolve_policy("min_makespan"), 0, 1e-3)) / 1e-3
    assert allocation.shadow_prices[0] > 1.2 * gain
    assert allocation.shadow_prices_at_most
    assert allocation.to_dict()["shadow_prices_at_most"] is True
    assert gp.Allocation.from_dict(allocation.to_dict()).shadow_prices_at_most
    with pytest.raises(gp.ProofError, match="shadow prices"):
        dataclasses.replace(allocation, shadow_prices_at_most=False).verify()


def test_prices_of_equal_partners_are_exact() -> None:
    assert not gp.solve(partners([100, 100, 400, 400]), "min_makespan").shadow_prices_at_most
    assert not gp.solve(gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1]), "max_min_fairness").shadow_prices_at_most


@pytest.mark.deep
@pytest.mark.parametrize("name", [*POLICIES[:3], "max_progress_rate"])
def test_prices_with_partners_are_exact_or_stated_as_at_most(name: str) -> None:
    """5,000 problems, a quarter of them for each policy."""
    sign, compared = -1 if name == "min_makespan" else 1, 0
    for seed in range(1250):
        chance = np.random.default_rng([seed, 44])
        problem = distinct_partners(chance)
        allocation = gp.solve(problem, name)
        assert allocation.objective_value is not None
        assert allocation.shadow_prices is not None
        value, column = allocation.objective_value, int(chance.integers(0, len(problem.capacities)))
        price, policy = float(allocation.shadow_prices[column]), gp.resolve_policy(name)
        gains = [sign * (with_more(problem, policy, column, more) - value) / more for more in (1e-3, 1e-5)]
        rounding = 1e-3 * price + 1e-4 * abs(value)
        assert price >= gains[0] - rounding, (name, seed)
        if not allocation.shadow_prices_at_most:
            compared += 1
            assert price <= max(gains) + rounding, (name, seed)
    assert compared > 400


def distinct_partners(chance: np.random.Generator) -> gp.AllocationProblem:
    groups, jobs, types = chance.integers(1, 3), chance.integers(2, 5), chance.integers(1, 3)
    alone = np.round(chance.lognormal(0, 0.5, (groups, types)), 2)
    kinds = chance.integers(0, groups, jobs)
    return gp.AllocationProblem.from_arrays(
        alone[kinds],
        chance.integers(1, 3, types),
        pair_kinds=kinds,
        pair_throughputs=np.round(chance.uniform(0.55, 0.95, (groups, groups, types)), 2) * alone[:, None, :],
        steps_remaining=chance.choice([100.0, 200.0, 400.0], jobs),
    )


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
