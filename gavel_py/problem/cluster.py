"""The cluster: a set of nodes, counted by accelerator type."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np

from gavel_py.errors import Fault, GavelWarning, InputError, UnknownNameError, decimal_hint, nearest
from gavel_py.io.names import same_name
from gavel_py.io.records import MOST
from gavel_py.problem.job import Locality
from gavel_py.problem.nodes import AcceleratorType, Node, read_cluster

DEFAULT_GPUS_PER_NODE = 8
LOCALITIES: tuple[Locality, ...] = get_args(Locality)
ROUNDING = 1e-9

MOST_SHOWN = 12
"""Types of a profile that a message lists."""

TO_USE_THEM = (
    "to use these GPUs, give the profile their throughputs (a CSV of job_type, num_gpus, accelerator, steps_per_second, or a "
    "column of --throughputs; see docs/throughput-profiles.md), or call the type what the profile calls it "
    "(--map-accelerator OLD=NEW, Cluster.renamed)"
)
TO_LEAVE_THEM = "; to leave them unused, use --allow-unknown-types (allow_unknown_types=True)"


class _Profile(Protocol):
    """What there is to know of a throughput profile here."""

    @property
    def name(self) -> str: ...

    @property
    def accelerators(self) -> tuple[str, ...]: ...


class Cluster:
    """A set of nodes; the order of `accelerator_types` is the order of columns in every allocation.

    Types are taken from `accelerator_types` first, then from the nodes as they come; left_out: {type: GPUs} of the types that
    `restricted_to` took away. Raises `InputError` for nodes of one name or types declared twice.

    >>> Cluster.from_counts({"v100": (16, 8), "p100": (6, 4)})
    Cluster(v100: 16 GPUs in 2 nodes, p100: 6 GPUs in 2 nodes)
    """

    def __init__(self, nodes: Iterable[Node], accelerator_types: Iterable[AcceleratorType] = ()) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        declared = tuple(accelerator_types)
        _check_unique("node", (node.name for node in self.nodes))
        _check_unique("accelerator type", (kind.name for kind in declared))
        kinds = {kind.name: kind for kind in declared}
        for node in self.nodes:
            if node.accelerator not in kinds:
                kinds[node.accelerator] = AcceleratorType(name=node.accelerator)
        self.accelerator_types: tuple[AcceleratorType, ...] = tuple(kinds.values())
        self.left_out: dict[str, int] = {}
        self._largest: dict[tuple[str, str, float, float], float] = {}  # what has been asked before

    @cached_property
    def accelerator_names(self) -> tuple[str, ...]:
        """Names of the accelerator types, in column order."""
        return tuple(kind.name for kind in self.accelerator_types)

    @cached_property
    def capacities(self) -> np.ndarray:
        """(K,) GPUs of each accelerator type."""
        gpus: Counter[str] = Counter()
        for node in self.nodes:
            gpus[node.accelerator] += node.num_gpus
        counts = np.array([gpus[name] for name in self.accelerator_names], dtype=float)
        counts.setflags(write=False)
        return counts

    @property
    def prices_per_hour(self) -> np.ndarray:
        """(K,) price of one GPU-hour of each type; NaN where unknown."""
        return np.array([np.nan if k.price_per_hour is None else k.price_per_hour for k in self.accelerator_types], dtype=float)

    @property
    def gpu_memory_gb(self) -> np.ndarray:
        """(K,) memory, GB, of one GPU of each type; NaN where unknown."""
        return np.array([np.nan if k.memory_gb is None else k.memory_gb for k in self.accelerator_types], dtype=float)

    @property
    def num_gpus(self) -> int:
        """GPUs of all types together."""
        return int(self.capacities.sum())

    def nodes_of(self, accelerator: str) -> tuple[Node, ...]:
        """The nodes of one accelerator type."""
        return self._by_type.get(accelerator, ())

    @cached_property
    def _by_type(self) -> dict[str, tuple[Node, ...]]:
        groups: dict[str, list[Node]] = {}
        for node in self.nodes:
            groups.setdefault(node.accelerator, []).append(node)
        return {name: tuple(group) for name, group in groups.items()}

    @cached_property
    def node_sizes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """For each type the GPUs of each of its nodes ("node") and racks ("rack"; a node without one is one of its own)."""
        groups = [self.nodes_of(name) for name in self.accelerator_names]
        racks = [Counter[str]() for _ in groups]
        for group, counts in zip(groups, racks, strict=True):
            for node in group:
                counts[self.region_of(node, "rack")] += node.num_gpus
        by_node = tuple(tuple(node.num_gpus for node in group) for group in groups)
        return {"node": by_node, "rack": tuple(tuple(counts.values()) for counts in racks)}

    @cached_property
    def cpus(self) -> np.ndarray:
        """(K,) CPUs of all nodes of each type, infinite if one does not say how many it has."""
        return self._summed([node.cpus for node in self.nodes])

    @cached_property
    def memory_gb(self) -> np.ndarray:
        """(K,) memory, GB, of all nodes of each type, infinite if one does not say how much it has."""
        return self._summed([node.memory_gb for node in self.nodes])

    @cached_property
    def node_rooms(self) -> tuple[tuple[tuple[int, float, float], ...], ...]:
        """For each type the GPUs, CPUs and GB of memory of each of its nodes, infinite where a node does not say."""
        return tuple(
            tuple(
                (node.num_gpus, np.inf if node.cpus is None else node.cpus, np.inf if node.memory_gb is None else node.memory_gb)
                for node in self.nodes_of(name)
            )
            for name in self.accelerator_names
        )

    def _summed(self, values: Iterable[float | None]) -> np.ndarray:
        sums = dict.fromkeys(self.accelerator_names, 0.0)
        for node, value in zip(self.nodes, values, strict=True):
            sums[node.accelerator] += np.inf if value is None else value
        total = np.array([float(sums[name]) for name in self.accelerator_names], dtype=float)
        total.setflags(write=False)
        return total

    def largest_gang(
        self, accelerator: str, locality: str = "any", *, cpus_per_gpu: float = 0.0, memory_gb_per_gpu: float = 0.0
    ) -> float:
        """The largest gang that an empty cluster can hold on this type within one node, one rack, or anywhere.

        Each GPU takes so many cores and so much memory, GB, of its node; a node that does not say what it has has enough. Where
        not even one GPU has enough, it is the largest fraction of one GPU that has, with as large a fraction of them.
        Nodes without a rack count as a rack of their own each.
        """
        if locality not in LOCALITIES:
            raise UnknownNameError(f"there is no locality {locality!r}{nearest(locality, LOCALITIES)}")
        key = accelerator, locality, cpus_per_gpu, memory_gb_per_gpu
        if key not in self._largest:
            holes: Counter[str] = Counter()
            for node in self.nodes_of(accelerator):
                holes[self.region_of(node, locality)] += self.usable_gpus(
                    node, cpus_per_gpu=cpus_per_gpu, memory_gb_per_gpu=memory_gb_per_gpu
                )
            fraction = max((_room(node, cpus_per_gpu, memory_gb_per_gpu) for node in self.nodes_of(accelerator)), default=0.0)
            self._largest[key] = max(holes.values(), default=0) or min(1.0, fraction)
        return self._largest[key]

    @staticmethod
    def region_of(node: Node, locality: str) -> str:
        """Return the name of the largest region around a node that a gang of this locality may span."""
        if locality == "any":
            return ""
        return f"rack {node.rack}" if locality == "rack" and node.rack is not None else f"node {node.name}"

    @staticmethod
    def usable_gpus(node: Node, *, cpus_per_gpu: float = 0.0, memory_gb_per_gpu: float = 0.0) -> int:
        """Return the GPUs of an empty node that have all the CPUs and memory they need, as in `largest_gang`."""
        return int(_room(node, cpus_per_gpu, memory_gb_per_gpu))

    def renamed(self, names: Mapping[str, str]) -> Cluster:
        """Return the cluster with accelerator types renamed; several may become one.

        Its details are then the first one's, but its memory is the least that is known of any of them.
        """
        unknown = [name for name in names if name not in self.accelerator_names]
        InputError.raise_any(
            [Fault("cluster", "accelerator", f"{n!r} is not in it{nearest(n, self.accelerator_names)}") for n in unknown]
        )
        kinds: dict[str, AcceleratorType] = {}
        for kind in self.accelerator_types:
            new = names.get(kind.name, kind.name)
            first = kinds.setdefault(new, AcceleratorType(**kind.model_dump() | {"name": new}))
            known = [each for each in (first.memory_gb, kind.memory_gb) if each is not None]
            kinds[new] = first.model_copy(update={"memory_gb": min(known, default=None)})
        nodes = (n.model_copy(update={"accelerator": names.get(n.accelerator, n.accelerator)}) for n in self.nodes)
        made = Cluster(nodes, kinds.values())
        made.left_out = self.left_out
        return made

    def restricted_to(self, accelerators: Iterable[str]) -> Cluster:
        """Return the cluster without the nodes and types that are not in `accelerators`, which `left_out` tells of."""
        keep = {accelerators} if isinstance(accelerators, str) else set(accelerators)
        rest = Cluster(
            (node for node in self.nodes if node.accelerator in keep),
            (kind for kind in self.accelerator_types if kind.name in keep),
        )
        gpus = zip(self.accelerator_names, self.capacities.tolist(), strict=True)
        rest.left_out = self.left_out | {name: int(count) for name, count in gpus if name not in keep}
        return rest

    def known_to(self, profile: _Profile, *, allow_unknown_types: bool = False) -> Cluster:
        """Return the cluster as a throughput profile knows it: with its names of accelerator types, without types that it lacks.

        `AllocationProblem.from_jobs`, `RoundScheduler` and `Simulation` use this part of a cluster.

        Args:
            profile: Has `name`, and `accelerators`, the types that it knows. A type whose name differs from one of these in case
                only is taken for it, with a `GavelWarning`.
            allow_unknown_types: Whether GPUs of types that the profile lacks may be left out, with a `GavelWarning` each.

        Returns:
            The cluster itself, or a part of it, whose `left_out` says what was taken away.

        Raises:
            UnknownNameError: The profile lacks a type that has GPUs, or with `allow_unknown_types` all types.
            InputError: Types that become one have different prices.
        """
        known, cluster = profile.accelerators, self._spelled_as(profile)
        gpus = zip(cluster.accelerator_names, cluster.capacities.tolist(), strict=True)
        unknown = {name: int(count) for name, count in gpus if name not in known}
        if not unknown:
            return cluster
        more = ", ..." if len(known) > MOST_SHOWN else ""
        lacks = f"is not in profile {profile.name!r}, which has {', '.join(known[:MOST_SHOWN]) or 'none'}{more}"
        none_known = len(unknown) == len(cluster.accelerator_names)
        if none_known or (any(unknown.values()) and not allow_unknown_types):
            told = {name: count for name, count in unknown.items() if count or none_known}
            faults = [Fault("cluster", f"accelerator {n!r}", f"{lacks}; its {c} GPUs cannot be used") for n, c in told.items()]
            raise UnknownNameError(*faults, TO_USE_THEM if none_known else TO_USE_THEM + TO_LEAVE_THEM)
        for name, count in unknown.items():
            warnings.warn(f"{count} GPUs are left out: accelerator {name!r} {lacks}", GavelWarning, stacklevel=3)
        return cluster.restricted_to(known)

    def _spelled_as(self, profile: _Profile) -> Cluster:
        """The cluster with the profile's spelling of types that it writes in another case."""
        found = {name: same_name(name, profile.accelerators) for name in self.accelerator_names}
        spelled = {name: other for name, other in found.items() if other is not None and other != name}
        for name, other in spelled.items():
            alike = [kind for kind in self.accelerator_types if found[kind.name] == other and kind.price_per_hour is not None]
            if len({kind.price_per_hour for kind in alike}) > 1:
                problem = f"differs from {other!r} in case only, and has another price; rename one of them"
                raise InputError(Fault("cluster", f"accelerator {name!r}", problem))
            text = (
                f"accelerator {name!r} of the cluster is taken for {other!r} of profile {profile.name!r}: they differ in case only"
            )
            warnings.warn(text, GavelWarning, stacklevel=4)
        return self.renamed(spelled) if spelled else self

    @classmethod
    def from_counts(cls, counts: Mapping[str, int | tuple[int, int]]) -> Cluster:
        """Build a cluster from {type: GPUs} or {type: (GPUs, GPUs per node)}; nodes hold 8 GPUs unless said.

        A rest that fills no whole node becomes a smaller node.
        """
        faults: list[Fault] = []
        nodes: list[Node] = []
        for name, count in counts.items():
            gpus, per_node = count if isinstance(count, tuple | list) and len(count) == 2 else (count, DEFAULT_GPUS_PER_NODE)
            faults += _count_faults(name, gpus, per_node)
            if not faults:
                gpus, per_node = int(gpus), int(per_node)
                sizes = [per_node] * (gpus // per_node) + [gpus % per_node] * (gpus % per_node > 0)
                nodes += [Node(name=f"{name}-{i}", accelerator=name, num_gpus=size) for i, size in enumerate(sizes)]
        InputError.raise_any(faults)
        return cls(nodes, [AcceleratorType(name=name) for name, _ in counts.items()])  # a Series goes through its values

    @classmethod
    def from_inline(cls, text: str) -> Cluster:
        """Build a cluster from text such as "v100:16,p100:8/4": GPUs per type, and GPUs per node after the slash."""
        counts: dict[str, tuple[int, int]] = {}
        faults: list[Fault] = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*([^:,]*[^:,\s])\s*:\s*([0-9]{1,9})(?:\s*/\s*([0-9]{1,9}))?\s*", part)
            numbers = (number.strip() for number in part.rpartition(":")[2].split("/"))
            other = [f"{number!r}{hint}" for number in numbers if (hint := decimal_hint(number))]
            if other:
                faults.append(Fault("cluster", "", f"{part.strip()!r} must have decimal numbers, found {', '.join(other)}"))
            elif match is None:
                faults.append(Fault("cluster", "", f"{part.strip()!r} is not of the form TYPE:GPUS or TYPE:GPUS/GPUS_PER_NODE"))
            elif match[1].strip() in counts:
                faults.append(Fault("cluster", "", f"accelerator type {match[1].strip()!r} is named twice"))
            else:
                counts[match[1].strip()] = (int(match[2]), int(match[3] or DEFAULT_GPUS_PER_NODE))
        InputError.raise_any(faults)
        return cls.from_counts(counts)

    @classmethod
    def from_file(cls, path: str | Path) -> Cluster:
        """Read a cluster from YAML, JSON, or a node list of Alibaba's traces (CSV), told apart by the file's suffix."""
        try:
            return cls(*read_cluster(path))
        except InputError as error:
            # Faults of the cluster as a whole, such as a name that stands twice, know no file.
            raise InputError(*(replace(f, where=str(path)) if f.where == "cluster" else f for f in error.faults)) from None

    def __repr__(self) -> str:
        nodes = Counter(node.accelerator for node in self.nodes)
        counts = zip(self.accelerator_names, self.capacities, strict=True)
        return "Cluster(" + ", ".join(f"{n}: {c:.0f} GPUs in {nodes[n]} nodes" for n, c in counts) + ")"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cluster):
            return NotImplemented
        return (self.nodes, self.accelerator_types) == (other.nodes, other.accelerator_types)

    __hash__ = None  # type: ignore[assignment]


