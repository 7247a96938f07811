"""Fleets for hourly demand: least cost against brute force, other words for service, limits, conflicts, held-back hours."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from tests.planning.brute_force import cheapest, drawn_apart, drawn_sharing
from tests.support.shared_data import SHARED, needs_shared_data


def catalog(size: Any, price: Any, **more: Any) -> gp.Catalog:
    """Return a catalog of types t0, t1, ... that are rented."""
    lists = {name: list(values) for name, values in more.items()}
    return gp.Catalog(
        tuple(
            gp.CatalogEntry(
                accelerator=f"t{j}", num_gpus=int(size[j]), rent_usd=price[j], **{name: each[j] for name, each in lists.items()}
            )
            for j in range(len(size))
        )
    )


@dataclass
class Draws:
    """Fleets that draw at most this power."""

    watts: np.ndarray
    limit: float

    def is_within(self, fleet: np.ndarray) -> bool:
        return bool(fleet @ self.watts <= self.limit)


def demand_of(gpus: Any) -> gp.HourlyDemand:
    values = np.array(gpus, dtype=float)
    return gp.HourlyDemand(tuple(f"t{i}" for i in range(values.shape[1])), values)


def check_against_brute_force(drawn: Any) -> None:
    demand, speeds, size, price, share = drawn
    missed = int(np.floor(share * len(demand) + 1e-9))
    service = gp.FleetService("joint", 1 - missed / len(demand))
    peak = np.ceil(demand.max(axis=0) / size).astype(int) if np.array_equal(speeds, np.eye(len(size))) else np.full(len(size), 14)
    most = peak.tolist()
    offered, best = catalog(size, price, max_nodes=most), cheapest(demand, speeds, size, price, missed, most)
    if best is None:
        with pytest.raises(gp.InputError, match="need more than can be had"):
            gp.plan_fleet(demand_of(demand), offered, service, relative_throughputs=speeds)
        return
    found = gp.plan_fleet(demand_of(demand), offered, service, relative_throughputs=speeds)
    assert found.usd_per_hour == pytest.approx(best, rel=2e-4, abs=1e-9)
    assert found.bound <= found.usd_per_hour * (1 + 1e-9)
    assert (found.lacks > 1e-5).sum() <= missed


@pytest.mark.parametrize("seed", range(6))
def test_fleets_cost_as_little_as_by_brute_force(seed: int) -> None:
    check_against_brute_force(drawn_apart(np.random.default_rng(seed)))


@pytest.mark.parametrize("seed", range(3))
def test_fleets_of_types_that_share_demand_cost_as_little_as_by_brute_force(seed: int) -> None:
    check_against_brute_force(drawn_sharing(np.random.default_rng(seed)))


@pytest.mark.deep
def test_840_drawn_fleets_cost_as_little_as_by_brute_force() -> None:
    for seed in range(600):
        check_against_brute_force(drawn_apart(np.random.default_rng(1_000 + seed)))
    for seed in range(240):
        check_against_brute_force(drawn_sharing(np.random.default_rng(2_000 + seed)))


def test_limits_hold_and_fleets_within_them_cost_as_little_as_by_brute_force() -> None:
    for seed in range(4):
        demand, speeds, size, price, share = drawn_apart(np.random.default_rng(50 + seed))
        missed = int(np.floor(share * len(demand) + 1e-9))
        if not missed:
            continue
        watts = np.random.default_rng(seed).uniform(200, 900, len(size)) * size
        most = np.ceil(demand.max(axis=0) / size).astype(int).tolist()
        free = gp.plan_fleet(demand_of(demand), catalog(size, price), gp.FleetService("joint", 1 - missed / len(demand)))
        limit = 0.97 * float(free.nodes @ watts) / 1000
        best = cheapest(demand, speeds, size, price, missed, most, Draws(watts, 1000 * limit).is_within)
        limits, offered = gp.FleetLimits(power_kw=limit), catalog(size, price, watts=watts.tolist())
        if best is None:
            with pytest.raises(gp.InputError, match="power_kw"):
                gp.plan_fleet(demand_of(demand), offered, free.service, limits=limits)
            continue
        found = gp.plan_fleet(demand_of(demand), offered, free.service, limits=limits)
        assert found.use_of("power_kw") <= limit * (1 + 1e-6)
        assert found.usd_per_hour == pytest.approx(best, rel=2e-4)


def test_other_words_for_service_are_other_fleets() -> None:
    demand = demand_of(np.random.default_rng(3).gamma(2, 20, (200, 3)))
    plan = gp.in_other_words(gp.plan_fleet(demand, catalog([1, 4, 8], [1.0, 6.0, 20.0]), "joint=90%"))
    sizes = np.array([1, 4, 8])
    each, work = plan.others["each=90%"], plan.others["work=90%"]
    by_sorting = np.ceil(np.sort(demand.gpus, axis=0)[-21] / sizes)
    assert each.nodes.tolist() == by_sorting.tolist()
    assert each.shares["each"] >= 0.9 > each.shares["joint"]
    assert np.minimum(demand.gpus, work.nodes * sizes).sum() >= 0.9 * demand.gpus.sum()
    assert work.usd_per_hour < each.usd_per_hour < plan.usd_per_hour
    assert work.bound >= work.usd_per_hour * (1 - 1e-4)
    assert plan.others["joint=80%"].usd_per_hour < plan.usd_per_hour < plan.others["joint=95%"].usd_per_hour


def test_the_least_cost_of_work_is_that_of_brute_force() -> None:
    rng = np.random.default_rng(8)
    gpus, size, price = rng.gamma(2, 6, (30, 2)), np.array([2, 3]), np.array([1.0, 1.9])
    found = gp.plan_fleet(demand_of(gpus), catalog(size, price), "work=85%")
    costs = [
        a * price[0] + b * price[1]
        for a in range(40)
        for b in range(40)
        if np.minimum(gpus, np.array([a, b]) * size).sum() >= 0.85 * gpus.sum()
    ]
    assert found.usd_per_hour == pytest.approx(min(costs))


def test_a_budget_without_service_serves_as_many_hours_as_it_can() -> None:
    gpus = np.random.default_rng(5).integers(0, 5, (30, 2)).astype(float)
    plan = gp.plan_fleet(demand_of(gpus), catalog([1, 1], [1.0, 2.0]), limits=gp.FleetLimits(budget_usd_per_hour=8.0))
    most = max((gpus <= [a, b]).all(axis=1).sum() for a in range(6) for b in range(6) if a + 2 * b <= 8)
    assert plan.usd_per_hour <= 8
    assert (plan.lacks == 0).sum() == most


def test_nodes_are_kept_bought_and_retired_and_a_budget_counts_what_is_paid() -> None:
    offered = gp.Catalog(
        (
            gp.CatalogEntry(accelerator="old", num_gpus=4, buy_usd=10_000, resale_usd=4_000, watts=2_000),
            gp.CatalogEntry(accelerator="new", num_gpus=8, buy_usd=80_000, life_years=5, watts=5_000),
        )
    )
    demand = gp.HourlyDemand(("old", "new"), np.array([[4.0, 16.0]] * 20))
    have = gp.Cluster.from_counts({"old": (12, 4), "new": (8, 8)})
    limits = gp.FleetLimits(usd_per_kwh=0.1)
    plan = gp.plan_fleet(demand, offered, "joint=100%", existing=have, limits=limits)
    assert (plan.kept.tolist(), plan.bought.tolist(), plan.retired.tolist()) == ([1, 1], [0, 1], [2, 0])
    assert plan.use_of("budget_usd") == 80_000 - 2 * 4_000
    cost = 4_000 / 4 / 8766 + 80_000 / 5 / 8766 + 2 * 0.5 + 0.2
    assert plan.usd_per_hour == pytest.approx(cost)
    with pytest.raises(gp.InputError, match="budget_usd"):
        gp.plan_fleet(demand, offered, "joint=100%", existing=have, limits=gp.FleetLimits(budget_usd=70_000))


def test_a_conflict_names_a_smallest_set_of_hours_and_types() -> None:
    gpus = [[1.0, 1.0]] * 18 + [[9.0, 1.0], [12.0, 1.0]]
    with pytest.raises(gp.InputError) as error:
        gp.plan_fleet(demand_of(gpus), catalog([1, 1], [1.0, 1.0], max_nodes=[8, None]), "joint=95%")
    assert [each.where for each in error.value.faults] == ["service", "hour 18", "hour 19"]
    assert "asks for 12 GPUs in all; at most there can be 8 GPUs of t0" in str(error.value)
    gp.plan_fleet(demand_of([*gpus[:-1], [1.0, 1.0]]), catalog([1, 1], [1.0, 1.0], max_nodes=[8, None]), "joint=95%")


def test_at_the_time_limit_the_fleet_still_serves_what_was_asked_for() -> None:
    rng = np.random.default_rng(2)
    speeds = rng.uniform(0.3, 3, (8, 8)) * (rng.random((8, 8)) > 0.5) + np.eye(8)
    demand = demand_of(rng.gamma(2, 30, (200, 8)))
    plan = gp.plan_fleet(demand, catalog([8] * 8, rng.uniform(5, 30, 8)), "joint=95%", relative_throughputs=speeds, time_limit=0.05)
    assert plan.shares["joint"] >= 0.95
    assert 0 <= plan.bound <= plan.usd_per_hour
    with pytest.raises(gp.InputError, match="no fleet was found within 1e-06 s"):
        gp.plan_fleet(demand, catalog([8] * 8, [1.0] * 8), "work=95%", relative_throughputs=speeds, time_limit=1e-6)


def test_held_back_hours_are_served_by_fleets_planned_on_the_hours_before() -> None:
    gpus = np.concatenate([np.full((120, 1), 4.0), np.full((40, 1), 6.0)])
    plan = gp.walk_forward(gp.plan_fleet(demand_of(gpus), catalog([1], [1.0]), "joint=95%"), 2)
    assert [len(each.demand) for each in plan.held_back] == [40, 40]
    assert [each.nodes.tolist() for each in plan.held_back] == [[4], [4]]
    assert [each.served for each in plan.held_back] == [1.0, 0.0]
    assert plan.held_back[1].worst == [(str(hour), 2.0) for hour in range(5)]


@pytest.mark.parametrize(
    ("service", "text"),
    [
        ("joint=95", "write 95%"),
        ("95%", "must be joint=SHARE"),
        ("joint=0%", "above 0"),
        ("joint=95%", "lets none of 12 hours be missed; write joint=100%"),
        ("each=99%", "at least 100 hours"),
    ],
)
def test_service_that_means_something_else_is_refused(service: str, text: str) -> None:
    with pytest.raises(gp.InputError, match=text):
        gp.plan_fleet(demand_of([[1.0]] * 12), catalog([1], [1.0]), service)


def test_demand_that_cannot_run_is_refused() -> None:
    demand = gp.HourlyDemand(("t0", "h200"), np.ones((20, 2)))
    with pytest.raises(gp.InputError, match="'h200': is a class of demand, but no accelerator"):
        gp.plan_fleet(demand, catalog([1], [1.0]))
    with pytest.raises(gp.InputError, match="class 'h200': cannot run on any type"):
        gp.plan_fleet(demand, catalog([1], [1.0]), relative_throughputs=[[1.0], [0.0]])
    with pytest.raises(gp.InputError, match="each= counts each class by itself"):
        gp.plan_fleet(demand, catalog([1], [1.0]), "each=90%", relative_throughputs=[[1.0], [2.0]])


SPOT = SHARED / "spot-gpu-2026" / "hourly_concurrency_top_models.csv"
TYPES = {"A10": (1, 1.29), "A100": (8, 2.79), "S1": (8, 0.79), "H800": (8, 2.95), "S2": (8, 1.5484), "A800": (8, 2.79)}
"""GPUs of a node and list price of a GPU-hour of the six types, as assigned in ../shared/design/plan.md."""


@pytest.mark.deep
@needs_shared_data
def test_the_fleet_for_half_a_year_of_a_cloud_has_the_known_cost_and_nodes() -> None:
    with open(SPOT, encoding="utf-8") as file:
        rows = [[float(cell or 0) for cell in row[1:]] for row in list(csv.reader(file))[1:4418]]
    demand = gp.HourlyDemand(tuple(TYPES), np.maximum(rows, 0.0))
    offered = gp.Catalog(
        tuple(gp.CatalogEntry(accelerator=name, num_gpus=size, rent_usd=price * size) for name, (size, price) in TYPES.items())
    )
    plan = gp.walk_forward(gp.in_other_words(gp.plan_fleet(demand, offered, "joint=95%")), 3)
    assert plan.usd_per_hour == pytest.approx(28_555.05, abs=0.01)
    assert plan.gap <= 1e-4
    assert plan.nodes.tolist() == [4393, 490, 221, 306, 206, 35]
    # As on the page of plans.
    found = [plan, plan.others["each=95%"], plan.others["work=95%"]]
    assert [round(each.usd_per_hour) for each in found] == [28_555, 25_536, 19_990]
    assert [f"{each.shares['joint']:.1%}" for each in found] == ["95.0%", "75.4%", "20.4%"]
    assert [len(each.demand) for each in plan.held_back] == [730] * 3
    assert [f"{each.served:.1%}" for each in plan.held_back] == ["42.5%", "76.7%", "85.2%"]
