"""How far a sweep is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """total: cells of the sweep; done, failed: those that have come to an end, kept of them before this sweep began; seconds: that
    it has taken so far.
    """

    total: int
    done: int
    failed: int
    kept: int
    seconds: float

    @property
    def left(self) -> int:
        """Cells that have not come to an end."""
        return self.total - self.done - self.failed

    @property
    def rate(self) -> float | None:
        """Cells per second so far, None before the first."""
        played = self.done + self.failed - self.kept
        return played / self.seconds if played and self.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """The time until the end at this rate, None where nobody can know."""
        return 0.0 if not self.left else None if self.rate is None else self.left / self.rate
