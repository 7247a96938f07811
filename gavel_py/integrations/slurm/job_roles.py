"""Eligibility of jobs for management by the driver, and the comments in Slurm on which it depends.

Users describe their jobs in --comment, `gavel: type=bert steps=200000` (`parse_comment`). The driver annotates managed jobs in
their AdminComment (`parse_annotation`), which only administrators can write; so it recognises them even if its own state is lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from gavel_py.errors import decimal_hint
from gavel_py.integrations.slurm.client.notation import StopSignal, is_plain, printable, signal_in
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from gavel_py.io.names import natural_key
from gavel_py.io.records import number_of

USER_HOLD = "gavel-hold"
"""The plugin adds this to the comment of a job when the user of the job calls `scontrol hold`."""

PREFIX = re.compile(r"(?:^|[\s;,])gavel:(.*)", re.DOTALL)
PAIR = re.compile(r"([A-Za-z_]+)=(\"[^\"]*\"|'[^']*'|[^\s;,]+)")
LIST = re.compile(r"(?:^|[\s;,])(gpus)=([^\s;,\"']+(?:,(?![A-Za-z_]+=)[^\s;,]+)+)", re.IGNORECASE)
"""Matches a value with commas, which otherwise separate entries."""


@dataclass(frozen=True)
class JobComment:
    """A parsed --comment.

    gpu_counts: numbers of GPUs on which the job may run, ascending, () for the number requested; is_held: whether the user holds
    the job; warn: the signal before a stop, None for the default of the site; is_unwarned: whether the job declines a signal;
    problem: description of an invalid entry.
    """

    job_type: str = ""
    total_steps: float | None = None
    is_held: bool = False
    problem: str = ""
    warn: StopSignal | None = None
    is_unwarned: bool = False
    gpu_counts: tuple[int, ...] = ()


COMMENT_KEYS = ("type", "steps", "warn", "gpus")

MAX_GPUS = 100_000
"""Largest number of GPUs accepted in a comment."""


def parse_comment(comment: str) -> JobComment:
    """Parse a comment. Invalid entries do not raise, since other tools write comments too.

    >>> parsed = parse_comment('gavel: type="ResNet-50 (batch size 64)" steps=2e5 warn=USR1@60')
    >>> parsed.job_type, parsed.total_steps, parsed.warn
    ('ResNet-50 (batch size 64)', 200000.0, StopSignal(name='USR1', seconds=60.0, to_script=False))
    """
    found = PREFIX.search(comment)
    entries = () if found is None else (*PAIR.findall(found[1]), *LIST.findall(found[1]))
    pairs = {key.lower(): value.strip("\"'") for key, value in entries}
    text = pairs.get("steps", "")
    number = number_of(text)
    steps = number if math.isfinite(number) and number > 0 else None
    problem = f"steps={printable(text)} is not a number greater than 0{decimal_hint(text)}" if text and steps is None else ""
    warn, is_unwarned = signal_in(pairs.get("warn", "")), pairs.get("warn", "").lower() == "no"
    if "warn" in pairs and warn is None and not is_unwarned:
        problem = problem or f"warn={printable(pairs['warn'])} is not a signal such as USR1@60 or B:USR1@60, or no"
    counts = _counts(pairs.get("gpus", ""))
    if "gpus" in pairs and not counts:
        problem = problem or f"gpus={printable(pairs['gpus'])} is not a list of whole numbers such as 1,2,4"
    unknown = [key for key in pairs if key not in COMMENT_KEYS]
    if unknown:
        problem = problem or f"{printable(unknown[0])}= is not known in a comment; known: {', '.join(COMMENT_KEYS)}"
    is_held = USER_HOLD in re.split(r"[\s;,]+", comment)
    return JobComment(printable(pairs.get("type", "")), steps, is_held, problem, warn, is_unwarned, counts)


def _counts(text: str) -> tuple[int, ...]:
    """Return the numbers of GPUs in a list such as 1,2,4; () if the text is not such a list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < int(part[:9]) <= MAX_GPUS and len(part) < 9 for part in parts):
        return ()
    return tuple(sorted({int(part) for part in parts}))


Place = Literal["any", "node"]
"""Whether a gang may span nodes or must be on one."""

ANNOTATION = re.compile(
    r"gavel:submit=(\d{1,12})(;plugin)?(?:;of=([A-Za-z0-9._,-]+))?(?:;place=(any|node))?(?:;nodes=(\d{1,6})-(\d{1,6});each=(\d{1,6}))?"
)

SAFE_TEXT = re.compile(r"[A-Za-z0-9 _.:;,+@/=-]*")
"""Existing text of an AdminComment is written back only if scontrol cannot misread it."""


