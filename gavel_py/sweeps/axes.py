"""The axes of a sweep: entries of the spec become values with a label and a checksum.

Traces are read from files, or generated for each load and seed. Clusters and throughputs come from files, counts and objects;
policies from names, mappings and objects.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import AwareDatetime, ConfigDict, Field

from gavel_py.errors import Fault, InputError, check_type, refuse
from gavel_py.io.records import GangSize, Name, NotNegative, Positive, Record, SecondsAboveZero, Text, Whole
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.constraints.compiling import read_constraints
from gavel_py.policies.serialization import policy_document
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.profile import Profile
from gavel_py.throughput_profiles import ThroughputMatrix, ThroughputProfile, ThroughputStore
from gavel_py.workloads.generator import Empirical, LogUniform, MixOptions, generate_trace
from gavel_py.workloads.reading import read_trace, trace_text
from gavel_py.workloads.trace import Trace

if TYPE_CHECKING:
    from gavel_py.sweeps.spec import CheckedSpec

CACHED_VALUES = 32


@dataclass(frozen=True)
class PackedValue:
    """A pickled value on its way to another process. Values with the same checksum (`identity`) are equal."""

    identity: str
    data: bytes = field(compare=False, repr=False)

    @classmethod
    def of(cls, value: Any, content: Any) -> PackedValue:
        """Pickle a value; content: data that JSON can hold and that differs for different values."""
        return cls(checksum(content), pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))

    @property
    def value(self) -> Any:
        """The value, unpickled once in each process; callers must not change it."""
        return _unpacked(self)


@dataclass(frozen=True)
class AxisValue:
    """A value on an axis of the grid, with its label and the content of its checksum.

    sharing: whether jobs share GPUs under this policy; None: as in the settings.
    """

    label: str
    content: Any = field(compare=False)
    packed: PackedValue
    sharing: bool | None = None

    @classmethod
    def of(cls, label: str, value: Any, content: Any) -> AxisValue:
        """Return a value of an axis; content: as for `PackedValue.of`."""
        return cls(label, content, PackedValue.of(value, content))


def plain_text(content: Any) -> str:
    """Return data as JSON text that is the same for equal data."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def checksum(content: Any) -> str:
    """Return a checksum of data that JSON can hold."""
    return _sha256(plain_text(content).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=CACHED_VALUES)
def _unpacked(packed: PackedValue) -> Any:
    return pickle.loads(packed.data)  # noqa: S301  pickled by this program


class ClusterEntry(Record):
    """An entry of `clusters` with a name."""

    label: ClassVar[str] = "cluster"

    cluster: Any
    name: Name | None = None


def cluster_value(checked: CheckedSpec, entry: Any) -> AxisValue:
    """Return an entry of `clusters` as a value; raises `InputError`."""
    name = None
    if isinstance(entry, dict) and "cluster" in entry:
        record = ClusterEntry(**{str(key): value for key, value in entry.items()})
        entry, name = record.cluster, record.name
    cluster, label = _cluster(checked, entry)
    content = {
        "nodes": [node.model_dump(mode="json") for node in cluster.nodes],
        "types": [each.model_dump(mode="json") for each in cluster.accelerator_types],
    }
    return AxisValue.of(name or label, cluster, content)


def profile_value(checked: CheckedSpec) -> AxisValue:
    """Return the throughputs of the spec as a value; raises `InputError`."""
    given = checked.spec.profile
    profile: ThroughputProfile | ThroughputMatrix
    if checked.spec.throughputs is not None:
        profile = ThroughputProfile.from_matrix(checked.path(checked.spec.throughputs))
    elif isinstance(given, ThroughputProfile | ThroughputMatrix):
        profile = given
    else:
        check_type(checked.where("profile"), "profile", given, str, "must be the name of a profile or a file")
        profile = ThroughputStore().find(given, checked.folder)
    content = {"name": profile.name}
    if checked.spec.estimate:
        method = "gaussian_process" if checked.spec.estimate is True else checked.spec.estimate
        text = "estimates speeds by job type, but throughputs gives them by job; remove one of them"
        known = by_type(profile, checked.where("estimate"), "estimate", text)
        profile = known.with_estimates(method, confidence=checked.spec.confidence)
        content |= {"estimate": method, "confidence": str(checked.spec.confidence)}
    if isinstance(profile, ThroughputProfile):
        data = json.dumps(profile.rows).encode()
    else:
        data = json.dumps([profile.job_ids, profile.accelerators]).encode() + profile.values.tobytes()
    return AxisValue.of(profile.name, profile, content | {"sha256": _sha256(data)})


