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
from gavel_py.integrations.slurm.client.records import REQUESTS_WHOLE_NODES, Phase, SlurmJob
from gavel_py.io.names import natural_key
from gavel_py.io.records import number_of

PREFIX = re.compile(r"(?:^|[\s;,])gavel:(.*)", re.DOTALL)
PAIR = re.compile(r"([A-Za-z_]+)=(\"[^\"]*\"|'[^']*'|[^\s;,]+)")
LIST = re.compile(r"(?:^|[\s;,])(gpus)=([^\s;,\"']+(?:,(?![A-Za-z_]+=)[^\s;,]+)+)", re.IGNORECASE)
"""Matches a value with commas, which otherwise separate entries."""


@dataclass(frozen=True)
class JobComment:
    """A parsed --comment.

    gpu_counts: numbers of GPUs on which the job may run, ascending, () for the number requested; warn: the signal before a stop,
    None for the default of the site; is_unwarned: whether the job declines a signal; problem: description of an invalid entry.
    """

    job_type: str = ""
    total_steps: float | None = None
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
    return JobComment(printable(pairs.get("type", "")), steps, problem, warn, is_unwarned, counts)


def _counts(text: str) -> tuple[int, ...]:
    """Return the numbers of GPUs in a list such as 1,2,4; () if the text is not such a list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < int(part[:9]) <= MAX_GPUS and len(part) < 9 for part in parts):
        return ()
    return tuple(sorted({int(part) for part in parts}))


Place = Literal["any", "node"]
"""Whether a gang may span nodes or must be on one."""

ANNOTATION = re.compile(
    r"gavel:submit=(\d{1,12})(;alone|;shared)?(?:;begin=(\d{1,12}))?(?:;place=(any|node))?(?:;nodes=(\d{1,6})-(\d{1,6});each=(\d{1,6}))?"
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
    is_alone: whether it requests whole nodes, None if the plugin has not noted it; begin_seconds: the begin that the user requested
    (0: none) of a job that the plugin lets begin later, None for other jobs; nodes: the request of an elastic job, None for others.
    """

    submit_seconds: float
    place: Place | None = None
    is_alone: bool | None = None
    begin_seconds: float | None = None
    nodes: NodeRange | None = None


def parse_annotation(admin_comment: str) -> Annotation | None:
    """Return the annotation of a job, or None if it has none.

    >>> parse_annotation("gavel:submit=1700000000;place=node")
    Annotation(submit_seconds=1700000000.0, place='node', is_alone=None, begin_seconds=None, nodes=None)
    """
    found = ANNOTATION.search(admin_comment)
    if found is None:
        return None
    alone, begin = None if found[2] is None else found[2] == ";alone", None if found[3] is None else float(found[3])
    place: Place | None = "any" if found[4] == "any" else "node" if found[4] == "node" else None
    nodes = NodeRange(*map(int, found.groups()[4:7])) if found[5] is not None and int(found[5]) and int(found[7]) else None
    return Annotation(float(found[1]), place, is_alone=alone, begin_seconds=begin, nodes=nodes)


def annotated(admin_comment: str, submit_seconds: float, place: Place, nodes: NodeRange | None = None) -> str | None:
    """Return an AdminComment with its annotation replaced, or None if the rest of it cannot be written safely.

    >>> annotated("project 7", 1700000000.0, "any")
    'project_7;gavel:submit=1700000000;place=any'
    """
    rest = ANNOTATION.sub("", admin_comment).strip(" ;")
    if not SAFE_TEXT.fullmatch(rest):
        return None
    before = parse_annotation(admin_comment)
    noted = "" if before is None or before.is_alone is None else ";alone" if before.is_alone else ";shared"
    noted += "" if before is None or before.begin_seconds is None else f";begin={before.begin_seconds:.0f}"
    annotation = f"gavel:submit={submit_seconds:.0f}{noted};place={place}"
    annotation += "" if nodes is None else f";nodes={nodes.least}-{nodes.most};each={nodes.each}"
    return f"{rest.replace(' ', '_')};{annotation}" if rest else annotation


CERTAIN_NODES = "it asks for certain nodes (--nodelist)"

UNKNOWN_SHARING = "neither this release of Slurm nor the plugin says whether it requests whole nodes (--exclusive)"

SEVERAL_PARTITIONS = "it may run in partitions that are not managed, too (--partition=a,b)"
"""Slurm lists all partitions of a job only while it waits."""


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
        """Whether the driver never stops the job, nor lets it wait."""
        return self in {Role.LEFT, Role.OTHER}


class Eligibility(NamedTuple):
    """The role of a job and the reason, as a clause."""

    role: Role
    why: str = ""


def eligibility_of(job: SlurmJob, partitions: Collection[str], now_seconds: float, known: Container[str] = ()) -> Eligibility:
    """Return the role of a job. partitions: the managed partitions; known: jobs already managed."""
    if not job.is_in(partitions):
        return Eligibility(Role.OTHER, "it is in another partition")
    if not set(partitions).issuperset(job.partitions):
        return Eligibility(Role.OTHER, SEVERAL_PARTITIONS)
    if not job.num_gpus:
        return Eligibility(Role.OTHER, "it asks for no GPUs")
    obstacle = _obstacle(job, known)
    if obstacle:
        return Eligibility(Role.OTHER, obstacle)
    why = _why_not_managed(job, now_seconds) if job.phase is Phase.WAITING else ""
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


def _obstacle(job: SlurmJob, known: Container[str]) -> str:
    if job.obstacles:
        return job.obstacles[0]
    if len(job.requested) > 1:
        return f"it asks for GPUs of several types ({', '.join(sorted(name or 'any' for name in job.requested))})"
    annotation = parse_annotation(job.admin_comment)
    is_alone = None if annotation is None else annotation.is_alone
    if is_alone:
        return REQUESTS_WHOLE_NODES
    if is_alone is None and not job.tells_sharing:
        return UNKNOWN_SHARING
    is_new = job.job_id not in known and (annotation is None or annotation.place is None)
    if is_new and job.required_nodes:
        return CERTAIN_NODES
    return "it has a --constraint other than names joined by & or |" if not is_plain(job.features) else ""


def _why_not_managed(job: SlurmJob, now_seconds: float) -> str:
    if job.is_held:
        return "its user or an administrator holds it"
    if job.dependency:
        return f"it waits for another job, {job.dependency}"
    # A requeue sets a start time too, which the driver may change.
    begins = job.eligible_seconds
    return "it begins later" if begins is not None and begins > now_seconds and job.restarts == 0 else ""
