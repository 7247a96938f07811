"""The page of a plan: charts of demand beside the fleet and of cost over service, with their numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.planning.replays import ReplayedFleet


def test_the_page_of_hourly_demand_has_text_charts_and_their_numbers(tmp_path: Path) -> None:
    demand = gp.HourlyDemand(("a<b", "c"), np.random.default_rng(0).integers(0, 9, (60, 2)).astype(float))
    offered = gp.Catalog(tuple(gp.CatalogEntry(accelerator=name, num_gpus=2, rent_usd=4.0) for name in demand.classes))
    plan = gp.in_other_words(gp.plan_fleet(demand, offered, "joint=90%"))
    gp.write_plan_page(plan, tmp_path / "plan.html", "Rent & keep")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "Rent &amp; keep" in page
    assert "a<b" not in page
    assert f"<td>{plan.usd_per_hour:.6g}</td>" in page
    assert not re.search(r"(src|href)=\"http", page)


def test_the_page_of_replays_has_the_front(tmp_path: Path) -> None:
    offered = gp.Catalog((gp.CatalogEntry(accelerator="v100", num_gpus=4, rent_usd=3.0),))
    front = [ReplayedFleet((1,), 3.0, 0.0, 7200.0), ReplayedFleet((2,), 6.0, 0.0, 3600.0)]
    hours = np.arange(3.0), np.array([4.0, 8.0, 2.0])
    market = gp.FleetMarket(offered, np.zeros(1, dtype=np.int64))
    plan = gp.TracePlan(market, gp.FleetTarget.parsed("wait"), front[1], None, front, {}, (), 2, hours)
    gp.write_plan_page(plan, tmp_path / "plan.html")
    assert "<td>6</td><td>1</td>" in (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match="there is no folder"):
        gp.write_plan_page(None, tmp_path / "none" / "plan.html")  # type: ignore[arg-type]
