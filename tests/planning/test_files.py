"""Catalogs and hourly demand from files: units, and all faults at once in the words of the file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp

Write = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "file.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def faults(call: Callable[[], object]) -> list[str]:
    with pytest.raises(gp.InputError) as error:
        call()
    return [re.sub(r"\S*/file.csv", "file.csv", str(each)) for each in error.value.faults]


def test_quantities_of_a_gpu_become_those_of_a_node(written: Write) -> None:
    text = (
        "accelerator,gpus_per_node,rent_usd_per_gpu_month,buy_usd_per_gpu,watts_per_gpu,life_years\na,4,730.5,,500,\nb,2,,8766,,2\n"
    )
    a, b = gp.read_catalog(written(text)).entries
    assert [a.rent_usd, a.watts, a.gpu_usd_per_hour] == pytest.approx([4.0, 2000, 1.0])
    assert [b.buy_usd, b.node_usd_per_hour()] == pytest.approx([2 * 8766, 1.0])


def test_all_faults_of_a_catalog_come_at_once(written: Write) -> None:
    text = """accelerator,gpus_per_node,buy_usd_per_node,buy_usd_per_gpu,rent_usd_per_gpu_hour,max_nodes,resale_usd_per_node
h100,8,250000,30000,,4,
a100,0,-5,,,x,
a100,8,,,2.9,2,
l40s,4,,,,2,
b200,8,9000,,5.5,2,10000
"""
    found = faults(lambda: gp.read_catalog(written(text)))
    assert found[0] == "file.csv, line 2, field buy_usd_per_gpu: is also given as buy_usd_per_node; give only one of them"
    assert "file.csv, line 3 (accelerator 'a100'), field gpus_per_node: must be at least 1, found '0'" in found
    assert "file.csv, line 3 (accelerator 'a100'), field max_nodes: must be a whole number, found 'x'" in found
    assert any("line 5 (accelerator 'l40s'): has no price" in each for each in found)
    assert any("line 6 (accelerator 'b200'): has two prices, buy_usd_per_node and rent_usd_per_gpu_hour" in each for each in found)
    assert any("line 6 (accelerator 'b200'), field resale_usd_per_node: is above the price" in each for each in found)
    assert any("appears twice, first at" in each for each in found)


def test_a_price_without_unit_is_refused_with_the_units_that_there_are(written: Write) -> None:
    (found,) = faults(lambda: gp.read_catalog(written("accelerator,gpus_per_node,price\nh100,8,4\n")))
    assert "must state its unit; use one of buy_usd_per_node, buy_usd_per_gpu, rent_usd_per_node_hour" in found
    (found,) = faults(lambda: gp.read_catalog(written("accelerator,gpus_per_node,buy_usd_per_nod\nh100,8,4\n")))
    assert "did you mean 'buy_usd_per_node'" in found


@pytest.mark.parametrize(
    ("column", "price", "better"),
    [
        ("rent_usd_per_gpu_hour", 2150, "rent_usd_per_gpu_month"),
        ("rent_usd_per_gpu_hour", 23.6, "rent_usd_per_node_hour"),
        ("buy_usd_per_node", 31250, "buy_usd_per_gpu"),
        ("buy_usd_per_node", 250000, ""),
        ("rent_usd_per_gpu_hour", 2.95, ""),
    ],
)
def test_prices_that_are_usual_in_another_unit_are_pointed_out(written: Write, column: str, price: float, better: str) -> None:
    path = written(f"accelerator,gpus_per_node,{column}\nh100,8,{price}\n")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gp.read_catalog(path)
    assert [f"which would be usual as {better}; check its unit" in str(each.message) for each in found] == [True] * bool(better)


def test_one_file_has_the_prices_of_all_commands(written: Write) -> None:
    prices = gp.read_catalog(written("accelerator,gpus_per_node,rent_usd_per_node_hour\nh100-80gb,8,24\n"))
    cluster = prices.priced(gp.Cluster.from_counts({"H100": 16, "k80": 8}))
    assert [each.price_per_hour for each in cluster.accelerator_types] == [3.0, None]
    with pytest.raises(gp.InputError, match="'k80': is not in the catalog"):
        prices.nodes_in(cluster)
    with pytest.raises(gp.InputError, match="has nodes of 4 GPUs, but those of the catalog have 8"):
        prices.nodes_in(gp.Cluster.from_counts({"h100": (8, 4)}))


def test_hours_and_times_with_offsets_are_read(written: Write) -> None:
    times = "time,a\n2026-03-29T01:00+01:00,1\n2026-03-29T03:00+02:00,2\n2026-03-29T04:00+02:00,3\n"
    demand = gp.read_demand(written(times))
    assert (demand.classes, demand.gpus.tolist(), demand.name_of(1)) == (("a",), [[1.0], [2.0], [3.0]], "2026-03-29T03:00+02:00")
    assert gp.read_demand(written("hour,a\n7,1\n8,-3e-12\n9,2\n")).gpus.tolist() == [[1.0], [0.0], [2.0]]


def test_all_faults_of_hours_come_at_once(written: Write) -> None:
    found = faults(lambda: gp.read_demand(written("hour,a,b\n0,3,-4\n1,,5\n1,3,4\n4,3,x\n")))
    assert found == [
        "file.csv, line 2, field b: must be a number of at least 0, found '-4'",
        "file.csv, line 3, field a: is missing; write 0 if nothing ran",
        "file.csv, line 5, field b: must be a number of at least 0, found 'x'",
        "file.csv, line 4, field hour: 1 appears twice, first at file.csv, line 3",
        "file.csv, line 5, field hour: 2 hours are missing before 4; write its GPUs, 0 if nothing ran",
    ]


@pytest.mark.parametrize(("name", "value"), [("hour", "inf"), ("hour", "0.5"), ("time", "0001-01-01T00:00+05:00")])
def test_an_hour_that_is_none_is_refused(written: Write, name: str, value: str) -> None:
    (found,) = faults(lambda: gp.read_demand(written(f"{name},a\n{value},1\n")))
    assert f"field {name}: must be a whole number of the hour, or a time such as" in found


def test_numbers_that_no_program_can_hold_are_refused(written: Write) -> None:
    (found,) = faults(lambda: gp.read_demand(written("hour,a\n0,1e308\n")))
    assert found == "file.csv, line 2, field a: must be at most 1,000,000,000, found '1e308'"
    demand = gp.HourlyDemand(("t0",), np.ones((20, 1)))
    offered = gp.Catalog((gp.CatalogEntry(accelerator="t0", num_gpus=1, rent_usd=1),))
    for speed in (1e-320, 1e308, -1.0, np.nan):
        with pytest.raises(gp.InputError, match="speeds: must be 0, or at least 1/1,000,000 and at most 1,000,000"):
            gp.plan_fleet(demand, offered, relative_throughputs=[[speed]])


def test_the_change_of_the_clock_is_named_as_a_reason(written: Write) -> None:
    found = faults(lambda: gp.read_demand(written("time,a\n2026-10-25T01:00,1\n2026-10-25T02:00,1\n2026-10-25T02:00,1\n")))
    assert "if the clock was set back there, give times with their offset" in found[0]
    found = faults(lambda: gp.read_demand(written("time,a\n2026-03-29T01:00,1\n2026-03-29T03:00,1\n")))
    assert "an hour is missing before 2026-03-29T03:00" in found[0]
    assert "set forward" in found[0]
    found = faults(lambda: gp.read_demand(written("time,a\n2026-03-29T01:00,1\n2026-03-29T02:00+01:00,1\n")))
    assert "has no offset from UTC, but others have" in found[0]


def test_a_last_hour_that_is_not_complete_is_pointed_out(written: Write) -> None:
    with pytest.warns(gp.GavelWarning, match="line 5: the last hour has 1 GPUs in all, less than half of any other"):
        gp.read_demand(written("hour,a\n0,9\n1,8\n2,9\n3,1\n"))
    (found,) = faults(lambda: gp.read_demand(written("time,a\n2026-03-01T01:00,1\n2026-03-01T02:00,1\n2026-03-01T02:20,1\n")))
    assert "is 20 minutes after the line above it; each line must be a whole hour" in found


def test_a_file_of_jobs_is_no_demand(written: Write) -> None:
    (found,) = faults(lambda: gp.read_demand(written("job_id,num_gpus,total_steps\na,1,5\n")))
    assert "has the columns of jobs (job_id, num_gpus, total_steps), not hourly demand" in found


def test_speeds_on_other_types_are_read(written: Write) -> None:
    assert gp.read_relative_throughputs(written("class,a,b\na,1,\nb,0.5,1\n")) == {"a": {"a": 1.0}, "b": {"a": 0.5, "b": 1.0}}
    found = faults(lambda: gp.read_relative_throughputs(written("class,a\na,-1\na,1\n")))
    assert len(found) == 2
