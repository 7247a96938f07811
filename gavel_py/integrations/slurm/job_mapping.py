"""Conversion of Slurm's nodes and jobs to the cluster and the jobs of the scheduler."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.integrations.slurm.client.notation import printable, satisfies
from gavel_py.integrations.slurm.client.records import NodeUsage, Phase, SlurmJob, SlurmNode
from gavel_py.integrations.slurm.job_roles import Place, parse_annotation, parse_comment
from gavel_py.integrations.slurm.partitions import MEGABYTES_PER_GIGABYTE, Partition
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.sizes import accepted_counts, is_own_request, offered_counts, request_of
from gavel_py.integrations.slurm.speeds import Speeds
from gavel_py.problem.eligibility import EVEN_SPLIT
from gavel_py.problem.from_jobs import largest_gangs
from gavel_py.problem.job import Job, Locality
from gavel_py.scheduling import NodeState, RoundScheduler
from gavel_py.scheduling.placement.topology import NOTHING, Resources
from gavel_py.throughput_profiles import ThroughputProfile

DOWN = frozenset({"DOWN", "ERROR", "FUTURE", "INVAL", "INVALID", "INVALID_REG", "POWERING_DOWN"})
DRAINING = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "RESERVED", "REBOOT_REQUESTED"})

UNRESPONSIVE = frozenset({"UNKNOWN", "NOT_RESPONDING", "NO_RESPOND", "REBOOT_ISSUED", "REBOOT"})
"""Node states in which no job can start. Running jobs may be unharmed and are left alone until the state is clear."""

LONGEST_SECONDS = 365 * 86_400.0
"""Assumed run time of a job without a time limit."""


def state_of(node: SlurmNode | None) -> NodeState:
    """Return the state of a node for the scheduler; a node that Slurm no longer lists is down."""
    if node is None or node.states & DOWN:
        return NodeState.DOWN
    return NodeState.DRAINING if node.states & DRAINING else NodeState.UP


def unresponsive_nodes(nodes: Mapping[str, SlurmNode]) -> frozenset[str]:
    """Return the nodes that are not down, but on which no job can start."""
    return frozenset(name for name, node in nodes.items() if node.states & UNRESPONSIVE and not node.states & DOWN)


def gpus_used(jobs: Iterable[SlurmJob]) -> dict[str, int]:
    """Return {node: GPUs held by these jobs}."""
    used: Counter[str] = Counter()
    for job in jobs:
        if job.phase in {Phase.RUNNING, Phase.STOPPING}:
            used.update(job.held)
    return dict(used)


def used_by_others(nodes: Mapping[str, SlurmNode], jobs: Iterable[SlurmJob], managed: Container[str]) -> dict[str, NodeUsage]:
    """Return {node: resources used by jobs that are not managed}.

    For each resource, this is the larger of two values: Slurm's count for the node minus the managed jobs, and the sum over the
    other jobs that Slurm lists. Slurm may count more than the listed jobs have: after a node failure, version 22.05 does not give
    back GPUs. On a node where a managed job is stopping, Slurm's count is about to change, and only the sum is used.
    """
    jobs = list(jobs)
    clearing = {node for job in jobs if job.phase is Phase.STOPPING and job.job_id in managed for node in job.used}
    own: dict[str, NodeUsage] = {}
    others: dict[str, NodeUsage] = {}
    for job in jobs:
        found = own if job.job_id in managed else others
        for node, used in job.used.items():
            found[node] = found.get(node, NodeUsage()).plus(used)
    names, none = nodes.keys() | others.keys(), NodeUsage()
    totals = {name: nodes[name].used if name in nodes.keys() - clearing else none for name in names}
    return {
        name: NodeUsage(
            *(
                max(total - mine, its)
                for total, mine, its in zip(totals[name], own.get(name, none), others.get(name, none), strict=True)
            )
        )
        for name in names
    }


def sync_unavailable_gpus(
    scheduler: RoundScheduler, nodes: Mapping[str, SlurmNode], used: Mapping[str, NodeUsage], closed: Collection[str] = ()
) -> None:
    """Mark the free GPUs that managed jobs cannot use as lost, and reserve the CPUs and memory of other jobs.

    These are GPUs held by other jobs, GPUs without a free CPU, and GPUs on nodes that are closed or do not respond. Managed gangs
    keep their GPUs. It does not matter which GPUs of a node are marked. used: {node: resources used by jobs that are not managed}.
    """
    held = {gpu for assignment in scheduler.running.values() for gpu in assignment.gpus}
    lost = set(scheduler.lost_gpus)
    shut = unresponsive_nodes(nodes).union(closed)
    for node in scheduler.cluster.nodes:
        others = used.get(node.name, NodeUsage())
        scheduler.reserve(node.name, cpus=others.cpus, memory_gb=others.memory_mb / MEGABYTES_PER_GIGABYTE)
        gpus = [(node.name, index) for index in range(node.num_gpus)]
        marked = [gpu for gpu in gpus if gpu in lost]
        free = [gpu for gpu in gpus if gpu not in held and gpu not in lost]
        present = sum(nodes[node.name].gpus.values()) if node.name in nodes else node.num_gpus
        unavailable = int(others.gpus) + max(0, node.num_gpus - present)
        if node.name in shut:
            unavailable = node.num_gpus
        if node.cpus is not None and others.cpus:
            unavailable = max(unavailable, node.num_gpus - int(max(0.0, node.cpus - others.cpus)))
        for name, index in reversed(free[len(free) - max(0, min(len(free), unavailable - len(marked))) :]):
            scheduler.gpu_lost(name, index)
        for name, index in marked[: max(0, len(marked) - unavailable)]:
            scheduler.gpu_back(name, index)


def most_measured(profile: ThroughputProfile) -> str:
    """Return the first job type with measurements of the most gang sizes, on which estimates for others are best based."""
    sizes: dict[str, set[float]] = {job_type: set() for job_type in profile.job_types}
    for row in profile.rows:
        sizes[row.job_type].add(row.num_gpus)
    return max(sizes, key=lambda job_type: len(sizes[job_type]))


class TypeMatcher:
    """Finds the accelerators that meet the requests of jobs.

    nodes: {name: node} of the whole cluster; type_of: {accelerator: its GPU type in the profile}.
    """

    def __init__(self, partition: Partition, nodes: Mapping[str, SlurmNode]) -> None:
        self._partition, self._cluster, self._nodes = partition, partition.cluster, nodes
        self.accelerators = frozenset(partition.slurm_names)
        self.ahead = partition.ahead
        self.group_of = {node.name: node.accelerator for node in partition.cluster.nodes}
        self.type_of = dict(zip(self._cluster.accelerator_names, self._cluster.profile_names, strict=True))
        self._features: dict[str, set[frozenset[str]]] = {}
        self._fits: dict[tuple[str, int, Locality, int, Resources], bool] = {}
        for node in partition.cluster.nodes:
            if node.name in nodes:
                self._features.setdefault(node.accelerator, set()).add(nodes[node.name].features)

    def there(self, jobs: Iterable[SlurmJob]) -> TypeMatcher:
        """Return the same for the GPUs on which Slurm can start jobs now, or when some of these jobs, all in the queue, have ended.

        For a while after a restart, Slurm 22.05 counts the GPUs of nodes as used whose jobs have ended.
        """
        held, away = gpus_used(jobs), DOWN | DRAINING | UNRESPONSIVE
        gpus = {
            name: sum(node.gpus.values()) - max(0, int(node.used.gpus) - held.get(name, 0))
            for name, node in self._nodes.items()
            if not node.states & away
        }
        return TypeMatcher(self._partition.on(gpus), self._nodes)

    def candidates(self, job: SlurmJob, partitions: Collection[str], barred: Collection[str] = ()) -> tuple[str, ...]:
        """Return the accelerators in these partitions whose nodes all meet the GPU type and --constraint of a job."""
        (slurm_name,) = job.requested
        names, members = self._partition.slurm_names, self._partition.members
        there = [name for name in names if name not in barred and not members[name].isdisjoint(partitions)]
        typed = [name for name in there if not slurm_name or slurm_name in names[name]]
        return tuple(name for name in typed if all(satisfies(each, job.features) for each in self._features.get(name, ())))

    def largest_on_node(self, accelerator: str, resources: Resources = NOTHING) -> int:
        """Return the size of the largest gang on one node of a type, given the resources of each GPU."""
        return int(
            self._cluster.largest_gang(accelerator, "node", cpus_per_gpu=resources.cpus, memory_gb_per_gpu=resources.memory_gb)
        )

    def fits(self, accelerator: str, gpus: int, locality: Locality, split: int, resources: Resources) -> bool:
        """Return whether the empty cluster has room for a gang that divides over nodes in this way (`Job.split`)."""
        key = accelerator, gpus, locality, split, resources
        if key not in self._fits:
            needs: dict[str, Any] = {"cpus_per_gpu": resources.cpus, "memory_gb_per_gpu": resources.memory_gb}
            needs |= {"locality": locality, "even_split": True, "gpus_per_node": split if split > 0 else None}
            job = Job("gang", num_gpus=gpus, **needs)
            column = self._cluster.accelerator_names.index(accelerator)
            self._fits[key] = bool(largest_gangs([job], self._cluster)[0, column] >= gpus)
        return self._fits[key]


def request_text(job: SlurmJob, tracked: Tracked | None = None) -> str:
    """Return the request of a job as text, without the fields that the driver changes. A change of this text makes it a new job.

    tracked: the record of the job, if it has one, since its starts may have set another number of GPUs.
    """
    comment = parse_comment(job.comment)
    requested = sorted(f"{name}={gpus}" for name, gpus in job.requested.items())
    if tracked is not None and len(requested) == 1 and is_own_request(tracked, job.num_gpus):
        requested = [f"{name}={tracked.num_gpus}" for name in job.requested]
    by_gpu = f"|{job.cpus_per_gpu}|{job.memory_mb_per_gpu}" if job.cpus_per_gpu or job.memory_mb_per_gpu else ""
    counts = f"|gpus={','.join(map(str, comment.gpu_counts))}" if comment.gpu_counts else ""
    return printable(f"{comment.job_type}|{comment.total_steps}|{job.name}|{','.join(requested)}|{job.features}{by_gpu}{counts}")


def new_tracked(job: SlurmJob, speeds: Speeds, settings: SlurmSettings, now_seconds: float) -> tuple[Tracked, list[str]]:
    """Return the record of a job seen for the first time, and notes on an invalid comment or an unknown type.

    The job type comes from the comment, from the first matching rule, from the name of the job if that is a type, or is the
    default. If speeds are learned, the comment or a rule may name a new type.
    """
    comment = parse_comment(job.comment)
    notes = [comment.problem] if comment.problem else []
    name = comment.job_type or job.name
    rule = next((rule for rule in settings.type_rules if fnmatchcase(name, rule.pattern)), None)
    candidates = [comment.job_type, rule.job_type if rule is not None else "", "" if comment.job_type else job.name]
    known_type = next((candidate for candidate in candidates if candidate in speeds.job_types), None)
    if known_type is None and speeds.learner is not None:
        known_type = comment.job_type or (None if rule is None else rule.job_type)
    job_type = known_type or settings.default_type or most_measured(speeds.base)
    if known_type is None:
        what = f"type {comment.job_type}" if comment.job_type else f"a job named {printable(job.name) or '(nothing)'}"
        notes.append(f"{what} is not in profile {speeds.base.name}; treated as {job_type}")
    annotation = parse_annotation(job.admin_comment)
    submitted = job.submit_seconds if annotation is None else annotation.submit_seconds
    place: Place = "node" if job.one_node else "any"
    # If the request names nodes, they come from an earlier start, and the annotation has the original place.
    if annotation is not None and annotation.place is not None and job.required_nodes:
        place = annotation.place
    request = request_of(job, annotation)
    tracked = Tracked(
        job_id=job.job_id,
        name=printable(job.name),
        user=printable(job.user),
        job_type=job_type,
        num_gpus=request.num_gpus,
        place=place,
        arrival_seconds=now_seconds if submitted is None else submitted,
        seen_seconds=now_seconds,
        total_steps=comment.total_steps or (None if rule is None else rule.total_steps),
        is_known=known_type is not None,
        per_node=job.per_node,
        min_nodes=request.min_nodes,
        max_nodes=request.max_nodes,
        exact_nodes=math.ceil(request.tasks / job.tasks_per_node) if job.tasks_per_node else 0,
        min_cpus=job.cpus_per_node,
        partitions=list(job.partitions),
        tasks=request.tasks,
        tasks_on_node=request.tasks_on_node,
        cpus=request.cpus,
        memory_mb=request.memory_mb,
    )
    tracked.request = request_text(job, tracked)
    return tracked, notes


def set_sizes(tracked: Tracked, job: SlurmJob, matcher: TypeMatcher, speeds: Speeds, settings: SlurmSettings) -> None:
    """Set the numbers of GPUs in a job's record: those that the job accepts, and those among which the scheduler chooses."""
    counts, by_node = accepted_counts(tracked, parse_comment(job.comment))
    tracked.gpu_counts = [] if counts == (tracked.num_gpus,) else list(counts)
    types = {matcher.type_of[name] for name in matcher.candidates(job, tracked.usable, tracked.barred)}
    tracked.offered = offered_counts(counts, tracked.job_type, types, speeds, settings)
    tracked.gpus_per_node = tracked.num_gpus // tracked.min_nodes if by_node else 0
    if tracked.gpus_per_node:
        tracked.place = "any"


