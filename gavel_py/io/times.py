"""Times as people write them: durations such as `2d4h`, and dates, which become seconds from now."""

from __future__ import annotations

import math
import re
from datetime import datetime

UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
"""{unit of a duration: seconds}, in the order in which they are written."""

_NAMES = ("w(?:eeks?)?", "d(?:ays?)?", "h(?:ours?)?", "m(?:in(?:utes?)?)?", "s(?:ec(?:onds?)?)?")
_DURATION = re.compile(r"(?!0[0-9])" + r"\s*".join(rf"(?:([0-9]+(?:\.[0-9]+)?)\s*{name})?" for name in _NAMES))
_NEARLY = re.compile(r"[0-9.]+\s*[a-zA-Z]+([\s0-9.].*)?")

UNTIL = "must be a time from now, such as 48h or 2d4h, or a date such as 2026-12-01T08:00+01:00"
RULE = "must be a number of seconds, or a duration such as 48h or 2d4h (w, d, h, m, s)"


def seconds_in(text: str) -> float | None:
    """Return the seconds of a duration, None for any other text, such as a number alone.

    Args:
        text: Numbers with the units w, d, h, m and s, or the words for them, the largest first.

    >>> seconds_in("2d4h"), seconds_in("1.5h"), seconds_in("90"), seconds_in("4h2d")
    (187200.0, 5400.0, None, None)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or not text.strip():
        return None
    return math.fsum(float(part) * unit for part, unit in zip(found.groups(), UNITS.values(), strict=True) if part)


def with_seconds(value: object) -> object:
    """Return the seconds of a duration, and any other value unchanged. Raises ValueError for what looks like a duration only."""
    if not isinstance(value, str):
        return value
    seconds = seconds_in(value)
    if seconds is None and _NEARLY.fullmatch(value.strip()) and not _is_number(value):
        raise ValueError(f"{RULE}, found {_shown(value)}")
    return value if seconds is None else seconds


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*(0[xXbBoO][0-9a-fA-F]+|[0-9.]+[eE][0-9]+)\s*", text) is not None


def seconds_until(value: object, now: datetime | None = None) -> float:
    """Return the seconds from now to a time: a number of seconds, a duration, or a date with a time of day.

    Args:
        value: The time. A date without a time zone is in that of this machine.
        now: When the seconds count from, by default the present.

    Raises:
        ValueError: It is none of these, or not after now.
    """
    text, start = str(value).strip(), datetime.now().astimezone() if now is None else now.astimezone()
    seconds = seconds_in(text)
    try:
        seconds = float(text) if seconds is None else seconds
    except ValueError:
        seconds = (_moment(text) - start).total_seconds()
        if seconds <= 0:
            since = f"{-seconds / 3600:,.1f} h before {start:%Y-%m-%d %H:%M %z}"
            raise ValueError(f"has passed: {text} is {since}; give a later one, or --now") from None
    if not 0 < seconds < math.inf:
        raise ValueError(f"{UNTIL}, found {_shown(text)}")
    return seconds


def _moment(text: str) -> datetime:
    """Return the time of a date, in the time zone of this machine if it has none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{UNTIL}, found {_shown(text)}") from None
    if re.fullmatch(r"[-0-9W]+", text):
        raise ValueError(f"has no time of day: write {text}T18:00")
    return found.astimezone()


def _shown(text: str) -> str:
    return repr(text[:60])
