"""From Slurm's nodes and jobs to the scheduler's: the managed partition as a cluster, and the job types and steps of jobs.

`partition_of`: which nodes there are; `state_of`, `unresponsive_nodes`, `gpus_used`: which may be used, and what other jobs use of them.
`map_job`: the job type and the steps of a job, by its comment, a rule of the site, its name, or the default. `scheduler_job`: the job
that the scheduler decides on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.integrations.slurm.job_roles import Place, parse_annotation, parse_comment
from gavel_py.integrations.slurm.parsing import printable, satisfies
from gavel_py.integrations.slurm.records import Phase, SlurmJob, SlurmNode
from gavel_py.integrations.slurm.settings import SlurmSettings, TypeRule
from gavel_py.integrations.slurm.state import Speeds, Tracked
from gavel_py.io.names import same_name
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import largest_even_gang
from gavel_py.problem.job import Job, Locality
from gavel_py.problem.nodes import AcceleratorType, Node
from gavel_py.scheduling import NodeState
from gavel_py.scheduling.placement.topology import NOTHING, Resources
from gavel_py.throughput_profiles import ThroughputProfile

DOWN = frozenset({"DOWN", "ERROR", "FUTURE", "INVAL", "INVALID", "INVALID_REG", "POWERING_DOWN"})

EMPTYING = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "RESERVED", "REBOOT_REQUESTED"})

SILENT = frozenset({"UNKNOWN", "NOT_RESPONDING", "NO_RESPOND", "REBOOT_ISSUED", "REBOOT"})
"""Nobody can start there for now, but who runs there may be well: they are left alone until Slurm says more."""

UNNAMED = "gpu"
"""GPUs to which gres.conf gives no type."""


@dataclass(frozen=True)
class Partition:
    """cluster: the nodes with GPUs; slurm_names: {accelerator: names of its GPU types in Slurm}; left_out: which nodes are left
    out and why, and what else is to be said of them.
    """

    cluster: Cluster
    slurm_names: Mapping[str, frozenset[str]]
    left_out: tuple[str, ...]


def partition_of(nodes: Iterable[SlurmNode], settings: SlurmSettings, known: Collection[str]) -> Partition:
    """Return the cluster that the managed partition is. known: accelerators of the profile, whose spelling counts.

    Raises `InputError` where the partition has no GPUs.
    """
    kept: list[Node] = []
    left_out: list[str] = []
    names: dict[str, set[str]] = {}
    everywhere: set[str] = set()
    for node in sorted(nodes, key=lambda node: node.name):
        everywhere |= node.partitions
        if settings.partition not in node.partitions or not node.gpus:
            continue
        if len(node.gpus) > 1:
            left_out.append(f"node {node.name} has GPUs of several types ({', '.join(sorted(node.gpus))}) and is left out")
            continue
        ((kind, gpus),) = node.gpus.items()
        called = settings.accelerators.get(kind or UNNAMED, kind or UNNAMED)
        accelerator = same_name(called, known) or called
        names.setdefault(accelerator, set()).add(kind)
        memory = node.memory_mb / 1024 or None
        kept.append(Node(name=node.name, accelerator=accelerator, num_gpus=gpus, cpus=node.cpus or None, memory_gb=memory))
    if not kept:
        raise InputError(Fault("slurm", "partition", _without_gpus(settings.partition, everywhere)))
    text = "is taken for {!r} of the profile: they differ in case only"
    left_out += [f"GPU type {k!r} {text.format(n)}" for n, found in names.items() for k in sorted(found) if _differ_in_case(k, n)]
    kinds = [AcceleratorType(name=name, price_per_hour=settings.prices_per_hour.get(name)) for name in names]
    return Partition(Cluster(kept, kinds), {name: frozenset(kinds) for name, kinds in names.items()}, tuple(left_out))


def _differ_in_case(one: str, other: str) -> bool:
    return one != other and one.casefold() == other.casefold()


def _without_gpus(partition: str, partitions: set[str]) -> str:
    if partition in partitions:
        return f"{partition!r} has no node with GPUs"
    return f"there is no partition {partition!r}{nearest(partition, sorted(partitions))}"


def state_of(node: SlurmNode | None) -> NodeState:
    """Return what may become of gangs on a node; one that Slurm does not know any more is down."""
    if node is None or node.states & DOWN:
        return NodeState.DOWN
    return NodeState.DRAINING if node.states & EMPTYING else NodeState.UP


def unresponsive_nodes(nodes: Mapping[str, SlurmNode]) -> frozenset[str]:
    """Return the nodes on which nobody can start, though they are not down."""
    return frozenset(name for name, node in nodes.items() if node.states & SILENT and not node.states & DOWN)


def gpus_used(jobs: Iterable[SlurmJob]) -> dict[str, int]:
    """Return {node: GPUs} that these jobs hold."""
    used: dict[str, int] = {}
    for job in jobs:
        if job.phase in {Phase.RUNNING, Phase.STOPPING}:
            for node, gpus in job.held.items():
                used[node] = used.get(node, 0) + gpus
    return used


def cpus_used(jobs: Iterable[SlurmJob]) -> dict[str, float]:
    """Return {node: CPUs} that these jobs have, which Slurm tells of each job as a whole: the same number on each of its nodes."""
    used: dict[str, float] = {}
    for job in jobs:
        for node in job.used_nodes:
            used[node] = used.get(node, 0.0) + job.cpus / len(job.used_nodes)
    return used


@dataclass(frozen=True)
class MappedJob:
    """job_type: of the profile; total_steps: None where nobody has told them; is_known: whether the type is the job's own, and
    not the default; notes: what was not as it should be, in words.
    """

    job_type: str
    total_steps: float | None
    is_known: bool
    notes: tuple[str, ...] = ()


def map_job(job: SlurmJob, profile: ThroughputProfile, settings: SlurmSettings) -> MappedJob:
    """Return what a job is: by its comment, a rule for its name, its name if that is a type of the profile, or the default."""
    said = parse_comment(job.comment)
    notes = [said.wrong] if said.wrong else []
    rule = _rule(said.job_type or job.name, settings)
    wanted = [said.job_type, rule.job_type if rule is not None else "", "" if said.job_type else job.name]
    job_type = next((name for name in wanted if name in profile.job_types), None)
    is_known = job_type is not None
    if job_type is None:
        job_type = settings.default_type or most_measured(profile)
        what = f"type {said.job_type}" if said.job_type else f"a job named {printable(job.name) or '(nothing)'}"
        notes.append(f"{what} is not in profile {profile.name}; taken for {job_type}")
    steps = said.total_steps or (rule.total_steps if rule is not None else None)
    return MappedJob(job_type, steps, is_known, tuple(notes))


def most_measured(profile: ThroughputProfile) -> str:
    """Return the job type of which most gang sizes are known, the first of equals: others can be estimated best from it."""
    sizes: dict[str, set[float]] = {job_type: set() for job_type in profile.job_types}
    for row in profile.rows:
        sizes[row.job_type].add(row.num_gpus)
    return max(sizes, key=lambda job_type: len(sizes[job_type]))


def _rule(name: str, settings: SlurmSettings) -> TypeRule | None:
    return next((rule for rule in settings.type_rules if fnmatchcase(name, rule.pattern)), None)


MEGABYTES_PER_GIGABYTE = 1024.0


class TypeMatcher:
    """Where jobs may run. slurm_names: {accelerator: its names in Slurm}; nodes: all by name, of which the cluster has some."""

    def __init__(self, slurm_names: Mapping[str, frozenset[str]], cluster: Cluster, nodes: Mapping[str, SlurmNode]) -> None:
        self._slurm_names, self._cluster = slurm_names, cluster
        self.accelerators = frozenset(slurm_names)
        self._features: dict[str, set[frozenset[str]]] = {}
        self._rooms: dict[tuple[str, int, Locality, Resources], bool] = {}
        for node in cluster.nodes:
            if node.name in nodes:
                self._features.setdefault(node.accelerator, set()).add(nodes[node.name].features)

    def candidates(self, job: SlurmJob) -> tuple[str, ...]:
        """Return the accelerators on every node of which the job's request can be met: its GPU type, its --constraint."""
        (kind,) = job.requested
        return tuple(
            accelerator
            for accelerator, names in self._slurm_names.items()
            if (not kind or kind in names)
            and all(satisfies(features, job.features) for features in self._features.get(accelerator, ()))
        )

    def largest_on_node(self, accelerator: str, needs: Resources = NOTHING) -> int:
        """Return how many GPUs of one node of a type have what each of them needs."""
        return int(self._cluster.largest_gang(accelerator, "node", cpus_per_gpu=needs.cpus, memory_gb_per_gpu=needs.memory_gb))

    def has_room(self, accelerator: str, gpus: int, locality: Locality, needs: Resources) -> bool:
        """Say whether a gang could run on a type if nobody else did, with as many GPUs on each of its nodes."""
        key = accelerator, gpus, locality, needs
        if key not in self._rooms:
            more = {"cpus_per_gpu": needs.cpus, "memory_gb_per_gpu": needs.memory_gb}
            self._rooms[key] = largest_even_gang(self._cluster, accelerator, gpus, locality, **more) >= gpus
        return self._rooms[key]


