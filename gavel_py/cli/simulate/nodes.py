"""What happens to nodes, from the options: failures at random, and windows of maintenance from text or files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.simulate.times import seconds_of
from gavel_py.errors import together

__all__ = ["failures_of", "maintenance_of"]

HOUR = 3600.0


def failures_of(mtbf_hours: float | None, repair_hours: float | None) -> gp.NodeFailures | None:
    """Return what --node-mtbf and --node-repair say; between two failures of a node lie a repair and the time that it is up."""
    if mtbf_hours is None and repair_hours is None:
        return None
    if mtbf_hours is None or repair_hours is None:
        raise click.UsageError("--node-mtbf and --node-repair go together: how often a node fails, and how long its repair takes")
    if repair_hours >= mtbf_hours:
        text = f"--node-repair {repair_hours:g} must be less than --node-mtbf {mtbf_hours:g}"
        raise click.UsageError(f"{text}, the mean time from one failure of a node to the next, in which it is repaired")
    return gp.NodeFailures((mtbf_hours - repair_hours) * HOUR, repair_hours * HOUR)


def maintenance_of(texts: Iterable[str]) -> list[gp.NodeWindow]:
    """Return the windows of all --maintenance options, each a file or NODE:START:END; faults of all come together."""
    windows: list[gp.NodeWindow] = []
    with together() as attempt:
        for text in texts:
            windows += attempt(partial(_windows, text)) or []
    return windows


def _windows(text: str) -> list[gp.NodeWindow]:
    if Path(text).suffix.lower() == ".csv" or Path(text).is_file():
        return list(gp.read_maintenance(text))
    node, *times = text.rsplit(":", 2)
    start, end = (seconds_of(time) for time in times) if len(times) == 2 else (None, None)
    if not node or start is None or end is None:
        form = "is neither a .csv file nor of the form NODE:START:END, as in v100-0:24h:30h"
        raise click.UsageError(f"--maintenance {text!r} {form}")
    return [gp.NodeWindow(node, start, end)]
