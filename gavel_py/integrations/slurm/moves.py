"""What a round comes to in Slurm: which jobs keep their GPUs, which are stopped, held, started, and how each start is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gavel_py.integrations.slurm.hostlists import is_node_name
from gavel_py.integrations.slurm.marks import mark_in, with_mark
from gavel_py.integrations.slurm.records import Phase, SlurmJob, SlurmNode
from gavel_py.integrations.slurm.roles import REQUEUED_ON_HOLD
from gavel_py.integrations.slurm.tracked import Tracked
from gavel_py.scheduling import Round

__all__ = [
    "Moves",
    "crowded_out",
    "first_of",
    "is_as_planned",
    "is_job_id",
    "mark_orders",
    "moves_of",
    "orders_of",
    "retarget_of",
    "returns_of",
    "targets_of",
]

Target = Mapping[str, int]
"""{node: GPUs}."""

MOST_IDS = 100
"""Jobs named in one line of a command."""

HIGHEST = 4_294_967_293
"""The highest priority that Slurm knows; the two numbers above it mean something else."""


@dataclass(frozen=True)
class Moves:
    """keep: run as they should; stop: run, and should not, or elsewhere; hold: wait, and Slurm might start them by itself, or were
    stopped by a driver that was killed then; start: {job: {node: GPUs}}, where they are to run; cannot: {job: why} of those
    that cannot be started as it was decided; misfits: those of them that Slurm would not start there later either; give_back:
    {job: why} of those that wait on a hold of ours, or for nodes that we named, and are left to Slurm; marks: {job:
    AdminComment} of those to be stopped, held or started that Slurm does not show as managed yet.
    """

    keep: tuple[str, ...]
    stop: tuple[str, ...]
    hold: tuple[str, ...]
    start: Mapping[str, Target]
    cannot: Mapping[str, str]
    misfits: frozenset[str]
    give_back: Mapping[str, str]
    marks: Mapping[str, str]


def targets_of(begun: Round) -> dict[str, dict[str, int]]:
    """Return {job: {node: GPUs}} of a round."""
    return {job_id: dict(Counter(node for node, _ in held.gpus)) for job_id, held in begun.assignments.items()}


def moves_of(
    targets: Mapping[str, Target],
    jobs: Mapping[str, SlurmJob],
    managed: Mapping[str, Tracked],
    silent: Collection[str] = (),
    left: Mapping[str, str] | None = None,
    crowded: Mapping[str, str] | None = None,
) -> Moves:
    """Return what is to be done.

    Args:
        targets: where the jobs of the round are to run.
        jobs: all jobs as Slurm has them now.
        managed: those that may be touched.
        silent: nodes on which nobody can start. Who runs there goes on: if the node turns out to be dead, Slurm 22.05 loses count
            of the GPUs of a job that was being stopped there, and gives those that it has next to nobody after it.
        left: {job: why} of the managed jobs that the round leaves out, since they can run nowhere: they are Slurm's to schedule.
        crowded: {job: why} of those for which other jobs leave no room (`crowded_out`).
    """
    left, crowded = left or {}, crowded or {}
    there = [jobs[job_id] for job_id in managed if job_id in jobs and not jobs[job_id].phase.is_over]
    ours = [job for job in there if job.job_id not in left]
    keep = dict.fromkeys(job.job_id for job in ours if job.phase is Phase.RUNNING and _stays(job, targets, silent))
    wanted = {job.job_id: targets[job.job_id] for job in ours if job.job_id in targets and job.job_id not in keep}
    misfits = {job_id: why for job_id in wanted if (why := crowded.get(job_id) or _misfit(wanted[job_id], managed[job_id]))}
    cannot = misfits | {job_id: why for job_id, target in wanted.items() if (why := _why_not(target, silent))}
    stop = [job for job in ours if job.phase is Phase.RUNNING and job.job_id not in keep]
    hold = [job for job in ours if job.phase is Phase.WAITING and _needs_hold(job)]
    start = {job_id: target for job_id, target in wanted.items() if job_id not in cannot}
    marks = {job.job_id: _mark_of(job, managed[job.job_id]) for job in [*stop, *hold] if mark_in(job.admin_comment) is None}
    marks |= {job_id: _mark_of(jobs[job_id], managed[job_id]) for job_id in start}
    return Moves(
        keep=tuple(keep),
        stop=tuple(job.job_id for job in stop),
        hold=tuple(job.job_id for job in hold),
        start=start,
        cannot=cannot,
        misfits=frozenset(misfits),
        give_back={job.job_id: left[job.job_id] for job in there if job.job_id in left and _is_ours_to_give(job)},
        marks={job_id: mark for job_id, mark in marks.items() if mark is not None and mark != jobs[job_id].admin_comment},
    )


def _is_ours_to_give(job: SlurmJob) -> bool:
    """A managed job that waits on hold waits on a hold of ours; nodes that it asks for, we have named."""
    return job.phase is Phase.WAITING and (job.is_held or bool(job.required_nodes))


def _mark_of(job: SlurmJob, tracked: Tracked) -> str | None:
    return with_mark(job.admin_comment, tracked.arrival_seconds, tracked.place)


def _needs_hold(job: SlurmJob) -> bool:
    """As an administrator's hold, what stopped a job can be told from a hold of its user."""
    return not job.is_held or REQUEUED_ON_HOLD in job.description


