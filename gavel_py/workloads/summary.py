"""What is in a trace: counts, gangs, durations, and the load over time."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.problem.fields import plain_size
from gavel_py.workloads.load import Period, load_over_time
from gavel_py.workloads.trace import Trace

__all__ = ["Durations", "Gang", "TraceSummary", "describe_trace"]

Floats = NDArray[np.float64]


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
