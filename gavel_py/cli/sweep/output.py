"""The options and the output of gavel sweep: the grid before it is played, its progress, and the means over seeds at its end.

The options are one record, `Request`, of which `changes_of` are the keys of a spec that they replace. Progress is a bar on a
terminal, and elsewhere a line now and then.
"""

from __future__ import annotations

import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import click

import gavel_py as gp
from gavel_py.cli.inputs import Option, bundled
from gavel_py.cli.output import counted, number, table_text, unused_text, width
from gavel_py.cli.simulate.options import measure_option, time_text, unit_of

Show = Callable[["gp.Progress"], None]

Row = Mapping[str, str | float | None]

PAUSE_SECONDS = 0.2
"""A terminal need not be written more often."""

LINE_SECONDS = 10.0
"""A file or a log need not have more lines."""


@contextmanager
def progress(wanted: bool) -> Iterator[Show]:
    """Tell on standard error how far it is within this, if that is wanted."""
    if not wanted:
        yield lambda progress: None  # noqa: ARG005
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _lines()


def told(progress: gp.Progress) -> str:
    """Return how far it is in a line."""
    parts = [
        f"{progress.done:,} of {progress.total:,} cells done",
        f"{progress.failed:,} failed",
        f"{progress.left:,} left",
        "" if progress.rate is None else f"{progress.rate:.3g} cells/s",
        "" if not progress.left or progress.seconds_left is None else f"ends in {time_text(progress.seconds_left)}",
    ]
    return " · ".join(part for part in parts if part)


def _lines() -> Show:
    """A line at the beginning, now and then, and at the end."""
    last = -LINE_SECONDS
    ended = False

    def show(progress: gp.Progress) -> None:
        nonlocal last, ended
        now = time.monotonic()
        if ended or (progress.left and now - last < LINE_SECONDS):
            return
        last, ended = now, not progress.left
        click.echo(told(progress), err=True)

    return show


@contextmanager
def _bar() -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=20), TextColumn("{task.fields[told]}"))
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    task = bar.add_task("", total=1.0, told="")
    shown = -PAUSE_SECONDS

    def show(progress: gp.Progress) -> None:
        nonlocal shown
        now = time.monotonic()
        if progress.left and now - shown < PAUSE_SECONDS:
            return
        shown = now
        part = (progress.done + progress.failed) / max(1, progress.total)
        bar.update(task, completed=part, told=told(progress), refresh=True)

    with bar:
        yield show


AXES = {
    "policy": "policies",
    "trace": "traces",
    "load": "jobs per hour",
    "cluster": "clusters",
    "seed": "seeds",
    "round_seconds": "rounds",
    "measure_jobs": "measured jobs",
}

SHOWN = {
    "mean_jct_seconds": "completion time",
    "makespan_seconds": "makespan",
    "finish_time_fairness": "ρ",
    "utilization": "GPUs used",
    "unfinished": "unfinished",
    "objective": "objective",
    "total_normalized_throughput": "total v",
    "least_normalized_throughput": "least v",
}

TIMES = {"mean_jct_seconds", "makespan_seconds"}

MOST_ERRORS = 5

MOST_LINES = 60


def grid_text(plan: gp.SweepPlan, workers: int | None, *, retry_failed: bool) -> str:
    """Return the axes of the grid, how many of its cells are stored, and how long the others will take."""
    lines = [_axis(words, [labels.get(axis) for labels in plan.labels]) for axis, words in AXES.items()]
    more = f", and {plan.yardsticks} of the policy isolated to compare with" if plan.yardsticks else ""
    lines.append(f"cells: {len(plan) - plan.yardsticks:,}{more}; {len(plan.labels):,} places of the grid")
    kept = plan.kept()
    if any(kept.values()):
        lines.append(f"stored in {plan.results}: {kept['done']:,} done, {kept['failed']:,} failed")
    estimate = plan.estimate(workers, retry_failed=retry_failed)
    if estimate.cell_seconds:
        on = counted(estimate.workers, "process") if estimate.workers == 1 else f"{estimate.workers} processes"
        lines.append(f"estimate: {time_text(estimate.seconds)} on {on}, {time_text(estimate.cell_seconds)} one after the other")
    lines.append(f"basis: {estimate.basis}")
    return "".join(textwrap.fill(line, width(), subsequent_indent="    ") + "\n" for line in lines if line) + _unused(plan)


