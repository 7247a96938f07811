"""The clock of a simulation: jobs arrive, rounds begin, jobs finish, nodes fail; `simulate` runs a whole trace in one call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from heapq import heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gavel_py.errors import Fault, InputError, MissingThroughputError
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault
from gavel_py.policies import Policy, resolve_policy
from gavel_py.problem.accelerators import AcceleratorTable
from gavel_py.problem.arrays import check_number
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.problem.workflows import Condition, dependency_of, why_blocked
from gavel_py.scheduling import Assignment, JobDelivery, Round, RoundScheduler
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.nodes import cluster_from_dict
from gavel_py.simulator.arrivals import Admission, Arrivals, Estimates, JobFailures, check_settings
from gavel_py.simulator.job_progress import JobProgress
from gavel_py.simulator.measurements import JobSums, JobWindow, Measuring, TenantUsage, Usage, job_window
from gavel_py.simulator.node_events import NodeEvents, NodeFailures, NodeWindow, latest_at
from gavel_py.simulator.results import JobRecord, Outcome, SimulationResult
from gavel_py.simulator.round_execution import Callbacks, ExecutionSettings, RoundExecution
from gavel_py.simulator.running_gangs import RunningGangs
from gavel_py.simulator.simulation_state import SimulationState
from gavel_py.workloads.submission import Submission

if TYPE_CHECKING:
    from gavel_py.throughput_profiles.learning import Explore, ThroughputLearner

SIMULATION = SnapshotFormat("gavel-py simulation", 2, "a simulation state written by Simulation.save")

Starts = Callable[[float, Mapping[str, Assignment]], None]
"""Takes the time and the GPUs of jobs that start between rounds."""


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
        round_seconds: the length of a round. None for event-driven mode: decisions only when a job arrives or ends, a node
            changes, or time alone changes the order of jobs, for policies that give each job either all of the time or none
            (ordered policies).
        node_failures: random failures of nodes.
        maintenance: windows in which nodes are down.
        job_failures: the probability that an attempt of a job fails, at a random point of its work, or "recorded" for the
            failures of the trace.
        checkpoint_seconds: the working time of a gang between two checkpoints. None for checkpoints at the start of each round, or
            every 360 s in event-driven mode.
        interference: the part of its speed, at least 0 and below 1, that a job with a fraction of a GPU loses to each other job
            on that GPU.
        starts_between_rounds: whether waiting jobs start on idle GPUs as soon as jobs arrive, GPUs become free or nodes return
            (`RoundScheduler.start_waiting`), instead of only at the start of rounds.
        estimates: "exact", or "recorded" to let policies see the steps that fit the estimated duration in the trace.
        measure_jobs: (first, end), the range of jobs that the summary covers, numbered by arrival from 0; `end` is exclusive. Other
            jobs run too until the last of these has left; the simulation ends with that round.
        start_seconds: when the clock starts; jobs that have arrived before are waiting then. None to start with the first job.
        learn: a `ThroughputLearner` that the scheduler uses instead of the profile, which then gives the true throughputs; or the
            exploration of a new learner: "optimistic", "median", or a share of the GPUs.
        seed: the seed of all random numbers.
        on_record: called with the record of each job that leaves; records are then not kept.
        on_round: called with each round.
        on_starts: called with the time and {job_id: Assignment} of jobs that start between rounds.
        allow_unknown_types: see `RoundScheduler`.
        **scheduling: `restart_seconds`, `mechanism`, `min_run_seconds`, `solve_seconds`, `retry_seconds` and others of
            `RoundScheduler`.

    Attributes:
        scheduler: the `RoundScheduler`.
        cluster: the cluster without types that the profile lacks. Other arguments that are attributes are unchanged.

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
        round_seconds: float | None = 360.0,
        node_failures: NodeFailures | None = None,
        maintenance: Iterable[NodeWindow] = (),
        job_failures: JobFailures = 0.0,
        checkpoint_seconds: float | None = None,
        interference: float = 0.0,
        starts_between_rounds: bool = False,
        estimates: Estimates = "exact",
        measure_jobs: JobWindow | None = None,
        start_seconds: float | None = None,
        learn: ThroughputLearner | Explore | None = None,
        seed: int = 0,
        on_record: Callable[[JobRecord], None] | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_starts: Starts | None = None,
        allow_unknown_types: bool = False,
        **scheduling: Any,
    ) -> None:
        cluster = cluster.known_to(profile, allow_unknown_types=allow_unknown_types)
        chosen = resolve_policy(policy)
        check_settings(
            chosen,
            round_seconds,
            measure_jobs,
            checkpoint_seconds=checkpoint_seconds,
            job_failures=job_failures,
            interference=interference,
            starts_between_rounds=starts_between_rounds,
            seed=seed,
            estimates=estimates,
            by_events=scheduling.get("by_events"),
        )
        length, by_events = (1.0, True) if round_seconds is None else (round_seconds, False)
        believed = profile if learn is None else _learner(learn, cluster)
        scheduler = RoundScheduler(cluster, believed, chosen, length, by_events=by_events, **scheduling)
        _check_names(cluster, scheduler.cluster)
        measuring = Measuring(job_window(measure_jobs))
        arrivals = Arrivals(trace, measuring.window)
        start = _start_of(arrivals, start_seconds)
        names = [node.name for node in cluster.nodes]
        events = NodeEvents(names, node_failures, maintenance, round_seconds or 0.0, np.random.default_rng([seed, 1]), start)
        running = RunningGangs(len(cluster.accelerator_names))
        tenants = TenantUsage(chosen.tenant_tree, cluster, start)
        state = SimulationState(start, arrivals, events, Usage(cluster, start), running, tenants, measuring)
        admission = Admission(cluster, profile, job_failures, estimates, np.random.default_rng([seed, 2]))
        settings = ExecutionSettings(round_seconds, checkpoint_seconds, float(interference), starts_between_rounds)
        self._assemble(scheduler, profile, state, admission, settings, on_record, on_round, on_starts)

    def _assemble(
        self,
        scheduler: RoundScheduler,
        profile: Profile,
        state: SimulationState,
        admission: Admission,
        settings: ExecutionSettings,
        on_record: Callable[[JobRecord], None] | None,
        on_round: Callable[[Round], None] | None,
        on_starts: Starts | None,
    ) -> None:
        self.scheduler, self.profile, self.cluster = scheduler, profile, scheduler.cluster
        self.round_seconds, self.checkpoint_seconds, self.interference, self.starts_between_rounds = settings
        self._state, self._admission, self._settings = state, admission, settings
        self._preemptions = 0
        self._on_record, self._on_round = on_record, on_round
        self._is_between_steps = True
        self._num_gpus = float(self.cluster.capacities.sum())
        self._execution = RoundExecution(state, scheduler, profile, settings, Callbacks(self._admit, self._leave, on_starts))

    @property
    def policy(self) -> Policy:
        """The policy of the scheduler."""
        return self.scheduler.policy

    @property
    def now(self) -> float:
        """The simulated time, in seconds on the clock of the trace."""
        return self._state.now

    @property
    def active(self) -> int:
        """The number of jobs in the system."""
        return len(self._state.active)

    @property
    def preemptions(self) -> int:
        """The number of preemptions at the beginning of the current round and, by failing nodes, within the one before."""
        return self._preemptions

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
        tenants = None if state.tenants is None else state.tenants.copy()
        reasons = {**state.reasons, **{job_id: why_blocked(waits) for job_id, waits in self.scheduler.blocked.items()}}
        for job_id, each in state.active.items():
            progress = each.at(state.now) if job_id in state.running else each
            record = self._record_of(progress, Outcome.ACTIVE, state.now, self._delivery_of(job_id), reasons.get(job_id, ""))
            tally.add(record)
            self._add_to(tenants, progress, record)
            records[job_id] = record
        summary = tally.summary(state.usage, state.measuring, state.wall_seconds, tenants)
        rounds = {name: getattr(self.scheduler, name) for name in ("fallback_rounds", "limit_rounds")}
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
        if not self._is_between_steps:
            text = "cannot be saved during a round, such as within on_round or on_record, or after an error there"
            raise InputError(Fault("simulation", "", f"{text}; save it between steps"))
        document = {
            "settings": self._settings.to_dict(),
            "scheduler": self.scheduler.to_dict(),
            "admission": self._admission.to_dict(),
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
        on_record: Callable[[JobRecord], None] | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_starts: Starts | None = None,
        learn: ThroughputLearner | Explore | None = None,
    ) -> Self:
        """Return the simulation that `save` wrote.

        Args:
            path: the file.
            trace: the same trace, from its first job on; it may have grown at its end.
            profile: the same profile.
            policy: needed only for a user-defined class, which a file cannot name.
            mechanism: needed only for a user-defined function.
            on_record: see `Simulation`.
            on_round: see `Simulation`.
            on_starts: see `Simulation`.
            learn: for a simulation that learns, the value with which it was created; a learner must be a new one.

        Raises:
            InputError: for a file that is damaged, not a simulation or from a newer version; for another trace, profile or policy.
        """
        document = SIMULATION.read(path)
        with damage_as_fault(path):
            saved = document["scheduler"]
            believed = profile if learn is None else _learner(learn, cluster_from_dict(saved["scheduler"]["cluster"]))
            scheduler = RoundScheduler.from_dict(saved, believed, policy=policy, mechanism=mechanism, source=path)
            tree = scheduler.policy.tenant_tree
            state = SimulationState.from_dict(document["simulation"], path, trace, scheduler.cluster, tree)
            admission = Admission.from_dict(document["admission"], scheduler.cluster, profile)
            made = cls.__new__(cls)
            settings = ExecutionSettings(**document["settings"])
            made._assemble(scheduler, profile, state, admission, settings, on_record, on_round, on_starts)
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
        current = self._begin_round()
        if not current.assignments and self._is_stuck():
            return False
        self._execution.run_round(current)
        return not state.measuring.is_complete

    def _is_stuck(self) -> bool:
        """Return whether neither an event nor time alone will change that no gang runs."""
        state, later = self._state, (self.scheduler.next_change_seconds, self._execution.next_retry(self._state.now))
        return min(state.next_change, *later) == math.inf

    def _admit(self, submission: Submission) -> None:
        job, progress = submission.job, self._admission.admit(submission, self._state.arrivals.taken - 1)
        if self._state.measuring.note_submission(progress.number, self._state.usage) and self._state.tenants is not None:
            self._state.tenants.restart()
        if progress.steps_done >= progress.total_steps:
            self._record(progress, self._record_of(progress, Outcome.FINISHED, job.arrival_seconds, None))
            return
        waits = self._open_dependencies(job)
        if waits is None:
            self._state.ended_badly.add(job.job_id)
            self._record(progress, self._record_of(progress, Outcome.CANCELLED, max(job.arrival_seconds, self._state.now), None))
            return
        changes: dict[str, Any] = {} if waits == job.depends_on else {"depends_on": waits}
        learns = self.scheduler.learner is not None
        if learns or progress.expected_steps != progress.total_steps:
            # The steps of a job are known, even if the throughput with which its duration was converted is not.
            changes |= {"total_steps": progress.expected_steps, "duration_seconds": None, "duration_accelerator": None}
        if job.is_elastic and learns:
            changes |= self._admission.simulated_counts(job)
        self.scheduler.submit(job.model_copy(update=changes) if changes else job)
        self._state.active[job.job_id] = progress
        self._state.running.enter(progress)
        is_blocked = bool(waits) and self.scheduler.is_blocked(job.job_id)
        progress.ready_seconds = None if is_blocked else self._ready_seconds(job)
        if not is_blocked and self._state.tenants is not None:
            self._state.tenants.arrive(job.tenant, max(job.arrival_seconds, self._state.now))
        if progress.cancelled_seconds is not None:
            heappush(self._state.cancellations, (progress.cancelled_seconds, job.job_id))

    def _begin_round(self) -> Round:
        """Return the next round of the scheduler, and count it."""
        state, tally, solver_seconds = self._state, self._state.tally, self.scheduler.solver_seconds
        current = self.scheduler.next_round(state.now)
        tally.rounds += 1
        tally.job_rounds += len(current.assignments) if state.measuring.is_measuring else 0
        tally.solver_seconds += self.scheduler.solver_seconds - solver_seconds
        state.reasons = current.excluded
        if state.departed:  # they left before this decision, and their records have been made
            self.scheduler.forget(*state.departed)
            state.departed = []
        # Jobs that failed, or whose node did, hold no GPUs any more.
        self._preemptions = len(state.running.among(current.preempted)) + state.interrupted
        state.interrupted = 0
        if self._on_round is not None:
            self._on_round(current)
        return current

    def _open_dependencies(self, job: Job) -> tuple[str, ...] | None:
        """Return the dependencies of a new job on jobs in the system, None if it can never start."""
        state, kept = self._state, list[str]()
        for text in job.depends_on:
            condition, parent = dependency_of(text)
            if condition is Condition.SINGLETON or parent in state.active:
                kept.append(text)
            elif not condition.holds(ended_well=parent not in state.ended_badly):
                return None
        return tuple(kept)

    def _ready_seconds(self, job: Job) -> float:
        """Return when a new job that waits for no job now is ready: at its arrival, or when the last one before it has ended."""
        ends, seconds = self._state.ended_seconds, job.arrival_seconds
        for condition, parent in map(dependency_of, job.depends_on):
            key = (job.workflow, job.tenant) if condition is Condition.SINGLETON else parent
            seconds = max(seconds, ends.get(key, seconds))
        return seconds

    def _leave(self, job_id: str, outcome: Outcome, seconds: float) -> None:
        self._remove(job_id, outcome, seconds)
        unblocked, state = self.scheduler.take_unblocked(), self._state
        for ready in unblocked.ready:
            state.active[ready].ready_seconds = seconds
            if state.tenants is not None:
                state.tenants.arrive(state.active[ready].job.tenant, seconds)
        for cancelled in unblocked.cancelled:
            self._remove(cancelled, Outcome.CANCELLED, seconds)

    def _remove(self, job_id: str, outcome: Outcome, seconds: float) -> None:
        """Record a job that has left."""
        progress = self._state.active.pop(job_id)
        self._state.running.leave(progress)
        if self._state.tenants is not None and progress.ready_seconds is not None:
            self._state.tenants.leave(progress.job.tenant, seconds)
        if outcome is not Outcome.FINISHED:
            self._state.ended_badly.add(job_id)
        self._record(progress, self._record_of(progress, outcome, seconds, self._delivery_of(job_id)))
        self._state.departed.append(job_id)
        self._state.ended_seconds[job_id] = seconds
        if progress.job.workflow:
            self._state.ended_seconds[progress.job.workflow, progress.job.tenant] = seconds

    def _record_of(
        self, progress: JobProgress, outcome: Outcome, seconds: float, delivery: JobDelivery | None, reason: str = ""
    ) -> JobRecord:
        measured = self._state.measuring.includes(progress.number)
        return progress.record(outcome, seconds, delivery, reason, measured=measured)

    def _delivery_of(self, job_id: str) -> JobDelivery | None:
        """Return the time that a job was promised and received; None in event mode, where rounds have no length."""
        return None if self.round_seconds is None else self.scheduler.delivery_of(job_id)

    def _add_to(self, tenants: TenantUsage | None, progress: JobProgress, record: JobRecord) -> None:
        """Add a job to the sums of its tenant, if it is measured."""
        if tenants is None or not record.measured:
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
        if self._on_record is None:
            state.records[record.job_id] = record
        else:
            self._on_record(record)


def _learner(learn: ThroughputLearner | Explore, cluster: Cluster) -> ThroughputLearner:
    """Return the given learner, or a new one that starts from the specifications of the cluster's accelerators."""
    from gavel_py.throughput_profiles.learning import ThroughputLearner

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
    check_number("start_seconds", start_seconds)
    return float(start_seconds)


def simulate(
    trace: Iterable[Submission | Job],
    cluster: Cluster,
    profile: Profile,
    policy: str | Policy = "max_min_fairness",
    *,
    until_seconds: float = math.inf,
    **settings: Any,
) -> SimulationResult:
    """Simulate a trace to its end, or until a time.

    Args:
        trace: jobs or submissions, in the order of their arrival.
        cluster: the nodes.
        profile: steps/s of the jobs.
        policy: a name or a `Policy`.
        until_seconds: when to stop, on the clock of the trace.
        **settings: other arguments of `Simulation`.

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
    return Simulation(trace, cluster, profile, policy, **settings).run(until_seconds)