def least_gpus(jobs: Iterable[SlurmJob], matcher: TypeMatcher, speeds: Speeds, settings: SlurmSettings) -> dict[str, int]:
    """Return {job: the smallest number of GPUs on which it would run} of jobs without a record that have a choice."""
    found = {}
    for job in jobs:
        if len(job.requested) == 1 and (parse_comment(job.comment).gpu_counts or job.max_nodes > job.min_nodes):
            tracked, _ = new_tracked(job, speeds, settings, 0.0)
            tracked.usable = list(settings.partitions)
            set_sizes(tracked, job, matcher, speeds, settings)
            found[job.job_id] = min(tracked.sizes)
    return found


def scheduler_job(
    tracked: Tracked, job: SlurmJob, tenant: str, matcher: TypeMatcher, speeds: Speeds, settings: SlurmSettings
) -> Job:
    """Return the job for the scheduler. `tracked` gets the tenant, and the default type if the throughput of its own is unknown.

    Raises `InputError` for a job that cannot run anywhere.
    """
    tracked.tenant, partition = tenant, ",".join(tracked.usable)
    candidates = matcher.candidates(job, tracked.usable, tracked.barred)
    if not candidates:
        (slurm_name,) = job.requested
        request = f"for GPUs of type {printable(slurm_name)}" if slurm_name else f"for --constraint={printable(job.features)}"
        problem = f"asks {request}, which no node of partition {partition} has"
        raise InputError(Fault(f"job {job.job_id}", "", problem))
    set_sizes(tracked, job, matcher, speeds, settings)
    known = _known(tracked, candidates, speeds, settings, matcher)
    resources = _resources_per_gpu(tracked, job, matcher, known)
    fits_node = max(tracked.sizes) <= min(matcher.largest_on_node(name, resources) for name in known)
    is_on_one = tracked.place == "node" or tracked.exact_nodes == 1 or fits_node
    locality: Locality = "node" if is_on_one and not tracked.gpus_per_node else "any"
    known = _with_room(tracked, known, locality, resources, matcher, partition)
    steps = tracked.total_steps or settings.default_steps
    limit = None if job.time_limit_seconds is None else job.time_limit_seconds + tracked.limit_counted_seconds
    if tracked.total_steps:
        fastest = max(speeds.fastest(tracked.job_type, gpus) for gpus in tracked.sizes)
        believable = settings.trust_in(tracked.user) * fastest * (limit or LONGEST_SECONDS)
        steps = min(tracked.total_steps, believable)
    if not steps and limit is not None:
        # Users choose a time limit that suffices on every type, hence on the slowest.
        steps = limit * min(_speed(tracked, matcher.type_of[name], speeds) for name in known)
    if settings.too_slow is not None:
        known = _fast_enough(tracked, job, known, settings.too_slow, speeds, matcher)
    size: dict[str, Any] = {"gpu_counts": tuple(tracked.offered)} if tracked.offered else {"num_gpus": tracked.sizes[0]}
    return Job(
        tracked.job_id,
        job_type=tracked.job_type,
        **size,
        gpus_per_node=tracked.gpus_per_node or None,
        total_steps=steps,
        steps_done=tracked.steps_done,
        arrival_seconds=tracked.arrival_seconds,
        deadline_seconds=job.deadline_seconds,
        tenant=tenant,
        allowed_accelerators=None if set(known) == matcher.accelerators else known,
        locality=locality,
        even_split=True,  # Slurm has no request for an uneven split
        cpus_per_gpu=resources.cpus,
        memory_gb_per_gpu=resources.memory_gb,
    )


