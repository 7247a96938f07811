"""Waiting for a condition, with a guard against hanging."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["GUARD_SECONDS", "LateError", "until"]

T = TypeVar("T")

GUARD_SECONDS = 60.0
"""How long a test waits for what takes a moment: a guard against hanging, and long enough for a machine with other work."""


class LateError(AssertionError):
    """A condition was not met in time."""


def until(reading: Callable[[], T], what: str, *, within: float = GUARD_SECONDS, every: float = 0.1) -> T:
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
