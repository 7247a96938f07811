"""gavel slurm queue and why: the jobs of managed partitions, and why a job waits, for users."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.inputs import JSON
from gavel_py.cli.output import emit, json_text, time_text
from gavel_py.cli.tables import Column, folded_names, table_text

STATE = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default="/var/lib/gavel-slurm",
    show_default=True,
    envvar="GAVEL_SLURM_STATE",
    metavar="DIR",
    help="The directory of the driver.",
)


@click.command("queue")
@STATE
@click.option("--user", metavar="NAME", help="Only the jobs of this user.")
@click.option("--json", "as_json", **JSON)
def queue(state: Path, user: str | None, as_json: bool) -> None:
    """List jobs with state, reason and expected start.

    As the driver last saw them, usually seconds ago. Needs no rights in Slurm.
    """
    found = gp.slurm_queue(state)
    jobs = [job for job in found if user in {None, job.user}]
    emit(json_text([asdict(job) for job in jobs]) if as_json else _text(jobs), None)
    click.echo(_age(found), err=as_json)


@click.command("why")
@click.argument("job")
@STATE
def why(job: str, state: Path) -> None:
    """Show why a job waits or where it runs.

    JOB is its id, as 37, or 37_1 for a task of an array (37 alone names the tasks). Needs no rights in Slurm. If the driver has not
    listed the job, the answer is from Slurm.
    """
    try:
        queue = gp.slurm_queue(state)
    except gp.InputError as error:
        return emit(_from_slurm(job, f"The driver's queue cannot be read: {error}."), None)
    found = {each.job_id: each for each in queue}
    if job not in found:
        return emit(_from_slurm(job, f"The driver has not listed it. {_age(queue)}"), None)
    return emit(f"{_sentences(found[job])}{_age(queue)}\n", None)


def _from_slurm(job_id: str, note: str) -> str:
    """Return the state of a job as Slurm lists it, with a note on why this is not the driver's answer."""
    try:
        job = gp.slurm_job(job_id)
    except gp.SlurmError as error:
        raise gp.SlurmError(f"job {job_id} is not known here. {note} {error}") from None
    if job is None:
        text = "has ended a while ago, or does not exist, or is hidden from this account"
        raise gp.InputError(f"Slurm lists no job {job_id}: it {text}. {note}")
    return f"{_sentences(job)}This is from Slurm. {note}\n"


def _age(queue: gp.SlurmQueue) -> str:
    """Return when the driver has last seen the jobs, and whether it has been silent for too long since."""
    now = time.time()
    text = f"As of {_clock(queue.seconds, with_seconds=True)}, {time_text(max(0.0, now - queue.seconds))} ago"
    return f"{text}; the driver has not written since." if queue.is_outdated(now) else f"{text}."


def _sentences(job: gp.SlurmQueuedJob) -> str:
    """Return the state of a job in sentences."""
    where = f" on {_place(job)}" if job.nodes else ""
    lines = [f"Job {job.job_id} of {job.user} ({_size(job)}) is {job.state}{where}."]
    if job.gpu_counts and job.most_gpus < job.gpu_counts[-1]:
        lines.append(f"A limit of its account or QOS leaves it {job.most_gpus} GPUs at most.")
    if job.reason:
        lines.append(f"Reason: {job.reason}.")
    if job.share is not None:
        lines.append(f"The policy promises it {100 * job.share:.0f} % of the time.")
    if job.expected_seconds is not None:
        verb = "starts" if job.expected_seconds > time.time() else "was to start"
        lines.append(f"It {verb} at about {_clock(job.expected_seconds)}.")
    return "\n".join(lines) + "\n"


def _size(job: gp.SlurmQueuedJob) -> str:
    """Return the GPUs of a job, with its choice if it has one: 1-4 nodes with 4 GPUs each, now 2."""
    if not job.gpu_counts:
        return f"{job.gpus} GPUs"
    each, held = job.gpus_per_node, sum(job.nodes.values())
    counts = [count // each for count in job.gpu_counts] if each else list(job.gpu_counts)
    is_range = len(counts) > 2 and counts == list(range(counts[0], counts[-1] + 1))
    choice = f"{counts[0]}-{counts[-1]}" if is_range else f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}"
    unit = f"nodes with {each} GPUs each" if each else "GPUs"
    return f"{choice} {unit}" + (f", now {held // (each or 1)}" if held else "")


def gpus_text(gpus: int, counts: Sequence[int], *, runs: bool) -> str:
    """Return the GPUs of a job in a table; with a choice, such as 8 of 4-16, or 4-16 while it waits."""
    if not counts:
        return str(gpus)
    return (f"{gpus} of " if runs else "") + f"{counts[0]}-{counts[-1]}"


def _text(jobs: list[gp.SlurmQueuedJob]) -> str:
    columns = [Column("job", "name"), Column("user", "name"), Column("tenant", "name", 1), Column("GPUs"), Column("state", "text")]
    several = len({job.partition for job in jobs}) > 1
    columns += [*([Column("partition", "name")] if several else []), Column("start", "text"), Column("where, or why not", "prose")]
    rows = [
        [
            *(job.job_id, job.user, job.tenant, gpus_text(job.gpus, job.gpu_counts, runs=bool(job.nodes)), job.state),
            *([job.partition] if several else []),
            *(_start(job), _place(job) or job.reason or "-"),
        ]
        for job in jobs
    ]
    return table_text("", columns, rows) if rows else "No jobs.\n"


def _start(job: gp.SlurmQueuedJob) -> str:
    expected = job.expected_seconds or 0.0
    return f"~ {_clock(expected)}" if expected > time.time() else "-"


def _clock(seconds: float, *, with_seconds: bool = False) -> str:
    """Return a time of today as 14:05, and a time of another day with its date."""
    today = time.strftime("%F") == time.strftime("%F", time.localtime(seconds))
    return time.strftime(("" if today else "%F ") + ("%H:%M:%S" if with_seconds else "%H:%M"), time.localtime(seconds))


def _place(job: gp.SlurmQueuedJob) -> str:
    nodes: dict[int, list[str]] = {}
    for node, gpus in job.nodes.items():
        nodes.setdefault(gpus, []).append(node)
    return " ".join(f"{name}:{gpus}" for gpus, names in nodes.items() for name in folded_names(names))
