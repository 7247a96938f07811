"""The managed partitions: their nodes as a cluster for the scheduler, and the partitions in which Slurm would start each job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.integrations.slurm.client.records import PartitionLimits, Phase, SlurmJob, SlurmNode
from gavel_py.integrations.slurm.job_roles import Eligibility, Role
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.state import Tracked
from gavel_py.problem.accelerators import how_the_same, same_accelerator
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.nodes import AcceleratorType, Node

UNNAMED = "gpu"
"""Accelerator name for GPUs to which gres.conf gives no type."""

MEGABYTES_PER_GIGABYTE = 1024.0


@dataclass(frozen=True)
class Partition:
    """The managed partitions as a cluster.

    Accelerators keep jobs in their partitions. If the nodes of a GPU type belong to different managed partitions, the nodes of each
    set of partitions form a separate accelerator with the throughputs of that type, such as `v100@gpu,gpu-long`.

    Attributes:
        cluster: The nodes with GPUs.
        slurm_names: {accelerator: GPU types in Slurm}.
        notes: Descriptions of omitted nodes and renamed types.
        members: {accelerator: the managed partitions to which its nodes belong}.
    """

    cluster: Cluster
    slurm_names: Mapping[str, frozenset[str]]
    notes: tuple[str, ...]
    members: Mapping[str, frozenset[str]]

    @property
    def types(self) -> dict[str, str]:
        """{node: its GPU type in the profile}."""
        names = dict(zip(self.cluster.accelerator_names, self.cluster.profile_names, strict=True))
        return {node.name: names[node.accelerator] for node in self.cluster.nodes}


def partition_of(
    nodes: Iterable[SlurmNode], settings: SlurmSettings, known: Collection[str], *, must_exist: bool = True
) -> Partition:
    """Return the managed partitions.

    Args:
        nodes: All nodes of the Slurm cluster.
        settings: The settings of the site.
        known: Accelerator names of the profile; GPU types are spelled as they are there.
        must_exist: Whether every partition must exist in Slurm; otherwise one of them is enough.

    Raises:
        InputError: No managed partition has GPUs, or one does not exist.
    """
    included: list[Node] = []
    notes: list[str] = []
    names: dict[str, set[str]] = {}
    partitions: set[str] = set()
    members: dict[str, frozenset[str]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        partitions |= node.partitions
        mine = node.partitions.intersection(settings.partitions)
        if not mine or not node.gpus:
            continue
        if len(node.gpus) > 1:
            notes.append(f"node {node.name} has GPUs of several types ({', '.join(sorted(node.gpus))}) and is ignored")
            continue
        ((slurm_name, gpus),) = node.gpus.items()
        name = settings.accelerators.get(slurm_name or UNNAMED, slurm_name or UNNAMED)
        accelerator = same_accelerator(name, known) or name
        names.setdefault(accelerator, set()).add(slurm_name)
        memory = node.memory_mb / MEGABYTES_PER_GIGABYTE or None
        included.append(Node(name=node.name, accelerator=accelerator, num_gpus=gpus, cpus=node.cpus or None, memory_gb=memory))
        members[node.name] = mine
    missing = [name for name in settings.partitions if name not in set().union(*members.values())]
    problems = {
        name: f"{name!r} has no node with GPUs" if name in partitions else f"there is no partition {name!r}" for name in missing
    }
    if not included or (must_exist and not partitions.issuperset(missing)):
        close = {name: "" if name in partitions else nearest(name, sorted(partitions)) for name in missing}
        raise InputError(*(Fault("slurm", "partition", problem + close[name]) for name, problem in problems.items()))
    notes += problems.values()
    for accelerator, slurm_names in names.items():
        for name in sorted(slurm_names - {accelerator}):
            if same_accelerator(name, (accelerator,)):
                reason = how_the_same(name, accelerator)
                notes.append(f"GPU type {name!r} is treated as {accelerator!r} of the profile: {reason}")
    return _grouped(included, members, names, settings, tuple(notes))


def _grouped(
    nodes: Sequence[Node],
    members: Mapping[str, frozenset[str]],
    slurm_names: Mapping[str, Collection[str]],
    settings: SlurmSettings,
    notes: tuple[str, ...],
) -> Partition:
    """Return the cluster with one accelerator for each GPU type and set of partitions.

    members: {node: managed partitions to which it belongs}.
    """
    kinds = dict.fromkeys((node.accelerator, members[node.name]) for node in nodes)
    several = Counter(name for name, _ in kinds)
    group_of = {
        (name, among): name if several[name] == 1 else f"{name}@{','.join(each for each in settings.partitions if each in among)}"
        for name, among in kinds
    }
    types = [
        AcceleratorType(
            name=group,
            price_per_hour=settings.prices_per_hour.get(name),
            profile_name=None if group == name else name,
        )
        for (name, _), group in group_of.items()
    ]
    placed = [
        node
        if (group := group_of[node.accelerator, members[node.name]]) == node.accelerator
        else node.model_copy(update={"accelerator": group})
        for node in nodes
    ]
    return Partition(
        Cluster(placed, types),
        {group: frozenset(slurm_names[name]) for (name, _), group in group_of.items()},
        notes,
        {group: among for (_, among), group in group_of.items()},
    )


@dataclass(frozen=True)
class PartitionRules:
    """Determines in which partitions Slurm would start a job.

    Attributes:
        names: The managed partitions.
        limits: {partition: its limits}; a missing partition has none.
    """

    names: Sequence[str] = ()
    limits: Mapping[str, PartitionLimits] = field(default_factory=dict)

    def refusal(self, partition: str, job: SlurmJob) -> str:
        """Return why Slurm would not start a job in a partition, as a predicate for messages; "" if it would."""
        return self.limits.get(partition, PartitionLimits()).refuses(job)

    def usable(self, job: SlurmJob, tracked: Tracked) -> list[str]:
        """Return the managed partitions in which Slurm would start a job. tracked: its record, which lists all its partitions."""
        listed = job.partitions if job.phase is Phase.WAITING else tracked.partitions or job.partitions
        return [name for name in self.names if name in listed and not self.refusal(name, job)]

    def startable(self, jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
        """Return the waiting jobs that Slurm would start in at least one of their partitions."""
        waiting = [job for job in jobs if job.phase is Phase.WAITING]
        return [job for job in waiting if not all(self.refusal(name, job) for name in job.partitions)]

    def without_partition(self, jobs: Iterable[SlurmJob]) -> dict[str, Eligibility]:
        """Set aside waiting managed jobs that Slurm would not start in any of their partitions."""
        jobs = list(jobs)
        startable = {job.job_id for job in self.startable(jobs)}
        return {
            job.job_id: Eligibility(Role.ASIDE, "; ".join(f"partition {name} {self.refusal(name, job)}" for name in job.partitions))
            for job in jobs
            if job.phase is Phase.WAITING and job.job_id not in startable
        }
