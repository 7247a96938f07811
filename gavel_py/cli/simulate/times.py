"""Times on the command line: 90, 90s, 15min, 12h or 7d; and the unit in which times are best read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import click

from gavel_py.errors import decimal_hint

__all__ = ["seconds_of", "time_option", "time_text", "unit_of"]

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SHOWN = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))
LEAST = 2
"""A unit is used from so many of it on: 90 minutes are easier to read than 1.5 hours."""


def seconds_of(text: str) -> float | None:
    """Return the seconds that a text such as 12h stands for, None if it is no time.

    >>> seconds_of("90"), seconds_of("1.5h"), seconds_of("tomorrow")
    (90.0, 5400.0, None)
    """
    parts = re.fullmatch(r"\s*([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if parts is None or parts[2] not in UNITS or decimal_hint(parts[1]):
        return None
    try:
        seconds = float(parts[1]) * UNITS[parts[2]]
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def unit_of(seconds: Iterable[float | None], largest: str = "hours") -> tuple[str, float]:
    """Return the name of the unit, up to this one, in which these times are best read, and its length in seconds."""
    most = max((abs(value) for value in seconds if value is not None), default=0.0)
    allowed = SHOWN[[name for name, _ in SHOWN].index(largest) :]
    return next(((name, length) for name, length in allowed if most >= LEAST * length), ("s", 1.0))


def time_text(seconds: float) -> str:
    """Return a time with its unit.

    >>> time_text(5400), time_text(86400 * 3.25)
    ('90 minutes', '3.25 days')
    """
    name, length = unit_of([seconds], "days")
    return f"{seconds / length:.3g} {name}"


def time_option(text: str) -> float:
    """Return the seconds that the text of an option stands for."""
    seconds = seconds_of(text)
    if seconds is None or seconds < 0:
        raise click.BadParameter(f"{text!r} is no time of at least 0; write seconds, or as 90s, 15min, 12h, 7d")
    return seconds
