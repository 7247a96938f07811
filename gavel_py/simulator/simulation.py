"""The clock of a simulation: jobs arrive, rounds begin, jobs end, nodes fail; and a whole trace in one call (`simulate`).

`SimulationCore` is what a simulation is made of, and what can be asked of it at any time. `state_document` is its state as plain
data, from which a simulation continues as the one that wrote it would. Of the trace it holds no more than how many jobs have been
taken, and a digest of them; the trace itself is handed in again.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from heapq import heappush
from pathlib import Path
from typing import Any, Self

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault
from gavel_py.policies import Policy, resolve_policy
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.scheduling import JobDelivery, Round, RoundScheduler
from gavel_py.scheduling.commit import given_away
from gavel_py.scheduling.mechanism import MechanismName
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.simulator.arrivals import (
    EVENT_CHECKPOINT_SECONDS,
    PROGRESS,
    Admission,
    Arrivals,
    Estimates,
    JobFailures,
    check_settings,
)
from gavel_py.simulator.job_progress import InterferenceModel, JobProgress
from gavel_py.simulator.measurements import JobWindow, Measuring, Usage, job_window
from gavel_py.simulator.node_events import NodeEvents, NodeFailures, NodeWindow
from gavel_py.simulator.results import JobRecord, Outcome, SimulationResult, Tally
from gavel_py.simulator.round_execution import RoundExecution, RunningGangs, SimulationState
from gavel_py.workloads import Submission

SIMULATION = SnapshotFormat("gavel-py simulation", 1, "the state of a simulation, as Simulation.save writes it")


def state_document(state: SimulationState) -> dict[str, Any]:
    """Return the state as plain data."""
    state.running.write_back()
    return {
        "now": state.now,
        "taken": state.arrivals.taken,
        "digest": state.arrivals.digest,
        "events": state.events.to_dict(),
        "usage": state.usage.state(),
        "measuring": state.measuring.to_dict(),
        "tally": state.tally.to_dict(),
        "active": [progress.to_dict() for progress in state.active.values()],
        "holds": list(state.running),
        "cancellations": [list(each) for each in state.cancellations],
        "gone": list(state.departed),
        "reasons": dict(state.reasons),
        "records": [record.to_dict() for record in state.records.values()],
        "wall_seconds": state.wall_seconds,
    }


def state_from(
    document: Mapping[str, Any], path: str | Path, trace: Iterable[Submission | Job], cluster: Cluster
) -> SimulationState:
    """Return the state that `state_document` described. Raises `InputError` for another trace."""
    measuring = Measuring.from_dict(document["measuring"])
    arrivals = Arrivals(trace, measuring.window)
    active = _active_from(document, path, arrivals)
    running = RunningGangs(len(cluster.accelerator_names))
    for job_id in document["holds"]:
        running.add(active[job_id])
    records = (JobRecord.from_dict(each) for each in document["records"])
    return SimulationState(
        document["now"],
        arrivals,
        NodeEvents.from_dict(document["events"]),
        Usage.from_state(cluster, document["usage"]),
        running,
        measuring,
        Tally.from_dict(document["tally"]),
        active,
        [(seconds, job_id) for seconds, job_id in document["cancellations"]],
        list(document["gone"]),
        dict(document["reasons"]),
        {record.job_id: record for record in records},
        document["wall_seconds"],
    )


def _active_from(document: Mapping[str, Any], path: str | Path, arrivals: Arrivals) -> dict[str, JobProgress]:
    """Go through the part of the trace that has been taken, and pick out the jobs that are in the system."""
    documents = {each["number"]: each for each in document["active"]}
    found = {number: each for number, each in enumerate(arrivals.skip(document["taken"])) if number in documents}
    if arrivals.taken < document["taken"]:
        text = f"was written when {document['taken']} jobs had arrived, and this trace has only {arrivals.taken}"
        raise InputError(Fault(str(path), "", f"{text}; hand in the trace that the simulation had"))
    if arrivals.digest != document["digest"]:
        text = f"was written with another trace: the first {document['taken']} jobs of this one are not those that had arrived"
        raise InputError(Fault(str(path), "", f"{text}; hand in the trace that the simulation had"))
    return {found[number].job.job_id: JobProgress.from_dict(each, found[number]) for number, each in documents.items()}


class SimulationCore:
    """The settings and the state of a `Simulation`, whose arguments it takes."""

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
        estimates: Estimates = "exact",
        measure_jobs: JobWindow | None = None,
        seed: int = 0,
        on_record: Callable[[JobRecord], None] | None = None,
        on_round: Callable[[Round], None] | None = None,
        allow_unknown_types: bool = False,
        **scheduling: Any,
    ) -> None:
        cluster = cluster.known_to(profile, allow_unknown_types=allow_unknown_types)
        chosen = resolve_policy(policy)
        check_settings(chosen, round_seconds, job_failures, checkpoint_seconds, estimates, seed, interference, measure_jobs)
        length, by_events = (1.0, True) if round_seconds is None else (round_seconds, False)
        scheduler = RoundScheduler(cluster, profile, chosen, length, by_events=by_events, **scheduling)
        measuring = Measuring(job_window(measure_jobs))
        arrivals = Arrivals(trace, measuring.window)
        start = arrivals.next_seconds if arrivals.next_seconds < math.inf else 0.0  # the clock starts with the first job
        notice = 0.0 if round_seconds is None else round_seconds
        names = [node.name for node in cluster.nodes]
        events = NodeEvents(names, node_failures, maintenance, notice, np.random.default_rng([seed, 1]), start)
        state = SimulationState(
            start, arrivals, events, Usage(cluster, start), RunningGangs(len(cluster.accelerator_names)), measuring
        )
        admission = Admission(cluster, profile, job_failures, estimates, np.random.default_rng([seed, 2]))
        self._assemble(scheduler, state, admission, round_seconds, checkpoint_seconds, float(interference), on_record, on_round)

    def _assemble(
        self,
        scheduler: RoundScheduler,
        state: SimulationState,
        admission: Admission,
        round_seconds: float | None,
        checkpoint_seconds: float | None,
        interference: float,
        on_record: Callable[[JobRecord], None] | None,
        on_round: Callable[[Round], None] | None,
    ) -> None:
        self.scheduler, self.profile, self.cluster = scheduler, scheduler.profile, scheduler.cluster
        self.round_seconds, self.checkpoint_seconds, self.interference = round_seconds, checkpoint_seconds, interference
        self._state, self._admission = state, admission
        self._on_record, self._on_round = on_record, on_round
        self._is_between_steps = True
        every = EVENT_CHECKPOINT_SECONDS if round_seconds is None and checkpoint_seconds is None else checkpoint_seconds
        reads_progress = bool(PROGRESS.intersection(self.policy.reads) or self.policy.constraints)
        speeds = InterferenceModel(self.profile, interference)
        self._execution = RoundExecution(state, scheduler, self.profile, speeds, round_seconds, every, reads_progress, self._leave)

    @property
    def policy(self) -> Policy:
        """The policy that decides."""
        return self.scheduler.policy

    @property
    def now(self) -> float:
        """The time, in seconds on the clock of the trace."""
        return self._state.now

    @property
    def active(self) -> int:
        """How many jobs are in the system."""
        return len(self._state.active)

    @property
    def measure_jobs(self) -> JobWindow | None:
        """The window of jobs that are measured, None: all."""
        return self._state.measuring.window

    @property
    def used_gpu_seconds(self) -> tuple[float, ...]:
        """(K,) the GPU-seconds of each type of `cluster` in which gangs have held them so far."""
        return tuple(self._state.usage.used.values())

    @property
    def records(self) -> dict[str, JobRecord]:
        """{job_id: JobRecord} of the jobs that have left, none where `on_record` takes them; what is taken out is forgotten."""
        return self._state.records

    @abstractmethod
    def _leave(self, job_id: str, outcome: Outcome, seconds: float) -> None:
        """Let a job go."""


class Simulation(SimulationCore):
    """A trace on a cluster under a policy, round by round (`run`, `step`); the scheduler is the one that runs real clusters.

    trace: jobs or submissions in the order of their arrival; round_seconds: length of a round, or None for event mode: decisions
    when a job arrives or ends, or a node changes, and at no other time, for policies that give jobs all of their time or none
    (ordered ones); restart_seconds: what a job loses that starts, moves or is resumed, unless it says so itself; mechanism,
    min_run_seconds, solve_seconds, allow_unknown_types: see `RoundScheduler`; node_failures, maintenance: when nodes are down;
    job_failures: the probability with which an attempt of a job fails, at a random point of its work, or "recorded": as often as
    the trace says;
    checkpoint_seconds: how long a gang works from one checkpoint to the next, None: it has one when a round begins, and in event
    mode every 360 s; interference: the part of its speed that a job with a part of a GPU loses to each other one on that GPU,
    none unless said; estimates: "exact", or "recorded": policies see the steps that would fit the trace's estimate of the duration;
    measure_jobs: (first, end), the jobs that the summary is of, by order of arrival, from 0, without end; others arrive until the
    last of these has left, and the simulation ends with that round; seed: of all that is random; on_record, on_round: what is to be
    done with each job that leaves (its record is not kept then), and with each round.

    Jobs that arrive within a round wait for the next. What ends within a round ends there, and its GPUs are free from the next
    round on; a round in which nobody runs any more ends at once. A job whose node goes down, and one that fails, loses what it did
    since its last checkpoint; one that is preempted or moved loses nothing but what its next start costs.
    Raises `InputError` for a wrong argument, for a job without an end (`total_steps`) when it arrives, and for a trace with fewer
    jobs than `measure_jobs` asks for: at once if it has a length, otherwise when it ends.
    """

    def run(self, until_seconds: float = math.inf) -> SimulationResult:
        """Play on until all (measured) jobs have left, or none can go on, or this time has come; and return what there is."""
        while self.now < until_seconds and self.step(until_seconds):
            pass
        return self.result()

    def result(self) -> SimulationResult:
        """Return what has come of it so far; jobs that are in the system count as active."""
        state = self._state
        state.running.write_back()
        tally, records = state.tally.copy(), dict(state.records)
        for job_id, progress in state.active.items():
            record = self._record_of(progress, Outcome.ACTIVE, state.now, self._delivery_of(job_id), state.reasons.get(job_id, ""))
            tally.add(record)
            records[job_id] = record
        return SimulationResult(self.policy.label, tally.summary(state.usage, state.measuring, state.wall_seconds), records)

    def step(self, until_seconds: float = math.inf) -> bool:
        """Play one round, or wait for the next arrival, but no longer than to this time; say whether there is more to come."""
        started, self._is_between_steps = time.perf_counter(), False
        more = self._step(until_seconds)
        self._state.wall_seconds += time.perf_counter() - started
        self._is_between_steps = True
        return more

    def save(self, path: str | Path, *, note: Any = None) -> None:
        """Write all that the simulation knows to a file, from which `load` makes one that goes on with the same rounds and records.

        The file holds what it held before until the new content is complete and on the disk, also if the process is killed.
        note: plain data of the caller's own to be kept with it, as JSON can hold it (`saved_note`).
        Raises `InputError` where it cannot be written, and in the midst of a round: within `on_round` and `on_record`.
        """
        if not self._is_between_steps:
            text = "cannot be saved in the midst of a round, as within on_round or on_record, or after an error there"
            raise InputError(Fault("simulation", "", f"{text}; save it between steps"))
        document = {
            "settings": {name: getattr(self, name) for name in ("round_seconds", "checkpoint_seconds", "interference")},
            "scheduler": self.scheduler.to_dict(),
            "admission": self._admission.to_dict(),
            "simulation": state_document(self._state),
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
        mechanism: MechanismName | Mechanism | None = None,
        on_record: Callable[[JobRecord], None] | None = None,
        on_round: Callable[[Round], None] | None = None,
    ) -> Self:
        """Return the simulation that `save` wrote.

        trace, profile: those that it had; the trace from its first job on, and it may have got longer at its end; policy,
        mechanism: needed only for a class or function of one's own, since no file names what is to be imported; the rest as for
        `Simulation`.
        Raises `InputError` for a file that is damaged, foreign or of a newer version, and for another trace, profile or policy.
        """
        document = SIMULATION.read(path)
        with damage_as_fault(path):
            scheduler = RoundScheduler.from_dict(document["scheduler"], profile, policy=policy, mechanism=mechanism, source=path)
            state = state_from(document["simulation"], path, trace, scheduler.cluster)
            admission = Admission.from_dict(document["admission"], scheduler.cluster, profile)
            settings = document["settings"]
            made = cls.__new__(cls)
            every = settings["round_seconds"], settings["checkpoint_seconds"]
            made._assemble(scheduler, state, admission, *every, settings["interference"], on_record, on_round)
        return made

    @staticmethod
    def saved_note(path: str | Path) -> Any:
        """Return the note that `save` was given. Raises `InputError` as `load`."""
        return SIMULATION.read(path).get("note")

    def _step(self, until: float) -> bool:
        state = self._state
        if state.measuring.is_complete:
            return False
        self._execution.change_nodes(np.nextafter(state.now, math.inf))
        for submission in state.arrivals.until(state.now):
            self._admit(submission)
        if not state.active:
            if state.arrivals.next_seconds == math.inf:
                return False
            self._execution.change_nodes(min(until, state.arrivals.next_seconds))
            self._execution.advance_clock(min(until, state.arrivals.next_seconds))
            return True
        current = self._begin()
        if not current.assignments and state.next_change == math.inf:
            return False  # nobody runs, and nothing is to come that could change that
        self._execution.run(current)
        return not state.measuring.is_complete

    def _admit(self, submission: Submission) -> None:
        job, progress = submission.job, self._admission.admit(submission, self._state.arrivals.taken - 1)
        self._state.measuring.note_submission(progress.number, self._state.usage)
        if progress.steps_done >= progress.total_steps:
            self._record(self._record_of(progress, Outcome.FINISHED, job.arrival_seconds, None))
            return
        seen = {"total_steps": progress.expected_steps, "duration_seconds": None, "duration_accelerator": None}
        self.scheduler.submit(job if progress.expected_steps == progress.total_steps else job.model_copy(update=seen))
        self._state.active[job.job_id] = progress
        if progress.cancelled_seconds is not None:
            heappush(self._state.cancellations, (progress.cancelled_seconds, job.job_id))

    def _begin(self) -> Round:
        """Let the scheduler decide on a round, and note what it has decided."""
        state, tally, before = self._state, self._state.tally, self.scheduler.solver_seconds
        current = self.scheduler.next_round_to_read(state.now)
        tally.rounds += 1
        tally.job_rounds += len(current.assignments) if state.measuring.is_measuring else 0
        tally.solver_seconds += self.scheduler.solver_seconds - before
        for job_id in current.preempted:
            if job_id in state.running:  # others have lost their GPUs before, and that has been counted
                state.active[job_id].preemptions += 1
        state.reasons = current.excluded
        # Those that left before this decision are no part of it, and nobody needs their accounts any more.
        self.scheduler.forget(*state.departed)
        state.departed = []
        if self._on_round is not None:
            self._on_round(given_away(current))  # what it does with it must not change what runs
        return current

    def _leave(self, job_id: str, outcome: Outcome, seconds: float) -> None:
        self._record(self._record_of(self._state.active.pop(job_id), outcome, seconds, self._delivery_of(job_id)))
        self._state.departed.append(job_id)

    def _record_of(
        self, progress: JobProgress, outcome: Outcome, seconds: float, delivery: JobDelivery | None, reason: str = ""
    ) -> JobRecord:
        measured = self._state.measuring.includes(progress.number)
        return progress.record(outcome, seconds, delivery, reason, measured=measured)

    def _delivery_of(self, job_id: str) -> JobDelivery | None:
        """What the job was promised and had; in event mode, the scheduler's rounds tell nothing of time."""
        return None if self.round_seconds is None else self.scheduler.delivery_of(job_id)

    def _record(self, record: JobRecord) -> None:
        state = self._state
        state.tally.add(record)
        if record.measured:
            state.measuring.note_departure(arrivals_are_over=state.arrivals.next_seconds == math.inf)
        if self._on_record is None:
            state.records[record.job_id] = record
        else:
            self._on_record(record)


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
