"""The clock of a simulation: jobs arrive, rounds begin, jobs finish, nodes fail; `simulate` runs a whole trace in one call."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from heapq import heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from gavel_py.errors import Fault, InputError, MissingThroughputError, refuse
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault, generator_from, generator_state
from gavel_py.policies import Policy, resolve_policy
from gavel_py.problem.accelerators import AcceleratorTable
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.dependencies import Condition, dependency_of
from gavel_py.problem.job import Job, with_values
from gavel_py.problem.profile import Profile
from gavel_py.problem.workflows import why_blocked
from gavel_py.report.runs.summary import JobWindow, Outcome
from gavel_py.scheduling import Assignment, Round, RoundScheduler
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.nodes import cluster_from_dict
from gavel_py.scheduling.options import DEFAULTS, SchedulerOptions
from gavel_py.simulator.arrivals import Admission, Arrivals
from gavel_py.simulator.event_kernel import EventKernel
from gavel_py.simulator.job_progress import JobProgress
from gavel_py.simulator.measurements import JobSums, Measuring, TenantUsage, Usage
from gavel_py.simulator.node_events import NodeEvents, latest_at
from gavel_py.simulator.options import ExecutionOptions, SimulationOptions, UnsavedOptions
from gavel_py.simulator.results import JobRecord, SimulationResult
from gavel_py.simulator.round_execution import Callbacks, RoundExecution
from gavel_py.simulator.running_gangs import SimulatedGangs
from gavel_py.simulator.simulation_state import SimulationState
from gavel_py.workloads.submission import Submission

if TYPE_CHECKING:
    from gavel_py.estimates.learning import Explore, ThroughputLearner
    from gavel_py.simulator.keywords import SimulationKeywords, UnsavedKeywords

logger = logging.getLogger(__name__)

SIMULATION = SnapshotFormat("gavel-py simulation", 2, "a simulation state written by Simulation.save")

EXECUTION = set(ExecutionOptions.model_fields)


class Simulation:
    """Simulates a trace on a cluster under a policy, round by round, with the scheduler that also drives real clusters.

    `run` simulates the whole trace; `step` simulates one round, for callers that look at the state in between.

    Jobs that arrive within a round wait for the next one. A job that finishes within a round ends there, and its GPUs are free from
    the next round on, or at once with `starts_between_rounds`. A round ends at once when no gang runs any more. A job that fails,
    or whose node goes down, loses its work since the last checkpoint. A job that is preempted or moved only loses the time of its
    next start.

    A job that waits for others (`Job.depends_on`) is ready when they have ended, and is cancelled when its condition can no longer
    be met. If the trace is a sequence, these jobs must be in it and arrive no later; otherwise, jobs not in the system count as
    ended.

    Args:
        trace: jobs or submissions, in the order of their arrival.
        cluster: the nodes.
        profile: steps/s of the jobs.
        policy: a name or a `Policy`.
        options: how its scheduler plans rounds; with `by_events`, decisions are only made when a job arrives or ends, a node
            changes, or time alone changes the order of jobs.
        **changes: fields of `SimulationOptions`, and fields of `SchedulerOptions` that replace those of `options`;
            `round_seconds=None` is short for `by_events=True, round_seconds=1.0`.

    Attributes:
        cluster: the cluster without types that the profile lacks. Other arguments that are attributes are unchanged.
        preemptions: the number of preemptions at the beginning of the current round and, by failing nodes, within the one before.

    Raises:
        InputError: for an invalid argument; for a job without an end (`total_steps`) or with the id of an earlier one, when it
            arrives; for a trace with fewer jobs than `measure_jobs` names, at once if the trace has a length, or else when it ends.
    """

    def __init__(
        self,
        trace: Iterable[Submission | Job],
        cluster: Cluster,
        profile: Profile,
        policy: str | Policy = "max_min_fairness",
        *,
        options: SchedulerOptions = DEFAULTS,
        **changes: Unpack[SimulationKeywords],
    ) -> None:
        of_rounds: dict[str, Any] = dict(changes)
        own = SimulationOptions(**{name: of_rounds.pop(name) for name in SimulationOptions.model_fields if name in of_rounds})
        if of_rounds.get("round_seconds", 0.0) is None:
            given = of_rounds.get("by_events", True)
            refuse("simulation", (given is not True, "by_events", f"must be True if round_seconds is None, found {given!r}"))
            of_rounds |= {"round_seconds": 1.0, "by_events": True}
        options = options.changed(**of_rounds)
        cluster = cluster.known_to(profile, allow_unknown_types=own.allow_unknown_types)
        chosen = resolve_policy(policy)
        round_seconds = None if options.by_events else options.round_seconds
        own.check_mode(chosen, round_seconds)
        believed = profile if own.learn is None else _learner(own.learn, cluster)
        scheduler = RoundScheduler(cluster, believed, chosen, options=options)
        _check_names(cluster, scheduler.cluster)
        measuring = Measuring(own.measure_jobs)
        arrivals = Arrivals(trace, measuring.window)
        start = _start_of(arrivals, own.start_seconds)
        names = [node.name for node in cluster.nodes]
        chance = np.random.default_rng([own.seed, 1])
        events = NodeEvents(names, own.node_failures, own.maintenance, round_seconds or 0.0, chance, start)
        running = SimulatedGangs(len(cluster.accelerator_names))
        tenants = TenantUsage(chosen.tenant_tree, cluster, start)
        state = SimulationState(start, arrivals, events, Usage(cluster, start), running, tenants, measuring)
        self._assemble(scheduler, profile, state, own, np.random.default_rng([own.seed, 2]))

    def _assemble(
        self,
        scheduler: RoundScheduler,
        profile: Profile,
        state: SimulationState,
        options: SimulationOptions,
        chance: np.random.Generator,
    ) -> None:
        self._scheduler, self.profile, self.cluster = scheduler, profile, scheduler.cluster
        self.round_seconds = None if scheduler.by_events else scheduler.round_seconds
        self.interference, self.starts_between_rounds = options.interference, options.starts_between_rounds
        self.checkpoint_seconds = options.checkpoint_seconds
        self._state, self._options, self._admission = state, options, Admission(self.cluster, profile, options, chance)
        self.preemptions = 0
        self._is_between_steps = True
        self._num_gpus = float(self.cluster.capacities.sum())
        callbacks = Callbacks(self._admit, self._leave, partial(_tell_starts, options))
        self._execution = RoundExecution(state, scheduler, profile, self.round_seconds, options, callbacks)
        has_begun, in_rounds = state.arrivals.taken > 0, not scheduler.by_events
        self._kernel = None if has_begun or in_rounds or options.needs_scheduler else EventKernel.of(scheduler)
        if self._kernel is not None:
            self._execution.listener = self._kernel
        elif scheduler.by_events:
            logger.info("the scheduler decides at events, which takes longer: the policy, the options or a caller need it")

    @property
    def scheduler(self) -> RoundScheduler:
        """The scheduler. Event-driven simulations use a kernel in its place, until it is read for the first time."""
        if self._kernel is not None:
            kernel, self._kernel, self._execution.listener = self._kernel, None, self._scheduler
            kernel.give_to(self._scheduler, self._state.now)
            self._state.departed = []  # the scheduler has not known them
        return self._scheduler

    @property
    def policy(self) -> Policy:
        """The policy of the scheduler."""
        return self._scheduler.policy

    @property
    def now(self) -> float:
        """The simulated time, in seconds on the clock of the trace."""
        return self._state.now

    @property
    def active(self) -> int:
        """The number of jobs in the system."""
        return len(self._state.active)

    @property
    def measure_jobs(self) -> JobWindow | None:
        """The window of jobs that are measured, None for all."""
        return self._state.measuring.window

    @property
    def used_gpu_seconds(self) -> tuple[float, ...]:
        """(K,) GPU-seconds that gangs have held so far, by accelerator type of `cluster`."""
        return tuple(self._state.usage.used.values())

    @property
    def records(self) -> dict[str, JobRecord]:
        """{job_id: JobRecord} of the jobs that have left, empty with `on_record`. Callers may remove records to save memory."""
        return self._state.records

    def run(self, until_seconds: float = math.inf) -> SimulationResult:
        """Simulate until all (measured) jobs have left, no job can continue, or a time is reached.

        Args:
            until_seconds: the time, on the clock of the trace; a round that begins before this time is completed.

        Returns:
            The result so far, as of `result`.
        """
        while self.now < until_seconds and self.step(until_seconds):
            pass
        return self.result()

    def result(self) -> SimulationResult:
        """Return the result so far. Jobs in the system have the outcome `Outcome.ACTIVE`."""
        state = self._state
        tally, records = state.tally.copy(), dict(state.records)
        tenants = state.tenants.copy()
        reasons = {**state.reasons, **{job_id: why_blocked(waits) for job_id, waits in self._scheduler.blocked.items()}}
        for job_id, each in state.active.items():
            progress = each.at(state.now) if job_id in state.running else each
            record = self._record_of(progress, Outcome.ACTIVE, state.now, reasons.get(job_id, ""))
            tally.add(record)
            self._add_to(tenants, progress, record)
            records[job_id] = record
        summary = tally.summary(state.usage, state.measuring, state.wall_seconds, tenants)
        rounds = {name: getattr(self._scheduler, name) for name in ("fallback_rounds", "limit_rounds")}
        return SimulationResult(self.policy.label, replace(summary, **rounds), records)

    def step(self, until_seconds: float = math.inf) -> bool:
        """Simulate one round, or advance to the next arrival if no job is in the system.

        Args:
            until_seconds: the latest time to advance to without jobs.

        Returns:
            False if the simulation is over.
        """
        started, self._is_between_steps = time.perf_counter(), False
        more = self._step(until_seconds)
        self._state.wall_seconds += time.perf_counter() - started
        self._is_between_steps = True
        return more

    def save(self, path: str | Path, *, note: Any = None) -> None:
        """Write the state to a file. A simulation that `load` restores from it continues with the same rounds and records.

        After a failure, or if the process is killed, the file still has its old content.

        Args:
            path: the file.
            note: data of the caller that JSON can hold, returned by `saved_note`.

        Raises:
            InputError: if the file cannot be written, or in the middle of a round, such as within `on_round` or `on_record`.
        """
        text = "cannot be saved during a round, such as within on_round or on_record, or after an error there"
        refuse("simulation", (not self._is_between_steps, "", f"{text}; save it between steps"))
        document = {
            "settings": self._options.model_dump(include=EXECUTION),
            "scheduler": self.scheduler.to_dict(),
            "chance": generator_state(self._admission.chance),
            "simulation": self._state.to_dict(),
            "note": note,
        }
        SIMULATION.write(path, document)

    @classmethod
    def load(
        cls,
        path: str | Path,
        trace: Iterable[Submission | Job],
        profile: Profile,
        *,
        policy: str | Policy | None = None,
        mechanism: str | Mechanism | None = None,
        **unsaved: Unpack[UnsavedKeywords],
    ) -> Self:
        """Return the simulation that `save` wrote.

        Args:
            path: the file.
            trace: the same trace, from its first job on; it may have grown at its end.
            profile: the same profile.
            policy: needed only for a user-defined class, which a file cannot name.
            mechanism: needed only for a user-defined function.
            **unsaved: fields of `SimulationOptions` that a file cannot hold: `on_record`, `on_round`, `on_starts`, and `learn`: the
                value with which a simulation that learns was created, but a learner must be a new one.

        Raises:
            InputError: for a file that is damaged, not a simulation or from a newer version; for another trace, profile or policy.
        """
        own, document = UnsavedOptions(**unsaved), SIMULATION.read(path)
        with damage_as_fault(path):
            saved = document["scheduler"]
            believed = profile if own.learn is None else _learner(own.learn, cluster_from_dict(saved["scheduler"]["cluster"]))
            scheduler = RoundScheduler.from_dict(saved, believed, policy=policy, mechanism=mechanism, source=path)
            tree = scheduler.policy.tenant_tree
            state = SimulationState.from_dict(document["simulation"], path, trace, scheduler.cluster, tree)
            options = SimulationOptions(**dict(own), **document["settings"])
            made = cls.__new__(cls)
            made._assemble(scheduler, profile, state, options, generator_from(document["chance"]))
        return made

    @staticmethod
    def saved_note(path: str | Path) -> Any:
        """Return the note in a file that `save` wrote.

        Args:
            path: the file.

        Raises:
            InputError: for a file that is damaged, not a simulation or from a newer version.
        """
        return SIMULATION.read(path).get("note")

    def _step(self, until: float) -> bool:
        state = self._state
        if state.measuring.is_complete:
            return False
        self._execution.change_nodes(math.nextafter(latest_at(state.now), math.inf))
        for submission in state.arrivals.until(latest_at(state.now)):
            self._admit(submission)
        state.ended_seconds.clear()
        if not state.active:
            if state.arrivals.next_seconds == math.inf:
                return False
            self._execution.change_nodes(min(until, state.arrivals.next_seconds))
            self._execution.advance_clock(min(until, state.arrivals.next_seconds))
            return True
        if self._kernel is not None:
            return self._run_event(self._kernel)
        current = self._begin_round()
        if not current.assignments:  # neither an event nor time alone may change that no gang runs
            later = (self._scheduler.next_change_seconds, self._execution.next_retry(state.now))
            if min(state.next_change, *later) == math.inf:
                return False
        self._execution.run_round(current)
        return not state.measuring.is_complete

    def _run_event(self, kernel: EventKernel) -> bool:
        """Decide and run until the next event; return False if the simulation is over."""
        state, started = self._state, time.perf_counter()
        changes = kernel.decide(state.now)
        state.tally.note_round(len(kernel) if state.measuring.is_measuring else 0, time.perf_counter() - started)
        state.reasons, state.departed, self.preemptions = kernel.excluded, [], len(changes.lost)
        if self._options.on_gangs is not None:
            self._options.on_gangs(state.now, kernel.places(changes))
        change = kernel.next_change_seconds
        if not len(kernel) and min(state.next_change, change) == math.inf:
            return False
        self._execution.run_event(changes, change)
        return not state.measuring.is_complete

    def _admit(self, submission: Submission) -> None:
        job, progress = submission.job, self._admission.admit(submission, self._state.arrivals.taken - 1)
        if self._state.measuring.note_submission(progress.number, self._state.usage):
            self._state.tenants.restart()
        if progress.steps_done >= progress.total_steps:
            self._record(progress, self._record_of(progress, Outcome.FINISHED, job.arrival_seconds))
            return
        waits = _open_dependencies(self._state, job)
        if waits is None:
            self._state.ended_badly.add(job.job_id)
            self._record(progress, self._record_of(progress, Outcome.CANCELLED, max(job.arrival_seconds, self._state.now)))
            return
        changes: dict[str, Any] = {} if waits == job.depends_on else {"depends_on": waits}
        learns = self._scheduler.learner is not None
        if learns or progress.expected_steps != progress.total_steps:
            # The steps of a job are known, even if the throughput with which its duration was converted is not.
            changes |= {"total_steps": progress.expected_steps, "duration_seconds": None, "duration_accelerator": None}
        if job.is_elastic and learns:
            changes |= self._admission.simulated_counts(job)
        if self._kernel is not None and self._kernel.takes(job):
            known = job.total_steps == progress.expected_steps
            self._kernel.submit(job if known else with_values(job, {"total_steps": progress.expected_steps}))
        else:
            if self._kernel is not None:
                logger.info(
                    "job %s: it asks for more than GPUs on any nodes; the scheduler decides from now on, which takes longer",
                    job.job_id,
                )
            self.scheduler.submit(job.model_copy(update=changes) if changes else job)
        self._state.active[job.job_id] = progress
        self._state.running.enter(progress)
        is_blocked = bool(waits) and self.scheduler.is_blocked(job.job_id)
        progress.ready_seconds = None if is_blocked else _ready_seconds(self._state, job)
        if not is_blocked:
            self._state.tenants.arrive(job.tenant, max(job.arrival_seconds, self._state.now))
        if progress.cancelled_seconds is not None:
            heappush(self._state.cancellations, (progress.cancelled_seconds, job.job_id))

    def _begin_round(self) -> Round:
        """Return the next round of the scheduler, and count it."""
        state, tally, solver_seconds = self._state, self._state.tally, self._scheduler.solver_seconds
        current = self._scheduler.next_round(state.now)
        running = len(current.assignments) if state.measuring.is_measuring else 0
        tally.note_round(running, self._scheduler.solver_seconds - solver_seconds)
        state.reasons = current.excluded
        if state.departed:  # they left before this decision, and their records have been made
            self._scheduler.forget(*state.departed)
            state.departed = []
        # Jobs that failed, or whose node did, hold no GPUs any more.
        self.preemptions = len(state.running.among(current.preempted)) + state.interrupted
        state.interrupted = 0
        if self._options.on_round is not None:
            self._options.on_round(current)
        if self._options.on_gangs is not None:
            self._options.on_gangs(state.now, dict.fromkeys(current.preempted) | _places(current.assignments, current.started))
        return current

    def _leave(self, job_id: str, outcome: Outcome, seconds: float) -> None:
        self._remove(job_id, outcome, seconds)
        unblocked, state = self._scheduler.take_unblocked(), self._state
        for ready in unblocked.ready:
            state.active[ready].ready_seconds = seconds
            state.tenants.arrive(state.active[ready].job.tenant, seconds)
        for cancelled in unblocked.cancelled:
            self._remove(cancelled, Outcome.CANCELLED, seconds)

    def _remove(self, job_id: str, outcome: Outcome, seconds: float) -> None:
        """Record a job that has left."""
        progress = self._state.active.pop(job_id)
        self._state.running.leave(progress)
        if progress.ready_seconds is not None:
            self._state.tenants.leave(progress.job.tenant, seconds)
        if outcome is not Outcome.FINISHED:
            self._state.ended_badly.add(job_id)
        self._record(progress, self._record_of(progress, outcome, seconds))
        self._state.departed.append(job_id)
        self._state.ended_seconds[job_id] = seconds
        if progress.job.workflow:
            self._state.ended_seconds[progress.job.workflow, progress.job.tenant] = seconds

    def _record_of(self, progress: JobProgress, outcome: Outcome, seconds: float, reason: str = "") -> JobRecord:
        # In event mode, rounds have no length, so that no time is promised.
        delivery = None if self.round_seconds is None else self._scheduler.delivery_of(progress.job.job_id)
        measured = self._state.measuring.includes(progress.number)
        return progress.record(outcome, seconds, delivery, reason, measured=measured)

    def _add_to(self, tenants: TenantUsage, progress: JobProgress, record: JobRecord) -> None:
        """Add a job to the sums of its tenant, if it is measured."""
        if not record.measured:
            return
        is_active, promised = record.outcome is Outcome.ACTIVE, record.promised_seconds * record.num_gpus
        is_running = is_active and record.job_id in self._state.running
        sums = JobSums(
            jobs=1,
            running=is_running,
            waiting=is_active and not is_running,
            finished=record.jct_seconds is not None,
            jct_seconds=record.jct_seconds or 0.0,
            work=self._work_of(progress),
            promised_gpu_seconds=promised,
            delivered_gpu_seconds=promised - record.undelivered_seconds * record.num_gpus,
            cost=math.nan if record.cost is None else record.cost,
        )
        tenants.add(record.tenant, progress.gpu_seconds_by_type(), sums)

    def _work_of(self, progress: JobProgress) -> float:
        """Return the GPU-seconds that the work of a job would take on the cluster's mix of GPUs, NaN if a throughput is unknown."""
        names = self.cluster.accelerator_names
        try:
            speeds = [progress.speed_on(self.profile, name, spread=False) for name in names]
        except MissingThroughputError:
            return math.nan
        mean = float(np.array(speeds) @ self.cluster.capacities) / (self._num_gpus or 1.0)
        return (progress.steps_done - progress.job.steps_done) * progress.job.num_gpus / mean if mean else 0.0

    def _record(self, progress: JobProgress, record: JobRecord) -> None:
        state = self._state
        state.tally.add(record)
        self._add_to(state.tenants, progress, record)
        if record.measured:
            state.measuring.note_departure(arrivals_are_over=state.arrivals.next_seconds == math.inf)
        if self._options.on_record is None:
            state.records[record.job_id] = record
        else:
            self._options.on_record(record)


