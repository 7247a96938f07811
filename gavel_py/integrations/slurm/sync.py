"""The scheduler kept in step with Slurm: jobs that arrive, progress, move, stop and leave, and the nodes that can be used.

`sync_nodes`, `sync_unavailable_gpus`: which nodes are up, and how many of their GPUs other jobs have. `Progress`: how far jobs are, by a file
that they write, or else by the time that they ran at the speed of the profile. `JobMonitor` follows managed jobs from one reading to
the next, and `Reconciler` tells the scheduler all of it.
"""

from __future__ import annotations

import math
import os
import stat
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.job_mapping import (
    MappedJob,
    TypeMatcher,
    cpus_used,
    gpus_used,
    map_job,
    new_tracked,
    request_text,
    scheduler_job,
    state_of,
    unresponsive_nodes,
)
from gavel_py.integrations.slurm.job_roles import (
    CERTAIN_NODES,
    SEVERAL_PARTITIONS,
    Eligibility,
    Role,
    eligibility_of,
    over_array_limits,
)
from gavel_py.integrations.slurm.records import Phase, SlurmJob, SlurmNode, Snapshot
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.state import DriverState, Tracked, record_measurements
from gavel_py.problem.job import Job
from gavel_py.scheduling import NodeState, RoundScheduler

Log = Callable[..., None]
"""Takes the name of an event and what is to be told of it."""


def sync_nodes(scheduler: RoundScheduler, nodes: Mapping[str, SlurmNode]) -> dict[str, NodeState]:
    """Tell the scheduler the state of each node; return what has changed."""
    changed = {}
    for name, before in scheduler.nodes.items():
        state = state_of(nodes.get(name))
        if state is before:
            continue
        changed[name] = state
        if state is NodeState.DOWN:
            scheduler.node_down(name)
        elif state is NodeState.DRAINING:
            scheduler.drain(name)
        else:
            scheduler.node_up(name)
    return changed


def sync_unavailable_gpus(
    scheduler: RoundScheduler, nodes: Mapping[str, SlurmNode], used: Mapping[str, int], used_cpus: Mapping[str, float]
) -> None:
    """Take away from the scheduler the GPUs that others use, and the free ones that nobody can start on.

    Those are all of a node that does not respond, and those for which others leave not one CPU. Gangs of its own keep what they
    have; Slurm gives no GPU twice. Which of a node's GPUs are meant is no matter.

    Args:
        scheduler: whose GPUs they are.
        nodes: as Slurm has them now.
        used: {node: GPUs} of the jobs that the scheduler does not know.
        used_cpus: {node: CPUs} of the same jobs.
    """
    held = {gpu for assignment in scheduler.running.values() for gpu in assignment.gpus}
    lost = set(scheduler.lost_gpus)
    closed = unresponsive_nodes(nodes)
    for node in scheduler.cluster.nodes:
        gpus = [(node.name, index) for index in range(node.num_gpus)]
        gone = [gpu for gpu in gpus if gpu in lost]
        free = [gpu for gpu in gpus if gpu not in held and gpu not in lost]
        there = sum(nodes[node.name].gpus.values()) if node.name in nodes else node.num_gpus
        wanted = node.num_gpus if node.name in closed else used.get(node.name, 0) + max(0, node.num_gpus - there)
        if node.cpus is not None and node.name in used_cpus:
            wanted = max(wanted, node.num_gpus - int(max(0.0, node.cpus - used_cpus[node.name])))
        for name, index in reversed(free[len(free) - max(0, min(len(free), wanted - len(gone))) :]):
            scheduler.gpu_lost(name, index)
        for name, index in gone[: max(0, len(gone) - wanted)]:
            scheduler.gpu_back(name, index)


MOST_BYTES = 64


