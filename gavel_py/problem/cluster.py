"""Clusters: sets of nodes, counted by accelerator type."""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gavel_py.errors import (
    Fault,
    GavelWarning,
    InputError,
    UnknownNameError,
    check_known,
    decimal_hint,
    faults_among,
    refuse,
    relocated_faults,
    unknown_names,
)
from gavel_py.io.names import MAX_COUNT, repeated
from gavel_py.io.records import Count, Natural, faults_of
from gavel_py.problem.accelerators import how_the_same, notes_on_names, same_accelerator
from gavel_py.problem.job import Job, Locality
from gavel_py.problem.nodes import AcceleratorType, Node, read_cluster
from gavel_py.problem.profile import Profile

DEFAULT_GPUS_PER_NODE = 8
LOCALITIES: tuple[Locality, ...] = get_args(Locality)

MAX_SHOWN = 12
"""Number of types of a profile that a message lists."""

NO_ESTIMATE = ", and an estimate needs its specifications (a CSV file that GAVEL_PY_ACCELERATORS names) or a measurement on it"

TO_USE_THEM = (
    "to use these GPUs, add their throughputs to the profile (a CSV of job_type, num_gpus, accelerator, steps_per_second, or a "
    "column of --throughputs; see docs/throughput-profiles.md), or give the type the name it has in the profile "
    "(--map-accelerator OLD=NEW, Cluster.renamed)"
)
TO_LEAVE_THEM = "; to leave them unused, use --allow-unknown-types (allow_unknown_types=True)"


