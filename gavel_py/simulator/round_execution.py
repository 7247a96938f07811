"""Execution of a round: running gangs make progress and finish, fail or are cancelled, and nodes go down.

`RoundExecution` runs rounds on the state of a simulation. `InterferenceModel` gives the speed of jobs that share GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gavel_py.problem.tolerances import FLOAT_ROUNDING
from gavel_py.report.runs.summary import Outcome
from gavel_py.scheduling.jobs.history import ReportedSteps
from gavel_py.scheduling.placement.gangs import HeldGpus, Spans
from gavel_py.scheduling.round import Assignments
from gavel_py.simulator.job_progress import GangStart, JobProgress
from gavel_py.simulator.node_events import latest_at
from gavel_py.simulator.running_gangs import FEW

if TYPE_CHECKING:
    from gavel_py.problem.job import Job
    from gavel_py.problem.profile import Profile
    from gavel_py.scheduling import Assignment, Round, RoundScheduler
    from gavel_py.scheduling.placement.topology import Layout
    from gavel_py.simulator.event_kernel import EventChanges
    from gavel_py.simulator.options import ExecutionOptions
    from gavel_py.simulator.simulation_state import SimulationState
    from gavel_py.workloads.submission import Submission


class InterferenceModel:
    """The speed that jobs keep on shared GPUs.

    For whole GPUs it comes from the pairs of the profile, each looked up once. On fractions of a GPU, a job loses the fraction
    `interference` of its speed to each other job on the GPU.
    """

    def __init__(self, profile: Profile, interference: float) -> None:
        self._fractional_factor = 1.0 - interference
        self._pair_matrix = getattr(profile, "pair_matrix", None)
        self._factors: dict[tuple[str, str, float, str], float] = {}

    def speed_factor(self, job: Job, other: Job, accelerator: str, speed: float) -> float:
        """Return the part of its speed, at most 1, that a job keeps next to another job.

        speed: steps/s of the job without a partner, consolidated. Profiles measure pairs on consolidated gangs; spread gangs are
        assumed to lose the same part.
        """
        if job.num_gpus < 1:
            return self._fractional_factor
        key = job.job_type, other.job_type, job.num_gpus, accelerator
        if key not in self._factors:
            table = None if self._pair_matrix is None else self._pair_matrix([job, other], [accelerator])
            shared = np.nan if table is None else float(table[0, 1, 0])
            self._factors[key] = min(1.0, float(np.nan_to_num(shared)) / speed) if speed > 0 else 0.0
        return self._factors[key]


ESTIMATE_GROWTH = 1.1
"""A job that exceeds its expected steps is expected to do this multiple of its steps done."""


EVENT_CHECKPOINT_SECONDS = 360.0
"""Default time between checkpoints in event mode: the usual length of a round."""

PROGRESS = frozenset({"steps_remaining", "isolated_seconds"})
"""Fields of jobs that change with their progress. The scheduler needs reports only if the policy reads one or has constraints."""


class Callbacks(NamedTuple):
    """Functions that a `Simulation` calls when jobs arrive, leave, or start between rounds."""

    admit: Callable[[Submission], None]
    leave: Callable[[str, Outcome, float], None]
    on_starts: Callable[[float, Mapping[str, Assignment]], None]


class Stop(NamedTuple):
    """When a job stops within a round, and how ("finished", "failed", "cancelled"), if it keeps its GPUs until then."""

    seconds: float
    job_id: str
    how: str


class JobEvents(Protocol):
    """What hears about jobs while they run: the scheduler, or a kernel that decides in its place."""

    def complete(self, job_id: str) -> None: ...
    def cancel(self, job_id: str) -> None: ...
    def job_failed(self, job_id: str, *, now_seconds: float) -> bool: ...
    def report(self, job_id: str, *, steps_done: float) -> None: ...
    def report_all(self, reported: ReportedSteps, /) -> None: ...
    def update(self, job_id: str, /, **fields: Any) -> None: ...


class RoundExecution:
    """Runs rounds on the state of a simulation.

    callbacks: `leave` is called with the id, outcome and time of each job that leaves the system.

    Attributes:
        listener: Hears about jobs while they run.
    """

    def __init__(
        self,
        state: SimulationState,
        scheduler: RoundScheduler,
        profile: Profile,
        round_seconds: float | None,
        options: ExecutionOptions,
        callbacks: Callbacks,
    ) -> None:
        self._state, self._scheduler, self._callbacks = state, scheduler, callbacks
        self.listener: JobEvents = scheduler
        self._profile, cluster = profile, scheduler.cluster
        self._round_seconds, self._checkpoint_seconds = round_seconds, options.checkpoint_seconds
        if round_seconds is None and self._checkpoint_seconds is None:
            self._checkpoint_seconds = EVENT_CHECKPOINT_SECONDS
        self._interference = InterferenceModel(self._profile, options.interference)
        self._starts_between_rounds = options.starts_between_rounds
        self._passed = -math.inf  # time up to which events within the round have been applied
        policy = scheduler.policy
        self._reports_progress = bool(PROGRESS.intersection(policy.reads) or policy.constraints) or scheduler.learner is not None
        self._spans = Spans(cluster)
        self._types, self._restart_seconds = cluster.accelerator_names, scheduler.restart_seconds
        self._prices = cluster.prices_per_hour

    def run_round(self, current: Round) -> None:
        """Run a round to its end; its events happen in the order of their times."""
        state = self._state
        self._start_round(current)
        self._passed = state.now
        end, stops = self._expected_stops()
        while True:
            end = self._pass_events(min(end, stops[0].seconds if stops else end), end, stops)
            if not stops or stops[0].seconds > latest_at(end):
                break
            stop = heappop(stops)
            for other in self._stop_job(stop):
                self._continue_without(other, stop, end, stops)
            if self._starts_between_rounds and not (stops and stops[0].seconds <= stop.seconds):
                self._start_waiting(stop.seconds, end, stops)
            if not state.running:
                end = stop.seconds  # a round without running gangs ends at once
        self._end_round(end, stops)

    def _end_round(self, end: float, stops: Iterable[Stop]) -> None:
        """End a round, which was over before these stops."""
        state = self._state
        for stop in stops:
            if stop.how == "cancelled":
                heappush(state.cancellations, (stop.seconds, stop.job_id))
        for name, gpus in zip(self._types, state.running.gpus, strict=True):
            state.usage.used[name] += (end - state.now) * gpus
        self.advance_clock(end)
        if self._reports_progress:
            self._report_progress()

    def run_event(self, changes: EventChanges, change_seconds: float) -> None:
        """Run the gangs as a kernel has changed them, until the next event: a round without node events and shared GPUs.

        change_seconds: when time alone changes the order.
        """
        state, running = self._state, self._state.running
        for each in changes.lost:
            running.release_one(each.job_id).advance(state.now)
            state.active[each.job_id].preemptions += 1
        for each in changes.started:
            if each.job_id in running:
                running.release_one(each.job_id).advance(state.now)
            self._start_on(each.job_id, each.runs_on, each.size, len(each.gpus), state.now)
        if state.measuring.is_measuring:
            state.tally.spread_job_rounds += running.num_spread
        seconds = running.stop_seconds
        end = max(state.now, min(seconds.item(seconds.argmin()), state.next_change, change_seconds))
        stops = self._stops_until(latest_at(end))
        while stops and stops[0].seconds <= latest_at(end):
            self._stop_job(stop := heappop(stops))
            end = end if running else stop.seconds
        self._end_round(end, stops)

    def advance_clock(self, until: float) -> None:
        """Advance the time to `until`."""
        self._state.usage.advance(self._state.now, until)
        self._state.tenants.advance(until)
        self._state.now = until

    def change_nodes(self, until: float, *, in_round: bool = False) -> float:
        """Apply the node events before this time, up to one after which no gang runs any more; return the time of that one.

        Infinite if there is none. in_round: whether gangs run, which are interrupted if their node goes down.
        """
        state = self._state
        for event in state.events.until(until):
            state.usage.note_node_event(event)
            if event.change == "down":
                lost = [each for each in self._scheduler.node_down(event.node) if in_round and each in state.running]
                for job_id in lost:
                    self._interrupt(job_id, event.seconds).preemptions += 1
                    state.interrupted += 1
                if lost and not state.running:
                    return event.seconds
            elif event.change == "drain":
                self._scheduler.drain(event.node)
            else:
                self._scheduler.node_up(event.node)
        return math.inf

    def _pass_events(self, until: float, end: float, stops: list[Stop]) -> float:
        """Apply the events within the round before this time: node events, and arrivals if waiting jobs may start.

        Return when the round ends: earlier than `end` if it has a length and no gang runs any more.
        """
        state = self._state
        if self._round_seconds is not None:  # an event at the end belongs to the next round
            until = min(until, end - FLOAT_ROUNDING * abs(end))
        if not self._starts_between_rounds:
            last = self.change_nodes(until, in_round=True)
            return end if self._round_seconds is None else min(end, last)
        while (seconds := min(state.events.next_seconds, state.arrivals.next_seconds, self.next_retry(self._passed))) < until:
            self._passed = seconds
            last = self.change_nodes(math.nextafter(seconds, math.inf), in_round=True)
            for submission in state.arrivals.until(seconds):
                self._callbacks.admit(submission)
            for stop in self._cancellations(seconds, latest_at(end)):
                heappush(stops, stop)
            self._start_waiting(seconds, end, stops)
            if last < math.inf and not state.running:
                return seconds
            until = min(until, stops[0].seconds) if stops else until
        return end

    def _start_waiting(self, seconds: float, end: float, stops: list[Stop]) -> None:
        """Start waiting jobs on idle GPUs within the round, and add their stops."""
        started, state = self._scheduler.start_waiting(seconds), self._state
        if not started:
            return
        # Stops of earlier runs of these jobs in this round are void.
        stops[:] = [stop for stop in stops if stop.how == "cancelled" or stop.job_id not in started]
        heapify(stops)
        for job_id, held in started.items():
            self._start_gang(job_id, self._types.index(held.accelerator), [name for name, _ in held.gpus], seconds)
        for job_id, held in started.items():
            if held.shared_with:
                self._set_partners(job_id, held.shared_with, seconds)
            when = state.running.stop_of(job_id)
            if when <= latest_at(end):
                heappush(stops, _stop(state.active[job_id], when))
        if state.measuring.is_measuring:
            state.tally.job_rounds += len(started)
            state.tally.spread_job_rounds += sum(state.active[job_id].is_spread for job_id in started)
        self._callbacks.on_starts(seconds, started)

    def _start_round(self, current: Round) -> None:
        """Release the gangs that lose their GPUs, start those that get new ones, and set partners."""
        state, running, assignments = self._state, self._state.running, current.assignments
        self._restart_seconds = self._scheduler.restart_seconds
        assert isinstance(assignments, Assignments)  # noqa: S101
        if self._starts_between_rounds:
            state.usage.begin_round()
        stopped = running.among(current.preempted)
        # Others lost their GPUs within the last round, when their preemption was counted.
        running.count_preemptions(stopped)
        restarted = running.among(current.started)
        if len(running) > len(current.kept) + len(restarted) + len(stopped):  # a caller took jobs from the scheduler
            stopped = [job_id for job_id in running.ids if job_id not in assignments]
        running.release([*stopped, *restarted], state.now)
        if len(current.started) <= FEW:
            for job_id in current.started:
                column, gpus = assignments.place_of(job_id)
                self._start_gang(job_id, column, assignments.layout.nodes_of(gpus), state.now)
        else:
            self._start_gangs(current.started, assignments.held_by(current.started), assignments.layout)
        if running.are_shared or assignments.are_shared:
            for job_id, held in assignments.items():
                if held.shared_with != state.active[job_id].partners:
                    self._set_partners(job_id, held.shared_with, state.now)
        if state.measuring.is_measuring:
            state.tally.spread_job_rounds += running.num_spread

    def _start_gang(self, job_id: str, column: int, nodes: Sequence[Hashable], seconds: float) -> None:
        """Start a gang without partners; nodes: the node of each of its GPUs."""
        self._start_on(job_id, column, len(nodes), len(set(nodes)), seconds)

    def _start_on(self, job_id: str, column: int, gpus: int, nodes: int, seconds: float) -> None:
        """Start a gang without partners on this number of GPUs and nodes."""
        state, accelerator = self._state, self._types[column]
        progress, spread = state.active[job_id], nodes > 1 and nodes > self._spans.min_nodes(accelerator, gpus)
        speed = progress.speed_on(self._profile, accelerator, spread=spread, gpus=gpus)
        progress.start(seconds, self._restart_seconds, GangStart(column, speed, self._prices.item(column), gpus, spread))
        state.running.add(progress)
        # At the end of the round, its whole length is counted as used.
        state.usage.used[accelerator] -= (seconds - state.now) * progress.own_gpus

    def _start_gangs(self, job_ids: Sequence[str], held: HeldGpus, layout: Layout) -> None:
        """Start many gangs without partners at the start of a round."""
        running, columns, gpus, spread = self._state.running, held.types, held.sizes, self._spans.are_spread(held, layout)
        rows = running.rows_of(job_ids)
        speeds = running.speeds_on(self._profile, self._types, rows, columns, spread=spread, gpus=gpus)
        runs = GangStart(columns, speeds, self._prices[columns], gpus, spread)
        running.start(rows, self._state.now, self._restart_seconds, runs)

    def _expected_stops(self) -> tuple[float, list[Stop]]:
        """Return the end of the round, unless all gangs stop before, and a heap of the stops until then."""
        state, seconds = self._state, self._state.running.stop_seconds
        first = seconds.item(seconds.argmin())
        end = self._end_seconds(min(first, max(state.now, state.next_cancellation)))
        return end, self._stops_until(latest_at(end))

    def _stops_until(self, latest: float) -> list[Stop]:
        """Return a heap of the stops until then."""
        running, seconds = self._state.running, self._state.running.stop_seconds
        # Without a gang that stops, `latest` may be infinite as well.
        rows = ((seconds <= latest) & (seconds < math.inf)).nonzero()[0].tolist()
        stops = [_stop(running.job_at(row), seconds.item(row)) for row in rows]
        stops += self._cancellations(self._state.now, latest)
        heapify(stops)
        return stops

    def _cancellations(self, earliest: float, latest: float) -> list[Stop]:
        """Remove and return the cancellations until `latest`; those before `earliest` happen then."""
        state, found = self._state, list[Stop]()
        while state.next_cancellation <= latest and state.cancellations:
            when, job_id = heappop(state.cancellations)
            found.append(Stop(max(earliest, when), job_id, "cancelled"))
        return found

    def _end_seconds(self, first_stop: float) -> float:
        """Return when the round ends: after its length; in event mode, at the next event."""
        state = self._state
        if self._round_seconds is not None:
            return state.now + self._round_seconds
        event = math.nextafter(state.events.next_seconds, math.inf)  # so that the event is within the round
        order = self._scheduler.next_change_seconds
        return max(state.now, min(first_stop, state.arrivals.next_seconds, event, self.next_retry(state.now), order))

    def next_retry(self, after: float) -> float:
        """Return when the next back-off of a job ends after this time, infinite if none does."""
        ends = [each.until_seconds for each in self._scheduler.backoffs.values()]
        return min([end for end in ends if end > after], default=math.inf)

    def _set_partners(self, job_id: str, others: tuple[str, ...], seconds: float) -> JobProgress:
        """Set the jobs that share the GPUs of a gang from this time on."""
        state = self._state
        progress = state.running.changing(job_id)
        if seconds > state.now and progress.since_seconds <= state.now and self._checkpoint_seconds is None:
            progress.advance(state.now)
            progress.checkpoint_steps = progress.steps_done  # the checkpoint at the start of the round
        progress.advance(seconds)
        name = self._scheduler.cluster.accelerator_names[progress.type_index]
        speed, gpus = self._speed_with(progress, others, name), progress.gpus_shared_with(others)
        # At the end of the round, its whole length is charged for the new share.
        state.usage.used[name] += (seconds - state.now) * (progress.own_gpus - gpus)
        progress.set_partners(others, speed, gpus, seconds, state.now, self._checkpoint_seconds)
        state.running.add(progress)
        return progress

    def _speed_with(self, progress: JobProgress, others: tuple[str, ...], accelerator: str) -> float:
        """Return the steps/s of a gang on its GPUs with these partners."""
        speed = progress.speed_on(self._profile, accelerator, spread=progress.is_spread)
        consolidated = progress.speed_on(self._profile, accelerator, spread=False)
        for other in others:
            speed *= self._interference.speed_factor(progress.job, self._state.active[other].job, accelerator, consolidated)
        return speed

    def _continue_without(self, job_id: str, stop: Stop, end: float, stops: list[Stop]) -> None:
        """Let a gang continue without the partner that has stopped, which changes the time of its own stop."""
        if job_id in self._state.running:
            others = tuple(other for other in self._state.active[job_id].partners if other != stop.job_id)
            progress = self._set_partners(job_id, others, stop.seconds)
            when = self._state.running.stop_of(job_id)
            if when <= latest_at(end):
                heappush(stops, _stop(progress, when))

    def _stop_job(self, stop: Stop) -> tuple[str, ...]:
        """Finish, fail or cancel a job, unless it has left or lost its GPUs before; return the jobs that shared its GPUs."""
        state, has_gpus = self._state, stop.job_id in self._state.running
        progress = state.active.get(stop.job_id)
        if progress is None or not (has_gpus or stop.how == "cancelled"):
            return ()
        others = progress.partners if has_gpus else ()
        if stop.how == "failed":
            self._interrupt(stop.job_id, stop.seconds)
            progress.fail()
            if not self.listener.job_failed(stop.job_id, now_seconds=stop.seconds):
                self._callbacks.leave(stop.job_id, Outcome.FAILED, stop.seconds)
            return others
        if has_gpus:
            self._release(stop.job_id, stop.seconds).advance(stop.seconds)
        if stop.how == "finished":
            progress.finish()
            self.listener.complete(stop.job_id)
            self._callbacks.leave(stop.job_id, Outcome.FINISHED, stop.seconds)
        else:
            self.listener.cancel(stop.job_id)
            self._callbacks.leave(stop.job_id, Outcome.CANCELLED, stop.seconds)
        return others

    def _release(self, job_id: str, seconds: float) -> JobProgress:
        """Release the GPUs of a gang, and count them as used since the start of the round."""
        progress = self._state.running.release_one(job_id)
        name = self._scheduler.cluster.accelerator_names[progress.type_index]
        self._state.usage.used[name] += (seconds - self._state.now) * progress.own_gpus
        return progress

    def _interrupt(self, job_id: str, seconds: float) -> JobProgress:
        """Stop a gang without warning: its work since the last checkpoint is lost."""
        progress, state = self._release(job_id, seconds), self._state
        progress.interrupt(state.now, seconds, self._checkpoint_seconds)
        if self._reports_progress and self._checkpoint_seconds is not None:
            self._note_excess(progress, progress.steps_done)
            self.listener.report(job_id, steps_done=progress.steps_done)  # may be less than reported before
        return progress

    def _report_progress(self) -> None:
        """Report the progress of all gangs to the scheduler; raise the expected steps of jobs that exceed them."""
        running = self._state.running
        steps, expected = running.steps_done(self._state.now), running.expected_steps
        for place in (steps >= expected).nonzero()[0].tolist():
            self._note_excess(running.job_at(running.rows.item(place)), steps.item(place))
        self.listener.report_all(ReportedSteps(running.ids, steps))

    def _note_excess(self, progress: JobProgress, steps: float) -> None:
        """Raise the expected steps of a job that has done as many, since it would count as finished."""
        if steps >= progress.expected_steps:
            progress.expected_steps = steps * ESTIMATE_GROWTH
            fields = {"total_steps": progress.expected_steps, "duration_seconds": None, "duration_accelerator": None}
            self.listener.update(progress.job.job_id, **fields)


def _stop(progress: JobProgress, seconds: float) -> Stop:
    return Stop(seconds, progress.job.job_id, "failed" if progress.failing else "finished")
