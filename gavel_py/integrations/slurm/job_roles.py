"""The role of a job: managed here, set aside for now, left to Slurm, or not managed at all; and the notes in Slurm that tell it.

Users write in --comment what their jobs are, `gavel: type=bert steps=200000` (`parse_comment`). The driver notes which jobs it manages in
their AdminComment, where only administrators write, so that it is known even if the driver's own state is lost (`parse_annotation`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from gavel_py.errors import decimal_hint
from gavel_py.integrations.slurm.parsing import is_plain, printable
from gavel_py.integrations.slurm.records import Phase, SlurmJob
from gavel_py.io.names import natural_key
from gavel_py.io.records import number_of

HOLD = "gavel-hold"
"""A word in the comment of a job that its user holds; the plugin puts it there when somebody says `scontrol hold`."""

OURS = re.compile(r"(?:^|[\s;,])gavel:(.*)", re.DOTALL)

PAIR = re.compile(r"([A-Za-z_]+)=(\"[^\"]*\"|'[^']*'|[^\s;,]+)")


@dataclass(frozen=True)
class JobComment:
    """What a comment says: a job type, steps in all, whether its user holds the job, and what in it is wrong."""

    job_type: str = ""
    total_steps: float | None = None
    holds: bool = False
    wrong: str = ""


def parse_comment(comment: str) -> JobComment:
    """Return what a comment says; whatever it is, it is no error, since other tools write comments too.

    >>> parse_comment('gavel: type="ResNet-50 (batch size 64)" steps=2e5')
    JobComment(job_type='ResNet-50 (batch size 64)', total_steps=200000.0, holds=False, wrong='')
    """
    found = OURS.search(comment)
    pairs = {} if found is None else {key.lower(): value.strip("\"'") for key, value in PAIR.findall(found[1])}
    steps, wrong = _steps(pairs.get("steps", ""))
    strange = [key for key in pairs if key not in {"type", "steps"}]
    if strange:
        wrong = wrong or f"{printable(strange[0])}= is not known in a comment; known: type, steps"
    return JobComment(printable(pairs.get("type", "")), steps, HOLD in re.split(r"[\s;,]+", comment), wrong)


def _steps(text: str) -> tuple[float | None, str]:
    if not text:
        return None, ""
    steps = number_of(text)
    if math.isfinite(steps) and steps > 0:
        return steps, ""
    return None, f"steps={printable(text)} is not a number greater than 0{decimal_hint(text)}"


Place = Literal["any", "node"]
"""Whether its gang may be spread over nodes, or must be on one."""

ANNOTATION = re.compile(r"gavel:submit=(\d{1,12})(;plugin)?(?:;place=(any|node))?")

SAFE = re.compile(r"[A-Za-z0-9 _.:;,+@/=-]*")
"""What others wrote goes into a command only if it has nothing that could be taken for more than text."""


@dataclass(frozen=True)
class Annotation:
    """submit_seconds: when the job first came, which a requeue overwrites; place: None until it is taken over; by_plugin:
    it came on hold, by the plugin, which also notes in the comment what users hold.
    """

    submit_seconds: float
    place: Place | None = None
    by_plugin: bool = False


def parse_annotation(admin_comment: str) -> Annotation | None:
    """Return the mark of a job, None if it has none.

    >>> parse_annotation("gavel:submit=1700000000;place=node")
    Annotation(submit_seconds=1700000000.0, place='node', by_plugin=False)
    """
    found = ANNOTATION.search(admin_comment)
    if found is None:
        return None
    place: Place | None = "any" if found[3] == "any" else "node" if found[3] == "node" else None
    return Annotation(float(found[1]), place, by_plugin=found[2] is not None)


def annotated(admin_comment: str, submit_seconds: float, place: Place) -> str | None:
    """Return the comment with this mark and all else that stands there, None where that cannot be written safely.

    >>> annotated("project 7", 1700000000.0, "any")
    'project_7;gavel:submit=1700000000;place=any'
    """
    rest = ANNOTATION.sub("", admin_comment).strip(" ;")
    if not SAFE.fullmatch(rest):
        return None
    before = parse_annotation(admin_comment)
    plugin = ";plugin" if before is not None and before.by_plugin else ""
    mark = f"gavel:submit={submit_seconds:.0f}{plugin};place={place}"
    return f"{rest.replace(' ', '_')};{mark}" if rest else mark


CERTAIN_NODES = "it asks for certain nodes (--nodelist)"

SEVERAL_PARTITIONS = "it may run in several partitions (--partition=a,b)"
"""Once such a job runs, Slurm names only the one in which it does."""

REQUEUED_ON_HOLD = "requeued in held state"
"""Slurm's words for a job that was stopped by `scontrol requeuehold`."""


