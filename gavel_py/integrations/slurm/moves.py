"""What a round comes to in Slurm: which jobs keep their GPUs, which are stopped, held, started, and how each start is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gavel_py.integrations.slurm.hostlists import is_node_name
from gavel_py.integrations.slurm.marks import mark_in, with_mark
from gavel_py.integrations.slurm.records import Phase, SlurmJob
from gavel_py.integrations.slurm.roles import REQUEUED_ON_HOLD
from gavel_py.integrations.slurm.tracked import Tracked
from gavel_py.rounds import Round

__all__ = ["Moves", "is_as_planned", "is_job_id", "mark_orders", "moves_of", "orders_of", "retarget_of", "targets_of"]

Target = Mapping[str, int]
"""{node: GPUs}."""

MOST_IDS = 100
"""Jobs named in one line of a command."""


@dataclass(frozen=True)
class Moves:
    """keep: run as they should; stop: run, and should not, or elsewhere; hold: wait, and Slurm might start them by itself, or were
    stopped by a driver that was killed then; start: {job: {node: GPUs}}, where they are to run; cannot: {job: why} of those that
    cannot be started as it was decided; marks: {job: AdminComment} of those to be stopped or held that nothing in Slurm shows to be
    managed yet.
    """

    keep: tuple[str, ...]
    stop: tuple[str, ...]
    hold: tuple[str, ...]
    start: Mapping[str, Target]
    cannot: Mapping[str, str]
    marks: Mapping[str, str]


def targets_of(begun: Round) -> dict[str, dict[str, int]]:
    """Return {job: {node: GPUs}} of a round."""
    return {job_id: dict(Counter(node for node, _ in held.gpus)) for job_id, held in begun.assignments.items()}


def moves_of(
    targets: Mapping[str, Target], jobs: Mapping[str, SlurmJob], managed: Mapping[str, Tracked], silent: Collection[str] = ()
) -> Moves:
    """Return what is to be done; jobs: as Slurm has them now; managed: those that may be touched; silent: nodes on which nobody can
    start.

    Who runs on a silent node goes on: if it turns out to be dead, Slurm 22.05 loses count of the GPUs of a job that was being
    stopped there, and gives those that it has next to nobody after it.
    """
    there = [jobs[job_id] for job_id in managed if job_id in jobs and not jobs[job_id].phase.is_over]
    keep = {job.job_id for job in there if job.phase is Phase.RUNNING and _stays(job, targets, silent)}
    wanted = {job.job_id: targets[job.job_id] for job in there if job.job_id in targets and job.job_id not in keep}
    cannot = {job.job_id: _why_not(wanted[job.job_id], silent) for job in there if job.job_id in wanted}
    cannot = {job_id: why for job_id, why in cannot.items() if why}
    stop = [job for job in there if job.phase is Phase.RUNNING and job.job_id not in keep]
    hold = [job for job in there if job.phase is Phase.WAITING and _needs_hold(job)]
    marks = {job.job_id: _mark_of(job, managed[job.job_id]) for job in [*stop, *hold] if mark_in(job.admin_comment) is None}
    return Moves(
        keep=tuple(job.job_id for job in there if job.job_id in keep),
        stop=tuple(job.job_id for job in stop),
        hold=tuple(job.job_id for job in hold),
        start={job_id: target for job_id, target in wanted.items() if job_id not in cannot},
        cannot=cannot,
        marks={job_id: mark for job_id, mark in marks.items() if mark is not None},
    )


def _mark_of(job: SlurmJob, tracked: Tracked) -> str | None:
    return with_mark(job.admin_comment, tracked.arrival_seconds, tracked.place)


def _needs_hold(job: SlurmJob) -> bool:
    """As an administrator's hold, what stopped a job can be told from a hold of its user."""
    return not job.is_held or REQUEUED_ON_HOLD in job.description


def _stays(job: SlurmJob, targets: Mapping[str, Target], silent: Collection[str]) -> bool:
    return dict(job.held) == targets.get(job.job_id) or any(node in silent for node in job.held)


def _why_not(target: Target, silent: Collection[str]) -> str:
    """Slurm cannot be told an uneven split: asked for 3 GPUs on two nodes, it may give 3 on each."""
    for node in target:
        if node in silent:
            return f"node {node} does not respond"
    if len(set(target.values())) == 1:
        return ""
    split = " + ".join(str(count) for _, count in sorted(target.items()))
    return f"there is room for it only as {split} GPUs on {len(target)} nodes, and Slurm cannot be told such a split"


def is_job_id(text: str) -> bool:
    """Say whether this is how commands call a job; nothing else goes into one."""
    first, _, task = text.partition("_")
    return text.isascii() and first.isdecimal() and ("_" not in text or task.isdecimal())


def orders_of(verb: str, job_ids: Iterable[str]) -> list[str]:
    """Return the lines for scontrol that do the same to many jobs: hold, requeuehold, release."""
    ids = [job_id for job_id in job_ids if is_job_id(job_id)]
    return [f"{verb} {','.join(ids[at : at + MOST_IDS])}" for at in range(0, len(ids), MOST_IDS)]


def mark_orders(marks: Mapping[str, str]) -> list[str]:
    """Return the lines for scontrol that note in Slurm which jobs are managed: it stays known also if the state here is lost."""
    return [f"update JobId={job_id} AdminComment={mark}" for job_id, mark in marks.items() if is_job_id(job_id)]


def is_as_planned(job: SlurmJob | None, tracked: Tracked) -> bool:
    """Say whether a job waits, and still asks for as many GPUs as it was planned with: its user may have changed it since."""
    if job is None or job.phase is not Phase.WAITING or job.num_gpus != tracked.num_gpus:
        return False
    return len(job.requested) == 1 and all(not kind or is_node_name(kind) for kind in job.requested)


def retarget_of(job: SlurmJob, tracked: Tracked, target: Target) -> str:
    """Return the line for scontrol that has a waiting job start on these nodes, and on no others.

    GPUs are asked for by node, whatever the request was: only so is the split as it was decided. A type that the job names stays;
    Slurm accepts another one, and then never starts the job.
    """
    if not (is_job_id(job.job_id) and target and all(map(is_node_name, target))):
        raise ValueError(f"job {job.job_id!r} cannot be sent to {list(target)!r}")
    (kind,) = job.requested
    gpu = f"gpu:{kind}" if kind else "gpu"
    (count,) = set(target.values())
    # With one number, Slurm refuses more nodes than the job's user asked for.
    nodes = f"NumNodes={len(target)}-{len(target)} ReqNodeList={','.join(sorted(target))}"
    line = f"update JobId={job.job_id} {nodes} TresPerJob= Gres={gpu}:{count} StartTime=now"
    mark = _mark_of(job, tracked)
    return line if mark is None or mark == job.admin_comment else f"{line} AdminComment={mark}"
