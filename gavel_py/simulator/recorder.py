"""A simulation as a `Run` for reports: recorded step by step (`RunRecorder`), or for a whole trace in one call (`record_run`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gavel_py.allocation.result import Allocation
from gavel_py.policies import Policy
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job
from gavel_py.problem.profile import Profile
from gavel_py.report.metrics import Fairness, Measured, metrics_of
from gavel_py.report.runs import Labels, Run
from gavel_py.report.runs.run import OverTimeCollector, StayCollector, quantiles
from gavel_py.report.runs.summary import Summary, window_text
from gavel_py.scheduling import Assignment, Round
from gavel_py.simulator.results import JobRecord
from gavel_py.simulator.simulation import Simulation, is_without_rounds
from gavel_py.workloads.submission import Submission


class RunRecorder:
    """Records a simulation as a `Run`, for callers with their own loop over steps; `record_run` does all of this in one call.

    The caller passes each round (`round`, from `on_round`) and starts between rounds (`starts`, from `on_starts`); in event-driven
    mode, it passes changes of gangs instead (`gangs`, from `on_gangs`). It passes each job that leaves (`job`, from `on_record` or
    `records`), calls `step` after each step, and gets the run from `run`. GPUs that a gang loses within a round by a failure count
    as held until the end of the round, or until the job starts again. Curves have at most 200 intervals of whole rounds. With a
    window of measured jobs, curves and stays cover all jobs and the whole time; everything else covers the measured jobs.

    Args:
        simulation: the simulation, before its first step.
        stays: whether to record on which nodes each gang ran.

    Attributes:
        jct_seconds: {job_id: completion time} of the measured jobs that have finished so far.
    """

    def __init__(self, simulation: Simulation, *, stays: bool = False) -> None:
        self._simulation = simulation
        cluster = simulation.cluster
        self._held = StayCollector(cluster.accelerator_names, stays=stays)
        self._curves = OverTimeCollector(simulation.now, cluster.accelerator_names, cluster.capacities)
        self._used = np.array(simulation.used_gpu_seconds)
        self._unknown = np.full(len(cluster.accelerator_names), np.nan)
        self._allocation: Allocation | None = None
        self._promised, self._prices = 0.0, self._unknown
        self._active = self._delivered = 0
        self.jct_seconds: dict[str, float] = {}
        self._workflows: dict[str, str] | None = {} if stays else None

    def round(self, begun: Round) -> None:
        """Record a round.

        Args:
            begun: the round, which has just begun.
        """
        for job_id in self._held.running - begun.assignments.keys():
            self._held.release(job_id, begun.start_seconds)
        self.starts(begun.start_seconds, {job_id: begun.assignments[job_id] for job_id in begun.started})
        self._active = self._simulation.active
        # In event-driven mode no time is promised, and computing what would be takes most of the time of a replay.
        rounds = self._simulation.round_seconds is not None
        running = begun.assignments.values() if rounds else ()
        self._delivered = len({gpu for each in running for gpu in each.gpus})  # shared GPUs count once
        allocation = self._simulation.scheduler.allocation if rounds else None
        outlives_jobs = bool(self._simulation.scheduler.solve_seconds)
        if allocation is not None and (outlives_jobs or allocation is not self._allocation):
            self._allocation = allocation
            self._promised, self._prices = self._promised_by(allocation), self._prices_of(allocation)

    def starts(self, seconds: float, assignments: Mapping[str, Assignment]) -> None:
        """Record starts between rounds.

        Args:
            seconds: their time.
            assignments: {job_id: Assignment} of the jobs.
        """
        for job_id, assignment in assignments.items():
            self._held.hold(job_id, assignment.accelerator, Counter(node for node, _ in assignment.gpus), seconds)

    def gangs(self, seconds: float, changed: Mapping[str, tuple[str, Mapping[str, int]] | None]) -> None:
        """Record a decision in event-driven mode, where no time is promised.

        Args:
            seconds: its time.
            changed: {job_id: (type, {node: GPUs})} of the jobs that start, None for those that lose their GPUs.
        """
        for job_id, place in changed.items():
            if place is None:
                self._held.release(job_id, seconds)
            else:
                self._held.hold(job_id, *place, seconds)
        self._active = self._simulation.active

    def job(self, record: JobRecord) -> None:
        """Record a job that has left.

        Args:
            record: the record of the job.
        """
        if record.measured and record.jct_seconds is not None:
            self.jct_seconds[record.job_id] = record.jct_seconds
        if record.workflow and self._workflows is not None:
            self._workflows[record.job_id] = record.workflow
        end = self._simulation.now if record.end_seconds is None else record.end_seconds
        self._held.leave(record.job_id, record.job_type, max(0.0, end - record.arrival_seconds), end, measured=record.measured)

    def step(self) -> None:
        """Record the end of a step."""
        used = np.array(self._simulation.used_gpu_seconds)
        was_round = self._active > 0  # otherwise the step was the time until an arrival
        prices, promised = (self._prices, self._promised) if was_round else (self._unknown, 0.0)
        self._curves.add(self._simulation.now, used - self._used, prices, self._active, promised, self._delivered)
        self._used, self._active, self._delivered = used, 0, 0

    def run(self, labels: Labels, summary: Summary, isolated: Mapping[str, float] | None = None) -> Run:
        """Return the run. Jobs that are still in the system must have been recorded before, with the records of the result.

        Args:
            labels: its labels in reports.
            summary: the summary of the simulation.
            isolated: {job_id: completion time} of the same trace under the policy `isolated`, for finish-time fairness.
        """
        fairness = np.zeros(0)
        if isolated is not None:
            both = self.jct_seconds.keys() & isolated.keys()
            fairness = np.sort([self.jct_seconds[i] / isolated[i] for i in both if isolated[i] > 0])
        measured = Measured(summary, Fairness.of(fairness), in_rounds=self._simulation.round_seconds is not None)
        window = self._simulation.measure_jobs
        return Run(
            labels=dict(labels) | ({} if window is None else {"measure_jobs": window_text(window)}),
            metrics=metrics_of(measured),
            jct_seconds=quantiles(self.jct_seconds.values()),
            fairness=quantiles(fairness),
            over_time=self._curves.over_time(),
            stays=tuple(self._held.stays()),
            shares=self._held.shares(),
            tenants=summary.tenants,
            workflows=self._workflows or {},
        )

    def _promised_by(self, allocation: Allocation) -> float:
        """Return the mean number of GPUs that an allocation gives the jobs in the system."""
        if allocation.evidence is not None and allocation.counts is not None:
            return float(allocation.gpus.sum())
        sizes = {job.job_id: job.num_gpus for job in self._simulation.scheduler.jobs}
        return float(np.array([sizes.get(job_id, 0) for job_id in allocation.job_ids]) @ allocation.time_fractions.sum(axis=1))

    def _prices_of(self, allocation: Allocation) -> Floats:
        """Return (K,) the shadow price of a GPU of each type, relative to the objective."""
        if allocation.shadow_prices is None or not allocation.objective_value:
            return self._unknown
        found = dict(zip(allocation.accelerator_types, allocation.shadow_prices.tolist(), strict=True))
        size = abs(allocation.objective_value)
        return np.array([found.get(name, np.nan) / size for name in self._simulation.cluster.accelerator_names])


def record_run(
    trace: Iterable[Submission | Job],
    cluster: Cluster,
    profile: Profile,
    policy: str | Policy = "max_min_fairness",
    *,
    labels: Labels | None = None,
    stays: bool = False,
    isolated: Mapping[str, float] | None = None,
    until_seconds: float = math.inf,
    **settings: Any,
) -> Run:
    """Simulate a trace to its end, or until a time, and return it as a `Run` for reports.

    Args:
        trace: jobs or submissions, in the order of their arrival.
        cluster: the nodes.
        profile: steps/s of the jobs.
        policy: a name or a `Policy`.
        labels: labels of the run in reports, in addition to its policy.
        stays: whether to record on which nodes each gang ran.
        isolated: {job_id: completion time} under the policy `isolated`, for finish-time fairness.
        until_seconds: when to stop, on the clock of the trace.
        **settings: other arguments of `Simulation`.

    >>> import gavel_py as gp
    >>> speeds = gp.ThroughputProfile.from_matrix([[2.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    >>> trace = [gp.Job("a", total_steps=1440), gp.Job("b", total_steps=360)]
    >>> run = gp.record_run(trace, gp.Cluster.from_counts({"v100": 1}), speeds, "fifo", stays=True)
    >>> run.stays[1]
    Stay(job_id='b', job_type='', node='v100-0', accelerator='v100', gpus=1, start_seconds=720.0, end_seconds=1080.0)
    """
    simulation = Simulation(
        trace,
        cluster,
        profile,
        policy,
        **hooks_of(lambda: recorder, without_rounds=is_without_rounds(**settings)),
        **settings,
    )
    recorder = RunRecorder(simulation, stays=stays)
    named = {"policy": simulation.policy.label, **(labels or {})}
    run_and_record(simulation, recorder, until_seconds)
    return recorder.run(named, simulation.result().summary, isolated)


def hooks_of(recorder: Callable[[], RunRecorder], *, without_rounds: bool) -> dict[str, Any]:
    """Return the callbacks with which a simulation calls a recorder, which is made after it."""
    if without_rounds:
        return {"on_gangs": lambda seconds, changed: recorder().gangs(seconds, changed)}
    return {
        "on_round": lambda begun: recorder().round(begun),
        "on_starts": lambda seconds, gangs: recorder().starts(seconds, gangs),
    }


def run_and_record(simulation: Simulation, recorder: RunRecorder, until_seconds: float = math.inf) -> None:
    """Run a simulation to its end, or until a time, and record its jobs and steps. Its callbacks must call the recorder."""
    more = True
    while more and simulation.now < until_seconds:
        more = simulation.step(until_seconds)
        for job_id in list(simulation.records):
            recorder.job(simulation.records.pop(job_id))
        recorder.step()
    for record in simulation.result().jobs.values():
        recorder.job(record)
