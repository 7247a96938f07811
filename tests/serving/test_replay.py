"""Replays of plans: what a plan promises beside what a simulation finds, and independent counts of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.serving.replay import _routed
from tests.serving.known_answers import cluster_of, rate
from tests.support.examples import examples
from tests.support.shared_data import SHARED, needs_shared_data

SIZED = gp.ServingProfile("sized", [rate("m", "a", 1, 2.0, (1, 1)), rate("m", "a", 1, 1.0, (9, 9)), rate("m", "b", 2, 3.0, (1, 1))])


def plan_of(service: gp.Service, profile: gp.ServingProfile, **gpus: int) -> gp.ServingPlan:
    return gp.plan_serving([service], cluster_of(gpus), profile)


def test_what_is_routed_is_served_without_an_slo() -> None:
    plan = plan_of(gp.Service("x", model="m", rate=8, mix={(1, 1): 3, (9, 9): 1}), SIZED, a=2, b=2)
    replay = gp.replayed_plan(plan)
    assert plan.value < 1
    assert replay.promised == plan.served
    assert replay.attainment.mean == pytest.approx(plan.value, abs=0.01)
    assert all(0.95 < part <= 1 for part in replay.utilization)


def test_replicas_in_use_are_the_load_of_the_requests() -> None:
    plan = plan_of(gp.Service("x", model="m", rate=2, mix={(1, 1): 1, (9, 9): 1}), SIZED, a=3)
    replay = gp.replayed_plan(plan, requests=20_000, traces=3)
    assert plan.value == 1
    assert replay.attainment.mean == pytest.approx(1, abs=1e-3)
    replicas = sum(row["replicas"] for row in plan.replicas)
    assert replay.utilization == pytest.approx([(2 * 0.5 / 2 + 2 * 0.5 / 1) / replicas], rel=0.03)


def test_a_replay_finds_what_simulating_the_replicas_finds() -> None:
    """A plan that serves all of one size on one type is a placement with a group for each replica."""
    row = gp.ServingRate(model="m", accelerator="a", pipeline_parallel=2, stage_seconds=(0.1, 0.06))
    service = gp.Service("x", model="m", rate=6.0, cv=2, slo_seconds=0.8, attainment=0.9)
    plan = plan_of(service, gp.simulated_rates([service], gp.ServingProfile("p", [row]), seeds=2), a=8)
    assert plan.value == 1
    count = sum(row["replicas"] for row in plan.replicas)
    replay = gp.replayed_plan(plan, requests=3_000, traces=3)
    traces = [gp.RequestTrace.generate({"x": 6.0}, 500, cv=2, seed=seed) for seed in range(3)]
    groups = [gp.ModelGroup({"x": (0.1, 0.06)})] * count
    assert [each["x"] for each in replay.found] == [gp.simulate_requests(trace, groups, 0.8).attainment for trace in traces]
    assert replay.promised == {"x": 0.9}
    assert replay.attainment.mean >= 0.9  # replicas that share requests do better than each alone


def test_bursts_break_a_promise_of_rates_at_full_load() -> None:
    """Rates are the same whatever the bursts; the replay knows them."""
    found = []
    for cv in (0.5, 4.0):
        service = gp.Service("x", model="m", rate=2.0, cv=cv, ttft_seconds=0.5, tpot_seconds=0.1, rate_factor=0.55)
        found.append(gp.replayed_plan(plan_of(service, gp.ServingProfile("p", [rate("m", "a", 1, 4.0)]), a=1)))
    assert found[0].promised == found[1].promised == {"x": 0.99}
    assert found[0].attainment.mean >= 0.99
    assert found[1].attainment.mean < 0.7


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=4), st.integers(0, 300), st.integers(0, 9)
)
def test_requests_are_routed_in_the_shares_of_the_plan(shares: list[list[int]], count: int, lost: int) -> None:
    parts = np.array(shares, dtype=float)
    parts = parts / np.maximum(parts.sum(axis=0) + lost, 1e-9)
    sizes = np.arange(count) % 2
    routed = _routed(sizes, parts)
    for b in (0, 1):
        number = int((sizes == b).sum())
        counts = np.bincount(routed[sizes == b], minlength=len(parts) + 1)
        assert np.abs(counts[:-1] - number * parts[:, b]).max() <= 5  # a low discrepancy: random ones would be off by sqrt(number)
        assert counts[-1] == number - counts[:-1].sum()
    assert (routed >= 0).all()


def test_a_trace_is_replayed_with_its_sizes(tmp_path: Any) -> None:
    rows = "".join(f"{n},{1 if n % 4 else 9},{1 if n % 4 else 9}\n" for n in range(400))
    (tmp_path / "x.csv").write_text("seconds,input_tokens,output_tokens\n" + rows)
    service = gp.Service("x", model="m", trace=str(tmp_path / "x.csv"))
    replay = gp.replayed_plan(plan_of(service, SIZED, a=2))
    assert replay.requests == (399,)  # the last one arrives as the trace ends
    assert replay.attainment.mean == 1.0
    assert replay.utilization[0] == pytest.approx((0.75 / 2 + 0.25 / 1) / len(replay.utilization), abs=0.01)


def test_replays_are_tables_and_plain_data_and_repeat() -> None:
    plan = plan_of(gp.Service("x", model="m", rate=8, mix={(1, 1): 1}), SIZED, a=2)
    replay = gp.replayed_plan(plan, requests=500, traces=3)
    assert replay.to_dict() == gp.replayed_plan(plan, requests=500, traces=3).to_dict()
    assert replay.to_dict()["services"][0] == {name: values.tolist()[0] for name, values in replay.to_columns().items()}
    assert replay.to_dict()["found"] == replay.attainment.mean
    assert "promised" in repr(replay)


def test_what_cannot_be_replayed_is_named() -> None:
    plan = plan_of(gp.Service("x", model="m", rate=8, mix={(1, 1): 1}), SIZED, a=2)
    with pytest.raises(gp.InputError, match="was not made by plan_serving"):
        gp.replayed_plan(replace(plan, _evidence=None))
    with pytest.raises(gp.InputError, match="field traces: must be a whole number of at least 1, found 0"):
        gp.replayed_plan(plan, traces=0)


@pytest.mark.deep
@needs_shared_data
@pytest.mark.parametrize(
    ("factors", "price", "found"),
    [((0.55, 0.55), 14.75, (0.9754, 0.6880)), ((0.35, 0.14), 29.50, (0.9999, 0.9327)), ((0.45, 0.1), 32.45, (0.9984, 0.9758))],
)
def test_the_hour_of_the_tutorial_needs_room_for_bursts(
    factors: tuple[float, float], price: float, found: tuple[float, float]
) -> None:
    """Figures of docs/serving.md."""
    fields: dict[str, Any] = {"model": "LLaMA v3.1 70B", "ttft_seconds": 1, "tpot_seconds": 0.1}
    services = [
        gp.Service(name, trace=str(SHARED / "azure-llm-2023" / f"AzureLLMInferenceTrace_{name}.csv"), rate_factor=factor, **fields)
        for name, factor in zip(("conv", "code"), factors, strict=True)
    ]
    cluster = cluster_of({"h100": 24, "l40s": 16}, {"h100": 2.95, "l40s": 1.55})
    plan = gp.plan_serving(services, cluster, gp.ServingProfile.builtin("trtllm"), "min_cost")
    assert plan.value == pytest.approx(price)
    assert tuple(gp.replayed_plan(plan).found[0].values()) == pytest.approx(found, abs=1e-3)