def _unused(plan: gp.SweepPlan) -> str:
    return "".join(f"cluster {label}: {unused_text(gpus)}" for label, gpus in plan.unused_gpus.items())


def _axis(words: str, labels: Sequence[str | float | None]) -> str:
    values = [
        f"{value:g}" if isinstance(value, int | float) else str(value) for value in dict.fromkeys(labels) if value is not None
    ]
    return f"{words}: {', '.join(values)}" if values else ""


def ended_text(plan: gp.SweepPlan, rows: Sequence[Row]) -> str:
    """Return a table of means over seeds, and what went wrong."""
    done = [row for row in rows if row["status"] == "done"]
    failed = [row for row in rows if row["status"] == "failed"]
    lines = [f"{_who(row)} failed: {str(row['error']).splitlines()[-1]}" for row in failed[:MOST_ERRORS]]
    if len(failed) > MOST_ERRORS:
        lines.append(f"... and {len(failed) - MOST_ERRORS:,} cells more; the column error of --export has all")
    text = "".join(textwrap.fill(line, width(), subsequent_indent="    ") + "\n" for line in lines)
    return (_means(plan, done) if done else "") + _unused(plan) + text


def _who(row: Row) -> str:
    return ", ".join(f"{axis} {row[axis]}" for axis in AXES if row.get(axis) is not None)


def _means(plan: gp.SweepPlan, rows: Sequence[Row]) -> str:
    """A line for each point of the grid that has more than one value on its axes, seeds put together."""
    axes = [axis for axis in AXES if axis != "seed" and len({labels.get(axis) for labels in plan.labels}) > 1] or ["policy"]
    groups: dict[tuple[str | float | None, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[axis] for axis in axes), []).append(row)
    shown = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
    means = {key: {name: _mean(group, name) for name in shown} for key, group in groups.items()}
    units = {name: unit_of(each[name] for each in means.values()) if name in TIMES else ("", 1.0) for name in shown}
    columns = [*(AXES[axis] if axis == "load" else axis for axis in axes), "cells"]
    columns += [f"{SHOWN[name]} ({units[name][0]})" if name in TIMES else SHOWN[name] for name in shown]
    lines = [
        [*(_text(part) for part in key), str(len(groups[key])), *(_cell(name, each[name], units[name][1]) for name in shown)]
        for key, each in means.items()
    ]
    cut = f"... and {len(lines) - MOST_LINES:,} lines more; --export has all cells\n" if len(lines) > MOST_LINES else ""
    return table_text("Means over the cells", columns, lines[:MOST_LINES], text_columns=len(axes)) + cut


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [value for row in rows if isinstance(value := row.get(name), int | float)]
    return fmean(values) if values else None


def _cell(name: str, value: float | None, unit: float) -> str:
    if value is not None and name == "utilization":
        return f"{value:.1%}"
    return number(None if value is None else value / unit)


def _text(value: str | float | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:g}"


FILE = click.Path(path_type=Path, dir_okay=False)

MOST_SEEDS = 100_000


@dataclass(frozen=True)
class Request:
    """What the options say, as typed."""

    spec: Path | None
    mode: str | None
    policies: tuple[str, ...]
    traces: tuple[str, ...]
    jobs: int | None
    loads: tuple[float, ...]
    clusters: tuple[str, ...]
    seeds: tuple[range, ...]
    round_seconds: tuple[float, ...]
    profile: str | None
    fairness: bool | None
    measure_jobs: tuple[int, int] | None
    allow_unknown_types: bool
    results: str | None
    engine: Literal["local", "dask"]
    scheduler: str | None
    workers: int | None
    dry_run: bool
    retry_failed: bool
    export: tuple[Path, ...]
    with_progress: bool


