"""The axes of a sweep: its traces, clusters, policies and throughputs, from entries of the spec to what is played.

Traces are read from files, or drawn for each load and seed. Clusters and throughputs come from files, counts and objects; policies
from names, entries and objects. A `Part` is a value that many cells share: it is packed once, and unpacked once in each process
that plays cells.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from gavel_py.errors import Fault, InputError
from gavel_py.io.records import GangSize, Name, NotNegative, Positive, Record, Text, Whole
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.constraints import read_constraints
from gavel_py.policies.serialization import policy_document
from gavel_py.problem.cluster import Cluster
from gavel_py.sweeps.spec import CheckedSpec
from gavel_py.throughput_profiles import ThroughputMatrix, ThroughputProfile, ThroughputStore
from gavel_py.workloads import Empirical, LogUniform, Submission, Trace, generate_trace, read_trace, trace_text

CACHED_VALUES = 32


@dataclass(frozen=True)
class PackedValue:
    """A value as it goes to another process; parts of one identity are the same."""

    identity: str
    data: bytes = field(compare=False, repr=False)

    @classmethod
    def of(cls, value: Any, content: Any) -> PackedValue:
        """Pack a value; content: what tells it from others, as JSON can hold it."""
        return cls(digest(content), pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))

    @property
    def value(self) -> Any:
        """The value; cells must not change it."""
        return _unpacked(self)


@dataclass(frozen=True)
class AxisValue:
    """A value on an axis of the grid: what it is called, what tells it from others as JSON can hold it, and the value."""

    label: str
    content: Any = field(compare=False)
    packed: PackedValue


def plain_text(content: Any) -> str:
    """Return plain data as JSON; that of two is the same just if they are."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def digest(content: Any) -> str:
    """Return a checksum of plain data."""
    return hashlib.sha256(plain_text(content).encode()).hexdigest()


@lru_cache(maxsize=CACHED_VALUES)
def _unpacked(packed: PackedValue) -> Any:
    return pickle.loads(packed.data)  # noqa: S301  packed by this program a moment ago


SUFFIXES = {".yaml", ".yml", ".json", ".csv"}


class ClusterEntry(Record):
    """An entry of `clusters` that is given a name."""

    label: ClassVar[str] = "cluster"

    cluster: Any
    name: Name | None = None


def cluster_value(checked: CheckedSpec, entry: Any) -> AxisValue:
    """Return a cluster of the spec; raises `InputError`."""
    name = None
    if isinstance(entry, dict) and "cluster" in entry:
        record = ClusterEntry(**{str(key): value for key, value in entry.items()})
        entry, name = record.cluster, record.name
    cluster, label = _cluster(checked, entry)
    content = {
        "nodes": [node.model_dump(mode="json") for node in cluster.nodes],
        "types": [kind.model_dump(mode="json") for kind in cluster.accelerator_types],
    }
    return AxisValue(name or label, content, PackedValue.of(cluster, content))


def profile_value(checked: CheckedSpec) -> AxisValue:
    """Return how fast jobs run; raises `InputError`."""
    given = checked.spec.profile
    profile: ThroughputProfile | ThroughputMatrix
    if checked.spec.throughputs is not None:
        profile = ThroughputProfile.from_matrix(checked.path(checked.spec.throughputs))
    elif isinstance(given, ThroughputProfile | ThroughputMatrix):
        profile = given
    elif not isinstance(given, str):
        raise InputError(Fault(checked.where("profile"), "profile", f"must be the name of a profile or a file, found {given!r}"))
    elif Path(given).suffix in {".csv", ".json"}:
        profile = ThroughputProfile.from_file(checked.path(given))
    else:
        profile = ThroughputStore().load(given)
    content = {"name": profile.name, "sha256": _checksum(profile)}
    return AxisValue(profile.name, content, PackedValue.of(profile, content))


def _cluster(checked: CheckedSpec, entry: Any) -> tuple[Cluster, str]:
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
    path = checked.path(entry)
    if path.suffix in SUFFIXES or path.exists():
        return Cluster.from_file(path), Path(entry).name
    return Cluster.from_inline(entry), entry


def _checksum(profile: ThroughputProfile | ThroughputMatrix) -> str:
    if isinstance(profile, ThroughputProfile):
        return hashlib.sha256(json.dumps(profile.rows).encode()).hexdigest()
    head = json.dumps([profile.job_ids, profile.accelerators]).encode()
    return hashlib.sha256(head + profile.values.tobytes()).hexdigest()


class PolicyEntry(Record):
    """An entry of `policies` that is a mapping; policy: a name, or a policy that is there already."""

    label: ClassVar[str] = "policy"
    identifier: ClassVar[str] = "policy"

    policy: Any
    options: dict[str, Any] = Field(default_factory=dict)
    constraints: list[Name] = Field(default_factory=list)
    name: Name | None = None


def policy_value(checked: CheckedSpec, entry: Any) -> AxisValue:
    """Return a policy of the spec; raises `InputError` without a place."""
    name = None
    if isinstance(entry, Policy):
        policy = entry
    elif isinstance(entry, dict):
        record = PolicyEntry(**{str(key): value for key, value in entry.items()})
        policy, name = _of_entry(checked, record), record.name
    else:
        policy = _of_text(entry)
    content = policy_content(policy)
    return AxisValue(name or policy.label, content, PackedValue.of(policy, content))


