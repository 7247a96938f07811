"""The clock of a simulation: jobs arrive, rounds begin, jobs end, nodes fail."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop
from typing import Any

import numpy as np

from gavel_py.cluster import Cluster
from gavel_py.job_arrays import Profile, known_part
from gavel_py.jobs import Job
from gavel_py.policies import Policy
from gavel_py.rounds import JobDelivery, Round, RoundScheduler
from gavel_py.simulator.arrivals import Arrivals
from gavel_py.simulator.events import NodeEvents, NodeFailures, NodeWindow
from gavel_py.simulator.records import JobRecord, Outcome
from gavel_py.simulator.result import SimulationResult
from gavel_py.simulator.settings import PROGRESS, Estimates, JobFailures, check_settings
from gavel_py.simulator.stay import Stay, Stop
from gavel_py.simulator.summary import Tally
from gavel_py.simulator.usage import Usage
from gavel_py.simulator.work import Spans, Work, deadline_of, total_steps_of
from gavel_py.workloads import Submission

__all__ = ["Simulation", "simulate"]

DIGITS = 1e-12
"""A part of the time: what ends this little after a round ends with it."""

MORE = 1.1
"""A job that has done all that was expected of it is expected to do so much in all."""


class Simulation:
    """A trace on a cluster under a policy, round by round (`run`, `step`); the scheduler is the one that runs real clusters.

    trace: jobs or submissions in the order of their arrival; round_seconds: length of a round, or None for event mode: decisions
    when a job arrives or ends, or a node changes, and at no other time, for policies that give jobs all of their time or none
    (ordered ones); restart_seconds: what a job loses that starts, moves or is resumed, unless it says so itself; mechanism,
    min_run_seconds: see `RoundScheduler`; node_failures, maintenance: when nodes are down; job_failures: the probability with which
    an attempt of a job fails, at a random point of its work, or "recorded": as often as the trace says; estimates: "exact", or
    "recorded": policies see the steps that would fit the trace's estimate of the duration; seed: of all that is random;
    on_record, on_round: what is to be done with each job that leaves (its record is not kept then), and with each round.

    Jobs that arrive within a round wait for the next. What ends within a round ends there, and its GPUs are free from the next
    round on; a round in which nobody runs any more ends at once. A job whose node goes down, and one that fails, loses what it did
    since the round began.
    Raises `InputError` for a wrong argument, and for a job without an end (`total_steps`) when it arrives.
    """

    def __init__(
        self,
        trace: Iterable[Submission | Job],
        cluster: Cluster,
        profile: Profile,
        policy: str | Policy = "max_min_fairness",
        *,
        round_seconds: float | None = 360.0,
        node_failures: NodeFailures | None = None,
        maintenance: Iterable[NodeWindow] = (),
        job_failures: JobFailures = 0.0,
        estimates: Estimates = "exact",
        seed: int = 0,
        on_record: Callable[[JobRecord], None] | None = None,
        on_round: Callable[[Round], None] | None = None,
        **scheduling: Any,
    ) -> None:
        self.profile, self.cluster = profile, known_part(cluster, profile)
        length = 1.0 if round_seconds is None else round_seconds
        self.scheduler = RoundScheduler(self.cluster, profile, policy, length, **scheduling)
        check_settings(self.policy, round_seconds, job_failures, estimates, seed)
        self.round_seconds = round_seconds
        self.records: dict[str, JobRecord] = {}
        self._job_failures, self._estimates = job_failures, estimates
        self._reads_progress = bool(PROGRESS.intersection(self.policy.reads) or self.policy.constraints)
        self._on_record, self._on_round = on_record, on_round
        self._arrivals = Arrivals(trace)
        first = self._arrivals.next_seconds
        self.now = first if first < math.inf else 0.0  # the clock starts with the first job
        self._active: dict[str, Work] = {}
        self._gone: list[str] = []
        self._reasons: Mapping[str, str] = {}
        self._usage, self._tally, self._wall = Usage(self.cluster), Tally(), 0.0
        self._spans = Spans(self.cluster)
        self._prices = dict(zip(self.cluster.accelerator_names, self.cluster.prices_per_hour.tolist(), strict=True))
        names = [node.name for node in self.cluster.nodes]
        notice = 0.0 if round_seconds is None else round_seconds
        self._events = NodeEvents(names, node_failures, maintenance, notice, np.random.default_rng([seed, 1]))
        self._chance = np.random.default_rng([seed, 2])

    @property
    def policy(self) -> Policy:
        """The policy that decides."""
        return self.scheduler.policy

    @property
    def active(self) -> int:
        """How many jobs are in the system."""
        return len(self._active)

    def run(self, until_seconds: float = math.inf) -> SimulationResult:
        """Play on until all jobs have left, or none can go on, or this time has come; and return what there is."""
        while self.now < until_seconds and self.step(until_seconds):
            pass
        return self.result()

    def result(self) -> SimulationResult:
        """Return what has come of it so far; jobs that are in the system count as active."""
        tally, records = self._tally.copy(), dict(self.records)
        for job_id, work in self._active.items():
            record = work.record(Outcome.ACTIVE, self.now, self._delivery_of(job_id), self._reasons.get(job_id, ""))
            tally.add(record)
            records[job_id] = record
        return SimulationResult(self.policy.label, tally.summary(self._usage, self._wall), records)

    def step(self, until_seconds: float = math.inf) -> bool:
        """Play one round, or wait for the next arrival, but no longer than to this time; say whether there is more to come."""
        started = time.perf_counter()
        more = self._step(until_seconds)
        self._wall += time.perf_counter() - started
        return more

    def _step(self, until: float) -> bool:
        self._change_nodes(np.nextafter(self.now, math.inf), {})
        for submission in self._arrivals.until(self.now):
            self._admit(submission)
        if not self._active:
            if self._arrivals.next_seconds == math.inf:
                return False
            self._change_nodes(min(until, self._arrivals.next_seconds), {})
            self._pass_time(min(until, self._arrivals.next_seconds))
            return True
        begun = self._begin()
        if not begun.assignments and self._next_change() == math.inf:
            return False  # nobody runs, and nothing is to come that could change that
        self._play(begun)
        return True

    def _next_change(self) -> float:
        """When the next thing happens that no job's progress brings about."""
        cancelled = (work.cancelled_seconds for work in self._active.values() if work.cancelled_seconds is not None)
        return min(self._arrivals.next_seconds, self._events.next_seconds, min(cancelled, default=math.inf))

    def _admit(self, submission: Submission) -> None:
        job = submission.job
        total = total_steps_of(job, self.profile)
        expected, deadline = self._expected_steps(submission, total), deadline_of(job, self.cluster, self.profile)
        work = Work(submission, total, self._failing_at(submission), expected, deadline)
        if work.steps_done >= total:
            self._record(work.record(Outcome.FINISHED, job.arrival_seconds, None))
            return
        seen = {"total_steps": work.expected_steps, "duration_seconds": None, "duration_accelerator": None}
        self.scheduler.submit(job if work.expected_steps == total else job.model_copy(update=seen))
        self._active[job.job_id] = work

    def _expected_steps(self, submission: Submission, total: float) -> float:
        """The steps of a job as policies see them."""
        run, expected = submission.run_seconds, submission.estimate_seconds
        return total if self._estimates == "exact" or not run or not expected else total * expected / run

    def _failing_at(self, submission: Submission) -> list[float]:
        """The parts of its work at which a job fails."""
        if self._job_failures == "recorded":
            count = submission.failed_attempts
        else:
            count = int(self._chance.geometric(1 - float(self._job_failures))) - 1 if self._job_failures else 0
        return self._chance.uniform(size=count).tolist() if count else []

    def _begin(self) -> Round:
        """Let the scheduler decide on a round, and note what it has decided."""
        before, tally = self.scheduler.allocation, self._tally
        begun = self.scheduler.next_round(self.now)
        allocation = self.scheduler.allocation
        tally.rounds += 1
        tally.job_rounds += len(begun.assignments)
        tally.solver_seconds += allocation.seconds["solve"] if allocation is not None and allocation is not before else 0.0
        for job_id in begun.preempted:
            if job_id in self._active:
                self._active[job_id].preemptions += 1
        self._reasons = begun.excluded
        # Those that left before this decision are no part of it, and nobody needs their accounts any more.
        self.scheduler.forget(*self._gone)
        self._gone = []
        if self._on_round is not None:
            self._on_round(begun)
        return begun

    def _play(self, begun: Round) -> None:
        """Let the gangs of a round run, in the order in which things happen."""
        started = frozenset(begun.started)
        stays = {job_id: self._stay(job_id, begun, job_id in started) for job_id in begun.assignments}
        stops = [stay.stop for stay in stays.values()]
        for job_id, work in self._active.items():
            if work.cancelled_seconds is not None:
                stops.append(Stop(max(self.now, work.cancelled_seconds), job_id, "cancelled"))
        heapify(stops)
        end = self._end(stops[0].seconds if stops else math.inf)
        while True:
            self._change_nodes(min(end, stops[0].seconds if stops else end), stays)
            if not stops or stops[0].seconds > end + DIGITS * abs(end):
                break
            stop = heappop(stops)
            self._stopped(stop, stays)
            if not stays:
                end = stop.seconds  # nobody is left who would have to wait for its end
        for stay in stays.values():
            stay.advance(end)
        self._pass_time(end)
        for job_id, stay in stays.items() if self._reads_progress else ():
            self._report(job_id, stay.work)

    def _end(self, first_stop: float) -> float:
        """When the round ends: after its length; in event mode, when anything happens."""
        if self.round_seconds is not None:
            return self.now + self.round_seconds
        event = float(np.nextafter(self._events.next_seconds, math.inf))  # it is over when that has happened
        return max(self.now, min(first_stop, self._arrivals.next_seconds, event))

    def _stay(self, job_id: str, begun: Round, starts: bool) -> Stay:
        work, held = self._active[job_id], begun.assignments[job_id]
        if starts:
            own = work.job.restart_seconds
            work.starting_seconds = self.scheduler.restart_seconds if own is None else own
            work.starts += 1
            work.first_start_seconds = self.now if work.first_start_seconds is None else work.first_start_seconds
        spread = self._spans.is_spread(held)
        self._tally.spread_job_rounds += spread
        speed = work.speed(self.profile, held.accelerator, spread=spread)
        return Stay(work, held, self.now, self.now + work.starting_seconds, speed, self._prices[held.accelerator], self._usage)

    def _stopped(self, stop: Stop, stays: dict[str, Stay]) -> None:
        """A job ends, fails or is cancelled, unless it has left or lost its GPUs before."""
        work, stay = self._active.get(stop.job_id), stays.get(stop.job_id)
        if work is None or (stay is None and stop.how != "cancelled"):
            return
        stays.pop(stop.job_id, None)
        if stay is not None and stop.how == "failed":
            stay.cut(stop.seconds)
            work.failed()
            if not self.scheduler.job_failed(stop.job_id):
                self._leave(stop.job_id, Outcome.FAILED, stop.seconds)
            return
        if stay is not None:
            stay.advance(stop.seconds)
        if stop.how == "finished":
            work.finished()
            self.scheduler.complete(stop.job_id)
            self._leave(stop.job_id, Outcome.FINISHED, stop.seconds)
        else:
            self.scheduler.cancel(stop.job_id)
            self._leave(stop.job_id, Outcome.CANCELLED, stop.seconds)

    def _leave(self, job_id: str, outcome: Outcome, seconds: float) -> None:
        self._record(self._active.pop(job_id).record(outcome, seconds, self._delivery_of(job_id)))
        self._gone.append(job_id)

    def _delivery_of(self, job_id: str) -> JobDelivery | None:
        """What the job was promised and had; in event mode, the scheduler's rounds tell nothing of time."""
        return None if self.round_seconds is None else self.scheduler.delivery_of(job_id)

    def _record(self, record: JobRecord) -> None:
        self._tally.add(record)
        if self._on_record is None:
            self.records[record.job_id] = record
        else:
            self._on_record(record)

    def _report(self, job_id: str, work: Work) -> None:
        """Tell the scheduler how far a job is; one that has done all that was expected of it is expected to need more."""
        if work.steps_done >= work.expected_steps:
            work.expected_steps = work.steps_done * MORE
            self.scheduler.update(job_id, total_steps=work.expected_steps, duration_seconds=None, duration_accelerator=None)
        self.scheduler.report(job_id, steps_done=work.steps_done)

    def _change_nodes(self, until: float, stays: dict[str, Stay]) -> None:
        """Let nodes change before this time; the gangs on those that go down are cut."""
        for event in self._events.until(until):
            self._usage.change_node(event)
            if event.change == "down":
                for job_id in self.scheduler.node_down(event.node):
                    stay = stays.pop(job_id, None)
                    if stay is not None:
                        stay.cut(event.seconds)
                        stay.work.preemptions += 1
            elif event.change == "drain":
                self.scheduler.drain(event.node)
            else:
                self.scheduler.node_up(event.node)

    def _pass_time(self, until: float) -> None:
        self._usage.passed(self.now, until)
        self.now = until


def simulate(
    trace: Iterable[Submission | Job],
    cluster: Cluster,
    profile: Profile,
    policy: str | Policy = "max_min_fairness",
    *,
    until_seconds: float = math.inf,
    **settings: Any,
) -> SimulationResult:
    """Play a trace to its end, or until this time, and return what came of it; settings: those of `Simulation`.

    >>> import gavel_py as gp
    >>> speeds = gp.ThroughputProfile.from_matrix([[2.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    >>> trace = [gp.Job("a", total_steps=1440), gp.Job("b", total_steps=360, arrival_seconds=100)]
    >>> result = gp.simulate(trace, gp.Cluster.from_counts({"v100": 1}), speeds, "fifo")
    >>> {job_id: job.jct_seconds for job_id, job in result.jobs.items()}
    {'a': 720.0, 'b': 980.0}
    """
    return Simulation(trace, cluster, profile, policy, **settings).run(until_seconds)