def _open_dependencies(state: SimulationState, job: Job) -> tuple[str, ...] | None:
    """Return the dependencies of a new job on jobs in the system, None if it can never start."""
    kept = list[str]()
    for text in job.depends_on:
        condition, parent = dependency_of(text)
        if condition is Condition.SINGLETON or parent in state.active:
            kept.append(text)
        elif not condition.holds(ended_well=parent not in state.ended_badly):
            return None
    return tuple(kept)


def _ready_seconds(state: SimulationState, job: Job) -> float:
    """Return when a new job that waits for no job now is ready: at its arrival, or when the last one before it has ended."""
    ends, seconds = state.ended_seconds, job.arrival_seconds
    for condition, parent in map(dependency_of, job.depends_on):
        key = (job.workflow, job.tenant) if condition is Condition.SINGLETON else parent
        seconds = max(seconds, ends.get(key, seconds))
    return seconds


def _tell_starts(options: SimulationOptions, seconds: float, started: Mapping[str, Assignment]) -> None:
    """Tell the caller which jobs start between rounds."""
    if options.on_starts is not None:
        options.on_starts(seconds, started)
    if options.on_gangs is not None:
        options.on_gangs(seconds, _places(started, started))


def _places(assignments: Mapping[str, Assignment], job_ids: Iterable[str]) -> dict[str, tuple[str, Mapping[str, int]] | None]:
    """Return {job_id: (type, {node: GPUs})} of jobs."""
    found = {job_id: assignments[job_id] for job_id in job_ids}
    return {job_id: (each.accelerator, Counter(node for node, _ in each.gpus)) for job_id, each in found.items()}


