"""Planning of the next round from a snapshot of Slurm, and the actions that follow from the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gavel_py.errors import check_known, refuse
from gavel_py.integrations.slurm import job_mapping, sizes
from gavel_py.integrations.slurm.accounts import Accounts
from gavel_py.integrations.slurm.actions import Actions, Target, actions_for, revived, time_left, with_grace, within_limits
from gavel_py.integrations.slurm.apply import FREE
from gavel_py.integrations.slurm.client.notation import printable
from gavel_py.integrations.slurm.client.records import Phase, Reservation, SlurmJob, Snapshot
from gavel_py.integrations.slurm.job_roles import Eligibility, Role
from gavel_py.integrations.slurm.partitions import Partition, in_new_groups, known_to, partition_of
from gavel_py.integrations.slurm.records import MEASURED, Tracked
from gavel_py.integrations.slurm.reservations import NodesAhead, groups_ahead
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.speeds import ProgressFiles, Speeds
from gavel_py.integrations.slurm.state import TOTALS, DriverState, load_state
from gavel_py.integrations.slurm.sync import Log, Reconciler
from gavel_py.integrations.slurm.turns import MECHANISM
from gavel_py.policies import Policy
from gavel_py.problem.cluster import Cluster
from gavel_py.scheduling import Assignment, NodeState, Round, RoundScheduler, Wait
from gavel_py.scheduling.options import SchedulerOptions
from gavel_py.throughput_profiles import ThroughputProfile

if TYPE_CHECKING:
    from gavel_py import ThroughputLearner


@dataclass(frozen=True)
class ClusterSnapshot:
    """A snapshot of Slurm with the driver's view of it.

    Attributes:
        snapshot: The nodes and jobs.
        state: The state of the driver.
        standings: The eligibility of each live job.
        refused: {job: error} of jobs that the scheduler does not accept.
        let_go: {job: reason} of jobs left to Slurm that wait for the driver.
        unbound: Other jobs that wait, but not for the driver.
        known: Records of all jobs that are or were managed.
        notes: Descriptions of what was omitted from the snapshot.
        notes_on_nodes: Those that are about nodes and names of GPU types.
        ahead: Effect of reservations on the nodes.
    """

    snapshot: Snapshot
    state: DriverState
    standings: Mapping[str, Eligibility]
    refused: Mapping[str, str]
    let_go: Mapping[str, str]
    unbound: tuple[str, ...]
    known: Mapping[str, Tracked]
    notes: tuple[str, ...]
    notes_on_nodes: tuple[str, ...]
    ahead: NodesAhead

    @property
    def most_nodes(self) -> int:
        """The number of nodes of the managed partitions."""
        return sum(not node.partitions.isdisjoint(self.state.partitions) for node in self.snapshot.nodes.values())

    @property
    def others(self) -> list[SlurmJob]:
        """Jobs that are not managed."""
        return [self.snapshot.jobs[job_id] for job_id in self.standings if job_id not in self.state.tracked]

    @property
    def used_by_others(self) -> dict[str, int]:
        """{node: GPUs} held by jobs that are not managed."""
        return job_mapping.gpus_used(self.others)

    def partitions_of(self, node: str) -> list[str]:
        """Return the managed partitions of a node."""
        listed = self.snapshot.nodes[node].partitions if node in self.snapshot.nodes else ()
        return [name for name in self.state.partitions if name in listed]

    def standing_of(self, job_id: str) -> Eligibility:
        """Return the eligibility of a job; jobs excluded by the latest decision count as left to Slurm."""
        if job_id in self.state.tracked and job_id in self.state.unplanned:
            return Eligibility(Role.LEFT, self.state.unplanned[job_id])
        return self.standings[job_id]

    @property
    def left_alone(self) -> dict[str, str]:
        """{job: reason} of the jobs in the managed partitions that are not planned."""
        here = [i for i in self.standings if self.snapshot.jobs[i].is_in(self.state.partitions)]
        return {job_id: why for job_id in here if (why := self.standing_of(job_id).why)}

    @staticmethod
    def shown(text: str) -> str:
        """Return a user's text in printable form."""
        return printable(text)


