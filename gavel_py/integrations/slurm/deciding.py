"""From a reading to a decision: the scheduler is brought up to date, and says what the next round is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.integrations.slurm.cluster_picture import Parts, closed_nodes, cluster_of, cpus_used_by, used_by
from gavel_py.integrations.slurm.driver_state import DriverState, load_state
from gavel_py.integrations.slurm.following import Follower
from gavel_py.integrations.slurm.kinds import most_measured
from gavel_py.integrations.slurm.moves import Moves, crowded_out, moves_of, targets_of
from gavel_py.integrations.slurm.newcomers import Where
from gavel_py.integrations.slurm.progress import Progress
from gavel_py.integrations.slurm.records import SlurmJob, Snapshot
from gavel_py.integrations.slurm.roles import Role, Standing, is_held_here
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.speeds import Speeds
from gavel_py.integrations.slurm.tracked import Tracked
from gavel_py.integrations.slurm.values import printable
from gavel_py.integrations.slurm.watching import Log, Watcher
from gavel_py.policies import Policy
from gavel_py.scheduling import NodeState, Round, RoundScheduler, Wait
from gavel_py.throughput_profiles import ThroughputProfile

__all__ = ["Decided", "Decider", "Picture"]


@dataclass(frozen=True)
class Picture:
    """A reading as this program sees it. standings: whose each job is; refused: {job: why} the scheduler cannot take it;
    let_go: {job: why} of those that wait on a hold of ours and are Slurm's; known: what is known of all jobs that are or were
    managed; notes: what was left out of the reading.
    """

    snapshot: Snapshot
    state: DriverState
    standings: Mapping[str, Standing]
    refused: Mapping[str, str]
    let_go: Mapping[str, str]
    known: Mapping[str, Tracked]
    notes: tuple[str, ...]

    @property
    def most_nodes(self) -> int:
        """How many nodes the partition has."""
        return sum(self.state.partition in node.partitions for node in self.snapshot.nodes.values())

    @property
    def others(self) -> list[SlurmJob]:
        """The jobs that are not managed."""
        return [self.snapshot.jobs[job_id] for job_id in self.standings if job_id not in self.state.tracked]

    @property
    def used_by_others(self) -> dict[str, int]:
        """{node: GPUs} that jobs hold which are not managed."""
        return used_by(self.others)

    def standing_of(self, job_id: str) -> Standing:
        """Return whose a job is; one that the latest decision could place nowhere is Slurm's until another one can."""
        if job_id in self.state.tracked and job_id in self.state.unplanned:
            return Standing(Role.LEFT, self.state.unplanned[job_id])
        return self.standings[job_id]

    @property
    def left_alone(self) -> dict[str, str]:
        """{job: why} of the jobs of the partition that are not planned."""
        here = [i for i in self.standings if self.state.partition in self.snapshot.jobs[i].partition.split(",")]
        return {job_id: why for job_id in here if (why := self.standing_of(job_id).why)}

    @staticmethod
    def shown(text: str) -> str:
        """Return a text of a user as it can be printed."""
        return printable(text)


@dataclass(frozen=True)
class Decided:
    """A picture, the round that follows from it, and what that comes to."""

    picture: Picture
    begun: Round
    moves: Moves

    @property
    def waiting(self) -> dict[str, str]:
        """{job: why} of the managed jobs that have no place in this round."""
        scheduler, told = self.picture.state.scheduler, {**self.begun.excluded, **self.moves.cannot}
        for job_id in self.picture.state.tracked:
            if job_id not in self.begun.assignments and job_id not in told:
                delivery = scheduler.delivery_of(job_id)
                waits = {} if delivery is None else delivery.waits
                told[job_id] = str(max(waits, key=lambda reason: waits[reason], default=Wait.TURN))
        return told

    def account(self) -> dict[str, Any]:
        """Return what a report needs to know of the round: GPUs by type, jobs, what was promised and delivered so far, prices."""
        scheduler, allocation = self.picture.state.scheduler, self.picture.state.scheduler.allocation
        past = self.picture.state.past
        delivery, down = scheduler.delivery(), dict.fromkeys(scheduler.cluster.accelerator_names, 0)
        for node in scheduler.cluster.nodes:
            down[node.accelerator] += 0 if scheduler.nodes[node.name] is NodeState.UP else node.num_gpus
        prices: dict[str, float] = {}
        if allocation is not None and allocation.shadow_prices is not None and allocation.objective_value:
            relative = allocation.shadow_prices / abs(allocation.objective_value)
            prices = dict(zip(allocation.accelerator_types, relative.tolist(), strict=True))
        return {
            "gpus": dict(zip(scheduler.cluster.accelerator_names, scheduler.cluster.capacities.tolist(), strict=True)),
            "down": down,
            "active": len(self.picture.state.tracked),
            "promised_gpu_seconds": past[0] + delivery.promised_gpu_seconds,
            "delivered_gpu_seconds": past[1] + delivery.delivered_gpu_seconds,
            "owed_gpu_seconds": past[2] + delivery.shortfall_gpu_seconds,
            "solver_seconds": 0.0 if allocation is None else allocation.seconds.get("solve", 0.0),
            "prices": prices,
        }