class Role(StrEnum):
    """What becomes of a job."""

    MANAGED = "managed"
    """It is planned, stopped and started."""
    ASIDE = "set aside"
    """It would be managed, but waits for something else: its user, its time, another job."""
    LEFT = "left to Slurm"
    """It would be managed, but cannot be planned: Slurm schedules it, and GPUs that it uses are not planned."""
    OTHER = "not managed"
    """The same, of a job that would not be managed in any case."""

    @property
    def is_left_to_slurm(self) -> bool:
        """Whether it is never stopped or held."""
        return self in {Role.LEFT, Role.OTHER}


class Eligibility(NamedTuple):
    """The role of a job, and why, in words that follow "since"."""

    role: Role
    why: str = ""


def eligibility_of(
    job: SlurmJob, partition: str, now_seconds: float, known: Container[str] = (), stopping: Container[str] = ()
) -> Eligibility:
    """Return whose a job is. known: jobs that are managed already; stopping: those that this program has been stopping."""
    if job.partition != partition:
        several = partition in job.partition.split(",")
        return Eligibility(Role.OTHER, SEVERAL_PARTITIONS if several else "it is in another partition")
    if not job.num_gpus:
        return Eligibility(Role.OTHER, "it asks for no GPUs")
    obstacle = _obstacle(job, known)
    if obstacle:
        return Eligibility(Role.OTHER, obstacle)
    why = _reason_to_wait(job, now_seconds, known, stopping) if job.phase is Phase.WAITING else ""
    return Eligibility(Role.ASIDE, why) if why else Eligibility(Role.MANAGED)


def over_array_limits(jobs: Mapping[str, SlurmJob], managed: Iterable[str]) -> dict[str, Eligibility]:
    """Return the standings of tasks for which there is no room within the limits of their arrays (--array=0-99%4).

    Tasks that run come first, then the others in order.
    """
    arrays: dict[str, list[SlurmJob]] = {}
    for job_id in managed:
        if jobs[job_id].max_tasks:
            arrays.setdefault(jobs[job_id].array, []).append(jobs[job_id])
    beyond = {}
    for tasks in arrays.values():
        tasks.sort(key=lambda job: (job.phase is Phase.WAITING, natural_key(job.job_id)))
        for job in tasks[tasks[0].max_tasks :]:
            if job.phase is Phase.WAITING:
                why = f"its array lets {job.max_tasks} of its tasks run at a time"
                beyond[job.job_id] = Eligibility(Role.ASIDE, why)
    return beyond


def is_held_by_driver(job: SlurmJob, partition: str, known: Container[str], stopping: Container[str]) -> bool:
    """Say whether a job waits on a hold of this program or its plugin, and not of its user.

    In another partition, the marks may be those of another driver; a job that has left this one for it is known.
    """
    if not job.is_held or parse_comment(job.comment).holds:
        return False
    marked = partition in job.partition.split(",") and parse_annotation(job.admin_comment) is not None
    return (marked or job.job_id in known) and not _is_held_by_others(job, known, stopping)


def _obstacle(job: SlurmJob, known: Container[str]) -> str:
    if job.obstacles:
        return job.obstacles[0]
    if len(job.requested) > 1:
        return f"it asks for GPUs of several types ({', '.join(sorted(name or 'any' for name in job.requested))})"
    mark = parse_annotation(job.admin_comment)
    is_new = job.job_id not in known and (mark is None or mark.place is None)
    if is_new and job.required_nodes:
        return CERTAIN_NODES
    return "it has a --constraint that is more than names joined by & or |" if not is_plain(job.features) else ""


def _reason_to_wait(job: SlurmJob, now_seconds: float, known: Container[str], stopping: Container[str]) -> str:
    if parse_comment(job.comment).holds:
        return "its user holds it"
    if job.is_held and _is_held_by_others(job, known, stopping):
        return "its user or an administrator holds it"
    if job.dependency:
        return "it waits for another job"
    # A requeue sets a time too; that one is ours to change.
    begins = job.eligible_seconds
    if begins is not None and begins > now_seconds and job.restarts == 0:
        return "it is to begin later"
    return ""


def _is_held_by_others(job: SlurmJob, known: Container[str], stopping: Container[str]) -> bool:
    """Say whether somebody else holds a job. What this program holds, it has noted in Slurm or in its state before."""
    mark = parse_annotation(job.admin_comment)
    if mark is not None and mark.by_plugin:
        return False  # it came on hold, and the plugin notes in the comment what users hold
    if job.reason == "JobHeldAdmin":
        return mark is None and job.job_id not in known
    if REQUEUED_ON_HOLD in job.description:
        return not (job.job_id in stopping or (job.job_id not in known and mark is not None))
    return True
