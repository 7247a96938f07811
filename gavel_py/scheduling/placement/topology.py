"""Cluster topology as index arrays: nodes and GPUs numbered by type and node, and the regions that gangs may span.

Also defines `Resources`: CPUs and host memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.job import Locality
from gavel_py.problem.nodes import Node
from gavel_py.problem.tolerances import INPUT_ROUNDING

Gpu = tuple[str, int]
"""(name of the node, index of the GPU there)."""

SCOPES: tuple[Locality, ...] = ("node", "rack", "any")
"""Localities, narrowest first."""

NODE, RACK, ANYWHERE = range(3)
"""Indices into `SCOPES`."""


class Layout:
    """Nodes and GPUs of a cluster, numbered from 0: type by type, node by node, in the order given.

    A region is a node, a rack or a type, according to the scope; a node without a rack is a rack of its own. Regions are numbered
    type by type as well.

    Attributes:
        types: Accelerator types: the given ones, or else those that have nodes.
        type_number: {type: number}.
        names: Names of the nodes.
        number: {name: number of the node}.
        sizes: (nodes,) GPUs.
        cpus: (nodes,), infinite if unknown.
        memory_gb: (nodes,), infinite if unknown.
        limited: Whether CPUs or memory of any node are known.
        first: (nodes,) the first GPU.
        node_of: (GPUs,) the node.
        regions: By scope, (nodes,) the region.
        starts: By scope, (types + 1,) first regions.
        parts: The layout of each type.
    """

    def __init__(self, nodes: Iterable[Node], types: Iterable[str] = ()) -> None:
        groups: dict[str, list[Node]] = {name: [] for name in types}
        for node in nodes:
            groups.setdefault(node.accelerator, []).append(node)
        ordered = [node for group in groups.values() for node in group]
        self.types: tuple[str, ...] = tuple(groups)
        self.type_number = {name: t for t, name in enumerate(self.types)}
        self.names = [node.name for node in ordered]
        self.number = {name: n for n, name in enumerate(self.names)}
        self.sizes = np.array([node.num_gpus for node in ordered], dtype=np.int64)
        self.cpus = _known([node.cpus for node in ordered])
        self.memory_gb = _known([node.memory_gb for node in ordered])
        self.limited = bool(np.isfinite(self.cpus).any() or np.isfinite(self.memory_gb).any())
        self.first = np.cumsum(self.sizes) - self.sizes
        self.node_of = np.repeat(np.arange(len(ordered)), self.sizes)
        type_of = np.repeat(np.arange(len(groups)), [len(group) for group in groups.values()])
        racks: dict[tuple[str, bool, str], int] = {}
        keys = ((node.accelerator, node.rack is None, node.rack or node.name) for node in ordered)
        rack_of = np.array([racks.setdefault(key, len(racks)) for key in keys], dtype=np.int64)
        self.regions: tuple[Indices, ...] = (np.arange(len(ordered)), rack_of, type_of)
        self.starts: tuple[Indices, ...] = tuple(_starts(regions, type_of, len(groups)) for regions in self.regions)
        self.parts = [self._part(t) for t in range(len(groups))]

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return len(self.node_of)

    def numbers(self, gpus: Sequence[Gpu]) -> Indices:
        """Return the numbers of GPUs, -1 for GPUs that do not exist."""
        if not len(self.names):
            return np.full(len(gpus), -1, dtype=np.int64)
        find = self.number.get
        nodes = np.array([find(name, -1) for name, _ in gpus], dtype=np.int64)
        indices = np.array([index for _, index in gpus], dtype=np.int64)
        there = (nodes >= 0) & (indices >= 0) & (indices < self.sizes[nodes])
        return np.where(there, self.first[nodes] + indices, -1)

    @cached_property
    def _node_of(self) -> list[int]:
        """The same as `node_of`; arrays are slow to read for single gangs."""
        return self.node_of.tolist()

    def nodes_of(self, gpus: Sequence[int]) -> list[int]:
        """Return the node of each GPU of a gang."""
        node_of = self._node_of
        return [node_of[gpu] for gpu in gpus]

    def named(self, numbers: Sequence[int]) -> list[Gpu]:
        """Return the GPUs of these numbers as (node, index)."""
        gpus = np.asarray(numbers, dtype=np.int64)
        nodes = self.node_of[gpus]
        names = self.names
        return [(names[n], i) for n, i in zip(nodes.tolist(), (gpus - self.first[nodes]).tolist(), strict=True)]

    def _part(self, t: int) -> TypeLayout:
        nodes = slice(int(self.starts[NODE][t]), int(self.starts[NODE][t + 1]))
        sizes = self.sizes[nodes]
        start = int(np.append(self.first, self.num_gpus)[nodes.start])
        limits = self.cpus[nodes], self.memory_gb[nodes]
        return TypeLayout(
            accelerator=self.types[t],
            nodes=nodes,
            gpus=slice(start, start + int(sizes.sum())),
            sizes=sizes,
            node_of=np.repeat(np.arange(len(sizes)), sizes),
            regions=tuple(regions[nodes] - starts[t] for regions, starts in zip(self.regions, self.starts, strict=True)),
            limited=any(bool(np.isfinite(each).any()) for each in limits),
            racked=int(self.starts[RACK][t + 1] - self.starts[RACK][t]) < len(sizes),
        )


@dataclass(frozen=True, eq=False)
class TypeLayout:
    """Nodes, GPUs and regions of one accelerator type, each numbered from 0."""

    accelerator: str  # the type
    nodes: slice  # its nodes in the `Layout`
    gpus: slice  # its GPUs in the `Layout`
    sizes: Indices  # (nodes,) GPUs
    node_of: Indices  # (GPUs,) the node
    regions: tuple[Indices, ...]  # by scope, (nodes,) the region
    limited: bool  # whether CPUs or memory of any node are known
    racked: bool  # whether any rack has several nodes

    @cached_property
    def _node_of(self) -> list[int]:
        """`node_of` as a list, since single elements of arrays are slow to read."""
        return self.node_of.tolist()  # type: ignore[no-any-return]

    def by_node(self, gpus: Sequence[int]) -> dict[int, list[int]]:
        """Return {node: those of these GPUs on it}."""
        node_of, groups = self._node_of, dict[int, list[int]]()
        for gpu in gpus:
            groups.setdefault(node_of[gpu], []).append(gpu)
        return groups

    def parts_of(self, gpus: Sequence[int]) -> dict[int, int]:
        """Return {node: number of these GPUs on it}."""
        node_of, parts = self._node_of, dict[int, int]()
        for gpu in gpus:
            parts[node_of[gpu]] = parts.get(node_of[gpu], 0) + 1
        return parts


def _known(amounts: Sequence[float | None]) -> Floats:
    """Return the amounts, infinite where unknown."""
    return np.array([np.inf if amount is None else amount for amount in amounts], dtype=float)


def _starts(regions: Indices, types: Indices, count: int) -> Indices:
    """Return the first region of each type, followed by the number of regions."""
    return np.append(regions, regions.max(initial=-1) + 1)[np.searchsorted(types, np.arange(count + 1))]


class Resources(NamedTuple):
    """CPUs and host memory in GB on a node: per GPU of a gang, or in total."""

    cpus: float = 0.0
    memory_gb: float = 0.0


NOTHING = Resources()

NO_LOADS: Mapping[str, Resources] = MappingProxyType({})


def room_for(
    per_gpu: Resources, gpus: NDArray[np.int64], cpus: NDArray[np.float64], memory_gb: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return (nodes,) how many of the free GPUs of each node its free CPUs and memory can serve; arguments: (nodes,) each."""
    for there, needed in ((cpus, per_gpu.cpus), (memory_gb, per_gpu.memory_gb)):
        if needed > 0:
            gpus = np.minimum(gpus, np.floor(np.maximum(0.0, there) / needed + INPUT_ROUNDING)).astype(np.int64)
    return gpus
