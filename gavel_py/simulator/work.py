"""One job on its way through a simulation: what it still has to do, what it has cost, and how it will fail."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from gavel_py.cluster import Cluster
from gavel_py.errors import Fault, InputError, MissingThroughputError
from gavel_py.job_arrays import Profile
from gavel_py.jobs import Job
from gavel_py.problem import AllocationProblem
from gavel_py.rounds import Assignment, JobDelivery
from gavel_py.simulator.records import JobRecord, Outcome
from gavel_py.workloads import Submission

__all__ = ["Spans", "Work", "deadline_of", "total_steps_of"]


class Spans:
    """On how many nodes of a cluster a gang must be at least; on more, it is spread."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = {
            name: sorted((node.num_gpus for node in cluster.nodes_of(name)), reverse=True) for name in cluster.accelerator_names
        }
        self._fewest: dict[tuple[str, int], int] = {}

    def is_spread(self, held: Assignment) -> bool:
        """Say whether a gang is on more nodes than it had to be."""
        if len(held.gpus) == 1:
            return False
        key = held.accelerator, len(held.gpus)
        if key not in self._fewest:
            self._fewest[key] = self._count(*key)
        return len({node for node, _ in held.gpus}) > self._fewest[key]

    def _count(self, accelerator: str, size: int) -> int:
        for count, gpus in enumerate(self._nodes[accelerator], 1):
            size -= gpus
            if size <= 0:
                return count
        return len(self._nodes[accelerator])


class Work:
    """One job that is in the system.

    total_steps: what it really has to do; failing_at: the parts of its work at which it fails; expected_steps: what policies see;
    starting_seconds: how long it still has to start where it is.
    """

    def __init__(
        self,
        submission: Submission,
        total_steps: float,
        failing_at: Iterable[float],
        expected_steps: float,
        deadline_seconds: float | None,
    ) -> None:
        self.job: Job = submission.job
        self.total_steps, self.expected_steps = total_steps, expected_steps
        self.deadline_seconds = deadline_seconds
        self.cancelled_seconds = submission.cancelled_seconds
        self.steps_done = self.job.steps_done
        self.first_start_seconds: float | None = None
        self.running_seconds = self.lost_seconds = self.cost = 0.0
        self.starting_seconds = 0.0
        self.starts = self.preemptions = self.failures = 0
        self._failing = deque(sorted(failing_at))
        self._speeds: dict[tuple[str, bool], float] = {}

    def speed(self, profile: Profile, accelerator: str, *, spread: bool) -> float:
        """Return the steps/s of its gang there; that of a consolidated one where the profile knows no other."""
        key = accelerator, spread
        if key not in self._speeds:
            self._speeds[key] = _speed(profile, self.job, accelerator, spread)
        return self._speeds[key]

    def seconds_to_end(self, speed: float) -> float:
        """Return how long it takes at this speed until it is done."""
        return (self.total_steps - self.steps_done) / speed

    def seconds_to_failure(self, speed: float) -> float | None:
        """Return how long it takes at this speed until it fails, None if it does not before it is done."""
        if not self._failing:
            return None
        return max(0.0, (self._failing[0] * self.total_steps - self.steps_done) / speed)

    def finished(self) -> None:
        """Note that it is done, whatever rounding says."""
        self.steps_done = self.total_steps

    def failed(self) -> None:
        """Note that it has failed; what it did since the round began is lost."""
        self._failing.popleft()
        self.failures += 1

    def ran(self, seconds: float, steps: float, lost: float, price_per_hour: float) -> None:
        """Note that it held its GPUs for so long, of which it lost a part, and did so many steps."""
        self.running_seconds += seconds
        self.lost_seconds += lost
        self.steps_done = min(self.total_steps, self.steps_done + steps)
        self.cost += seconds / 3600 * self.job.num_gpus * price_per_hour

    def record(self, outcome: Outcome, seconds: float, delivery: JobDelivery | None, reason: str = "") -> JobRecord:
        """Return what became of it, as of this time."""
        job, gone = self.job, outcome is not Outcome.ACTIVE
        late = None if self.deadline_seconds is None else max(0.0, seconds - self.deadline_seconds)
        return JobRecord(
            job_id=job.job_id,
            job_type=job.job_type,
            num_gpus=job.num_gpus,
            tenant=job.tenant,
            outcome=outcome,
            arrival_seconds=job.arrival_seconds,
            first_start_seconds=self.first_start_seconds,
            end_seconds=seconds if gone else None,
            jct_seconds=seconds - job.arrival_seconds if outcome is Outcome.FINISHED else None,
            queueing_seconds=max(0.0, seconds - job.arrival_seconds - self.running_seconds),
            running_seconds=self.running_seconds,
            gpu_seconds=self.running_seconds * job.num_gpus,
            lost_gpu_seconds=self.lost_seconds * job.num_gpus,
            starts=self.starts,
            preemptions=self.preemptions,
            failures=self.failures,
            steps_done=self.steps_done,
            total_steps=self.total_steps,
            late_seconds=late,
            cost=None if math.isnan(self.cost) else self.cost,
            promised_seconds=0.0 if delivery is None else delivery.promised_seconds,
            undelivered_seconds=0.0 if delivery is None else delivery.shortfall_seconds,
            reason=reason,
        )


def total_steps_of(job: Job, profile: Profile) -> float:
    """Return the steps of a job, from its duration where it has no number; raises `InputError` for one that has neither."""
    if job.total_steps is not None:
        return job.total_steps
    if job.duration_seconds is None or job.duration_accelerator is None:
        text = "is unknown, and so is when the job ends: give total_steps, or duration_seconds with duration_accelerator"
        raise InputError(Fault(f"job {job.job_id!r}", "total_steps", text))
    steps = job.duration_seconds * profile.job_throughput(job, job.duration_accelerator)
    if not steps > 0:
        text = f"its throughput on {job.duration_accelerator!r} is 0, so the duration gives no number of steps"
        raise InputError(Fault(f"job {job.job_id!r}", "duration_accelerator", text))
    return steps


def deadline_of(job: Job, cluster: Cluster, profile: Profile) -> float | None:
    """Return the absolute deadline of a job, that of a `deadline_factor` included; None if it has none."""
    if job.deadline_factor is None:
        return job.deadline_seconds
    deadline = float(AllocationProblem.from_jobs([job], cluster, profile, whole_gangs=False).deadlines_seconds[0])
    return None if math.isnan(deadline) else deadline


def _speed(profile: Profile, job: Job, accelerator: str, spread: bool) -> float:
    if spread:
        try:
            return float(profile.job_throughput(job, accelerator, "spread"))
        except MissingThroughputError:
            pass  # not measured
    return float(profile.job_throughput(job, accelerator))
