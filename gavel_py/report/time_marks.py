"""The round numbers and times that stand along a picture: as many as there is room for, at even steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from gavel_py.scheduling.round import Round

__all__ = ["duration", "round_marks", "time_marks"]

UNITS = (("seconds", 1, 120), ("minutes", 60, 2 * 3600), ("hours", 3600, 72 * 3600), ("days", 86400, math.inf))
"""Name, length in seconds, and the longest time that is told in it, in seconds."""

EVEN = {
    "seconds": (1, 2, 5, 10, 15, 30, 60),
    "minutes": (1, 2, 5, 10, 15, 30, 60),
    "hours": (0.5, 1, 2, 3, 6, 12, 24),
    "days": (0.5, 1, 2, 7, 14, 28),
}

Mark = tuple[float, str]


def round_marks(rounds: Sequence[Round], room: float) -> list[Mark]:
    """Return at most `room` or so (position, label): the middles of rounds, of which the position is the left side."""
    step = next(step for step in _decades() if step >= 1 and len(rounds) <= step * room)
    return [(position + 0.5, str(each.index)) for position, each in enumerate(rounds) if each.index % step == 0]


def time_marks(rounds: Sequence[Round], round_seconds: float, room: float) -> tuple[str, list[Mark]]:
    """Return the unit and at most `room` or so (position, label) of even times; between starts of rounds time goes evenly."""
    starts = np.maximum.accumulate([each.start_seconds for each in rounds])
    edges = np.append(starts, starts[-1] + round_seconds)
    name, length, _ = next(unit for unit in UNITS if edges[-1] - edges[0] <= unit[2])
    span = (edges[-1] - edges[0]) / length
    step = next(step for step in _steps(name) if span <= step * room)
    first, last = math.ceil(edges[0] / length / step - 1e-9), math.floor(edges[-1] / length / step + 1e-9)
    times = [step * number for number in range(first, last + 1)]
    places = np.interp([time * length for time in times], edges, np.arange(len(edges))).tolist()
    return name, [(place, f"{time:.10g}") for place, time in zip(places, times, strict=True)]


def duration(seconds: float) -> str:
    """Return a length of time in the unit that suits it.

    >>> duration(360), duration(5400)
    ('6 min', '1.5 h')
    """
    for name, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.4g} {name}"
    return f"{seconds:.4g} s"


def _steps(unit: str) -> Iterator[float]:
    if unit == "seconds":
        yield from (step for step in _decades() if step < 1)
    yield from EVEN[unit]
    yield from (step for step in _decades() if step > EVEN[unit][-1])


def _decades() -> Iterator[float]:
    """1, 2, 5 and 10 times each power of ten, from small to large."""
    for power in range(-9, 16):
        yield from (factor * 10.0**power for factor in (1, 2, 5))
