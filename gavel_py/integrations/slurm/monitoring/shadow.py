"""A driver that observes a live partition without changing it: it decides for a virtual copy and records what Slurm does meanwhile.

Nodes, arrivals and requests are those of the live partition. `VirtualPartition` carries out the driver's decisions: its jobs start,
stop and end according to the throughputs of the profile, and the driver reads its jobs instead of those in Slurm's queue. A second
reconciler follows the live partition; it provides the real schedule and the work of each job that has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.actions import Actions
from gavel_py.integrations.slurm.apply import Applied
from gavel_py.integrations.slurm.beacon import DEAD_SECONDS, signs_of_life
from gavel_py.integrations.slurm.client.commands import SlurmCommands, WallClock
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob, SlurmNode, Snapshot, Usage
from gavel_py.integrations.slurm.decision import ClusterSnapshot, Decided, RoundPlanner
from gavel_py.integrations.slurm.driver import SlurmDriver
from gavel_py.integrations.slurm.job_mapping import DOWN, gpus_used
from gavel_py.integrations.slurm.job_roles import Role, eligibility_of
from gavel_py.integrations.slurm.monitoring.event_log import ACTUAL, STAY_EVENTS, warn
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.speeds import Progress
from gavel_py.integrations.slurm.state import SHADOW, DriverState, Tracked, save_state
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault
from gavel_py.policies import Policy
from gavel_py.throughput_profiles import ThroughputProfile

LIVE = "slurm.json"
"""Name of the state file of the reconciler that follows the live partition."""

VIRTUAL = SnapshotFormat("gavel-py slurm shadow", 1, "a virtual partition written by gavel slurm run --shadow")

Jobs = Mapping[str, SlurmJob]


@dataclass
class VirtualJob:
    """A job in the virtual partition.

    Attributes:
        job: The job as Slurm last listed it while it waited.
        held: {node: GPUs} that it has here.
        start_seconds: When it got these GPUs.
        on_hold: Whether the driver has put it on hold.
        marks: (time, steps done, steps/s before) of each stop.
        outcome: How it ended in Slurm; None while Slurm still lists it as live.
        work: Steps that it had done in Slurm by then, at the speeds of the profile; None until then.
        end_seconds: When it ended here; None before.
        is_left: Whether the decision leaves it to Slurm; it then has the state and the GPUs that it has in Slurm.
    """

    job: SlurmJob
    held: dict[str, int] = field(default_factory=dict)
    start_seconds: float = 0.0
    on_hold: bool = False
    marks: list[tuple[float, float, float]] = field(default_factory=list)
    outcome: Phase | None = None
    work: float | None = None
    end_seconds: float | None = None
    is_left: bool = False

    def listed(self, live: SlurmJob | None) -> SlurmJob:
        """Return the job as the driver sees it; live: the job as Slurm lists it now."""
        comment = self.job.comment if live is None else live.comment
        job = replace(self.job, held={}, used={}, comment=comment, start_seconds=None, end_seconds=self.end_seconds)
        if self.end_seconds is not None:
            return replace(job, phase=self.outcome or Phase.FINISHED, states=frozenset())
        if self.is_left and live is not None:
            return live
        if self.held:
            used = {node: Usage(gpus) for node, gpus in self.held.items()}
            job = replace(job, held=dict(self.held), used=used, start_seconds=self.start_seconds)
            return replace(job, phase=Phase.RUNNING, states=frozenset({"RUNNING"}))
        job = replace(job, phase=Phase.WAITING, states=frozenset({"PENDING"}), description="")
        if live is not None and live.phase is Phase.WAITING:
            if live.is_held:  # by its user or an administrator, since a shadow holds no jobs in Slurm
                return replace(job, priority=0.0, reason="JobHeldUser")
        else:
            job = replace(job, dependency="", eligible_seconds=None)
        return replace(job, priority=0.0 if self.on_hold else 1.0, reason="JobHeldAdmin" if self.on_hold else "Priority")

    def reached(self, work: float, tracked: Tracked, speed: float) -> float | None:
        """Return when the job has done this work, given its current speed; None if it waits and has not done it yet."""
        for seconds, steps, before in self.marks:
            if steps >= work and before > 0:
                return seconds - (steps - work) / before
        if not self.held or speed <= 0:
            return None
        return max(self.start_seconds, max(tracked.seen_seconds, self.start_seconds) + (work - tracked.steps_done) / speed)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain data."""
        job = asdict(replace(self.job, held={}, used={}, states=frozenset()))
        return {**asdict(self), "job": job | {"states": []}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> VirtualJob:
        """Return the job that `to_dict` converted to plain data."""
        job = dict(document["job"])
        for name, kind in (("phase", Phase), ("states", frozenset), ("required_nodes", tuple), ("obstacles", tuple)):
            job[name] = kind(job[name])
        outcome = document["outcome"]
        marks = [(seconds, steps, speed) for seconds, steps, speed in document["marks"]]
        changed = {"job": SlurmJob(**job), "marks": marks, "outcome": None if outcome is None else Phase(outcome)}
        return cls(**{**document, **changed})


@dataclass
class VirtualPartition:
    """The jobs that the driver would manage, in the state they would have under its decisions.

    Attributes:
        default_steps: Total steps of jobs that specify none; None if unknown.
        jobs: {job_id: job}.
        is_new: Whether no job has been admitted yet.
    """

    default_steps: float | None
    jobs: dict[str, VirtualJob] = field(default_factory=dict)
    is_new: bool = True

    @classmethod
    def load(cls, path: Path | None, default_steps: float | None) -> VirtualPartition:
        """Return the saved partition, or a new one if there is none. Raises `InputError`."""
        if path is None or not path.exists():
            return cls(default_steps)
        document = VIRTUAL.read(path)
        with damage_as_fault(path):
            return cls(
                default_steps, {job_id: VirtualJob.from_dict(each) for job_id, each in document["jobs"].items()}, is_new=False
            )

    def save(self, path: Path) -> None:
        """Write the partition to a file. Raises `InputError`."""
        VIRTUAL.write(path, {"jobs": {job_id: each.to_dict() for job_id, each in self.jobs.items()}})

    def admit(self, jobs: Jobs, managed: Collection[str]) -> None:
        """Add new managed jobs and update the others. On the first call, jobs that run in Slurm also run here."""
        for job_id in managed:
            job = jobs[job_id]
            if job_id not in self.jobs:
                held = dict(job.held) if self.is_new and job.phase is Phase.RUNNING else {}
                self.jobs[job_id] = VirtualJob(job, held, job.start_seconds or 0.0)
            elif job.phase is Phase.WAITING:
                self.jobs[job_id].job = job
        self.is_new = False

    def note_end(self, job_id: str, job: SlurmJob | None, work: float, now: float) -> None:
        """Record how a job ended in Slurm. job: None if Slurm no longer lists it; work: the steps that it had done."""
        each = self.jobs[job_id]
        if job is None:
            del self.jobs[job_id]  # whether it has finished is unknown
            return
        each.outcome, each.work = job.phase, work
        if (job.phase is Phase.CANCELLED or each.is_left) and each.end_seconds is None:
            each.end_seconds, each.held = min(now, job.end_seconds or now), {}

    def leave_to_slurm(self, unplanned: Container[str], jobs: Jobs) -> None:
        """Set the jobs that the decision leaves to Slurm, and copy their GPUs and start times from Slurm."""
        for job_id, each in self.jobs.items():
            each.is_left = job_id in unplanned and each.outcome is None and each.end_seconds is None
            if each.is_left and job_id in jobs:
                each.held, each.start_seconds = dict(jobs[job_id].held), jobs[job_id].start_seconds or 0.0

    def forget(self, listed: Jobs) -> None:
        """Drop jobs that have ended here and are no longer listed by Slurm."""
        self.jobs = {i: each for i, each in self.jobs.items() if each.end_seconds is None or i in listed}

    def end_jobs(self, now: float, state: DriverState, types: Mapping[str, str]) -> None:
        """End the jobs that have completed their work; types: {node: accelerator}.

        The work of a job is what it did in Slurm if it has ended there, otherwise its specified steps. A job without specified
        steps cannot end here before it has ended in Slurm.
        """
        for job_id, each in self.jobs.items():
            tracked = state.tracked.get(job_id)
            if tracked is None or each.is_left or each.end_seconds is not None:
                continue
            work = (tracked.total_steps or self.default_steps) if each.work is None else each.work
            end = None if work is None else each.reached(work, tracked, self._speed(each, tracked, state, types))
            if end is not None and end <= now:
                each.end_seconds, each.held = end, {}

    def stop(self, job_id: str, now: float, state: DriverState | None, types: Mapping[str, str]) -> None:
        """Stop a job and record its progress."""
        each, tracked = self.jobs[job_id], None if state is None else state.tracked.get(job_id)
        if tracked is not None and state is not None:
            speed = self._speed(each, tracked, state, types)
            steps = tracked.steps_done + speed * max(0.0, now - max(tracked.seen_seconds, each.start_seconds))
            each.marks.append((now, steps, speed))
        each.held = {}

    def start(self, job_id: str, target: Mapping[str, int], now: float, state: DriverState, types: Mapping[str, str]) -> None:
        """Start a job. If it has run before, it loses the work of `restart_seconds`."""
        each, tracked = self.jobs[job_id], state.tracked[job_id]
        each.held, each.start_seconds, each.on_hold = dict(target), now, False
        if tracked.starts:
            lost = state.scheduler.restart_seconds * self._speed(each, tracked, state, types)
            tracked.steps_done = max(0.0, tracked.steps_done - lost)

    def displaced(self, nodes: Mapping[str, SlurmNode], used: Mapping[str, int]) -> Iterator[str]:
        """Yield the jobs that lose their GPUs because a node is down or jobs left to Slurm have taken them.

        used: {node: GPUs of jobs that are left to Slurm}. On a node with several jobs, those that started last lose their GPUs.
        """
        free = {name: 0 if node.states & DOWN else sum(node.gpus.values()) - used.get(name, 0) for name, node in nodes.items()}
        planned = [(job_id, each) for job_id, each in self.jobs.items() if not each.is_left]
        for job_id, each in sorted(planned, key=lambda item: item[1].start_seconds):
            if any(free.get(node, 0) < gpus for node, gpus in each.held.items()):
                yield job_id
                continue
            for node, gpus in each.held.items():
                free[node] -= gpus

    def listed(self, jobs: Jobs) -> dict[str, SlurmJob]:
        """Return Slurm's jobs, with the jobs of this partition in their virtual state."""
        return {**jobs, **{job_id: each.listed(jobs.get(job_id)) for job_id, each in self.jobs.items()}}

    @staticmethod
    def nodes(nodes: Mapping[str, SlurmNode], jobs: Jobs) -> dict[str, SlurmNode]:
        """Return Slurm's nodes with the resources that these jobs use; jobs: from `listed`."""
        used: dict[str, Usage] = {}
        for job in jobs.values():
            for node, each in job.used.items():
                used[node] = used.get(node, Usage()).plus(each)
        return {name: replace(node, used=used.get(name, Usage())) for name, node in nodes.items()}

    @staticmethod
    def _speed(each: VirtualJob, tracked: Tracked, state: DriverState, types: Mapping[str, str]) -> float:
        accelerator = types.get(next(iter(each.held), ""), "")
        gpus = sum(each.held.values()) or tracked.num_gpus
        return state.speeds.speed(tracked.job_type, gpus, accelerator) if accelerator else 0.0


class SlurmShadow(SlurmDriver):
    """Shows what a `SlurmDriver` would do on a live partition, without changing anything there.

    Its log, queue and figures are those of a driver whose decisions were carried out; the log also records what Slurm does.
    `slurm_comparison` compares the two schedules. A shadow only reads `sinfo` and `squeue`, which every user may do, and writes
    only to its own directory.

    Jobs that are running when the shadow starts run in both schedules. From then on, jobs arrive as in Slurm and progress at the
    speeds of the profile. A job ends when its work is done. If it has already ended in Slurm, its work is what it did there, at the
    profile's speed for the type on which it ran; otherwise it is the number of steps that it specifies. A job that specifies no
    steps holds its GPUs at least until it has ended in Slurm. A job that is cancelled in Slurm is cancelled here too. The GPUs of
    jobs that are left to Slurm are not available to the shadow.

    Args:
        settings: The settings of the site. A shadow releases no jobs when it ends.
        profile: Throughputs by job type.
        policy: A name or a `Policy`.
        directory: The directory for the state and the log.
        commands: Replacement of Slurm's commands, for tests.
        clock: Replacement of the system clock, for tests.
        **options: As for `SlurmDriver`. Without `restart_seconds`, a restart costs 10 s.

    Raises:
        InputError: An argument is invalid.
    """

    is_shadow = True

    def __init__(
        self,
        settings: SlurmSettings,
        profile: ThroughputProfile,
        policy: str | Policy = "max_min_fairness",
        *,
        directory: str | Path | None = None,
        commands: SlurmCommands | None = None,
        clock: WallClock | None = None,
        **options: float | None,
    ) -> None:
        settings = replace(settings, beacon=False, on_exit="leave", on_failure="retry", wall_limit="start")
        given: dict[str, Any] = options
        super().__init__(settings, profile, policy, directory=directory, commands=commands, clock=clock, **given)
        saved, path = (None if self._directory is None else self._directory / name for name in (SHADOW, LIVE))
        self._partition = VirtualPartition.load(saved, settings.default_steps)
        self._live = RoundPlanner(self.settings, profile, self.policy, {}, path, Progress(), self._log_live)
        self._jobs: Jobs = {}
        self._nodes: Mapping[str, SlurmNode] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._log("shadow")
        with suppress(SlurmError):  # the first round reports it
            for sign in signs_of_life(self._commands, self.settings.partitions):
                if abs(self._clock.machine_seconds() - sign.seconds) < DEAD_SECONDS:
                    text = f"a driver manages partition {','.join(sorted(sign.partitions))} ({sign.origin})"
                    warn(f"{text}; a shadow is for partitions without one, and may take its holds for those of users")
        return self

    def release(self) -> None:
        """Do nothing: a shadow holds no jobs."""

    def _prepare(self) -> None:
        pass  # a shadow needs no rights and gives no sign of life

    def _read(self) -> Snapshot:
        """Return the virtual partition as a reading of Slurm."""
        for planner in (self._planner, self._live):
            planner.load()
        snapshot, partition, known = super()._read(), self._partition, self._known
        state = self._live.picture(snapshot).state
        state.forget_departed()
        self._note_ends(snapshot.jobs, known)
        partition.admit(snapshot.jobs, state.tracked)
        self._nodes = snapshot.nodes
        jobs = self._listed()
        return replace(snapshot, nodes=partition.nodes(snapshot.nodes, jobs), jobs=jobs)

    def _read_jobs(self) -> Jobs:
        jobs, known, now = super()._read_jobs(), self._known, self._clock.now()
        state, reconciler = self._live.state, self._live.reconciler
        if state is None or reconciler is None:
            return jobs
        before = state.turnover
        reconciler.update_jobs(jobs, now)
        self._note_ends(jobs, known)
        if state.turnover != before:
            self._try_to_save()
        # New jobs wait for the next decision here, even if Slurm has started them.
        left = {job_id for job_id, each in reconciler.roles.items() if each.role.is_left_to_slurm}
        new = [i for i in jobs.keys() - self._partition.jobs.keys() - left if not jobs[i].phase.is_over]
        new = [i for i in new if eligibility_of(jobs[i], self.settings.partitions, now).role is Role.MANAGED]
        return {**self._listed(new), **{job_id: VirtualJob(jobs[job_id]).listed(jobs[job_id]) for job_id in new}}

    @property
    def _known(self) -> dict[str, Tracked]:
        """The records of jobs in the live partition."""
        return {} if self._live.state is None else self._live.state.aside | self._live.state.tracked

    def _note_ends(self, jobs: Jobs, known: Mapping[str, Tracked]) -> None:
        """Record the jobs that have ended in Slurm; known: {job: its record before this reading}."""
        partition, self._jobs = self._partition, jobs
        for job_id, each in list(partition.jobs.items()):
            job, tracked = jobs.get(job_id), known.get(job_id)
            if each.outcome is None and (job is None or job.phase.is_over):
                steps = 0.0 if tracked is None else tracked.steps_done
                partition.note_end(job_id, job, steps, self._clock.now())
                self._log("work", job=job_id, steps=steps, given=None if tracked is None else tracked.total_steps)
        partition.forget(jobs)

    def _listed(self, new: Collection[str] = ()) -> dict[str, SlurmJob]:
        """Let jobs end or lose their GPUs, and return all jobs. new: jobs that the partition is about to admit."""
        partition, state, now = self._partition, self.state, self._clock.now()
        if state is not None:
            partition.end_jobs(now, state, self._types)
            partition.leave_to_slurm(state.unplanned, self._jobs)
        here = {job_id for job_id, each in partition.jobs.items() if not each.is_left}.union(new)
        others = [job for job_id, job in self._jobs.items() if job_id not in here]
        for job_id in list(partition.displaced(self._nodes, gpus_used(others))):
            partition.stop(job_id, now, state, self._types)
        return partition.listed(self._jobs)

    @property
    def _types(self) -> Mapping[str, str]:
        """{node: accelerator}."""
        return {} if self._live.reconciler is None else self._live.reconciler.types

    def _decide(self, picture: ClusterSnapshot) -> Decided:
        picture.state.pending, picture.state.sums = set(), {}  # virtual jobs provide no measurements
        return super()._decide(picture)

    def _apply(self, picture: ClusterSnapshot, actions: Actions) -> Applied:
        """Stop and start jobs of the virtual partition."""
        partition, now, state, types = self._partition, self._clock.now(), picture.state, self._types
        for job_id in actions.stop:
            partition.stop(job_id, now, state, types)
        for job_id in (*actions.hold, *actions.stop):
            partition.jobs[job_id].on_hold = True
        for job_id, target in actions.start.items():
            partition.start(job_id, target, now, state, types)
        started, waiting = list(actions.start), dict(actions.cannot)
        return Applied(kept=actions.keep, stopped=actions.stop, started=started, waiting=waiting, jobs=self._listed())

    def _save(self) -> None:
        if self._directory is not None and self._live.state is not None:
            self._partition.save(self._directory / SHADOW)
            save_state(self._directory / LIVE, self._live.state)
            super()._save()

    def _log_live(self, event: str, seconds: float | None = None, **fields: Any) -> None:
        if event in STAY_EVENTS:
            self._log(f"{ACTUAL}{event}", seconds=seconds, **fields)