def _learner(learn: ThroughputLearner | Explore, cluster: Cluster) -> ThroughputLearner:
    """Return the given learner, or a new one that starts from the specifications of the cluster's accelerators."""
    from gavel_py.estimates.learning import ThroughputLearner

    if isinstance(learn, ThroughputLearner):
        return learn
    return ThroughputLearner(explore=learn, accelerators=AcceleratorTable.builtin().with_names(cluster.accelerator_names))


def _check_names(cluster: Cluster, believed: Cluster) -> None:
    """Raise `InputError` if the accelerator names of a learner differ from those of the true profile."""
    pairs = zip(cluster.accelerator_names, believed.accelerator_names, strict=True)
    text = "is {!r} in the profile of the learner, which must have the names of the true profile"
    InputError.raise_any([Fault("simulation", f"accelerator {a!r}", text.format(b)) for a, b in pairs if a != b])


def _start_of(arrivals: Arrivals, start_seconds: float | None) -> float:
    """Return when the clock starts: at the given time, or with the first job."""
    if start_seconds is None:
        return arrivals.next_seconds if arrivals.next_seconds < math.inf else 0.0
    return start_seconds


def is_without_rounds(
    *, round_seconds: float | None = 0.0, by_events: bool = False, options: SchedulerOptions = DEFAULTS, **_: object
) -> bool:
    """Return whether a simulation with these arguments is event-driven."""
    return round_seconds is None or by_events or options.by_events


