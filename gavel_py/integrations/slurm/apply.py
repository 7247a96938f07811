"""Execution of a round: stop jobs, wait, set the nodes of jobs to start, start them, wait, and compare with the plan.

Waiting jobs depend on the lease of the driver (`lease`); Slurm starts a job when the driver removes the dependency.

The functions at the end of the module build the scontrol commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from gavel_py.integrations.slurm.actions import Actions, Target
from gavel_py.integrations.slurm.client.commands import SlurmCommands, WallClock
from gavel_py.integrations.slurm.client.notation import is_node_name, printable
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from gavel_py.integrations.slurm.job_roles import parse_annotation
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.integrations.slurm.sizes import is_own_request, request_of, restore_fields, start_fields, task_fields

Jobs = Mapping[str, SlurmJob]

MAX_IDS = 100
"""Maximum number of jobs in one command."""

MAX_PRIORITY = 4_294_967_293
"""The two values above this are NO_VAL and INFINITE."""

UNAVAILABLE = "ReqNodeNotAvail"
"""Slurm's reason for a job whose nodes are draining, down or reserved."""

MIN_POLL, MAX_POLL = 0.1, 2.0
"""Seconds between two readings while waiting."""

PATIENCE_SECONDS = 10.0
"""How long all starts wait for all stops; after that, only starts on nodes that are still in use keep waiting."""

SAME_NODE_SECONDS = 1.0
"""Minimum time between the stop of a job and its start on a node that it has left: in Slurm 22.05, a job that starts there again in
the second of its stop fails, since slurmd takes its new credential for the one that was revoked."""

ENDING_SECONDS = 10.0
"""Maximum wait after the driver has been asked to end; the next driver handles the rest."""