def policy_content(policy: Policy) -> Any:
    """Return what tells a policy from others: its document, or its class, as its file is now, with its options."""
    document = policy_document(policy)
    kind = type(policy)
    if document is not None and kind.__module__.startswith("gavel_py."):
        return document
    constraints = [repr(each) for each in policy.constraints]
    return {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "source": _source(kind),
        "label": policy.label,
        "constraints": constraints,
    }


def _of_entry(checked: CheckedSpec, entry: PolicyEntry) -> Policy:
    if not isinstance(entry.policy, str | Policy):
        raise InputError(Fault("", "policy", f"must be a name, found {entry.policy!r}"))
    policy = resolve_policy(entry.policy, **entry.options)
    constraints = [constraint for file in entry.constraints for constraint in read_constraints(checked.path(file))]
    return dataclasses.replace(policy, constraints=(*policy.constraints, *constraints)) if constraints else policy


def _of_text(text: Any) -> Policy:
    if not isinstance(text, str):
        raise InputError(
            Fault("", "", f"must be a name such as fifo or fifo,backfill=true, or a mapping with policy, found {text!r}")
        )
    name, *options = text.split(",")
    values = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise InputError(Fault("", "", f"{text!r} is not of the form NAME,OPTION=VALUE"))
        values[key.strip()] = value.strip()
    return resolve_policy(name.strip(), **values)


def _source(kind: type[Policy]) -> str | None:
    """A checksum of the file of a class, whose answers change when it does."""
    try:
        return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return None  # made in a session of one's own


class TraceEntry(Record):
    """An entry of `traces` that is a mapping; file: a trace that is there already may stand for one."""

    label: ClassVar[str] = "trace"

    file: Any = None
    format: Text | None = None
    generate: Any = None
    name: Text | None = None


class Generator(Record):
    """What `generate` says: arguments of `generate_trace`, but for load and seed, which have axes of their own."""

    label: ClassVar[str] = "generate"

    jobs: Whole
    gangs: dict[GangSize, Positive] | None = None
    durations: list[tuple[Positive, Positive, Positive]] | Text | None = None
    burstiness: NotNegative = 1.0
    heavy_share: NotNegative = 0.0
    heavy_weight: Positive = 5.0
    reference: Text = "v100"
    seconds: tuple[Positive, ...] = ()

    def draw(self, profile: ThroughputProfile, load: float | None, seed: int) -> Trace:
        """Return the trace for so many jobs per hour, None: all at time 0."""
        pieces = self.durations if isinstance(self.durations, list) else None
        return generate_trace(
            self.jobs,
            profile,
            jobs_per_hour=load,
            burstiness=self.burstiness,
            gang_mix=self.gangs,
            durations=Empirical(self.seconds) if self.seconds else LogUniform(tuple(pieces)) if pieces else None,
            heavy_share=self.heavy_share,
            heavy_weight=self.heavy_weight,
            reference=self.reference,
            seed=seed,
        )


def trace_value(checked: CheckedSpec, entry: Any) -> AxisValue:
    """Return a trace of the spec; raises `InputError`."""
    given = {"file": entry} if isinstance(entry, str | Trace) else entry
    if not isinstance(given, Mapping):
        raise InputError(Fault("", "", f"must be a file, or a mapping with file or generate, found {entry!r}"))
    record = TraceEntry(**{str(key): value for key, value in given.items()})
    if (record.file is None) == (record.generate is None):
        raise InputError(Fault("", "", "must have either file or generate"))
    if isinstance(record.file, Trace):
        return _read(record.name or "trace", record.file)
    if isinstance(record.file, str):
        return _read(record.name or Path(record.file).name, read_trace(checked.path(record.file), record.format))
    if record.file is not None:
        raise InputError(Fault("", "file", f"must be the name of a file, found {record.file!r}"))
    return _drawn(checked, record)


def _drawn(checked: CheckedSpec, entry: TraceEntry) -> AxisValue:
    if not isinstance(entry.generate, Mapping):
        raise InputError(Fault("", "generate", f"must be a mapping such as {{jobs: 500}}, found {entry.generate!r}"))
    generator = Generator(**{str(key): value for key, value in entry.generate.items()})
    if isinstance(generator.durations, str):  # drawn from those of a trace
        found = (submission.run_seconds for submission in read_trace(checked.path(generator.durations)))
        generator = generator.model_copy(update={"seconds": Empirical(s for s in found if s).seconds, "durations": None})
    content = {"generate": generator.model_dump(mode="json")}
    return AxisValue(entry.name or f"{generator.jobs} generated jobs", content, PackedValue.of(generator, content))


def _read(label: str, trace: Trace) -> AxisValue:
    content = {"sha256": hashlib.sha256(trace_text(trace).encode()).hexdigest()}
    return AxisValue(label, content, PackedValue.of(trace, content))


def lacks_type(submission: Submission) -> bool:
    """Say whether a job gets its type or its steps only by a draw."""
    job = submission.job
    return not job.job_type or (job.total_steps is None and job.duration_seconds is None)
