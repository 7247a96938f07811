"""What is in a trace: counts, gangs, durations and the load over time, as figures and as a picture.

`load_over_time`: what arrives, and how many GPUs would be held if no job had to wait. `plot_trace` draws the load and how long jobs
run with matplotlib, which comes with `gavel-py[plot]`.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io.writing import FORMATS, check_plot, write_whole
from gavel_py.problem.arrays import Floats, plain_size
from gavel_py.workloads.submission import counted
from gavel_py.workloads.trace import Trace


@dataclass(frozen=True)
class Period:
    """A part of the time of a trace, from start to before end, s.

    num_jobs, gpu_hours: what arrives in it; mean_gpus_held, most_gpus_held: during it, if no job ever had to wait. Jobs without a
    known duration count in num_jobs only; where no job of the trace has one, the others are None.
    """

    start_seconds: float
    end_seconds: float
    num_jobs: int
    gpu_hours: float | None
    mean_gpus_held: float | None
    most_gpus_held: float | None


def load_over_time(arrivals: Floats, gangs: Floats, seconds: Floats, periods: int) -> tuple[tuple[Period, ...], float | None]:
    """Return equal periods between the first and the last arrival, and the most GPUs held at any time (None: no duration is known).

    arrivals, gangs, seconds: (N,), sorted by arrival; a duration is NaN where it is not known.
    """
    if not len(arrivals):
        return (), 0.0
    known = np.nan_to_num(seconds)
    times, held = _held(arrivals, gangs, known)
    peak = None if np.isnan(seconds).all() else float(held.max(initial=0.0))
    if arrivals[-1] == arrivals[0]:
        return (), peak
    edges = np.linspace(arrivals[0], arrivals[-1], periods + 1)
    # The last arrival belongs to the last period.
    number = np.minimum(np.searchsorted(edges, arrivals, side="right") - 1, periods - 1)
    jobs = np.bincount(number, minlength=periods)
    hours = np.bincount(number, weights=gangs * known / 3600, minlength=periods)
    until = _gpu_seconds_until(edges, times, held)
    means = np.diff(until) / np.diff(edges)
    found = [_most(edges[k], edges[k + 1], times, held) for k in range(periods)]
    if peak is None:
        return tuple(
            Period(float(a), float(b), int(n), None, None, None) for a, b, n in zip(edges[:-1], edges[1:], jobs, strict=True)
        ), None
    columns = zip(edges[:-1], edges[1:], jobs, hours, means, found, strict=True)
    return tuple(Period(float(a), float(b), int(n), float(h), float(m), most) for a, b, n, h, m, most in columns), peak


def _held(arrivals: Floats, gangs: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """The times at which a job begins or ends, and the GPUs held from each of them on."""
    times = np.concatenate([arrivals, arrivals + seconds])
    changes = np.concatenate([gangs * (seconds > 0), -gangs * (seconds > 0)])
    moments, places = np.unique(times, return_inverse=True)
    return moments, np.cumsum(np.bincount(places, weights=changes))


def _gpu_seconds_until(edges: Floats, times: Floats, held: Floats) -> Floats:
    """GPU-seconds held before each edge."""
    total = np.concatenate([[0.0], np.cumsum(held[:-1] * np.diff(times))])
    place = np.searchsorted(times, edges, side="right") - 1
    return np.asarray(total[place] + held[place] * (edges - times[place]))


def _most(start: float, end: float, times: Floats, held: Floats) -> float:
    first = max(0, int(np.searchsorted(times, start, side="right")) - 1)
    return float(held[first : int(np.searchsorted(times, end, side="left"))].max(initial=0.0))


@dataclass(frozen=True)
class Durations:
    """Of the jobs whose duration was recorded: how many they are, and seconds that they held their GPUs."""

    num_jobs: int
    mean: float
    median: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True)
class Gang:
    """The jobs of one gang size; gpu_hours and durations: None where no duration was recorded."""

    num_gpus: float
    num_jobs: int
    gpu_hours: float | None
    durations: Durations | None


@dataclass(frozen=True)
class TraceSummary:
    """A trace in figures.

    first_arrival, last_arrival: seconds on the clock of the trace; jobs_per_hour: between them; gpu_hours: of all jobs whose
    duration was recorded; mean_gpus: these hours over the time between the arrivals, the size of a cluster that would just do;
    peak_gpus: the most GPUs held at once if every job had begun when it was submitted; these three are None where no duration was
    recorded; statuses, tenants, job_types: jobs of each; periods: equal parts of the time between the arrivals.
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
    gangs: tuple[Gang, ...]
    periods: tuple[Period, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain data, for JSON."""
        return asdict(self)


def describe_trace(trace: Trace, periods: int = 12) -> TraceSummary:
    """Return counts, gang mix, durations, and the load in so many equal periods of time."""
    if periods < 1:
        raise InputError(Fault("describe", "periods", f"must be at least 1, found {periods!r}"))
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
    """How often each name stands, the most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _gang(num_gpus: float, seconds: Floats) -> Gang:
    durations = _durations(seconds)
    hours = None if durations is None else float(np.nansum(seconds)) * num_gpus / 3600
    return Gang(num_gpus, len(seconds), hours, durations)


def _durations(seconds: Floats) -> Durations | None:
    known = seconds[~np.isnan(seconds)]
    if not len(known):
        return None
    median, p90, p99, longest = (float(value) for value in np.quantile(known, [0.5, 0.9, 0.99, 1.0]))
    return Durations(len(known), float(known.mean()), median, p90, p99, longest)


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
