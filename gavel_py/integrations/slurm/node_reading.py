"""Nodes from `sinfo --json`, in the shapes of 22.05 (one entry a node) and from 23.02 on (one entry for nodes that are alike)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gavel_py.integrations.slurm.gres import gpus_in
from gavel_py.integrations.slurm.hostlists import is_node_name
from gavel_py.integrations.slurm.records import SlurmNode
from gavel_py.integrations.slurm.values import as_number, as_text, as_words

__all__ = ["nodes_from"]


def nodes_from(document: Mapping[str, Any]) -> dict[str, SlurmNode]:
    """Return the nodes by name; a node that stands in several entries, one for each partition, is put together."""
    nodes: dict[str, SlurmNode] = {}
    for node in _entries(document):
        before = nodes.get(node.name)
        if before is not None:
            node = _joined(before, node)
        nodes[node.name] = node
    return nodes


def _entries(document: Mapping[str, Any]) -> Iterator[SlurmNode]:
    for entry in document.get("nodes") or []:
        yield from _plain(entry)
    for entry in document.get("sinfo") or []:
        yield from _grouped(entry)


def _plain(entry: Mapping[str, Any]) -> Iterator[SlurmNode]:
    name = as_text(entry.get("name"))
    if is_node_name(name):
        yield SlurmNode(
            name=name,
            gpus=gpus_in(as_text(entry.get("gres"))),
            states=as_words(entry.get("state")) | as_words(entry.get("state_flags")),
            partitions=_names(entry.get("partitions")),
            features=_names(entry.get("active_features") or entry.get("features")),
            cpus=int(as_number(entry.get("cpus")) or 0),
            memory_mb=as_number(entry.get("real_memory")) or 0.0,
        )


def _grouped(entry: Mapping[str, Any]) -> Iterator[SlurmNode]:
    names = (entry.get("nodes") or {}).get("nodes") or []
    partition = entry.get("partition") or {}
    cpus, memory = entry.get("cpus") or {}, entry.get("memory") or {}
    for name in names:
        if isinstance(name, str) and is_node_name(name):
            yield SlurmNode(
                name=name,
                gpus=gpus_in(as_text((entry.get("gres") or {}).get("total"))),
                states=as_words((entry.get("node") or {}).get("state")),
                partitions=_names(partition.get("name") if isinstance(partition, Mapping) else partition),
                features=_names((entry.get("features") or {}).get("active")),
                # `total` is that of all nodes of the entry; the least of them is what each has.
                cpus=int(as_number(cpus.get("minimum")) or (as_number(cpus.get("total")) or 0) / len(names)),
                memory_mb=as_number(memory.get("minimum")) or 0.0,
            )


def _names(value: Any) -> frozenset[str]:
    return frozenset(name for name in as_text(value).split(",") if name)


def _joined(one: SlurmNode, other: SlurmNode) -> SlurmNode:
    joined = one.__dict__ | {
        "partitions": one.partitions | other.partitions,
        "states": one.states | other.states,
        "features": one.features | other.features,
    }
    return SlurmNode(**joined)