def _seeds(text: str) -> range:
    """Return the seeds of a text such as 3 or 0-4."""
    found = re.fullmatch(r"\s*(0|[1-9][0-9]{0,8})\s*(?:-\s*(0|[1-9][0-9]{0,8})\s*)?", text)
    seeds = range(0) if found is None else range(int(found[1]), int(found[2] or found[1]) + 1)
    if not 0 < len(seeds) <= MOST_SEEDS:
        raise click.BadParameter(f"{text!r} is neither a seed nor a range of them, as in 0-4")
    return seeds


POSITIVE = click.FloatRange(0, min_open=True)

OPTIONS: tuple[Option, ...] = (
    click.argument("spec", metavar="[SPEC]", type=FILE, required=False),
    click.option("--mode", type=click.Choice(["simulate", "solve"]), help="Simulations, or static solves [simulate]."),
    click.option("--policy", "-p", "policies", multiple=True, metavar="NAME[,OPTION=VALUE...]", help="Of each cell."),
    click.option("--trace", "traces", multiple=True, metavar="FILE", help="A trace of any format, or jobs."),
    click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="A generated trace of N jobs, for each load and seed."),
    click.option("--load", "loads", multiple=True, type=POSITIVE, metavar="X", help="Jobs per hour of generated traces."),
    click.option("--cluster", "-c", "clusters", multiple=True, metavar="FILE|SPEC", help="As for gavel simulate."),
    click.option("--seed", "seeds", multiple=True, type=_seeds, metavar="N|N-M", help="Of all that is random [0]."),
    click.option("--round-seconds", multiple=True, type=POSITIVE, metavar="S", help="Lengths of rounds [360]."),
    click.option("--profile", metavar="NAME|FILE", help="Speeds by job type [gavel-osdi20]."),
    click.option("--fairness/--no-fairness", default=None, help="Compare each job with its time under the policy isolated [no]."),
    measure_option,
    click.option("--allow-unknown-types", is_flag=True, help="Leave GPUs unused whose type has no speeds, which is an error else."),
    click.option("--results", metavar="FILE", help="The SQLite file where cells are stored, and gone on from."),
    click.option("--engine", type=click.Choice(["local", "dask"]), default="local", show_default=True, help="Who plays the cells."),
    click.option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster that is there [begin one on this computer]."),
    click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes of this computer [all cores]."),
    click.option("--dry-run", is_flag=True, help="Show the grid, and how long it will take."),
    click.option("--retry-failed", is_flag=True, help="Play cells again that have failed."),
    click.option("--export", multiple=True, type=FILE, metavar="FILE", help="Write a line for each cell there: .csv or .parquet."),
    click.option("--progress/--no-progress", "with_progress", default=True, help="Tell how far it is [yes]."),
)

sweep_options = bundled(Request, OPTIONS)
"""Gives a command all of these, as one `Request`."""


def changes_of(request: Request) -> dict[str, Any]:
    """Return the keys of a spec that options replace."""
    traces: list[Any] = [*request.traces, *([{"generate": {"jobs": request.jobs}}] if request.jobs else [])]
    seeds = [seed for each in request.seeds for seed in each]
    lists = {
        "policies": list(request.policies),
        "traces": traces,
        "loads": list(request.loads),
        "clusters": list(request.clusters),
        "seeds": seeds,
        "round_seconds": list(request.round_seconds),
    }
    single = {name: getattr(request, name) for name in ("mode", "profile", "fairness", "measure_jobs", "results")}
    single["allow_unknown_types"] = request.allow_unknown_types or None
    return {key: value for key, value in lists.items() if value} | {k: v for k, v in single.items() if v is not None}