def has_room(tracked: Tracked, job: SlurmJob, matcher: TypeMatcher, speeds: Speeds, settings: SlurmSettings) -> bool:
    """Return whether a job could run on the nodes of a matcher; `tracked` changes as in `scheduler_job`."""
    try:
        return bool(scheduler_job(tracked, job, tracked.tenant, matcher, speeds, settings))
    except InputError:
        return False


def _resources_per_gpu(tracked: Tracked, job: SlurmJob, matcher: TypeMatcher, accelerators: Iterable[str]) -> Resources:
    """Return the CPUs and memory (GB) required per GPU, converted from the unit of the request.

    A request per node is divided by the job's GPUs on each node, or by the GPUs per node on the fewest nodes that can hold the
    gang.
    """
    gpus = job.num_gpus
    nodes = job.nodes if tracked.gpus_per_node else 0
    nodes = nodes or min(math.ceil(gpus / max(1, matcher.largest_on_node(name))) for name in accelerators)
    cpus = max(job.cpus_per_gpu, job.cpus / gpus, job.cpus_per_node * nodes / gpus)
    memory = max(job.memory_mb_per_gpu, job.memory_mb_per_node * job.nodes / gpus, job.memory_mb_per_cpu * cpus)
    return Resources(cpus, memory / MEGABYTES_PER_GIGABYTE)


