"""The course of one round: which gangs stop when, what time does to those that run, and what happens to their nodes meanwhile.

`RoundExecution` plays rounds on a `SimulationState`, which is what a simulation knows from one round to the next. `RunningGangs`
has all gangs that hold GPUs as columns of one table, so that time passes for all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import filterfalse
from typing import NamedTuple

import numpy as np

from gavel_py.problem.arrays import Floats
from gavel_py.problem.from_jobs import Profile
from gavel_py.scheduling import Round, RoundScheduler
from gavel_py.scheduling.placement.gangs import Spans
from gavel_py.simulator.arrivals import Arrivals
from gavel_py.simulator.job_progress import NUMBERS, InterferenceModel, JobProgress
from gavel_py.simulator.measurements import Measuring, Usage
from gavel_py.simulator.node_events import NodeEvents
from gavel_py.simulator.results import JobRecord, Outcome, Tally

Leave = Callable[[str, Outcome, float], None]

INITIAL_CAPACITY = 64

PER_GANG = ("total_steps", "fails_at", "speed", "gpus", "saved_gpus", "price_per_hour", "since_seconds", "expected_steps")

ROWS = {name: row for row, name in enumerate((*NUMBERS, *PER_GANG))}


class RunningGangs:
    """One column of numbers for each gang on its GPUs, so that an hour of a thousand gangs is a few sums of arrays.

    While a gang holds GPUs, the numbers that change with time (`NUMBERS`) are kept here; `release` and `write_back` bring them to
    its `JobProgress`.
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
        """The jobs that hold GPUs."""
        return iter(self._places)

    @property
    def gpus(self) -> tuple[float, ...]:
        """(K,) the GPUs held of each type, those of several gangs once."""
        return tuple(self._gpus)

    def add(self, progress: JobProgress) -> None:
        """Let a gang hold the GPUs on which it has started."""
        place = len(self._progress)
        if place == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        numbers = [getattr(progress, name) for name in NUMBERS]
        gpus, saved = progress.own_gpus, progress.job.num_gpus - progress.own_gpus
        there = [
            progress.total_steps,
            progress.fails_at,
            progress.speed,
            gpus,
            saved,
            progress.price_per_hour,
            progress.since_seconds,
        ]
        self._table[:, place] = [*numbers, *there, progress.expected_steps]
        self._progress.append(progress)
        self._ids.append(progress.job.job_id)
        self._places[progress.job.job_id] = place
        self._gpus[progress.type_index] += gpus
        self._sharing += bool(progress.partners)
        self.spread += progress.is_spread

    @property
    def are_shared(self) -> bool:
        """Whether any job has GPUs that others have too."""
        return self._sharing > 0

    def release(self, job_id: str) -> JobProgress:
        """Let a gang give up its GPUs; return the job, which knows all that has happened to it."""
        place, last = self._places.pop(job_id), len(self._progress) - 1
        progress = self._progress[place]
        self._write_back(place)
        self._gpus[progress.type_index] -= progress.own_gpus
        self._sharing -= bool(progress.partners)
        self.spread -= progress.is_spread
        if place < last:  # the last one takes its place
            self._table[:, place] = self._table[:, last]
            self._progress[place], self._ids[place] = self._progress[last], self._ids[last]
            self._places[self._ids[place]] = place
        self._progress.pop()
        self._ids.pop()
        return progress

    def write_back(self) -> None:
        """Bring all numbers to the jobs."""
        for place in range(len(self._progress)):
            self._write_back(place)

    def steps_done(self) -> dict[str, float]:
        """Return the steps that each job has done."""
        return dict(zip(self._ids, self._row("steps_done").tolist(), strict=True))

    @property
    def exceeding_estimate(self) -> list[str]:
        """The jobs that have done all that was expected of them."""
        at = np.flatnonzero(self._row("steps_done") >= self._row("expected_steps")).tolist()
        return [self._progress[place].job.job_id for place in at]

    def set_expected_steps(self, progress: JobProgress) -> None:
        """Take note that other steps are expected of a job that holds GPUs."""
        self._table[ROWS["expected_steps"], self._places[progress.job.job_id]] = progress.expected_steps

    def stops(self, start: float) -> Floats:
        """Return (G,) when each gang would be done or fail, if nothing else happened from `start` on; in the order of `at`."""
        target = np.minimum(self._row("total_steps"), self._row("fails_at"))
        needed: Floats = np.maximum(0.0, (target - self._row("steps_done")) / self._row("speed"))
        return np.maximum(start, self._row("since_seconds")) + self._row("starting_seconds") + needed

    def progress_at(self, place: int) -> JobProgress:
        """Return the job in this place."""
        return self._progress[place]

    def advance(self, start: float, until: float) -> None:
        """Credit all gangs with their work from `start` to `until`; what is left of a start goes on."""
        # The rows in the order of `ROWS`; each is a view, so that what is added to it is added to the table.
        steps, running_seconds, all_lost, cost, starting, all_worked, saved, saved_lost, *per_gang = self._table[
            :, : len(self._progress)
        ]
        total_steps, _, speed, gpus, saved_gpus, price, since, _ = per_gang
        starts = np.maximum(start, since)
        held = until - starts
        begin = starts + starting
        worked, lost = np.maximum(0.0, until - begin), np.minimum(begin, until) - starts
        running_seconds += held
        all_lost += lost
        if self._sharing:
            saved += held * saved_gpus
            saved_lost += lost * saved_gpus
        np.minimum(total_steps, steps + worked * speed, out=steps)
        cost += held / 3600 * gpus * price
        all_worked += worked
        np.maximum(0.0, begin - until, out=starting)

    def _row(self, name: str) -> Floats:
        row: Floats = self._table[ROWS[name], : len(self._progress)]
        return row

    def _write_back(self, place: int) -> None:
        progress = self._progress[place]
        for name, value in zip(NUMBERS, self._table[: len(NUMBERS), place].tolist(), strict=True):
            setattr(progress, name, value)


