"""Workflows as groups: in the picture of rounds, and in the charts of a run."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np

import gavel_py as gp
from gavel_py.report.run_charts import stays_chart, workflows_chart
from gavel_py.report.runs.run import document_of, run_from
from gavel_py.report.timeline import IDLE, RoundGrid, colours_of

WORKFLOWS = {"a": "night", "b": "night", "c": "day"}


def _run() -> gp.Run:
    jobs = [
        gp.Job("a", total_steps=100, workflow="night", num_gpus=2),
        gp.Job("b", total_steps=50, workflow="night", depends_on="a"),
        gp.Job("c", total_steps=30, workflow="day", arrival_seconds=5),
        gp.Job("d", total_steps=20, arrival_seconds=5),
    ]
    speeds = gp.ThroughputProfile.from_matrix(np.ones((4, 1)), job_ids=list("abcd"), accelerators=["v100"])
    return gp.record_run(jobs, gp.Cluster.from_inline("v100:2/1"), speeds, "fifo", stays=True, round_seconds=None)


def test_the_jobs_of_a_workflow_have_one_colour_and_neighbours_have_others() -> None:
    grid = RoundGrid(["a", "x", "b", "c"], np.array([[0, 1], [2, 3], [IDLE, IDLE]]))
    a, x, b, c = colours_of(grid, WORKFLOWS).values()
    assert a == b
    assert len({a, x, c}) == 3
    assert len(set(colours_of(grid).values())) >= 3
    assert colours_of(grid) == colours_of(grid, {})


def test_the_legend_of_rounds_names_workflows(tmp_path: Path) -> None:
    speeds = gp.ThroughputProfile.from_matrix(np.ones((3, 1)), job_ids=list("abc"), accelerators=["v100"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 3}), speeds)
    scheduler.submit_all([gp.Job(name, workflow=workflow) for name, workflow in WORKFLOWS.items()])
    path, rounds = tmp_path / "rounds.svg", [scheduler.next_round()]
    gp.plot_rounds(rounds, scheduler.cluster, path, round_seconds=360, workflows=WORKFLOWS)
    texts = {element.text for element in ET.fromstring(path.read_text()).iter()}  # noqa: S314
    assert {"workflow night", "workflow day"} <= texts


def test_the_legend_of_rounds_names_tenants_with_their_time(tmp_path: Path) -> None:
    """Two tenants with a job of one GPU each, and a job without a tenant; of workflows, these are named instead."""
    speeds = gp.ThroughputProfile.from_matrix(np.ones((3, 1)), job_ids=list("abc"), accelerators=["v100"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 3}), speeds, round_seconds=3600)
    tenants = {"a": "red", "b": "blue"}
    scheduler.submit_all([gp.Job(name, tenant=tenants.get(name, "")) for name in "abc"])
    path, rounds = tmp_path / "rounds.svg", [scheduler.next_round()]

    def texts(**more: Any) -> set[str | None]:
        gp.plot_rounds(rounds, scheduler.cluster, path, round_seconds=3600, **more)
        return {element.text for element in ET.fromstring(path.read_text()).iter()}  # noqa: S314

    times = {f"tenant {name}: 1 GPU-h promised, 1 received" for name in ("red", "blue")}
    assert times | {"no tenant"} <= texts(tenants=tenants, delivery=scheduler.delivery())
    assert {"tenant red", "tenant blue", "no tenant"} <= texts(tenants=tenants)
    assert "tenant red" not in texts(tenants=tenants, workflows={"a": "night"})
    assert not any("tenant" in (text or "") for text in texts(tenants=dict.fromkeys("abc", "red")))


def test_a_run_keeps_its_workflows_and_draws_a_group_for_each() -> None:
    run = _run()
    assert dict(run.workflows) == WORKFLOWS
    assert run_from(document_of(run)).workflows == run.workflows
    (chart,) = workflows_chart("w", "Workflows", run.stays, run.workflows)
    assert [row[:2] for row in chart.table.rows] == [["night", "2"], ["day", "1"]]
    assert [row[2:] for row in chart.table.rows] == [["0", "150", "150"], ["100", "130", "30"]]
    names = {text.get_text() for axes in chart.draw().axes for text in axes.get_yticklabels()}
    assert names == {"night", "day"}
    assert list(workflows_chart("w", "Workflows", run.stays, {})) == []
    (gpus,) = stays_chart("g", "GPUs", run.stays, (), run.workflows)
    assert "workflow have one colour" in gpus.description
    assert _legend(gpus) == ["workflow day", "workflow night"]
    assert _legend(next(stays_chart("g", "GPUs", run.stays))) == []


def _legend(chart: Any) -> list[str]:
    return [text.get_text() for legend in chart.draw().legends for text in legend.get_texts()]


def test_a_legend_of_many_workflows_is_cut_short() -> None:
    stays = [gp.Stay(f"j{n}", "", "n0", "v100", 1, float(n), n + 1.0) for n in range(20)]
    (chart,) = stays_chart("g", "GPUs", stays, (), {f"j{n}": f"w{n}" for n in range(20)})
    assert _legend(chart) == [*(f"workflow w{n}" for n in range(12)), "8 others"]
