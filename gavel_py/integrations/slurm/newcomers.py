"""From a job of Slurm to a job of the scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.comments import said_in
from gavel_py.integrations.slurm.features import satisfies
from gavel_py.integrations.slurm.kinds import JobKind, most_measured
from gavel_py.integrations.slurm.marks import Place, mark_in
from gavel_py.integrations.slurm.records import SlurmJob, SlurmNode
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.speeds import Speeds
from gavel_py.integrations.slurm.tracked import Tracked
from gavel_py.integrations.slurm.values import printable
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import largest_even_gang
from gavel_py.problem.job import Job, Locality
from gavel_py.scheduling.placement.topology import NOTHING, Needs

__all__ = ["Where", "asks_of", "job_for", "tracked_from"]

MEGABYTES_PER_GIGABYTE = 1024.0


class Where:
    """Where jobs may run. slurm_names: {accelerator: its names in Slurm}; nodes: all by name, of which the cluster has some."""

    def __init__(self, slurm_names: Mapping[str, frozenset[str]], cluster: Cluster, nodes: Mapping[str, SlurmNode]) -> None:
        self._slurm_names, self._cluster = slurm_names, cluster
        self.accelerators = frozenset(slurm_names)
        self._features: dict[str, set[frozenset[str]]] = {}
        self._rooms: dict[tuple[str, int, Locality, Needs], bool] = {}
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

    def largest_on_node(self, accelerator: str, needs: Needs = NOTHING) -> int:
        """Return how many GPUs of one node of a type have what each of them needs."""
        return int(self._cluster.largest_gang(accelerator, "node", cpus_per_gpu=needs.cpus, memory_gb_per_gpu=needs.memory_gb))

    def has_room(self, accelerator: str, gpus: int, locality: Locality, needs: Needs) -> bool:
        """Say whether a gang could run on a type if nobody else did, with as many GPUs on each of its nodes."""
        key = accelerator, gpus, locality, needs
        if key not in self._rooms:
            more = {"cpus_per_gpu": needs.cpus, "memory_gb_per_gpu": needs.memory_gb}
            self._rooms[key] = largest_even_gang(self._cluster, accelerator, gpus, locality, **more) >= gpus
        return self._rooms[key]


def asks_of(job: SlurmJob) -> str:
    """Return what a job asks for as far as its user can change it: another text is another job to the scheduler."""
    said = said_in(job.comment)
    asked = sorted(f"{kind}={gpus}" for kind, gpus in job.requested.items())
    by_gpu = f"|{job.cpus_per_gpu}|{job.memory_mb_per_gpu}" if job.cpus_per_gpu or job.memory_mb_per_gpu else ""
    return printable(f"{said.job_type}|{said.total_steps}|{job.name}|{','.join(asked)}|{job.features}{by_gpu}")


def tracked_from(job: SlurmJob, kind: JobKind, now_seconds: float) -> Tracked:
    """Return what is followed of a job that has just been seen for the first time."""
    mark = mark_in(job.admin_comment)
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
        asks=asks_of(job),
        is_known=kind.is_known,
        per_node=job.per_node,
        fewest_nodes=job.fewest_nodes,
        most_nodes=job.most_nodes,
        exact_nodes=math.ceil(job.tasks / job.tasks_per_node) if job.tasks_per_node else 0,
    )


def job_for(tracked: Tracked, job: SlurmJob, where: Where, speeds: Speeds, settings: SlurmSettings) -> Job:
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


def _needs(job: SlurmJob, where: Where, accelerators: Iterable[str]) -> Needs:
    """The CPUs and the memory, GB, that each GPU must find on its node, whatever they were asked for by.

    What is asked for by node is counted for the fewest nodes on which the gang can be: there its GPUs are most.
    """
    gpus = job.num_gpus
    nodes = min(math.ceil(gpus / max(1, where.largest_on_node(name))) for name in accelerators)
    cpus = max(job.cpus_per_gpu, job.cpus / gpus, job.cpus_per_node * nodes / gpus)
    memory = max(job.memory_mb_per_gpu, job.memory_mb_per_node * job.nodes / gpus, job.memory_mb_per_cpu * cpus)
    return Needs(cpus, memory / MEGABYTES_PER_GIGABYTE)


def _with_room(
    tracked: Tracked, accelerators: Iterable[str], locality: Locality, needs: Needs, where: Where, partition: str
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
