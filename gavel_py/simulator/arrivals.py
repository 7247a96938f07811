"""The jobs to come, in the order in which they arrive; no more of them are held than the next one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from gavel_py.errors import Fault, InputError
from gavel_py.jobs import Job
from gavel_py.workloads import Submission

__all__ = ["Arrivals"]


class Arrivals:
    """A trace that is taken job by job. Raises `InputError` for a job that arrives before the one before it."""

    def __init__(self, trace: Iterable[Submission | Job]) -> None:
        self._coming = (job if isinstance(job, Submission) else Submission(job) for job in trace)
        self._next = next(self._coming, None)

    @property
    def next_seconds(self) -> float:
        """When the next job arrives, infinite if none does."""
        return math.inf if self._next is None else self._next.job.arrival_seconds

    def until(self, seconds: float) -> Iterator[Submission]:
        """Take and yield the jobs that have arrived by this time."""
        while self._next is not None and self._next.job.arrival_seconds <= seconds:
            arrived, self._next = self._next, next(self._coming, None)
            if self._next is not None and self._next.job.arrival_seconds < arrived.job.arrival_seconds:
                text = (
                    f"must not be before that of {arrived.job.job_id!r} ({arrived.job.arrival_seconds:g}), which stands before it"
                )
                fault = Fault(f"job {self._next.job.job_id!r}", "arrival_seconds", f"{text}: sort the trace by it")
                raise InputError(fault)
            yield arrived
