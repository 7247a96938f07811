"""How far a sweep is: a bar on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

import gavel_py as gp
from gavel_py.cli.simulate.times import time_text

__all__ = ["progress", "told"]

Show = Callable[["gp.Progress"], None]

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