def by_type(profile: Profile, where: str, field: str, problem: str) -> ThroughputProfile:
    """Return a profile of speeds by job type; raises `InputError` with this problem for one by job."""
    if not isinstance(profile, ThroughputProfile):
        raise InputError(Fault(where, field, problem))
    return profile


def _cluster(checked: CheckedSpec, entry: Any) -> tuple[Cluster, str]:
    if isinstance(entry, Cluster):
        types = zip(entry.accelerator_names, entry.capacities.tolist(), strict=True)
        return entry, ",".join(f"{name}:{count:g}" for name, count in types)
    if isinstance(entry, dict):
        counts = {name: tuple(count) if isinstance(count, list) else count for name, count in entry.items()}
        text = ",".join(f"{name}:{'/'.join(map(str, c)) if isinstance(c, tuple) else c}" for name, c in counts.items())
        return Cluster.from_counts(counts), text
    check_type("", "", entry, str, "must be a file, a text such as v100:16,p100:8/4, or a mapping from type to GPUs")
    path = checked.path(entry)
    if path.suffix in {".yaml", ".yml", ".json", ".csv"} or path.exists():
        return Cluster.from_file(path), Path(entry).name
    return Cluster.from_inline(entry), entry


class PolicyEntry(Record):
    """An entry of `policies` that is a mapping; policy: a name or an object; sharing: instead of the setting."""

    label: ClassVar[str] = "policy"
    identifier: ClassVar[str] = "policy"

    policy: Any
    options: dict[str, Any] = Field(default_factory=dict)
    constraints: list[Name] = Field(default_factory=list)
    sharing: bool | None = None
    name: Name | None = None


def policy_value(checked: CheckedSpec, entry: Any) -> AxisValue:
    """Return an entry of `policies` as a value; raises `InputError`, without the place of the entry."""
    if isinstance(entry, dict):
        record = PolicyEntry(**{str(key): value for key, value in entry.items()})
        policy = _policy_from_entry(checked, record)
        label = record.name or f"{policy.label}{', sharing' if record.sharing else ''}"
        return replace(AxisValue.of(label, policy, policy_content(policy)), sharing=record.sharing)
    policy = entry if isinstance(entry, Policy) else _policy_from_text(entry)
    return AxisValue.of(policy.label, policy, policy_content(policy))


def policy_content(policy: Policy) -> Any:
    """Return the content of a policy: its document, or the name and the source of a class that is not of this package."""
    document = policy_document(policy)
    policy_type = type(policy)
    if document is not None and policy_type.__module__.startswith("gavel_py."):
        return document
    source = None  # of a class from an interactive session
    with suppress(OSError, TypeError):
        source = _sha256(Path(inspect.getfile(policy_type)).read_bytes())
    return {
        "class": f"{policy_type.__module__}:{policy_type.__qualname__}",
        "source": source,
        "label": policy.label,
        "constraints": [repr(each) for each in policy.constraints],
    }


def _policy_from_entry(checked: CheckedSpec, entry: PolicyEntry) -> Policy:
    check_type("", "policy", entry.policy, str | Policy, "must be a name")
    policy = resolve_policy(entry.policy, **entry.options)
    constraints = [constraint for file in entry.constraints for constraint in read_constraints(checked.path(file))]
    return dataclasses.replace(policy, constraints=(*policy.constraints, *constraints)) if constraints else policy


