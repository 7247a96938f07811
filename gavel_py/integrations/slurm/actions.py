"""The actions that make Slurm run a round: jobs to warn, stop and start, some of them only after others have stopped."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field, replace

from gavel_py.integrations.slurm import job_roles
from gavel_py.integrations.slurm.accounts import Accounts
from gavel_py.integrations.slurm.client.notation import StopSignal
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.sizes import node_range

Target = Mapping[str, int]
"""{node: GPUs}."""


@dataclass(frozen=True)
class Actions:
    """The actions on jobs that make Slurm run a round.

    Attributes:
        keep: Jobs that continue to run.
        stop: Jobs that are preempted or moved.
        bind: Waiting jobs that are to wait for the driver.
        start: {job: {node: GPUs}} of jobs to start.
        cannot: {job: reason} of jobs that cannot be started as planned.
        misfits: The jobs of `cannot` for which waiting does not help.
        give_back: {job: reason} of waiting jobs to leave to Slurm.
        annotations: {job: AdminComment} to write.
        warn: {job: signal} of jobs in `keep` that will be stopped later.
        deferred: {job: reason} of jobs that start after others have stopped.
        revive: Jobs that failed after such a signal, to requeue.
        limits: {job: minutes} of time limits to set at starts.
    """

    keep: tuple[str, ...]
    stop: tuple[str, ...]
    bind: tuple[str, ...]
    start: Mapping[str, Target]
    cannot: Mapping[str, str]
    misfits: frozenset[str]
    give_back: Mapping[str, str]
    annotations: Mapping[str, str]
    warn: Mapping[str, StopSignal] = field(default_factory=dict)
    deferred: Mapping[str, str] = field(default_factory=dict)
    revive: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def stopped(self) -> tuple[str, ...]:
        """Jobs that wait for the driver afterwards, unless they start again."""
        return (*self.stop, *self.revive)

    @property
    def is_nothing(self) -> bool:
        """Whether nothing in Slurm has to change."""
        return not (self.stop or self.bind or self.start or self.give_back or self.warn or self.revive)


def actions_for(
    targets: Mapping[str, Target],
    jobs: Mapping[str, SlurmJob],
    managed: Mapping[str, Tracked],
    unresponsive: Collection[str],
    excluded: Mapping[str, str],
    bind: Collection[str] = (),
) -> Actions:
    """Compare the targets of a round with the jobs in Slurm, and return the actions.

    Jobs on unresponsive nodes continue to run: if such a node is dead, Slurm 22.05 loses count of the GPUs of a job that is being
    stopped there, and never assigns the job's next GPUs to another job.

    Args:
        targets: {job: {node: GPUs}} of the jobs that are to run.
        jobs: All jobs in Slurm.
        managed: {job: record} of the jobs that may be changed.
        unresponsive: Nodes on which no job can start.
        excluded: {job: reason} of managed jobs that the round leaves to Slurm.
        bind: Waiting jobs that are not bound to the driver's lease and are not left to Slurm.
    """
    live = [jobs[job_id] for job_id in managed if job_id in jobs and not jobs[job_id].phase.is_over]
    planned = [job for job in live if job.job_id not in excluded]
    running = [job for job in planned if job.phase is Phase.RUNNING]
    keep = dict.fromkeys(
        job.job_id for job in running if dict(job.held) == targets.get(job.job_id) or any(node in unresponsive for node in job.held)
    )
    stop = [job for job in running if job.job_id not in keep]
    wanted = {job.job_id: targets[job.job_id] for job in planned if job.job_id in targets and job.job_id not in keep}
    misfits = {i: why for i, target in wanted.items() if (why := _misfit(target, managed[i]))}
    silent = {i: next((node for node in target if node in unresponsive), "") for i, target in wanted.items()}
    cannot = misfits | {i: f"node {node} does not respond" for i, node in silent.items() if node}
    start = {job_id: target for job_id, target in wanted.items() if job_id not in cannot}
    # Also those that start: Slurm would place them as soon as others have stopped.
    bound = [job_id for job_id in bind if job_id not in excluded]
    marked = [*stop, *(jobs[job_id] for job_id in bound if job_id in managed)]
    new = [job.job_id for job in marked if job_roles.parse_annotation(job.admin_comment) is None]
    comments = {
        job_id: job_roles.annotated(REASON.sub("", jobs[job_id].admin_comment), each.arrival_seconds, each.place, node_range(each))
        for job_id, each in ((job_id, managed[job_id]) for job_id in dict.fromkeys([*new, *start]))
    }
    # The driver has set the nodes that managed jobs request.
    returned = [job for job in live if job.phase is Phase.WAITING and (job.leases or job.required_nodes)]
    return Actions(
        keep=tuple(keep),
        stop=tuple(job.job_id for job in stop),
        bind=tuple(bound),
        start=start,
        cannot=cannot,
        misfits=frozenset(misfits),
        give_back={job.job_id: excluded[job.job_id] for job in returned if job.job_id in excluded},
        annotations={i: text for i, text in comments.items() if text is not None and text != jobs[i].admin_comment},
    )


REASON = re.compile(r";?gavel-why=([^;]*)")
"""Why a job waits, in its AdminComment, where users see it with `scontrol show job`."""

MAX_REASON = 160


def with_reason(admin_comment: str, reason: str) -> str | None:
    """Return an AdminComment with the reason why the job waits, "" for none, or None if the rest of it cannot be written safely.

    >>> with_reason("gavel:submit=1700000000;place=any;gavel-why=it_had_just_arrived", "others were owed more")
    'gavel:submit=1700000000;place=any;gavel-why=others_were_owed_more'
    """
    rest = REASON.sub("", admin_comment).strip(" ;")
    if not job_roles.SAFE_TEXT.fullmatch(rest):
        return None
    words = re.sub(r"[^A-Za-z0-9_.:,+@/=-]+", "_", reason)[:MAX_REASON]
    return ";".join(filter(None, [rest.replace(" ", "_"), f"gavel-why={words}" if reason else ""]))


def reason_in(admin_comment: str) -> str:
    """Return the reason in an AdminComment, "" if it has none."""
    found = REASON.search(admin_comment)
    return "" if found is None else found[1].replace("_", " ")


def has_marks(admin_comment: str) -> bool:
    """Return whether an AdminComment has an annotation or a reason."""
    return bool(job_roles.ANNOTATION.search(admin_comment) or REASON.search(admin_comment))


def without_marks(admin_comment: str) -> str | None:
    """Return an AdminComment without annotation and reason, or None if the rest of it cannot be written safely.

    >>> without_marks("project_7;gavel:submit=1700000000;shared;place=any;gavel-why=nodes_were_down")
    'project_7'
    """
    return with_reason(job_roles.ANNOTATION.sub("", admin_comment), "")


def _misfit(target: Target, tracked: Tracked) -> str:
    """Return why Slurm cannot give a job these GPUs, or "". For 3 GPUs on two nodes, for example, it may allocate 3 on each."""
    if len(set(target.values())) > 1:
        split = " + ".join(str(count) for _, count in sorted(target.items()))
        return f"it fits only as {split} GPUs on {len(target)} nodes, and Slurm cannot allocate an uneven split"
    if tracked.exact_nodes and not tracked.gpus_per_node and len(target) != tracked.exact_nodes:
        return f"it must be on {tracked.exact_nodes} nodes (--ntasks-per-node), but fits only on {len(target)}"
    return ""


def with_grace(
    actions: Actions, jobs: Mapping[str, SlurmJob], warned: Mapping[str, float], settings: SlurmSettings, now_seconds: float
) -> Actions:
    """Warn jobs before they are stopped, and let them run until their grace period is over.

    Starts on their nodes are deferred. warned: {job: time from which it may be stopped} of the jobs that have been warned.
    """
    signals = {i: signal for i in actions.stop if (signal := settings.stop_signal(job_roles.parse_comment(jobs[i].comment)))}
    fresh = {job_id: signal for job_id, signal in signals.items() if job_id not in warned}
    spared = [job_id for job_id in actions.stop if job_id in fresh or now_seconds < warned.get(job_id, now_seconds)]
    if not spared:
        return actions
    busy = {node: job_id for job_id in spared for node in jobs[job_id].held}
    deferred = {job_id: "it moves when its grace period is over" for job_id in spared if job_id in actions.start}
    for job_id, target in actions.start.items():
        others = [busy[node] for node in target if node in busy]
        if others and job_id not in deferred:
            deferred[job_id] = f"it starts once job {others[0]} has stopped, which has been warned"
    return replace(
        actions,
        keep=(*actions.keep, *spared),
        stop=tuple(job_id for job_id in actions.stop if job_id not in set(spared)),
        start={job_id: target for job_id, target in actions.start.items() if job_id not in deferred},
        warn=fresh,
        deferred=deferred,
    )


def within_limits(actions: Actions, jobs: Mapping[str, SlurmJob], accounts: Accounts) -> Actions:
    """Defer the starts that would exceed a limit of GPUs while jobs that have been warned hold more than is planned for them."""
    changed = {*actions.stop, *actions.start}
    held = {i: sum(job.held.values()) for i, job in jobs.items() if job.held and not job.phase.is_over and i not in changed}
    early = accounts.too_early(jobs, held, {i: sum(target.values()) for i, target in actions.start.items()})
    start = {job_id: target for job_id, target in actions.start.items() if job_id not in early}
    return replace(actions, start=start, deferred={**actions.deferred, **early})


def revived(jobs: Mapping[str, SlurmJob], warned: Container[str]) -> Mapping[str, SlurmJob]:
    """Return the jobs; those that failed after a warning count as stopping, since they are requeued without loss.

    A job that does not handle the signal fails, and a script that writes a checkpoint and then exits may look like a failure.
    """
    failed = [job for job_id, job in jobs.items() if job_id in warned and "FAILED" in job.states]
    return {**jobs, **{job.job_id: replace(job, phase=Phase.STOPPING, held={}, used={}) for job in failed}} if failed else jobs


def time_left(job: SlurmJob, tracked: Tracked) -> int | None:
    """Return the minutes left of a job's time limit, which Slurm restarts at each start; None if the limit need not change."""
    used = int((tracked.running_seconds - tracked.limit_counted_seconds) // 60)
    return None if job.time_limit_seconds is None or used < 1 else max(1, int(job.time_limit_seconds // 60) - used)


MAX_FILL_INTERVAL_SECONDS = 30.0
"""Longest interval between attempts: even if no job has changed, nodes may have returned or back-offs may be over."""


class FillTrigger:
    """Decides when to try again to start jobs within a round, from the jobs at the last attempt."""

    def __init__(self) -> None:
        self._jobs: object = None
        self._seconds = -math.inf

    def is_due(self, jobs: Mapping[str, SlurmJob], now: float) -> bool:
        """Return whether another attempt is worthwhile: jobs wait, and either some have changed or the last attempt is long ago."""
        current = {job_id: (job.phase, job.is_held, job.leases, job.partition, job.comment) for job_id, job in jobs.items()}
        waits = any(job.phase is Phase.WAITING for job in jobs.values())
        if not waits or (current == self._jobs and now - self._seconds < MAX_FILL_INTERVAL_SECONDS):
            return False
        self._jobs, self._seconds = current, now
        return True
