"""The managed partitions: their nodes as a cluster for the scheduler, and the partitions in which Slurm would start each job."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.integrations.slurm.client.records import PartitionLimits, Phase, Reservation, SlurmJob, SlurmNode
from gavel_py.integrations.slurm.job_roles import Eligibility, Role
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.problem.accelerators import FILE_VARIABLE, entry_of, how_the_same, same_accelerator
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.nodes import AcceleratorType, Node
from gavel_py.throughput_profiles import ThroughputProfile

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
    ahead: Mapping[str, Reservation] = field(default_factory=dict)

    def on(self, gpus: Mapping[str, int]) -> Partition:
        """Return the same with these nodes only; gpus: {node: its GPUs}."""
        there = (node.model_copy(update={"num_gpus": gpus[node.name]}) for node in self.cluster.nodes if node.name in gpus)
        return replace(self, cluster=Cluster(there, self.cluster.accelerator_types))

    @property
    def types(self) -> dict[str, str]:
        """{node: its GPU type in the profile}."""
        names = dict(zip(self.cluster.accelerator_names, self.cluster.profile_names, strict=True))
        return {node.name: names[node.accelerator] for node in self.cluster.nodes}


def partition_of(
    nodes: Iterable[SlurmNode],
    settings: SlurmSettings,
    known: Collection[str],
    ahead: Mapping[str, Reservation],
    *,
    must_exist: bool = True,
) -> Partition:
    """Return the managed partitions.

    Args:
        nodes: All nodes of the Slurm cluster.
        settings: The settings of the site.
        known: Accelerator names of the profile; GPU types are spelled as they are there.
        ahead: {node: reservation before which its jobs must end} of the nodes that are planned in separate groups (`divided`).
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
        if node.shared_gres:
            notes.append(f"node {node.name} gives jobs parts of GPUs ({', '.join(node.shared_gres)}) and is ignored")
            continue
        ((slurm_name, gpus),) = node.gpus.items()
        name = entry_of(slurm_name or UNNAMED, settings.accelerators, slurm_name or UNNAMED)
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
        InputError.raise_any([Fault("slurm", "partition", problem + close[name]) for name, problem in problems.items()])
    notes += problems.values()
    for accelerator, slurm_names in names.items():
        for name in sorted(slurm_names - {accelerator}):
            if same_accelerator(name, (accelerator,)):
                reason = how_the_same(name, accelerator)
                note = f"GPU type {name!r} is treated as {accelerator!r} of the profile: {reason}"
                is_assumed = name.casefold() != accelerator.casefold()
                notes.append(f"{note}; for another one: --map-accelerator {name}=NAME" if is_assumed else note)
    return _grouped(included, members, ahead, names, settings, tuple(notes))


def known_to(partition: Partition, profile: ThroughputProfile, *, required: bool) -> Partition:
    """Drop GPU types that are not in the profile; required: whether it is an error if none is left."""
    known, measured = profile.accelerators, getattr(profile, "measured", profile).accelerators
    unknown: dict[str, list[str]] = {}
    for node, name in partition.types.items():
        if name not in known:
            unknown.setdefault(name, []).append(node)
    where, has = f"profile {profile.name}", f"it has {', '.join(measured) or 'none'}"
    is_estimated = known != measured  # only estimates add types that were not measured
    if is_estimated:
        has += f", and no specifications are known either ({FILE_VARIABLE} adds some)"
    if not set(partition.cluster.profile_names).intersection(known) and required:
        names = ", ".join(map(repr, unknown))
        mapping = "--map-accelerator OLD=NEW maps a type to a name of the profile"
        hint = mapping if is_estimated else f"--estimate and --learn take speeds from specifications, {mapping}"
        UnknownNameError.raise_any([Fault(where, "", f"does not have GPU type{'s' * (len(unknown) > 1)} {names}; {has}; {hint}")])
    remedy = "" if is_estimated else " (--estimate or --learn uses them by their specifications)"
    notes = tuple(
        f"{where} does not have GPU type {name!r}; {has}; its nodes are ignored{remedy}: {', '.join(nodes)}"
        for name, nodes in unknown.items()
    )
    slurm_names = {
        name: partition.slurm_names[name]
        for name, there in zip(partition.cluster.accelerator_names, partition.cluster.profile_names, strict=True)
        if there in known
    }
    cluster = partition.cluster.restricted_to(slurm_names)
    return replace(partition, cluster=cluster, slurm_names=slurm_names, notes=(*partition.notes, *notes))


