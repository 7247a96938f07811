"""The clusters of a sweep, and how fast jobs run: from files, counts and objects to what is played."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

from gavel_py.errors import Fault, InputError
from gavel_py.io.records import Name, Record
from gavel_py.problem.cluster import Cluster
from gavel_py.sweeps.parts import Choice, Part
from gavel_py.sweeps.spec import Asked
from gavel_py.throughput_profiles import ThroughputMatrix, ThroughputProfile, ThroughputStore

__all__ = ["cluster_choice", "profile_choice"]

SUFFIXES = {".yaml", ".yml", ".json", ".csv"}


class ClusterEntry(Record):
    """An entry of `clusters` that is given a name."""

    label: ClassVar[str] = "cluster"

    cluster: Any
    name: Name | None = None


def cluster_choice(asked: Asked, entry: Any) -> Choice:
    """Return a cluster of the spec; raises `InputError`."""
    name = None
    if isinstance(entry, dict) and "cluster" in entry:
        checked = ClusterEntry(**{str(key): value for key, value in entry.items()})
        entry, name = checked.cluster, checked.name
    cluster, label = _cluster(asked, entry)
    content = {
        "nodes": [node.model_dump(mode="json") for node in cluster.nodes],
        "types": [kind.model_dump(mode="json") for kind in cluster.accelerator_types],
    }
    return Choice(name or label, content, Part.of(cluster, content))


def profile_choice(asked: Asked) -> Choice:
    """Return how fast jobs run; raises `InputError`."""
    given = asked.spec.profile
    profile: ThroughputProfile | ThroughputMatrix
    if asked.spec.throughputs is not None:
        profile = ThroughputProfile.from_matrix(asked.path(asked.spec.throughputs))
    elif isinstance(given, ThroughputProfile | ThroughputMatrix):
        profile = given
    elif not isinstance(given, str):
        raise InputError(Fault(asked.where("profile"), "profile", f"must be the name of a profile or a file, found {given!r}"))
    elif Path(given).suffix in {".csv", ".json"}:
        profile = ThroughputProfile.from_file(asked.path(given))
    else:
        profile = ThroughputStore().load(given)
    content = {"name": profile.name, "sha256": _checksum(profile)}
    return Choice(profile.name, content, Part.of(profile, content))


def _cluster(asked: Asked, entry: Any) -> tuple[Cluster, str]:
    if isinstance(entry, Cluster):
        kinds = zip(entry.accelerator_names, entry.capacities.tolist(), strict=True)
        return entry, ",".join(f"{name}:{count:g}" for name, count in kinds)
    if isinstance(entry, dict):
        counts = {name: tuple(count) if isinstance(count, list) else count for name, count in entry.items()}
        text = ",".join(f"{name}:{'/'.join(map(str, c)) if isinstance(c, tuple) else c}" for name, c in counts.items())
        return Cluster.from_counts(counts), text
    if not isinstance(entry, str):
        text = f"must be a file, a text such as v100:16,p100:8/4, or a mapping from type to GPUs, found {entry!r}"
        raise InputError(Fault("", "", text))
    path = asked.path(entry)
    if path.suffix in SUFFIXES or path.exists():
        return Cluster.from_file(path), Path(entry).name
    return Cluster.from_inline(entry), entry


def _checksum(profile: ThroughputProfile | ThroughputMatrix) -> str:
    if isinstance(profile, ThroughputProfile):
        return hashlib.sha256(json.dumps(profile.rows).encode()).hexdigest()
    head = json.dumps([profile.job_ids, profile.accelerators]).encode()
    return hashlib.sha256(head + profile.values.tobytes()).hexdigest()