@dataclass(frozen=True)
class Progress:
    """directory: with a file for each job, named as the job, 37 or 37_1, that holds its steps in all; None: there is none."""

    directory: Path | None = None

    def __post_init__(self) -> None:
        if self.directory is not None and not self.directory.is_dir():
            raise InputError(Fault(str(self.directory), "", "is no directory with files of progress"))

    def steps(self, job_id: str) -> float | None:
        """Return the steps that a job says it has done, None where it says nothing that can be read.

        The file is its user's: no link is followed, nothing but a plain file is opened, and little of it is read.
        """
        if self.directory is None:
            return None
        try:
            descriptor = os.open(self.directory / job_id, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            words = os.read(descriptor, MOST_BYTES).split()
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return _number(words[0]) if words else None


def _number(word: bytes) -> float | None:
    try:
        steps = float(word)
    except ValueError:
        return None
    return steps if math.isfinite(steps) and steps >= 0 else None


class JobMonitor:
    """Follows jobs from reading to reading. types: {node: accelerator}; log: is told when a job starts, stops and leaves."""

    def __init__(self, state: DriverState, progress: Progress, types: Mapping[str, str], log: Log) -> None:
        self._state, self._progress, self._types, self._log = state, progress, types, log

    def update(self, jobs: Mapping[str, SlurmJob], now_seconds: float) -> None:
        """Take in what a reading says of the jobs that are tracked; those that have left leave the scheduler."""
        for tracked in [*self._state.tracked.values()]:
            self.update_one(tracked, jobs.get(tracked.job_id), now_seconds)

    def update_one(self, tracked: Tracked, job: SlurmJob | None, now: float) -> None:
        """The same for one job; None: Slurm does not know it any more."""
        runs = job is not None and job.phase is Phase.RUNNING and bool(job.held)
        if tracked.runs:
            began = tracked.stay_seconds
            goes_on = runs and job is not None and dict(job.held) == tracked.held and (job.start_seconds or began) <= began + 1.0
            over = job is None or job.phase.is_over
            until = min(now, job.end_seconds or now) if over and job is not None else now
            self._advance(tracked, until)
            if not goes_on:
                # One that ends by itself is seen on its way out, too, and a node may have failed.
                self._stop(tracked, until, preempted=not over and tracked.job_id in self._state.stopping)
        if runs and job is not None and not tracked.runs:
            self._start(tracked, job, now)
            self._advance(tracked, now)
        if job is None or job.phase.is_over:
            self._leave(tracked, job, now)

    def _start(self, tracked: Tracked, job: SlurmJob, now: float) -> None:
        began = min(now, job.start_seconds or now)
        tracked.held, tracked.accelerator = dict(job.held), self._types.get(next(iter(job.held)), "")
        tracked.stay_seconds = tracked.seen_seconds = began
        told = self._progress.steps(tracked.job_id)
        # A job makes its file when it starts for the first time.
        tracked.stay_steps = 0.0 if told is None and not tracked.starts else told
        tracked.starts += 1
        tracked.ran_on += [tracked.accelerator] if tracked.accelerator not in tracked.ran_on else []
        tracked.failed_starts = 0
        tracked.first_start_seconds = began if tracked.first_start_seconds is None else tracked.first_start_seconds
        self._log("started", seconds=began, job=tracked.job_id, accelerator=tracked.accelerator, nodes=tracked.held)

    def _advance(self, tracked: Tracked, until: float) -> None:
        """Count time and steps up to a moment."""
        passed = max(0.0, until - tracked.seen_seconds)
        tracked.seen_seconds = max(until, tracked.seen_seconds)
        tracked.running_seconds += passed
        told = self._progress.steps(tracked.job_id)
        if told is not None:
            tracked.steps_done = told
        else:
            speed = self._state.speeds.speed(tracked.job_type, tracked.num_gpus, tracked.accelerator)
            tracked.steps_done += passed * speed

    def _stop(self, tracked: Tracked, until: float, *, preempted: bool) -> None:
        told = self._progress.steps(tracked.job_id)
        if told is not None and tracked.stay_steps is not None and told > tracked.stay_steps:
            worked = tracked.worked.setdefault(tracked.accelerator, [0.0, 0.0])
            worked[0] += told - tracked.stay_steps
            worked[1] += until - tracked.stay_seconds
        tracked.preemptions += preempted
        self._log("stopped", seconds=until, job=tracked.job_id, steps=tracked.steps_done, preempted=preempted)
        tracked.held, tracked.stay_steps = {}, None

    def _leave(self, tracked: Tracked, job: SlurmJob | None, now: float) -> None:
        state = self._state
        outcome = "unknown" if job is None else str(job.phase)
        ended = now if job is None else min(now, job.end_seconds or now)
        told = self._progress.steps(tracked.job_id)
        state.news |= record_measurements(state, tracked, outcome, tracked.total_steps if told is None else None)
        del state.tracked[tracked.job_id]
        if outcome == Phase.FINISHED:
            state.scheduler.complete(tracked.job_id)
        else:
            state.scheduler.cancel(tracked.job_id)
        state.gone.append(tracked.job_id)
        self._log("left", seconds=ended, job=tracked.job_id, outcome=outcome, **self._account(tracked, ended))

    def _account(self, tracked: Tracked, ended: float) -> dict[str, Any]:
        return {
            "arrival_seconds": tracked.arrival_seconds,
            "running_seconds": tracked.running_seconds,
            "starts": tracked.starts,
            "preemptions": tracked.preemptions,
            "jct_seconds": ended - tracked.arrival_seconds,
        }


MORE = 1.1
"""A job that has done all that was expected of it, and still runs, is expected to do so much in all."""


class Reconciler:
    """Keeps the scheduler at what Slurm says. standings: what was made of each job of the latest reading; refused: {job: why} of
    those that the scheduler would not take.
    """

    def __init__(self, state: DriverState, settings: SlurmSettings, monitor: JobMonitor, where: TypeMatcher, log: Log) -> None:
        self._state, self._settings, self._monitor, self._where, self._log = state, settings, monitor, where, log
        self.standings: dict[str, Eligibility] = {}
        self.refused: dict[str, str] = {}
        self._kinds: dict[str, MappedJob] = {}

    def reconcile(self, snapshot: Snapshot) -> None:
        """Tell the scheduler all that has happened up to this reading."""
        state, now = self._state, snapshot.seconds
        self._monitor.update(snapshot.jobs, now)
        live = {job_id: job for job_id, job in snapshot.jobs.items() if not job.phase.is_over}
        self.standings = {job_id: self._standing(job, now) for job_id, job in live.items()}
        state.several = {job_id for job_id, standing in self.standings.items() if standing.why == SEVERAL_PARTITIONS}
        self.standings |= over_array_limits(live, [i for i, standing in self.standings.items() if standing.role is Role.MANAGED])
        for job_id, tracked in list(state.tracked.items()):
            job = live[job_id]
            if self.standings[job_id].role is not Role.MANAGED or (
                job.phase is Phase.WAITING and tracked.asks != request_text(job)
            ):
                self._set_aside(job_id)
        state.aside = {job_id: tracked for job_id, tracked in state.aside.items() if job_id in live}
        self._take_in({job_id: job for job_id, job in live.items() if self.standings[job_id].role is Role.MANAGED}, now)
        for name, node_state in sync_nodes(state.scheduler, snapshot.nodes).items():
            self._log("node", node=name, state=str(node_state))
        self._sync_running()
        others = [job for job_id, job in live.items() if job_id not in state.tracked]
        sync_unavailable_gpus(state.scheduler, snapshot.nodes, gpus_used(others), cpus_used(others))
        self._report()

    def _standing(self, job: SlurmJob, now: float) -> Eligibility:
        state, partition = self._state, self._settings.partition
        if job.job_id in state.several and job.partition == partition and job.phase is not Phase.WAITING:
            return Eligibility(Role.OTHER, SEVERAL_PARTITIONS)
        known = ChainMap(state.tracked, state.aside)
        standing = eligibility_of(job, partition, now, known, state.stopping)
        if standing.role is Role.MANAGED and job.job_id in known and known[job.job_id].is_given_up:
            tried = f"it did not start {known[job.job_id].failed_starts} times where it was decided"
            if job.phase is Phase.WAITING and known[job.job_id].not_before_round > state.rounds:
                return Eligibility(Role.LEFT, f"{tried}; it is tried again later")
            if job.phase is not Phase.WAITING and job.job_id in state.aside:
                return Eligibility(Role.LEFT, f"{tried}, and Slurm has started it")
        is_new = job.job_id not in known and not job.restarts and state.rounds > 0
        if standing.role is Role.MANAGED and job.required_nodes and is_new:
            return Eligibility(Role.OTHER, CERTAIN_NODES)  # its user has named them since it came, and not this program
        return standing

    def _set_aside(self, job_id: str) -> None:
        state, standing = self._state, self.standings[job_id]
        tracked = state.tracked.pop(job_id)
        state.scheduler.cancel(job_id)
        state.gone.append(job_id)
        if standing.role is not Role.OTHER:
            state.aside[job_id] = tracked
        self._log("aside", job=job_id, why=standing.why or "it has been changed")

    def _take_in(self, jobs: Mapping[str, SlurmJob], now: float) -> None:
        """Submit the jobs that are new, or come back; one that has left and comes again waits until it is forgotten."""
        state = self._state
        self.refused = {}
        fresh = [job for job_id, job in jobs.items() if job_id not in state.tracked and job_id not in state.gone]
        self._learn_sizes(fresh)
        made = [self._made(job, now) for job in fresh if job.phase is not Phase.STOPPING]  # such a one may be about to end
        ready = [one for one in made if one is not None]
        try:
            state.scheduler.submit_all([job for _, job in ready])
        except InputError:
            ready = [one for one in ready if self._is_taken(*one)]
        for tracked, _ in ready:
            if tracked.job_id in self._kinds:
                self._log_arrival(tracked)
            state.aside.pop(tracked.job_id, None)
            state.tracked[tracked.job_id] = tracked
            tracked.seen_seconds = now
            self._monitor.update_one(tracked, jobs[tracked.job_id], now)

    def _learn_sizes(self, jobs: list[SlurmJob]) -> None:
        state = self._state
        state.speeds.need(job.num_gpus for job in jobs)
        if state.scheduler.profile is not state.speeds.profile:
            state.scheduler.profile = state.speeds.profile

    def _made(self, job: SlurmJob, now: float) -> tuple[Tracked, Job] | None:
        """What is to be submitted for a job, None if it is refused."""
        state = self._state
        tracked = state.aside.get(job.job_id)
        if tracked is None or tracked.asks != request_text(job):
            tracked = self._new(job, now, tracked)
        try:
            return tracked, scheduler_job(tracked, job, self._where, state.speeds, self._settings)
        except InputError as error:
            self._refuse(job.job_id, error)
            return None

    def _is_taken(self, tracked: Tracked, job: Job) -> bool:
        """Submit one job alone, and say whether the scheduler takes it."""
        try:
            self._state.scheduler.submit(job)
        except InputError as error:
            self._refuse(tracked.job_id, error)
            return False
        return True

    def _refuse(self, job_id: str, error: InputError) -> None:
        self.refused[job_id] = str(error)
        self.standings[job_id] = Eligibility(Role.LEFT, "; ".join(fault.problem for fault in error.faults))

    def _new(self, job: SlurmJob, now: float, before: Tracked | None) -> Tracked:
        kind = map_job(job, self._state.speeds.base, self._settings)
        tracked = new_tracked(job, kind, now)
        if before is not None:
            tracked.take_past_of(before)
        self._kinds[job.job_id] = kind
        return tracked

    def _log_arrival(self, tracked: Tracked) -> None:
        self._log(
            "arrived",
            job=tracked.job_id,
            name=tracked.name,
            user=tracked.user,
            job_type=tracked.job_type,
            gpus=tracked.num_gpus,
            arrival_seconds=tracked.arrival_seconds,
            steps=tracked.total_steps,
            notes=list(self._kinds[tracked.job_id].notes),
        )

    def _sync_running(self) -> None:
        """Let the scheduler know which gangs hold which GPUs, where that is not as it thinks."""
        scheduler, tracked = self._state.scheduler, self._state.tracked
        thought = {job_id: Counter(node for node, _ in held.gpus) for job_id, held in scheduler.running.items()}
        wrong = [job_id for job_id in tracked if thought.get(job_id, {}) != tracked[job_id].held]
        for job_id in wrong:
            scheduler.interrupted(job_id)
        found = [job_id for job_id in wrong if tracked[job_id].runs]
        nodes = {node for job_id in found for node in tracked[job_id].held}
        for node, index in scheduler.lost_gpus:
            if node in nodes:
                scheduler.gpu_back(node, index)  # others had them; `sync_unavailable_gpus` takes what they have now
        for job_id in found:
            try:
                scheduler.found_running(job_id, tracked[job_id].held)
            except InputError as error:
                self._log("strange", job=job_id, why=str(error))

    def _report(self) -> None:
        """Tell how far jobs are; one that has done all that was expected of it is expected to need more."""
        scheduler = self._state.scheduler
        for job in scheduler.jobs:
            steps = self._state.tracked[job.job_id].steps_done
            if job.total_steps is not None and steps >= job.total_steps:
                scheduler.update(job.job_id, total_steps=steps * MORE)
            if steps != job.steps_done:
                scheduler.report(job.job_id, steps_done=steps)
