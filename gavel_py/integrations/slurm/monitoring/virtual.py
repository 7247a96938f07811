"""A virtual partition: jobs that start, stop and end by the throughputs of the profile, in the form of Slurm's listing."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from gavel_py.integrations.slurm.client.records import NodeUsage, Phase, SlurmJob, SlurmNode
from gavel_py.integrations.slurm.job_mapping import DOWN
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.integrations.slurm.state import DriverState
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault

VIRTUAL = SnapshotFormat("gavel-py slurm shadow", 1, "a virtual partition written by gavel slurm run --shadow")

Jobs = Mapping[str, SlurmJob]

MIN_RUNS, MAX_RUNS = 10, 200
"""The loading time of jobs is estimated from so many jobs at least, and from the latest ones."""


class StartCosts(NamedTuple):
    """What starts cost, in seconds: until other jobs have stopped, until a job runs, and until it has loaded."""

    stop: float
    start: float
    loading: float

    def within(self, seconds: float) -> StartCosts:
        """Return the costs of which a start after a stop takes this time in all."""
        start = min(self.start, seconds)
        stop = min(self.stop, seconds - start)
        return StartCosts(stop, start, seconds - start - stop)


def loading_of(runs: list[tuple[float, float]]) -> float | None:
    """Return the loading time of jobs, from (run time expected from steps and speeds, actual run time); None for too few jobs.

    It is the intercept of the Theil-Sen line, and at most the shortest run: a wrong profile changes the slope.
    """
    if len(runs) < MIN_RUNS:
        return None
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(runs, 2) if abs(b[0] - a[0]) > 0.01 * max(a[0], b[0])]
    slope = median(slopes) if slopes else 1.0
    return max(0.0, min(median(run - slope * expected for expected, run in runs), *(run for _, run in runs)))


@dataclass
class VirtualJob:
    """A job in the virtual partition.

    Attributes:
        job: The job as Slurm last listed it while it waited.
        held: {node: GPUs} that it has here.
        start_seconds: When it got these GPUs.
        marks: (time, steps done, steps/s before) of each stop.
        missing_steps: Steps that count as done but are not, since starts and loading took their time.
        is_inherited: Whether it was running in Slurm when the shadow began, and has loaded.
        outcome: How it ended in Slurm; None while Slurm still lists it as live.
        work: Steps that it had done in Slurm by then, at the speeds of the profile; None until then.
        end_seconds: When it ended here; None before.
        is_left: Whether the decision leaves it to Slurm; it then has the state and the GPUs that it has in Slurm.
        lowered_seconds: By how much its starts have lowered its time limit.
        is_out_of_time: Whether it ended here because it had reached its time limit.
    """

    job: SlurmJob
    held: dict[str, int] = field(default_factory=dict)
    start_seconds: float = 0.0
    marks: list[tuple[float, float, float]] = field(default_factory=list)
    missing_steps: float = 0.0
    is_inherited: bool = False
    outcome: Phase | None = None
    work: float | None = None
    end_seconds: float | None = None
    is_left: bool = False
    lowered_seconds: float = 0.0
    is_out_of_time: bool = False

    def listed(self, live: SlurmJob | None) -> SlurmJob:
        """Return the job as the driver sees it; live: the job as Slurm lists it now."""
        comment = self.job.comment if live is None else live.comment
        job = replace(self.job, held={}, used={}, comment=comment, start_seconds=None, end_seconds=self.end_seconds)
        job = replace(job, time_limit_seconds=self._limit(live))
        if self.end_seconds is not None:
            phase = Phase.FAILED if self.is_out_of_time else self.outcome or Phase.FINISHED
            return replace(job, phase=phase, states=frozenset())
        if self.is_left and live is not None:
            return live
        if self.held:
            used = {node: NodeUsage(gpus) for node, gpus in self.held.items()}
            job = replace(job, held=dict(self.held), used=used, start_seconds=self.start_seconds)
            return replace(job, phase=Phase.RUNNING, states=frozenset({"RUNNING"}))
        job = replace(job, phase=Phase.WAITING, states=frozenset({"PENDING"}), description="")
        if live is not None and live.phase is Phase.WAITING:
            if live.is_held:
                return replace(job, priority=0.0, reason="JobHeldUser")
        else:
            job = replace(job, dependency="", eligible_seconds=None)
        return replace(job, priority=1.0, reason="Priority")

    def _limit(self, live: SlurmJob | None) -> float | None:
        limit = (self.job if live is None else live).time_limit_seconds
        return None if limit is None else max(0.0, limit - self.lowered_seconds)

    def latest_end(self, live: SlurmJob | None) -> float:
        """Return the time at which the job reaches its time limit if it continues to run; live: as for `listed`."""
        limit = self._limit(live)
        return math.inf if limit is None or not self.held else self.start_seconds + limit

    def reached(self, work: float, tracked: Tracked, speed: float) -> float | None:
        """Return when the job has done this work, given its current speed; None if it waits and has not done it yet."""
        for seconds, steps, before in self.marks:
            if steps >= work and before > 0:
                return seconds - (steps - work) / before
        if not self.held or speed <= 0:
            return None
        left = work + self.missing_steps - tracked.steps_done
        return max(self.start_seconds, max(tracked.seen_seconds, self.start_seconds) + left / speed)

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
        runs: As for `loading_of`, of the latest jobs that have finished in Slurm.
        is_new: Whether no job has been admitted yet.
    """

    default_steps: float | None
    jobs: dict[str, VirtualJob] = field(default_factory=dict)
    runs: list[tuple[float, float]] = field(default_factory=list)
    is_new: bool = True

    @classmethod
    def load(cls, path: Path | None, default_steps: float | None) -> VirtualPartition:
        """Return the saved partition, or a new one if there is none. Raises `InputError`."""
        if path is None or not path.exists():
            return cls(default_steps)
        document = VIRTUAL.read(path)
        with damage_as_fault(path):
            jobs = {job_id: VirtualJob.from_dict(each) for job_id, each in document["jobs"].items()}
            return cls(default_steps, jobs, [(expected, run) for expected, run in document.get("runs", ())], is_new=False)

    def save(self, path: Path) -> None:
        """Write the partition to a file. Raises `InputError`."""
        VIRTUAL.write(path, {"jobs": {job_id: each.to_dict() for job_id, each in self.jobs.items()}, "runs": self.runs})

    def admit(self, jobs: Jobs, managed: Collection[str]) -> None:
        """Add new managed jobs and update the others. On the first call, jobs that run in Slurm also run here."""
        for job_id in managed:
            job = jobs[job_id]
            if job_id not in self.jobs:
                held = dict(job.held) if self.is_new and job.phase is Phase.RUNNING else {}
                self.jobs[job_id] = VirtualJob(job, held, job.start_seconds or 0.0, is_inherited=bool(held))
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

    def end_jobs(self, now: float, state: DriverState, types: Mapping[str, str], jobs: Jobs) -> None:
        """End the jobs that have completed their work or reached their time limits; types: {node: accelerator}.

        The work of a job is what it did in Slurm if it has ended there, otherwise its specified steps. A job without specified
        steps cannot end here before it has ended in Slurm, since only then is it known whether it would have reached its limit.
        """
        for job_id, each in self.jobs.items():
            tracked = state.tracked.get(job_id)
            if tracked is None or each.is_left or each.end_seconds is not None:
                continue
            work = (tracked.total_steps or self.default_steps) if each.work is None else each.work
            if work is None:
                continue
            end, latest = each.reached(work, tracked, self._speed(each, tracked, state, types)), each.latest_end(jobs.get(job_id))
            is_out_of_time = latest < (math.inf if end is None else end)
            end = latest if is_out_of_time else end
            if end is not None and end <= now:
                each.end_seconds, each.held, each.is_out_of_time = end, {}, is_out_of_time

    def stop(self, job_id: str, now: float, state: DriverState | None, types: Mapping[str, str]) -> None:
        """Stop a job and record its progress."""
        each, tracked = self.jobs[job_id], None if state is None else state.steered.get(job_id)
        if tracked is not None and state is not None:
            speed = self._speed(each, tracked, state, types)
            steps = tracked.steps_done + speed * max(0.0, now - max(tracked.seen_seconds, each.start_seconds))
            # A job that has not loaded yet has done no steps, but has lost none either.
            each.missing_steps = min(each.missing_steps, steps - (each.marks[-1][1] if each.marks else 0.0))
            each.marks.append((now, steps - each.missing_steps, speed))
        each.held = {}

    def start(
        self, job_id: str, target: Mapping[str, int], now: float, lost: float, state: DriverState, types: Mapping[str, str]
    ) -> None:
        """Start a job, which does no steps for the `lost` seconds."""
        each, tracked = self.jobs[job_id], state.tracked[job_id]
        each.held, each.start_seconds = dict(target), now
        each.missing_steps += lost * self._speed(each, tracked, state, types)

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
        used: dict[str, NodeUsage] = {}
        for job in jobs.values():
            for node, each in job.used.items():
                used[node] = used.get(node, NodeUsage()).plus(each)
        return {name: replace(node, used=used.get(name, NodeUsage())) for name, node in nodes.items()}

    @staticmethod
    def _speed(each: VirtualJob, tracked: Tracked, state: DriverState, types: Mapping[str, str]) -> float:
        accelerator = types.get(next(iter(each.held), ""), "")
        gpus = sum(each.held.values()) or tracked.num_gpus
        return state.speeds.speed(tracked.job_type, gpus, accelerator) if accelerator else 0.0