class NodeRange(NamedTuple):
    """The request of an elastic job, which its starts overwrite. least, most: nodes (0: no limit); each: GPUs on each of them."""

    least: int
    most: int
    each: int


@dataclass(frozen=True)
class Annotation:
    """The driver's entry in an AdminComment.

    submit_seconds: time of submission, which Slurm overwrites at a requeue; place: None before the driver takes the job over;
    by_plugin: whether the plugin put the job on hold, and so marks holds by users in the comment; partition: the partitions of that
    plugin, separated by commas, "" for an earlier version; nodes: the request of an elastic job, None for others.
    """

    submit_seconds: float
    place: Place | None = None
    by_plugin: bool = False
    partition: str = ""
    nodes: NodeRange | None = None


def parse_annotation(admin_comment: str) -> Annotation | None:
    """Return the annotation of a job, or None if it has none.

    >>> parse_annotation("gavel:submit=1700000000;place=node")
    Annotation(submit_seconds=1700000000.0, place='node', by_plugin=False, partition='', nodes=None)
    """
    found = ANNOTATION.search(admin_comment)
    if found is None:
        return None
    place: Place | None = "any" if found[4] == "any" else "node" if found[4] == "node" else None
    nodes = NodeRange(*map(int, found.groups()[4:7])) if found[5] is not None and int(found[5]) and int(found[7]) else None
    return Annotation(float(found[1]), place, by_plugin=found[2] is not None, partition=found[3] or "", nodes=nodes)


def annotated(admin_comment: str, submit_seconds: float, place: Place, nodes: NodeRange | None = None) -> str | None:
    """Return an AdminComment with its annotation replaced, or None if the rest of it cannot be written safely.

    >>> annotated("project 7", 1700000000.0, "any")
    'project_7;gavel:submit=1700000000;place=any'
    """
    rest = ANNOTATION.sub("", admin_comment).strip(" ;")
    if not SAFE_TEXT.fullmatch(rest):
        return None
    before = parse_annotation(admin_comment)
    plugin = ";plugin" if before is not None and before.by_plugin else ""
    plugin += f";of={before.partition}" if before is not None and before.partition else ""
    annotation = f"gavel:submit={submit_seconds:.0f}{plugin};place={place}"
    annotation += "" if nodes is None else f";nodes={nodes.least}-{nodes.most};each={nodes.each}"
    return f"{rest.replace(' ', '_')};{annotation}" if rest else annotation


CERTAIN_NODES = "it asks for certain nodes (--nodelist)"

SEVERAL_PARTITIONS = "it may run in partitions that are not managed, too (--partition=a,b)"
"""Slurm lists all partitions of a job only while it waits."""

REQUEUED_ON_HOLD = "requeued in held state"
"""Slurm's description of a job that was stopped by `scontrol requeuehold`."""

HELD_BY_ADMINISTRATOR = "JobHeldAdmin"
"""Slurm's reason for a job on a hold by anyone but its user, such as the driver."""

SPECIAL_EXIT = "SPECIAL_EXIT"
"""State of a job that waits on the hold of `scontrol requeuehold State=SpecialExit`, or of Slurm's setting RequeueExitHold."""


class Role(StrEnum):
    """How the driver treats a job."""

    MANAGED = "managed"
    """Planned, stopped and started by the driver."""
    ASIDE = "set aside"
    """Not planned while it waits for its user, a start time or another job; managed afterwards."""
    LEFT = "left to Slurm"
    """Belongs to the driver, but cannot be planned; scheduled by Slurm, with its GPUs reserved in the plan."""
    OTHER = "not managed"
    """A job that the driver never manages, scheduled by Slurm."""

    @property
    def is_left_to_slurm(self) -> bool:
        """Whether the driver never stops or holds the job."""
        return self in {Role.LEFT, Role.OTHER}


UNFULFILLED = re.compile(r"\((unfulfilled|failed)\)")
"""Slurm's suffix of a dependency that keeps a job waiting."""


class Eligibility(NamedTuple):
    """The role of a job and the reason, as a clause."""

    role: Role
    why: str = ""


def eligibility_of(
    job: SlurmJob, partitions: Collection[str], now_seconds: float, known: Container[str] = (), stopping: Container[str] = ()
) -> Eligibility:
    """Return the role of a job.

    partitions: the managed partitions; known: jobs already managed; stopping: jobs that the driver is stopping.
    """
    if not job.is_in(partitions):
        return Eligibility(Role.OTHER, "it is in another partition")
    if not set(partitions).issuperset(job.partitions):
        return Eligibility(Role.OTHER, SEVERAL_PARTITIONS)
    if not job.num_gpus:
        return Eligibility(Role.OTHER, "it asks for no GPUs")
    obstacle = _obstacle(job, known)
    if obstacle:
        return Eligibility(Role.OTHER, obstacle)
    why = _why_not_managed(job, now_seconds, known, stopping) if job.phase is Phase.WAITING else ""
    return Eligibility(Role.ASIDE, why) if why else Eligibility(Role.MANAGED)


