"""From a reading to the scheduler: who has come, left, moved or stopped, and what nodes can be used."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping

from gavel_py.errors import InputError
from gavel_py.integrations.slurm.cluster_picture import cpus_used_by, used_by
from gavel_py.integrations.slurm.driver_state import DriverState
from gavel_py.integrations.slurm.kinds import JobKind, kind_of
from gavel_py.integrations.slurm.newcomers import Where, asks_of, job_for, tracked_from
from gavel_py.integrations.slurm.node_sync import sync_lost, sync_nodes
from gavel_py.integrations.slurm.records import Phase, SlurmJob, Snapshot
from gavel_py.integrations.slurm.roles import CERTAIN_NODES, SEVERAL_PARTITIONS, Role, Standing, beyond_limits, standing_of
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.tracked import Tracked
from gavel_py.integrations.slurm.watching import Log, Watcher
from gavel_py.problem.job import Job

__all__ = ["MORE", "Follower"]

MORE = 1.1
"""A job that has done all that was expected of it, and still runs, is expected to do so much in all."""


class Follower:
    """Keeps the scheduler at what Slurm says. standings: what was made of each job of the latest reading; refused: {job: why} of
    those that the scheduler would not take.
    """

    def __init__(self, state: DriverState, settings: SlurmSettings, watcher: Watcher, where: Where, log: Log) -> None:
        self._state, self._settings, self._watcher, self._where, self._log = state, settings, watcher, where, log
        self.standings: dict[str, Standing] = {}
        self.refused: dict[str, str] = {}
        self._kinds: dict[str, JobKind] = {}

    def follow(self, snapshot: Snapshot) -> None:
        """Tell the scheduler all that has happened up to this reading."""
        state, now = self._state, snapshot.seconds
        self._watcher.watch(snapshot.jobs, now)
        live = {job_id: job for job_id, job in snapshot.jobs.items() if not job.phase.is_over}
        self.standings = {job_id: self._standing(job, now) for job_id, job in live.items()}
        state.several = {job_id for job_id, standing in self.standings.items() if standing.why == SEVERAL_PARTITIONS}
        self.standings |= beyond_limits(live, [i for i, standing in self.standings.items() if standing.role is Role.MANAGED])
        for job_id, tracked in list(state.tracked.items()):
            job = live[job_id]
            if self.standings[job_id].role is not Role.MANAGED or (job.phase is Phase.WAITING and tracked.asks != asks_of(job)):
                self._set_aside(job_id)
        state.aside = {job_id: tracked for job_id, tracked in state.aside.items() if job_id in live}
        self._take_in({job_id: job for job_id, job in live.items() if self.standings[job_id].role is Role.MANAGED}, now)
        for name, node_state in sync_nodes(state.scheduler, snapshot.nodes).items():
            self._log("node", node=name, state=str(node_state))
        self._sync_running()
        others = [job for job_id, job in live.items() if job_id not in state.tracked]
        sync_lost(state.scheduler, snapshot.nodes, used_by(others), cpus_used_by(others))
        self._report()

    def _standing(self, job: SlurmJob, now: float) -> Standing:
        state, partition = self._state, self._settings.partition
        if job.job_id in state.several and job.partition == partition and job.phase is not Phase.WAITING:
            return Standing(Role.OTHER, SEVERAL_PARTITIONS)
        known = ChainMap(state.tracked, state.aside)
        standing = standing_of(job, partition, now, known, state.stopping)
        if standing.role is Role.MANAGED and job.job_id in known and known[job.job_id].is_given_up:
            tried = f"it did not start {known[job.job_id].failed_starts} times where it was decided"
            if job.phase is Phase.WAITING and known[job.job_id].not_before_round > state.rounds:
                return Standing(Role.LEFT, f"{tried}; it is tried again later")
            if job.phase is not Phase.WAITING and job.job_id in state.aside:
                return Standing(Role.LEFT, f"{tried}, and Slurm has started it")
        is_new = job.job_id not in known and not job.restarts and state.rounds > 0
        if standing.role is Role.MANAGED and job.required_nodes and is_new:
            return Standing(Role.OTHER, CERTAIN_NODES)  # its user has named them since it came, and not this program
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
            self._watcher.watch_one(tracked, jobs[tracked.job_id], now)

    def _learn_sizes(self, jobs: list[SlurmJob]) -> None:
        state = self._state
        state.speeds.need(job.num_gpus for job in jobs)
        if state.scheduler.profile is not state.speeds.profile:
            state.scheduler.profile = state.speeds.profile

    def _made(self, job: SlurmJob, now: float) -> tuple[Tracked, Job] | None:
        """What is to be submitted for a job, None if it is refused."""
        state = self._state
        tracked = state.aside.get(job.job_id)
        if tracked is None or tracked.asks != asks_of(job):
            tracked = self._new(job, now, tracked)
        try:
            return tracked, job_for(tracked, job, self._where, state.speeds, self._settings)
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
        self.standings[job_id] = Standing(Role.LEFT, "; ".join(fault.problem for fault in error.faults))

    def _new(self, job: SlurmJob, now: float, before: Tracked | None) -> Tracked:
        kind = kind_of(job, self._state.speeds.base, self._settings)
        tracked = tracked_from(job, kind, now)
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
                scheduler.gpu_back(node, index)  # others had them; `sync_lost` takes what they have now
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
