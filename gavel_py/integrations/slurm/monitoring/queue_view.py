"""The state of each job and why it waits, in a file beside the state of the driver for all users to read.

The driver writes the file after rounds, and between them when a reading of the queue differs. Its time of modification is that of
the latest reading. If Slurm hides jobs from other users (`PrivateData=jobs`), so does the directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavel_py.errors import Fault, InputError, SlurmError
from gavel_py.integrations.slurm.actions import reason_in, with_reason
from gavel_py.integrations.slurm.apply import Applied, annotation_lines
from gavel_py.integrations.slurm.client.commands import SlurmCommands, WallClock, hides_jobs, read_jobs
from gavel_py.integrations.slurm.client.notation import printable
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from gavel_py.integrations.slurm.job_roles import Role, parse_annotation
from gavel_py.integrations.slurm.monitoring.event_log import warn
from gavel_py.integrations.slurm.monitoring.metrics import Metrics
from gavel_py.io import reading
from gavel_py.io.names import natural_key
from gavel_py.io.writing import write_atomic
from gavel_py.scheduling import Wait

if TYPE_CHECKING:
    from gavel_py.integrations.slurm.decision import ClusterSnapshot, Decided
    from gavel_py.integrations.slurm.records import Tracked
    from gavel_py.problem.job import Job

QUEUE = "queue.json"
"""Name of the file in the directory of a driver."""


EXPLAINED = ("waiting", str(Role.ASIDE))
"""States of jobs whose AdminComment has the reason; for other waiting jobs, Slurm has one."""

DEAD_SECONDS = 300.0
"""A driver that has written nothing for this long counts as dead; its longest step (stops and starts) takes less."""

MAX_NAMED = 10
"""Jobs that a message names at most."""

MAX_REASONS = 100
"""Number of reasons written to Slurm from one round to the next."""


@dataclass(frozen=True)
class SlurmQueuedJob:
    """A job of the partition.

    Attributes:
        job_id: Its id in Slurm.
        user: Its user.
        tenant: Its account, or its user.
        name: Its name.
        gpus: GPUs that it holds, or requests while it waits.
        state: "running", "waiting", or how the driver treats it: "set aside", "left to Slurm", "not managed".
        reason: Why it waits or is not managed, as a clause; "" if it runs.
        nodes: {node: GPUs} that it holds.
        share: Part of the time that the policy promises it; None if it is not managed.
        expected_seconds: About when it starts, in seconds since 1970; None if it runs or nothing is known.
        partition: Its partition, or several, separated by commas.
        gpu_counts: The numbers of GPUs among which the driver chooses; empty if it does not choose.
        most_gpus: The largest of them for which limits of accounts and QOS leave room.
        gpus_per_node: GPUs on each node, 0 if the driver chooses this number too.
    """

    job_id: str
    user: str
    tenant: str
    name: str
    gpus: int
    state: str
    reason: str
    nodes: dict[str, int] = field(default_factory=dict)
    share: float | None = None
    expected_seconds: float | None = None
    partition: str = ""
    gpu_counts: tuple[int, ...] = ()
    most_gpus: int = 0
    gpus_per_node: int = 0


def queued_jobs(decided: Decided, applied: Applied) -> Iterator[SlurmQueuedJob]:
    """Yield the jobs of the partition, as they were after a round or a later reading (`applied.jobs`)."""
    picture, scheduler = decided.picture, decided.picture.state.scheduler
    allocation, backoffs = scheduler.allocation, scheduler.backoffs
    shares: dict[str, float] = {}
    if allocation is not None:
        shares = dict(zip(allocation.job_ids, allocation.time_fractions.sum(axis=1).tolist(), strict=True))
    planned = {job.job_id: job for job in scheduler.jobs if job.is_elastic}
    tracked = picture.state.tracked
    new = {i: str(Wait.NEW) for i, each in tracked.items() if each.since_seconds > decided.begun.start_seconds}
    reasons = {**decided.waiting, **new, **picture.left_alone, **applied.waiting}
    turn = max(scheduler.round_seconds, scheduler.min_run_seconds)
    for job_id in picture.standings:
        job = applied.jobs.get(job_id)
        if job is None or not job.is_in(picture.state.partitions) or job.phase.is_over:
            continue
        standing, share = picture.standing_of(job_id), shares.get(job_id)
        runs, is_managed = job.phase is Phase.RUNNING, standing.role is Role.MANAGED
        expected = None
        if not runs and job_id in backoffs:
            expected = backoffs[job_id].until_seconds
        elif not runs and share:
            # With turns of this length, this is how long a job with this share of the time waits between two turns.
            expected = decided.begun.start_seconds + turn * (1.0 - share) / share
        yield SlurmQueuedJob(
            job_id=job_id,
            user=picture.shown(job.user),
            tenant=picture.shown(job.account or job.user),
            name=picture.shown(job.name),
            gpus=sum(job.held.values()) or job.num_gpus,
            state="running" if runs else "waiting" if is_managed else str(standing.role),
            reason="" if runs else standing.why or reasons.get(job_id, ""),
            nodes=dict(job.held),
            share=share if is_managed else None,
            expected_seconds=expected,
            partition=picture.shown(job.partition),
            **(_choice(tracked[job_id], planned[job_id]) if job_id in planned and job_id in tracked else {}),
        )


def _choice(tracked: Tracked, planned: Job) -> dict[str, Any]:
    """Return the fields on the numbers of GPUs among which the driver chooses; planned: the job in the scheduler."""
    most = planned.gpu_range[1]
    return {"gpu_counts": tuple(sorted(tracked.offered)), "most_gpus": most, "gpus_per_node": tracked.gpus_per_node}


class Publisher:
    """Publishes the queue and the metrics of a driver, after rounds and after readings between them that differ."""

    def __init__(self, directory: Path, metrics: Metrics, commands: SlurmCommands, clock: WallClock) -> None:
        self._path, self._metrics, self._commands, self._clock = directory / QUEUE, metrics, commands, clock
        self.may_annotate = False
        self._latest: tuple[Decided, Applied] | None = None
        self._reasons_left = 0
        self._jobs: list[SlurmQueuedJob] | None = None

    def show_round(self, decided: Decided, applied: Applied) -> None:
        """Publish the outcome of a round, or nothing as long as it is not known whether Slurm hides jobs from users."""
        if self._jobs is None:
            try:
                if hides_jobs(self._commands):
                    _close(self._path.parent)
            except SlurmError:
                return
        self._write(decided, applied)
        self._metrics.show(decided, applied)
        self._reasons_left = MAX_REASONS
        self._write_reasons(applied.jobs)

    def show_reading(
        self, jobs: Mapping[str, SlurmJob], picture: ClusterSnapshot | None = None, filled: Applied | None = None
    ) -> None:
        """Publish a later reading of the queue if it differs. picture, filled: of starts within the round, and their outcome."""
        if self._latest is None:
            return
        decided, applied = self._latest
        if picture is not None:
            decided = replace(decided, picture=picture)
        if filled is not None:
            waiting = {i: why for i, why in {**applied.waiting, **filled.waiting}.items() if i not in filled.started}
            applied = replace(applied, waiting=waiting)
        if self._write(decided, replace(applied, jobs=jobs)):
            state = decided.picture.state
            self._metrics.show(replace(decided, totals=state.totals(self._clock.now())), applied)
            self._write_reasons(jobs)

    def _write(self, decided: Decided, applied: Applied) -> bool:
        """Write the queue if it has changed, and return whether it has. If it cannot be written, the older one remains."""
        before, self._jobs, self._latest = self._jobs, list(queued_jobs(decided, applied)), (decided, applied)
        is_changed, now = self._jobs != before, self._clock.machine_seconds()
        document = {"partition": decided.picture.state.partition, "seconds": decided.begun.start_seconds}
        with suppress(InputError, OSError):  # the log reports a full disk
            if is_changed:
                document["jobs"] = [asdict(job) for job in self._jobs]
                write_atomic(self._path, json.dumps(document, separators=(",", ":")).encode())
            os.utime(self._path, (now, now))
        return is_changed

    def _write_reasons(self, jobs: Mapping[str, SlurmJob]) -> None:
        """Write into the AdminComment of jobs why they wait, if this account may, where it has changed."""
        comments = {each.job_id: jobs[each.job_id].admin_comment for each in self._jobs or () if self.may_annotate}
        reasons = {each.job_id: each.reason for each in self._jobs or () if each.state in EXPLAINED}
        # The plugin or the driver has marked jobs that wait for the driver.
        new = {i: with_reason(text, reasons.get(i, "")) for i, text in comments.items() if parse_annotation(text) is not None}
        changed = {i: text for i, text in new.items() if text is not None and text != comments[i]}
        first = sorted(changed.items(), key=lambda each: bool(reason_in(comments[each[0]])))  # those that have no reason yet
        lines = annotation_lines(dict(islice(first, self._reasons_left)))
        self._reasons_left -= len(lines)
        if lines:
            with suppress(SlurmError):  # the next reading shows what has not been written
                self._commands.run(["scontrol"], "\n".join([*lines, "quit"]) + "\n")


def _close(directory: Path) -> None:
    """Withdraw the rights of all accounts to a directory except its owner and group, or warn if that is not possible."""
    mode = directory.stat().st_mode & 0o7770
    try:
        directory.chmod(mode)
    except OSError:
        warn(f"Slurm hides the jobs of others from users (PrivateData), but {directory} shows them; restrict it: chmod o-rwx")


class SlurmQueue(list[SlurmQueuedJob]):
    """The jobs of the managed partitions. seconds: when a driver last compared them with Slurm, in seconds since 1970."""

    def __init__(self, jobs: Iterable[SlurmQueuedJob], seconds: float) -> None:
        super().__init__(jobs)
        self.seconds = seconds

    def is_outdated(self, now_seconds: float) -> bool:
        """Return whether the driver has been silent for so long that it counts as dead."""
        return now_seconds - self.seconds > DEAD_SECONDS


def slurm_queue(directory: str | Path) -> SlurmQueue:
    """Return the jobs of the managed partitions as the driver last saw them.

    Args:
        directory: The directory of the driver.

    Raises:
        InputError: There is no such file, or it cannot be read.
    """
    path = Path(directory) / QUEUE
    try:
        seconds = path.stat().st_mtime
        jobs = [SlurmQueuedJob(**job) for job in reading.json_document(path)["jobs"]]
        return SlurmQueue([replace(job, gpu_counts=tuple(job.gpu_counts)) for job in jobs], seconds)
    except FileNotFoundError:
        text = (
            "does not exist: no driver has finished a round with this directory; check --state or GAVEL_SLURM_STATE "
            "(gavel slurm run without --state keeps its state in the state directory of its user)"
        )
    except PermissionError:
        text = "is hidden from this account, as Slurm hides jobs (PrivateData); gavel slurm why JOB asks Slurm about one of yours"
    except (KeyError, TypeError) as error:
        text = f"was not written by a driver: {error}"
    raise InputError(Fault(str(path), "", text))


def _other_ids(job_id: str, jobs: Iterable[SlurmJob]) -> str:
    """Return the ids to give instead of one that sbatch or squeue prints: 6 and 6_[2-5] of an array, 13+1; "" if there are none."""
    array, _, tasks = job_id.partition("_")
    parts = [job.job_id for job in jobs if job.part == job_id != ""]
    if parts:
        return f"is a part of a heterogeneous job, with an id of its own: {parts[0]}"
    found = [job for job in jobs if job.array == array != job.job_id] if not tasks or tasks.startswith("[") else []
    live = [job.job_id for job in found if not job.phase.is_over] or [job.job_id for job in found]
    if not live:
        return ""
    shown = ", ".join(sorted(live, key=natural_key)[:MAX_NAMED]) + ", ..." * (len(live) > MAX_NAMED)
    return f"is an array, whose tasks run and wait on their own; name one of them: {shown}"


def slurm_job(job_id: str, *, commands: SlurmCommands | None = None) -> SlurmQueuedJob | None:
    """Return a job as Slurm itself lists it, for jobs that a driver has not listed; None if Slurm lists no such job.

    Args:
        job_id: Its id, such as 37 or 37_1.
        commands: Replacement of Slurm's commands, for tests.

    Raises:
        InputError: The job has another id here, or several; the message has them.
        SlurmError: Slurm does not answer.
    """
    jobs = read_jobs(SlurmCommands() if commands is None else commands)
    job = jobs.get(job_id)
    if job is None:
        if text := _other_ids(job_id, jobs.values()):
            raise InputError(Fault(f"job {job_id}", "", text))
        return None
    return SlurmQueuedJob(
        job_id=job_id,
        user=printable(job.user),
        tenant=printable(job.account or job.user),
        name=printable(job.name),
        gpus=sum(job.held.values()) or job.num_gpus,
        state=str(job.phase),
        reason=(reason_in(job.admin_comment) or f"Slurm names {printable(job.reason)}") if job.phase is Phase.WAITING else "",
        nodes=dict(job.held),
        partition=printable(job.partition),
    )
