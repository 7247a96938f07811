"""Carrying out a round, step by step: stop, wait, send elsewhere, release, wait, compare, give back what is left to Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gavel_py.integrations.slurm.commands import Clock, Commands, read_jobs
from gavel_py.integrations.slurm.decision import (
    Actions,
    annotation_lines,
    batch_lines,
    is_as_planned,
    priority_lines,
    restore_lines,
    start_line,
)
from gavel_py.integrations.slurm.job_roles import parse_comment
from gavel_py.integrations.slurm.parsing import printable
from gavel_py.integrations.slurm.records import Phase, SlurmJob
from gavel_py.integrations.slurm.state import Tracked

FIRST_LOOK, SLOWEST_LOOK = 0.1, 2.0
"""Seconds between two readings while something is waited for."""

PATIENCE_SECONDS = 10.0
"""How long all jobs that are to start wait for all that are to stop; then only those whose nodes are not free do."""

ENDING_SECONDS = 10.0
"""How long Slurm is still waited for when the driver is to end; what is left, the next one finds."""


@dataclass
class Applied:
    """What came of a round. started: as decided; elsewhere: {job: {node: GPUs}}, running, but not as decided; waiting: {job: why},
    those that did not start, and are held again; left: that ended meanwhile; lingering: that did not stop in time; given_back: that
    Slurm may start wherever it likes; sent: that were to start at all; errors: what Slurm said; jobs: the last reading;
    stop_seconds, start_seconds: how long it took.
    """

    kept: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    started: list[str] = field(default_factory=list)
    elsewhere: dict[str, dict[str, int]] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    lingering: list[str] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    jobs: Mapping[str, SlurmJob] = field(default_factory=dict)
    stop_seconds: float = 0.0
    start_seconds: float = 0.0


class Applier:
    """Carries out moves. stop_seconds, start_seconds: how long jobs may take to stop and to start."""

    def __init__(self, commands: Commands, clock: Clock, stop_seconds: float, start_seconds: float) -> None:
        self._commands, self._clock = commands, clock
        self._stop_seconds, self._start_seconds = stop_seconds, start_seconds

    def apply(self, moves: Actions, tracked: Mapping[str, Tracked], *, most_nodes: int, marks: bool = True) -> Applied:
        """Do what `moves` says, and tell what came of it.

        Args:
            moves: what is to be done.
            tracked: what is known of the jobs that it is about.
            most_nodes: how many nodes the partition has.
            marks: whether this account may write AdminComment. Slurm refuses a whole line for one field that it refuses, so marks
                have lines of their own.

        Raises:
            SlurmError: Slurm stops answering.
        """
        done = Applied(kept=moves.keep, stopped=moves.stop, waiting=dict(moves.cannot))
        began = self._clock.now()
        # Without "Incomplete", a job that has ended since it was read would be run again, be it that its user cancelled it.
        stops = [*batch_lines("hold", moves.hold), *batch_lines("requeuehold Incomplete", moves.stop)]
        self._tell([*(annotation_lines(moves.marks) if marks else []), *stops], done)
        jobs, done.sent = self._change(moves, tracked, done)
        done.stop_seconds = self._clock.now() - began
        if done.sent:
            jobs = self._wait(lambda jobs: all(_has_started(jobs.get(job_id)) for job_id in done.sent), self._start_seconds)
        self._compare(moves, jobs, done)
        done.start_seconds = self._clock.now() - began - done.stop_seconds
        self._give_back(moves, tracked, most_nodes, done)
        return done

    def _change(self, moves: Actions, tracked: Mapping[str, Tracked], done: Applied) -> tuple[Mapping[str, SlurmJob], list[str]]:
        """Wait until jobs have stopped, and launch those that are to start; return the last reading, and who was launched.

        Those that take long, as on a node that has just died, keep nobody waiting but who is to have their GPUs.
        """
        touched, sent = {*moves.stop, *moves.start}, list[str]()

        def stopping(jobs: Mapping[str, SlurmJob]) -> list[str]:
            found = [job_id for job_id in touched.difference(sent) if not _can_be_changed(jobs.get(job_id))]
            # One that Slurm has started since it was read is not about to stop.
            return sorted(job_id for job_id in found if job_id in moves.stop or jobs[job_id].phase is not Phase.RUNNING)

        patience = min(PATIENCE_SECONDS, self._stop_seconds)
        jobs = self._wait(lambda jobs: not stopping(jobs), patience)
        slow = stopping(jobs)
        if slow:
            busy = {node for job_id in slow for node in (*tracked[job_id].held, *jobs[job_id].held)}
            free = {job_id: target for job_id, target in moves.start.items() if not busy & target.keys()}
            sent += self._launch(free, moves.stop, jobs, tracked, done)[1]
            jobs = self._wait(lambda jobs: not stopping(jobs), self._stop_seconds - patience)
        done.lingering = stopping(jobs)
        left = {job_id: target for job_id, target in moves.start.items() if job_id not in sent}
        jobs, others = self._launch(left, [job_id for job_id in moves.stop if job_id not in sent], jobs, tracked, done)
        return jobs, [*sent, *others]

    def _launch(
        self,
        targets: Mapping[str, Mapping[str, int]],
        stopped: Iterable[str],
        jobs: Mapping[str, SlurmJob],
        tracked: Mapping[str, Tracked],
        done: Applied,
    ) -> tuple[Mapping[str, SlurmJob], list[str]]:
        """Send jobs where they are to run, and release those that Slurm has really changed."""
        # As an administrator's hold, it can be told from a hold of the job's user.
        self._tell(batch_lines("hold", (job_id for job_id in stopped if _is_waiting(jobs.get(job_id)))), done)
        ready = {job_id: target for job_id, target in targets.items() if is_as_planned(jobs.get(job_id), tracked[job_id])}
        self._tell([start_line(jobs[job_id], target, tracked[job_id].fewest_cpus) for job_id, target in ready.items()], done)
        if ready:
            jobs = read_jobs(self._commands)
        sent = [job_id for job_id, target in ready.items() if _is_sent(jobs.get(job_id), target)]
        self._tell([*batch_lines("release", sent), *priority_lines(sent)], done)
        return jobs, sent

    def _compare(self, moves: Actions, jobs: Mapping[str, SlurmJob], done: Applied) -> None:
        """Compare what runs with what was decided; what has not started is held again."""
        for job_id, target in moves.start.items():
            job = jobs.get(job_id)
            if job is None or job.phase.is_over:
                done.left.append(job_id)
            elif job.phase is Phase.RUNNING and dict(job.held) == dict(target):
                done.started.append(job_id)
            elif job.phase is Phase.RUNNING and job.held and job_id not in done.lingering:
                done.elsewhere[job_id] = dict(job.held)
            else:
                done.waiting[job_id] = _why_waiting(job, target)
        back = [job_id for job_id in done.waiting if job_id in jobs and _is_waiting(jobs[job_id]) and not jobs[job_id].is_held]
        if back:
            self._tell(batch_lines("hold", back), done)
            jobs = read_jobs(self._commands)
            self._settle(moves, jobs, done)
        done.jobs = jobs

    def _settle(self, moves: Actions, jobs: Mapping[str, SlurmJob], done: Applied) -> None:
        """Some may have started just before they were held again."""
        running = {job_id: jobs[job_id] for job_id in done.waiting if job_id in jobs and jobs[job_id].phase is Phase.RUNNING}
        for job_id, job in running.items():
            if not job.held:
                continue  # it is about to start; the next reading tells where
            del done.waiting[job_id]
            if dict(job.held) == dict(moves.start.get(job_id, {})):
                done.started.append(job_id)
            else:
                done.elsewhere[job_id] = dict(job.held)

    def _give_back(self, moves: Actions, tracked: Mapping[str, Tracked], most_nodes: int, done: Applied) -> None:
        """Let Slurm have what is left to it; last of all, so that it takes no GPUs that were meant for others."""
        found = [done.jobs[job_id] for job_id in moves.give_back if _is_waiting(done.jobs.get(job_id))]
        jobs = [job for job in found if not parse_comment(job.comment).holds]
        self._tell(restore_lines(jobs, tracked, most_nodes), done)
        done.given_back = [job.job_id for job in jobs]

    def _tell(self, lines: list[str], done: Applied) -> None:
        """Give scontrol these lines; it goes on after one that it refuses, and says so."""
        if not lines:
            return
        answer = self._commands.run(["scontrol"], "\n".join([*lines, "quit"]) + "\n")
        done.errors += [printable(line) for line in answer.err.splitlines() if line.strip()]

    def _wait(self, is_done: Callable[[Mapping[str, SlurmJob]], bool], seconds: float) -> Mapping[str, SlurmJob]:
        """Read until it is done, or this time has passed; return the last reading."""
        end, pause, goes_on = self._clock.now() + seconds, FIRST_LOOK, True
        while True:
            jobs = read_jobs(self._commands)
            if is_done(jobs) or self._clock.now() >= end:
                return jobs
            if goes_on and not self._clock.sleep(pause):
                end, goes_on = min(end, self._clock.now() + ENDING_SECONDS), False
            pause = min(SLOWEST_LOOK, pause * 1.5)


def _is_waiting(job: SlurmJob | None) -> bool:
    return job is not None and job.phase is Phase.WAITING


def _can_be_changed(job: SlurmJob | None) -> bool:
    return job is None or job.phase is Phase.WAITING or job.phase.is_over


def _is_sent(job: SlurmJob | None, target: Mapping[str, int]) -> bool:
    """Say whether Slurm has really changed it, and its user does not hold it; released otherwise, it would start anywhere."""
    if job is None or set(job.required_nodes) != set(target) or parse_comment(job.comment).holds:
        return False
    return job.nodes == len(target) and job.num_gpus == sum(target.values())


def _has_started(job: SlurmJob | None) -> bool:
    return job is None or job.phase is not Phase.WAITING


def _why_waiting(job: SlurmJob, target: Mapping[str, int]) -> str:
    if job.phase is not Phase.WAITING:
        return f"it is {' '.join(sorted(job.words)).lower()}"
    if job.num_gpus != sum(target.values()):
        return "its user has changed it meanwhile"
    if not _is_sent(job, target):
        return "Slurm did not take the nodes that it was given"
    return f"Slurm has not started it: {printable(job.reason)}"
