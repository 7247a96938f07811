"""The nodes of the managed partition as a cluster: which there are, which may be used, and what others use of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.integrations.slurm.records import Phase, SlurmJob, SlurmNode
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.io.names import same_name
from gavel_py.problem.cluster import AcceleratorType, Cluster, Node
from gavel_py.scheduling import NodeState

__all__ = ["Parts", "closed_nodes", "cluster_of", "cpus_used_by", "state_of", "used_by"]

DOWN = frozenset({"DOWN", "ERROR", "FUTURE", "INVAL", "INVALID", "INVALID_REG", "POWERING_DOWN"})
EMPTYING = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "RESERVED", "REBOOT_REQUESTED"})
SILENT = frozenset({"UNKNOWN", "NOT_RESPONDING", "NO_RESPOND", "REBOOT_ISSUED", "REBOOT"})
"""Nobody can start there for now, but who runs there may be well: they are left alone until Slurm says more."""

UNNAMED = "gpu"
"""GPUs to which gres.conf gives no type."""


@dataclass(frozen=True)
class Parts:
    """cluster: the nodes with GPUs; slurm_names: {accelerator: names of its GPU types in Slurm}; left_out: which nodes are left
    out and why, and what else is to be said of them.
    """

    cluster: Cluster
    slurm_names: Mapping[str, frozenset[str]]
    left_out: tuple[str, ...]


def cluster_of(nodes: Iterable[SlurmNode], settings: SlurmSettings, known: Collection[str]) -> Parts:
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
    return Parts(Cluster(kept, kinds), {name: frozenset(kinds) for name, kinds in names.items()}, tuple(left_out))


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


def closed_nodes(nodes: Mapping[str, SlurmNode]) -> frozenset[str]:
    """Return the nodes on which nobody can start, though they are not down."""
    return frozenset(name for name, node in nodes.items() if node.states & SILENT and not node.states & DOWN)


def used_by(jobs: Iterable[SlurmJob]) -> dict[str, int]:
    """Return {node: GPUs} that these jobs hold."""
    used: dict[str, int] = {}
    for job in jobs:
        if job.phase in {Phase.RUNNING, Phase.STOPPING}:
            for node, gpus in job.held.items():
                used[node] = used.get(node, 0) + gpus
    return used


def cpus_used_by(jobs: Iterable[SlurmJob]) -> dict[str, float]:
    """Return {node: CPUs} that these jobs have, which Slurm tells of each job as a whole: the same number on each of its nodes."""
    used: dict[str, float] = {}
    for job in jobs:
        for node in job.used_nodes:
            used[node] = used.get(node, 0.0) + job.cpus / len(job.used_nodes)
    return used
