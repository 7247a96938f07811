"""Whether Slurm answers, and how fast: a warning when that becomes a problem, and another when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.client.commands import WallClock
from gavel_py.integrations.slurm.monitoring.event_log import warn

SLOW_SECONDS = 5.0
"""A reading of the cluster that takes longer is slow; a usual one takes less than a second."""


class Contact:
    """Warns when Slurm begins to answer slowly, or not at all, and when that is over.

    `reading` measures readings of the cluster, and `lost` takes the errors of Slurm, which are also logged.
    """

    def __init__(self, clock: WallClock, log: Callable[..., None]) -> None:
        self._clock, self._log, self._trouble = clock, log, ""
        self._answered = self._since = clock.now()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Measure a reading. If it ends without an error, Slurm has answered."""
        begun = self._clock.now()
        yield
        self._answered = now = self._clock.now()
        seconds = now - begun
        # Twice as fast as what is slow, so that a Slurm at the limit does not cause a line at each reading.
        if self._trouble == "silent" or (self._trouble == "slow" and 2 * seconds <= SLOW_SECONDS):
            again = "answers again" if self._trouble == "silent" else "is no longer slow"
            warn(f"Slurm {again}, after {now - self._since:.0f} s (at {_time(now)})")
            self._trouble = ""
        if not self._trouble and seconds > SLOW_SECONDS:
            self._begin("slow", begun, f"a reading took {seconds:.0f} s; starts, stops and rounds are late")

    def lost(self, error: SlurmError, **fields: float) -> None:
        """Take an error of a command of Slurm. fields: further fields of its entry in the log."""
        self._log("no_answer", why=str(error), **fields)
        if self._trouble != "silent":
            self._begin("silent", self._answered, f"nothing changes until it does: {error}")

    def _begin(self, trouble: Literal["slow", "silent"], since: float, text: str) -> None:
        self._trouble, self._since = trouble, since
        warn(f"Slurm {'is slow' if trouble == 'slow' else 'does not answer'} since {_time(since)}; {text}")


def _time(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
