"""Plans over time: loads that are not needed do not happen, and other plans on the same curve stand beside the schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.serving.known_answers import cluster_of, rate
from tests.support.examples import examples
from tests.support.shared_data import SHARED, needs_shared_data

PROFILE = gp.ServingProfile("p", [rate("x", "a", 1, 1.0), rate("y", "a", 1, 1.0), rate("y", "a", 2, 2.0)])
SERVICES = [gp.Service("x", model="x"), gp.Service("y", model="y")]


def schedule(demand: dict[str, Any], gpus: int = 4, **options: Any) -> gp.ServingSchedule:
    return gp.plan_over_time(SERVICES, cluster_of({"a": gpus}), PROFILE, demand, interval_seconds=100, compare=True, **options)


def test_a_steady_demand_needs_no_loads() -> None:
    found = schedule({"x": [2.0] * 5, "y": [2.0] * 5})
    assert found.outcome.loads == 0
    assert found.outcome.served_requests == pytest.approx(2000)
    assert found.compared["known future"].served_requests == pytest.approx(2000)


def test_replicas_follow_a_demand_that_lasts() -> None:
    found = schedule({"x": [4.0, 0.0, 0.0, 0.0], "y": [0.0, 4.0, 4.0, 4.0]}, load_seconds=40)
    assert found.outcome.loads == 4
    assert found.intervals[-1]["served_fraction"] == pytest.approx(1.0)


def test_replicas_do_not_follow_a_demand_that_alternates() -> None:
    found = schedule({"x": [4.0, 2.0] * 4, "y": [2.0, 4.0] * 4}, load_seconds=40)
    assert found.outcome.loads <= 2
    assert found.outcome.loads < found.compared["each interval alone"].loads


def test_a_load_must_be_worth_its_cost() -> None:
    demand = {"x": [4.0, 0.0, 0.0], "y": [0.0, 0.5, 0.5]}
    assert schedule(demand, load_seconds=0).outcome.loads == 1
    assert schedule(demand, load_seconds=0, load_cost=110).outcome.loads == 0


def evenly(rate: float, start: float, end: float) -> gp.RequestTrace:
    """Requests at equal gaps from start to end, of a trace of 400 s."""
    seconds = np.arange(start + 0.5 / rate, end, 1 / rate)
    return gp.RequestTrace(seconds, np.zeros(len(seconds), dtype=np.intp), ("any",), 400.0)


def test_a_replay_finds_that_loading_replicas_serve_nothing() -> None:
    traces = {"x": evenly(4, 0, 100), "y": evenly(4, 100, 400)}
    found = schedule(gp.demand_curve(traces, 4), load_seconds=40)
    assert found.outcome.loads == 4
    replay = gp.replayed_schedule(found, traces)
    levels = [row["served_fraction"] for row in found.intervals if row["service"] == "y"][1:]
    assert levels == pytest.approx([0, 0.6, 1])  # the first interval with other demand does not count alone; loads take 40 of 100 s
    assert replay.promised == pytest.approx({"x": 1.0, "y": sum(levels) / 3})
    assert replay.found[0] == pytest.approx(replay.promised, abs=0.02)
    assert replay.requests == (1600,)


def test_replays_of_schedules_name_what_is_missing() -> None:
    traces = {"x": evenly(1, 0, 400), "y": evenly(1, 0, 400)}
    found = schedule(gp.demand_curve(traces, 4))
    with pytest.raises(gp.InputError, match="field traces: has none of service 'y'"):
        gp.replayed_schedule(found, {"x": traces["x"]})
    with pytest.raises(gp.InputError, match="was not made by plan_over_time"):
        gp.replayed_schedule(replace(found, _named=None), traces)


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4), st.sampled_from([0.0, 20.0, 90.0]))
def test_no_plan_serves_more_than_the_one_that_knows_the_future(rates: list[tuple[int, int]], load: float) -> None:
    found = schedule({"x": [float(x) for x, _ in rates], "y": [float(y) for _, y in rates]}, load_seconds=load)
    known = found.compared["known future"]
    assert known.bound is not None
    for outcome in (found.outcome, *found.compared.values()):
        assert outcome.served_requests <= known.served_requests + 1e-6
        assert outcome.served_requests <= known.bound * (1 + 2e-4) + 1e-6
    assert found.compared["one plan for all"].loads == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"demand": {"x": [1.0]}}, "service 'y' has no curve"),
        ({"demand": {"x": [1.0], "y": [1.0, 2.0]}}, "must be lists of the same length"),
        ({"demand": {"x": [-1.0], "y": [1.0]}}, "finite numbers of at least 0"),
        ({"load_seconds": 100.0}, "load_seconds: must be at least 0 and less than an interval"),
        ({"load_cost": -1.0}, "load_cost: must be"),
    ],
)
def test_a_faulty_request_is_explained(options: dict[str, Any], expected: str) -> None:
    given_: dict[str, Any] = {"demand": {"x": [1.0], "y": [1.0]}} | options
    with pytest.raises(gp.InputError) as caught:
        schedule(given_.pop("demand"), **given_)
    assert expected in str(caught.value)


@pytest.mark.deep
@needs_shared_data
@pytest.mark.parametrize(
    ("times", "intervals"), [(3, 6), *(pytest.param(times, 24, marks=pytest.mark.deep) for times in (1, 2, 3, 4))]
)
def test_an_hour_of_azure(times: int, intervals: int) -> None:
    """Near the plan that knows the future, with at most half of the loads of solving each interval by itself."""
    files = {name: SHARED / "azure-llm-2023" / f"AzureLLMInferenceTrace_{name}.csv" for name in ("conv", "code")}
    traces = {name: gp.RequestTrace.from_file(path, service=name) for name, path in files.items()}
    demand = {name: times * np.asarray(rates) for name, rates in gp.demand_curve(traces, intervals).items()}
    services = [gp.Service(name, model="LLaMA v3.1 70B", trace=str(path)) for name, path in files.items()]
    cluster = gp.Cluster.from_counts({"l40s": 8, "a100-80gb": 4, "h100": 2, "h200": 2})  # scarce at 3 and 4 times the rates
    seconds = max(trace.duration_seconds for trace in traces.values()) / intervals
    options = {"interval_seconds": seconds, "load_seconds": 30.0, "compare": True, "time_limit_seconds": 20.0}
    found = gp.plan_over_time(services, cluster, gp.ServingProfile.builtin("trtllm"), demand, **options)
    known, alone = found.compared["known future"], found.compared["each interval alone"]
    assert found.outcome.served_requests >= 0.98 * (known.bound or 0.0) >= 0.98 * known.served_requests
    assert found.outcome.loads <= alone.loads / 2