@dataclass
class SimulationState:
    """now: the clock; arrivals, events: what is to come; active: the jobs in the system; holds: those of them with GPUs;
    measuring: which jobs the tally counts; cancellations: a heap of (seconds, job_id), those of jobs that have left since included;
    gone: jobs that have left since the last decision; reasons: why jobs were left out of it; wall_seconds: on the clock of this
    computer.
    """

    now: float
    arrivals: Arrivals
    events: NodeEvents
    usage: Usage
    running: RunningGangs
    measuring: Measuring = field(default_factory=Measuring)
    tally: Tally = field(default_factory=Tally)
    active: dict[str, JobProgress] = field(default_factory=dict)
    cancellations: list[tuple[float, str]] = field(default_factory=list)
    departed: list[str] = field(default_factory=list)
    reasons: Mapping[str, str] = field(default_factory=dict)
    records: dict[str, JobRecord] = field(default_factory=dict)
    wall_seconds: float = 0.0

    @property
    def next_cancellation(self) -> float:
        """When the next job is cancelled that is still in the system, infinite if none is."""
        while self.cancellations and self.cancellations[0][1] not in self.active:
            heappop(self.cancellations)
        return self.cancellations[0][0] if self.cancellations else math.inf

    @property
    def next_change(self) -> float:
        """When the next thing happens that no job's progress brings about."""
        return min(self.arrivals.next_seconds, self.events.next_seconds, self.next_cancellation)


TIME_TOLERANCE = 1e-12
"""A part of the time: what ends this little after a round ends with it."""

ESTIMATE_GROWTH = 1.1
"""A job that has done all that was expected of it is expected to do so much in all."""


class Stop(NamedTuple):
    """When and how a job stops within a round, if nothing happens to its GPUs before."""

    seconds: float
    job_id: str
    how: str


