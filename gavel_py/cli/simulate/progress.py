"""A bar on the terminal: how far a simulation is, how fast it goes, and when it will end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gavel_py as gp
from gavel_py.cli.output import counted
from gavel_py.cli.simulate.times import time_text

__all__ = ["Show", "progress", "told"]

Show = Callable[["gp.Simulation", int, int], None]
"""Called after each step with the simulation, the jobs that have left, and the rounds played."""

PAUSE_SECONDS = 0.2
"""A terminal need not be written more often, and each time costs a few milliseconds."""


@contextmanager
def progress(label: str, num_jobs: int, until_seconds: float, wanted: bool) -> Iterator[Show]:
    """Show a bar on standard error within this, if that is a terminal and it is wanted."""
    if not (wanted and sys.stderr.isatty()):
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TextColumn("{task.fields[told]}"))
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    task = bar.add_task(label, total=1.0, told="")
    began = shown = time.monotonic()

    def show(simulation: gp.Simulation, left: int, rounds: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < PAUSE_SECONDS:
            return
        shown = now
        part = _part(simulation, left, num_jobs, until_seconds)
        bar.update(task, completed=part, told=told(simulation, left, num_jobs, rounds, now - began, part), refresh=True)

    with bar:
        yield show


def _nothing(simulation: gp.Simulation, left: int, rounds: int) -> None:
    """Show nothing."""


def _part(simulation: gp.Simulation, left: int, num_jobs: int, until_seconds: float) -> float:
    """How much of it is done: of the jobs, or of the time if it is to end before they are."""
    return min(1.0, max(left / num_jobs if num_jobs else 1.0, simulation.now / until_seconds if until_seconds else 1.0))


def told(simulation: gp.Simulation, left: int, num_jobs: int, rounds: int, seconds: float, part: float) -> str:
    """Return what stands beside the bar: simulated time, jobs, rounds per second, and the time until the end at this pace."""
    submitted = left + simulation.active
    parts = [
        time_text(simulation.now),
        f"{left:,} of {counted_in(submitted)} done, {max(0, num_jobs - submitted):,} to come",
        f"{rounds / seconds:,.0f} rounds/s" if seconds > 0 else "",
        f"ends in {time_text(seconds * (1 - part) / part)}" if part > 0 else "",
    ]
    return " · ".join(each for each in parts if each)


def counted_in(count: int) -> str:
    """Return "1 job", "2,000 jobs"."""
    return counted(count, "job") if count < 1000 else f"{count:,} jobs"
