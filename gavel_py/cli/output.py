"""Output of the commands: JSON, CSV, numbers as text, progress bars, and files that are replaced atomically."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.files import with_names, writing
from gavel_py.cli.tables import ComparisonRow

SAME_VALUE = 1e-6
"""Relative difference up to which values count as equal in texts, and GPUs and changes as none: what proofs accept as a gap."""

REDRAW_SECONDS = 0.2
"""Shortest time between two updates of a progress bar; an update takes a few milliseconds."""


def emit(text: str, out: Path | None) -> None:
    """Write the text to a file or, for None, to standard output; a regular file is replaced atomically."""
    text = with_names(text if text.endswith("\n") else text + "\n")
    if out is None:
        click.echo(text, nl=False)
        return
    text = click.unstyle(text)
    with writing(out):
        target = out.resolve()  # the target of a link is replaced, not the link
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a pipe or a device
        else:
            _replace(target, text)


def _replace(target: Path, text: str) -> None:
    """Write a temporary file in the same folder and rename it; an existing file keeps its mode."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=target.parent, delete=False) as file:
        file.write(text)
    new = Path(file.name)
    try:
        os.umask(umask := os.umask(0))
        new.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask)
        new.replace(target)
    except OSError:
        new.unlink(missing_ok=True)
        raise


SCHEMA_VERSION = 2
"""Version of the JSON documents of all commands: increased when a key is removed or changes its meaning, not when one is added."""


def json_text(document: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Return a document, or a list of documents, as JSON with the version of its schema."""
    if isinstance(document, Mapping):
        versioned: Any = {"schema_version": SCHEMA_VERSION, **document}
    else:
        versioned = [{"schema_version": SCHEMA_VERSION, **each} for each in document]
    return json.dumps(versioned, indent=2, allow_nan=False, default=str)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV text with a header line."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def counted(count: int, word: str) -> str:
    """Return text such as "1 job" or "2 jobs"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def unused_text(gpus: Mapping[str, int]) -> str:
    """Return a line on the unused GPUs, {accelerator type: GPUs}, or "" if there are none."""
    listed = ", ".join(f"{count} of {name}" for name, count in gpus.items() if count)
    return f"GPUs not used, since the profile lacks their type: {listed}\n" if listed else ""


def gang_text(num_gpus: float) -> str:
    """Return the size of a gang as text; a fraction of a GPU has four significant digits."""
    return f"{num_gpus:.4g}" if num_gpus < 1 else str(num_gpus)


def size_text(job: gp.Job) -> str:
    """Return the GPUs of a job as text: its gang size, or for an elastic job the smallest and the largest, as in 1-8."""
    return "-".join(map(str, dict.fromkeys(job.gpu_range))) if job.is_elastic else gang_text(job.num_gpus)


def number(value: float | None) -> str:
    """Return a number with four significant digits and without the sign of a negative zero, or "-" for None."""
    return "-" if value is None else f"{value:z.4g}"


def price_text(price: float | None, objective: float | None) -> str:
    """Return what a unit is worth to the objective; "nothing" for 0 and for rounding.

    >>> price_text(2e-16, 0.8), price_text(0.2667, 0.8), price_text(None, 0.8)
    ('nothing', '0.2667', '-')
    """
    return "nothing" if price is not None and gp.is_rounding(price, objective) else number(price)


def money(value: float | None) -> str:
    """Return an amount as text, "unknown" for None."""
    return "unknown" if value is None else f"{value:,.2f}"


SHOWN = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))

MIN_UNITS = 2
"""Smallest value for which a unit is used: 90 minutes are easier to read than 1.5 hours."""


def unit_of(seconds: Iterable[float | None], largest: str = "hours") -> tuple[str, float]:
    """Return the name, and the length in seconds, of the unit that suits these times, at most `largest`."""
    longest = max((abs(value) for value in seconds if value is not None), default=0.0)
    allowed = SHOWN[[name for name, _ in SHOWN].index(largest) :]
    return next(((name, length) for name, length in allowed if longest >= MIN_UNITS * length), ("s", 1.0))


def time_text(seconds: float) -> str:
    """Return a time with its unit.

    >>> time_text(5400), time_text(86400 * 3.25)
    ('90 minutes', '3.25 days')
    """
    name, length = unit_of([seconds], "days")
    return f"{seconds / length:.3g} {name}"


FORMS: Mapping[str, Callable[[float], str]] = {
    "number": number,
    "count": "{:,.0f}".format,
    "share": "{:.1%}".format,
    "time": time_text,
    "clock": "{:.2f}".format,
    "GPU time": lambda seconds: number(seconds / 3600),
    "money": money,
}
"""{kind of column: how its values are shown}."""

UNKNOWN = {"time": "-", "money": "unknown"}
"""{kind of column: how an unknown value is shown}; "" for the others."""


def figure_text(value: float | str | None, column: gp.Column) -> str:
    """Return a figure of a result as text, as its column declares."""
    if isinstance(value, str):
        return value
    if value is None or value != value:  # NaN
        return UNKNOWN.get(column.kind, "")
    return format(value, column.form) if column.form else FORMS[column.kind](value)


def declared_columns(
    of: Mapping[str, gp.Column], values: Callable[[str], Iterable[float | str | None]], left_out: Mapping[str, bool] | None = None
) -> Iterator[tuple[gp.Column, list[str]]]:
    """Yield the columns that a result declares, with their cells.

    values: returns those of an attribute; left_out: {attribute: whether it has no column}.
    """
    for name, column in of.items():
        if column.title and not (left_out or {}).get(name):
            yield column, [figure_text(value, column) for value in values(name)]


def metric_row(
    metric: gp.Metric,
    values: Sequence[float | None],
    family: Iterable[float | None] | None = None,
    *,
    label: str = "",
    is_marked: bool = True,
) -> ComparisonRow:
    """Return the row of a metric in a comparison; family: all times with the same unit, by default these."""
    label, form = label or metric.label or metric.title, FORMS[metric.quantity]
    if metric.quantity in ("time", "clock"):
        unit, length = unit_of(values if family is None else family)
        label, values = f"{label} ({unit})", [None if value is None else value / length for value in values]
        form = number if metric.quantity == "time" else form
    return ComparisonRow(label, values, form, metric.best if metric.is_marked and is_marked else None)


Show = Callable[[Callable[[], tuple[float, str]], bool], None]
"""Updates a progress bar. Arguments: a function that returns the completed share and the text; whether to force the update."""


@contextmanager
def progress_bar(label: str, first_seconds: float) -> Iterator[Show]:
    """Show a progress bar on standard error, at first after `first_seconds` and then at most every `REDRAW_SECONDS`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TextColumn("{task.fields[text]}"))
    bar = Progress(*columns[0 if label else 1 :], console=Console(stderr=True), auto_refresh=False, transient=True)
    task = bar.add_task(label, total=1.0, text="")
    due = time.monotonic() + first_seconds

    def show(state: Callable[[], tuple[float, str]], always: bool = False) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due or always:
            due = now + REDRAW_SECONDS
            share, text = state()
            bar.update(task, completed=share, text=text, refresh=True)

    with bar:
        yield show
