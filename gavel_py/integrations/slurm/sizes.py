"""Elastic jobs: the numbers of GPUs on which a job may run, and the resources that a start requests from Slurm.

Users give a range of nodes (`--nodes=1-4 --gres=gpu:4`) or list numbers of GPUs in the comment of a job (`gpus=1,2,4`). To start a
job, the driver sets nodes, tasks, CPUs and memory for the number of GPUs that the round has chosen. When it gives a job back to
Slurm, it restores the original request.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavel_py.allocation.solver import check_elastic
from gavel_py.errors import InputError
from gavel_py.integrations.slurm.accounts import Accounts
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from gavel_py.integrations.slurm.job_roles import Annotation, JobComment, NodeRange
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.speeds import Speeds
from gavel_py.policies import Policy

if TYPE_CHECKING:
    from gavel_py.integrations.slurm.state import DriverState


@dataclass(frozen=True)
class Request:
    """The original request of a user, whatever number of GPUs the latest start has set.

    Attributes:
        num_gpus: GPUs on the fewest nodes.
        min_nodes, max_nodes: Range of nodes; 0 for no limit.
        tasks: Tasks on the fewest nodes.
        tasks_on_node: Tasks on each node; 0 if the number of tasks does not depend on the nodes.
        cpus: CPUs of the whole job on the fewest nodes.
        memory_mb: Memory on each node.
    """

    num_gpus: int
    min_nodes: int
    max_nodes: int
    tasks: int
    tasks_on_node: int
    cpus: int
    memory_mb: float


def request_of(job: SlurmJob, annotation: Annotation | None) -> Request:
    """Return the original request of a job without a record. If a driver has started it, this comes from its annotation."""
    nodes = None if annotation is None or not job.required_nodes else annotation.nodes
    range_ = nodes or NodeRange(job.min_nodes, job.max_nodes, 0)
    gpus = nodes.least * nodes.each if nodes else job.num_gpus
    part = gpus / max(1, job.num_gpus)
    tasks, cpus = round(job.tasks * part), round(job.cpus * part)
    by_node = max(1, job.tasks_per_node)
    if nodes and by_node * job.nodes == job.tasks:
        tasks = by_node * nodes.least
    memory = job.memory_mb_per_node * (nodes.each * job.nodes / max(1, job.num_gpus) if nodes else 1.0)
    return Request(
        num_gpus=gpus,
        min_nodes=range_.least,
        max_nodes=range_.most,
        tasks=tasks,
        tasks_on_node=by_node if tasks == by_node * range_.least else 0,
        cpus=cpus,
        memory_mb=memory,
    )


def accepted_counts(tracked: Tracked, comment: JobComment) -> tuple[tuple[int, ...], bool]:
    """Return the numbers of GPUs that a job accepts, and whether they come from a range of nodes with fixed GPUs per node.

    A range of nodes comes first; a list in the comment narrows it. Without a range, the list in the comment counts if each node has
    one task. A gang of a fixed size accepts only the number that it requests.
    """
    least, most, listed = tracked.min_nodes, tracked.max_nodes, comment.gpu_counts
    if tracked.per_node and most > least and tracked.tasks_on_node:
        each = tracked.num_gpus // least
        found = tuple(nodes * each for nodes in range(least, most + 1) if not listed or nodes * each in listed)
        return (found, True) if found else ((tracked.num_gpus,), False)
    if listed and tracked.tasks_on_node == 1 and tracked.exact_nodes < 2:
        return listed, False
    return (tracked.num_gpus,), False


def offered_counts(
    counts: Collection[int], job_type: str, names: Collection[str], speeds: Speeds, settings: SlurmSettings
) -> list[int]:
    """Return the numbers of GPUs with a known speed on at least one of these GPU types; empty if fewer than two remain.

    Estimates count only if a learner tries and corrects them.
    """
    if not settings.elastic or len(counts) < 2:
        return []
    has_speed = speeds.is_measured if speeds.learner is None else speeds.speed
    found = [count for count in counts if any(has_speed(job_type, count, name) for name in names)]
    return found if len(found) > 1 else []


def why_fixed(policy: Policy) -> str:
    """Return why a policy rules out elastic jobs; "" if it allows them."""
    try:
        check_elastic(policy)
    except InputError as error:
        return f"{error.faults[0].where} {error.faults[0].problem}"
    return ""


def notes_on_fixed(why: str, jobs: Iterable[Tracked]) -> tuple[str, ...]:
    """Return a note if elastic jobs are ruled out for this reason and there are any; otherwise nothing."""
    is_fixed = why and any(tracked.gpu_counts for tracked in jobs)
    return (f"jobs run on the fewest nodes of their range: {why}",) if is_fixed else ()


def node_range(tracked: Tracked) -> NodeRange | None:
    """Return the part of a job's request to keep in its annotation; None for a gang of a fixed size."""
    if not tracked.gpu_counts:
        return None
    return NodeRange(tracked.min_nodes, tracked.max_nodes, max(1, tracked.num_gpus // tracked.min_nodes))


def is_own_request(tracked: Tracked, num_gpus: int) -> bool:
    """Return whether the user of a job requests this number of GPUs, or the driver may have set it at a start."""
    return num_gpus in {tracked.num_gpus, *tracked.set_gpus, *tracked.gpu_counts}


def start_fields(tracked: Tracked, target: Mapping[str, int]) -> tuple[str, int | None]:
    """Return the scontrol fields that set tasks, CPUs and memory for a start on {node: GPUs}, and the CPUs of the whole job.

    CPUs and memory per GPU, and tasks per node, stay as requested. For a gang of a fixed size, the result is ("", None).
    """
    if not tracked.gpu_counts:
        return "", None
    gpus, nodes = sum(target.values()), len(target)
    tasks = tracked.tasks_on_node * nodes or tracked.tasks
    cpus = max(math.ceil(tracked.cpus * gpus / tracked.num_gpus), tasks, nodes)
    fields = task_fields(tasks, cpus, is_range=bool(tracked.gpus_per_node)) if tracked.tasks else ""
    each, on_node = tracked.num_gpus / tracked.min_nodes, gpus / nodes
    if tracked.memory_mb and (not tracked.gpus_per_node or on_node != each):
        fields += f" MinMemoryNode={math.ceil(tracked.memory_mb * on_node / each)}"
    return fields, cpus


def task_fields(tasks: int, cpus: int, *, is_range: bool) -> str:
    """Return the scontrol fields that set tasks and CPUs.

    With a range of nodes, tasks change and keep their CPUs. Otherwise their CPUs change: Slurm does not start a job that has more
    CPUs than its tasks need by CPUs/Task (BadConstraints).
    """
    each = math.ceil(cpus / tasks)
    return f" NumTasks={tasks} NumCPUs={cpus}" if is_range else f" NumTasks={tasks} NumCPUs={each * tasks} CPUsPerTask={each}"


def restore_fields(tracked: Tracked) -> str:
    """Return the scontrol fields that restore the requested tasks, CPUs and memory."""
    if not tracked.gpu_counts:
        return ""
    cpus, is_range = max(1, tracked.cpus), bool(tracked.gpus_per_node)
    fields = task_fields(tracked.tasks, cpus, is_range=is_range) if tracked.tasks else ""
    return fields + (f" MinMemoryNode={math.ceil(tracked.memory_mb)}" if tracked.memory_mb and not tracked.gpus_per_node else "")


def has_other_range(tracked: Tracked, job: SlurmJob) -> bool:
    """Return whether the user of an elastic job has changed its range of nodes, which Slurm shows only until the first start."""
    is_untouched = job.phase is Phase.WAITING and not job.required_nodes and not job.restarts
    is_same = (job.min_nodes, job.max_nodes) == (tracked.min_nodes, tracked.max_nodes)
    return bool(tracked.gpu_counts) and is_untouched and not is_same


def is_outdated(tracked: Tracked, names: Collection[str], speeds: Speeds, settings: SlurmSettings) -> bool:
    """Return whether a change of settings or speeds has made a job with several accepted sizes elastic, or no longer elastic."""
    if not tracked.gpu_counts:
        return False
    return bool(offered_counts(tracked.gpu_counts, tracked.job_type, names, speeds, settings)) != bool(tracked.offered)


def needed_gpus(
    state: DriverState, jobs: Mapping[str, SlurmJob], accounts: Accounts, now_seconds: float, *, within_round: bool
) -> dict[str, int]:
    """Return {job: minimum number of GPUs} of the jobs with a choice. Limits leave room for these before other jobs get more.

    This is the smallest number that a job accepts. For a job that is not stopped, it is the number that it holds: during its
    shortest run, during the time that a QOS exempts from preemption, and always within a round, where jobs that have yet to stop or
    start count with their planned GPUs.
    """
    scheduler, found = state.scheduler, {}
    running = scheduler.running if state.deferred else {}
    for job in (*state.tracked.values(), *state.aside.values()):
        if not job.offered or job.job_id not in jobs:
            continue
        found[job.job_id] = min(job.offered)
        shortest = max(scheduler.min_run_seconds, accounts.exempt_of(jobs[job.job_id])) if job.runs else 0.0
        if job.runs and (within_round or now_seconds < job.stay_start_seconds + shortest):
            found[job.job_id] = job.gpus
        if within_round and job.job_id in state.deferred and job.job_id in running:
            found[job.job_id] = len(running[job.job_id].gpus)
    return found


def keep_to_limits(
    state: DriverState, jobs: Mapping[str, SlurmJob], accounts: Accounts, needs: Mapping[str, int], *, within_round: bool
) -> None:
    """Restrict elastic jobs to the numbers of GPUs for which the limits of accounts and QOS have room.

    needs: from `needed_gpus`; within_round: whether running jobs keep their GPUs.
    """
    elastic = {job.job_id: job for job in state.scheduler.jobs if job.is_elastic}
    if not elastic:
        return
    tracked = state.tracked
    held = {job_id: sum(job.held.values()) for job_id, job in jobs.items() if job.held}
    others = {job_id: held.get(job_id) or each.sizes[0] for job_id, each in tracked.items()}
    choices = {job_id: sorted(tracked[job_id].offered) for job_id in elastic}
    least = {job_id: needs.get(job_id, choices[job_id][0]) for job_id in elastic}
    rooms = accounts.rooms(jobs, {**held, **others, **least}, choices)
    for job_id, room in rooms.items():
        counts = tuple(gpus for gpus in choices[job_id] if gpus <= room)
        is_fixed = within_round and tracked[job_id].runs
        if counts and not is_fixed and counts != elastic[job_id].gpu_counts:
            state.scheduler.update(job_id, gpu_counts=counts)
