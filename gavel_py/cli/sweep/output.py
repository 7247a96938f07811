"""How far a sweep is: a bar on a terminal, and a line now and then elsewhere.

What gavel sweep prints: the grid before it is played, and the means over seeds when it has been.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean

import click

import gavel_py as gp
from gavel_py.cli.output import counted, number, table_text, unused_text, width
from gavel_py.cli.simulate.options import time_text, unit_of

__all__ = ["ended_text", "grid_text", "progress", "told"]

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
