"""One job on its way through a simulation: what it still has to do, what it has cost, and how it will fail.

`InterferenceModel` says how fast jobs really are on GPUs that they share.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gavel_py.errors import Fault, InputError, MissingThroughputError
from gavel_py.io.names import same_name
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling import JobDelivery
from gavel_py.simulator.results import JobRecord, Outcome
from gavel_py.workloads import Submission

Key = tuple[str, str, float, str]


class InterferenceModel:
    """What a profile says of pairs, each asked for once; interference: the part of its speed that a job with a part of a GPU loses
    to each other one on that GPU.
    """

    def __init__(self, profile: Profile, interference: float) -> None:
        self._beside_parts = 1.0 - interference
        self._measured = getattr(profile, "pair_matrix", None)
        self._factors: dict[Key, float] = {}

    def speed_factor(self, job: Job, other: Job, accelerator: str, alone: float) -> float:
        """Return the part of its speed alone, at most 1, that a job has with another one on its GPUs.

        alone: steps/s there, consolidated. Pairs are measured consolidated; spread, they are taken to lose the same part.
        """
        if job.num_gpus < 1:
            return self._beside_parts
        key = job.job_type, other.job_type, job.num_gpus, accelerator
        if key not in self._factors:
            table = None if self._measured is None else self._measured([job, other], [accelerator])
            speed = np.nan if table is None else float(table[0, 1, 0])
            self._factors[key] = min(1.0, float(np.nan_to_num(speed)) / alone) if alone > 0 else 0.0
        return self._factors[key]


NUMBERS = (
    *("steps_done", "running_seconds", "lost_seconds", "cost", "starting_seconds", "worked_seconds"),
    *("saved_gpu_seconds", "saved_lost_gpu_seconds"),
)
"""What time changes of a job that holds GPUs."""

KEYS = {
    **{name: name for name in ("number", "total_steps", "expected_steps", "deadline_seconds", "cancelled_seconds")},
    **{name: name for name in ("first_start_seconds", *NUMBERS)},
    "type_index": "column_there",
    "speed": "speed_there",
    "price_per_hour": "price_there",
    "is_spread": "spread_there",
    "steps_at_start": "steps_there",
    "own_gpus": "gpus_there",
    "since_seconds": "since_seconds",
    "checkpoint_steps": "kept_steps",
    "uncommitted_seconds": "open_seconds",
    "uncommitted_saved": "open_saved",
    **{name: name for name in ("starts", "preemptions", "failures")},
}
"""The key of each attribute in a snapshot."""


class JobProgress:
    """One job that is in the system.

    number: how many jobs of the trace stand before it; total_steps: what it really has to do; failing_at: the parts of its work at
    which it fails; expected_steps: what policies see; starting_seconds: how long it still has to start where it is;
    worked_seconds: how long it has worked there, at speed_there steps/s; column_there, price_there: the accelerator type, as its
    column, and what an hour of one of its GPUs costs; spread_there: whether its gang is on more nodes than it had to be;
    with_there: the jobs that have the same GPUs, since since_seconds; gpus_there: the GPUs that count as its own, of which others
    save it saved_gpu_seconds; kept_steps: what it had done at its last checkpoint before its company changed; open_seconds: how
    long it had worked since then when it changed, in which others saved it open_saved GPU-seconds.
    """

    def __init__(
        self,
        submission: Submission,
        total_steps: float,
        failing_at: Iterable[float],
        expected_steps: float,
        deadline_seconds: float | None,
        number: int = 0,
    ) -> None:
        self.job: Job = submission.job
        self.number = number
        self.total_steps, self.expected_steps = total_steps, expected_steps
        self.deadline_seconds = deadline_seconds
        self.cancelled_seconds = submission.cancelled_seconds
        self.steps_done = self.steps_at_start = self.job.steps_done
        self.first_start_seconds: float | None = None
        self.running_seconds = self.lost_seconds = self.cost = 0.0
        self.starting_seconds = self.worked_seconds = 0.0
        self.type_index, self.speed, self.price_per_hour, self.is_spread = -1, 0.0, 0.0, False
        self.partners: tuple[str, ...] = ()
        self.own_gpus, self.since_seconds, self.checkpoint_steps = float(self.job.num_gpus), 0.0, self.job.steps_done
        self.saved_gpu_seconds = self.saved_lost_gpu_seconds = 0.0
        self.uncommitted_seconds = self.uncommitted_saved = 0.0
        self.starts = self.preemptions = self.failures = 0
        self.failing = deque(sorted(failing_at))
        self._speeds: dict[tuple[str, bool], float] = {}

    @property
    def fails_at(self) -> float:
        """The steps at which it fails, infinite if it does not any more."""
        return self.failing[0] * self.total_steps if self.failing else math.inf

    def gpus_shared_with(self, others: tuple[str, ...]) -> float:
        """Return the GPUs that count as its own: of one GPU the part that it asked for, or of a whole gang's its share."""
        return self.job.num_gpus if self.job.num_gpus < 1 else self.job.num_gpus / (1 + len(others))

    @property
    def stop_seconds(self) -> float:
        """When it will be done or fail, if nothing else happens after `since_seconds`, until which it has its credit."""
        needed = max(0.0, (min(self.total_steps, self.fails_at) - self.steps_done) / self.speed)
        return self.since_seconds + self.starting_seconds + needed

    def speed_on(self, profile: Profile, accelerator: str, *, spread: bool) -> float:
        """Return the steps/s of its gang there; that of a consolidated one where the profile knows no other."""
        key = accelerator, spread
        if key not in self._speeds:
            self._speeds[key] = _speed(profile, self.job, accelerator, spread)
        return self._speeds[key]

    def started(
        self, seconds: float, starting_seconds: float, column: int, speed: float, price_per_hour: float, *, spread: bool
    ) -> None:
        """Note that it has got GPUs that it did not have, and how long its start takes; all that it has done is kept."""
        self.starts += 1
        self.starting_seconds, self.worked_seconds, self.steps_at_start = starting_seconds, 0.0, self.steps_done
        self.checkpoint_steps, self.since_seconds = self.steps_done, seconds
        self.uncommitted_seconds = self.uncommitted_saved = 0.0
        self.partners, self.own_gpus = (), float(self.job.num_gpus)
        self.type_index, self.speed, self.price_per_hour = column, speed, price_per_hour
        self.is_spread = spread
        self.first_start_seconds = seconds if self.first_start_seconds is None else self.first_start_seconds

    def set_partners(
        self, others: tuple[str, ...], speed: float, gpus: float, seconds: float, start: float, checkpoint_seconds: float | None
    ) -> None:
        """Note with whom it has its GPUs from this time on, how fast it is then, and how many of them count as its own.

        It has been credited with its work until then; start: of the round. What it has done since its last checkpoint it has done
        at another speed, and on other GPUs.
        """
        saved = self.job.num_gpus - self.own_gpus
        if checkpoint_seconds is None:
            before = self.uncommitted_saved if self.since_seconds > start else 0.0
            self.uncommitted_saved = before + (seconds - max(start, self.since_seconds)) * saved
        else:
            kept = math.floor(self.worked_seconds / checkpoint_seconds) * checkpoint_seconds
            if kept:
                self.checkpoint_steps = min(self.steps_done, self.steps_at_start + kept * self.speed)
                self.uncommitted_seconds = self.uncommitted_saved = 0.0
            self.worked_seconds -= kept
            self.uncommitted_saved += (self.worked_seconds - self.uncommitted_seconds) * saved
            self.uncommitted_seconds = self.worked_seconds
            self.steps_at_start = self.steps_done - self.worked_seconds * speed
        self.partners, self.speed, self.own_gpus, self.since_seconds = others, speed, gpus, seconds

    def advance(self, start: float, until: float) -> None:
        """Credit it with its work from one time to another; what is left of its start goes on afterwards."""
        start = max(start, self.since_seconds)
        begin = start + self.starting_seconds
        worked = max(0.0, until - begin)
        self._hold(until - start, min(begin, until) - start)
        self.steps_done = min(self.total_steps, self.steps_done + worked * self.speed)
        self.worked_seconds += worked
        self.starting_seconds = max(0.0, begin - until)

    def interrupt(self, start: float, until: float, checkpoint_seconds: float | None) -> None:
        """Let it lose what it has done since its last checkpoint; start: of the round, with a checkpoint if there are no others."""
        saved = self.job.num_gpus - self.own_gpus
        if checkpoint_seconds is None:
            since = max(start, self.since_seconds)
            self._hold(until - since, until - since)
            if since > start:  # its company has changed in this round, and it has been credited with what was before
                self._lose(since - start, self.uncommitted_saved)
                self.steps_done = self.checkpoint_steps
            return
        self.advance(start, until)
        kept = math.floor(self.worked_seconds / checkpoint_seconds) * checkpoint_seconds
        lost = self.worked_seconds - kept
        if kept:
            self._lose(lost, lost * saved)
            self.steps_done = min(self.steps_done, self.steps_at_start + kept * self.speed)
        else:
            self._lose(lost, self.uncommitted_saved + (lost - self.uncommitted_seconds) * saved)
            self.steps_done = min(self.steps_done, self.checkpoint_steps)

    def finish(self) -> None:
        """Note that it is done, whatever rounding says."""
        self.steps_done = self.total_steps

    def fail(self) -> None:
        """Note that it has failed."""
        self.failing.popleft()
        self.failures += 1

    def to_dict(self) -> dict[str, Any]:
        """Return how far it is as plain data; the job itself stands in the trace."""
        lists = {"failing": list(self.failing), "with_there": list(self.partners)}
        return {key: getattr(self, name) for name, key in KEYS.items()} | lists

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], submission: Submission) -> JobProgress:
        """Return what `to_dict` described; submission: the job as the trace has it."""
        made = cls(submission, document["total_steps"], document["failing"], document["expected_steps"], None)
        for name, key in KEYS.items():
            setattr(made, name, document[key])
        made.partners = tuple(document["with_there"])
        return made

    def _hold(self, seconds: float, lost: float) -> None:
        saved = self.job.num_gpus - self.own_gpus
        self.running_seconds += seconds
        self._lose(lost, lost * saved)
        self.cost += seconds / 3600 * self.own_gpus * self.price_per_hour
        self.saved_gpu_seconds += seconds * saved

    def _lose(self, seconds: float, saved_gpu_seconds: float) -> None:
        self.lost_seconds += seconds
        self.saved_lost_gpu_seconds += saved_gpu_seconds

    def record(
        self, outcome: Outcome, seconds: float, delivery: JobDelivery | None, reason: str = "", *, measured: bool = True
    ) -> JobRecord:
        """Return what became of it, as of this time."""
        job, has_left = self.job, outcome is not Outcome.ACTIVE
        late = None if self.deadline_seconds is None else max(0.0, seconds - self.deadline_seconds)
        return JobRecord(
            job_id=job.job_id,
            job_type=job.job_type,
            num_gpus=job.num_gpus,
            tenant=job.tenant,
            outcome=outcome,
            arrival_seconds=job.arrival_seconds,
            first_start_seconds=self.first_start_seconds,
            end_seconds=seconds if has_left else None,
            jct_seconds=seconds - job.arrival_seconds if outcome is Outcome.FINISHED else None,
            queueing_seconds=max(0.0, seconds - job.arrival_seconds - self.running_seconds),
            running_seconds=self.running_seconds,
            gpu_seconds=self.running_seconds * job.num_gpus - self.saved_gpu_seconds,
            lost_gpu_seconds=self.lost_seconds * job.num_gpus - self.saved_lost_gpu_seconds,
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
            measured=measured,
        )


def total_steps_of(job: Job, profile: Profile) -> float:
    """Return the steps of a job, from its duration where it has no number; raises `InputError` for one that has neither."""
    if job.total_steps is not None:
        return job.total_steps
    if job.duration_seconds is None or job.duration_accelerator is None:
        text = "is unknown, and so is when the job ends: give total_steps, or duration_seconds with duration_accelerator"
        raise InputError(Fault(f"job {job.job_id!r}", "total_steps", text))
    accelerator = same_name(job.duration_accelerator, profile.accelerators) or job.duration_accelerator
    steps = job.duration_seconds * profile.job_throughput(job, accelerator)
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
