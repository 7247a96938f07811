"""Fleets for jobs and traces: candidates, resampled traces, and plans beside exhaustive search."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.planning.replays import ReplayedFleet, busiest, drawn, fluid_demand
from tests.support.shared_data import SHARED, needs_shared_data

PRICES = {"v100": (4, 0.79), "p100": (4, 0.45), "k80": (4, 0.2)}


class InThisThread(Executor):
    """Runs each call at once: starting processes would take longer than these replays."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def catalog(*names: str, **more: Any) -> gp.Catalog:
    sold = [(name, *PRICES[name]) for name in names]
    entries = (gp.CatalogEntry(accelerator=name, num_gpus=size, rent_usd=price * size, **more) for name, size, price in sold)
    return gp.Catalog(tuple(entries))


def trace_of(jobs: int, seed: int = 0, jobs_per_hour: float | None = 6.0) -> gp.Trace:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    lengths = gp.LogUniform(((1, 3600, 36000),))
    return gp.generate_trace(jobs, profile, jobs_per_hour=jobs_per_hour, gang_mix={1: 0.7, 2: 0.3}, durations=lengths, seed=seed)


def planned(trace: gp.Trace, offered: gp.Catalog, target: str = "completion", **more: Any) -> gp.TracePlan:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    settings: dict[str, Any] = {"policy": "fifo", "round_seconds": None, "resamples": 3, "executor": InThisThread()} | more
    return gp.plan_from_trace(trace, offered, profile, target, **settings)


def replayed(trace: gp.Trace, fleet: dict[str, int], policy: str = "fifo") -> gp.Summary:
    cluster = gp.Cluster.from_counts({name: (count * 4, 4) for name, count in fleet.items() if count})
    return gp.simulate(trace, cluster, gp.ThroughputProfile.builtin("gavel-osdi20"), policy, round_seconds=None).summary


@pytest.mark.deep
def test_the_plan_is_within_the_budget_and_says_what_the_simulator_says() -> None:
    trace = trace_of(6)
    plan = planned(trace, catalog("v100", "k80"), "wait", limits=gp.FleetLimits(budget_usd_per_hour=7), resamples=2)
    assert 0 < plan.chosen.usd_per_hour <= 7
    fleet = dict(zip(plan.types, plan.chosen.nodes, strict=True))
    assert plan.chosen.value == replayed(trace, fleet).queueing.mean
    assert [each.usd_per_hour for each in plan.front] == sorted(each.usd_per_hour for each in plan.front)
    assert [each.value for each in plan.front] == sorted((each.value for each in plan.front), reverse=True)
    more, _ = plan.next_nodes["v100"]
    assert more is not None
    gain = plan.chosen.less_than(more)
    again = [drawn(trace, 0, n) for n in range(2)]
    with_more = [replayed(each, dict(zip(plan.types, more.nodes, strict=True))).queueing.mean or 0.0 for each in again]
    with_plan = [replayed(each, fleet).queueing.mean or 0.0 for each in again]
    assert gain is not None
    assert gain.mean == pytest.approx(np.mean(with_more) - np.mean(with_plan), abs=1e-6)
    assert planned(trace, catalog("v100", "k80"), "wait", resamples=0).chosen.resampled == ()


@pytest.mark.deep
def test_the_cheapest_fleet_that_meets_a_target_is_chosen_and_nodes_are_retired() -> None:
    have = gp.Cluster.from_counts({"v100": (32, 4)})
    plan = planned(trace_of(12), catalog("v100"), "wait mean <= 30min", existing=have, resamples=2)
    assert plan.is_met
    assert plan.retired.tolist() == [8 - plan.chosen.nodes[0]]
    cheaper = {count: replayed(trace_of(12), {"v100": count}).queueing.mean for count in range(1, plan.chosen.nodes[0])}
    assert all(value is not None and value > 1800 for value in cheaper.values())
    assert plan.today is not None
    assert plan.today.nodes == (8,)


@pytest.mark.deep
def test_the_same_seed_gives_the_same_plan_and_no_replay_is_run_twice(tmp_path: Any) -> None:
    settings: dict[str, Any] = {
        "limits": gp.FleetLimits(budget_usd_per_hour=4),
        "results": tmp_path / "kept.sqlite",
        "resamples": 2,
    }
    first = planned(trace_of(8), catalog("v100"), **settings)
    assert planned(trace_of(8), catalog("v100"), **settings).to_dict() == first.to_dict()