def _room(node: Node, cpus_per_gpu: float, memory_gb_per_gpu: float) -> float:
    """GPUs of an empty node that have all the CPUs and memory they need, with the part of one that has the rest of them."""
    pairs = ((node.cpus, cpus_per_gpu), (node.memory_gb, memory_gb_per_gpu))
    rooms = [there / per_gpu + ROUNDING for there, per_gpu in pairs if there is not None and per_gpu > 0]
    return min([node.num_gpus, *rooms])


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _hint(value: object) -> str:
    return decimal_hint(value) if isinstance(value, str) else ""


def _check_unique(what: str, names: Iterable[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    InputError.raise_any([Fault("cluster", "", f"{what} {name!r} stands twice; names must be unique") for name in repeated])


def _count_faults(name: str, gpus: Any, per_node: Any) -> list[Fault]:
    where = f"cluster, accelerator type {name!r}"
    faults = []
    if not _is_whole(gpus) or gpus < 0:
        faults.append(Fault(where, "GPUs", f"must be a whole number of at least 0, found {gpus!r}{_hint(gpus)}"))
    if not _is_whole(per_node) or per_node < 1:
        faults.append(Fault(where, "GPUs per node", f"must be a whole number of at least 1, found {per_node!r}{_hint(per_node)}"))
    if not faults and gpus / per_node > MOST:
        faults.append(Fault(where, "GPUs", f"must make at most {MOST:,} nodes, found {gpus:,} GPUs in nodes of {per_node:,}"))
    return faults
