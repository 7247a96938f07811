"""From a reading of Slurm to the next round, and what it means for its jobs: which keep running, stop, are held, start, and where.

`RoundPlanner` brings the scheduler up to date with a `Snapshot` and begins the round. `actions_for` compares the round with the jobs as
Slurm has them, and `batch_lines`, `annotation_lines`, `start_line`, `priority_lines` and `restore_lines` are the lines for scontrol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.integrations.slurm.job_mapping import (
    Partition,
    TypeMatcher,
    cpus_used,
    gpus_used,
    most_measured,
    partition_of,
    unresponsive_nodes,
)
from gavel_py.integrations.slurm.job_roles import (
    REQUEUED_ON_HOLD,
    Eligibility,
    Role,
    annotated,
    is_held_by_driver,
    parse_annotation,
)
from gavel_py.integrations.slurm.parsing import is_node_name, printable
from gavel_py.integrations.slurm.records import Phase, SlurmJob, SlurmNode, Snapshot
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.state import DriverState, Speeds, Tracked, load_state
from gavel_py.integrations.slurm.sync import JobMonitor, Log, Progress, Reconciler
from gavel_py.policies import Policy
from gavel_py.scheduling import NodeState, Round, RoundScheduler, Wait
from gavel_py.throughput_profiles import ThroughputProfile

Target = Mapping[str, int]
"""{node: GPUs}."""

MOST_IDS = 100
"""Jobs named in one line of a command."""

HIGHEST = 4_294_967_293
"""The highest priority that Slurm knows; the two numbers above it mean something else."""


@dataclass(frozen=True)
class Actions:
    """keep: run as they should; stop: run, and should not, or elsewhere; hold: wait, and Slurm might start them by itself, or were
    stopped by a driver that was killed then; start: {job: {node: GPUs}}, where they are to run; cannot: {job: why} of those
    that cannot be started as it was decided; misfits: those of them that Slurm would not start there later either; give_back:
    {job: why} of those that wait on a hold of ours, or for nodes that we named, and are left to Slurm; marks: {job:
    AdminComment} of those to be stopped, held or started that Slurm does not show as managed yet.
    """

    keep: tuple[str, ...]
    stop: tuple[str, ...]
    hold: tuple[str, ...]
    start: Mapping[str, Target]
    cannot: Mapping[str, str]
    misfits: frozenset[str]
    give_back: Mapping[str, str]
    marks: Mapping[str, str]


def targets_of(begun: Round) -> dict[str, dict[str, int]]:
    """Return {job: {node: GPUs}} of a round."""
    return {job_id: dict(Counter(node for node, _ in held.gpus)) for job_id, held in begun.assignments.items()}


def actions_for(
    targets: Mapping[str, Target],
    jobs: Mapping[str, SlurmJob],
    managed: Mapping[str, Tracked],
    silent: Collection[str] = (),
    left: Mapping[str, str] | None = None,
    shortages: Mapping[str, str] | None = None,
) -> Actions:
    """Return what is to be done.

    Args:
        targets: where the jobs of the round are to run.
        jobs: all jobs as Slurm has them now.
        managed: those that may be touched.
        silent: nodes on which nobody can start. Who runs there goes on: if the node turns out to be dead, Slurm 22.05 loses count
            of the GPUs of a job that was being stopped there, and gives those that it has next to nobody after it.
        left: {job: why} of the managed jobs that the round leaves out, since they can run nowhere: they are Slurm's to schedule.
        shortages: {job: why} of those for which other jobs leave no room (`cpu_shortages`).
    """
    left, shortages = left or {}, shortages or {}
    there = [jobs[job_id] for job_id in managed if job_id in jobs and not jobs[job_id].phase.is_over]
    ours = [job for job in there if job.job_id not in left]
    keep = dict.fromkeys(job.job_id for job in ours if job.phase is Phase.RUNNING and _stays(job, targets, silent))
    wanted = {job.job_id: targets[job.job_id] for job in ours if job.job_id in targets and job.job_id not in keep}
    misfits = {job_id: why for job_id in wanted if (why := shortages.get(job_id) or _misfit(wanted[job_id], managed[job_id]))}
    cannot = misfits | {job_id: why for job_id, target in wanted.items() if (why := _why_not(target, silent))}
    stop = [job for job in ours if job.phase is Phase.RUNNING and job.job_id not in keep]
    hold = [job for job in ours if job.phase is Phase.WAITING and _needs_hold(job)]
    start = {job_id: target for job_id, target in wanted.items() if job_id not in cannot}
    marks = {
        job.job_id: _mark_of(job, managed[job.job_id]) for job in [*stop, *hold] if parse_annotation(job.admin_comment) is None
    }
    marks |= {job_id: _mark_of(jobs[job_id], managed[job_id]) for job_id in start}
    return Actions(
        keep=tuple(keep),
        stop=tuple(job.job_id for job in stop),
        hold=tuple(job.job_id for job in hold),
        start=start,
        cannot=cannot,
        misfits=frozenset(misfits),
        give_back={job.job_id: left[job.job_id] for job in there if job.job_id in left and _is_ours_to_give(job)},
        marks={job_id: mark for job_id, mark in marks.items() if mark is not None and mark != jobs[job_id].admin_comment},
    )


def _is_ours_to_give(job: SlurmJob) -> bool:
    """A managed job that waits on hold waits on a hold of ours; nodes that it asks for, we have named."""
    return job.phase is Phase.WAITING and (job.is_held or bool(job.required_nodes))


def _mark_of(job: SlurmJob, tracked: Tracked) -> str | None:
    return annotated(job.admin_comment, tracked.arrival_seconds, tracked.place)


def _needs_hold(job: SlurmJob) -> bool:
    """As an administrator's hold, what stopped a job can be told from a hold of its user."""
    return not job.is_held or REQUEUED_ON_HOLD in job.description


