"""The jobs to come, in the order in which they arrive; no more of them are held than the next one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sized

from gavel_py.errors import Fault, InputError
from gavel_py.problem.job import Job
from gavel_py.simulator.measuring import JobWindow, check_enough
from gavel_py.workloads import Submission

__all__ = ["Arrivals"]


class Arrivals:
    """A trace that is taken job by job. Raises `InputError` for a job that arrives before the one before it.

    window: jobs that the trace must have; if it has not, `InputError` is raised at once where it knows its length, else at its end.
    taken: how many have been; a job's number is how many were before it.
    """

    def __init__(self, trace: Iterable[Submission | Job], window: JobWindow | None = None) -> None:
        self._window = window
        if isinstance(trace, Sized):
            check_enough(len(trace), window)
        self._coming = (job if isinstance(job, Submission) else Submission(job) for job in trace)
        self._next = next(self._coming, None)
        self._digest = hashlib.sha256()
        self.taken = 0
        self._check_end()

    @property
    def next_seconds(self) -> float:
        """When the next job arrives, infinite if none does."""
        return math.inf if self._next is None else self._next.job.arrival_seconds

    @property
    def digest(self) -> str:
        """A mark of the jobs that have been taken: the same of no other jobs."""
        return self._digest.hexdigest()

    def until(self, seconds: float) -> Iterator[Submission]:
        """Take and yield the jobs that have arrived by this time."""
        while self._next is not None and self._next.job.arrival_seconds <= seconds:
            yield self._take(self._next)

    def skip(self, count: int) -> Iterator[Submission]:
        """Take and yield so many jobs, fewer if there are no more."""
        while self._next is not None and self.taken < count:
            yield self._take(self._next)

    def _take(self, arrived: Submission) -> Submission:
        self._next = next(self._coming, None)
        self.taken += 1
        self._check_end()
        job = arrived.job
        told = (job.job_id, job.job_type, job.num_gpus, job.arrival_seconds, job.total_steps, job.duration_seconds)
        self._digest.update(repr((*told, arrived.run_seconds, arrived.cancelled_seconds)).encode())
        if self._next is not None and self._next.job.arrival_seconds < job.arrival_seconds:
            text = f"must not be before that of {job.job_id!r} ({job.arrival_seconds:g}), which stands before it"
            fault = Fault(f"job {self._next.job.job_id!r}", "arrival_seconds", f"{text}: sort the trace by it")
            raise InputError(fault)
        return arrived

    def _check_end(self) -> None:
        if self._next is None:
            check_enough(self.taken, self._window)