class RoundExecution:
    """Plays rounds on the state of a simulation. round_seconds, checkpoint_seconds: see `Simulation`; reads_progress: whether the
    policy is to be told how far jobs are; leave: what is done with a job that leaves.
    """

    def __init__(
        self,
        state: SimulationState,
        scheduler: RoundScheduler,
        profile: Profile,
        interference: InterferenceModel,
        round_seconds: float | None,
        checkpoint_seconds: float | None,
        reads_progress: bool,
        leave: Leave,
    ) -> None:
        self._state, self._scheduler, self._profile = state, scheduler, profile
        self._round_seconds, self._checkpoint_seconds = round_seconds, checkpoint_seconds
        self._reads_progress, self._leave = reads_progress, leave
        cluster = scheduler.cluster
        self._spans = Spans(cluster)
        self._interference = interference
        self._columns = {name: column for column, name in enumerate(cluster.accelerator_names)}
        self._prices = cluster.prices_per_hour.tolist()

    def run(self, current: Round) -> None:
        """Let the gangs of a round run, in the order in which things happen."""
        state = self._state
        self._apply(current)
        end, stops = self._expected_stops()
        while True:
            self.change_nodes(min(end, stops[0].seconds if stops else end), in_round=True)
            if not stops or stops[0].seconds > end + TIME_TOLERANCE * abs(end):
                break
            stop = heappop(stops)
            for other in self._stop_job(stop):
                self._continue_without(other, stop, end, stops)
            if not state.running:
                end = stop.seconds  # nobody is left who would have to wait for its end
        for stop in stops:  # those whose time has not come
            if stop.how == "cancelled":
                heappush(state.cancellations, (stop.seconds, stop.job_id))
        for name, gpus in zip(self._columns, state.running.gpus, strict=True):
            state.usage.used[name] += (end - state.now) * gpus
        state.running.advance(state.now, end)
        self.advance_clock(end)
        if self._reads_progress:
            self._report_progress()

    def advance_clock(self, until: float) -> None:
        """Let the clock go on."""
        self._state.usage.advance(self._state.now, until)
        self._state.now = until

    def change_nodes(self, until: float, *, in_round: bool = False) -> None:
        """Let nodes change before this time; running: a round is on, and the gangs on those that go down are cut."""
        state = self._state
        for event in state.events.until(until):
            state.usage.note_node_event(event)
            if event.change == "down":
                for job_id in self._scheduler.node_down(event.node):
                    if in_round and job_id in state.running:
                        self._interrupt(job_id, event.seconds).preemptions += 1
            elif event.change == "drain":
                self._scheduler.drain(event.node)
            else:
                self._scheduler.node_up(event.node)

    def _apply(self, current: Round) -> None:
        """Let gangs give up their GPUs and get others, as the round says."""
        state, running = self._state, self._state.running
        # Whoever goes on holds its GPUs already, so counting says whether there is anybody else.
        if len(running) > len(current.kept) + sum(job_id in running for job_id in current.started):
            for job_id in list(filterfalse(current.assignments.__contains__, running)):
                running.release(job_id)
        for job_id in current.started:
            if job_id in running:
                running.release(job_id)
            progress, held = state.active[job_id], current.assignments[job_id]
            spread = self._spans.is_spread(held)
            speed = progress.speed_on(self._profile, held.accelerator, spread=spread)
            own, column = progress.job.restart_seconds, self._columns[held.accelerator]
            restart = self._scheduler.restart_seconds if own is None else own
            progress.started(state.now, restart, column, speed, self._prices[column], spread=spread)
            running.add(progress)
        if running.are_shared or any(current.assignments[job_id].shared_with for job_id in current.started):
            for job_id, held in current.assignments.items():
                if held.shared_with != state.active[job_id].partners:
                    self._set_partners(job_id, held.shared_with, state.now)
        if state.measuring.is_measuring:
            state.tally.spread_job_rounds += running.spread

    def _expected_stops(self) -> tuple[float, list[Stop]]:
        """When the round is over if nobody stops it, and who stops until then."""
        state, running = self._state, self._state.running
        seconds = running.stops(state.now)
        first = min(float(seconds.min(initial=math.inf)), max(state.now, state.next_cancellation))
        end = self._end(first)
        latest = end + TIME_TOLERANCE * abs(end)
        at = np.flatnonzero(seconds <= latest).tolist()
        stops = [_stop(running.progress_at(place), when) for place, when in zip(at, seconds[at].tolist(), strict=True)]
        while state.next_cancellation <= latest and state.cancellations:
            when, job_id = heappop(state.cancellations)
            stops.append(Stop(max(state.now, when), job_id, "cancelled"))
        heapify(stops)
        return end, stops

    def _end(self, first_stop: float) -> float:
        """When the round ends: after its length; in event mode, when anything happens."""
        state = self._state
        if self._round_seconds is not None:
            return state.now + self._round_seconds
        event = float(np.nextafter(state.events.next_seconds, math.inf))  # it is over when that has happened
        return max(state.now, min(first_stop, state.arrivals.next_seconds, event))

    def _set_partners(self, job_id: str, others: tuple[str, ...], seconds: float) -> JobProgress:
        """Let a gang have its GPUs with these jobs from now on, and with no others."""
        state = self._state
        progress = state.running.release(job_id)
        if seconds > state.now and progress.since_seconds <= state.now and self._checkpoint_seconds is None:
            progress.checkpoint_steps = progress.steps_done  # its checkpoint is that of the round's beginning
        progress.advance(state.now, seconds)
        name = self._scheduler.cluster.accelerator_names[progress.type_index]
        speed, gpus = self._speed_with(progress, others, name), progress.gpus_shared_with(others)
        state.usage.used[name] += (seconds - state.now) * (progress.own_gpus - gpus)  # it counts for the whole round as at its end
        progress.set_partners(others, speed, gpus, seconds, state.now, self._checkpoint_seconds)
        state.running.add(progress)
        return progress

    def _speed_with(self, progress: JobProgress, others: tuple[str, ...], accelerator: str) -> float:
        """Steps/s of a gang on its GPUs in this company."""
        speed = progress.speed_on(self._profile, accelerator, spread=progress.is_spread)
        alone = progress.speed_on(self._profile, accelerator, spread=False)
        for other in others:
            speed *= self._interference.speed_factor(progress.job, self._state.active[other].job, accelerator, alone)
        return speed

    def _continue_without(self, job_id: str, stop: Stop, end: float, stops: list[Stop]) -> None:
        """Let a gang go on without the one that has stopped."""
        if job_id in self._state.running:
            others = tuple(other for other in self._state.active[job_id].partners if other != stop.job_id)
            progress = self._set_partners(job_id, others, stop.seconds)
            when = progress.stop_seconds
            if when <= end + TIME_TOLERANCE * abs(end):
                heappush(stops, _stop(progress, when))

    def _stop_job(self, stop: Stop) -> tuple[str, ...]:
        """A job ends, fails or is cancelled, unless it has left or lost its GPUs before; return those that shared them."""
        state, has_gpus = self._state, stop.job_id in self._state.running
        progress = state.active.get(stop.job_id)
        if progress is None or not (has_gpus or stop.how == "cancelled"):
            return ()
        others = progress.partners if has_gpus else ()
        if stop.how == "failed":
            self._interrupt(stop.job_id, stop.seconds)
            progress.fail()
            if not self._scheduler.job_failed(stop.job_id):
                self._leave(stop.job_id, Outcome.FAILED, stop.seconds)
            return others
        if has_gpus:
            self._release(stop.job_id, stop.seconds).advance(state.now, stop.seconds)
        if stop.how == "finished":
            progress.finish()
            self._scheduler.complete(stop.job_id)
            self._leave(stop.job_id, Outcome.FINISHED, stop.seconds)
        else:
            self._scheduler.cancel(stop.job_id)
            self._leave(stop.job_id, Outcome.CANCELLED, stop.seconds)
        return others

    def _release(self, job_id: str, seconds: float) -> JobProgress:
        """Take a gang off its GPUs, and count them as used until now."""
        progress = self._state.running.release(job_id)
        name = self._scheduler.cluster.accelerator_names[progress.type_index]
        self._state.usage.used[name] += (seconds - self._state.now) * progress.own_gpus
        return progress

    def _interrupt(self, job_id: str, seconds: float) -> JobProgress:
        """Take a gang off its GPUs without warning."""
        progress, state = self._release(job_id, seconds), self._state
        progress.interrupt(state.now, seconds, self._checkpoint_seconds)
        if self._reads_progress and self._checkpoint_seconds is not None:
            self._scheduler.report(job_id, steps_done=progress.steps_done)  # it may have gone back
        return progress

    def _report_progress(self) -> None:
        """Tell the scheduler how far jobs are; one that has done all that was expected of it is expected to need more."""
        running, active = self._state.running, self._state.active
        steps = running.steps_done()
        for job_id in running.exceeding_estimate:
            progress = active[job_id]
            progress.expected_steps = steps[job_id] * ESTIMATE_GROWTH
            running.set_expected_steps(progress)
            expected = {"total_steps": progress.expected_steps, "duration_seconds": None, "duration_accelerator": None}
            self._scheduler.update(job_id, **expected)
        self._scheduler.report_all(steps)


def _stop(progress: JobProgress, seconds: float) -> Stop:
    return Stop(seconds, progress.job.job_id, "failed" if progress.failing else "finished")