def request_text(job: SlurmJob) -> str:
    """Return what a job asks for as far as its user can change it: another text is another job to the scheduler."""
    said = parse_comment(job.comment)
    asked = sorted(f"{kind}={gpus}" for kind, gpus in job.requested.items())
    by_gpu = f"|{job.cpus_per_gpu}|{job.memory_mb_per_gpu}" if job.cpus_per_gpu or job.memory_mb_per_gpu else ""
    return printable(f"{said.job_type}|{said.total_steps}|{job.name}|{','.join(asked)}|{job.features}{by_gpu}")


def new_tracked(job: SlurmJob, kind: MappedJob, now_seconds: float) -> Tracked:
    """Return what is followed of a job that has just been seen for the first time."""
    mark = parse_annotation(job.admin_comment)
    submitted = job.submit_seconds if mark is None else mark.submit_seconds
    place: Place = "node" if job.one_node else "any"
    return Tracked(
        job_id=job.job_id,
        name=printable(job.name),
        user=printable(job.user),
        job_type=kind.job_type,
        num_gpus=job.num_gpus,
        # Only where a start has changed the request, the mark knows better what it was.
        place=place if mark is None or mark.place is None or not job.required_nodes else mark.place,
        arrival_seconds=now_seconds if submitted is None else submitted,
        seen_seconds=now_seconds,
        total_steps=kind.total_steps,
        asks=request_text(job),
        is_known=kind.is_known,
        per_node=job.per_node,
        fewest_nodes=job.fewest_nodes,
        most_nodes=job.most_nodes,
        exact_nodes=math.ceil(job.tasks / job.tasks_per_node) if job.tasks_per_node else 0,
        fewest_cpus=job.cpus_per_node,
    )