def _grouped(
    nodes: Sequence[Node],
    members: Mapping[str, frozenset[str]],
    ahead: Mapping[str, Reservation],
    slurm_names: Mapping[str, Collection[str]],
    settings: SlurmSettings,
    notes: tuple[str, ...],
) -> Partition:
    """Return the cluster with one accelerator for each GPU type, set of partitions and next reservation.

    Args:
        nodes: The nodes, with the names of their GPU types.
        members: {node: managed partitions to which it belongs}.
        ahead: As for `partition_of`.
        slurm_names: {GPU type: its names in Slurm}.
        settings: The settings of the site.
        notes: Notes of the result.
    """
    kinds = {node.name: (node.accelerator, members[node.name], ahead.get(node.name)) for node in nodes}
    groups = _names_of(kinds.values(), settings.partitions)
    types = [
        AcceleratorType(
            name=group,
            price_per_hour=entry_of(name, settings.prices_per_hour, None),
            profile_name=None if group == name else name,
        )
        for (name, _, _), group in groups.items()
    ]
    placed = [
        node if (group := groups[kinds[node.name]]) == node.accelerator else node.model_copy(update={"accelerator": group})
        for node in nodes
    ]
    return Partition(
        Cluster(placed, types),
        {group: frozenset(slurm_names[name]) for (name, _, _), group in groups.items()},
        notes,
        {group: among for (_, among, _), group in groups.items()},
        {group: reservation for (_, _, reservation), group in groups.items() if reservation is not None},
    )


Kind = tuple[str, frozenset[str], Reservation | None]
"""GPU type, managed partitions and next reservation of a group of nodes."""


def _names_of(kinds: Iterable[Kind], partitions: Sequence[str]) -> dict[Kind, str]:
    """Return {kind: name of its accelerator}: the GPU type, with partitions and reservation if these differ.

    Among the groups of a type with the same partitions, the group without a reservation, or with the last one, is named without it.
    """
    found = dict.fromkeys(kinds)
    sets: dict[str, set[frozenset[str]]] = {}
    last: dict[tuple[str, frozenset[str]], float] = {}
    for name, among, reservation in found:
        sets.setdefault(name, set()).add(among)
        last[name, among] = max(last.get((name, among), -math.inf), _begin_of(reservation))
    names = {}
    for kind in found:
        name, among, reservation = kind
        names[kind] = name if len(sets[name]) == 1 else f"{name}@{','.join(each for each in partitions if each in among)}"
        if reservation is not None and _begin_of(reservation) < last[name, among]:
            names[kind] += f" before {reservation.name}"
    return names


def _begin_of(reservation: Reservation | None) -> float:
    return math.inf if reservation is None else reservation.start_seconds


def in_new_groups(planned: Cluster, cluster: Cluster) -> Cluster | None:
    """Return the nodes of a planned cluster in the groups of a new snapshot; None if that has other nodes or GPUs.

    Nodes that are missing in the snapshot stay in a group of their type.
    """
    kinds = [dict(zip(each.accelerator_names, each.profile_names, strict=True)) for each in (planned, cluster)]
    before = {node.name: node for node in planned.nodes}
    for node in cluster.nodes:
        old = before.pop(node.name, None)
        if old is None or (kinds[0][old.accelerator], old.num_gpus) != (kinds[1][node.accelerator], node.num_gpus):
            return None
    first = {kind: name for name, kind in reversed(kinds[1].items())}
    groups = {node.name: first.get(kinds[0][node.accelerator], node.accelerator) for node in before.values()}
    gone = [node.model_copy(update={"accelerator": groups[name]}) for name, node in before.items()]
    types = [each for each in planned.accelerator_types if each.name in groups.values() and each.name not in kinds[1]]
    return Cluster([*cluster.nodes, *gone], [*cluster.accelerator_types, *types])


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

    def usable(self, job: SlurmJob, tracked: Tracked | None) -> list[str]:
        """Return the managed partitions in which Slurm would start a job. tracked: its record, which lists all its partitions."""
        listed = job.partitions if job.phase is Phase.WAITING or tracked is None else tracked.partitions or job.partitions
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
