"""A trace as a picture: the load over time, and how long jobs run. matplotlib comes with `gavel-py[plot]`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gavel_py.errors import InputError
from gavel_py.io.writing import FORMATS, check_plot, write_whole
from gavel_py.workloads.submission import counted
from gavel_py.workloads.summary import describe_trace
from gavel_py.workloads.trace import Trace

__all__ = ["plot_trace"]

PERIODS = 240

SECONDS_PER_DAY = 86400.0

MOST_LINES = 6

"""Gang sizes with a line of their own; more would hide each other."""

BLUE, INK = "#0072B2", "#222222"

LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

"""They can be told apart with any kind of colour vision."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "gavel-py",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plot_trace(trace: Trace, path: str | Path) -> None:
    """Draw the GPUs that would be held if no job had to wait, the jobs that arrive, and the durations by gang size.

    The file ends in .svg or .png, and is written whole or not at all. Raises `InputError` for another ending, a place that cannot
    be written, a trace without jobs, and where matplotlib is not installed.
    """
    check_plot(path)
    if not trace:
        raise InputError("a trace without jobs has no picture")
    write_whole(path, _drawn(trace, FORMATS[Path(path).suffix.lower()]))


def _drawn(trace: Trace, form: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 8), layout="constrained")
        held, arriving, durations = figure.subplots(3, 1)
        _draw_load(held, arriving, trace)
        _draw_durations(durations, trace)
        # Without a date the same trace makes the same bytes.
        figure.savefig(buffer, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()


def _draw_load(held: Any, arriving: Any, trace: Trace) -> None:
    summary = describe_trace(trace, PERIODS)
    edges = [period.start_seconds / SECONDS_PER_DAY for period in summary.periods]
    edges += [period.end_seconds / SECONDS_PER_DAY for period in summary.periods[-1:]]
    if summary.periods and summary.gpu_hours is not None:
        held.stairs([p.most_gpus_held for p in summary.periods], edges, color=INK, linewidth=0.8, label="at most")
        held.stairs([p.mean_gpus_held for p in summary.periods], edges, color=BLUE, fill=True, alpha=0.5, label="on average")
        held.legend(frameon=False)
    if summary.periods:
        arriving.stairs([p.num_jobs for p in summary.periods], edges, color=BLUE, fill=True)
    unknown = " (unknown: no durations)" if summary.gpu_hours is None else ""
    held.set(title=f"{counted(len(trace))}: GPUs held if no job had to wait{unknown}", ylabel="GPUs", xlabel="days")
    arriving.set(title="Jobs that arrive", ylabel=f"jobs in 1/{PERIODS} of the time", xlabel="days")


def _draw_durations(axes: Any, trace: Trace) -> None:
    for (label, seconds), colour in zip(_series(trace), LINES, strict=False):
        parts = np.arange(1, len(seconds) + 1) / len(seconds)
        axes.step(seconds / 3600, parts, where="post", label=label, color=colour, linewidth=1.2)
    if axes.lines:
        axes.set_xscale("log")
        axes.legend(frameon=False, title="gang")
    axes.set(title="Durations", xlabel="hours", ylabel="part that runs no longer", ylim=(0, 1))


def _series(trace: Trace) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float64]]]]:
    """Durations above 0, sorted, of the most frequent gang sizes, and of all others together."""
    by_size: dict[float, list[float]] = {}
    for submission in trace:
        if submission.run_seconds:
            by_size.setdefault(submission.job.num_gpus, []).append(submission.run_seconds)
    frequent = sorted(by_size, key=lambda size: (-len(by_size[size]), size))
    named = frequent if len(frequent) <= MOST_LINES else frequent[: MOST_LINES - 1]
    for size in sorted(named):
        yield f"{size:.3g} GPU" if size <= 1 else f"{size} GPUs", np.sort(by_size[size])
    if len(named) < len(frequent):
        yield "others", np.sort(np.concatenate([by_size[size] for size in frequent[len(named) :]]))
