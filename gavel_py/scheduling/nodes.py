"""States of nodes (up, draining, down) and lost GPUs, and the part of the cluster that is available."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from enum import StrEnum
from numbers import Integral
from typing import Any

import numpy as np

from gavel_py.errors import check_known, refuse
from gavel_py.io.records import Count, NotNegative, check
from gavel_py.problem.arrays import Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.nodes import AcceleratorType, Node
from gavel_py.scheduling.placement.topology import Gpu, Layout, Resources

MAX_NAMED = 5
"""Largest number of nodes for which a reason lists the names."""


class NodeState(StrEnum):
    """State of a node."""

    UP = "up"
    """In use."""
    DRAINING = "draining"
    """Gangs there run until their leases end. No lease is renewed, and no gang starts."""
    DOWN = "down"
    """No gang runs there."""


class NodeStates:
    """States of the nodes of a cluster, lost GPUs, and resources reserved for other work.

    Methods that change a state return whether it has changed.

    Attributes:
        cluster: All nodes.
        reserved: {node: CPUs and memory that other work uses}; placement considers them, allocations do not.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._by_name: dict[str, Node] | None = None
        self._states: dict[str, NodeState] = {}
        self._lost: set[Gpu] = set()
        self.reserved: dict[str, Resources] = {}
        self._available: Cluster | None = cluster
        self._up: tuple[Node, ...] | None = None

    @property
    def by_name(self) -> dict[str, NodeState]:
        """{name: state} of all nodes, in the order of the cluster."""
        return {name: self._states.get(name, NodeState.UP) for name in self._nodes}

    @property
    def _nodes(self) -> dict[str, Node]:
        if self._by_name is None:
            self._by_name = {node.name: node for node in self.cluster.nodes}
        return self._by_name

    @property
    def lost(self) -> frozenset[Gpu]:
        """The lost GPUs of all nodes, whatever their state."""
        return frozenset(self._lost)

    @property
    def all_up(self) -> bool:
        """Whether every node is up with all its GPUs."""
        return not self._states and not self._lost

    @property
    def up(self) -> tuple[Node, ...]:
        """The nodes on which gangs may start."""
        if self._up is None:
            self._up = tuple(node for node in self.cluster.nodes if node.name not in self._states)
        return self._up

    @property
    def available(self) -> Cluster:
        """The nodes that are up, without their lost GPUs; the cluster itself if all are up."""
        if self._available is None:
            lost = Counter(name for name, _ in self._lost)
            left = (n.model_copy(update={"num_gpus": n.num_gpus - lost[n.name]}) if n.name in lost else n for n in self.up)
            self._available = Cluster(left, self.cluster.accelerator_types)
        return self._available

    def put(self, name: str, state: NodeState) -> bool:
        """Set the state of a node. Raises `UnknownNameError`."""
        before = self._states.get(self._node(name).name, NodeState.UP)
        if state is NodeState.UP:
            self._states.pop(name, None)
        else:
            self._states[name] = state
        return self._invalidate(before is not state)

    def lose(self, name: str, index: int) -> bool:
        """Mark one GPU as lost. Raises `InputError`."""
        gpu = self._gpu(name, index)
        was_there = gpu not in self._lost
        self._lost.add(gpu)
        return self._invalidate(was_there)

    def give_back(self, name: str, index: int) -> bool:
        """Mark a GPU as usable again. Raises `InputError`."""
        gpu = self._gpu(name, index)
        was_lost = gpu in self._lost
        self._lost.discard(gpu)
        return self._invalidate(was_lost)

    def reserve(self, name: str, cpus: float, memory_gb: float) -> None:
        """Set the CPUs and memory that other work uses on a node. Raises `InputError`."""
        self._node(name)
        check(f"node {name!r}", cpus=(cpus, NotNegative), memory_gb=(memory_gb, NotNegative))
        self.reserved.pop(name, None)
        if cpus or memory_gb:
            self.reserved[name] = Resources(float(cpus), float(memory_gb))

    def free_place(self, job_id: str, gpus: Mapping[str, int], taken: Set[Gpu]) -> tuple[str, list[Gpu]]:
        """Return the type and usable GPUs that are not taken; gpus: {node: number of GPUs}. Raises `InputError`."""
        types = {self._node(name).accelerator for name in gpus}
        where = f"job {job_id!r}"
        check(where, **{f"gpus of node {name!r}": (count, Count) for name, count in gpus.items()})
        all_gpus = {name: [(name, index) for index in range(self._nodes[name].num_gpus)] for name in sorted(gpus)}
        free = {name: [gpu for gpu in there if gpu not in taken | self._lost] for name, there in all_gpus.items()}
        refuse(
            where,
            *(
                (len(there) < gpus[name], "gpus", f"{gpus[name]} GPUs of node {name!r} are given, but {len(there)} are free there")
                for name, there in free.items()
            ),
            (len(types) != 1, "gpus", f"must be of one type, found {', '.join(sorted(types)) or 'none'}"),
        )
        return types.pop(), [gpu for name, there in free.items() for gpu in there[: gpus[name]]]

    @property
    def not_up(self) -> Collection[str]:
        """Names of the nodes that are draining or down."""
        return self._states

    def gone(self, layout: Layout) -> Mask | None:
        """Return (GPUs,) the GPUs of the cluster that are lost or on nodes that are down; None if all nodes are up."""
        return self._mask(layout, [name for name, state in self._states.items() if state is NodeState.DOWN])

    def closed(self, layout: Layout) -> Mask | None:
        """Return (GPUs,) the GPUs on which no gang may start and no lease is renewed; None if all nodes are up."""
        return self._mask(layout, list(self._states))

    def _mask(self, layout: Layout, nodes: list[str]) -> Mask | None:
        if self.all_up:
            return None
        mask = np.isin(layout.node_of, [layout.number[name] for name in nodes])
        mask[layout.numbers(list(self._lost))] = True
        return mask

    @property
    def reason(self) -> str:
        """Why fewer GPUs are available than the cluster has, for messages; empty if none is missing."""
        parts = [_named([name for name, current in self._states.items() if current is state], str(state)) for state in NodeState]
        lost = sorted(gpu for gpu in self._lost if gpu[0] not in self._states)
        if lost:
            parts.append(f"{len(lost)} GPUs are lost" if len(lost) > 1 else f"GPU {lost[0][1]} of node {lost[0][0]} is lost")
        return ", ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Return the nodes that are not up, lost GPUs and reserved resources as plain data."""
        states = {name: str(state) for name, state in self._states.items()}
        reserved = {"reserved": {name: list(each) for name, each in self.reserved.items()}} if self.reserved else {}
        return {"nodes": states, "lost": [list(gpu) for gpu in sorted(self._lost)], **reserved}

    @classmethod
    def from_dict(cls, cluster: Cluster, document: Mapping[str, Any]) -> NodeStates:
        """Restore the states from `to_dict`."""
        made = cls(cluster)
        for name, state in document["nodes"].items():
            made.put(name, NodeState(state))
        for name, index in document["lost"]:
            made.lose(name, index)
        for name, (cpus, memory_gb) in document.get("reserved", {}).items():
            made.reserve(name, cpus, memory_gb)
        return made

    def _invalidate(self, changed: bool) -> bool:
        """Drop cached values if the states have changed; return whether they have."""
        if changed:
            self._up = None
            self._available = self.cluster if self.all_up else None
        return changed

    def _node(self, name: str) -> Node:
        check_known("cluster", "node", [name], self._nodes, "is not in the cluster")
        return self._nodes[name]

    def _gpu(self, name: str, index: int) -> Gpu:
        count = self._node(name).num_gpus
        is_index = isinstance(index, Integral) and not isinstance(index, bool) and 0 <= index < count
        right = f"must be a whole number from 0 to {count - 1}" if count else "the node has no GPUs"
        refuse(f"node {name!r}", (not is_index, "index of the GPU", f"{right}, found {index!r}"))
        return name, int(index)


def _named(names: list[str], state: str) -> str:
    if not names:
        return ""
    if len(names) > MAX_NAMED:
        return f"{len(names)} nodes are {state}"
    return f"node {names[0]} is {state}" if len(names) == 1 else f"nodes {', '.join(names)} are {state}"


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as plain data."""
    types = [each.model_dump(mode="json") for each in cluster.accelerator_types]
    nodes = [node.model_dump(mode="json") for node in cluster.nodes]
    return {"accelerator_types": types, "nodes": nodes, "left_out": cluster.left_out}


def cluster_from_dict(document: Mapping[str, Any]) -> Cluster:
    """Restore a cluster from `cluster_to_dict`."""
    nodes = (Node(**node) for node in document["nodes"])
    cluster = Cluster(nodes, (AcceleratorType(**each) for each in document["accelerator_types"]))
    cluster.left_out = dict(document["left_out"])
    return cluster
