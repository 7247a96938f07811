"""The jobs to come, in the order of their arrival, and how they enter a simulation; the checks of its settings.

`Arrivals` holds no more of the trace than the next job. `Admission` turns a job of the trace into one at work: how long it really
is, what policies see of that, and where it will fail. `check_settings` says what may be set, and what goes with which policy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io.random import generator_from, generator_state
from gavel_py.policies import Policy
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.scheduling.scheduler_base import why_rounds
from gavel_py.simulator.job_progress import JobProgress, deadline_of, total_steps_of
from gavel_py.simulator.measurements import JobWindow, check_enough, job_window
from gavel_py.workloads import Submission


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


Estimates = Literal["exact", "recorded"]

JobFailures = float | Literal["recorded"]

PROGRESS = frozenset({"steps_remaining", "isolated_seconds"})
"""What a policy may read that changes as jobs get on; for any other, the scheduler need not be told."""

EVENT_CHECKPOINT_SECONDS = 360.0
"""From one checkpoint to the next where there are no rounds, unless it is said: as often as rounds of the usual length begin."""


def check_settings(
    policy: Policy,
    round_seconds: float | None,
    job_failures: JobFailures,
    checkpoint_seconds: float | None,
    estimates: str,
    seed: int,
    interference: float,
    measure_jobs: object,
) -> None:
    """Raise `InputError` for a setting that is wrong, or does not go with the policy."""
    faults = []
    if checkpoint_seconds is not None and not (
        isinstance(checkpoint_seconds, Real) and not isinstance(checkpoint_seconds, bool) and 0 < checkpoint_seconds < math.inf
    ):
        text = f"must be a finite number greater than 0, or None, found {checkpoint_seconds!r}"
        faults.append(Fault("simulation", "checkpoint_seconds", text))
    if job_failures != "recorded" and not (isinstance(job_failures, Real) and 0 <= job_failures < 1):
        text = f'must be a probability of at least 0 and below 1, or "recorded", found {job_failures!r}'
        faults.append(Fault("simulation", "job_failures", text))
    if not (isinstance(interference, Real) and not isinstance(interference, bool) and 0 <= interference < 1):
        faults.append(Fault("simulation", "interference", f"must be at least 0 and below 1, found {interference!r}"))
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        faults.append(Fault("simulation", "seed", f"must be a whole number of at least 0, found {seed!r}"))
    if estimates not in get_args(Estimates):
        faults.append(Fault("simulation", "estimates", f'must be "exact" or "recorded", found {estimates!r}'))
    try:
        job_window(measure_jobs)
    except ValueError as error:
        faults.append(Fault("simulation", "measure_jobs", str(error)))
    if round_seconds is None and (why := why_rounds(policy)):
        faults.append(Fault("simulation", "round_seconds", f"must be given for {policy.name}, {why}"))
    InputError.raise_any(faults)


class Admission:
    """How jobs of the trace come in; the arguments are those of `Simulation`. chance: where they fail at random."""

    def __init__(
        self, cluster: Cluster, profile: Profile, job_failures: JobFailures, estimates: Estimates, chance: np.random.Generator
    ) -> None:
        self._cluster, self._profile = cluster, profile
        self._job_failures, self._estimates = job_failures, estimates
        self.chance = chance

    def admit(self, submission: Submission, number: int) -> JobProgress:
        """Return the job at work; number: its place in the trace. Raises `InputError` for one without an end."""
        job = submission.job
        total = total_steps_of(job, self._profile)
        deadline = deadline_of(job, self._cluster, self._profile)
        failing = self._failing_at(submission)
        return JobProgress(submission, total, failing, self._expected_steps(submission, total), deadline, number)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, and where chance is, as plain data."""
        return {"job_failures": self._job_failures, "estimates": self._estimates, "chance": generator_state(self.chance)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], cluster: Cluster, profile: Profile) -> Admission:
        """Return what `to_dict` described."""
        chance = generator_from(document["chance"])
        return cls(cluster, profile, document["job_failures"], document["estimates"], chance)

    def _expected_steps(self, submission: Submission, total: float) -> float:
        """The steps of a job as policies see them."""
        run, expected = submission.run_seconds, submission.estimate_seconds
        return total if self._estimates == "exact" or not run or not expected else total * expected / run

    def _failing_at(self, submission: Submission) -> list[float]:
        """The parts of its work at which a job fails."""
        if self._job_failures == "recorded":
            count = submission.failed_attempts
        else:
            count = int(self.chance.geometric(1 - float(self._job_failures))) - 1 if self._job_failures else 0
        return self.chance.uniform(size=count).tolist() if count else []
