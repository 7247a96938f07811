"""Reconciliation of the scheduler with Slurm: progress, arrivals and departures of jobs, and the usable nodes and GPUs."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gavel_py.errors import InputError
from gavel_py.integrations.slurm import job_mapping, job_roles
from gavel_py.integrations.slurm.accounts import Accounts
from gavel_py.integrations.slurm.actions import revived
from gavel_py.integrations.slurm.client.notation import printable
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob, SlurmNode, Snapshot
from gavel_py.integrations.slurm.job_roles import Eligibility, Role
from gavel_py.integrations.slurm.measuring import take_in
from gavel_py.integrations.slurm.partitions import PartitionRules
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.integrations.slurm.reservations import NodesAhead, ReservationEffects
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.sizes import has_other_range, is_outdated, is_own_request, keep_to_limits, needed_gpus
from gavel_py.integrations.slurm.speeds import ProgressFiles
from gavel_py.integrations.slurm.state import DriverState
from gavel_py.integrations.slurm.turns import beyond_limits
from gavel_py.problem.job import Job
from gavel_py.scheduling import NodeState

Log = Callable[..., None]
"""Writes an event with its fields."""

MAX_STEPS = 1e15
"""Largest number of steps that a report may contain; larger numbers would lose precision."""

OF_SPEEDS = ("job_type", "allowed_accelerators", "locality")
"""Fields of a job in the scheduler that follow from the accelerators on which it may run, and whose speeds are known."""

OVERRUN = 1.1
"""A running job that has reached its total steps is expected to need this multiple of them."""


@dataclass
class Reconciler:
    """Keeps the scheduler consistent with snapshots of Slurm.

    `update_jobs` tracks managed jobs and may be called at any time; `reconcile` does everything else before a round. types: {node:
    GPU type}. After `reconcile`, `roles` has the eligibility of each live job, `refused` has {job: error} of the jobs that the
    scheduler does not accept, and `notes` has the notes on new jobs. whole: finds accelerators as if there were no reservations, if
    there are any; is_regrouped: whether nodes have just been put into other groups of their types.
    """

    state: DriverState
    settings: SlurmSettings
    progress: ProgressFiles
    types: Mapping[str, str]
    matcher: job_mapping.TypeMatcher
    log: Log
    accounts: Accounts | None = None
    roles: dict[str, Eligibility] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    rules: PartitionRules = field(default_factory=PartitionRules)
    outlook: ReservationEffects = field(default_factory=ReservationEffects)
    ahead: NodesAhead = field(default_factory=NodesAhead)
    whole: job_mapping.TypeMatcher | None = None
    is_regrouped: bool = False

    def update_jobs(self, jobs: Mapping[str, SlurmJob], now_seconds: float) -> None:
        """Update all tracked jobs; jobs that have ended leave the scheduler."""
        jobs = revived(jobs, self.state.warned)
        for tracked in self.state.steered.values():
            self._update(tracked, jobs.get(tracked.job_id), now_seconds)

    def _update(self, tracked: Tracked, job: SlurmJob | None, now: float) -> None:
        """Update one job; None if Slurm no longer lists it."""
        runs = job is not None and job.phase is Phase.RUNNING and bool(job.held)
        is_over = job is None or job.phase.is_over
        if tracked.runs:
            start = tracked.stay_start_seconds
            stays = runs and job is not None and dict(job.held) == tracked.held and (job.start_seconds or start) <= start + 1.0
            until = now if stays else self._end_of_stay(tracked, job, now)
            self._advance(tracked, until)
            if not stays:
                # Without a stop by the driver, the job is ending or its node has failed.
                is_due = tracked.job_id in self.state.stopping or tracked.job_id in self.state.warned
                self._end_stay(tracked, until, preempted=not is_over and is_due)
        if runs and job is not None and not tracked.runs:
            self._begin_stay(tracked, job, now)
            self._advance(tracked, now)
        if job is not None and job.phase is Phase.WAITING:
            self.state.warned.pop(tracked.job_id, None)
            tracked.partitions = list(job.partitions)
        if not tracked.runs:
            tracked.waited_seconds = math.floor(now)
        if is_over:
            self._remove(tracked, job, now)

    @staticmethod
    def _end_of_stay(tracked: Tracked, job: SlurmJob | None, now: float) -> float:
        """Return when the stay of a job ended: Slurm's end time, or the time at which the driver asked it to stop."""
        ends = [now, tracked.stop_seconds]
        if job is not None and job.phase is not Phase.WAITING:
            ends.append(job.start_seconds if job.phase is Phase.RUNNING else job.end_seconds)
        return max(tracked.stay_start_seconds, min(end for end in ends if end is not None))

    def _begin_stay(self, tracked: Tracked, job: SlurmJob, now: float) -> None:
        self.state.warned.pop(tracked.job_id, None)
        start = max(tracked.waited_seconds, min(now, job.start_seconds or now))
        tracked.held, tracked.accelerator = dict(job.held), self.types.get(next(iter(job.held)), "")
        tracked.is_on_several_nodes |= len(tracked.held) > 1
        tracked.stay_start_seconds = tracked.seen_seconds = start
        steps = self.progress.steps(tracked.job_id)
        # The file may be missing until the job has started for the first time.
        tracked.stay_start_steps = 0.0 if steps is None and not tracked.starts else steps
        tracked.starts += 1
        if tracked.accelerator not in tracked.types_used:
            tracked.types_used.append(tracked.accelerator)
        if tracked.gpus not in tracked.sizes_used:
            tracked.sizes_used.append(tracked.gpus)
        tracked.first_start_seconds = start if tracked.first_start_seconds is None else tracked.first_start_seconds
        self.log("started", seconds=start, job=tracked.job_id, accelerator=tracked.accelerator, nodes=tracked.held)

    def _advance(self, tracked: Tracked, until: float) -> None:
        """Count run time and steps up to a time; steps come from the progress file, or else from the throughput."""
        passed = max(0.0, until - tracked.seen_seconds)
        tracked.seen_seconds = max(until, tracked.seen_seconds)
        tracked.running_seconds += passed
        self.state.count_delivered(tracked, passed)
        steps = self._believable(tracked, until)
        tracked.has_reported = steps is not None
        if steps is None:
            steps = tracked.steps_done + passed * self.state.speeds.speed_as_held(tracked)
        tracked.steps_done = steps

    def _believable(self, tracked: Tracked, until: float) -> float | None:
        """Return the steps that a job reports; None without a report, or if no job of its type could have done that many."""
        steps = self.progress.steps(tracked.job_id)
        if steps is None:
            return None
        seconds = max(tracked.running_seconds, until - tracked.arrival_seconds)
        fastest = max(self.state.speeds.fastest(tracked.job_type, gpus) for gpus in tracked.sizes)
        if steps <= self.settings.trust_in(tracked.user) * fastest * seconds or not tracked.is_known:
            return min(steps, MAX_STEPS)
        if not tracked.is_outlier:
            tracked.is_outlier = True
            most = f"{fastest * seconds:.3g} would be the most at the speed of the profile (--trust)"
            self.log("outlier", job=tracked.job_id, user=tracked.user, why=f"reports {steps:.3g} steps, but {most}")
        return None

    def _end_stay(self, tracked: Tracked, until: float, *, preempted: bool) -> None:
        steps = None if tracked.is_outlier else self.progress.steps(tracked.job_id)
        if steps is not None and tracked.stay_start_steps is not None and steps > tracked.stay_start_steps:
            measured = tracked.measured.setdefault(tracked.accelerator, {}).setdefault(tracked.gpus, [0.0, 0.0])
            measured[0] += steps - tracked.stay_start_steps
            measured[1] += until - tracked.stay_start_seconds
        after = max(0.0, tracked.seen_seconds - until)  # it was seen running after it had been asked to stop
        tracked.running_seconds -= after
        self.state.count_delivered(tracked, -after)
        tracked.preemptions += preempted
        self.log("stopped", seconds=until, job=tracked.job_id, steps=tracked.steps_done, preempted=preempted)
        tracked.held, tracked.stay_start_steps, tracked.stop_seconds = {}, None, None

    def _remove(self, tracked: Tracked, job: SlurmJob | None, now: float) -> None:
        state = self.state
        state.warned.pop(tracked.job_id, None)
        outcome = "unknown" if job is None else str(job.phase)
        ended = now if job is None else min(now, job.end_seconds or now)
        user_steps = tracked.total_steps if self.progress.steps(tracked.job_id) is None else None
        for why in take_in(state, tracked, outcome, user_steps, ended, self.settings.trust_in(tracked.user)):
            self.log("outlier", job=tracked.job_id, user=tracked.user, why=why)
        if tracked.job_id in state.tracked:
            state.depart(tracked, ended)
            (state.scheduler.complete if outcome == Phase.FINISHED else state.scheduler.cancel)(tracked.job_id)
        names = ("arrival_seconds", "running_seconds", "starts", "preemptions")
        fields = {name: getattr(tracked, name) for name in names} | {"jct_seconds": ended - tracked.arrival_seconds}
        self.log("left", seconds=ended, job=tracked.job_id, outcome=outcome, **fields)

    def reconcile(self, snapshot: Snapshot, *, within_round: bool = False) -> None:
        """Bring the scheduler up to date with a snapshot; within_round: only to start waiting jobs, so that running jobs stay."""
        state, now, needs = self.state, snapshot.seconds, dict[str, int]()
        self.update_jobs(snapshot.jobs, now)
        state.yielding &= state.aside.keys() if within_round else set()
        live = {job_id: job for job_id, job in snapshot.jobs.items() if not job.phase.is_over}
        self.rules = PartitionRules(self.settings.partitions, snapshot.partitions)
        self.roles = {job_id: self._eligibility(job, now) for job_id, job in live.items()}
        state.multi_partition = {job_id for job_id, role in self.roles.items() if role.why == job_roles.SEVERAL_PARTITIONS}
        self.roles |= self.rules.without_partition([live[i] for i, role in self.roles.items() if role.role is Role.MANAGED])
        self.roles |= job_roles.over_array_limits(live, [i for i, role in self.roles.items() if role.role is Role.MANAGED])
        if self.accounts is not None:
            managed = [i for i, role in self.roles.items() if role.role is Role.MANAGED]
            new = [i for i in managed if i not in state.tracked and i not in state.aside]
            least = job_mapping.least_gpus([live[i] for i in new], self.matcher, state.speeds, self.settings)
            needs = least | needed_gpus(state, live, self.accounts, now, within_round=within_round)
            self.roles |= beyond_limits(state, live, managed, self.accounts, self.rules, needs, now, within_round=within_round)
        self.roles |= job_roles.giving_way(live, self.roles, state.yielding)
        self.ahead = self._look_ahead(snapshot, live)
        for job_id, tracked in list(state.tracked.items()):
            job = live[job_id]
            is_changed = job.phase is Phase.WAITING and self._is_changed(tracked, job)
            is_changed |= is_outdated(tracked, {*self.matcher.type_of.values()}, state.speeds, self.settings)
            if is_changed or self.roles[job_id].role is not Role.MANAGED:
                self._set_aside(job_id, now)
        state.aside = {job_id: tracked for job_id, tracked in state.aside.items() if job_id in live}
        self._submit_new({job_id: job for job_id, job in live.items() if self.roles[job_id].role is Role.MANAGED}, now)
        self._sync_nodes(snapshot.nodes, self.ahead.to_leave)
        self._sync_places(live, now, within_round=within_round)
        self._sync_running()
        self._sync_accounts(live)
        if self.accounts is not None:
            keep_to_limits(state, live, self.accounts, needs, within_round=within_round)
        others = job_mapping.used_by_others(snapshot.nodes, live.values(), state.steered)
        job_mapping.sync_unavailable_gpus(state.scheduler, snapshot.nodes, others, self.ahead.closed)
        self._report_progress()

    def _eligibility(self, job: SlurmJob, now: float) -> Eligibility:
        state, partitions = self.state, self.settings.partitions
        if job.job_id in state.multi_partition and job.is_in(partitions) and job.phase is not Phase.WAITING:
            return Eligibility(Role.OTHER, job_roles.SEVERAL_PARTITIONS)
        known = ChainMap(state.tracked, state.aside)
        eligibility = job_roles.eligibility_of(job, partitions, now, known)
        is_new = job.job_id not in known and not job.restarts and state.rounds > 0
        if eligibility.role is Role.MANAGED and job.required_nodes and is_new:
            return Eligibility(Role.OTHER, job_roles.CERTAIN_NODES)  # the user's request, since the driver has not changed it yet
        return eligibility

    def _sync_places(self, live: Mapping[str, SlurmJob], now: float, *, within_round: bool) -> None:
        """Update the accelerators on which jobs may run: those of their partitions, except nodes that are reserved too soon.

        A running job keeps its GPUs if no partition would start it again, for instance because all of them are down.
        """
        scheduler = self.state.scheduler
        # Also jobs that cannot run now: other speeds may not have their job types.
        changed = dict(self.state.tracked) if self.state.has_new_speeds else {}
        for job_id, tracked in self.state.tracked.items():
            job = live[job_id]
            if job.phase is Phase.RUNNING and any(self.rules.refusal(name, job) for name in job.partitions):
                scheduler.keep_running(job_id, now + 2 * scheduler.round_seconds)
            elif usable := self.rules.usable(job, tracked):
                places = usable, self.outlook.barred(job, () if within_round else self.ahead.to_leave)
                if self.is_regrouped or places != (tracked.usable, tracked.barred):
                    tracked.usable, tracked.barred = places
                    changed[job_id] = tracked
        self.state.has_new_speeds = False
        before = {job.job_id: job for job in scheduler.jobs} if changed else {}
        for job_id, tracked in changed.items():
            try:
                new = self._scheduler_job(tracked, live[job_id], self.matcher)
                names = [name for name in OF_SPEEDS if getattr(before[job_id], name) != getattr(new, name)]
                if names:
                    scheduler.update(job_id, **{name: getattr(new, name) for name in names})
            except InputError as error:
                self._refuse(job_id, error, tracked, live[job_id])
                if not self.ahead.to_leave.isdisjoint(tracked.held):
                    self.state.yielding.add(job_id)
                self._set_aside(job_id, now)

    def _set_aside(self, job_id: str, now: float) -> None:
        state, eligibility = self.state, self.roles[job_id]
        tracked = state.tracked[job_id]
        tracked.since_seconds = now
        state.depart(tracked, now)
        state.scheduler.cancel(job_id)
        if eligibility.role is not Role.OTHER:
            state.aside[job_id] = tracked
        self.log("aside", job=job_id, why=eligibility.why or "it has been changed")

    def _submit_new(self, jobs: Mapping[str, SlurmJob], now: float) -> None:
        """Submit new and returning jobs; a departed job can only return after the scheduler has forgotten it."""
        state = self.state
        self.refused = {}
        new = [job for job_id, job in jobs.items() if job_id not in state.tracked and job_id not in state.departed]
        state.speeds.cover(tracked.num_gpus if (tracked := state.aside.get(job.job_id)) else job.num_gpus for job in new)
        state.speeds.use_in(state.scheduler)
        # A stopping job may be about to end.
        prepared = [entry for job in new if job.phase is not Phase.STOPPING and (entry := self._prepared(job, now)) is not None]
        try:
            state.scheduler.submit_all([job for _, job in prepared])
        except InputError:
            prepared = [(tracked, job) for tracked, job in prepared if self._is_accepted(job)]
        for tracked, submitted in prepared:
            if tracked.job_id in self.notes:
                names = ("name", "user", "job_type", "arrival_seconds")
                fields = {name: getattr(tracked, name) for name in names}
                fields |= {"tenant": submitted.tenant, "gpus": tracked.num_gpus, "steps": tracked.total_steps}
                fields |= {"notes": self.notes[tracked.job_id]}
                self.log("arrived", job=tracked.job_id, **fields)
            state.aside.pop(tracked.job_id, None)
            state.tracked[tracked.job_id] = tracked
            tracked.seen_seconds = tracked.since_seconds = now
            self._update(tracked, jobs[tracked.job_id], now)

    def _prepared(self, job: SlurmJob, now: float) -> tuple[Tracked, Job] | None:
        """Return the record of a job and the job for the scheduler, or None if it is refused."""
        state = self.state
        tracked = before = state.aside.get(job.job_id)
        if tracked is None or before is None or self._is_changed(before, job):
            tracked, notes = job_mapping.new_tracked(job, state.speeds, self.settings, now)
            self.notes[job.job_id] = notes
            if before is not None:
                with_request = is_own_request(before, job.num_gpus) and not has_other_range(before, job)
                tracked.inherit_history(before, with_request=with_request)
                tracked.request = job_mapping.request_text(job, tracked)
        if job.phase is Phase.WAITING:
            tracked.partitions = list(job.partitions)
        tracked.usable, tracked.barred = self.rules.usable(job, tracked) or list(job.partitions), self.outlook.barred(job)
        try:
            return tracked, self._scheduler_job(tracked, job, self.matcher)
        except InputError as error:
            self._refuse(job.job_id, error, tracked, job)
            return None

    def without_room(self, job_ids: Iterable[str], jobs: Mapping[str, SlurmJob]) -> set[str]:
        """Return the waiting jobs for which the nodes that are there have no room, so that Slurm could not start them either."""
        there, known, speeds = self.matcher.there(jobs.values()), self.state.tracked, self.state.speeds
        return {
            job_id
            for job_id in jobs.keys() & job_ids
            if jobs[job_id].phase is Phase.WAITING
            and not job_mapping.has_room(replace(known[job_id]), jobs[job_id], there, speeds, self.settings)
        }

    def _scheduler_job(self, tracked: Tracked, job: SlurmJob, matcher: job_mapping.TypeMatcher) -> Job:
        return job_mapping.scheduler_job(tracked, job, self._tenant(job), matcher, self.state.speeds, self.settings)

    @staticmethod
    def _is_changed(tracked: Tracked, job: SlurmJob) -> bool:
        """Return whether the user of a job has changed its request."""
        return tracked.request != job_mapping.request_text(job, tracked) or has_other_range(tracked, job)

    def _is_accepted(self, job: Job) -> bool:
        try:
            self.state.scheduler.submit(job)
        except InputError as error:
            self._refuse(job.job_id, error)
            return False
        return True

    def _refuse(self, job_id: str, error: InputError, tracked: Tracked | None = None, job: SlurmJob | None = None) -> None:
        """Leave a job to Slurm, or set it aside if it could run without the division of nodes by reservations."""
        self.refused[job_id] = str(error)
        self.roles[job_id] = Eligibility(Role.LEFT, "; ".join(fault.problem for fault in error.faults))
        if (
            tracked
            and job
            and self.whole
            and job_mapping.has_room(replace(tracked, barred=[]), job, self.whole, self.state.speeds, self.settings)
        ):
            self.roles[job_id] = Eligibility(Role.ASIDE, "it needs nodes of which some will be reserved before others")

    def _look_ahead(self, snapshot: Snapshot, live: Mapping[str, SlurmJob]) -> NodesAhead:
        """Set aside the jobs for which reservations leave no node, and return the effect of reservations on the nodes."""
        settings, matcher = self.settings, self.matcher
        self.outlook = ReservationEffects.of(snapshot, self.state, settings, matcher.ahead, matcher.group_of)
        managed = [live[job_id] for job_id, role in self.roles.items() if role.role is Role.MANAGED]
        self.roles |= self.outlook.without_room(managed, lambda job: matcher.candidates(job, self.rules.usable(job, None)))
        planned = [job for job in managed if self.roles[job.job_id].role is Role.MANAGED]
        return self.outlook.nodes(planned, self.state.scheduler.round_seconds + settings.stop_seconds + settings.warn_seconds)

    def _sync_nodes(self, nodes: Mapping[str, SlurmNode], to_leave: Collection[str]) -> None:
        scheduler = self.state.scheduler
        change = {NodeState.DOWN: scheduler.node_down, NodeState.DRAINING: scheduler.drain, NodeState.UP: scheduler.node_up}
        for name, before in dict(scheduler.nodes).items():
            node_state = job_mapping.state_of(nodes.get(name))
            is_left = name in to_leave or (name in nodes and nodes[name].partitions.isdisjoint(self.settings.partitions))
            if node_state is NodeState.UP and is_left:
                node_state = NodeState.DRAINING
            if node_state is not before:
                change[node_state](name)
                self.log("node", node=name, state=str(node_state))

    def _tenant(self, job: SlurmJob) -> str:
        if self.accounts is not None and self.settings.tenants_from_slurm:
            return self.accounts.tenant_of(job)
        return printable(job.account or job.user)

    def _sync_accounts(self, jobs: Mapping[str, SlurmJob]) -> None:
        """Update the tenants of jobs whose accounts have changed, and protect jobs that a QOS exempts from preemption."""
        scheduler = self.state.scheduler
        for job in scheduler.jobs:
            tenant = self.state.tracked[job.job_id].tenant = self._tenant(jobs[job.job_id])
            if job.tenant != tenant:
                scheduler.update(job.job_id, tenant=tenant)
            exempt = 0.0 if self.accounts is None else self.accounts.exempt_of(jobs[job.job_id])
            if exempt and (tracked := self.state.tracked[job.job_id]).runs:
                scheduler.keep_running(job.job_id, tracked.stay_start_seconds + exempt)

    def _sync_running(self) -> None:
        """Correct the scheduler's view of running gangs."""
        scheduler, tracked = self.state.scheduler, self.state.tracked
        assumed = {job_id: Counter(node for node, _ in held.gpus) for job_id, held in scheduler.running.items()}
        # Deferred jobs do not have the GPUs that the round has planned for them yet.
        there = [job_id for job_id in tracked if job_id not in self.state.deferred]
        wrong = [job_id for job_id in there if assumed.get(job_id, {}) != tracked[job_id].held]
        # Only failed starts cause a back-off; here, a node has failed, a user has acted, or a driver was killed before a start.
        for job_id in wrong:
            scheduler.interrupted(job_id, is_failure=False)
        found = [job_id for job_id in wrong if tracked[job_id].runs]
        nodes = {node for job_id in found for node in tracked[job_id].held}
        for node, index in scheduler.lost_gpus:
            if node in nodes:
                scheduler.gpu_back(node, index)  # `sync_unavailable_gpus` removes them again if other jobs hold them
        for job_id in found:
            try:
                scheduler.found_running(job_id, tracked[job_id].held)
            except InputError as error:
                self.log("strange", job=job_id, why=str(error))

    def _report_progress(self) -> None:
        """Report steps to the scheduler. A running job that has reached its total steps is expected to need more."""
        scheduler = self.state.scheduler
        for job in scheduler.jobs:
            tracked = self.state.tracked[job.job_id]
            steps, is_observed = tracked.steps_done, tracked.has_reported and tracked.is_known and not tracked.is_outlier
            if job.total_steps is not None and steps >= job.total_steps:
                scheduler.update(job.job_id, total_steps=steps * OVERRUN)
            if steps != job.steps_done:
                trust = self.settings.trust_in(tracked.user) if is_observed else 0.0
                scheduler.report(job.job_id, steps_done=steps, trust=trust)