def _stays(job: SlurmJob, targets: Mapping[str, Target], silent: Collection[str]) -> bool:
    return dict(job.held) == targets.get(job.job_id) or any(node in silent for node in job.held)


def _why_not(target: Target, silent: Collection[str]) -> str:
    return next((f"node {node} does not respond" for node in target if node in silent), "")


def _misfit(target: Target, tracked: Tracked) -> str:
    """Slurm cannot be told an uneven split: asked for 3 GPUs on two nodes, it may give 3 on each."""
    if len(set(target.values())) > 1:
        split = " + ".join(str(count) for _, count in sorted(target.items()))
        return f"there is room for it only as {split} GPUs on {len(target)} nodes, and Slurm cannot be told such a split"
    if tracked.exact_nodes and len(target) != tracked.exact_nodes:
        return f"it must be on {tracked.exact_nodes} nodes (--ntasks-per-node), and there is room for it only on {len(target)}"
    return ""


def crowded_out(
    targets: Mapping[str, Target],
    running: Collection[str],
    cpus_per_gpu: Mapping[str, float],
    nodes: Mapping[str, SlurmNode],
    used_cpus: Mapping[str, float],
) -> dict[str, str]:
    """Return {job: why} of those that are to start where jobs that are not managed leave too few CPUs.

    Args:
        targets: where the jobs of the round are to run.
        running: those that run there already.
        cpus_per_gpu: what the jobs need.
        nodes: as Slurm has them now.
        used_cpus: {node: CPUs} of the jobs that are not managed.
    """
    found: dict[str, str] = {}
    for name, used in used_cpus.items():
        asked = {job_id: cpus_per_gpu[job_id] * target[name] for job_id, target in targets.items() if name in target}
        free = nodes[name].cpus - used - sum(asked.values()) if name in nodes and nodes[name].cpus else 0.0
        # Those that ask for most give way: so the fewest have to.
        for job_id in sorted(asked.keys() - running, key=asked.__getitem__, reverse=True):
            if free >= 0:
                break
            free += asked[job_id]
            found[job_id] = f"other jobs leave too few CPUs on node {name}"
    return found


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


def retarget_of(job: SlurmJob, target: Target) -> str:
    """Return the line for scontrol that has a waiting job start on these nodes, and on no others.

    On several nodes, GPUs are asked for by node, whatever the request was: only so is the split as it was decided. Slurm 22.05
    never forgets such a request, so a job on one node keeps its own. A type that the job names stays; Slurm accepts another one,
    and then never starts the job.
    """
    if not (is_job_id(job.job_id) and target and all(map(is_node_name, target))):
        raise ValueError(f"job {job.job_id!r} cannot be sent to {list(target)!r}")
    (count,) = set(target.values())
    # With one number, Slurm refuses more nodes than the job's user asked for.
    line = f"update JobId={job.job_id} NumNodes={len(target)}-{len(target)} ReqNodeList={','.join(sorted(target))}"
    if len(target) > 1 or job.per_node:
        line += _by_node(job, count)
    return f"{line} StartTime=now"


def _by_node(job: SlurmJob, count: int) -> str:
    (kind,) = job.requested
    return f" TresPerJob= Gres={f'gpu:{kind}' if kind else 'gpu'}:{count}"


def first_of(job_ids: Iterable[str]) -> list[str]:
    """Return the lines for scontrol that put released jobs ahead of all that wait in Slurm's own queue.

    One of those that waits for many nodes would otherwise keep Slurm from starting anything that might delay it.
    """
    return [f"update JobId={job_id} Priority={HIGHEST}" for job_id in job_ids if is_job_id(job_id)]


def returns_of(jobs: Iterable[SlurmJob], known: Mapping[str, Tracked], most_nodes: int) -> list[str]:
    """Return the lines for scontrol that give jobs on hold back to Slurm, to be started wherever it likes.

    Args:
        jobs: as Slurm has them now.
        known: what their requests were, of those whose requests this program may have changed.
        most_nodes: how many nodes there are, which stands for no limit.
    """
    jobs = [job for job in jobs if is_job_id(job.job_id)]
    touched = [job for job in jobs if job.job_id in known and (job.required_nodes or job.restarts)]
    own = [_own_request(job, known[job.job_id], most_nodes) for job in touched]
    return [*own, *orders_of("release", (job.job_id for job in jobs))]


def _own_request(job: SlurmJob, tracked: Tracked, most_nodes: int) -> str:
    """The line that undoes `retarget_of`, as far as Slurm can: where GPUs are asked for by node, they stay so."""
    line = f"update JobId={job.job_id} StartTime=now"  # a requeue has put it off
    if not job.required_nodes:
        return line
    is_same = job.num_gpus == tracked.num_gpus and len(job.requested) == 1
    if not is_same or (job.per_node and not tracked.per_node):
        return f"{line} ReqNodeList= NumNodes={job.nodes}-{job.nodes}"  # on another number, it would get other GPUs
    most = tracked.most_nodes or max(most_nodes, tracked.fewest_nodes)
    by_node = _by_node(job, job.num_gpus // tracked.fewest_nodes) if tracked.per_node else ""
    return f"{line} ReqNodeList= NumNodes={tracked.fewest_nodes}-{most}{by_node}"