def scheduler_job(tracked: Tracked, job: SlurmJob, where: TypeMatcher, speeds: Speeds, settings: SlurmSettings) -> Job:
    """Return the job that the scheduler is to decide on; `tracked` takes the default type where its own is not known anywhere.

    Raises `InputError` for a job that can run nowhere.
    """
    candidates = where.candidates(job)
    if not candidates:
        raise InputError(Fault(f"job {job.job_id}", "", f"{_asked(job)}, which no nodes of partition {settings.partition} have"))
    known = _known(tracked, candidates, speeds, settings)
    needs = _needs(job, where, known)
    fits_one = job.num_gpus <= min(where.largest_on_node(name, needs) for name in known)
    locality: Locality = "node" if tracked.place == "node" or tracked.exact_nodes == 1 or fits_one else "any"
    known = _with_room(tracked, known, locality, needs, where, settings.partition)
    return Job(
        tracked.job_id,
        job_type=tracked.job_type,
        num_gpus=tracked.num_gpus,
        total_steps=tracked.total_steps or settings.default_steps or _by_time_limit(tracked, job, known, speeds),
        steps_done=tracked.steps_done,
        arrival_seconds=tracked.arrival_seconds,
        deadline_seconds=job.deadline_seconds,
        tenant=printable(job.account or job.user),
        allowed_accelerators=None if set(known) == where.accelerators else known,
        locality=locality,
        even_split=True,  # Slurm cannot be told any other
        cpus_per_gpu=needs.cpus,
        memory_gb_per_gpu=needs.memory_gb,
    )