def test_demand_of_a_trace_is_the_gpus_of_its_jobs_while_they_would_run_alone() -> None:
    late = {"num_gpus": 1, "total_steps": 3600, "arrival_seconds": 3600}
    jobs = [gp.Job("a", num_gpus=2, total_steps=7200, job_type="x"), gp.Job("b", job_type="x", **late)]
    speeds = np.array([[2.0, 1.0], [4.0, 2.0]])
    trace, work, gang_of = gp.Trace(map(gp.Submission, jobs)), np.array([3600.0, 1800.0]), np.array([1, 0])
    demand, relative, _ = fluid_demand(trace, work, gang_of, np.array([1.0, 2.0]), speeds)
    assert relative.tolist() == [[1.0, 0.5]]
    edges = 5400 / 168
    assert demand.sum() * edges == pytest.approx(2 * 7200 / 4 + 1 * 3600 / 2, rel=1e-3)
    assert demand[0].tolist() == [2.0]


def test_resampled_traces_have_the_jobs_of_blocks_and_the_same_seed_draws_the_same() -> None:
    trace = trace_of(300, jobs_per_hour=1.5)
    one, same, other = drawn(trace, 0, 1), drawn(trace, 0, 1), drawn(trace, 0, 2)
    assert one == same != other
    assert 0.6 < len(one) / len(trace) < 1.4
    steps = {each.job.total_steps for each in trace}
    assert {each.job.total_steps for each in one} <= steps
    at_once = trace_of(20, jobs_per_hour=None)
    assert len(drawn(at_once, 0, 0)) == 20
    work = np.array([float(each.job.num_gpus) for each in trace])
    part = busiest(trace, work, 8)
    assert 37 <= len(part) < 75
    assert sum(each.job.num_gpus for each in part) >= sum(each.job.num_gpus for each in trace[:37])
    assert len(busiest(at_once, np.ones(20), 8)) == 2


def test_json_has_fleets_in_whose_replays_no_job_ends() -> None:
    market = gp.FleetMarket(catalog("v100"), np.zeros(1, dtype=np.int64))
    fleet = ReplayedFleet((1,), 3.0, 0.0, math.inf, (math.inf, 60.0))
    plan = gp.TracePlan(market, gp.FleetTarget.parsed("wait"), fleet, None, [fleet], {}, (math.inf, 1.0), 1, (np.zeros(1),) * 2)
    document = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert document["plan"]["mean_queueing_seconds"] is None
    assert document["plan"]["resampled"] == [None, 60.0]


@pytest.mark.parametrize("text", ["wait p95 < 2h", "wait <= 2", "speed", "deadlines = most", "completion p95"])
def test_targets_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(gp.InputError, match='as in "wait p95 <= 2h"'):
        gp.FleetTarget.parsed(text)


def test_targets_are_metrics_with_limits() -> None:
    assert gp.FleetTarget.parsed("wait p95 <= 2h") == gp.FleetTarget("p95_queueing_seconds", 7200.0, "wait p95 <= 2h")
    assert gp.FleetTarget.parsed("completion").most is None
    assert gp.FleetTarget.parsed("deadlines = all") == gp.FleetTarget("late", 0.0, "deadlines = all")


def test_types_without_speeds_cannot_be_bought_and_jobs_that_fit_nowhere_are_refused() -> None:
    entry = gp.CatalogEntry(accelerator="b200", num_gpus=8, rent_usd=44)
    with pytest.raises(gp.InputError, match="none of the types is in profile"):
        planned(trace_of(5), gp.Catalog((entry,)))
    with pytest.raises(gp.InputError, match="no fleet within them can run all jobs"):
        planned(trace_of(5), catalog("v100", max_nodes=0))


@pytest.mark.deep
def test_deadlines_are_a_target_only_of_jobs_that_have_some() -> None:
    with pytest.raises(gp.InputError, match="no job of the trace has a deadline"):
        planned(trace_of(4), catalog("v100", max_nodes=2), "deadlines = all")
    timed = gp.Trace([gp.Submission(each.job.model_copy(update={"deadline_seconds": 40_000.0})) for each in trace_of(4, 0, None)])
    plan = planned(timed, catalog("v100", max_nodes=3), "deadlines = all", resamples=1)
    assert plan.is_met
    assert replayed(timed, {"v100": plan.chosen.nodes[0]}).late == 0


