"""The page of a plan: its text, demand beside the fleet, and cost over service with the chosen fleet."""

from __future__ import annotations

import html
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from gavel_py.io.writing import check_report, write_atomic
from gavel_py.planning.chance import HourCoverage
from gavel_py.planning.fleet import FleetPlan
from gavel_py.planning.replays import TracePlan
from gavel_py.problem.arrays import Floats
from gavel_py.report.charts import DARK, LIGHT, Axis, Chart, Curve, Panel, Table
from gavel_py.report.run_report import embedded

STYLE = """body { max-width: 70rem; margin: 1rem auto; padding: 0 1rem; background: var(--page); color: var(--ink);
font: 1rem/1.5 system-ui, sans-serif; } pre { overflow-x: auto; } figure { margin: 2rem 0; } svg { width: 100%; height: auto; }
td { padding: 0 .6rem; text-align: right; } figcaption { color: var(--muted); }"""


def write_plan_page(plan: FleetPlan | TracePlan, path: str | Path, text: str = "") -> None:
    """Write a plan as an HTML page, which needs no network and no scripts.

    Args:
        plan: The plan.
        path: The file.
        text: The text of the plan, as `gavel plan` prints it.

    Raises:
        InputError: The file cannot be written (`check_report`).
    """
    check_report(path)
    from gavel_py.report.figures import figure_bytes

    charts = list(_of_hours(plan) if isinstance(plan, FleetPlan) else _of_replays(plan))
    colours = ["".join(f"--{name}: {colour}; " for name, colour in palette.items()) for palette in (LIGHT, DARK)]
    figures = [
        f"<figure><h2>{html.escape(chart.title)}</h2>{embedded(figure_bytes(chart.draw, chart.name, 'svg'), chart)}"
        f"<figcaption>{html.escape(chart.description)}</figcaption>{_table(chart.table)}</figure>"
        for chart in charts
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What to buy</title>'
        f"<style>:root {{ {colours[0]} }} @media (prefers-color-scheme: dark) {{ :root {{ {colours[1]} }} }} {STYLE}</style></head>"
        f"<body><h1>What to buy</h1><pre>{html.escape(text)}</pre>{''.join(figures)}</body></html>"
    )
    write_atomic(path, page.encode())


def _table(table: Table) -> str:
    rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in (table.columns, *table.rows)]
    return f"<details><summary>The numbers</summary><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table></details>"


def _lines(name: str, title: str, text: str, panels: list[Panel], x: Axis, *, dots: bool = False) -> Chart:
    def draw() -> object:
        from gavel_py.report.figures import lines_figure

        return lines_figure(panels, x, dots=dots)

    rows = [
        [panel.title, curve.label, f"{a:.6g}", f"{b:.6g}"]
        for panel in panels
        for curve in panel.curves
        for a, b in zip(curve.x.tolist(), curve.y.tolist(), strict=True)
    ]
    return Chart(name, title, text, partial(draw), Table(["", "", x.title, panels[0].y.title], rows))  # type: ignore[arg-type]


def _against(fleet: float, demand: Floats, x: Floats, title: str = "") -> Panel:
    """Return the curves of demand and of a fleet's GPUs."""
    return Panel([Curve("asked for", x, demand), Curve("plan", x, np.full(len(x), fleet), 1)], Axis("GPUs", low=0.0), title)


def _of_hours(plan: FleetPlan) -> Iterator[Chart]:
    gpus, levels = plan.nodes * plan.market.sizes, np.linspace(0.0, 1.0, 101)
    panels = [_against(0.0, np.quantile(plan.lacks, 1 - levels), 100 * levels, "GPUs that are lacking")]
    if HourCoverage(plan.speeds).is_apart:
        by_type = plan.demand.gpus @ plan.speeds
        curves = np.quantile(by_type, 1 - levels, axis=0).T
        panels = [_against(*each[:2], 100 * levels, each[2]) for each in zip(gpus.tolist(), curves, plan.types, strict=True)]
    text = "Hours by their demand, the largest first: where demand is above the fleet, the type lacks GPUs."
    yield _lines("demand", "Demand and fleet", text, panels, Axis("% of the hours"))
    found = sorted((each.shares["joint"], each.usd_per_hour) for each in (plan, *plan.others.values()))
    x, y = np.array(found).T
    costs = Panel([Curve("least cost", 100 * x, y)], Axis("$ per hour"), mark=100 * plan.shares["joint"])
    text = "Least cost of each service asked for, over the hours in which all demand is served; the dotted line is the plan."
    yield _lines("cost", "Cost over service", text, [costs], Axis("% of the hours with all demand served"), dots=True)


def _of_replays(plan: TracePlan) -> Iterator[Chart]:
    hours, gpus = plan.demand
    fleet = float(plan.chosen.nodes @ plan.market.sizes)
    text = "GPUs that the jobs would hold if each began at once on its fastest type, and those of the plan."
    yield _lines("demand", "Demand and fleet", text, [_against(fleet, gpus, hours)], Axis("hours"))
    unit = 1.0 if plan.target.metric == "late" else 3600.0
    x, y = np.array([(each.usd_per_hour, each.value / unit) for each in plan.front]).T
    title = plan.target.text.partition("<")[0].strip() + (", hours" if unit > 1 else "")
    panel = Panel([Curve("not beaten", x, y)], Axis(title, low=0.0), mark=plan.chosen.usd_per_hour)
    text = "Fleets that no other one beats in both cost and service, on the trace; the dotted line is the plan."
    yield _lines("cost", "Cost over service", text, [panel], Axis("$ per hour"), dots=True)
