"""A gang on its GPUs within one round: when it would stop, and what it has done by then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gavel_py.rounds import Assignment
from gavel_py.simulator.usage import Usage
from gavel_py.simulator.work import Work

__all__ = ["Stay", "Stop"]


class Stop(NamedTuple):
    """When and how a job stops within a round, if nothing happens to its GPUs before."""

    seconds: float
    job_id: str
    how: str


@dataclass(frozen=True)
class Stay:
    """It holds GPUs from `start` on, and works from `begin` on at `speed` steps/s; usage: where its time on GPUs is counted."""

    work: Work
    held: Assignment
    start: float
    begin: float
    speed: float
    price_per_hour: float
    usage: Usage

    @property
    def stop(self) -> Stop:
        """When it is done or fails, whatever comes first."""
        failure = self.work.seconds_to_failure(self.speed)
        if failure is not None:
            return Stop(self.begin + failure, self.work.job.job_id, "failed")
        return Stop(self.begin + self.work.seconds_to_end(self.speed), self.work.job.job_id, "finished")

    def advance(self, until: float) -> None:
        """Credit it with its work so far; what is left of its start goes on in the next round."""
        self.work.starting_seconds = max(0.0, self.begin - until)
        self._hold(until, max(0.0, until - self.begin) * self.speed, min(self.begin, until) - self.start)

    def cut(self, until: float) -> None:
        """What it has done since the round began is lost."""
        self._hold(until, 0.0, until - self.start)

    def _hold(self, until: float, steps: float, lost: float) -> None:
        self.work.ran(until - self.start, steps, lost, self.price_per_hour)
        self.usage.used[self.held.accelerator] += (until - self.start) * len(self.held.gpus)