def test_steps_are_told_in_singular_and_plural() -> None:
    told: list[str] = []
    planned(trace_of(4), catalog("v100", max_nodes=2), "wait", resamples=1, on_progress=lambda text, _: told.append(text))
    assert told[-1] == "2 fleets on 1 resampled trace"
    assert not re.search(r"\b1 (fleets|neighbours)", " ".join(told))


@pytest.mark.deep
def test_the_best_fleet_of_all_is_on_the_front_of_20_drawn_traces() -> None:
    """Prices, budgets and arrivals are drawn, so that best fleets have either type or both."""
    kinds, missed = set(), []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        trace, budget = trace_of(20, seed, float(rng.uniform(2, 12))), float(rng.uniform(7, 14))
        prices = {"v100": float(rng.uniform(2, 5)), "k80": float(rng.uniform(0.4, 1.6))}
        entries = tuple(
            gp.CatalogEntry(accelerator=name, num_gpus=4, rent_usd=price, max_nodes=8) for name, price in prices.items()
        )
        plan = planned(trace, gp.Catalog(entries), limits=gp.FleetLimits(budget_usd_per_hour=budget), resamples=1)
        fleets = [dict(zip(prices, each, strict=True)) for each in itertools.product(range(9), repeat=2) if any(each)]
        within = [fleet for fleet in fleets if sum(fleet[name] * price for name, price in prices.items()) <= budget]
        values = {tuple(fleet.values()): replayed(trace, fleet).jct.mean or math.inf for fleet in within}
        best = min(values, key=values.__getitem__)
        kinds.add((best[0] > 0, best[1] > 0))
        if min(each.value for each in plan.front) > values[best] * (1 + 1e-9):
            missed.append((seed, best, values[best], plan.chosen))
    assert not missed
    assert len(kinds) > 1


@pytest.mark.deep
def test_a_plan_on_estimates_is_replayed_with_cautious_and_optimistic_speeds(tmp_path: Any) -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20").with_estimates()
    offered = gp.Catalog((*catalog("v100", max_nodes=1).entries, gp.CatalogEntry(accelerator="a100-80gb", num_gpus=4, rent_usd=8)))
    settings: dict[str, Any] = {"policy": "fifo", "round_seconds": None, "resamples": 1, "executor": InThisThread()}
    limits = gp.FleetLimits(budget_usd_per_hour=8.5)
    plan = gp.plan_from_trace(trace_of(5), offered, profile, limits=limits, results=tmp_path / "kept.sqlite", **settings)
    assert plan.chosen.nodes == (0, 1)
    cautious, optimistic = plan.cautious
    assert optimistic < plan.chosen.value < cautious


@pytest.mark.deep
@needs_shared_data
def test_two_weeks_of_a_trace_get_a_fleet_of_480_dollars_that_waits_80_minutes() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    whole = gp.read_trace(SHARED / "philly" / "philly_jobs.csv").window(20 * 86400, 34 * 86400)
    trace, profile = gp.assign_job_types(whole, profile, seed=0, extrapolate=True)
    assert len(trace) == 16_735
    sizes, prices = {"v100": 8, "p100": 4, "k80": 4}, {"v100": 0.79, "p100": 0.45, "k80": 0.2}
    offered = gp.Catalog(
        tuple(gp.CatalogEntry(accelerator=name, num_gpus=size, rent_usd=prices[name] * size) for name, size in sizes.items())
    )
    known = [({"v100": 45, "p100": 90, "k80": 90}, 6.52, 24.11), ({"v100": 75}, 3.37, 10.85)]
    for fleet, mean, p95 in known:
        cluster = gp.Cluster.from_counts({name: (count * sizes[name], sizes[name]) for name, count in fleet.items()})
        waits = gp.simulate(trace, cluster, profile, "fifo", round_seconds=None).summary.queueing
        assert ((waits.mean or 0.0) / 3600, (waits.p95 or 0.0) / 3600) == pytest.approx((mean, p95), abs=0.01)
    limits = gp.FleetLimits(budget_usd_per_hour=480)
    plan = gp.plan_from_trace(trace, offered, profile, "wait", policy="fifo", round_seconds=None, limits=limits, resamples=1)
    assert plan.chosen.usd_per_hour <= 480
    assert (plan.chosen.nodes, plan.replays) == ((33, 149, 4), 48)  # as on the page of plans
    assert plan.chosen.value / 3600 == pytest.approx(1.34, abs=0.01)
