"""Nodes and accelerator types as records, and readers of cluster files: YAML, JSON and node lists of Alibaba's traces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from gavel_py.errors import InputError, check_together, check_type, faults_among, together, unknown_names
from gavel_py.io import reading
from gavel_py.io.records import Integer, Name, NotNegative, Positive, Record, Whole, check_records, repeated
from gavel_py.problem.tolerances import INPUT_ROUNDING

GpusPerNode = Annotated[Integer, Field(ge=0, le=4096)]


class AcceleratorType(Record):
    """An accelerator type.

    Attributes:
        name: Name in the throughput profile; the key in files.
        memory_gb: Memory of one GPU; jobs that need more (docs/throughput-profiles.md#gpu-memory) cannot use the type.
        price_per_hour: Price of one GPU-hour, in any currency; `throughput_per_dollar` needs it above 0.
        profile_name: Name in the throughput profile, if it differs: a group of GPUs of one type, such as those of a Slurm
            partition, may have its own name. It can be set in Python only, not in files.
    """

    label: ClassVar[str] = "accelerator type"
    identifier: ClassVar[str] = "name"

    name: Name
    memory_gb: Positive | None = None
    price_per_hour: NotNegative | None = None
    profile_name: Name | None = None


class Node(Record):
    """One machine with GPUs of one accelerator type, numbered from 0.

    Attributes:
        name: Unique name.
        accelerator: Name of the type of all its GPUs.
        num_gpus: Number of GPUs.
        cpus: Number of cores, for jobs that request CPUs per GPU; None if unknown.
        memory_gb: Host memory, for jobs that request memory per GPU; None if unknown.
        rack: Name of the rack, for jobs of locality `rack`; None for a node that counts as a rack of its own.
    """

    label: ClassVar[str] = "node"
    identifier: ClassVar[str] = "name"

    name: Name
    accelerator: Name
    num_gpus: GpusPerNode
    cpus: NotNegative | None = None
    memory_gb: NotNegative | None = None
    rack: Name | None = None

    def usable_gpus(self, cpus: float = 0.0, memory_gb: float = 0.0) -> float:
        """Return how many of its GPUs, fractions included, the CPUs and memory of the empty node can serve.

        Args:
            cpus: Cores that each GPU requires.
            memory_gb: Host memory, GB, that each GPU requires.
        """
        pairs = ((self.cpus, cpus), (self.memory_gb, memory_gb))
        return min(
            [self.num_gpus, *(total / per_gpu + INPUT_ROUNDING for total, per_gpu in pairs if total is not None and per_gpu > 0)]
        )


FIELDS = tuple(name for name in AcceleratorType.model_fields if name not in ("name", "profile_name"))
"""Fields of an accelerator type in a file, whose key is its name."""

REFUSED = {
    "name": "is already given by the key; remove it",
    "profile_name": "cannot be given in a file; name the type as in the profile",
}

Parts = tuple[list[Node], list[AcceleratorType]]
KEYS = ("nodes", "accelerator_types")


def read_cluster(path: str | Path) -> Parts:
    """Return the nodes and the declared accelerator types of a file, whose suffix gives the format."""
    readers: dict[str, Callable[[str | Path], Parts]] = {
        ".yaml": _read_document,
        ".yml": _read_document,
        ".json": _read_document,
        ".csv": _read_node_list,
    }
    return readers[reading.suffix_of(path, readers)](path)


def _read_node_list(path: str | Path) -> Parts:
    """Read a node list of openb (gpu-v2023) or of the spot trace (v2026), detected by its columns; skip nodes without GPUs."""
    is_spot = not {"gpu_model", "gpu_capacity_num"}.isdisjoint(reading.csv_header(path)[1])
    row_class: type[_OpenbNode | _SpotNode] = _SpotNode if is_spot else _OpenbNode
    rows = reading.csv_rows(path, required=tuple(row_class.model_fields))
    placed = [(where, row) for where, row in rows if row.get(row_class.gpus) != "0"]
    nodes = [node.as_node() for node in check_records(row_class, placed)]
    names = zip((where for where, _ in placed), (node.name for node in nodes), strict=True)
    InputError.raise_any(repeated("node", row_class.identifier, names))
    return nodes, []


def _read_document(path: str | Path) -> Parts:
    read = reading.document(path)
    document, where = read.value, read.where
    check_type(where(), "", document, dict, "must be a mapping with the key nodes and optionally accelerator_types")
    with together() as attempt:
        attempt(lambda: InputError.raise_any(unknown_names(where, "", document, KEYS, noun="key")))
        nodes = attempt(lambda: _nodes(document.get("nodes", []), where))
        types = attempt(lambda: _accelerator_types(document.get("accelerator_types"), where))
    return nodes, types


def _nodes(entries: Any, where: Callable[..., str]) -> list[Node]:
    check_type(where("nodes"), "nodes", entries, list, "must be a list of nodes")
    rows = [(where("nodes", i), entry) for i, entry in enumerate(entries)]
    checked = check_records(_NodeEntry, rows)
    nodes = [(place, node) for (place, _), entry in zip(rows, checked, strict=True) for node in entry.expanded()]
    InputError.raise_any(repeated("node", "name", ((place, node.name) for place, node in nodes)))
    return [node for _, node in nodes]


def _accelerator_types(entries: Any, where: Callable[..., str]) -> list[AcceleratorType]:
    where_types = where("accelerator_types")
    check_type(where_types, "accelerator_types", entries, dict | None, "must be a mapping from name to details")
    types: list[AcceleratorType] = []
    with together() as attempt:
        for name, details in (entries or {}).items():
            place, given = where("accelerator_types", name), {} if details is None else details
            if isinstance(given, dict):
                label = f"{place} (accelerator type {name!r})"
                refused = faults_among(label, *((key in given, key, problem) for key, problem in REFUSED.items()))
                refused += unknown_names(label, None, (key for key in given if key not in REFUSED), FIELDS)
                attempt(partial(InputError.raise_any, refused))
                given = {key: value for key, value in given.items() if key in FIELDS} | {"name": name}
            types += attempt(partial(check_records, AcceleratorType, [(place, given)])) or []
    return types


class _NodeEntry(Node):
    """An entry of a cluster file: a node, nodes named by a list in brackets, or `count` equal nodes name-0, name-1, ..."""

    count: Whole | None = None

    @field_validator("name")
    @classmethod
    def _check_list(cls, name: str) -> str:
        _names(name)
        return name

    def expanded(self) -> Iterator[Node]:
        fields = self.model_dump(exclude={"count"})
        endings = [""] if self.count is None else [f"-{index}" for index in range(self.count)]
        for name in _names(self.name):
            yield from (Node(**fields | {"name": name + ending}) for ending in endings)


RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
MAX_NAMES = 100_000
"""Maximum number of nodes in one name, to catch typing errors."""


def _names(name: str) -> list[str]:
    """Return the names that a name with a list in brackets stands for, as in Slurm: a[08-10,12] is a08, a09, a10, a12."""
    start, bracket, rest = name.partition("[")
    listed, closing, end = rest.partition("]")
    if not bracket:
        return [name]
    is_list = closing and RANGES.fullmatch(listed) and not set(end) & set("[]")
    check_together((not is_list, f"{name!r} has brackets that are not a list of numbers and ranges, as in h100-[0-3,7]"))
    found: list[str] = []
    for part in listed.split(","):
        first, _, last = part.partition("-")
        is_wrong = int(last or first) < int(first) or len(found) + int(last or first) - int(first) >= MAX_NAMES
        check_together((is_wrong, f"the range {part!r} in {name!r} must ascend and have at most {MAX_NAMES:,} numbers"))
        found += [f"{start}{number:0{len(first)}d}{end}" for number in range(int(first), int(last or first) + 1)]
    return found


class _OpenbNode(Record):
    """A row of openb's node list."""

    label: ClassVar[str] = "node"
    identifier: ClassVar[str] = "sn"
    gpus: ClassVar[str] = "gpu"

    sn: Name
    cpu_milli: NotNegative
    memory_mib: Annotated[NotNegative, Field(le=1e15)]  # in bytes it is finite too
    gpu: GpusPerNode
    model: Name

    def as_node(self) -> Node:
        memory_gb = self.memory_mib * 2**20 / 1e9
        return Node(name=self.sn, accelerator=self.model, num_gpus=self.gpu, cpus=self.cpu_milli / 1000, memory_gb=memory_gb)


class _SpotNode(Record):
    """A row of the spot trace's node list."""

    label: ClassVar[str] = "node"
    identifier: ClassVar[str] = "node_name"
    gpus: ClassVar[str] = "gpu_capacity_num"

    gpu_model: Name
    gpu_capacity_num: GpusPerNode
    cpu_num: NotNegative
    node_name: Name

    def as_node(self) -> Node:
        return Node(name=self.node_name, accelerator=self.gpu_model, num_gpus=self.gpu_capacity_num, cpus=self.cpu_num)