def _policy_from_text(text: Any) -> Policy:
    check_type("", "", text, str, "must be a name such as fifo or fifo,backfill=true, or a mapping with policy")
    name, *options = text.split(",")
    pairs = [tuple(part.strip() for part in option.partition("=")[::2]) for option in options]
    is_wrong = not all(key and value for key, value in pairs)
    refuse("", (is_wrong, "", f"{text!r} is not of the form NAME,OPTION=VALUE"))
    return resolve_policy(name.strip(), **dict(pairs))


class TraceEntry(Record):
    """An entry of `traces` that is a mapping; file: the name of a file, or a `Trace`; the others as of `read_trace`."""

    label: ClassVar[str] = "trace"

    file: Any = None
    format: Text | None = None
    columns: dict[str, Text] = Field(default_factory=dict)
    fill: dict[str, Any] = Field(default_factory=dict)
    ignore: list[Text] = Field(default_factory=list)
    now: AwareDatetime | None = None
    generate: Any = None
    name: Text | None = None


class Generator(MixOptions):
    """The mapping under `generate`: arguments of `generate_trace`, except for load and seed, which are axes."""

    model_config = ConfigDict(strict=False)  # values of a file

    burstiness: NotNegative = 1.0  # refused when the spec is read, not in each cell
    jobs: Whole
    gangs: dict[GangSize, Positive] | None = None
    durations: list[tuple[Positive, Positive, Positive]] | Text | None = None
    seconds: tuple[SecondsAboveZero, ...] = ()

    def draw(self, profile: ThroughputProfile, load: float | None, seed: int) -> Trace:
        """Return a trace; load: jobs per hour, None for all jobs at time 0."""
        pieces = self.durations if isinstance(self.durations, list) else None
        durations = Empirical(self.seconds) if self.seconds else LogUniform(tuple(pieces)) if pieces else None
        same = self.model_dump(include=set(MixOptions.model_fields))
        return generate_trace(self.jobs, profile, jobs_per_hour=load, gang_mix=self.gangs, durations=durations, seed=seed, **same)


def trace_value(checked: CheckedSpec, entry: Any) -> AxisValue:
    """Return an entry of `traces` as a value; raises `InputError`, without the place of the entry."""
    given: Any = {"file": entry} if isinstance(entry, str | Trace) else entry
    check_type("", "", given, Mapping, "must be a file, or a mapping with file or generate")
    record = TraceEntry(**{str(key): value for key, value in given.items()})
    refuse("", ((record.file is None) == (record.generate is None), "", "must have either file or generate"))
    if isinstance(record.file, Trace):
        return _trace_value(record.name or "trace", record.file)
    if isinstance(record.file, str):
        options: dict[str, Any] = record.model_dump(include={"format", "columns", "fill", "ignore", "now"})
        return _trace_value(record.name or Path(record.file).name, read_trace(checked.path(record.file), **options))
    refuse("", (record.file is not None, "file", f"must be the name of a file, found {record.file!r}"))
    return _generator_value(checked, record)


def _generator_value(checked: CheckedSpec, entry: TraceEntry) -> AxisValue:
    check_type("", "generate", entry.generate, Mapping, "must be a mapping such as {jobs: 500}")
    generator = Generator(**{str(key): value for key, value in entry.generate.items()})
    if isinstance(generator.durations, str):  # a trace with the durations to draw from
        found = (submission.run_seconds for submission in read_trace(checked.path(generator.durations)))
        generator = generator.model_copy(update={"seconds": Empirical(s for s in found if s).seconds, "durations": None})
    label = entry.name or f"{generator.jobs} generated jobs"
    return AxisValue.of(label, generator, {"generate": generator.model_dump(mode="json")})


def _trace_value(label: str, trace: Trace) -> AxisValue:
    return AxisValue.of(label, trace, {"sha256": _sha256(trace_text(trace).encode())})