def _with_room(
    tracked: Tracked, names: tuple[str, ...], locality: Locality, resources: Resources, matcher: TypeMatcher, partition: str
) -> tuple[str, ...]:
    """Return the types with room for a gang. Raises `InputError` if there is none; the job is then left to Slurm."""
    gpus, split = min(tracked.sizes), tracked.gpus_per_node or EVEN_SPLIT
    fitting = tuple(name for name in names if any(matcher.fits(name, size, locality, split, resources) for size in tracked.sizes))
    if not fitting:
        is_enough = any(matcher.fits(name, size, locality, split, NOTHING) for name in names for size in tracked.sizes)
        types = " or ".join(dict.fromkeys(matcher.type_of[name] for name in names))
        where = f"{types} nodes of partition {partition}"
        text = _no_room_text(gpus, resources if is_enough else NOTHING, where, is_on_one=locality == "node")
        raise InputError(Fault(f"job {tracked.job_id}", "", text))
    exact = tracked.exact_nodes
    if not exact or tracked.gpus_per_node:
        return fitting
    # Gangs are placed on as few nodes as possible, so types on which that number differs are left out.
    matching = tuple(
        name for name in fitting if math.ceil(gpus / matcher.largest_on_node(name, resources)) == exact and gpus % exact == 0
    )
    text = f"it must be on {exact} nodes (--ntasks-per-node), but its {gpus} GPUs would be placed on another number"
    refuse(f"job {tracked.job_id}", (not matching, "", text))
    return matching


