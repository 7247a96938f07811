"""The state of each job after the latest round, and why it waits; the driver writes it beside its state for all users to read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.apply import Applied
from gavel_py.integrations.slurm.client.records import Phase
from gavel_py.integrations.slurm.job_roles import Role
from gavel_py.io import reading
from gavel_py.io.writing import write_atomic

if TYPE_CHECKING:
    from gavel_py.integrations.slurm.decision import Decided
    from gavel_py.integrations.slurm.state import Tracked
    from gavel_py.problem.job import Job

QUEUE = "queue.json"
"""Name of the file in the directory of a driver."""


@dataclass(frozen=True)
class QueuedJob:
    """A job of the partition after a round.

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


def queued_jobs(decided: Decided, applied: Applied) -> Iterator[QueuedJob]:
    """Yield the jobs of the partition, as they were after a round."""
    picture, scheduler = decided.picture, decided.picture.state.scheduler
    allocation, backoffs = scheduler.allocation, scheduler.backoffs
    shares: dict[str, float] = {}
    if allocation is not None:
        shares = dict(zip(allocation.job_ids, allocation.time_fractions.sum(axis=1).tolist(), strict=True))
    planned = {job.job_id: job for job in scheduler.jobs if job.is_elastic}
    reasons = {**decided.waiting, **picture.left_alone, **applied.waiting}
    turn = max(scheduler.round_seconds, scheduler.min_run_seconds)
    for job_id in picture.standings:
        job = applied.jobs.get(job_id, picture.snapshot.jobs[job_id])
        if not job.is_in(picture.state.partitions) or job.phase.is_over:
            continue
        standing, share = picture.standing_of(job_id), shares.get(job_id)
        runs, is_managed = job.phase is Phase.RUNNING, standing.role is Role.MANAGED
        expected = None
        if not runs and job_id in backoffs:
            expected = backoffs[job_id].until_seconds
        elif not runs and share:
            # With turns of this length, this is how long a job with this share of the time waits between two turns.
            expected = decided.begun.start_seconds + turn * (1.0 - share) / share
        yield QueuedJob(
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
            **(_choice(picture.state.tracked[job_id], planned[job_id]) if job_id in planned else {}),
        )


def _choice(tracked: Tracked, planned: Job) -> dict[str, Any]:
    """Return the fields on the numbers of GPUs among which the driver chooses; planned: the job in the scheduler."""
    most = planned.gpu_range[1]
    return {"gpu_counts": tuple(sorted(tracked.offered)), "most_gpus": most, "gpus_per_node": tracked.gpus_per_node}


def write_queue(directory: Path, decided: Decided, applied: Applied) -> None:
    """Write the jobs of a round to a file that all users can read. If it cannot be written, the older one remains."""
    jobs = [asdict(job) for job in queued_jobs(decided, applied)]
    path = directory / QUEUE
    document = {"partition": decided.picture.state.partition, "seconds": decided.begun.start_seconds, "jobs": jobs}
    with suppress(InputError):  # the log reports a full disk
        write_atomic(path, json.dumps(document, separators=(",", ":")).encode())


def slurm_queue(directory: str | Path) -> list[QueuedJob]:
    """Return the jobs of a managed partition as of the latest round.

    Args:
        directory: The directory of the driver.

    Raises:
        InputError: There is no such file, or it cannot be read.
    """
    path = Path(directory) / QUEUE
    if not path.exists():
        text = "does not exist: no driver has finished a round with this directory; check --state or GAVEL_SLURM_STATE"
        raise InputError(Fault(str(path), "", text))
    try:
        jobs = [QueuedJob(**job) for job in reading.json_document(path)["jobs"]]
        return [replace(job, gpu_counts=tuple(job.gpu_counts)) for job in jobs]
    except (KeyError, TypeError) as error:
        raise InputError(Fault(str(path), "", f"was not written by a driver: {error}")) from None