class Decider:
    """options: the numbers of `RoundScheduler`; path: of the state, None for none; log: is told what is found."""

    def __init__(
        self,
        settings: SlurmSettings,
        profile: ThroughputProfile,
        policy: Policy,
        options: Mapping[str, float],
        path: Path | None,
        progress: Progress,
        log: Log,
    ) -> None:
        _check_default(settings, profile)
        self._settings = replace(settings, default_type=settings.default_type or most_measured(profile))
        self._profile, self._policy, self._options = profile, policy, dict(options)
        self._path, self._progress, self._log = path, progress, log
        self.state: DriverState | None = None
        self.watcher: Watcher | None = None

    def picture(self, snapshot: Snapshot) -> Picture:
        """Bring the scheduler up to a reading, and return what is seen. Raises `InputError`."""
        parts = self._known_parts(cluster_of(snapshot.nodes.values(), self._settings, self._profile.accelerators))
        state = self._state_for(parts)
        types = {node.name: node.accelerator for node in parts.cluster.nodes}
        self.watcher = Watcher(state, self._progress, types, self._log)
        known = state.aside | state.tracked
        where = Where(parts.slurm_names, parts.cluster, snapshot.nodes)
        follower = Follower(state, self._settings, self.watcher, where, self._log)
        follower.follow(snapshot)
        known |= state.aside | state.tracked
        let_go = {
            job_id: standing.why
            for job_id, standing in follower.standings.items()
            if standing.role.is_slurms and is_held_here(snapshot.jobs[job_id], state.partition, known, state.stopping)
        }
        notes = (*parts.left_out, *snapshot.unread)
        return Picture(snapshot, state, follower.standings, follower.refused, let_go, known, notes)

    def decide(self, picture: Picture) -> Decided:
        """Begin the next round, as of the latest picture. Raises `InputError`, and whatever `solve` raises."""
        state, snapshot, scheduler = picture.state, picture.snapshot, picture.state.scheduler
        before = scheduler.last_start_seconds
        now = snapshot.seconds if before is None else max(before, snapshot.seconds)
        _keep_where_they_run(scheduler, scheduler.plan_next(now).excluded)
        begun = scheduler.next_round(now)
        state.forget_gone()
        state.rounds += 1
        self._note_unplanned(picture, begun.excluded)
        targets = targets_of(begun)
        keeping = {job_id for job_id, target in targets.items() if state.tracked[job_id].held == target}
        cpus = {job.job_id: job.cpus_per_gpu for job in scheduler.jobs}
        crowded = crowded_out(targets, keeping, cpus, snapshot.nodes, cpus_used_by(picture.others))
        moves = moves_of(targets, snapshot.jobs, state.tracked, closed_nodes(snapshot.nodes), begun.excluded, crowded)
        return Decided(picture, begun, replace(moves, give_back={**picture.let_go, **moves.give_back}))

    def _note_unplanned(self, picture: Picture, excluded: Mapping[str, str]) -> None:
        """Take note of the jobs that are left to Slurm, and tell of those that were not before, or for another reason."""
        state = picture.state
        left = {job_id: standing.why for job_id, standing in picture.standings.items() if standing.role is Role.LEFT}
        left |= dict(excluded)
        for job_id, why in left.items():
            if state.unplanned.get(job_id) != why:
                self._log("unplanned", job=job_id, why=why)
        state.unplanned = left

    def _known_parts(self, parts: Parts) -> Parts:
        """Only the types whose speeds are known can be planned; that none is known is an error before the first round only."""
        known = self._profile.accelerators
        names = parts.cluster.accelerator_names
        unknown = [name for name in names if name not in known]
        where, has = f"profile {self._profile.name}", f"it has {', '.join(known)}"
        texts = [f"does not know GPU type {name!r}; {has}" for name in unknown]
        if len(unknown) == len(names) and self.state is None:
            hint = "; name it as in the profile with --map-accelerator OLD=NEW"
            raise UnknownNameError(*(Fault(where, "", text + hint) for text in texts))
        left = tuple(f"{where} {text}; its nodes are left out" for text in texts)
        kept = {name: kinds for name, kinds in parts.slurm_names.items() if name in known}
        return Parts(parts.cluster.restricted_to(kept), kept, (*parts.left_out, *left))

    def _state_for(self, parts: Parts) -> DriverState:
        if self.state is None:
            self.state = self._loaded() or self._new(parts)
        cluster = self.state.scheduler.cluster
        shapes = [{n.name: (n.accelerator, n.num_gpus) for n in c.nodes} for c in (cluster, parts.cluster)]
        if not shapes[1].items() <= shapes[0].items():
            self.state = self._renewed(self.state, parts, "nodes have come, or have other GPUs than before")
        elif not set(cluster.accelerator_names) <= set(self.state.speeds.profile.accelerators):
            self.state = self._renewed(self.state, parts, "the profile does not know GPU types any more that it knew")
        return self.state

    def _loaded(self) -> DriverState | None:
        if self._path is None or not self._path.exists():
            return None
        state = load_state(self._path, self._settings.partition, self._policy)
        for name, value in self._options.items():
            setattr(state.scheduler, name, value)
        speeds = Speeds(self._profile, state.speeds.measured, state.speeds.sizes)
        if speeds.base.rows != state.speeds.base.rows:
            state.speeds = speeds
            if set(state.scheduler.cluster.accelerator_names) <= set(speeds.profile.accelerators):
                state.scheduler.profile = speeds.profile
        return state

    def _new(self, parts: Parts) -> DriverState:
        speeds = Speeds(self._profile)
        return DriverState(self._settings.partition, self._scheduler(parts, speeds), speeds)

    def _scheduler(self, parts: Parts, speeds: Speeds) -> RoundScheduler:
        return RoundScheduler(parts.cluster, speeds.profile, self._policy, **self._options)  # type: ignore[arg-type]

    def _renewed(self, state: DriverState, parts: Parts, why: str) -> DriverState:
        """There are other nodes than before: begin anew with them, and let all jobs come again. What was owed is lost."""
        self._log("cluster", nodes=len(parts.cluster.nodes), why=why)
        aside = {**state.aside, **state.tracked}
        return replace(state, scheduler=self._scheduler(parts, state.speeds), tracked={}, aside=aside, gone=[])


def _keep_where_they_run(scheduler: RoundScheduler, excluded: Mapping[str, str]) -> None:
    """Take the GPUs of running jobs that can be planned nowhere out of the round that has been planned: they are not stopped."""
    running = scheduler.running
    for job_id in excluded.keys() & running.keys():
        scheduler.interrupted(job_id)
        for node, index in running[job_id].gpus:
            scheduler.gpu_lost(node, index)


def _check_default(settings: SlurmSettings, profile: ThroughputProfile) -> None:
    if not profile.job_types:
        raise InputError(Fault(f"profile {profile.name}", "", "knows no job types"))
    if settings.default_type is not None and settings.default_type not in profile.job_types:
        text = f"{settings.default_type!r} is not in profile {profile.name!r}{nearest(settings.default_type, profile.job_types)}"
        raise UnknownNameError(Fault("slurm", "default_type", text))
