"""Strict priorities with a guard against starvation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gavel_py.errors import refuse
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import option
from gavel_py.policies.ordered import OrderedPolicy
from gavel_py.problem.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class Priority(OrderedPolicy):
    """Run the jobs of the highest priority first.

    With `max_wait_seconds`, jobs that have waited longer than that go before all others, the longest waiting first.
    Source: the strict priorities of production schedulers; the guard against starvation is aging in one step.
    """

    max_wait_seconds: float | None = option(None, "jobs that wait longer than this come first; none: jobs may starve")

    def __post_init__(self) -> None:
        super().__post_init__()
        is_wrong = self.max_wait_seconds is not None and not self.max_wait_seconds >= 0
        text = f"must be a number of seconds of at least 0, or none, found {self.max_wait_seconds!r}"
        refuse(f"policy {self.name}", (is_wrong, "option max_wait_seconds", text))

    @property
    def reads(self) -> tuple[str, ...]:
        return ("priorities",) if self.max_wait_seconds is None else ("priorities", "waiting_seconds")

    @property
    def by_job(self) -> bool:
        return self.max_wait_seconds is None

    @property
    def changes_at(self) -> Mapping[str, tuple[float, ...]]:
        # A job is overdue once it has waited longer. With a limit of 0, jobs that wait and run change places all the time.
        return {"waiting_seconds": (float(np.nextafter(self.max_wait_seconds, np.inf)),)} if self.max_wait_seconds else {}

    def sort_key(self, jobs: JobClasses) -> Floats:
        if self.max_wait_seconds is None:
            return -jobs.priorities  # type: ignore[no-any-return]
        overdue = jobs.waiting_seconds > self.max_wait_seconds
        # Overdue jobs have ranks below 0, so they come before all others.
        return np.where(overdue, _ranks(-jobs.waiting_seconds) - len(jobs), _ranks(-jobs.priorities))


def _ranks(values: Floats) -> Floats:
    """Return (N,) 0 for the least value, 1 for the next, and so on; equal values have the same rank."""
    return np.unique(values, return_inverse=True)[1].astype(float)
