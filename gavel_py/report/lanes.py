"""Where each GPU of a cluster is drawn: lanes from the top down, by accelerator type and node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gavel_py.errors import InputError
from gavel_py.problem.cluster import Cluster
from gavel_py.scheduling.placement.topology import Gpu

__all__ = ["Group", "Lanes", "lanes_of"]


@dataclass(frozen=True)
class Group:
    """Lanes that belong together, those of a node or of an accelerator type; first and end: lanes, end not included."""

    name: str
    first: int
    end: int

    @property
    def middle(self) -> float:
        """The middle of the lanes."""
        return (self.first + self.end) / 2


@dataclass(frozen=True)
class Lanes:
    """L lanes, one for each GPU. gpus: (node, index) by lane; nodes and types: the groups that they form, from the top down."""

    gpus: Sequence[Gpu]
    nodes: Sequence[Group]
    types: Sequence[Group]

    @cached_property
    def number(self) -> dict[Gpu, int]:
        """The lane of each GPU."""
        return {gpu: lane for lane, gpu in enumerate(self.gpus)}

    @cached_property
    def node_numbers(self) -> list[int]:
        """(L,) the number of each lane's node."""
        return [number for number, node in enumerate(self.nodes) for _ in range(node.first, node.end)]


def lanes_of(cluster: Cluster) -> Lanes:
    """Return the lanes of a cluster, types and nodes in its order. Raises `InputError` when it has no GPUs."""
    gpus: list[Gpu] = []
    nodes: list[Group] = []
    types: list[Group] = []
    for name in cluster.accelerator_names:
        first = len(gpus)
        for node in cluster.nodes_of(name):
            nodes.append(Group(node.name, len(gpus), len(gpus) + node.num_gpus))
            gpus += [(node.name, index) for index in range(node.num_gpus)]
        types.append(Group(name, first, len(gpus)))
    if not gpus:
        raise InputError("there is nothing to draw: the cluster has no GPUs")
    return Lanes(gpus, [node for node in nodes if node.end > node.first], [kind for kind in types if kind.end > kind.first])