@dataclass(frozen=True)
class Decided:
    """A planned round.

    Attributes:
        picture: The snapshot from which it was planned.
        begun: The round of the scheduler.
        moves: The actions that it requires.
        totals: GPU-seconds promised, delivered and owed until it begins.
    """

    picture: ClusterSnapshot
    begun: Round
    moves: Actions
    totals: Sequence[float]

    @property
    def types(self) -> dict[str, str]:
        """{accelerator of the scheduler: its GPU type}; they differ if a type has nodes in different partitions."""
        cluster = self.picture.state.scheduler.cluster
        return dict(zip(cluster.accelerator_names, cluster.profile_names, strict=True))

    @property
    def waiting(self) -> dict[str, str]:
        """{job: reason} of the managed jobs without GPUs in this round."""
        scheduler, reasons = self.picture.state.scheduler, {**self.begun.excluded, **self.moves.cannot, **self.moves.deferred}
        placed = {*self.begun.assignments, *self.moves.keep}
        for job_id in self.picture.state.tracked:
            if job_id not in placed and job_id not in reasons:
                reasons[job_id] = str(scheduler.wait_of(job_id) or Wait.TURN)
        return reasons

    def account(self) -> dict[str, Any]:
        """Return the figures of the round for reports: GPUs by type, active jobs, promised and delivered time so far, prices."""
        scheduler, types = self.picture.state.scheduler, self.types
        allocation = scheduler.allocation
        gpus, down = (dict.fromkeys(types.values(), 0) for _ in range(2))
        for node in scheduler.cluster.nodes:
            gpus[types[node.accelerator]] += node.num_gpus
            down[types[node.accelerator]] += 0 if scheduler.nodes[node.name] is NodeState.UP else node.num_gpus
        prices: dict[str, float] = {}
        if allocation is not None and allocation.shadow_prices is not None and allocation.objective_value:
            relative = allocation.shadow_prices / abs(allocation.objective_value)
            for name, price in zip(allocation.accelerator_types, relative.tolist(), strict=True):
                prices[types[name]] = max(price, prices.get(types[name], price))  # one more GPU, where it is worth most
        return {
            "gpus": gpus,
            "down": down,
            "active": len(self.picture.state.tracked),
            **dict(zip(TOTALS, self.totals, strict=True)),
            **{name: getattr(scheduler.options, name) for name in MEASURED},
            "solver_seconds": 0.0 if allocation is None else allocation.seconds.get("solve", 0.0),
            "prices": prices,
            **({} if self.begun.fallback is None else {"fallback": asdict(self.begun.fallback), "notes": list(self.begun.notes)}),
            **({"exceeded": list(self.begun.exceeded)} if self.begun.exceeded else {}),
        }


MAX_FAILED_STARTS = 3
"""After this number of failed starts, a job is left to Slurm for the duration of its back-off."""


def given_up(scheduler: RoundScheduler, now: float) -> dict[str, str]:
    """Return {job: reason} of the waiting jobs that are left to Slurm for the duration of their back-off."""
    running = scheduler.running
    return {
        job_id: f"it did not start on the selected nodes {each.failures} times; it will be tried again later"
        for job_id, each in scheduler.backoffs.items()
        if each.failures >= MAX_FAILED_STARTS and now < each.until_seconds and job_id not in running
    }


def _targets(assignments: Mapping[str, Assignment]) -> dict[str, Target]:
    return {job_id: dict(Counter(node for node, _ in held.gpus)) for job_id, held in assignments.items()}


