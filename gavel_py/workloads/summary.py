"""Summary of a trace: counts, gang sizes, durations and the load over time, as numbers and as a plot.

The load is the number of GPUs in use if every job started on arrival. `plot_trace` needs matplotlib (`gavel-py[plot]`).
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gavel_py.errors import InputError
from gavel_py.io.records import Count, check
from gavel_py.io.writing import FORMATS, check_plot, write_atomic
from gavel_py.problem.arrays import Floats, plain_size
from gavel_py.workloads.submission import counted
from gavel_py.workloads.trace import Trace


@dataclass(frozen=True)
class Period:
    """Arrivals and load of the time span [start_seconds, end_seconds); the last one contains its end, the last arrival.

    num_jobs, gpu_hours: of the jobs that arrive; mean_gpus_held, most_gpus_held: mean and peak of the GPUs in use if no job waits.
    Jobs of unknown duration count only in num_jobs; if no duration in the trace is known, the other values are None.
    """

    start_seconds: float
    end_seconds: float
    num_jobs: int
    gpu_hours: float | None
    mean_gpus_held: float | None
    most_gpus_held: float | None


def load_over_time(arrivals: Floats, gangs: Floats, seconds: Floats, periods: int) -> tuple[tuple[Period, ...], float | None]:
    """Return equal periods between the first and the last arrival, and the peak of GPUs in use (None if no duration is known).

    arrivals, gangs, seconds: (N,) arrays sorted by arrival, with NaN for unknown durations.
    """
    if not len(arrivals):
        return (), 0.0
    known = np.nan_to_num(seconds)
    # The times at which jobs start or end, and the GPUs in use from each time on.
    changes = gangs * (known > 0)
    times, places = np.unique(np.concatenate([arrivals, arrivals + known]), return_inverse=True)
    held = np.cumsum(np.bincount(places, weights=np.concatenate([changes, -changes])))
    peak = None if np.isnan(seconds).all() else float(held.max(initial=0.0))
    if arrivals[-1] == arrivals[0]:
        return (), peak
    edges = np.linspace(arrivals[0], arrivals[-1], periods + 1)
    # The last arrival belongs to the last period.
    number = np.minimum(np.searchsorted(edges, arrivals, side="right") - 1, periods - 1)
    jobs = np.bincount(number, minlength=periods)
    hours = np.bincount(number, weights=gangs * known / 3600, minlength=periods)
    at = np.searchsorted(times, edges, side="right") - 1
    total = np.concatenate([[0.0], np.cumsum(held[:-1] * np.diff(times))])  # GPU-seconds in use until each time
    means = np.diff(total[at] + held[at] * (edges - times[at])) / np.diff(edges)
    ends = np.searchsorted(times, edges[1:], side="left")
    ends[-1] = at[-1] + 1  # the last arrival belongs to the last period, here as well
    peaks = [float(held[max(0, first) : end].max(initial=0.0)) for first, end in zip(at[:-1], ends, strict=True)]
    columns = zip(*(column.tolist() for column in (edges[:-1], edges[1:], jobs, hours, means)), peaks, strict=True)
    return tuple(Period(*(row if peak is not None else (*row[:3], None, None, None))) for row in columns), peak


@dataclass(frozen=True)
class Durations:
    """Distribution of the recorded durations in seconds, and the number of jobs that have one."""

    num_jobs: int
    mean: float
    median: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True)
class GangSummary:
    """The jobs of one gang size; gpu_hours and durations are None if no duration was recorded."""

    num_gpus: float
    num_jobs: int
    gpu_hours: float | None
    durations: Durations | None


@dataclass(frozen=True)
class TraceSummary:
    """Summary of a trace.

    Attributes:
        num_jobs: Number of jobs.
        first_arrival: Time of the first arrival, in seconds on the clock of the trace.
        last_arrival: Time of the last arrival.
        jobs_per_hour: Mean arrival rate between the two.
        gpu_hours: GPU-hours of all jobs with a recorded duration; None if there are none.
        mean_gpus: GPU-hours divided by the time between first and last arrival: the size of a cluster that could just serve the
            trace.
        peak_gpus: Peak of the GPUs in use if every job started on arrival.
        statuses: {status: number of jobs}.
        tenants: {tenant: number of jobs}.
        job_types: {job type: number of jobs}.
        durations: Distribution of the durations.
        gangs: Jobs by gang size.
        periods: The load over time, in equal periods between the arrivals.
    """

    num_jobs: int
    first_arrival: float | None
    last_arrival: float | None
    jobs_per_hour: float | None
    gpu_hours: float | None
    mean_gpus: float | None
    peak_gpus: float | None
    statuses: dict[str, int]
    tenants: dict[str, int]
    job_types: dict[str, int]
    durations: Durations | None
    gangs: tuple[GangSummary, ...]
    periods: tuple[Period, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain data, for JSON."""
        return asdict(self)


def describe_trace(trace: Trace, periods: int = 12) -> TraceSummary:
    """Return counts, gang mix, durations and the load over time.

    Args:
        trace: The trace.
        periods: Number of equal periods into which the load is divided.

    Raises:
        InputError: `periods` is below 1.
    """
    check("describe", periods=(periods, Count))
    arrivals = np.array([submission.job.arrival_seconds for submission in trace])
    gangs = np.array([submission.job.num_gpus for submission in trace], dtype=float)
    seconds = np.array([np.nan if s.run_seconds is None else s.run_seconds for s in trace], dtype=float)
    is_known = not len(trace) or not np.isnan(seconds).all()
    hours = float(np.nansum(gangs * seconds)) / 3600 if is_known else None
    span = float(arrivals[-1] - arrivals[0]) / 3600 if len(trace) else 0.0
    load, peak = load_over_time(arrivals, gangs, seconds, periods)
    return TraceSummary(
        num_jobs=len(trace),
        first_arrival=float(arrivals[0]) if len(trace) else None,
        last_arrival=float(arrivals[-1]) if len(trace) else None,
        jobs_per_hour=(len(trace) - 1) / span if span else None,
        gpu_hours=hours,
        mean_gpus=hours / span if span and hours is not None else None,
        peak_gpus=peak,
        statuses=_counts(submission.status for submission in trace),
        tenants=_counts(submission.job.tenant for submission in trace),
        job_types=_counts(submission.job.job_type for submission in trace),
        durations=_durations(seconds),
        gangs=tuple(_gang(plain_size(size), seconds[gangs == size]) for size in np.unique(gangs)),
        periods=load,
    )


