"""The request simulator against a slow one that plays each rule as it is worded, and against queues with known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.serving.simulation import MANY_GROUPS, SIDE_BY_SIDE, TOLERANCE_SECONDS, compile_groups, run_of, serve

GRID = 1 / 64
"""Times are multiples of this, so that sums of them are exact and equal times are common."""


class Request:
    """A request that waits or is in service in `slow_simulation`."""

    def __init__(self, arrival: float, stages: list[float]) -> None:
        self.arrival, self.stages = arrival, stages


def leaves(line: list[Request]) -> list[list[float]]:
    """Return when each request of a group leaves each stage, from the recursion of a line of first-come-first-served queues."""
    times: list[list[float]] = []
    for n, request in enumerate(line):
        moment, row = request.arrival, []
        for k, seconds in enumerate(request.stages):
            before = times[n - 1][k] if n else -np.inf
            moment = max(moment, before) + seconds
            row.append(moment)
        times.append(row)
    return times


def slow_simulation(
    trace: gp.RequestTrace, groups: list[gp.ModelGroup], slo: dict[str, float], *, refuse: bool = True
) -> tuple[list[float], list[int]]:
    """Replay every group from its first request for each new one; return latencies (NaN if refused) and groups (-1)."""
    lines: list[list[Request]] = [[] for _ in groups]
    latencies, chosen = [], []
    for arrival, number in zip(trace.seconds.tolist(), trace.service_index.tolist(), strict=True):
        service = trace.services[number]
        options = []
        for g, group in enumerate(groups):
            if service in group.stage_seconds:
                free = leaves(lines[g])[-1][-1] if lines[g] else -np.inf
                end = leaves([*lines[g], Request(arrival, [*group.stage_seconds[service]])])[-1][-1]
                options.append((end, free, g))
        end, _, g = min(options, default=(np.inf, 0.0, -1))
        if g < 0 or (refuse and end - arrival > slo[service] + TOLERANCE_SECONDS):
            latencies.append(np.nan)
            chosen.append(-1)
        else:
            lines[g].append(Request(arrival, [*groups[g].stage_seconds[service]]))
            latencies.append(end - arrival)
            chosen.append(g)
    return latencies, chosen


@st.composite
def scenes(draw: st.DrawFn) -> tuple[gp.RequestTrace, list[gp.ModelGroup], dict[str, float]]:
    services = ("a", "b", "c")[: draw(st.integers(1, 3))]
    ticks = st.integers(1, 12).map(lambda n: n * GRID)
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        stages = draw(st.integers(1, 6))
        held = draw(st.lists(st.sampled_from(services), unique=True))
        times = st.lists(ticks, min_size=stages, max_size=stages)
        shared = draw(times)
        are_equal = draw(st.booleans())
        groups.append(gp.ModelGroup({name: shared if are_equal else draw(times) for name in held}))
    gaps = draw(st.lists(st.integers(0, 10), min_size=1, max_size=25))
    seconds = np.cumsum(gaps) * GRID
    index = np.array([draw(st.integers(0, len(services) - 1)) for _ in gaps], dtype=np.intp)
    slo = {name: draw(st.one_of(st.just(np.inf), st.integers(1, 40).map(lambda n: n * GRID))) for name in services}
    return gp.RequestTrace(seconds, index, services, float(seconds[-1]) + 1.0), groups, slo


@given(scenes(), st.booleans())
def test_latencies_and_groups_are_those_of_the_slow_simulation(scene: Any, refuse: bool) -> None:
    trace, groups, slo = scene
    found = gp.simulate_requests(trace, groups, slo, refuse=refuse, margin_seconds=0)
    latencies, chosen = slow_simulation(trace, groups, slo, refuse=refuse)
    assert np.array_equal(found.latencies, latencies, equal_nan=True)
    assert found.group_index.tolist() == chosen


@given(st.lists(scenes(), min_size=1, max_size=4))
@settings(deadline=None)
def test_runs_side_by_side_have_the_same_bits_as_alone(drawn: list[Any]) -> None:
    runs = []
    for trace, groups, slo in drawn:
        table = compile_groups(groups, trace.services, gp.ServingOverheads(0.011, 0.009))
        runs.append(run_of(trace, np.array([slo[name] for name in trace.services]), table))
    many = serve(runs * SIDE_BY_SIDE)
    for run, together in zip(runs * 2, many, strict=False):
        alone = serve([run])[0]
        assert np.array_equal(alone.ends, together.ends, equal_nan=True)
        assert np.array_equal(alone.groups, together.groups)


def test_many_equal_servers_answer_as_few_do() -> None:
    """From `MANY_GROUPS` on they are in a heap, also side by side."""
    trace = gp.RequestTrace.generate({"a": 300.0, "b": 100.0}, 30, cv=2, seed=1)
    equal = [gp.ModelGroup({"a": [0.1], "b": [0.15]})] * (MANY_GROUPS + 1)
    unlike = [*equal[:-1], gp.ModelGroup({"a": [0.1], "b": [0.15 + 1e-15]})]
    one, other = (gp.simulate_requests(trace, groups, 0.3) for groups in (equal, unlike))
    assert one.latencies == pytest.approx(other.latencies, abs=1e-12, nan_ok=True)
    assert 0.3 < one.attainment < 1
    many = gp.simulate_many([gp.RequestScenario(trace, equal, 0.3)] * SIDE_BY_SIDE)
    assert all(np.array_equal(each.latencies, one.latencies, equal_nan=True) for each in many)


def test_a_pipeline_of_equal_requests_is_one_server_with_a_lead() -> None:
    trace = gp.RequestTrace.generate({"a": 5.0, "b": 5.0}, 500, cv=2, seed=3)
    same = gp.ModelGroup({"a": [0.05, 0.1, 0.02], "b": [0.05, 0.1, 0.02]})
    other = gp.ModelGroup({"a": [0.05, 0.1, 0.02], "b": [0.05, 0.1, 0.02 + 1e-13]})  # different, so that each stage has a clock
    assert len(compile_groups([same], trace.services, gp.ServingOverheads()).stages) == 1
    assert len(compile_groups([other], trace.services, gp.ServingOverheads()).stages) == 3
    fast, slow = (gp.simulate_requests(trace, [group], 0.9) for group in (same, other))
    assert fast.latencies == pytest.approx(slow.latencies, abs=1e-9, nan_ok=True)
    assert fast.busy_seconds == pytest.approx(slow.busy_seconds)


def test_poisson_arrivals_at_a_server_wait_as_long_as_pollaczek_and_khinchine_promise() -> None:
    trace = gp.RequestTrace.generate({"a": 7.0}, 40_000, seed=1)
    result = gp.simulate_requests(trace, [gp.ModelGroup({"a": [0.1]})])
    assert result.mean_seconds == pytest.approx(0.1 + 0.7 * 0.1 / (2 * 0.3), rel=0.03)
    assert result.utilization == pytest.approx([0.7], rel=0.01)


def test_requests_of_equal_gaps_never_wait_below_the_rate_of_the_server() -> None:
    trace = gp.RequestTrace.generate({"a": 9.9}, 100, cv=0, seed=5)
    assert gp.simulate_requests(trace, [gp.ModelGroup({"a": [0.1]})], 0.1).attainment == 1.0


def test_a_service_on_no_group_is_refused_and_others_are_not() -> None:
    trace = gp.RequestTrace.generate({"a": 2.0, "b": 2.0}, 100, seed=2)
    result = gp.simulate_requests(trace, [gp.ModelGroup({"a": [0.01]})])
    assert result.attainments == {"a": 1.0, "b": 0.0}
    assert result.attainment == pytest.approx(0.5, abs=0.1)


def test_late_requests_are_missed_where_none_is_refused() -> None:
    trace = gp.RequestTrace(np.array([0.0, 0.0, 0.0]), np.zeros(3, dtype=np.intp), ("a",), 1.0)
    groups = [gp.ModelGroup({"a": [0.25]})]
    late = gp.simulate_requests(trace, groups, 0.5, refuse=False, margin_seconds=0)
    assert late.latencies.tolist() == [0.25, 0.5, 0.75]
    assert late.attainment == pytest.approx(2 / 3)
    refused = gp.simulate_requests(trace, groups, 0.5, margin_seconds=0)
    assert refused.latencies[:2].tolist() == [0.25, 0.5]
    assert refused.to_dict()["refused"] == 1


def test_overheads_lengthen_stages_and_requests() -> None:
    overheads = gp.ServingOverheads(request_seconds=0.011, per_stage=0.009)
    assert overheads.latency([0.1, 0.1]) == pytest.approx(0.2 * 1.018 + 0.011)
    trace = gp.RequestTrace(np.array([0.0, 5.0]), np.zeros(2, dtype=np.intp), ("a",), 10.0)
    result = gp.simulate_requests(trace, [gp.ModelGroup({"a": [0.1, 0.1]})], margin_seconds=0, overheads=overheads)
    assert result.latencies == pytest.approx([overheads.latency([0.1, 0.1])] * 2)
    assert result.percentile(50) == pytest.approx(overheads.latency([0.1, 0.1]))


def test_an_slo_equal_to_the_latency_is_kept() -> None:
    trace = gp.RequestTrace.generate({"a": 0.1}, 20_000, cv=0, seed=4)
    assert gp.simulate_requests(trace, [gp.ModelGroup({"a": [0.1, 0.2]})], 0.3).attainment == 1.0


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"slo_seconds": 0.0}, "must be greater than 0"),
        ({"slo_seconds": {"b": 1.0}}, "no service 'b'"),
        ({"margin_seconds": 50.0}, "below half of the trace"),
        ({"groups": []}, "at least one group"),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"trace": gp.RequestTrace.generate({"a": 1.0}, 100), "groups": [gp.ModelGroup({"a": [0.1]})]}
    with pytest.raises(gp.InputError, match=problem):
        gp.simulate_requests(**{**given, **changed})


def test_a_group_with_bad_stages_is_named() -> None:
    with pytest.raises(gp.InputError, match="same number of stages"):
        gp.ModelGroup({"a": [0.1], "b": [0.1, 0.1]})
    with pytest.raises(gp.InputError, match="greater than 0"):
        gp.ModelGroup({"a": [0.0]})


def test_results_are_tables_and_plain_data() -> None:
    trace = gp.RequestTrace.generate({"a": 2.0, "b": 1.0}, 200, seed=1)
    result = gp.simulate_requests(trace, [gp.ModelGroup({"a": [0.1], "b": [0.2]}, accelerator="v100")], 1.0)
    table = result.to_columns()
    assert table["service"].tolist() == ["a", "b"]
    assert int(table["requests"].sum()) == int(result.counted.sum())
    document = result.to_dict()
    assert document["groups"][0]["stage_seconds"] == {"a": [0.1], "b": [0.2]}
    assert document["services"][1]["attainment"] == result.attainments["b"]
