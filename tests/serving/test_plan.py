"""Plans for services: known answers, brute force over whole replicas, an independent check of every plan, and bad input."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from tests.serving.known_answers import case, cluster_of, cut_plans, equal_shares, grids, melange, rate
from tests.support.examples import examples
from tests.support.shared_data import needs_shared_data

Floats = np.ndarray


# ------------------------------------------------------------------------------------------------------------------- known answers


@needs_shared_data
def test_four_services_on_88_gpus() -> None:
    services, cluster, profile = case()
    plan = gp.plan_serving(services, cluster, profile)
    plan.verify()
    assert plan.value >= 0.896
    assert plan.status == "optimal"
    assert plan.bound <= plan.value * (1 + 1e-4)
    relaxed = [relaxed_fraction(plan)]
    assert relaxed == pytest.approx([0.9182], abs=1e-4)


def relaxed_fraction(plan: gp.ServingPlan) -> float:
    """The bound of the relaxation, from the dual values of the plan."""
    from gavel_py.serving.replicas import bound_of

    assert plan._evidence is not None
    return bound_of(plan._evidence.market.market, plan._evidence.multipliers)


@needs_shared_data
def test_equal_shares_and_cut_plans_serve_less() -> None:
    assert equal_shares() == pytest.approx(0.607, abs=5e-4)
    assert cut_plans() == pytest.approx(0.348, abs=5e-4)


@needs_shared_data
def test_melange_example_costs_less_with_shares_of_requests() -> None:
    assert melange() == pytest.approx((4.68, 6.70))


@needs_shared_data
def test_shares_are_never_dearer_than_whole_sizes_on_published_grids() -> None:
    for shares, slices in grids():
        assert shares <= slices * (1 + 2e-4)


# --------------------------------------------------------------------------------------------------------------------- brute force


@st.composite
def small(draw: st.DrawFn) -> tuple[list[gp.Service], dict[str, int], list[gp.ServingRate]]:
    """Up to three services, two types, replicas of 1 or 2 GPUs, two sizes of requests."""
    counts = {"a": draw(st.integers(1, 4)), "b": draw(st.integers(0, 4))}
    buckets = [(1, 1), (2, 2)]
    services, rows = [], []
    for number in range(draw(st.integers(1, 3))):
        shares = {bucket: draw(st.integers(1, 3)) for bucket in buckets}
        weight = draw(st.sampled_from([1.0, 2.5]))
        fields = {"rate": draw(st.sampled_from([0.7, 3.0, 9.0])), "mix": shares, "weight": weight}
        services.append(gp.Service(f"s{number}", model=f"m{number}", **fields))
        for name, gpus, bucket in itertools.product(counts, (1, 2), buckets):
            each = draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]))
            rows.append(rate(f"m{number}", name, gpus, each if (name, gpus) != ("a", 1) else max(each, 0.5), bucket))
    return services, counts, rows


def best_by_enumeration(services: list[gp.Service], counts: dict[str, int], rows: list[gp.ServingRate], objective: str) -> float:
    """The best value over all whole replicas within the GPUs, each judged by a program of its routing."""
    choices = []
    for service in services:
        columns = sorted({(row.accelerator, row.num_gpus) for row in rows if row.model == service.model})
        table = {(row.accelerator, row.num_gpus, row.bucket): row.requests_per_second for row in rows if row.model == service.model}
        found: dict[tuple[int, ...], float] = {}
        for numbers in itertools.product(*(range(counts[name] // gpus + 1) for name, gpus in columns)):
            used = tuple(sum(n * g for n, (name, g) in zip(numbers, columns, strict=True) if name == each) for each in counts)
            if all(one <= count for one, count in zip(used, counts.values(), strict=True)):
                level = routed(service, [[float(table[*column, b] or 0) for b in service.mix] for column in columns], numbers)
                found[used] = max(found.get(used, 0.0), level)
        choices.append(found)
    values = []
    for plan in itertools.product(*(each.items() for each in choices)):
        used = np.sum([each for each, _ in plan], axis=0)
        if (used <= list(counts.values())).all():
            levels = [level for _, level in plan]
            total = sum(s.weight * (s.rate or 0) * level for s, level in zip(services, levels, strict=True))
            values.append(min(levels) if objective == "max_min" else total)
    return max(values)


def routed(service: gp.Service, rates: list[list[float]], numbers: tuple[int, ...]) -> float:
    """The largest fraction of all sizes that these replicas serve, as a program of its own."""
    demand = [float(service.rate or 0) * share for share in service.mix.values()]
    table = np.array(rates)
    columns, sizes = table.shape
    served = np.hstack([np.kron(np.ones(columns), np.eye(sizes)), -np.ones((sizes, 1))])
    load = np.divide(np.array(demand), table, out=np.full_like(table, 1e9), where=table > 0)
    busy = np.zeros((columns, columns * sizes + 1))
    for k in range(columns):
        busy[k, k * sizes : (k + 1) * sizes] = load[k]
    costs = np.r_[np.zeros(columns * sizes), -1.0]
    bounds = [(0, 1)] * (columns * sizes + 1)
    found = linprog(costs, A_ub=busy, b_ub=numbers, A_eq=served, b_eq=np.zeros(sizes), bounds=bounds)
    return float(-found.fun)


@settings(max_examples=examples(40, costly=True))
@given(small(), st.sampled_from(["max_min", "weighted_rate"]))
def test_small_plans_are_the_best_of_all(instance: Any, objective: Any) -> None:
    services, counts, rows = instance
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gp.GavelWarning)
        plan = gp.plan_serving(services, cluster_of(counts, per_node=4), gp.ServingProfile("p", rows), objective)
    plan.verify()
    best = best_by_enumeration(services, counts, rows, objective)
    assert plan.value == pytest.approx(best, rel=2e-4, abs=1e-6)
    assert plan.bound >= best - 1e-6


# ------------------------------------------------------------------------------------------------------------------- larger markets


def many(count: int, seed: int, gpus: int) -> tuple[list[gp.Service], gp.Cluster, gp.ServingProfile]:
    random = np.random.default_rng(seed)
    names, buckets = ["a", "b", "c"], [(128, 128), (1000, 500), (4000, 200)]
    rows, services = [], []
    for number in range(count):
        model, speed = f"m{number}", random.lognormal(0, 0.3, (3, 3)) * np.array([[1.0], [2.0], [4.0]])
        for k, name in enumerate(names):
            for size in (1, 2, 4):
                rows += [rate(model, name, size, size**0.95 * speed[k, b], bucket) for b, bucket in enumerate(buckets)]
        mix = dict(zip(buckets, random.dirichlet([1, 1, 1]).tolist(), strict=True))
        services.append(gp.Service(f"s{number}", model=model, rate=random.lognormal(2.5, 0.5), mix=mix, tenant=f"t{number % 2}"))
    return services, cluster_of(dict.fromkeys(names, gpus)), gp.ServingProfile("many", rows)


def test_many_services_get_a_plan_near_its_bound() -> None:
    services, cluster, profile = many(30, 0, 32)
    with pytest.warns(gp.GavelWarning, match="below the best one"):
        plan = gp.plan_serving(services, cluster, profile)
    plan.verify()
    assert plan.gap <= 0.12  # about 3 replicas per service: the bound knows that they are whole for each service, not for all
    assert plan.bound < relaxed_fraction(plan)
    assert min(plan.served.values()) == pytest.approx(plan.value)
    floor = 0.8 * plan.value
    rated = gp.plan_serving(services, cluster, profile, "weighted_rate", floors=dict.fromkeys(plan.served, floor))
    rated.verify()
    assert min(rated.served.values()) >= floor - 1e-6
    assert rated.gap <= 0.04


# -------------------------------------------------------------------------------------------------------------------- dual prices


def test_dual_prices_are_those_of_divided_replicas_and_whole_ones_may_gain_more() -> None:
    """Figures of docs/serving.md."""
    sizes = [{(128, 128): 0.4, (1000, 1000): 0.4, (2048, 128): 0.2}, {(128, 128): 1, (1000, 1000): 1}, {(2048, 128): 1}]
    services = [
        gp.Service("chat", model="LLaMA v3.1 8B", rate=150, mix=sizes[0]),
        gp.Service("assistant", model="LLaMA v3.1 70B", rate=12, weight=2, mix=sizes[1]),
        gp.Service("code", model="Mixtral 8x7B", rate=40, tenant="research", mix=sizes[2]),
    ]
    counts = {"h100": 4, "l40s": 8, "a100-80gb": 4}

    def plan(more: str = "") -> gp.ServingPlan:
        cluster = gp.Cluster.from_counts({name: count + (name == more) for name, count in counts.items()})
        return gp.plan_serving(services, cluster, gp.ServingProfile.builtin("trtllm"), quotas={"research": 4})

    now, with_more = plan(), {name: plan(name) for name in counts}
    assert [each.value for each in with_more.values()] == pytest.approx([0.708, 0.662, 0.659], abs=5e-4)
    assert [each.value - now.value for each in with_more.values()] == pytest.approx([0.098, 0.052, 0.049], abs=5e-4)
    prices = [now.prices[f"GPUs of {name}"] for name in counts]
    assert prices == pytest.approx([0.09273, 0.02467, 0.02304], abs=5e-6)
    for price, each in zip(prices, with_more.values(), strict=True):
        assert relaxed_fraction(each) <= relaxed_fraction(now) + price + 1e-9
        assert each.value > now.value + price
    assert "if replicas could be divided, one more would raise the least served fraction by at most 0.02467." in now.explain()


# ------------------------------------------------------------------------------------------------------------- limits and conflicts


@pytest.fixture
def two() -> tuple[list[gp.Service], gp.Cluster, gp.ServingProfile]:
    services = [gp.Service("x", model="m", rate=4, tenant="t"), gp.Service("y", model="m", rate=4)]
    rows = [rate("m", "a", 1, 1.0), rate("m", "b", 2, 3.0)]
    return services, cluster_of({"a": 4, "b": 4}, {"a": 1.0, "b": 4.0}), gp.ServingProfile("p", rows)


def test_quotas_and_budgets_hold(two: Any) -> None:
    services, cluster, profile = two
    plan = gp.plan_serving(services, cluster, profile, "weighted_rate", quotas={"t": 2}, budget_per_hour=9)
    plan.verify()
    used = sum(row["num_gpus"] * row["replicas"] for row in plan.replicas if row["service"] == "x")
    assert used <= 2
    assert plan.price_per_hour is not None
    assert plan.price_per_hour <= 9
    by_type = gp.plan_serving(services, cluster, profile, "weighted_rate", quotas={"t": {"B": 0}})
    assert not [row for row in by_type.replicas if row["service"] == "x" and row["accelerator"] == "b"]


def test_replicas_have_least_and_largest_numbers(two: Any) -> None:
    services, cluster, profile = two
    limited = [services[0].model_copy(update={"min_replicas": 3}), services[1].model_copy(update={"max_replicas": 1})]
    plan = gp.plan_serving(limited, cluster, profile)
    plan.verify()
    number = {name: sum(row["replicas"] for row in plan.replicas if row["service"] == name) for name in ("x", "y")}
    assert number["x"] >= 3
    assert number["y"] <= 1


def test_a_conflict_names_a_smallest_set(two: Any) -> None:
    services, cluster, profile = two
    with pytest.raises(gp.ConflictError) as caught:
        gp.plan_serving(services, cluster, profile, floors={"x": 0.9, "y": 0.1}, quotas={"t": 2}, budget_per_hour=1000)
    assert caught.value.constraints == ("service 'x': at least 90% of its demand", "the quota of tenant t: 2 GPUs")
    many = [services[0].model_copy(update={"min_replicas": 7}), services[1]]
    with pytest.raises(gp.ConflictError) as caught:
        gp.plan_serving(many, cluster, profile)
    assert caught.value.constraints == ("service 'x': at least 7 replicas",)


def test_a_stock_that_is_too_small_for_all_demand_is_a_conflict(two: Any) -> None:
    services, cluster, profile = two
    more = [each.model_copy(update={"rate": 6.0}) for each in services]
    with pytest.raises(gp.ConflictError) as caught:
        gp.plan_serving(more, cluster, profile, "min_cost")
    assert len(caught.value.constraints) == 2


def test_replicas_fit_on_nodes() -> None:
    """Three nodes with 3 GPUs hold three replicas of 2 GPUs, not four."""
    cluster = cluster_of({"a": 9}, per_node=3)
    plan = gp.plan_serving([gp.Service("x", model="m", rate=4)], cluster, gp.ServingProfile("p", [rate("m", "a", 2, 1.0)]))
    assert plan.value == pytest.approx(0.75)
    assert plan.bound == pytest.approx(0.75)


def test_all_demand_is_served_with_the_fewest_gpus(two: Any) -> None:
    services, cluster, profile = two
    plan = gp.plan_serving([services[0].model_copy(update={"rate": 3.0})], cluster, profile)
    assert (plan.value, plan.bound) == (1.0, 1.0)
    assert plan.gpus_used == {"a": 0, "b": 2}


# ----------------------------------------------------------------------------------------------------------------------- conditions


def test_a_rate_without_slo_needs_a_factor_and_the_answer_repeats_it() -> None:
    cluster, profile = cluster_of({"a": 4}), gp.ServingProfile("p", [rate("m", "a", 1, 2.0)])
    service = gp.Service("x", model="m", rate=16, ttft_seconds=0.5, tpot_seconds=0.05)
    with pytest.raises(gp.InputError, match="closed_loop rates need a rate_factor for its SLO"):
        gp.plan_serving([service], cluster, profile)
    plan = gp.plan_serving([service.model_copy(update={"rate_factor": 0.55})], cluster, profile)
    assert plan.value == pytest.approx(4 * 2 * 0.55 / 16)
    assert plan.notes == ("Service 'x' relies on 0.55 of closed_loop rates",)
    assert plan.notes[0] in plan.explain()


def test_a_plan_names_no_factor_of_rates_that_are_too_slow_for_it() -> None:
    cluster = cluster_of({"a": 2, "b": 2})
    slow, fast = rate("m", "b", 1, 0.5), rate("m", "a", 1, 10.0).model_copy(update={"condition": "slo", "slo_seconds": 1.0})
    service = gp.Service("x", model="m", rate=5, slo_seconds=1.0, rate_factor=0.5)
    assert gp.plan_serving([service], cluster, gp.ServingProfile("p", [slow, fast])).notes == ()


def test_a_rate_at_an_slo_is_preferred_and_must_be_strict_enough() -> None:
    at_slo = gp.ServingRate(model="m", accelerator="a", requests_per_second=0.5, condition="slo", slo_seconds=2)
    cluster, profile = cluster_of({"a": 4}), gp.ServingProfile("p", [rate("m", "a", 1, 2.0), at_slo])
    lax = gp.Service("x", model="m", rate=4, slo_seconds=3, rate_factor=0.9)
    assert gp.plan_serving([lax], cluster, profile).value == pytest.approx(0.5)
    with pytest.raises(gp.InputError, match="rates are known for slo_seconds of 2 only, more than the SLO of 1"):
        gp.plan_serving([gp.Service("x", model="m", rate=4, slo_seconds=1)], cluster, profile)


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ({"model": "n", "rate": 1}, "'n' is missing"),
        ({"model": "m"}, "field rate: is required, or a trace"),
        ({"model": "m", "rate": 1, "mix": {(9, 9): 1}}, "no replica of model 'm' in the cluster serves requests of size 9/9"),
        ({"model": "m", "rate": 1}, "field mix: is required, since the rates of model 'm' depend on sizes"),
        ({"model": "large", "rate": 1}, "'large' cannot be served here: it needs 90 GB of each a, which has 80"),
        ({"model": "stages", "rate": 1}, "the profile has stage times only"),
        ({"model": "wide", "rate": 1}, "no node has 16 a"),
        ({"model": "elsewhere", "rate": 1}, "its accelerators are not in the cluster"),
    ],
)
def test_a_service_that_cannot_be_served_is_explained(service: dict[str, Any], expected: str) -> None:
    rows = [
        rate("m", "a", 1, 1.0, (1, 1)),
        rate("m", "a", 1, 1.0, (2, 2)),
        rate("wide", "a", 16, 1.0),
        rate("elsewhere", "z", 1, 1),
    ]
    rows.append(gp.ServingRate(model="large", accelerator="a", memory_gb=90, requests_per_second=1, condition="slo"))
    rows.append(gp.ServingRate(model="stages", accelerator="a", stage_seconds=(0.1,)))
    nodes = gp.Cluster.from_counts({"a": 32}).nodes
    cluster = gp.Cluster(nodes, [gp.AcceleratorType(name="a", memory_gb=80)])
    with pytest.raises(gp.InputError) as caught:
        gp.plan_serving([gp.Service("x", **service)], cluster, gp.ServingProfile("p", rows))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("gpus", "reasons"),
    [
        (
            {"a": 4, "b": 2},
            "on a, closed_loop rates need a rate_factor for its SLO; no node has 4 b; "
            "on b, offline rates need a rate_factor for its SLO",
        ),
        ({"b": 0, "c": 2}, "its accelerators are not in the cluster: a, b"),
        ({"a": 0, "b": 2}, "no node has 4 b; on b, offline rates need a rate_factor for its SLO"),
    ],
)
def test_each_reason_why_a_service_cannot_be_served_is_true_where_it_says(gpus: dict[str, int], reasons: str) -> None:
    rows = [rate("m", "a", 1, 2.0), rate("m", "b", 4, 2.0)]
    rows += [gp.ServingRate(model="m", accelerator="b", requests_per_second=1, condition="offline"), rate("other", "c", 1, 1.0)]
    service = gp.Service("x", model="m", rate=1, slo_seconds=0.5)
    with pytest.raises(gp.InputError) as caught:
        gp.plan_serving([service], gp.Cluster.from_counts(gpus), gp.ServingProfile("p", rows))
    assert str(caught.value).endswith(f"'m' cannot be served here: {reasons}")


def test_rates_by_which_each_request_is_late_are_not_used() -> None:
    """By the rates of 2 and 0.5 requests/s, requests take at least 0.5 and 2 s, however few there are."""
    rows = [rate("m", "a", 1, 2.0, (1, 1)), rate("m", "b", 1, 0.5, (1, 1)), rate("m", "a", 1, 0.25, (9, 9))]
    at_slo = gp.ServingRate(model="s", accelerator="b", requests_per_second=0.1, condition="slo", slo_seconds=0.1)
    profile, cluster = gp.ServingProfile("p", [*rows, at_slo]), cluster_of({"a": 1, "b": 8})

    def plan(slo: float, model: str = "m", **fields: Any) -> gp.ServingPlan:
        service = gp.Service("x", model=model, rate=0.5, slo_seconds=slo, rate_factor=0.5, **fields)
        return gp.plan_serving([service], cluster, profile)

    assert {row["accelerator"] for row in plan(0.5, mix={(1, 1): 1}).replicas} == {"a"}
    with pytest.raises(gp.InputError, match=r"field slo_seconds: must be at least the fastest latency, 0.5 s, found 0.4$"):
        plan(0.4, mix={(1, 1): 1})
    with pytest.raises(gp.InputError, match=r"the fastest latency, 4 s, found 0.6$"):
        plan(0.6, mix={(1, 1): 1, (9, 9): 1})
    assert plan(0.2, "s").value == 1.0  # this rate was measured at an SLO


def test_bad_requests_are_explained(two: Any) -> None:
    services, cluster, profile = two
    unpriced = cluster_of({"a": 4, "b": 4})
    bad: Iterator[tuple[Any, str]] = iter(
        [
            (lambda: gp.plan_serving([services[0]] * 2, cluster, profile), "appears twice"),
            (lambda: gp.plan_serving([], cluster, profile), "must not be empty"),
            (lambda: gp.plan_serving(services, cluster, profile, "max"), "'max' is not known"),  # type: ignore[arg-type]
            (lambda: gp.plan_serving(services, cluster, profile, floors={"z": 1}), "is not a service"),
            (lambda: gp.plan_serving(services, cluster, profile, floors={"x": 2}), "must be a finite number from 0 to 1"),
            (lambda: gp.plan_serving(services, cluster, profile, floors={"where": 2}), "field where: is not a service"),
            (lambda: gp.plan_serving(services, cluster, profile, quotas={"z": 1}), "is not a tenant"),
            (lambda: gp.plan_serving(services, cluster, profile, quotas={"t": {"z": 1}}), "'z' is not in the cluster"),
            (lambda: gp.plan_serving(services, unpriced, profile, "min_cost"), "price_per_hour: is required"),
        ]
    )
    for action, expected in bad:
        with pytest.raises(gp.InputError) as caught:
            action()
        assert expected in str(caught.value)


# -------------------------------------------------------------------------------------------------------------- checks and training


def test_a_changed_plan_fails_its_check(two: Any) -> None:
    plan = gp.plan_serving(*two)
    rows = gp.serving.plan.Rows  # type: ignore[attr-defined]
    fewer = replace(plan, replicas=rows({**row, "replicas": row["replicas"] - 1} for row in plan.replicas))
    with pytest.raises(gp.ProofError, match=r"serve more than their rates|whole"):
        fewer.verify()
    lost = replace(plan, routes=rows(plan.routes[1:]))
    with pytest.raises(gp.ProofError, match="is routed"):
        lost.verify()
    with pytest.raises(gp.ProofError, match="the value is"):
        replace(plan, value=plan.value + 0.1, bound=plan.bound + 0.1).verify()
    more = replace(plan, replicas=rows({**row, "replicas": row["replicas"] + 9} for row in plan.replicas))
    with pytest.raises(gp.ProofError, match="are taken"):
        more.verify()


def test_training_jobs_get_the_rest_and_replicas_have_prices(two: Any) -> None:
    services, cluster, profile = two
    training = gp.AllocationProblem.from_arrays([[1.0, 2.0], [1.0, 3.0]], [4, 4], accelerator_types=["a", "b"])
    plan = gp.plan_serving([services[0]], cluster, profile, training=training, policy="max_total_throughput")
    assert plan.training is not None
    left = [4 - plan.gpus_used[name] for name in ("a", "b")]
    assert plan.training.objective_value == gp.solve(training.with_capacities(left), "max_total_throughput").objective_value
    for row in plan.replica_prices:
        more = [gpus + row["num_gpus"] * (row["accelerator"] == name) for gpus, name in zip(left, ("a", "b"), strict=True)]
        without = gp.solve(training.with_capacities(more), "max_total_throughput").objective_value
        assert row["price"] == pytest.approx(without - plan.training.objective_value)
        assert f"A replica of x on {row['replica']} costs the objective of the training jobs" in plan.explain()


def test_a_replica_that_costs_the_objective_nothing_may_cost_a_tenant() -> None:
    rates = gp.ServingProfile("rates", [gp.ServingRate(model="m", accelerator="b", requests_per_second=1.0, condition="offline")])
    plan = gp.plan_serving([gp.Service("x", model="m", rate=1)], gp.Cluster.from_counts({"b": 4}), rates)
    kinds: dict[str, Any] = {"accelerator_types": ["a", "b"], "tenants": ["one", *["two"] * 4]}
    # The job on type a runs all the time and is the slowest one, whatever the four on type b have.
    found = gp.beside_training(plan, gp.AllocationProblem.from_arrays([[1.0, 0.0], *[[0.0, 1.0]] * 4], [12, 4], **kinds))
    (row,) = found.replica_prices
    assert row["price"] == 0
    assert row["work_gained"] == pytest.approx({"one": 0, "two": 1 / 3})
    text = found.explain()
    assert "A replica of x on 1 b costs the objective of the training jobs nothing." in text
    assert "Without it, their work would change: two +33.3%." in text
    alone = gp.beside_training(plan, gp.AllocationProblem.from_arrays([[1.0, 0.0]], [12, 4], accelerator_types=["a", "b"]))
    assert "Without it, no tenant gains." in alone.explain()


def test_a_plan_is_plain_data(two: Any, tmp_path: Path) -> None:
    plan = gp.plan_serving(*two)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_dict()))
    read = json.loads(path.read_text())
    assert read["value"] == plan.value
    assert read["replicas"] == list(plan.replicas)
    assert set(plan.to_columns()) >= {"service", "accelerator", "num_gpus", "replicas"}