class Cluster:
    """A set of nodes; the order of `accelerator_types` is the order of columns in every allocation.

    >>> Cluster.from_counts({"v100": (16, 8), "p100": (6, 4)})
    Cluster(v100: 16 GPUs in 2 nodes, p100: 6 GPUs in 2 nodes)

    Args:
        nodes: Nodes with unique names.
        accelerator_types: Types with their details, which come first; types named only by nodes follow, in order of appearance.

    Attributes:
        left_out: {type: GPUs} of the types that `restricted_to` removed.

    Raises:
        InputError: Two nodes or two types have the same name.
    """

    def __init__(self, nodes: Iterable[Node], accelerator_types: Iterable[AcceleratorType] = ()) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        declared = tuple(accelerator_types)
        _check_unique("node", (node.name for node in self.nodes))
        _check_unique("accelerator type", (each.name for each in declared))
        types = {each.name: each for each in declared}
        groups: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            groups[node.accelerator].append(node)
        types |= {name: AcceleratorType(name=name) for name in groups if name not in types}
        self._by_type = {name: tuple(group) for name, group in groups.items()}
        self.accelerator_types: tuple[AcceleratorType, ...] = tuple(types.values())
        self.left_out: dict[str, int] = {}
        self._largest: dict[tuple[str, str, float, float], float] = {}  # cache of `largest_gang`

    @cached_property
    def accelerator_names(self) -> tuple[str, ...]:
        """Names of the accelerator types, in column order."""
        return tuple(each.name for each in self.accelerator_types)

    @cached_property
    def profile_names(self) -> tuple[str, ...]:
        """Names of the accelerator types in a throughput profile, in column order; groups of one type have the same."""
        return tuple(each.profile_name or each.name for each in self.accelerator_types)

    def as_in_profile(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs with the types on which they may run translated to names of the profile."""
        if self.accelerator_names == self.profile_names:
            return jobs
        names = dict(zip(self.accelerator_names, self.profile_names, strict=True))
        return [job.on_renamed(lambda name: names.get(name, name)) for job in jobs]

    @cached_property
    def capacities(self) -> np.ndarray:
        """(K,) GPUs of each accelerator type."""
        return self._summed([node.num_gpus for node in self.nodes])

    @cached_property
    def prices_per_hour(self) -> np.ndarray:
        """(K,) price of one GPU-hour of each type; NaN if unknown."""
        return np.array([np.nan if k.price_per_hour is None else k.price_per_hour for k in self.accelerator_types], dtype=float)

    @cached_property
    def gpu_memory_gb(self) -> np.ndarray:
        """(K,) memory, GB, of one GPU of each type; NaN if unknown."""
        return np.array([np.nan if k.memory_gb is None else k.memory_gb for k in self.accelerator_types], dtype=float)

    @property
    def num_gpus(self) -> int:
        """Total number of GPUs."""
        return int(self.capacities.sum())

    def nodes_of(self, accelerator: str) -> tuple[Node, ...]:
        """Return the nodes of one accelerator type."""
        return self._by_type.get(accelerator, ())

    @cached_property
    def node_sizes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """For each type the GPUs of each of its nodes ("node") and racks ("rack"; a node without rack counts as one)."""
        groups = [self.nodes_of(name) for name in self.accelerator_names]
        racks = [Counter[str]() for _ in groups]
        for group, counts in zip(groups, racks, strict=True):
            for node in group:
                counts[self.region_of(node, "rack")] += node.num_gpus
        by_node = tuple(tuple(node.num_gpus for node in group) for group in groups)
        return {"node": by_node, "rack": tuple(tuple(counts.values()) for counts in racks)}

    @cached_property
    def cpus(self) -> np.ndarray:
        """(K,) CPUs of all nodes of each type, infinite if unknown for one of them."""
        return self._summed([node.cpus for node in self.nodes])

    @cached_property
    def memory_gb(self) -> np.ndarray:
        """(K,) memory, GB, of all nodes of each type, infinite if unknown for one of them."""
        return self._summed([node.memory_gb for node in self.nodes])

    @cached_property
    def node_rooms(self) -> tuple[tuple[tuple[int, float, float], ...], ...]:
        """For each type the GPUs, CPUs and memory, GB, of each of its nodes, infinite if unknown."""
        return tuple(
            tuple((node.num_gpus, _known(node.cpus), _known(node.memory_gb)) for node in self.nodes_of(name))
            for name in self.accelerator_names
        )

    def _summed(self, values: Iterable[float | None]) -> np.ndarray:
        sums = dict.fromkeys(self.accelerator_names, 0.0)
        for node, value in zip(self.nodes, values, strict=True):
            sums[node.accelerator] += _known(value)
        total = np.array([sums[name] for name in self.accelerator_names], dtype=float)
        total.setflags(write=False)
        return total

    def largest_gang(
        self, accelerator: str, locality: str = "any", *, cpus_per_gpu: float = 0.0, memory_gb_per_gpu: float = 0.0
    ) -> float:
        """Return the GPUs of the largest gang that an empty cluster can hold on one type.

        Nodes with unknown CPUs or memory have enough of them. If no node has enough for one GPU, the result is the largest fraction
        of one GPU for which a node has that fraction of CPUs and memory.

        Args:
            accelerator: Name of the type.
            locality: Whether the gang must be within one "node", one "rack" (a node without rack counts as one), or "any".
            cpus_per_gpu: Cores that each GPU requires on its node.
            memory_gb_per_gpu: Host memory, GB, that each GPU requires on its node.

        Raises:
            UnknownNameError: There is no such locality.
        """
        check_known("", "", [locality], LOCALITIES, "is not a locality")
        key = accelerator, locality, cpus_per_gpu, memory_gb_per_gpu
        if key not in self._largest:
            regions: Counter[str] = Counter()
            rooms = [(node, node.usable_gpus(cpus_per_gpu, memory_gb_per_gpu)) for node in self.nodes_of(accelerator)]
            for node, room in rooms:
                regions[self.region_of(node, locality)] += int(room)
            fraction = max((room for _, room in rooms), default=0.0)
            self._largest[key] = max(regions.values(), default=0) or min(1.0, fraction)
        return self._largest[key]

    @staticmethod
    def region_of(node: Node, locality: str) -> str:
        """Return the name of the region around a node that a gang of this locality may span: a node, a rack, or empty for all."""
        if locality == "any":
            return ""
        return f"rack {node.rack}" if locality == "rack" and node.rack is not None else f"node {node.name}"

    def renamed(self, names: Mapping[str, str]) -> Cluster:
        """Return the cluster with renamed accelerator types.

        Several types may get the same name. They then have the details of the first, and the least known memory of all of them.

        Args:
            names: {old name: new name}; the old name may be any name of the accelerator.

        Raises:
            InputError: The cluster has no type with an old name.
        """
        there = self.accelerator_names
        unknown = [name for name in names if same_accelerator(name, there) is None]
        InputError.raise_any(unknown_names("cluster", "accelerator", unknown, there, "is not in the cluster"))
        names = {same_accelerator(old, there) or old: new for old, new in names.items()}
        types: dict[str, AcceleratorType] = {}
        for old in self.accelerator_types:
            new = names.get(old.name, old.name)
            first = types.setdefault(new, AcceleratorType(**old.model_dump() | {"name": new}))
            known = [each for each in (first.memory_gb, old.memory_gb) if each is not None]
            types[new] = first.model_copy(update={"memory_gb": min(known, default=None)})
        nodes = (n.model_copy(update={"accelerator": names.get(n.accelerator, n.accelerator)}) for n in self.nodes)
        made = Cluster(nodes, types.values())
        made.left_out = self.left_out
        return made

    def restricted_to(self, accelerators: Iterable[str]) -> Cluster:
        """Return the cluster with some accelerator types only; `left_out` has the others.

        Args:
            accelerators: Names of the types to keep, or one name.
        """
        keep = {accelerators} if isinstance(accelerators, str) else set(accelerators)
        rest = Cluster(
            (node for node in self.nodes if node.accelerator in keep),
            (each for each in self.accelerator_types if each.name in keep),
        )
        gpus = zip(self.accelerator_names, self.capacities.tolist(), strict=True)
        rest.left_out = self.left_out | {name: int(count) for name, count in gpus if name not in keep}
        return rest

    def known_to(self, profile: Profile, *, allow_unknown_types: bool = False) -> Cluster:
        """Return the cluster with the names of a throughput profile, without the types that the profile lacks.

        `AllocationProblem.from_jobs`, `RoundScheduler` and `Simulation` use this part of a cluster.

        Args:
            profile: A profile with `name`, and `accelerators`, its types. A type of the cluster whose name differs only in case,
                or is another name of the same accelerator, is treated as the type of the profile, with a `GavelWarning`.
            allow_unknown_types: Whether GPUs of types that the profile lacks may be left out, with a `GavelWarning` each.

        Returns:
            The cluster itself, or a part of it; `left_out` has the removed types.

        Raises:
            UnknownNameError: The profile lacks a type that has GPUs, or with `allow_unknown_types` all types.
            InputError: Types that get the same name have different prices.
        """
        known, cluster = profile.accelerators, self._renamed_for(profile)
        gpus = zip(cluster.accelerator_names, cluster.profile_names, cluster.capacities.tolist(), strict=True)
        unknown = {name: int(count) for name, there, count in gpus if there not in known}
        if not unknown:
            return cluster
        measured = getattr(profile, "measured", profile).accelerators  # a profile with estimates also contains all specifications
        more = ", ..." if len(measured) > MAX_SHOWN else ""
        lacks = f"is not in profile {profile.name!r}, which has {', '.join(measured[:MAX_SHOWN]) or 'none'}{more}"
        lacks += NO_ESTIMATE if hasattr(profile, "measured") else ""
        none_known = len(unknown) == len(cluster.accelerator_names)
        if none_known or (any(unknown.values()) and not allow_unknown_types):
            listed = {name: f"{c} GPU{'s' * (c != 1)}" for name, c in unknown.items() if c or none_known}
            faults = [Fault("cluster", f"accelerator {n!r}", f"{lacks}; its {c} cannot be used") for n, c in listed.items()]
            raise UnknownNameError(*faults, getattr(profile, "to_use_types", TO_USE_THEM) + ("" if none_known else TO_LEAVE_THEM))
        for name, count in unknown.items():
            ignored = "GPU is ignored" if count == 1 else "GPUs are ignored"
            warnings.warn(f"{count} {ignored}: accelerator {name!r} {lacks}", GavelWarning, stacklevel=3)
        return cluster.restricted_to(set(cluster.accelerator_names) - unknown.keys())

    def _renamed_for(self, profile: Profile) -> Cluster:
        """Return the cluster with the profile's names for types that are the same accelerators."""
        found = {e.name: same_accelerator(e.name, profile.accelerators) for e in self.accelerator_types if not e.profile_name}
        renamed = {name: other for name, other in found.items() if other is not None and other != name}
        for name, other in renamed.items():
            prices = {each.price_per_hour for each in self.accelerator_types if found.get(each.name) == other}
            text = f"is the same as {other!r}, since {how_the_same(name, other)}, but has another price; rename one of them"
            refuse("cluster", (len(prices - {None}) > 1, f"accelerator {name!r}", text))
        for note in notes_on_names(renamed, profile.name, getattr(profile, "measured", profile).accelerators):
            warnings.warn(note, stacklevel=4)
        return self.renamed(renamed) if renamed else self

    @classmethod
    def from_counts(cls, counts: Mapping[str, int | tuple[int, int]]) -> Cluster:
        """Build a cluster from numbers of GPUs. The last node of a type is smaller if the GPUs do not fill it.

        Args:
            counts: {type: GPUs} or {type: (GPUs, GPUs per node)}; 8 GPUs per node by default.

        Raises:
            InputError: A number is not a whole number in range.
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
        return cls(nodes, [AcceleratorType(name=name) for name, _ in counts.items()])  # iterating a pandas Series gives values

    @classmethod
    def from_inline(cls, text: str) -> Cluster:
        """Build a cluster from text.

        Args:
            text: GPUs per type, with optional GPUs per node after a slash: "v100:16,p100:8/4".

        Raises:
            InputError: The text has another form.
        """
        counts: dict[str, tuple[int, int]] = {}
        faults: list[Fault] = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*([^:,]*[^:,\s])\s*:\s*([0-9]{1,9})(?:\s*/\s*([0-9]{1,9}))?\s*", part)
            numbers = (number.strip() for number in part.rpartition(":")[2].split("/"))
            other = [f"{number!r}{hint}" for number in numbers if (hint := decimal_hint(number))]
            name = "" if other or match is None else match[1].strip()
            faults += faults_among(
                "cluster",
                (other, "", f"{part.strip()!r} must contain decimal numbers, found {', '.join(other)}"),
                (not other and not match, "", f"{part.strip()!r} is not of the form TYPE:GPUS or TYPE:GPUS/GPUS_PER_NODE"),
                (name in counts, "", f"accelerator type {name!r} appears twice"),
            )
            if match is not None and name:
                counts[name] = (int(match[2]), int(match[3] or DEFAULT_GPUS_PER_NODE))
        InputError.raise_any(faults)
        return cls.from_counts(counts)

    @classmethod
    def from_file(cls, path: str | Path) -> Cluster:
        """Read a cluster from a file.

        Args:
            path: YAML, JSON, or a node list of Alibaba's traces (CSV); the suffix gives the format (docs/file-formats.md).

        Raises:
            InputError: All faults of the file, each with its place.
        """
        # Faults of the cluster as a whole, such as a repeated name, do not contain the file yet.
        with relocated_faults(lambda fault: replace(fault, where=str(path)) if fault.where == "cluster" else fault):
            return cls(*read_cluster(path))

    def __repr__(self) -> str:
        nodes = Counter(node.accelerator for node in self.nodes)
        counts = zip(self.accelerator_names, self.capacities, strict=True)
        return "Cluster(" + ", ".join(f"{n}: {c:.0f} GPUs in {nodes[n]} nodes" for n, c in counts) + ")"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cluster):
            return NotImplemented
        return (self.nodes, self.accelerator_types) == (other.nodes, other.accelerator_types)

    __hash__ = None  # type: ignore[assignment]


def _known(value: float | None) -> float:
    """Return a number of CPUs or GB, infinite if it is unknown."""
    return np.inf if value is None else value


def _check_unique(what: str, names: Iterable[str]) -> None:
    InputError.raise_any([Fault("cluster", "", f"{what} {name!r} appears twice; names must be unique") for name in repeated(names)])


def _count_faults(name: str, gpus: Any, per_node: Any) -> list[Fault]:
    where = f"cluster, accelerator type {name!r}"
    wrong = faults_of(where, **{"GPUs": (gpus, Natural), "GPUs per node": (per_node, Count)})
    if wrong:
        return wrong
    text = f"must give at most {MAX_COUNT:,} nodes, found {gpus:,} GPUs in nodes of {per_node:,}"
    return faults_among(where, (gpus / per_node > MAX_COUNT, "GPUs", text))
