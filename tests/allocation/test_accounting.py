"""Tenants' shares, cost and times of allocations: sums are those of the cluster, and known answers are met."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp

TREE = {"research": {"weight": 2, "tenants": {"vision": {"weight": 3}, "language": {}}}, "product": {}}
POLICIES = ["max_min_fairness", "fifo", "min_makespan", "isolated", "max_total_throughput"]


@st.composite
def problems(draw: st.DrawFn) -> gp.AllocationProblem:
    jobs, types = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    numbers = np.random.default_rng(draw(st.integers(0, 2**16)))
    tenants = draw(st.lists(st.sampled_from(["vision", "language", "product"]), min_size=jobs, max_size=jobs))
    return gp.AllocationProblem.from_arrays(
        numbers.integers(0, 5, (jobs, types)) + np.eye(1, types),
        numbers.integers(1, 5, types),
        tenants=tenants,
        num_gpus=numbers.integers(1, 4, jobs),
        total_steps=numbers.integers(10, 1000, jobs),
        arrival_seconds=numbers.integers(0, 9, jobs),
        prices_per_hour=numbers.integers(0, 9, types),
    )


def leaves(tenants: tuple[gp.TenantShare, ...]) -> list[gp.TenantShare]:
    parents = {each.parent for each in tenants}
    return [each for each in tenants if each.tenant not in parents]


@given(problems(), st.sampled_from(POLICIES), st.booleans())
def test_tenants_add_up_to_the_cluster(problem: gp.AllocationProblem, policy: str, flat: bool) -> None:
    allocation = gp.solve(problem, policy)
    tenants = allocation.tenants(None if flat else TREE)
    ends = leaves(tenants)
    if len(allocation.excluded) < problem.num_jobs:
        assert sum(each.share for each in ends) == pytest.approx(1)
    used = allocation.utilization * problem.capacities
    found = np.array([list(each.gpus.values()) for each in ends])
    np.testing.assert_allclose(found.sum(axis=0), used, atol=1e-9)
    np.testing.assert_allclose(found / problem.capacities, [list(each.gpu_shares.values()) for each in ends], atol=1e-12)
    assert sum(each.gpu_share for each in ends) == pytest.approx(used.sum() / problem.capacities.sum())
    cost = float(used @ problem.prices_per_hour)
    assert sum(each.cost_per_hour or 0.0 for each in ends) == pytest.approx(cost)
    assert allocation.forecast().total_cost_per_hour == pytest.approx(cost)
    work = problem.num_gpus @ allocation.normalized_throughputs
    assert sum(each.throughput_share or 0.0 for each in ends) == pytest.approx(1.0 if work > 0 else 0.0)
    assert sum(each.jobs for each in ends) == problem.num_jobs
    assert sum(each.gpus_wanted or 0.0 for each in ends) == problem.num_gpus.sum()
    for each in tenants:
        assert each.jobs == each.running + each.waiting
        names = {each.tenant} | {other.tenant for other in tenants if other.parent == each.tenant}
        own = [i for i in range(problem.num_jobs) if problem.tenants[i] in names and problem.job_ids[i] not in allocation.excluded]
        assert each.least_vs_fair_share == min(allocation.vs_fair_share[own].tolist(), default=None)
        below = [other for other in tenants if other.parent == each.tenant]
        if below:
            assert sum(other.share for other in below) == pytest.approx(each.share)
            assert sum(other.jobs for other in below) == each.jobs
        assert gp.TenantShare.from_dict(each.to_dict()) == each


@given(problems(), st.data())
def test_the_forecast_is_what_constant_speeds_give(problem: gp.AllocationProblem, data: st.DataObject) -> None:
    allocation = gp.solve(problem, data.draw(st.sampled_from(POLICIES)))
    found = allocation.forecast()
    for i, speed in enumerate(allocation.throughputs.tolist()):
        if speed == 0:
            assert math.isnan(found.end_seconds[i])
            assert math.isnan(found.start_seconds[i])
            continue
        assert found.end_seconds[i] * speed == pytest.approx(problem.steps_remaining[i])
        hours = found.end_seconds[i] / 3600
        gpus = problem.num_gpus[i] * allocation.time_fractions[i]
        assert found.cost_until_done[i] == pytest.approx(hours * (gpus @ problem.prices_per_hour))
    everyone = bool((allocation.throughputs > 0).all())
    assert (found.total_cost_until_done is None) == (not everyone)


def three_tenants(**more: Any) -> gp.AllocationProblem:
    tenants = ["vision", "vision", "language", "product"]
    return gp.AllocationProblem.from_arrays(
        [[1.0]] * 4, [12], accelerator_types=["v100"], tenants=tenants, num_gpus=[9] * 4, **more
    )


def test_shares_are_the_products_of_weights_among_tenants_that_have_jobs() -> None:
    allocation = gp.solve(three_tenants(), "hierarchical", tenants=TREE)
    found = {each.tenant: each for each in allocation.tenants()}
    assert list(found) == ["product", "research", "language", "vision"]
    assert {name: each.share for name, each in found.items()} == pytest.approx(
        {"product": 1 / 3, "research": 2 / 3, "language": 2 / 3 / 4, "vision": 2 / 3 * 3 / 4}
    )
    assert {name: each.throughput_share for name, each in found.items()} == pytest.approx(
        {name: each.share for name, each in found.items()}
    )
    assert found["vision"].gpus == pytest.approx({"v100": 6})
    fewer = gp.solve(three_tenants().select(np.array([0, 3])), "hierarchical", tenants=TREE)
    assert {each.tenant: each.share for each in fewer.tenants()} == pytest.approx(
        {"product": 1 / 3, "research": 2 / 3, "vision": 2 / 3}
    )
    flat = gp.solve(three_tenants(), "max_min_fairness").tenants()
    assert [(each.tenant, each.parent, each.weight, each.share) for each in flat] == [
        (name, None, 1.0, pytest.approx(1 / 3)) for name in ("language", "product", "vision")
    ]


def test_below_a_fifo_tenant_the_first_has_all() -> None:
    tree = {"policy": "fifo", "tenants": TREE}
    for arrivals, first in (([5, 3, 4, 9], "research"), ([5, 5, 5, 1], "product")):
        allocation = gp.solve(three_tenants(arrival_seconds=arrivals), "hierarchical", tenants=tree)
        shares = {each.tenant: each.share for each in allocation.tenants()}
        assert shares[first] == 1
        assert shares["vision"] == pytest.approx(0.75 if first == "research" else 0.0)


def test_prices_that_are_partly_unknown_give_no_partial_sums() -> None:
    speeds, tenants = [[2.0, 1.0], [1.0, 2.0]], ["a", "b"]
    for prices, cost in (([3, np.nan], [3.0, None]), ([np.nan, np.nan], [None, None]), ([3, 0], [3.0, 0.0])):
        problem = gp.AllocationProblem.from_arrays(
            speeds, [1, 1], tenants=tenants, prices_per_hour=prices, total_steps=[7200, 7200]
        )
        allocation = gp.solve(problem, "max_total_throughput")
        assert [each.cost_per_hour for each in allocation.tenants()] == cost
        assert allocation.forecast().total_cost_per_hour == (None if None in cost else sum(each or 0.0 for each in cost))


def test_jobs_without_tenants_jobs_that_are_done_and_nothing_at_all() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1], total_steps=[10, 10], steps_remaining=[0, 10])
    allocation = gp.solve(problem, "max_min_fairness")
    assert allocation.tenants() == ()
    assert allocation.forecast().end_seconds.tolist() == [0.0, 10.0]
    empty = gp.solve(gp.AllocationProblem.from_arrays(np.zeros((0, 1)), [1], tenants=[]), "max_min_fairness")
    assert (empty.tenants(), empty.forecast().total_cost_per_hour) == ((), 0.0)
    left_out = gp.solve(gp.AllocationProblem.from_arrays([[0.0]], [1], tenants=["a"], prices_per_hour=[1]), "max_min_fairness")
    (tenant,) = left_out.tenants()
    assert (tenant.share, tenant.waiting, tenant.cost_per_hour) == (0.0, 1, 0.0)


def test_a_tenant_outside_the_tree_and_an_allocation_from_a_file_are_errors() -> None:
    allocation = gp.solve(three_tenants(), "max_min_fairness")
    with pytest.raises(gp.InputError, match="'product' is not in the tenant tree"):
        allocation.tenants({"vision": {}, "language": {}, "products": {}})
    with pytest.raises(gp.InputError, match="'vision' has tenants below it"):
        allocation.tenants({"vision": {"tenants": {"a": {}}}, "language": {}, "product": {}})
    again = gp.Allocation.from_json(allocation.to_json())
    for call in (again.tenants, again.forecast):
        with pytest.raises(gp.InputError, match="read from a file"):
            call()
    with pytest.raises(gp.InputError, match="not a tenant share written by gavel"):
        gp.TenantShare.from_dict({"tenant": "a", "colour": "red"})


def test_an_excluded_job_may_have_any_tenant() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [0.0]], [1], tenants=["vision", "nobody"])
    found = gp.solve(problem, "hierarchical", tenants={"vision": {}}).tenants()
    assert [(each.tenant, each.share, each.waiting) for each in found] == [("nobody", 0.0, 1), ("vision", 1.0, 0)]


def test_partners_account_for_half_of_shared_gpus() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[1.0], [1.0]], [1], tenants=["a", "b"], pair_kinds=[0, 0], pair_throughputs=[[[0.9]]], prices_per_hour=[4]
    )
    allocation = gp.solve(problem, "max_total_throughput")
    assert allocation.gpus.tolist() == [[pytest.approx(0.5)]] * 2
    assert [each.cost_per_hour for each in allocation.tenants()] == [pytest.approx(2)] * 2


def test_the_metrics_of_an_allocation_have_names_and_known_values() -> None:
    speeds, capacities, prices = [[4.0, 1.0], [4.0, 3.0], [0.0, 0.0]], [1, 1], [3.0, 1.0]
    problem = gp.AllocationProblem.from_arrays(speeds, capacities, accelerator_types=["v100", "k80"], prices_per_hour=prices)
    allocation = gp.solve(problem, "max_total_throughput", normalized=False)
    found = allocation.metrics()
    assert found.keys() <= gp.METRICS.keys()
    assert (found["objective"], found["utilization"], found["excluded"], found["cost_per_hour"]) == (7.0, 1.0, 1, 4.0)
    alone = [2.5, 3.5]  # always on the mix of both types
    assert found["total_normalized_throughput"] == pytest.approx(4 / alone[0] + 3 / alone[1])
    assert found["least_normalized_throughput"] == pytest.approx(3 / alone[1])
    nothing = gp.solve(gp.AllocationProblem.from_arrays([[0.0]], [1]), "fifo").metrics()
    assert (nothing["total_normalized_throughput"], nothing["least_normalized_throughput"]) == (0.0, None)
    assert "cost_per_hour" not in nothing


@pytest.mark.parametrize("result", [gp.Allocation, gp.Forecast, gp.TenantShare])
def test_declared_columns_are_attributes(result: type[gp.Allocation | gp.Forecast | gp.TenantShare]) -> None:
    assert result.COLUMNS.keys() <= {field.name for field in dataclasses.fields(result)}
    assert all(isinstance(each, gp.Column) for each in result.COLUMNS.values())
