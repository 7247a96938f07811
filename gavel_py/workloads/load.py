"""The load of a trace over time: what arrives, and how many GPUs would be held if no job had to wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Period", "load_over_time"]

Floats = NDArray[np.float64]


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