class SlurmPlanner:
    """Reconciles the scheduler with snapshots of Slurm and plans rounds."""

    def __init__(
        self,
        settings: SlurmSettings,
        profile: ThroughputProfile | ThroughputLearner,
        policy: Policy,
        options: SchedulerOptions,
        path: Path | None,
        log: Log,
    ) -> None:
        text = "needs the policy hierarchical without its own tenants, since no other policy shares by accounts"
        refuse("slurm", (settings.tenants_from_slurm and getattr(policy, "tenants", "") is not None, "tenants_from_slurm", text))
        self._given, self._policy = profile, policy
        known = profile if isinstance(profile, ThroughputProfile) else profile.measured
        is_empty = not known.job_types and (self._learner is None or settings.default_type is None)
        hint = "" if self._learner is None else "; name a default type for jobs that have none (--default-type)"
        refuse(f"profile {known.name}", (is_empty, "", f"has no job types{hint}"))
        default = settings.default_type or job_mapping.most_measured(known)
        if known.job_types:
            check_known("slurm", "default_type", [default], known.job_types, f"is not in profile {known.name!r}")
        self._reported_why_fixed, self._why_fixed = False, sizes.why_fixed(policy)
        self._settings = settings.changed(default_type=default, elastic=settings.elastic and not self._why_fixed)
        self._options = options if "mechanism" in options.model_fields_set else options.changed(mechanism=MECHANISM)
        self._path, self._progress, self._log = path, ProgressFiles(settings.progress), log
        self.accounts: Accounts | None = None
        self.lease = FREE
        self._tenants: frozenset[str] = frozenset()
        self.state: DriverState | None = None
        self.reconciler: Reconciler | None = None
        self._ahead: dict[str, Reservation] = {}

    @property
    def _learner(self) -> ThroughputLearner | None:
        return None if isinstance(self._given, ThroughputProfile) else self._given

    @property
    def _profile(self) -> ThroughputProfile:
        """The profile of the site, or of the learner if there is one."""
        return cast("ThroughputProfile", self._given) if self._learner is None else self._learner.profile

    def reconcile(self, snapshot: Snapshot, *, within_round: bool = False) -> ClusterSnapshot:
        """Reconcile the scheduler with a snapshot; within_round: keep groups of nodes and running jobs. Raises `InputError`."""
        self.load()
        partition = whole = self._partition(snapshot, {}, must_exist=self.reconciler is None)
        if not within_round:
            self._ahead = groups_ahead(snapshot, self.state, self._settings)
        if self._ahead:
            partition = self._partition(snapshot, self._ahead, must_exist=False)
        self._share_by_accounts(snapshot)
        state, is_regrouped = self._state_for(partition.cluster)
        snapshot = replace(snapshot, jobs=revived(snapshot.jobs, state.warned))
        matchers = [job_mapping.TypeMatcher(each, snapshot.nodes) for each in (partition, whole)]
        self.reconciler = Reconciler(state, self._settings, self._progress, partition.types, matchers[0], self._log, self.accounts)
        self.reconciler.whole, self.reconciler.is_regrouped = (matchers[1] if self._ahead else None), is_regrouped
        known = state.aside | state.tracked
        self.reconciler.reconcile(snapshot, within_round=within_round)
        known |= state.aside | state.tracked
        roles = self.reconciler.roles
        waiting = [job for job_id in roles if (job := snapshot.jobs[job_id]).phase is Phase.WAITING]
        left = [job for job in waiting if roles[job.job_id].role.is_left_to_slurm]
        let_go = {job.job_id: roles[job.job_id].why for job in left if job.leases and self.lease.job_id in ("", *job.leases)}
        ours = [job for job in waiting if not roles[job.job_id].role.is_left_to_slurm]
        unbound = tuple(job.job_id for job in ours if self.lease.is_due(job, snapshot.seconds))
        fixed = sizes.notes_on_fixed(self._why_fixed, state.tracked.values())
        if fixed and not self._reported_why_fixed:
            self._log("not_elastic", why=self._why_fixed)
        self._reported_why_fixed |= bool(fixed)
        notes = (*partition.notes, *snapshot.unreadable, *fixed, *filter(None, [state.scheduler.fallback_text]))
        notes += state.scheduler.exceeded_notes
        refused, ahead = self.reconciler.refused, self.reconciler.ahead
        return ClusterSnapshot(snapshot, state, roles, refused, let_go, unbound, known, notes, partition.notes, ahead)

    def _partition(self, snapshot: Snapshot, ahead: Mapping[str, Reservation], *, must_exist: bool) -> Partition:
        """Return the partitions of a snapshot without GPU types that are not in the profile."""
        nodes, known = snapshot.nodes.values(), self._profile.accelerators
        found = partition_of(nodes, self._settings, known, ahead, must_exist=must_exist)
        if self._learner is not None:
            self._learner.add_accelerators(found.cluster.profile_names)
        return known_to(found, self._profile, required=must_exist)

    def decide(self, picture: ClusterSnapshot) -> Decided:
        """Begin the next round from the latest snapshot. Raises `InputError`, and the errors of `solve`."""
        state, snapshot, scheduler = picture.state, picture.snapshot, picture.state.scheduler
        before = scheduler.last_start_seconds
        now = snapshot.seconds if before is None else max(before, snapshot.seconds)
        running = scheduler.running
        leaving = picture.ahead.leaving(state.tracked.values())
        for job_id in (scheduler.plan_next(now).excluded.keys() & running.keys()) - leaving:
            # It is not stopped, so its GPUs are not available in this round.
            scheduler.interrupted(job_id)
            for node, index in running[job_id].gpus:
                scheduler.gpu_lost(node, index)
        totals = state.totals(now)
        state.restart_cost.apply(scheduler, self._options)
        begun = scheduler.next_round(now)
        state.forget_departed()
        state.rounds += 1
        # They wait for the driver until nodes are back; otherwise Slurm would then start all of them in its own order.
        away = self.reconciler.without_room(begun.excluded, snapshot.jobs) if begun.excluded and self.reconciler else set()
        excluded = {i: why for i, why in begun.excluded.items() if i not in leaving | away} | given_up(scheduler, now)
        self._update_unplanned(picture, excluded)
        unresponsive = job_mapping.unresponsive_nodes(snapshot.nodes)
        actions = actions_for(_targets(begun.assignments), snapshot.jobs, state.steered, unresponsive, excluded, picture.unbound)
        actions = self._with_grace(picture, actions)
        return Decided(picture, begun, replace(actions, give_back={**picture.let_go, **actions.give_back}), totals)

    def _with_grace(self, picture: ClusterSnapshot, actions: Actions) -> Actions:
        """Warn jobs before they are stopped, requeue those that failed after the warning, and lower time limits by run time."""
        state, jobs, now = picture.state, picture.snapshot.jobs, picture.snapshot.seconds
        gentle = with_grace(actions, jobs, state.warned, self._settings, now)
        if self.accounts is not None and len(gentle.keep) > len(actions.keep):
            gentle = within_limits(gentle, jobs, self.accounts)
        ending = [i for i in state.warned if i in actions.stop or (i in state.tracked and jobs[i].phase is Phase.STOPPING)]
        state.warned = {i: state.warned[i] for i in ending} | {i: now + (each.seconds or 0.0) for i, each in gentle.warn.items()}
        state.deferred = {*gentle.deferred, *(i for i in actions.stop if i not in gentle.stop)}
        revive = tuple(i for i in ending if "FAILED" in jobs[i].states)
        limits = {i: left for i in gentle.start if (left := time_left(jobs[i], state.tracked[i])) is not None}
        return replace(gentle, revive=revive, limits=limits if self._settings.wall_limit == "total" else {})

    def fill(self, picture: ClusterSnapshot) -> Actions | None:
        """Return the actions that start waiting jobs on idle GPUs within the round in progress, and let go of jobs left to Slurm.

        Jobs whose grace period is over are stopped, and the jobs planned in their place start. None if there is nothing to do.
        """
        state, snapshot, scheduler = picture.state, picture.snapshot, picture.state.scheduler
        now = max(scheduler.last_start_seconds or 0.0, snapshot.seconds)
        started = scheduler.start_waiting(now)
        deferred, warned = state.deferred, state.warned
        if not (started or picture.let_go or picture.unbound or deferred or warned):
            return None
        excluded = {i: why for i, why in state.unplanned.items() if i not in started} | given_up(scheduler, now)
        unresponsive = job_mapping.unresponsive_nodes(snapshot.nodes)
        actions = actions_for(_targets(scheduler.running), snapshot.jobs, state.steered, unresponsive, excluded, picture.unbound)
        # No other job is stopped within a round.
        stop = tuple(job_id for job_id in actions.stop if job_id in warned)
        running = (*actions.keep, *(job_id for job_id in actions.stop if job_id not in warned))
        start = {job_id: target for job_id, target in actions.start.items() if job_id in started or job_id in deferred}
        cannot = {job_id: why for job_id, why in actions.cannot.items() if job_id in started or job_id in deferred}
        actions = replace(actions, keep=running, stop=stop, start=start, cannot=cannot, give_back=picture.let_go)
        actions = self._with_grace(picture, actions)
        return None if actions.is_nothing else actions

    def take_outcome(self, jobs: Mapping[str, SlurmJob], failed: Iterable[str], now: float) -> None:
        """Update the records of jobs and the scheduler after a round. jobs: as last read; failed: jobs not as planned."""
        if self.state is None or self.reconciler is None:
            return
        self.reconciler.update_jobs(jobs, now)
        state = self.state
        now = max(now, state.scheduler.last_start_seconds or 0.0)
        for job_id in failed:
            if job_id in state.tracked:
                state.scheduler.interrupted(job_id, now_seconds=now)

    def _update_unplanned(self, picture: ClusterSnapshot, excluded: Mapping[str, str]) -> None:
        """Record the jobs left to Slurm, and log those that are new or whose reason has changed."""
        state = picture.state
        unplanned = {job_id: each.why for job_id, each in picture.standings.items() if each.role is Role.LEFT} | dict(excluded)
        for job_id, why in unplanned.items():
            if state.unplanned.get(job_id) != why:
                self._log("unplanned", job=job_id, why=why)
        state.unplanned = unplanned

    def _share_by_accounts(self, snapshot: Snapshot) -> None:
        """Set the tenants of the policy to the accounts and users of the jobs, if the settings require it."""
        accounts = self.accounts
        if accounts is None or not self._settings.tenants_from_slurm:
            return
        here = [job for job in snapshot.jobs.values() if job.is_in(self._settings.partitions) and not job.phase.is_over]
        tree = accounts.tree(sorted({accounts.tenant_of(job) for job in here} | self._tenants))
        self._tenants = frozenset(tenant.name for tenant in tree.tenants) - tree.parents
        policy = replace(self._policy, tenants=tree)  # type: ignore[call-arg]
        if policy != self._policy:
            self._policy = policy
            if self.state is not None:
                self.state.scheduler.policy = policy

    def _state_for(self, cluster: Cluster) -> tuple[DriverState, bool]:
        """Return the state, with a new scheduler if the cluster has changed, and whether only the groups of nodes have changed."""
        if self.state is None:
            speeds = Speeds(self._given)
            self.state = DriverState(",".join(self._settings.partitions), self._scheduler(cluster, speeds), speeds)
        planned = self.state.scheduler.cluster
        planned_nodes, nodes = ({n.name: (n.accelerator, n.num_gpus) for n in each.nodes} for each in (planned, cluster))
        is_changed = not nodes.items() <= planned_nodes.items()
        regrouped = in_new_groups(planned, cluster) if is_changed else None
        if is_changed and regrouped is None:
            self._renew(self.state, cluster, "nodes were added, or their GPUs have changed")
        elif set(self.state.partitions) != set(self._settings.partitions):
            self._renew(self.state, cluster, "other partitions are managed")
        elif not set(planned.profile_names) <= set(self.state.speeds.profile.accelerators):
            self._renew(self.state, cluster, "the profile no longer has some GPU types")
        elif regrouped is not None:
            self.state.scheduler.regroup(regrouped)
            return self.state, True
        return self.state, False

    def load(self) -> None:
        """Load the saved state, if there is one and it has not been loaded yet. Raises `InputError`."""
        if self.state is not None or self._path is None or not self._path.exists():
            return
        state = load_state(self._path, self._settings.partitions, self._policy, self._learner)
        measured = state.scheduler.options.model_dump(include=MEASURED.keys() - self._options.model_fields_set)
        state.scheduler.options = self._options.changed(**measured)
        speeds = Speeds(self._given, state.speeds.measured, state.speeds.sizes)
        differ = state.scheduler.profile is not state.speeds.profile or speeds.base.rows != state.speeds.base.rows
        if speeds.has_estimates or differ:
            state.speeds, state.has_new_speeds = speeds, True
            if set(state.scheduler.cluster.profile_names) <= set(speeds.profile.accelerators):
                speeds.use_in(state.scheduler)
        self.state = state

    def _scheduler(self, cluster: Cluster, speeds: Speeds) -> RoundScheduler:
        profile = speeds.profile if speeds.learner is None else speeds.learner
        return RoundScheduler(cluster, profile, self._policy, options=self._options)

    def _renew(self, state: DriverState, cluster: Cluster, why: str) -> None:
        """Replace the scheduler and submit all jobs to the new one; deficits are lost."""
        self._log("cluster", nodes=len(cluster.nodes), why=why)
        aside = {**state.aside, **state.tracked}
        self.state = replace(
            state,
            partition=",".join(self._settings.partitions),
            scheduler=self._scheduler(cluster, state.speeds),
            tracked={},
            aside=aside,
            departed=[],
            deferred=set(),
        )