@dataclass
class Applied:
    """The outcome of a round.

    Attributes:
        kept: Jobs that kept running.
        stopped: Jobs that were to stop.
        started: Jobs that run as planned.
        elsewhere: {job: {node: GPUs}} of jobs that run on other GPUs than planned.
        waiting: {job: why} of jobs that did not start and wait for the driver again.
        left: Jobs to start that have ended in the meantime, or have started and are ending.
        lingering: Jobs that did not stop in time.
        given_back: Jobs left to Slurm.
        sent: Jobs that were let go to start.
        errors: Error messages of Slurm.
        jobs: Jobs as last read.
        stop_seconds: Duration of stopping.
        start_seconds: Duration of starting.
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
    jobs: Jobs = field(default_factory=dict)
    stop_seconds: float = 0.0
    start_seconds: float = 0.0


OUTCOME = ("started", "elsewhere", "waiting", "left", "lingering", "given_back", "errors")
"""Parts of `Applied` in the log."""


@dataclass(frozen=True)
class Applier:
    """Carries out the actions of one round.

    tracked: {job: record} of the jobs concerned; lease: the job on which those that wait depend, and for how many seconds at most;
    partition_nodes: as for `restore_lines`; read: returns the jobs as they are now; beat: called repeatedly while waiting.
    """

    actions: Actions
    tracked: Mapping[str, Tracked]
    commands: SlurmCommands
    clock: WallClock
    lease: Term
    partition_nodes: int
    read: Callable[[], Jobs]
    beat: Callable[[], None] = lambda: None
    applied: Applied = field(default_factory=Applied)

    def apply(self, jobs: Jobs, stop_limit: float, start_limit: float, *, may_annotate: bool) -> Applied:
        """Carry out the actions and return the outcome.

        Args:
            jobs: The jobs as read before.
            stop_limit: Seconds that jobs may take to stop.
            start_limit: Seconds that they may take to start.
            may_annotate: Whether annotations may be written.

        Raises:
            SlurmError: Slurm does not answer.
        """
        actions, applied = self.actions, self.applied
        applied.kept, applied.stopped, applied.waiting = actions.keep, actions.stop, dict(actions.cannot)
        began = self.clock.now()
        # Slurm rejects a whole line because of one denied field, so annotations are separate lines. Without "Incomplete", a job
        # that has ended since the snapshot would run again, even if its user has cancelled it.
        annotations = annotation_lines(actions.annotations) if may_annotate else []
        stops = [*batch_lines("requeue Incomplete", actions.stop), *batch_lines("requeue", actions.revive)]
        # At once, although jobs are still ending: Slurm would start them again after a while.
        stops += [self.lease.bind(jobs[job_id]) for job_id in actions.stopped if is_job_id(job_id)]
        self._warn()
        self._scontrol([*annotations, *self._bindings(actions.bind, jobs), *stops])
        jobs = self._stop_and_start(stop_limit)
        applied.stop_seconds = self.clock.now() - began
        if applied.sent:
            patient_until = self.clock.now() + PATIENCE_SECONDS
            jobs = self._wait(lambda jobs: not self._are_starting(jobs, patient_until), start_limit)
        self._compare(jobs)
        applied.start_seconds = self.clock.now() - began - applied.stop_seconds
        # Done last, so that jobs left to Slurm do not take GPUs meant for others.
        returned = [applied.jobs[job_id] for job_id in actions.give_back if _is_waiting(applied.jobs.get(job_id))]
        ahead = batch_lines("release", (job.job_id for job in returned if job.priority == MAX_PRIORITY))
        self._scontrol([*ahead, *restore_lines(returned, self.tracked, self.partition_nodes)])
        applied.given_back = [job.job_id for job in returned]
        return applied

    def _warn(self) -> None:
        """Send the signals that warn jobs of a stop, except to jobs that have ended."""
        groups: dict[tuple[str, bool], list[str]] = {}
        for job_id, signal in self.actions.warn.items():
            if is_job_id(job_id):
                groups.setdefault((signal.name, signal.to_script), []).append(job_id)
        for (name, to_script), job_ids in groups.items():
            for at in range(0, len(job_ids), MAX_IDS):
                whom = ["--batch"] if to_script else []
                result = self.commands.run(["scancel", f"--signal={name}", *whom, *job_ids[at : at + MAX_IDS]])
                self.applied.errors += [printable(line) for line in result.err.splitlines() if line.strip()]

    def _stop_and_start(self, stop_limit: float) -> Jobs:
        """Wait until jobs have stopped, let the jobs to start go, and return the jobs as last read.

        A slow stop, for example on a node that has just died, only delays the jobs that get its GPUs.
        """
        applied, start = self.applied, self.actions.start
        patience = min(PATIENCE_SECONDS, stop_limit)
        returns = any(not self.tracked[job_id].held.keys().isdisjoint(start.get(job_id, ())) for job_id in self.actions.stop)
        earliest = self.clock.now() + (SAME_NODE_SECONDS if returns else 0.0)
        jobs = self._wait(lambda jobs: not self._stopping(jobs) and self.clock.now() >= earliest, patience)
        slow = self._stopping(jobs)
        if slow:
            busy = {node for job_id in slow for node in (*self.tracked[job_id].held, *jobs[job_id].held)}
            self._start([job_id for job_id, target in start.items() if not busy & target.keys()], self.actions.stopped, jobs)
            jobs = self._wait(lambda jobs: not self._stopping(jobs), stop_limit - patience)
        applied.lingering = self._stopping(jobs)
        sent = set(applied.sent)
        return self._start([i for i in start if i not in sent], [i for i in self.actions.stopped if i not in sent], jobs)

    def _bindings(self, job_ids: Iterable[str], jobs: Jobs) -> list[str]:
        """Return the commands that make waiting jobs depend on the lease, with their own requests: Slurm may have to start them."""
        found = [jobs[job_id] for job_id in job_ids if _is_waiting(jobs.get(job_id))]
        return restore_lines(found, self.tracked, self.partition_nodes, self.lease)

    def _stopping(self, jobs: Jobs) -> list[str]:
        actions = self.actions
        found = []
        for job_id in {*actions.stop, *actions.start}.difference(self.applied.sent):
            job = jobs.get(job_id)
            if job is None or job.phase is Phase.WAITING or job.phase.is_over:
                continue
            # A job that Slurm has started since the snapshot is not stopping.
            if job_id in actions.stop or job.phase is not Phase.RUNNING:
                found.append(job_id)
        return sorted(found)

    def _start(self, job_ids: Iterable[str], stopped: Iterable[str], jobs: Jobs) -> Jobs:
        """Set the nodes of jobs, let those go for which Slurm accepts the change, and return the jobs as last read."""
        ready = [job_id for job_id in job_ids if is_as_planned(jobs.get(job_id), self.tracked[job_id])]
        self._scontrol(self._bindings(set(stopped).difference(ready), jobs))
        start, limits = self.actions.start, self.actions.limits
        self._scontrol([start_line(jobs[i], start[i], self.tracked[i], limits.get(i)) for i in ready])
        if ready:
            jobs = self.read()
        sent = [job_id for job_id in ready if _is_changed(jobs.get(job_id), start[job_id])]
        # To the front of Slurm's queue: it may reserve nodes for a large waiting job, and start nothing that would delay that one.
        self._scontrol([f"{FREE.bind(jobs[job_id])} Priority={MAX_PRIORITY}" for job_id in sent])
        self.applied.sent += sent
        return jobs

    def _are_starting(self, jobs: Jobs, patient_until: float) -> bool:
        """Return whether it is worthwhile to wait for the jobs that were let go.

        A job that is already ending either was cancelled or is requeued since its start has failed; its next state shows which.
        """
        is_patient = self.clock.now() < patient_until
        sent = [jobs[job_id] for job_id in self.applied.sent if job_id in jobs]
        return any(_is_starting(job) or (job.phase is Phase.STOPPING and is_patient) for job in sent)

    def _compare(self, jobs: Jobs) -> None:
        """Compare the running jobs with the plan, and make jobs that have not started wait for the driver again."""
        applied = self.applied
        for job_id, target in self.actions.start.items():
            job = jobs.get(job_id)
            if job is None or job.phase.is_over or (job.phase is Phase.STOPPING and job_id in applied.sent):
                applied.left.append(job_id)
            elif job.phase is Phase.RUNNING and (dict(job.held) == target or (job.held and job_id not in applied.lingering)):
                self._note_running(job)
            else:
                applied.waiting[job_id] = _why_not_started(job, target)
        free = [
            job_id for job_id in applied.waiting if _is_waiting(jobs.get(job_id)) and self.lease.job_id not in jobs[job_id].leases
        ]
        if free:
            self._scontrol(self._bindings(free, jobs))
            jobs = self.read()
            # Some may have started just before. Those without GPUs yet will have them when next read.
            for job in [jobs[job_id] for job_id in applied.waiting if job_id in jobs]:
                if job.phase is Phase.RUNNING and job.held:
                    del applied.waiting[job.job_id]
                    self._note_running(job)
        applied.jobs = jobs

    def _note_running(self, job: SlurmJob) -> None:
        if dict(job.held) == self.actions.start.get(job.job_id, {}):
            self.applied.started.append(job.job_id)
        else:
            self.applied.elsewhere[job.job_id] = dict(job.held)

    def _scontrol(self, lines: list[str]) -> None:
        """Run scontrol with these commands. It continues after errors, which are collected."""
        if lines:
            result = self.commands.run(["scontrol"], "\n".join([*lines, "quit"]) + "\n")
            self.applied.errors += [printable(line) for line in result.err.splitlines() if line.strip()]

    def _wait(self, is_done: Callable[[Jobs], bool], seconds: float) -> Jobs:
        """Read jobs until a condition holds or the time is up, and return the jobs as last read."""
        end, pause, is_ending = self.clock.now() + seconds, MIN_POLL, False
        while True:
            self.beat()
            jobs = self.read()
            if is_done(jobs) or self.clock.now() >= end:
                return jobs
            if not is_ending and not self.clock.sleep(pause):
                end, is_ending = min(end, self.clock.now() + ENDING_SECONDS), True
            pause = min(MAX_POLL, pause * 1.5)


def _is_waiting(job: SlurmJob | None) -> bool:
    return job is not None and job.phase is Phase.WAITING


def _is_starting(job: SlurmJob) -> bool:
    """Return whether a job that was let go may still start, so that waiting for it is worthwhile."""
    return job.phase is Phase.WAITING and not job.is_held and job.reason != UNAVAILABLE


def _is_changed(job: SlurmJob | None, target: Mapping[str, int]) -> bool:
    """Return whether Slurm has accepted the nodes and no user holds the job; without the nodes, it would start anywhere."""
    return (
        job is not None
        and set(job.required_nodes) == set(target)
        and not job.is_held
        and (job.nodes, job.num_gpus) == (len(target), sum(target.values()))
    )


def _why_not_started(job: SlurmJob, target: Mapping[str, int]) -> str:
    if job.phase is not Phase.WAITING:
        return f"it is {' '.join(sorted(job.states)).lower()}"
    if job.num_gpus != sum(target.values()):
        return "its user has changed it in the meantime"
    if not _is_changed(job, target):
        return "Slurm did not accept the selected nodes"
    return f"Slurm has not started it: {printable(job.reason)}"


def is_job_id(text: str) -> bool:
    """Return whether a text is a valid job id; only valid ids are used in commands."""
    first, _, task = text.partition("_")
    return text.isascii() and first.isdecimal() and ("_" not in text or task.isdecimal())


def batch_lines(verb: str, job_ids: Iterable[str]) -> list[str]:
    """Return scontrol commands that apply requeue or release to many jobs."""
    ids = [job_id for job_id in job_ids if is_job_id(job_id)]
    return [f"{verb} {','.join(ids[at : at + MAX_IDS])}" for at in range(0, len(ids), MAX_IDS)]


def annotation_lines(annotations: Mapping[str, str]) -> list[str]:
    """Return scontrol commands that write annotations, which identify managed jobs even if the driver's state is lost."""
    return [f"update JobId={job_id} AdminComment={text}" for job_id, text in annotations.items() if is_job_id(job_id)]


