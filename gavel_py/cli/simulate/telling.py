"""What gavel simulate prints: tables, one JSON document, or CSV."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import gavel_py as gp
from gavel_py.cli.output import csv_text, gang_text, number, table_text, unused_text, width
from gavel_py.cli.simulate.metrics import metrics_of
from gavel_py.cli.simulate.options import Request
from gavel_py.cli.simulate.played import Played, reasons
from gavel_py.cli.simulate.scenario import Scenario
from gavel_py.cli.simulate.times import time_text, unit_of
from gavel_py.cli.trace.files import report_text

__all__ = ["csv_of", "json_of", "settings_of", "text_of"]

MOST_SHOWN = 5
"""Jobs listed of those that got no GPUs; the JSON has them all."""


def text_of(scenario: Scenario, all_played: Sequence[Played], not_played: Sequence[gp.Policy]) -> str:
    """Return the tables, and what has to be said besides."""
    parts = [report_text(scenario.trace.report) + "\n"]
    if all_played:
        parts += [_summary(all_played) + unused_text(scenario.cluster.left_out), *_gangs(all_played)]
    return "\n".join([*parts, *_notes(all_played, not_played)])


def _summary(all_played: Sequence[Played]) -> str:
    shown = [metric.row(all_played) for metric in metrics_of(all_played) if metric.says_something(all_played)]
    return table_text("Simulation", ["metric", *(played.label for played in all_played)], shown)


def _gangs(all_played: Sequence[Played]) -> Iterator[str]:
    """Queueing delays by gang size, if there are several: one policy in detail, or the means of several."""
    by_gpus = [played.result.summary.queueing_by_gpus for played in all_played]
    sizes = sorted({size for each in by_gpus for size in each})
    if len(sizes) < 2:
        return
    if len(all_played) == 1:
        unit, length = unit_of(each.p99 for each in by_gpus[0].values())
        columns = ["GPUs", "jobs finished", "mean", "median", "90 %", "99 %"]
        rows = [
            [
                gang_text(size),
                f"{each.count:,}",
                *(number(_per(part, length)) for part in (each.mean, each.median, each.p90, each.p99)),
            ]
            for size, each in by_gpus[0].items()
        ]
        yield table_text(textwrap.fill(f"Queueing delay by gang ({unit})", width()), columns, rows, text_columns=0)
        return
    means = {size: [each[size].mean if size in each else None for each in by_gpus] for size in sizes}
    unit, length = unit_of(value for row in means.values() for value in row)
    rows = [[gang_text(size), *(number(_per(value, length)) for value in row)] for size, row in means.items()]
    title = textwrap.fill(f"Queueing delay by gang, mean ({unit})", width())
    yield table_text(title, ["GPUs", *(played.label for played in all_played)], rows, text_columns=0)


def _per(value: float | None, length: float) -> float | None:
    return None if value is None else value / length


def _notes(all_played: Sequence[Played], not_played: Sequence[gp.Policy]) -> Iterator[str]:
    lines = [line for played in all_played for line in _said(played)]
    if not_played:
        lines.append(f"Not simulated: {', '.join(policy.label for policy in not_played)}.")
    yield from ("".join(textwrap.fill(line, width(), subsequent_indent="    ") + "\n" for line in lines),) if lines else ()


def _said(played: Played) -> Iterator[str]:
    if not played.complete:
        yield f"{played.label}: interrupted after {time_text(played.ended_seconds)} of simulated time."
    left_out = reasons(played.result)
    for job_id, reason in list(left_out.items())[:MOST_SHOWN]:
        yield f"{played.label}: job {job_id!r} has no GPUs at the end: {reason}"
    if len(left_out) > MOST_SHOWN:
        yield f"{played.label}: ... and {len(left_out) - MOST_SHOWN:,} jobs more"


def json_of(request: Request, scenario: Scenario, all_played: Sequence[Played], not_played: Sequence[gp.Policy]) -> str:
    """Return one document: what was read and assumed, what was set, and what came of each policy."""
    document: dict[str, Any] = {
        "trace": scenario.trace.report.to_dict(),
        "profile": scenario.profile.name,
        "settings": settings_of(request),
        "complete": not not_played and all(played.complete for played in all_played),
        "policies": [played.to_dict() for played in all_played],
    }
    if unused := {name: count for name, count in scenario.cluster.left_out.items() if count}:
        document["unused_gpus"] = unused
    return json.dumps(document, indent=2, allow_nan=False)


def settings_of(request: Request) -> dict[str, Any]:
    """Return what was set, as plain data."""
    return {
        "round_seconds": None if request.events else request.round_seconds,
        "restart_seconds": request.restart_seconds,
        "min_run_seconds": request.min_run_seconds,
        "solve_seconds": request.solve_seconds,
        "mechanism": request.mechanism,
        "sharing": request.sharing,
        "min_gain": request.min_gain,
        "interference": request.interference,
        "node_mtbf_hours": request.node_mtbf,
        "node_repair_hours": request.node_repair,
        "maintenance": list(request.maintenance),
        "job_failures": request.job_failures,
        "checkpoint_seconds": request.checkpoint_seconds,
        "estimates": request.estimates,
        "until_seconds": request.until_seconds,
        "measure_jobs": None if request.measure_jobs is None else list(request.measure_jobs),
        "extrapolate": request.extrapolate,
        "seed": request.seed,
    }


def csv_of(all_played: Sequence[Played]) -> str:
    """Return one line for each policy, one column for each metric; times in seconds, shares in parts of 1."""
    if not all_played:
        return csv_text(["policy", "complete"], [])
    metrics = metrics_of(all_played)
    sizes = sorted({size for played in all_played for size in played.result.summary.queueing_by_gpus})
    header = ["policy", "complete", *(metric.name for metric in metrics), *(f"queueing_{size}_gpus_mean_seconds" for size in sizes)]
    rows = []
    for played in all_played:
        by_gpus = played.result.summary.queueing_by_gpus
        queueing = [by_gpus[size].mean if size in by_gpus else None for size in sizes]
        complete = str(played.complete).lower()
        rows.append([played.label, complete, *(metric.value(played) for metric in metrics), *queueing])
    return csv_text(header, rows)
