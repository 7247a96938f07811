"""Numbers for the nodes and GPUs of a cluster, so that what holds for all of them takes a few steps on arrays.

`Resources` are the CPUs and host memory that GPUs need on their node, and `room_for` says how many GPUs of a node have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.job import Locality
from gavel_py.problem.nodes import Node

Gpu = tuple[str, int]
"""A GPU: the name of its node, and its number there from 0."""

SCOPES: tuple[Locality, ...] = ("node", "rack", "any")
"""The localities, narrowest first."""

NODE, RACK, ANYWHERE = range(3)
"""The places of the localities in `SCOPES`."""


class Layout:
    """The nodes of a cluster and their GPUs, numbered from 0: type by type, node by node, as they come.

    types: the accelerator types that have nodes; names, sizes, cpus, memory_gb: by node, infinite where a node does not say what it
    has; first: by node, its first GPU; node_of: by GPU; regions: by scope, for each node its node, rack or type, also numbered type
    by type (a node without a rack is a rack of its own); starts: by scope, the first region of each type, and the number of all.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        groups: dict[str, list[Node]] = {}
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
        types = np.repeat(np.arange(len(groups)), [len(group) for group in groups.values()])
        racks: dict[tuple[str, bool, str], int] = {}
        keys = ((node.accelerator, node.rack is None, node.rack or node.name) for node in ordered)
        rack_of = np.array([racks.setdefault(key, len(racks)) for key in keys], dtype=np.int64)
        self.regions: tuple[Indices, ...] = (np.arange(len(ordered)), rack_of, types)
        self.starts: tuple[Indices, ...] = tuple(_starts(regions, types, len(groups)) for regions in self.regions)
        self.parts = [self._part(t) for t in range(len(groups))]

    @property
    def num_gpus(self) -> int:
        """The number of all GPUs."""
        return len(self.node_of)

    def numbers(self, gpus: Sequence[Gpu]) -> Indices:
        """Return the numbers of GPUs, -1 for those that are not there."""
        if not len(self.names):
            return np.full(len(gpus), -1, dtype=np.int64)
        find = self.number.get
        nodes = np.array([find(name, -1) for name, _ in gpus], dtype=np.int64)
        indices = np.array([index for _, index in gpus], dtype=np.int64)
        there = (nodes >= 0) & (indices >= 0) & (indices < self.sizes[nodes])
        return np.where(there, self.first[nodes] + indices, -1)

    def named(self, numbers: Sequence[int]) -> list[Gpu]:
        """Return the GPUs of these numbers."""
        gpus = np.asarray(numbers, dtype=np.int64)
        nodes = self.node_of[gpus]
        names = self.names
        return [(names[n], i) for n, i in zip(nodes.tolist(), (gpus - self.first[nodes]).tolist(), strict=True)]

    def _part(self, t: int) -> TypeLayout:
        nodes = slice(int(self.starts[NODE][t]), int(self.starts[NODE][t + 1]))
        sizes = self.sizes[nodes]
        start = int(self.first[nodes.start])
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
    """The nodes of one accelerator type; they, their GPUs and regions are numbered from 0.

    nodes, gpus: where they stand in the layout of all; sizes: by node; node_of: by GPU; regions: by scope and node;
    limited: whether any node says what CPUs or memory it has; racked: whether any rack has several nodes.
    """

    accelerator: str
    nodes: slice
    gpus: slice
    sizes: Indices
    node_of: Indices
    regions: tuple[Indices, ...]
    limited: bool
    racked: bool

    def by_node(self, gpus: Sequence[int]) -> dict[int, list[int]]:
        """Return those of these GPUs that are on each node."""
        groups: dict[int, list[int]] = {}
        for n, gpu in zip(self.node_of[gpus].tolist(), gpus, strict=True):
            groups.setdefault(n, []).append(gpu)
        return groups

    def parts_of(self, gpus: Sequence[int]) -> dict[int, int]:
        """Return how many of these GPUs are on each node."""
        return {n: len(here) for n, here in self.by_node(gpus).items()}


def _known(amounts: Sequence[float | None]) -> Floats:
    return np.array([np.inf if amount is None else amount for amount in amounts], dtype=float)


def _starts(regions: Indices, types: Indices, count: int) -> Indices:
    """The first region of each type, and after them the number of regions."""
    first_nodes = np.searchsorted(types, np.arange(count))
    return np.append(regions[first_nodes], regions.max(initial=-1) + 1)


ROUNDING = 1e-9


class Resources(NamedTuple):
    """What each GPU of a gang needs on its node, or what some gangs on a node need there together; memory_gb in GB."""

    cpus: float = 0.0
    memory_gb: float = 0.0


NOTHING = Resources()

NO_LOADS: Mapping[str, Resources] = MappingProxyType({})


def room_for(
    needs: Resources, gpus: NDArray[np.int64], cpus: NDArray[np.float64], memory_gb: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return (nodes,) how many of the free GPUs of each node can have what they need of its free CPUs and memory."""
    for there, per_gpu in ((cpus, needs.cpus), (memory_gb, needs.memory_gb)):
        if per_gpu > 0:
            gpus = np.minimum(gpus, np.floor(np.maximum(0.0, there) / per_gpu + ROUNDING)).astype(np.int64)
    return gpus
