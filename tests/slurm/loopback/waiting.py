"""Waiting for a condition up to a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["LateError", "until"]

T = TypeVar("T")


class LateError(AssertionError):
    """A condition was not met in time."""


def until(reading: Callable[[], T], within: float, what: str, *, every: float = 0.1) -> T:
    """Repeat a reading until it is true, and return it.

    Raises:
        LateError: The reading stayed false; the message has the expectation and the last reading.
    """
    end = time.monotonic() + within
    while not (found := reading()):
        if time.monotonic() > end:
            raise LateError(f"waited {within:g} s for {what}; last: {found!r}")
        time.sleep(every)
    return found
