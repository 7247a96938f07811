"""The arrival of jobs: `Arrivals` reads a trace one job at a time, and `Admission` brings each job into a simulation.

Admission determines the true number of steps of a job, the number that policies see, and the points at which it fails.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.errors import Fault, InputError, MissingThroughputError, faults_among, refuse
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.gpu_counts import counts_of
from gavel_py.problem.job import Job
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.profile import Profile
from gavel_py.problem.workflows import check_parents, dependencies_of, has_dependencies
from gavel_py.report.runs.summary import JobWindow
from gavel_py.simulator.job_progress import JobProgress
from gavel_py.simulator.measurements import check_enough
from gavel_py.workloads.submission import Submission
from gavel_py.workloads.trace import Trace

if TYPE_CHECKING:
    from gavel_py.simulator.options import ExecutionOptions

IN_DIGEST = ("job_id", "job_type", "num_gpus", "arrival_seconds", "total_steps", "duration_seconds")
OTHERS = {name: field.default for name, field in Job.model_fields.items() if name not in IN_DIGEST}
IDENTITY, DETAILS = attrgetter(*IN_DIGEST), attrgetter(*OTHERS)


class Arrivals:
    """A trace of which only the next job is in memory.

    Attributes:
        window: The measured jobs, which the trace must contain.
        taken: Number of jobs taken so far. The number of a job is the number of jobs taken before it.

    Raises:
        InputError: A job arrives before its predecessor or has the id of an earlier one, or the trace is too short for the window.
            The latter is raised at once if the trace has a length, otherwise at its end.
    """

    def __init__(self, trace: Iterable[Submission | Job], window: JobWindow | None = None) -> None:
        self._window = window
        if isinstance(trace, Sized):
            check_enough(len(trace), window)
        if isinstance(trace, Sequence) and has_dependencies(map(_job_of, trace)):
            trace = _workflows_in_order(trace)
        self._submissions = (job if isinstance(job, Submission) else Submission(job) for job in trace)
        self._next = next(self._submissions, None)
        self._digest, self._details = hashlib.sha256(), hashlib.sha256()
        self._ids = set[str]()
        self.taken = 0
        self._check_end()

    @property
    def next_seconds(self) -> float:
        """When the next job arrives, infinite at the end of the trace."""
        return math.inf if self._next is None else self._next.job.arrival_seconds

    @property
    def digest(self) -> str:
        """A checksum of the jobs that have been taken, of the fields that the first versions of snapshots covered."""
        return self._digest.hexdigest()

    @property
    def details(self) -> str:
        """A checksum of their other fields."""
        return self._details.hexdigest()

    def until(self, seconds: float) -> Iterator[Submission]:
        """Take and yield the jobs that have arrived by this time."""
        while self._next is not None and self._next.job.arrival_seconds <= seconds:
            yield self._take(self._next)

    def skip(self, count: int) -> Iterator[Submission]:
        """Take and yield this number of jobs, fewer at the end of the trace."""
        while self._next is not None and self.taken < count:
            yield self._take(self._next)

    def _take(self, arrived: Submission) -> Submission:
        self._next = next(self._submissions, None)
        self.taken += 1
        self._check_end()
        job = arrived.job
        self._digest.update(repr((*IDENTITY(job), arrived.run_seconds, arrived.cancelled_seconds)).encode())
        # Without defaults, so that fields which later versions add do not change it.
        given = [(name, value) for (name, default), value in zip(OTHERS.items(), DETAILS(job), strict=True) if value != default]
        self._details.update(repr((given, arrived.estimate_seconds, arrived.failed_attempts)).encode())
        text = "is that of an earlier job; each job of a trace needs an id of its own"
        refuse(job.where, (job.job_id in self._ids, "job_id", text))
        self._ids.add(job.job_id)
        following = job if self._next is None else self._next.job
        text = f"must not be before that of the previous job {job.job_id!r} ({job.arrival_seconds:g})"
        is_late = following.arrival_seconds < job.arrival_seconds
        refuse(f"job {following.job_id!r}", (is_late, "arrival_seconds", f"{text}; sort the trace by arrival_seconds"))
        return arrived

    def _check_end(self) -> None:
        if self._next is None:
            check_enough(self.taken, self._window)


def _job_of(submission: Submission | Job) -> Job:
    return submission.job if isinstance(submission, Submission) else submission


def _workflows_in_order(trace: Sequence[Submission | Job]) -> Trace:
    """Return a trace in which jobs follow the jobs they wait for. Raises `InputError` if one of these arrives later, or never."""
    found = Trace(job if isinstance(job, Submission) else Submission(job) for job in trace)
    check_parents(found.jobs)
    arrivals = {job.job_id: job.arrival_seconds for job in found.jobs}
    faults = [
        Fault(job.where, "depends_on", f"waits for job {parent!r}, which arrives later")
        for job in found.jobs
        for _, parent in dependencies_of(job)
        if arrivals.get(parent, -math.inf) > job.arrival_seconds
    ]
    InputError.raise_any(faults)
    return found


class Admission:
    """Converts submissions to jobs in progress; the arguments are those of `Simulation`, and `chance` draws random failures."""

    def __init__(self, cluster: Cluster, profile: Profile, options: ExecutionOptions, chance: np.random.Generator) -> None:
        self._cluster, self._profile, self._options, self.chance = cluster, profile, options, chance

    def admit(self, submission: Submission, number: int) -> JobProgress:
        """Return the progress of a new job. number: its number in the trace, from 0. Raises `InputError` if it has no end."""
        job = submission.job
        total = total_steps_of(job, self._profile)
        deadline = deadline_of(job, self._cluster, self._profile)
        failing = self._failing_at(submission)
        expected, num_types = self._expected_steps(submission, total), len(self._cluster.accelerator_names)
        return JobProgress(submission, total, failing, expected, deadline, number, num_types)

    def simulated_counts(self, job: Job) -> dict[str, Any]:
        """Return the fields that restrict an elastic job to the numbers of GPUs that can be simulated, for schedulers that learn.

        A scheduler that learns would offer any number, since it estimates unknown throughputs. But the simulation needs true ones:
        the profile must have a throughput for the number on all types that the job may use. Raises `MissingThroughputError` if
        there is no such number.
        """
        counts, cluster = counts_of(job, self._profile), self._cluster
        gangs = cluster.as_in_profile([job.with_gpus(count) for count in counts])
        names = cluster.profile_names
        used = [job.allows(name) for name in cluster.accelerator_names]
        known = getattr(self._profile, "count_matrix", self._profile.matrix)(gangs, names)[:, used] >= 0
        found = tuple(count for count, row in zip(counts, known.tolist(), strict=True) if all(row))
        text = f"the profile {self._profile.name!r} has no throughput of {job.job_type!r} on the same number of GPUs of all types"
        MissingThroughputError.raise_any(faults_among(job.where, (not found, "gpu_counts", text)))
        return {"gpu_counts": found, "min_gpus": None, "max_gpus": None, "num_gpus": found[0]}

    def _expected_steps(self, submission: Submission, total: float) -> float:
        """Return the steps of a job as policies see them."""
        run, expected = submission.run_seconds, submission.estimate_seconds
        return total if self._options.estimates == "exact" or not run or not expected else total * expected / run

    def _failing_at(self, submission: Submission) -> list[float]:
        """Return the fractions of its work at which a job fails."""
        failures = self._options.job_failures
        if failures == "recorded":
            count = submission.failed_attempts
        else:
            count = int(self.chance.geometric(1 - float(failures))) - 1 if failures else 0
        return self.chance.uniform(size=count).tolist() if count else []


def total_steps_of(job: Job, profile: Profile) -> float:
    """Return the total steps of a job, computed from its duration if necessary. Raises `InputError` for a job with neither."""
    if job.total_steps is not None:
        return job.total_steps
    if job.duration_seconds is None or job.duration_accelerator is None:
        text = "is unknown, so it is not known when the job ends; give total_steps, or duration_seconds with duration_accelerator"
        raise InputError(Fault(f"job {job.job_id!r}", "total_steps", text))
    accelerator = same_accelerator(job.duration_accelerator, profile.accelerators) or job.duration_accelerator
    steps = job.duration_seconds * profile.job_throughput(job, accelerator)
    text = f"its throughput on {job.duration_accelerator!r} is 0, so the duration gives no steps"
    refuse(f"job {job.job_id!r}", (not steps > 0, "duration_accelerator", text))
    return steps


def deadline_of(job: Job, cluster: Cluster, profile: Profile) -> float | None:
    """Return the deadline of a job on the clock of the trace, including one from `deadline_factor`; None if it has none."""
    if job.deadline_factor is None:
        return job.deadline_seconds
    deadline = float(AllocationProblem.from_jobs([job], cluster, profile, whole_gangs=False).deadlines_seconds[0])
    return None if math.isnan(deadline) else deadline