def over_array_limits(jobs: Mapping[str, SlurmJob], managed: Iterable[str]) -> dict[str, Eligibility]:
    """Set aside the waiting tasks beyond the limits of their arrays (--array=0-99%4).

    Running tasks come first, then the others in order.
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
                why = f"its array allows {job.max_tasks} of its tasks to run at a time"
                beyond[job.job_id] = Eligibility(Role.ASIDE, why)
    return beyond


def giving_way(jobs: Mapping[str, SlurmJob], roles: Mapping[str, Eligibility], yielding: Iterable[str]) -> dict[str, Eligibility]:
    """Set aside the managed jobs that still run although they have to give way, to others below a limit or to a reservation."""
    managed = [job_id for job_id in yielding if job_id in jobs and roles[job_id].role is Role.MANAGED]
    running = [job_id for job_id in managed if jobs[job_id].phase is Phase.RUNNING]
    return {job_id: Eligibility(Role.ASIDE, "it gives way to other jobs") for job_id in running}


def is_held_by_driver(job: SlurmJob, partitions: Collection[str], known: Container[str], stopping: Container[str]) -> bool:
    """Return whether a job is on a hold of the driver or its plugin, not of its user.

    A job may have been moved to another partition. If its annotation names none of these partitions, it must be a known job.
    """
    if not job.is_held or parse_comment(job.comment).is_held:
        return False
    annotation = parse_annotation(job.admin_comment)
    is_annotated = annotation is not None and (
        job.is_in(partitions) or not set(partitions).isdisjoint(annotation.partition.split(","))
    )
    return (is_annotated or job.job_id in known) and not _is_held_by_others(job, known, stopping)


def is_requeued_by_others(job: SlurmJob, partitions: Collection[str], known: Container[str], stopping: Container[str]) -> bool:
    """Return whether someone other than the driver has put a job of the plugin on hold by `scontrol requeuehold`.

    Slurm does not ask the plugin about it, so that the comment of the job has no mark.
    """
    annotation = parse_annotation(job.admin_comment)
    is_of_plugin = annotation is not None and annotation.by_plugin and job.is_in(partitions)
    return is_of_plugin and job.is_held and _is_held_by_others(job, known, stopping)


def is_being_stopped(job: SlurmJob | None) -> bool:
    """Return whether a job that the driver has stopped has not ended yet, or is still on the hold with which it was requeued.

    A further hold makes it an administrator's, unless the driver dies or Slurm refuses it.
    """
    if job is None or job.phase is not Phase.WAITING:
        return job is not None and job.phase is Phase.STOPPING
    return REQUEUED_ON_HOLD in job.description


def _obstacle(job: SlurmJob, known: Container[str]) -> str:
    if job.obstacles:
        return job.obstacles[0]
    if len(job.requested) > 1:
        return f"it asks for GPUs of several types ({', '.join(sorted(name or 'any' for name in job.requested))})"
    annotation = parse_annotation(job.admin_comment)
    is_new = job.job_id not in known and (annotation is None or annotation.place is None)
    if is_new and job.required_nodes:
        return CERTAIN_NODES
    return "it has a --constraint other than names joined by & or |" if not is_plain(job.features) else ""


def _why_not_managed(job: SlurmJob, now_seconds: float, known: Container[str], stopping: Container[str]) -> str:
    if parse_comment(job.comment).is_held:
        return "its user holds it"
    if job.is_held and _is_held_by_others(job, known, stopping):
        return "its user or an administrator holds it"
    if job.dependency:
        return f"it waits for another job, {UNFULFILLED.sub('', job.dependency)}"
    # A requeue sets a start time too, which the driver may change.
    begins = job.eligible_seconds
    if begins is not None and begins > now_seconds and job.restarts == 0:
        return "it begins later"
    return ""


def _is_held_by_others(job: SlurmJob, known: Container[str], stopping: Container[str]) -> bool:
    """Return whether someone other than the driver holds a job; the driver records each hold in Slurm or in its state first."""
    annotation = parse_annotation(job.admin_comment)
    if job.reason == HELD_BY_ADMINISTRATOR:
        return annotation is None and job.job_id not in known
    if SPECIAL_EXIT in job.states:
        return True  # the driver never requests this state
    if REQUEUED_ON_HOLD in job.description:
        return not (job.job_id in stopping or (job.job_id not in known and annotation is not None))
    # The plugin holds all its jobs, and marks other holds by users in the comment.
    return annotation is None or not annotation.by_plugin