def _needs(job: SlurmJob, where: TypeMatcher, accelerators: Iterable[str]) -> Resources:
    """The CPUs and the memory, GB, that each GPU must find on its node, whatever they were asked for by.

    What is asked for by node is counted for the fewest nodes on which the gang can be: there its GPUs are most.
    """
    gpus = job.num_gpus
    nodes = min(math.ceil(gpus / max(1, where.largest_on_node(name))) for name in accelerators)
    cpus = max(job.cpus_per_gpu, job.cpus / gpus, job.cpus_per_node * nodes / gpus)
    memory = max(job.memory_mb_per_gpu, job.memory_mb_per_node * job.nodes / gpus, job.memory_mb_per_cpu * cpus)
    return Resources(cpus, memory / MEGABYTES_PER_GIGABYTE)


def _with_room(
    tracked: Tracked, accelerators: Iterable[str], locality: Locality, needs: Resources, where: TypeMatcher, partition: str
) -> tuple[str, ...]:
    """Those of the types that have room for a gang. Raises `InputError` where none has: nothing but Slurm can place it then."""
    names, gpus = tuple(accelerators), tracked.num_gpus
    roomy = tuple(name for name in names if where.has_room(name, gpus, locality, needs))
    if not roomy:
        told = f"{needs.cpus:g} CPUs" + (f" and {needs.memory_gb:g} GB" if needs.memory_gb else "")
        on = "one node" if locality == "node" else "nodes with the same number on each"
        text = f"its {gpus} GPUs need {told} each, and no {' or '.join(names)} nodes of partition {partition} have that on {on}"
        raise InputError(Fault(f"job {tracked.job_id}", "", text))
    exact = tracked.exact_nodes
    if not exact:
        return roomy
    # Gangs come on as few nodes as have room, so on these types no other number is likely.
    right = tuple(name for name in roomy if math.ceil(gpus / where.largest_on_node(name, needs)) == exact and gpus % exact == 0)
    if not right:
        text = f"it must be on {exact} nodes (--ntasks-per-node), and its {gpus} GPUs would be placed on another number"
        raise InputError(Fault(f"job {tracked.job_id}", "", text))
    return right


def _asked(job: SlurmJob) -> str:
    (kind,) = job.requested
    return f"asks for GPUs of type {printable(kind)}" if kind else f"asks for --constraint={printable(job.features)}"


def _known(tracked: Tracked, candidates: Iterable[str], speeds: Speeds, settings: SlurmSettings) -> tuple[str, ...]:
    """The accelerators on which it is known how fast the job is, as what it is, or else as the default type."""
    speeds.need([tracked.num_gpus])
    for job_type in (tracked.job_type, settings.default_type or most_measured(speeds.base)):
        known = speeds.known_on(job_type, tracked.num_gpus, candidates)
        if known:
            tracked.job_type = job_type
            return known
    text = (
        f"profile {speeds.base.name} does not know how fast a gang of {tracked.num_gpus} GPUs of type {tracked.job_type} is on "
        f"{', '.join(candidates)}; add a measurement, or name another default type"
    )
    raise InputError(Fault(f"job {tracked.job_id}", "", text))


def _by_time_limit(tracked: Tracked, job: SlurmJob, known: Iterable[str], speeds: Speeds) -> float | None:
    """What its time limit allows on the slowest type: users give a limit that suffices wherever the job runs."""
    if job.time_limit_seconds is None:
        return None
    return job.time_limit_seconds * min(speeds.speed(tracked.job_type, tracked.num_gpus, name) for name in known)