def simulate(
    trace: Iterable[Submission | Job],
    cluster: Cluster,
    profile: Profile,
    policy: str | Policy = "max_min_fairness",
    *,
    until_seconds: float = math.inf,
    options: SchedulerOptions = DEFAULTS,
    **changes: Unpack[SimulationKeywords],
) -> SimulationResult:
    """Simulate a trace to its end, or until a time.

    Args:
        trace: jobs or submissions, in the order of their arrival.
        cluster: the nodes.
        profile: steps/s of the jobs.
        policy: a name or a `Policy`.
        until_seconds: when to stop, on the clock of the trace.
        options: how the scheduler plans rounds.
        **changes: other arguments of `Simulation`.

    Returns:
        The records of all jobs, and their summary.

    Raises:
        InputError: for the same reasons as in `Simulation`.

    >>> import gavel_py as gp
    >>> speeds = gp.ThroughputProfile.from_matrix([[2.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    >>> trace = [gp.Job("a", total_steps=1440), gp.Job("b", total_steps=360, arrival_seconds=100)]
    >>> result = gp.simulate(trace, gp.Cluster.from_counts({"v100": 1}), speeds, "fifo")
    >>> {job_id: job.jct_seconds for job_id, job in result.jobs.items()}
    {'a': 720.0, 'b': 980.0}
    """
    return Simulation(trace, cluster, profile, policy, options=options, **changes).run(until_seconds)