def _counts(names: Any) -> dict[str, int]:
    """Return {name: number of occurrences}, the most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _gang(num_gpus: float, seconds: Floats) -> GangSummary:
    durations = _durations(seconds)
    hours = None if durations is None else float(np.nansum(seconds)) * num_gpus / 3600
    return GangSummary(num_gpus, len(seconds), hours, durations)


def _durations(seconds: Floats) -> Durations | None:
    known = seconds[~np.isnan(seconds)]
    if not len(known):
        return None
    median, p90, p99, longest = (float(value) for value in np.quantile(known, [0.5, 0.9, 0.99, 1.0]))
    return Durations(len(known), float(known.mean()), median, p90, p99, longest)


PERIODS = 240
SECONDS_PER_DAY = 86400.0

MAX_LINES = 6
"""Maximum number of lines by gang size; more would be hard to distinguish."""

BLUE, INK = "#0072B2", "#222222"

LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""The colour-blind safe palette of Okabe and Ito."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "gavel-py",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plot_trace(trace: Trace, path: str | Path) -> None:
    """Plot the GPUs in use if no job waits, the arrivals, and the durations by gang size; without durations, the arrivals.

    Args:
        trace: The trace.
        path: An .svg or .png file, which is written atomically.

    Raises:
        InputError: Another suffix, a path that cannot be written, a trace without jobs, or matplotlib is not installed.
    """
    check_plot(path)
    if not trace:
        raise InputError("a trace without jobs cannot be drawn")
    write_atomic(path, _drawn(trace, FORMATS[Path(path).suffix.lower()]))


def _drawn(trace: Trace, form: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    summary = describe_trace(trace, PERIODS)
    edges = [period.start_seconds / SECONDS_PER_DAY for period in summary.periods]
    edges += [period.end_seconds / SECONDS_PER_DAY for period in summary.periods[-1:]]
    series = list(_series(trace))
    drawn: list[tuple[bool, Callable[[Any], None]]] = [
        (summary.gpu_hours is not None, lambda axes: _draw_load(axes, summary, edges)),
        (True, lambda axes: _draw_arrivals(axes, summary, edges)),
        (bool(series), lambda axes: _draw_durations(axes, series)),
    ]
    panels = [draw for is_known, draw in drawn if is_known]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.5 + 2.5 * len(panels)), layout="constrained")
        for axes, draw in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
            draw(axes)
        unknown = " (durations are unknown)" if summary.gpu_hours is None else ""
        figure.axes[0].set_title(f"{counted(len(trace))}: {figure.axes[0].get_title()}{unknown}")
        # Without a date, the same trace gives the same bytes.
        figure.savefig(buffer, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()


def _draw_load(axes: Any, summary: TraceSummary, edges: Sequence[float]) -> None:
    if summary.periods:
        axes.stairs([p.most_gpus_held for p in summary.periods], edges, color=INK, linewidth=0.8, label="at most")
        axes.stairs([p.mean_gpus_held for p in summary.periods], edges, color=BLUE, fill=True, alpha=0.5, label="on average")
        axes.legend(frameon=False)
    axes.set(title="GPUs held if no job had to wait", ylabel="GPUs", xlabel="days")


def _draw_arrivals(axes: Any, summary: TraceSummary, edges: Sequence[float]) -> None:
    if summary.periods:
        axes.stairs([p.num_jobs for p in summary.periods], edges, color=BLUE, fill=True)
    axes.set(title="Arrivals", ylabel=f"jobs in 1/{PERIODS} of the time", xlabel="days")


def _draw_durations(axes: Any, series: Sequence[tuple[str, Floats]]) -> None:
    for (label, seconds), colour in zip(series, LINES, strict=False):
        parts = np.arange(1, len(seconds) + 1) / len(seconds)
        axes.step(seconds / 3600, parts, where="post", label=label, color=colour, linewidth=1.2)
    axes.set_xscale("log")
    axes.legend(frameon=False, title="gang")
    axes.set(title="Durations", xlabel="hours", ylabel="fraction of jobs that run no longer", ylim=(0, 1))


def _series(trace: Trace) -> Iterator[tuple[str, Floats]]:
    """Yield (label, sorted durations above 0) of the most frequent gang sizes, and of all others together."""
    by_size: dict[float, list[float]] = {}
    for submission in trace:
        if submission.run_seconds:
            by_size.setdefault(submission.job.num_gpus, []).append(submission.run_seconds)
    frequent = sorted(by_size, key=lambda size: (-len(by_size[size]), size))
    named = frequent if len(frequent) <= MAX_LINES else frequent[: MAX_LINES - 1]
    for size in sorted(named):
        yield f"{size:.3g} GPU" if size <= 1 else f"{size} GPUs", np.sort(by_size[size])
    if len(named) < len(frequent):
        yield "others", np.sort(np.concatenate([by_size[size] for size in frequent[len(named) :]]))
