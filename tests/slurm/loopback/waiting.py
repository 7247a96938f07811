"""Waiting for something to come true, up to a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["LateError", "until"]

T = TypeVar("T")


class LateError(AssertionError):
    """Something has not come true in time."""


def until(reading: Callable[[], T], within: float, what: str, *, every: float = 0.1) -> T:
    """Read again and again until the reading is true, and return it.

    Raises:
        LateError: it was false for so many seconds; the text tells what was waited for, and the last reading.
    """
    end = time.monotonic() + within
    while not (found := reading()):
        if time.monotonic() > end:
            raise LateError(f"waited {within:g} s for {what}; last: {found!r}")
        time.sleep(every)
    return found
