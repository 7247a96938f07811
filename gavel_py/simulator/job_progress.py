"""The progress of simulated jobs: steps, time and cost so far, and failures to come.

`JobProgress` is one job; its time is accounted at each event that affects it. Its numbers are the row of an array, so that `start`
and `advance` can change those of one job or, on columns, of many jobs at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gavel_py.errors import MissingThroughputError
from gavel_py.report.runs.summary import Outcome
from gavel_py.simulator.node_events import latest_at
from gavel_py.simulator.results import JobRecord

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats
    from gavel_py.problem.job import Job
    from gavel_py.problem.profile import Profile
    from gavel_py.scheduling import JobDelivery
    from gavel_py.workloads.submission import Submission

NUMBERS = (
    *("steps_done", "running_seconds", "lost_seconds", "cost", "starting_seconds", "worked_seconds"),
    *("saved_gpu_seconds", "saved_lost_gpu_seconds"),
)
"""The attributes that change with time while a gang runs."""

ACCOUNTED = ("accounted_seconds", *NUMBERS)
"""Attributes of a running gang that a snapshot contains in addition to its progress at that time, so that sums continue exactly."""

SAVED = (
    *("number", "total_steps", "expected_steps", "deadline_seconds", "cancelled_seconds", "first_start_seconds", *NUMBERS),
    *("type_index", "speed", "price_per_hour", "is_spread", "steps_at_start", "own_gpus", "since_seconds", "checkpoint_steps"),
    *("uncommitted_seconds", "uncommitted_saved", "starts", "preemptions", "failures"),
)
"""The attributes that a snapshot contains."""


AT = SimpleNamespace()
"""The place of each number in a row, by its name in `JobProgress`, whose declarations fill it. GPU-seconds of earlier runs by type
follow the numbers."""


class GangStart(NamedTuple):
    """A gang as it starts; of many gangs, each field is an (N,) array."""

    type_index: Any  # the accelerator type
    speed: Any  # steps/s
    price_per_hour: Any  # of one GPU
    gpus: Any  # the number of its GPUs
    is_spread: Any  # whether it is on more nodes than necessary


def view_of(row: Floats) -> memoryview[float]:
    """Return the same memory as a row of an array, whose numbers are read and written faster than those of an array."""
    return memoryview(row)  # type: ignore[arg-type]


def _divide(a: float, b: float) -> float:
    return a / b if b else math.inf


def _divide_arrays(a: Floats, b: Floats) -> Floats:
    found: Floats = np.divide(a, b, out=np.full(a.shape, np.inf), where=b != 0)
    return found


class Arithmetic(NamedTuple):
    """The functions with which `start`, `advance` and `stop_of` compute: those for numbers, or for arrays."""

    maximum: Any = max
    minimum: Any = min
    divide: Any = _divide


ON_NUMBERS, ON_ARRAYS = Arithmetic(), Arithmetic(np.maximum, np.minimum, _divide_arrays)


def start(numbers: Any, seconds: float, starting_seconds: Any, run: GangStart, on: Arithmetic = ON_NUMBERS) -> None:
    """Start a run without partners on new GPUs. Steps done so far are checkpointed.

    Args:
        numbers: the row of a job, or the rows of N jobs as an array (numbers, N); then other arguments may be (N,) arrays too.
        seconds: the time.
        starting_seconds: the time that the start costs.
        run: the gang.
        on: the functions for `numbers`.
    """
    numbers[AT.starts] += 1
    numbers[AT.starting_seconds], numbers[AT.worked_seconds] = starting_seconds, 0.0
    numbers[AT.steps_at_start] = numbers[AT.checkpoint_steps] = numbers[AT.steps_done]
    numbers[AT.since_seconds] = numbers[AT.run_start_seconds] = numbers[AT.accounted_seconds] = seconds
    numbers[AT.uncommitted_seconds] = numbers[AT.uncommitted_saved] = 0.0
    numbers[AT.type_index], numbers[AT.speed], numbers[AT.price_per_hour], numbers[AT.own_gpus], numbers[AT.is_spread] = run
    numbers[AT.first_start_seconds] = on.minimum(numbers[AT.first_start_seconds], seconds)


def advance(numbers: Any, until: float, on: Arithmetic = ON_NUMBERS) -> None:
    """Account the time of a running job until then: first the rest of the start, then work; arguments as for `start`."""
    since = numbers[AT.accounted_seconds]
    begin = since + numbers[AT.starting_seconds]
    worked = on.maximum(0.0, until - begin)
    _account(numbers, until - since, on.minimum(begin, until) - since)
    numbers[AT.steps_done] = on.minimum(numbers[AT.total_steps], numbers[AT.steps_done] + worked * numbers[AT.speed])
    numbers[AT.worked_seconds] += worked
    numbers[AT.starting_seconds], numbers[AT.accounted_seconds] = on.maximum(0.0, begin - until), until


def stop_of(numbers: Any, on: Arithmetic = ON_NUMBERS) -> Any:
    """Return when a running job finishes or fails if nothing else happens, infinite at a speed of 0; arguments as for `start`."""
    needed = on.maximum(0.0, numbers[AT.stops_at_steps] - numbers[AT.steps_done])
    return numbers[AT.accounted_seconds] + numbers[AT.starting_seconds] + on.divide(needed, numbers[AT.speed])


def _account(numbers: Any, seconds: Any, lost: Any) -> None:
    """Add time with GPUs; the work of `lost` seconds of it is lost."""
    own = numbers[AT.own_gpus]
    saved = numbers[AT.num_gpus] - own
    numbers[AT.running_seconds] += seconds
    _lose(numbers, lost, lost * saved)
    numbers[AT.cost] += seconds / 3600 * own * numbers[AT.price_per_hour]
    numbers[AT.saved_gpu_seconds] += seconds * saved


def _lose(numbers: Any, seconds: Any, saved_gpu_seconds: Any) -> None:
    numbers[AT.lost_seconds] += seconds
    numbers[AT.saved_lost_gpu_seconds] += saved_gpu_seconds


def _number(name: str, kind: type = float) -> Any:
    """Declare a number of a job: a property of `JobProgress`, which is the next place of its row."""
    place = len(vars(AT))
    setattr(AT, name, place)

    def read(progress: JobProgress) -> Any:
        return progress.row[place]

    def read_as_kind(progress: JobProgress) -> Any:
        return kind(progress.row[place])

    def write(progress: JobProgress, value: Any) -> None:
        progress.row[place] = value

    return property(read if kind is float else read_as_kind, write)


class JobProgress:
    """The progress of a job in the system, up to `accounted_seconds` while it holds GPUs.

    Of the job:
        row: the numbers that change while it runs, which are attributes too.
        number: its number in the trace, from 0.
        ready_seconds: when it stopped waiting for other jobs, None while it waits.
        total_steps, expected_steps: the steps it has to do, and those that policies see.
        failing: the fractions of its work at which it will still fail, ascending.
        stops_at_steps: the steps at which it fails next or finishes.
        running_seconds, lost_seconds: time with GPUs, and the part of it spent on starts or on work that was lost.
        saved_gpu_seconds, saved_lost_gpu_seconds: GPU-seconds of these times that are accounted to partners.
        earlier_gpu_seconds: (K,) GPU-seconds by accelerator type, up to the last change of the type.
        first_start_seconds: when it first got GPUs, infinite before.

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

    num_gpus: float = _number("num_gpus")
    is_elastic: bool = _number("is_elastic", bool)
    first_start_seconds: float = _number("first_start_seconds")
    steps_done: float = _number("steps_done")
    total_steps: float = _number("total_steps")
    expected_steps: float = _number("expected_steps")
    stops_at_steps: float = _number("stops_at_steps")
    running_seconds: float = _number("running_seconds")
    lost_seconds: float = _number("lost_seconds")
    cost: float = _number("cost")
    saved_gpu_seconds: float = _number("saved_gpu_seconds")
    saved_lost_gpu_seconds: float = _number("saved_lost_gpu_seconds")
    starts: int = _number("starts", int)
    preemptions: int = _number("preemptions", int)
    type_index: int = _number("type_index", int)
    speed: float = _number("speed")
    price_per_hour: float = _number("price_per_hour")
    is_spread: bool = _number("is_spread", bool)
    own_gpus: float = _number("own_gpus")
    since_seconds: float = _number("since_seconds")
    accounted_seconds: float = _number("accounted_seconds")
    run_start_seconds: float = _number("run_start_seconds")
    restart_seconds: float = _number("restart_seconds")
    starting_seconds: float = _number("starting_seconds")
    worked_seconds: float = _number("worked_seconds")
    steps_at_start: float = _number("steps_at_start")
    checkpoint_steps: float = _number("checkpoint_steps")
    uncommitted_seconds: float = _number("uncommitted_seconds")
    uncommitted_saved: float = _number("uncommitted_saved")

    def __init__(
        self,
        submission: Submission,
        total_steps: float,
        failing_at: Iterable[float],
        expected_steps: float,
        deadline_seconds: float | None,
        number: int = 0,
        num_types: int = 1,
    ) -> None:
        self.job: Job = submission.job
        job, steps = self.job, self.job.steps_done
        self.row = view_of(np.zeros(WIDTH + num_types))
        self.number = number
        self.ready_seconds: float | None = job.arrival_seconds
        self.deadline_seconds = deadline_seconds
        self.cancelled_seconds = submission.cancelled_seconds
        self.partners: tuple[str, ...] = ()
        self.failures = 0
        self.failing = deque(sorted(failing_at))
        self._speeds: dict[tuple[str, bool, float], float] = {}
        self.total_steps, self.expected_steps = total_steps, expected_steps
        self.steps_done = self.steps_at_start = self.checkpoint_steps = steps
        self.is_elastic, self.num_gpus, self.own_gpus = job.is_elastic, job.num_gpus, job.num_gpus
        self.restart_seconds = math.nan if job.restart_seconds is None else job.restart_seconds
        self.type_index, self.first_start_seconds, self.run_start_seconds = -1, math.inf, -math.inf
        self._set_stop()

    def _set_stop(self) -> None:
        earlier, total = self.job.steps_done, self.total_steps
        self.stops_at_steps = min(total, earlier + (total - earlier) * self.failing[0]) if self.failing else total

    @property
    def earlier_gpu_seconds(self) -> memoryview[float]:
        """(K,) GPU-seconds by accelerator type, up to the last change of the type."""
        return self.row[WIDTH:]

    @property
    def started_seconds(self) -> float | None:
        """When it first got GPUs, None if it has never run."""
        return self.first_start_seconds if self.starts else None

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

    def gpu_seconds_by_type(self) -> list[float]:
        """Return GPU-seconds so far by accelerator type."""
        found = list(self.earlier_gpu_seconds)
        if self.type_index >= 0:
            found[self.type_index] += self.gpu_seconds - sum(found)
        return found

    def speed_on(self, profile: Profile, accelerator: str, *, spread: bool, gpus: int | None = None) -> float:
        """Return steps/s on a type without partners; the consolidated speed if the profile has none for spread gangs.

        gpus: number of GPUs of an elastic job, by default its smallest.
        """
        job = self.job.with_gpus(gpus) if self.is_elastic and gpus is not None else self.job
        key = accelerator, spread, job.num_gpus
        if key not in self._speeds:
            speed = None
            if spread:
                with suppress(MissingThroughputError):
                    speed = profile.job_throughput(job, accelerator, "spread")
            self._speeds[key] = float(profile.job_throughput(job, accelerator) if speed is None else speed)
        return self._speeds[key]

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

    def start(self, seconds: float, restart_seconds: float, run: GangStart) -> None:
        """Start a run, as `start`; restart_seconds: unless the job has its own; its GPUs count for an elastic job only."""
        row, before = self.row, self.row[AT.type_index]
        if before not in (-1, run.type_index):
            earlier = self.earlier_gpu_seconds
            earlier[int(before)] += self.gpu_seconds - sum(earlier)
        own = row[AT.restart_seconds]
        start(row, seconds, restart_seconds if math.isnan(own) else own, run)
        if not row[AT.is_elastic]:
            row[AT.own_gpus] = row[AT.num_gpus]
        self.partners = ()

    def advance(self, until: float) -> None:
        """Account the time until then, as `advance`."""
        advance(self.row, until)

    def at(self, seconds: float) -> JobProgress:
        """Return a copy that has been advanced to this time."""
        made = copy(self)
        made.row = view_of(np.array(self.row))
        made.advance(seconds)
        return made

    def interrupt(self, start: float, until: float, checkpoint_seconds: float | None) -> None:
        """Stop the run at `until` without warning: the work since the last checkpoint is lost.

        start: start of the round, at which there is a checkpoint if `checkpoint_seconds` is None.
        """
        if checkpoint_seconds is None:
            since = max(start, self.since_seconds)
            self.advance(since)
            _account(self.row, until - since, until - since)
            began = max(start, self.run_start_seconds)
            if since > began:  # the partners changed in this round, and the work before the change is already accounted
                _lose(self.row, since - began, self.uncommitted_saved)
                self.steps_done = self.checkpoint_steps
            return
        self.advance(until)
        kept = math.floor(self.worked_seconds / checkpoint_seconds) * checkpoint_seconds
        lost = self.worked_seconds - kept
        if kept:
            _lose(self.row, lost, lost * self.saved_gpus)
            self.steps_done = min(self.steps_done, self.steps_at_start + kept * self.speed)
        else:
            _lose(self.row, lost, self.uncommitted_saved + (lost - self.uncommitted_seconds) * self.saved_gpus)
            self.steps_done = min(self.steps_done, self.checkpoint_steps)

    def finish(self) -> None:
        """Set the steps done to exactly the total, to remove rounding errors."""
        self.steps_done = self.total_steps

    def fail(self) -> None:
        """Count a failure, and remove it from the failures to come."""
        self.failing.popleft()
        self._set_stop()
        self.failures += 1

    def to_dict(self, until: float | None = None) -> dict[str, Any]:
        """Return the progress as plain data without the job, which is in the trace. until: the time, for a job that holds GPUs."""
        made = self if until is None else self.at(until)
        lists: dict[str, Any] = {"failing": list(self.failing), "partners": list(self.partners)}
        earlier = [[column, seconds] for column, seconds in enumerate(self.earlier_gpu_seconds) if seconds]
        lists |= {"earlier_gpu_seconds": earlier} if earlier else {}
        lists |= {} if self.ready_seconds == self.job.arrival_seconds else {"ready_seconds": self.ready_seconds}
        lists |= {} if until is None else {"accounted": [getattr(self, name) for name in ACCOUNTED]}
        values = {name: getattr(made, name) for name in SAVED}
        return values | {"first_start_seconds": made.started_seconds} | lists

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], submission: Submission, now: float, num_types: int) -> JobProgress:
        """Restore the progress of a job of the trace from `to_dict`; now: the time at which it was saved."""
        steps = document["total_steps"], document["failing"], document["expected_steps"]
        made = cls(submission, *steps, None, num_types=num_types)
        for name in SAVED:
            setattr(made, name, math.inf if document[name] is None and name == "first_start_seconds" else document[name])
        made.ready_seconds = document.get("ready_seconds", made.job.arrival_seconds)
        made.partners = tuple(document["partners"])
        for column, seconds in document.get("earlier_gpu_seconds", ()):
            made.earlier_gpu_seconds[column] = seconds
        made.accounted_seconds = max(made.since_seconds, now)
        for name, value in zip(ACCOUNTED, document.get("accounted", ()), strict=False):
            setattr(made, name, value)
        return made

    def record(
        self, outcome: Outcome, seconds: float, delivery: JobDelivery | None, reason: str = "", *, measured: bool = True
    ) -> JobRecord:
        """Return the record of the job at this time; reason: why it has no GPUs; measured: whether it counts in the summary."""
        job, has_left = self.job, outcome is not Outcome.ACTIVE
        ready = seconds if self.ready_seconds is None else self.ready_seconds
        deadline = self.deadline_seconds if outcome is Outcome.FINISHED else None
        late = None if deadline is None else seconds - deadline if seconds > latest_at(deadline) else 0.0
        return JobRecord(
            job_id=job.job_id,
            job_type=job.job_type,
            num_gpus=1 if job.is_elastic else job.num_gpus,
            gpu_range="-".join(map(str, dict.fromkeys(job.gpu_range))) if job.is_elastic else "",
            tenant=job.tenant,
            outcome=outcome,
            arrival_seconds=job.arrival_seconds,
            first_start_seconds=self.started_seconds,
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
            undelivered_seconds=0.0 if delivery is None else delivery.undelivered_seconds,
            reason=reason,
            measured=measured,
            workflow=job.workflow,
            blocked_seconds=ready - job.arrival_seconds,
        )


WIDTH = len(vars(AT))
"""The number of numbers in a row."""