def _stays(job: SlurmJob, targets: Mapping[str, Target], silent: Collection[str]) -> bool:
    return dict(job.held) == targets.get(job.job_id) or any(node in silent for node in job.held)


def _why_not(target: Target, silent: Collection[str]) -> str:
    return next((f"node {node} does not respond" for node in target if node in silent), "")


def _misfit(target: Target, tracked: Tracked) -> str:
    """Slurm cannot be told an uneven split: asked for 3 GPUs on two nodes, it may give 3 on each."""
    if len(set(target.values())) > 1:
        split = " + ".join(str(count) for _, count in sorted(target.items()))
        return f"there is room for it only as {split} GPUs on {len(target)} nodes, and Slurm cannot be told such a split"
    if tracked.exact_nodes and len(target) != tracked.exact_nodes:
        return f"it must be on {tracked.exact_nodes} nodes (--ntasks-per-node), and there is room for it only on {len(target)}"
    return ""


def cpu_shortages(
    targets: Mapping[str, Target],
    running: Collection[str],
    cpus_per_gpu: Mapping[str, float],
    nodes: Mapping[str, SlurmNode],
    used_cpus: Mapping[str, float],
) -> dict[str, str]:
    """Return {job: why} of those that are to start where jobs that are not managed leave too few CPUs.

    Args:
        targets: where the jobs of the round are to run.
        running: those that run there already.
        cpus_per_gpu: what the jobs need.
        nodes: as Slurm has them now.
        used_cpus: {node: CPUs} of the jobs that are not managed.
    """
    found: dict[str, str] = {}
    for name, used in used_cpus.items():
        asked = {job_id: cpus_per_gpu[job_id] * target[name] for job_id, target in targets.items() if name in target}
        free = nodes[name].cpus - used - sum(asked.values()) if name in nodes and nodes[name].cpus else 0.0
        # Those that ask for most give way: so the fewest have to.
        for job_id in sorted(asked.keys() - running, key=asked.__getitem__, reverse=True):
            if free >= 0:
                break
            free += asked[job_id]
            found[job_id] = f"other jobs leave too few CPUs on node {name}"
    return found


def is_job_id(text: str) -> bool:
    """Say whether this is how commands call a job; nothing else goes into one."""
    first, _, task = text.partition("_")
    return text.isascii() and first.isdecimal() and ("_" not in text or task.isdecimal())


def batch_lines(verb: str, job_ids: Iterable[str]) -> list[str]:
    """Return the lines for scontrol that do the same to many jobs: hold, requeuehold, release."""
    ids = [job_id for job_id in job_ids if is_job_id(job_id)]
    return [f"{verb} {','.join(ids[at : at + MOST_IDS])}" for at in range(0, len(ids), MOST_IDS)]


