"""The progress of simulated jobs: steps, time and cost so far, and failures to come.

`JobProgress` is one job; its time is accounted at each event that affects it. `RunningGangs` gives the time at which each gang that
holds GPUs stops, and its steps at any time. `round_execution.py` passes the cost of a restart to `JobProgress.start`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.errors import MissingThroughputError
from gavel_py.problem.gpu_counts import with_gpus
from gavel_py.simulator.results import JobRecord, Outcome

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats
    from gavel_py.problem.from_jobs import Profile
    from gavel_py.problem.job import Job
    from gavel_py.scheduling import JobDelivery
    from gavel_py.workloads.submission import Submission

NUMBERS = (
    *("steps_done", "running_seconds", "lost_seconds", "cost", "starting_seconds", "worked_seconds"),
    *("saved_gpu_seconds", "saved_lost_gpu_seconds"),
)
"""The attributes that change with time while a gang runs."""

ACCOUNTED = ("accounted_seconds", *NUMBERS)
"""Attributes of a running gang that a snapshot contains in addition to its progress at that time, so that sums continue exactly."""

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
    """The progress of a job in the system, up to `accounted_seconds` while it holds GPUs.

    Of the job:
        number: its number in the trace, from 0.
        ready_seconds: when it stopped waiting for other jobs, None while it waits.
        total_steps, expected_steps: the steps it has to do, and those that policies see.
        failing: the fractions of its work at which it will still fail, ascending.
        running_seconds, lost_seconds: time with GPUs, and the part of it spent on starts or on work that was lost.
        saved_gpu_seconds, saved_lost_gpu_seconds: GPU-seconds of these times that are accounted to partners.
        earlier_gpu_seconds: {column: GPU-seconds} of its runs before the current one.

    Of its current run, on the GPUs that it holds:
        type_index: the column of the accelerator type, -1 before the first run; price_per_hour: of one GPU.
        is_spread: whether the gang is on more nodes than necessary.
        partners: the jobs on the same GPUs since `since_seconds`; own_gpus: its share of the GPUs.
        accounted_seconds: the time up to which time and steps are accounted.
        run_start_seconds: its start, if this is known to be within the present round.
        speed: steps/s; starting_seconds: remaining time of the start; worked_seconds, steps_at_start: time worked since the start,
            and the number of steps at its end.
        checkpoint_steps: steps at the last checkpoint before its partners changed; uncommitted_seconds, uncommitted_saved: time
            worked between that checkpoint and the change, and its GPU-seconds that are accounted to partners.
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
        self.ready_seconds: float | None = self.job.arrival_seconds
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
        self.accounted_seconds, self.run_start_seconds = 0.0, -math.inf
        self.saved_gpu_seconds = self.saved_lost_gpu_seconds = 0.0
        self.uncommitted_seconds = self.uncommitted_saved = 0.0
        self.earlier_gpu_seconds: dict[int, float] = {}
        self.starts = self.preemptions = self.failures = 0
        self.failing = deque(sorted(failing_at))
        self._speeds: dict[tuple[str, bool, float], float] = {}
        self._is_elastic = self.job.is_elastic

    @property
    def fails_at(self) -> float:
        """Steps at which the job fails next, infinite if it does not."""
        return self.failing[0] * self.total_steps if self.failing else math.inf

    def gpus_shared_with(self, others: tuple[str, ...]) -> float:
        """Return its share of the GPUs next to these jobs: the requested fraction, or an equal part of whole GPUs."""
        return self.job.num_gpus if self.job.num_gpus < 1 else self.job.num_gpus / (1 + len(others))

    @property
    def saved_gpus(self) -> float:
        """GPUs of the gang that are accounted to partners; below 0 if an elastic job has more than its smallest number."""
        return self.job.num_gpus - self.own_gpus

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds so far, without those accounted to partners."""
        return self.running_seconds * self.job.num_gpus - self.saved_gpu_seconds

    def gpu_seconds_by_type(self, num_types: int) -> list[float]:
        """Return GPU-seconds so far by accelerator type."""
        earlier = self.earlier_gpu_seconds
        found = [earlier.get(column, 0.0) for column in range(num_types)]
        if self.type_index >= 0:
            found[self.type_index] += self.gpu_seconds - sum(earlier.values())
        return found

    @property
    def begin_seconds(self) -> float:
        """The time at which the start is over, and work begins or continues."""
        return self.accounted_seconds + self.starting_seconds

    @property
    def stop_seconds(self) -> float:
        """The time at which the job finishes or fails, if nothing else happens."""
        needed = max(0.0, min(self.total_steps, self.fails_at) - self.steps_done)
        return self.begin_seconds + needed / self.speed if self.speed else math.inf

    def speed_on(self, profile: Profile, accelerator: str, *, spread: bool, gpus: int | None = None) -> float:
        """Return steps/s on a type without partners; the consolidated speed if the profile has none for spread gangs.

        gpus: number of GPUs of an elastic job, by default its smallest.
        """
        job = with_gpus(self.job, gpus) if self._is_elastic and gpus is not None else self.job
        key = accelerator, spread, job.num_gpus
        if key not in self._speeds:
            speed = None
            if spread:
                with suppress(MissingThroughputError):
                    speed = profile.job_throughput(job, accelerator, "spread")
            self._speeds[key] = float(profile.job_throughput(job, accelerator) if speed is None else speed)
        return self._speeds[key]

    def start(
        self,
        seconds: float,
        starting_seconds: float,
        column: int,
        speed: float,
        price_per_hour: float,
        *,
        spread: bool,
        gpus: int | None = None,
    ) -> None:
        """Start a run on new GPUs; starting_seconds: the time that the start costs. Steps done so far are checkpointed.

        gpus: number of GPUs of an elastic job, by default its smallest.
        """
        self.starts += 1
        if self.type_index not in (-1, column):
            earlier = self.earlier_gpu_seconds
            current = self.gpu_seconds - sum(earlier.values())
            earlier[self.type_index] = earlier.get(self.type_index, 0.0) + current
        self.starting_seconds, self.worked_seconds, self.steps_at_start = starting_seconds, 0.0, self.steps_done
        self.checkpoint_steps, self.since_seconds, self.run_start_seconds = self.steps_done, seconds, seconds
        self.accounted_seconds = seconds
        self.uncommitted_seconds = self.uncommitted_saved = 0.0
        self.partners, self.own_gpus = (), float(gpus if self._is_elastic and gpus is not None else self.job.num_gpus)
        self.type_index, self.speed, self.price_per_hour = column, speed, price_per_hour
        self.is_spread = spread
        self.first_start_seconds = seconds if self.first_start_seconds is None else self.first_start_seconds

    def set_partners(
        self, others: tuple[str, ...], speed: float, gpus: float, seconds: float, start: float, checkpoint_seconds: float | None
    ) -> None:
        """Change the partners at this time, to which the job has been advanced.

        The work since the last checkpoint was done at another speed and share of the GPUs, so it is accounted separately.

        others: the new partners; speed: steps/s next to them; gpus: the new share of the GPUs; start: start of the round, at which
        there is a checkpoint if `checkpoint_seconds` is None.
        """
        if checkpoint_seconds is None:
            before = self.uncommitted_saved if self.since_seconds > start else 0.0
            self.uncommitted_saved = before + (seconds - max(start, self.since_seconds)) * self.saved_gpus
        else:
            kept = math.floor(self.worked_seconds / checkpoint_seconds) * checkpoint_seconds
            if kept:
                self.checkpoint_steps = min(self.steps_done, self.steps_at_start + kept * self.speed)
                self.uncommitted_seconds = self.uncommitted_saved = 0.0
            self.worked_seconds -= kept
            self.uncommitted_saved += (self.worked_seconds - self.uncommitted_seconds) * self.saved_gpus
            self.uncommitted_seconds = self.worked_seconds
            self.steps_at_start = self.steps_done - self.worked_seconds * speed
        self.partners, self.speed, self.own_gpus, self.since_seconds = others, speed, gpus, seconds

    def advance(self, until: float) -> None:
        """Account the time until then: first the rest of the start, then work."""
        start, begin = self.accounted_seconds, self.begin_seconds
        worked = max(0.0, until - begin)
        self._account(until - start, min(begin, until) - start)
        self.steps_done = min(self.total_steps, self.steps_done + worked * self.speed)
        self.worked_seconds += worked
        self.starting_seconds, self.accounted_seconds = max(0.0, begin - until), until

    def at(self, seconds: float) -> JobProgress:
        """Return a copy that has been advanced to this time."""
        made = copy(self)
        made.advance(seconds)
        return made

    def interrupt(self, start: float, until: float, checkpoint_seconds: float | None) -> None:
        """Stop the run at `until` without warning: the work since the last checkpoint is lost.

        start: start of the round, at which there is a checkpoint if `checkpoint_seconds` is None.
        """
        if checkpoint_seconds is None:
            since = max(start, self.since_seconds)
            self.advance(since)
            self._account(until - since, until - since)
            began = max(start, self.run_start_seconds)
            if since > began:  # the partners changed in this round, and the work before the change is already accounted
                self._lose(since - began, self.uncommitted_saved)
                self.steps_done = self.checkpoint_steps
            return
        self.advance(until)
        kept = math.floor(self.worked_seconds / checkpoint_seconds) * checkpoint_seconds
        lost = self.worked_seconds - kept
        if kept:
            self._lose(lost, lost * self.saved_gpus)
            self.steps_done = min(self.steps_done, self.steps_at_start + kept * self.speed)
        else:
            self._lose(lost, self.uncommitted_saved + (lost - self.uncommitted_seconds) * self.saved_gpus)
            self.steps_done = min(self.steps_done, self.checkpoint_steps)

    def finish(self) -> None:
        """Set the steps done to exactly the total, to remove rounding errors."""
        self.steps_done = self.total_steps

    def fail(self) -> None:
        """Count a failure, and remove it from the failures to come."""
        self.failing.popleft()
        self.failures += 1

    def to_dict(self, until: float | None = None) -> dict[str, Any]:
        """Return the progress as plain data without the job, which is in the trace. until: the time, for a job that holds GPUs."""
        made = self if until is None else self.at(until)
        lists: dict[str, Any] = {"failing": list(self.failing), "with_there": list(self.partners)}
        lists |= {"earlier_gpu_seconds": list(map(list, self.earlier_gpu_seconds.items()))} if self.earlier_gpu_seconds else {}
        lists |= {} if self.ready_seconds == self.job.arrival_seconds else {"ready_seconds": self.ready_seconds}
        lists |= {} if until is None else {"accounted": [getattr(self, name) for name in ACCOUNTED]}
        return {key: getattr(made, name) for name, key in KEYS.items()} | lists

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], submission: Submission, now: float) -> JobProgress:
        """Restore the progress of a job of the trace from `to_dict`; now: the time at which it was saved."""
        made = cls(submission, document["total_steps"], document["failing"], document["expected_steps"], None)
        for name, key in KEYS.items():
            setattr(made, name, document[key])
        made.ready_seconds = document.get("ready_seconds", made.job.arrival_seconds)
        made.partners = tuple(document["with_there"])
        made.earlier_gpu_seconds = dict(document.get("earlier_gpu_seconds", ()))
        made.accounted_seconds = max(made.since_seconds, now)  # as earlier versions accounted it
        vars(made).update(zip(ACCOUNTED, document.get("accounted", ()), strict=False))
        return made

    def _account(self, seconds: float, lost: float) -> None:
        """Add time with GPUs; the work of `lost` seconds of it is lost."""
        saved = self.saved_gpus
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
        """Return the record of the job at this time; reason: why it has no GPUs; measured: whether it counts in the summary."""
        job, has_left = self.job, outcome is not Outcome.ACTIVE
        ready = seconds if self.ready_seconds is None else self.ready_seconds
        late = None if self.deadline_seconds is None else max(0.0, seconds - self.deadline_seconds)
        return JobRecord(
            job_id=job.job_id,
            job_type=job.job_type,
            num_gpus=1 if job.is_elastic else job.num_gpus,
            gpu_range="-".join(map(str, dict.fromkeys(job.gpu_range))) if job.is_elastic else "",
            tenant=job.tenant,
            outcome=outcome,
            arrival_seconds=job.arrival_seconds,
            first_start_seconds=self.first_start_seconds,
            end_seconds=seconds if has_left else None,
            jct_seconds=seconds - ready if outcome is Outcome.FINISHED else None,
            queueing_seconds=max(0.0, seconds - ready - self.running_seconds),
            running_seconds=self.running_seconds,
            gpu_seconds=self.gpu_seconds,
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
            workflow=job.workflow,
            blocked_seconds=ready - job.arrival_seconds,
        )


INITIAL_CAPACITY = 64
"""Number of columns of a new table; it doubles when it is full."""

ROWS = {"stop_seconds": 0, "begin_seconds": 1, "steps_done": 2, "speed": 3, "total_steps": 4, "expected_steps": 5}
"""The row of each attribute of `JobProgress` in the table."""

READ_ROWS = attrgetter(*ROWS)


class RunningGangs:
    """The gangs that hold GPUs, with a column of numbers for each.

    As long as nothing happens to a gang, these numbers determine when it stops and its steps at any time.
    """

    def __init__(self, num_types: int) -> None:
        self._table: Floats = np.zeros((len(ROWS), INITIAL_CAPACITY))
        self._progress: list[JobProgress] = []
        self._ids: list[str] = []
        self._places: dict[str, int] = {}
        self._gpus: list[float] = [0] * num_types
        self._sharing = 0
        self.spread = 0

    def __len__(self) -> int:
        return len(self._progress)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._places

    def __iter__(self) -> Iterator[str]:
        """The ids of the jobs."""
        return iter(self._places)

    @property
    def gpus(self) -> tuple[float, ...]:
        """(K,) the GPUs held of each type; shared GPUs count once."""
        return tuple(self._gpus)

    def add(self, progress: JobProgress) -> None:
        """Add a gang that starts, or one of `changing` after the change."""
        job_id = progress.job.job_id
        place = self._places.get(job_id)
        if place is None:
            self._places[job_id] = place = len(self._progress)
            if place == self._table.shape[1]:
                self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
            self._progress.append(progress)
            self._ids.append(job_id)
        self._table[:, place] = READ_ROWS(progress)
        self._count(progress, 1)

    def changing(self, job_id: str) -> JobProgress:
        """Return the progress of a gang that gets other GPUs or partners; `add` follows."""
        progress = self._progress[self._places[job_id]]
        self._count(progress, -1)
        return progress

    def _count(self, progress: JobProgress, sign: int) -> None:
        self._gpus[progress.type_index] += sign * progress.own_gpus
        self._sharing += sign * bool(progress.partners)
        self.spread += sign * progress.is_spread

    @property
    def are_shared(self) -> bool:
        """Whether any job shares its GPUs."""
        return self._sharing > 0

    def release(self, job_id: str) -> JobProgress:
        """Remove a gang, and return its progress."""
        progress, last = self.changing(job_id), len(self._progress) - 1
        place = self._places.pop(job_id)
        if place < last:  # the last column moves into the gap
            self._table[:, place] = self._table[:, last]
            self._progress[place], self._ids[place] = self._progress[last], self._ids[last]
            self._places[self._ids[place]] = place
        self._progress.pop()
        self._ids.pop()
        return progress

    @property
    def stop_seconds(self) -> Floats:
        """(G,) the time at which each gang finishes or fails if nothing else happens."""
        return self._row("stop_seconds")

    def progress_at(self, place: int) -> JobProgress:
        """Return the progress of the gang in this position of `stop_seconds`."""
        return self._progress[place]

    def steps_done(self, seconds: float) -> Floats:
        """Return (G,) the steps that each gang has done at this time."""
        worked = np.maximum(0.0, seconds - self._row("begin_seconds"))
        return np.minimum(self._row("total_steps"), self._row("steps_done") + worked * self._row("speed"))

    @property
    def expected_steps(self) -> Floats:
        """(G,) the steps that policies expect of each gang; may be changed in place."""
        return self._row("expected_steps")

    @property
    def ids(self) -> list[str]:
        """(G,) the jobs; callers must not change the list."""
        return self._ids

    def _row(self, name: str) -> Floats:
        row: Floats = self._table[ROWS[name], : len(self._progress)]
        return row