def is_as_planned(job: SlurmJob | None, tracked: Tracked) -> bool:
    """Return whether a job is waiting and still requests the number of GPUs with which it was planned."""
    if job is None or job.phase is not Phase.WAITING or not is_own_request(tracked, job.num_gpus):
        return False
    return len(job.requested) == 1 and all(not name or is_node_name(name) for name in job.requested)


def start_line(job: SlurmJob, target: Target, tracked: Tracked, limit: int | None = None) -> str:
    """Return the scontrol command that allows a waiting job to start only on certain nodes.

    On several nodes, GPUs are requested per node, since no other request fixes the split. Slurm 22.05 cannot undo that, so a job on
    one node keeps its own request. The GPU type is not changed: Slurm would accept another one, but never start the job. CPUs are
    spread evenly, since Slurm would otherwise fill the first node with tasks and take CPUs meant for other jobs.

    Args:
        job: The job.
        target: {node: GPUs}, with the same number on each node.
        tracked: The record of the job, with the user's request.
        limit: Its new time limit in minutes; None to leave it unchanged.
    """
    if not (is_job_id(job.job_id) and target and all(map(is_node_name, target))):
        raise ValueError(f"job {job.job_id!r} cannot be sent to {list(target)!r}")
    (count,) = set(target.values())
    # Written as a single number, Slurm would refuse more nodes than the user requested.
    line = f"update JobId={job.job_id} NumNodes={len(target)}-{len(target)} ReqNodeList={','.join(sorted(target))}"
    if len(target) > 1 or job.per_node or sum(target.values()) != job.num_gpus:
        line += _per_node(job, count)
    fields, cpus = start_fields(tracked, target)
    min_cpus, cpus = tracked.min_cpus, job.cpus if cpus is None else cpus
    if min_cpus is not None and len(target) > 1:
        min_cpus = max(min_cpus, cpus // len(target))
    line += fields
    line += "" if limit is None else f" TimeLimit={limit}"
    return f"{line}{_min_cpus(job, min_cpus)} StartTime=now"


def _min_cpus(job: SlurmJob, min_cpus: int | None) -> str:
    """Return the field that requests CPUs per node, "" if the request does not change."""
    if min_cpus is None or max(1, min_cpus) == max(1, job.cpus_per_node):
        return ""
    return f" MinCPUsNode={max(1, min_cpus)}"


def _per_node(job: SlurmJob, count: int) -> str:
    (name,) = job.requested
    return f" TresPerJob= Gres={f'gpu:{name}' if name else 'gpu'}:{count}"


class Term(NamedTuple):
    """What waiting jobs depend on: a job of Slurm, which ends when the driver has been dead for these seconds."""

    job_id: str = ""
    seconds: float = 0.0

    def is_due(self, job: SlurmJob, now_seconds: float) -> bool:
        """Return whether a waiting job has to be bound (again)."""
        if "?" in job.dependency:
            return bool(self.job_id) and (job.eligible_seconds or 0.0) - now_seconds < self.seconds / 2
        return self.job_id not in ("", *job.leases)

    def bind(self, job: SlurmJob) -> str:
        """Return the scontrol command that makes a job wait for the driver, besides what its user wants it to wait for.

        Slurm does not combine dependencies joined by ? with others. Such a job begins later instead, again and again until one of
        its dependencies is fulfilled.
        """
        if "?" in job.dependency:
            return f"update JobId={job.job_id} StartTime=now{f'+{self.seconds:.0f}' * bool(self.job_id)}"
        both = ",".join(filter(None, [job.dependency, f"afterany:{self.job_id}" * bool(self.job_id)]))
        note = parse_annotation(job.admin_comment)
        if note is None or note.begin_seconds is None or job.leases or job.restarts:
            return f"update JobId={job.job_id} Dependency={both}"
        begin = datetime.fromtimestamp(note.begin_seconds).isoformat(timespec="seconds") if note.begin_seconds else "now"
        return f"update JobId={job.job_id} Dependency={both} StartTime={begin}"


FREE = Term()
"""Jobs that wait for no driver."""


def restore_lines(jobs: Iterable[SlurmJob], known: Mapping[str, Tracked], partition_nodes: int, lease: Term = FREE) -> list[str]:
    """Return scontrol commands that restore the requests of waiting jobs and make them wait for a lease, or for none any more.

    known: {job: record} of the jobs whose requests the driver may have changed; partition_nodes: number of nodes in the partition,
    used as the maximum for requests without one.
    """
    jobs = [job for job in jobs if is_job_id(job.job_id)]
    changed = [job for job in jobs if job.job_id in known and (job.required_nodes or job.restarts)]
    updates = [_restore_line(job, known[job.job_id], partition_nodes) for job in changed]
    # For these jobs without a record, a driver has set the nodes; jobs whose users request nodes are left to Slurm.
    unknown = [job for job in jobs if job.job_id not in known and job.required_nodes and has_place(job)]
    updates += [_free_line(job) for job in unknown]
    # Bound first: with another request and nothing to wait for, a job could start before the driver has planned it.
    bound = [lease.bind(job) for job in jobs if lease.job_id not in job.leases]
    return [*bound, *updates] if lease.job_id else [*updates, *bound]


def _free_line(job: SlurmJob) -> str:
    """Return the command that removes the nodes set by a driver from a job without a record, and restores an elastic range."""
    annotation = parse_annotation(job.admin_comment)
    line = f"update JobId={job.job_id} ReqNodeList= StartTime=now"
    if annotation is None or annotation.nodes is None or len(job.requested) != 1 or not job.per_node:
        return f"{line} NumNodes={job.nodes}-{job.nodes}"
    request, (least, most, each) = request_of(job, annotation), annotation.nodes
    line += f" NumNodes={least}-{max(least, most)}{_per_node(job, each)}"
    return line + task_fields(request.tasks, max(1, request.cpus), is_range=most > least) if request.tasks else line


def has_place(job: SlurmJob) -> bool:
    """Return whether a driver or its plugin has taken a job over."""
    annotation = parse_annotation(job.admin_comment)
    return annotation is not None and annotation.place is not None


def _restore_line(job: SlurmJob, tracked: Tracked, partition_nodes: int) -> str:
    """Return the command that undoes `start_line` as far as Slurm can; a request per node cannot be undone."""
    line = f"update JobId={job.job_id}{_min_cpus(job, tracked.min_cpus)} StartTime=now"  # a requeue defers the start
    if not job.required_nodes:
        return line
    is_same = is_own_request(tracked, job.num_gpus) and len(job.requested) == 1
    by_node = job.per_node and not tracked.per_node
    if not is_same or (by_node and job.num_gpus == tracked.num_gpus) or (by_node and tracked.num_gpus % tracked.min_nodes):
        return f"{line} ReqNodeList= NumNodes={job.nodes}-{job.nodes}"  # another number would change the number of GPUs
    max_nodes = tracked.min_nodes if by_node else tracked.max_nodes or max(partition_nodes, tracked.min_nodes)
    per_node = _per_node(job, tracked.num_gpus // tracked.min_nodes) if job.per_node else ""
    return f"{line} ReqNodeList= NumNodes={tracked.min_nodes}-{max_nodes}{per_node}{restore_fields(tracked)}"
