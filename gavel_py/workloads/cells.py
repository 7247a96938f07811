"""What stands in the cells of traces: numbers, times, and the many ways to say that nothing is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from gavel_py.errors import Fault, InputError, decimal_hint
from gavel_py.io.records import number_of

__all__ = ["amount", "contradicts", "count", "is_missing", "moment", "required_moment", "run_between", "whole_or_part"]

MISSING = {"", "none", "null", "nan", "unknown", "n/a"}

ROUNDING_SECONDS = 1.0
"""Start and end are whole seconds, each off by up to half of one."""

EPOCH = datetime(1970, 1, 1)
"""Without a time zone, as the times in traces are; only differences count."""


def is_missing(value: object) -> bool:
    """Say whether the cell holds nothing, or one of the words for it."""
    return value is None or (isinstance(value, str) and value.strip().lower() in MISSING)


def amount(row: Mapping[str, object], field: str, default: float | None = None) -> float:
    """Return the finite number, at least 0, in a cell; `default` where it is missing, or else an `InputError`."""
    value = row.get(field)
    if is_missing(value):
        if default is not None:
            return default
        raise InputError(Fault("", field, "is missing; a number is needed"))
    number = number_of(value)
    if not 0 <= number < math.inf:
        raise InputError(Fault("", field, f"must be a finite number, at least 0, found {value!r}{decimal_hint(str(value))}"))
    return number


def count(row: Mapping[str, object], field: str, default: int | None = None) -> int:
    """Return the whole number, at least 0, in a cell, be it written as 4 or 4.0."""
    number = amount(row, field, default)
    if number != int(number):
        raise InputError(Fault("", field, f"must be a whole number, found {row.get(field)!r}"))
    return int(number)


def moment(row: Mapping[str, object], field: str) -> float | None:
    """Return the time in a cell, YYYY-MM-DD HH:MM:SS, as seconds on a clock without time zones; None where it is missing."""
    value = row.get(field)
    if is_missing(value):
        return None
    try:
        time = datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise InputError(Fault("", field, f"must be a time as in 2017-10-09 07:01:55, found {value!r}")) from None
    if time.tzinfo is not None:
        time = time.astimezone(UTC).replace(tzinfo=None)
    return (time - EPOCH).total_seconds()


def required_moment(row: Mapping[str, object], field: str) -> float:
    """Return the time in a cell; an `InputError` where it is missing."""
    time = moment(row, field)
    if time is None:
        raise InputError(Fault("", field, "is missing; a time as in 2017-10-09 07:01:55 is needed"))
    return time


def run_between(start: float, end: float, field: str) -> float:
    """Return the seconds from start to end; an `InputError` about `field` where the end comes first."""
    if end < start:
        raise InputError(Fault("", field, f"must not be before the start; it is {start - end:,.0f} s before"))
    return end - start


def contradicts(run: float, start: float | None, end: float | None) -> bool:
    """Say whether a recorded running time differs from end - start by more than the rounding of the two times explains."""
    return start is not None and end is not None and abs(end - start - run) > ROUNDING_SECONDS


def whole_or_part(gpus: float) -> float:
    """Return what a job gets that asks for so many GPUs in all: less than one as it is, more rounded up to whole ones."""
    asked = round(gpus, 6)  # sums of parts
    return asked if asked < 1 else math.ceil(asked)