def annotation_lines(marks: Mapping[str, str]) -> list[str]:
    """Return the lines for scontrol that note in Slurm which jobs are managed: it stays known also if the state here is lost."""
    return [f"update JobId={job_id} AdminComment={mark}" for job_id, mark in marks.items() if is_job_id(job_id)]


def is_as_planned(job: SlurmJob | None, tracked: Tracked) -> bool:
    """Say whether a job waits, and still asks for as many GPUs as it was planned with: its user may have changed it since."""
    if job is None or job.phase is not Phase.WAITING or job.num_gpus != tracked.num_gpus:
        return False
    return len(job.requested) == 1 and all(not kind or is_node_name(kind) for kind in job.requested)


def start_line(job: SlurmJob, target: Target, fewest_cpus: int | None) -> str:
    """Return the line for scontrol that has a waiting job start on these nodes, and on no others.

    On several nodes, GPUs are asked for by node, whatever the request was: only so is the split as it was decided. Slurm 22.05
    never forgets such a request, so a job on one node keeps its own. A type that the job names stays; Slurm accepts another one,
    and then never starts the job. CPUs are spread evenly as well: Slurm would otherwise fill the first node with tasks and leave
    one for the last, and so take CPUs that were meant for other jobs.

    Args:
        job: as Slurm has it now.
        target: {node: GPUs}, the same number on each.
        fewest_cpus: what the job's user asks for on each node (--mincpus), 0 for nothing; None where it is not known, and CPUs stay
            as they are asked for.
    """
    if not (is_job_id(job.job_id) and target and all(map(is_node_name, target))):
        raise ValueError(f"job {job.job_id!r} cannot be sent to {list(target)!r}")
    (count,) = set(target.values())
    # With one number, Slurm refuses more nodes than the job's user asked for.
    line = f"update JobId={job.job_id} NumNodes={len(target)}-{len(target)} ReqNodeList={','.join(sorted(target))}"
    if len(target) > 1 or job.per_node:
        line += _by_node(job, count)
    if fewest_cpus is not None and len(target) > 1:
        fewest_cpus = max(fewest_cpus, job.cpus // len(target))
    return f"{line}{_with_cpus(job, fewest_cpus)} StartTime=now"


def _with_cpus(job: SlurmJob, fewest: int | None) -> str:
    """The part of a line that asks for this many CPUs on each node, if that is to change."""
    if fewest is None or max(1, fewest) == max(1, job.cpus_per_node):
        return ""
    return f" MinCPUsNode={max(1, fewest)}"


def _by_node(job: SlurmJob, count: int) -> str:
    (kind,) = job.requested
    return f" TresPerJob= Gres={f'gpu:{kind}' if kind else 'gpu'}:{count}"


def priority_lines(job_ids: Iterable[str]) -> list[str]:
    """Return the lines for scontrol that put released jobs ahead of all that wait in Slurm's own queue.

    One of those that waits for many nodes would otherwise keep Slurm from starting anything that might delay it.
    """
    return [f"update JobId={job_id} Priority={HIGHEST}" for job_id in job_ids if is_job_id(job_id)]


def restore_lines(jobs: Iterable[SlurmJob], known: Mapping[str, Tracked], most_nodes: int) -> list[str]:
    """Return the lines for scontrol that give jobs on hold back to Slurm, to be started wherever it likes.

    Args:
        jobs: as Slurm has them now.
        known: what their requests were, of those whose requests this program may have changed.
        most_nodes: how many nodes there are, which stands for no limit.
    """
    jobs = [job for job in jobs if is_job_id(job.job_id)]
    touched = [job for job in jobs if job.job_id in known and (job.required_nodes or job.restarts)]
    own = [_own_request(job, known[job.job_id], most_nodes) for job in touched]
    return [*own, *batch_lines("release", (job.job_id for job in jobs))]


def _own_request(job: SlurmJob, tracked: Tracked, most_nodes: int) -> str:
    """The line that undoes `start_line`, as far as Slurm can: where GPUs are asked for by node, they stay so."""
    line = f"update JobId={job.job_id}{_with_cpus(job, tracked.fewest_cpus)} StartTime=now"  # a requeue has put it off
    if not job.required_nodes:
        return line
    is_same = job.num_gpus == tracked.num_gpus and len(job.requested) == 1
    if not is_same or (job.per_node and not tracked.per_node):
        return f"{line} ReqNodeList= NumNodes={job.nodes}-{job.nodes}"  # on another number, it would get other GPUs
    most = tracked.most_nodes or max(most_nodes, tracked.fewest_nodes)
    by_node = _by_node(job, job.num_gpus // tracked.fewest_nodes) if tracked.per_node else ""
    return f"{line} ReqNodeList= NumNodes={tracked.fewest_nodes}-{most}{by_node}"


@dataclass(frozen=True)
class ClusterSnapshot:
    """A reading as this program sees it. standings: whose each job is; refused: {job: why} the scheduler cannot take it;
    let_go: {job: why} of those that wait on a hold of ours and are Slurm's; known: what is known of all jobs that are or were
    managed; notes: what was left out of the reading.
    """

    snapshot: Snapshot
    state: DriverState
    standings: Mapping[str, Eligibility]
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
        return gpus_used(self.others)

    def standing_of(self, job_id: str) -> Eligibility:
        """Return whose a job is; one that the latest decision could place nowhere is Slurm's until another one can."""
        if job_id in self.state.tracked and job_id in self.state.unplanned:
            return Eligibility(Role.LEFT, self.state.unplanned[job_id])
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

    picture: ClusterSnapshot
    begun: Round
    moves: Actions

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


class RoundPlanner:
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
        self.monitor: JobMonitor | None = None

    def picture(self, snapshot: Snapshot) -> ClusterSnapshot:
        """Bring the scheduler up to a reading, and return what is seen. Raises `InputError`."""
        parts = self._known_parts(partition_of(snapshot.nodes.values(), self._settings, self._profile.accelerators))
        state = self._state_for(parts)
        types = {node.name: node.accelerator for node in parts.cluster.nodes}
        self.monitor = JobMonitor(state, self._progress, types, self._log)
        known = state.aside | state.tracked
        where = TypeMatcher(parts.slurm_names, parts.cluster, snapshot.nodes)
        reconciler = Reconciler(state, self._settings, self.monitor, where, self._log)
        reconciler.reconcile(snapshot)
        known |= state.aside | state.tracked
        let_go = {
            job_id: standing.why
            for job_id, standing in reconciler.standings.items()
            if standing.role.is_left_to_slurm and is_held_by_driver(snapshot.jobs[job_id], state.partition, known, state.stopping)
        }
        notes = (*parts.left_out, *snapshot.unreadable)
        return ClusterSnapshot(snapshot, state, reconciler.standings, reconciler.refused, let_go, known, notes)

    def decide(self, picture: ClusterSnapshot) -> Decided:
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
        shortages = cpu_shortages(targets, keeping, cpus, snapshot.nodes, cpus_used(picture.others))
        moves = actions_for(targets, snapshot.jobs, state.tracked, unresponsive_nodes(snapshot.nodes), begun.excluded, shortages)
        return Decided(picture, begun, replace(moves, give_back={**picture.let_go, **moves.give_back}))

    def _note_unplanned(self, picture: ClusterSnapshot, excluded: Mapping[str, str]) -> None:
        """Take note of the jobs that are left to Slurm, and tell of those that were not before, or for another reason."""
        state = picture.state
        left = {job_id: standing.why for job_id, standing in picture.standings.items() if standing.role is Role.LEFT}
        left |= dict(excluded)
        for job_id, why in left.items():
            if state.unplanned.get(job_id) != why:
                self._log("unplanned", job=job_id, why=why)
        state.unplanned = left

    def _known_parts(self, parts: Partition) -> Partition:
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
        return Partition(parts.cluster.restricted_to(kept), kept, (*parts.left_out, *left))

    def _state_for(self, parts: Partition) -> DriverState:
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

    def _new(self, parts: Partition) -> DriverState:
        speeds = Speeds(self._profile)
        return DriverState(self._settings.partition, self._scheduler(parts, speeds), speeds)

    def _scheduler(self, parts: Partition, speeds: Speeds) -> RoundScheduler:
        return RoundScheduler(parts.cluster, speeds.profile, self._policy, **self._options)  # type: ignore[arg-type]

    def _renewed(self, state: DriverState, parts: Partition, why: str) -> DriverState:
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