def _no_room_text(gpus: int, resources: Resources, where: str, *, is_on_one: bool) -> str:
    """Return why a gang has no room on nodes; resources: those that each GPU needs, if there would be enough GPUs."""
    count = f"{gpus} GPU{'s' * (gpus != 1)}"
    if resources == NOTHING:
        return f"none of the {where} has {count}" if is_on_one else f"its {count} cannot be divided evenly among the {where}"
    on = "one node" if is_on_one or gpus == 1 else "nodes with the same number on each"
    each = f"{resources.cpus:g} CPU{'s' * (resources.cpus != 1)}"
    each += f" and {resources.memory_gb:g} GB" if resources.memory_gb else ""
    need = f"its GPU needs {each}" if gpus == 1 else f"its {count} need {each} each"
    return f"{need}, but no {where} have that on {on}"


def _fast_enough(
    tracked: Tracked, job: SlurmJob, names: tuple[str, ...], factor: float, speeds: Speeds, matcher: TypeMatcher
) -> tuple[str, ...]:
    """Return the types that are slower than the fastest by at most this factor, and the one on which the job runs."""
    found = {name: _speed(tracked, matcher.type_of[name], speeds) for name in names}
    here = {matcher.group_of.get(node) for node in job.held}
    return tuple(name for name, speed in found.items() if name in here or factor * speed >= max(found.values()))


def _speed(tracked: Tracked, gpu_type: str, speeds: Speeds) -> float:
    """Return the throughput of a job on a type, with the smallest number of GPUs for which it is known."""
    found = (speeds.speed(tracked.job_type, gpus, gpu_type) for gpus in tracked.sizes)
    return next(speed for speed in found if speed > 0)


def _known(
    tracked: Tracked, candidates: Iterable[str], speeds: Speeds, settings: SlurmSettings, matcher: TypeMatcher
) -> tuple[str, ...]:
    """Return the accelerators on which the throughput of a job is known, with its own type or else with the default type."""
    speeds.cover(tracked.sizes)
    for job_type in (tracked.job_type, settings.default_type or most_measured(speeds.base)):
        known = tuple(
            name for name in candidates if any(speeds.speed(job_type, gpus, matcher.type_of[name]) > 0 for gpus in tracked.sizes)
        )
        if known:
            tracked.is_known &= job_type == tracked.job_type
            tracked.job_type = job_type
            return known
    text = (
        f"profile {speeds.base.name} has no throughput for a gang of {tracked.num_gpus} GPUs of type {tracked.job_type} on "
        f"{', '.join(dict.fromkeys(matcher.type_of[name] for name in candidates))}; add a measurement, or name another default type"
    )
    raise InputError(Fault(f"job {tracked.job_id}", "", text))
