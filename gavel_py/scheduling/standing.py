"""What the past of one job comes to: how long it waited, what it attained, and how it fared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Departure", "Standing"]


class Departure(StrEnum):
    """How a job left, in words that follow its name."""

    COMPLETED = "was completed"
    CANCELLED = "was cancelled"
    FAILED = "failed for good"


@dataclass
class Standing:
    """One job's past, kept after it has left.

    waiting_since_seconds: when it last had GPUs, or arrived; steps_at_start: its steps done when it was submitted;
    isolated_seconds: Σ (steps done from one change of jobs or nodes to the next) / iso_i then, what its progress would have taken
    alone; steps_counted: the steps up to which that sum goes; attained_gpu_seconds: of the rounds that it ran;
    running_since_seconds: the start of the first round of those that it has run without a break, None while it does not run;
    has_run: whether it has ever held GPUs; failures: how often it failed; left: how it left.
    """

    waiting_since_seconds: float
    steps_at_start: float
    steps_counted: float
    isolated_seconds: float = 0.0
    attained_gpu_seconds: float = 0.0
    running_since_seconds: float | None = None
    has_run: bool = False
    failures: int = 0
    left: Departure | None = None

    def isolated(self, steps_done: float, speed: float) -> float:
        """Return isolated_seconds with progress up to `steps_done` at `speed` steps/s.

        Steps that were lost, as after a restart from an older checkpoint, take their part of the time with them.
        """
        new = steps_done - self.steps_counted
        if new >= 0:
            return self.isolated_seconds + (new / speed if speed > 0 else 0.0)
        kept = max(0.0, steps_done - self.steps_at_start) / max(self.steps_counted - self.steps_at_start, -new)
        return self.isolated_seconds * kept
