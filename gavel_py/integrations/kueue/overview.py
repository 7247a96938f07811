"""GPUs that each ClusterQueue holds, borrows and lends, and the workloads that wait, with the idle GPUs of their cohort."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gavel_py.integrations.kueue.objects import Object, conditions, is_true
from gavel_py.integrations.kueue.reading import KueueJob, KueueState


@dataclass(frozen=True)
class FlavorUse:
    """GPUs of one flavor in one ClusterQueue.

    Attributes:
        flavor: The ResourceFlavor.
        quota: GPUs of nominal quota.
        held: GPUs that workloads of the queue hold.
        borrowed: GPUs held beyond the quota.
        lent: Upper bound of the GPUs of the quota that other queues of the cohort use: the free part of it, or what they borrow.
    """

    flavor: str
    quota: int
    held: int
    borrowed: int
    lent: int


@dataclass(frozen=True)
class QueueUse:
    """The GPUs and the waiting workloads of a ClusterQueue.

    Attributes:
        queue: The ClusterQueue.
        cohort: The cohort at the top of its tree, or the queue itself if it has none.
        flavors: GPUs by flavor.
        waiting: Number of workloads that wait.
        waiting_gpus: GPUs that they request.
        held: Why the queue admits nothing, or "".
    """

    queue: str
    cohort: str
    flavors: tuple[FlavorUse, ...]
    waiting: int
    waiting_gpus: int
    held: str


@dataclass(frozen=True)
class WaitingJobs:
    """Workloads of one queue that wait, of the same type and size and with the same flavors.

    Attributes:
        queue: The ClusterQueue.
        job_type: Their type.
        count: Number of workloads.
        gpus: GPUs of each.
        flavors: Flavors that they may use.
        hours: Hours that the first of them has waited.
        idle: {flavor: GPUs of the quotas of their cohort that no workload holds}.
    """

    queue: str
    job_type: str
    count: int
    gpus: int
    flavors: tuple[str, ...]
    hours: float
    idle: Mapping[str, int]


@dataclass(frozen=True)
class KueueOverview:
    """A cluster with Kueue at one moment, as `gavel kueue show` prints it.

    Attributes:
        now: Unix time.
        running: Number of workloads that hold quota, and of their GPUs.
        queues: The ClusterQueues.
        waiting: The workloads that wait and are not held, those that request most GPUs first.
        worth: {job type with its GPUs: {flavor: speed}}, relative to the reference flavor.
        reference: The flavor on which speeds are 1.
        notes: Assumptions, and features of Kueue that are not modelled.
    """

    now: float
    running: tuple[int, int]
    queues: tuple[QueueUse, ...]
    waiting: tuple[WaitingJobs, ...]
    worth: Mapping[str, Mapping[str, float]]
    reference: str
    notes: tuple[str, ...]


def kueue_overview(state: KueueState) -> KueueOverview:
    """Return the GPUs that each ClusterQueue of a cluster holds, and the workloads that wait."""
    held: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for job in state.running:
        for flavor, gpus in job.held_gpus.items():
            held[job.queue][flavor] += gpus
    idle = idle_gpus(state)
    groups: dict[tuple[Any, ...], list[KueueJob]] = defaultdict(list)
    for job in state.pending:
        groups[job.queue, job.job_type, job.gpus, tuple(flavor for flavor in job.speeds if flavor in job.flavors)].append(job)
    waiting = [
        WaitingJobs(
            *(queue, job_type, len(jobs), gpus, flavors),
            hours=max(0.0, state.now - min(job.workload.queued for job in jobs)) / 3600,
            idle={flavor: gpus for flavor, gpus in idle[state.cohort_of(queue)].items() if gpus > 0},
        )
        for (queue, job_type, gpus, flavors), jobs in groups.items()
    ]
    held_jobs = [f"held: {job.key}, since {job.held}" for job in state.waiting if job.held and "stopPolicy" not in job.held]
    unmodelled = [f"not modelled, so that there is no forecast: {text}" for text in state.unmodelled]
    worth = {f"{job.job_type} ({job.gpus})": job.speeds for job in state.jobs if job.job_type != "-"}
    return KueueOverview(
        now=state.now,
        running=(len(state.running), sum(job.gpus for job in state.running)),
        queues=tuple(_queue_use(state, queue, held) for queue in state.objects["ClusterQueue"]),
        waiting=tuple(sorted(waiting, key=lambda each: -each.count * each.gpus)),
        worth=dict(sorted(worth.items())),
        reference=state.reference,
        notes=(*unmodelled, *state.notes, *held_jobs),
    )


def idle_gpus(state: KueueState) -> dict[str, dict[str, int]]:
    """Return {cohort, or queue without one: {flavor: GPUs of its quotas that no workload holds}}."""
    idle: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name in state.objects["ClusterQueue"]:
        for flavor, gpus in state.quotas(name).items():
            idle[state.cohort_of(name)][flavor] += gpus
    for name in set(state.objects["Cohort"]) - set(state.objects["ClusterQueue"]):
        for flavor, gpus in state.quotas(name).items():
            idle[state.top_of(name)][flavor] += gpus
    for job in state.running:
        for flavor, gpus in job.held_gpus.items():
            idle[state.cohort_of(job.queue)][flavor] -= gpus
    return idle


def _queue_use(state: KueueState, queue: str, held: Mapping[str, Mapping[str, int]]) -> QueueUse:
    cohort, uses = state.cohort_of(queue), []
    for flavor, quota in state.quotas(queue).items():
        own = held[queue].get(flavor, 0)
        others = [name for name in state.objects["ClusterQueue"] if name != queue and state.cohort_of(name) == cohort]
        beyond = sum(max(0, held[name].get(flavor, 0) - state.quotas(name).get(flavor, 0)) for name in others)
        uses.append(FlavorUse(flavor, quota, own, max(0, own - quota), min(max(0, quota - own), beyond)))
    waiting = [job for job in state.waiting if job.queue == queue]
    each = state.objects["ClusterQueue"][queue]
    return QueueUse(queue, cohort, tuple(uses), len(waiting), sum(job.gpus for job in waiting), _why_held(each))


def _why_held(queue: Object) -> str:
    policy = queue["spec"].get("stopPolicy")
    if policy not in (None, "None"):
        return f"held, stopPolicy: {policy}"
    if "Active" in conditions(queue) and not is_true(queue, "Active"):
        return f"not active, {conditions(queue)['Active'].get('reason', 'no reason given')}"
    return ""
