"""The time, and waiting."""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "WallClock"]


class Clock(Protocol):
    """The time, and waiting; tests have one of their own."""

    def now(self) -> float:
        """Return the time, in seconds since 1970, as Slurm counts."""
        ...

    def sleep(self, seconds: float) -> bool:
        """Wait, and say whether to go on: not if the program is to end."""
        ...


class WallClock:
    """The time of this machine; `stop` ends all waiting."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> bool:
        """Wait, and say whether to go on."""
        return not self._stopped.wait(max(0.0, seconds))

    def stop(self) -> None:
        """Let the driver end after what it is doing; may be called by a signal's handler."""
        self._stopped.set()
