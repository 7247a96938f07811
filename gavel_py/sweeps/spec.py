"""The spec of a sweep: a YAML file or a mapping, each key checked, with file and line of what is wrong.

`Settings` are those of the simulations, which all cells have in common.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading
from gavel_py.io.records import Finite, Integer, Name, NotNegative, Positive, Record
from gavel_py.simulator import NodeFailures, NodeWindow, read_maintenance
from gavel_py.simulator.measurements import JobWindow, job_window

Where = Callable[..., str]
"""The place of an entry, by its way from the top, in the user's words."""

HOUR = 3600.0

RANDOM = ("job_failures", "node_mtbf_hours")
"""What lets a seed matter, also to a trace in which nothing is drawn."""


def _name_listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Settings(Record):
    """Those of `gp.Simulation` and of `gavel simulate`; what is not given is as there."""

    label: ClassVar[str] = "settings"

    whole_gangs: bool = True
    restart_seconds: NotNegative = 0.0
    min_run_seconds: NotNegative = 0.0
    solve_seconds: NotNegative = 0.0
    mechanism: Literal["deficit", "priority"] = "deficit"
    job_failures: Annotated[Finite, Field(ge=0, lt=1)] | Literal["recorded"] = 0.0
    checkpoint_seconds: Positive | None = None
    estimates: Literal["exact", "recorded"] = "exact"
    node_mtbf_hours: Positive | None = None
    node_repair_hours: Positive | None = None
    maintenance: Annotated[list[Name], BeforeValidator(_name_listed)] = Field(default_factory=list)
    until_seconds: NotNegative | None = None

    @property
    def of_time(self) -> list[str]:
        """Those that are given and that a static solve does not know."""
        return sorted(self.model_fields_set - {"whole_gangs"})

    @property
    def is_random(self) -> bool:
        """Whether a simulation draws anything, whatever the trace."""
        return any(getattr(self, name) for name in RANDOM)

    def arguments(self, path: Callable[[str], Path], where: Callable[..., str]) -> dict[str, Any]:
        """Return arguments of `Simulation`, and until_seconds, files read; path: from a text to a path; where: for faults."""
        given = self.model_dump(exclude_unset=True, exclude={"node_mtbf_hours", "node_repair_hours", "maintenance"})
        failures = self._failures(where)
        windows: list[NodeWindow] = [window for file in self.maintenance for window in read_maintenance(path(file))]
        if self.until_seconds is None:
            given.pop("until_seconds", None)
        return given | ({"node_failures": failures} if failures else {}) | ({"maintenance": windows} if windows else {})

    def _failures(self, where: Callable[..., str]) -> NodeFailures | None:
        mtbf, repair = self.node_mtbf_hours, self.node_repair_hours
        if mtbf is None and repair is None:
            return None
        if mtbf is None or repair is None or repair >= mtbf:
            text = "and node_repair_hours go together, the repair being the shorter: it is part of the time between two failures"
            raise InputError(Fault(where("settings"), "settings.node_mtbf_hours", text))
        return NodeFailures((mtbf - repair) * HOUR, repair * HOUR)


PATHS = ("results", "throughputs")

FILES = ("traces", "file", "durations", "clusters", "cluster", "constraints", "maintenance", "profile")
"""Keys of a spec, at any depth, whose values are paths, and those whose values are if there is such a file."""


def _listed(value: object) -> object:
    """One value stands for a list of one."""
    return list(value) if isinstance(value, list | tuple | range) else [value]


Several = Annotated[list[Any], BeforeValidator(_listed)]


class Spec(Record):
    """The keys of a sweep."""

    label: ClassVar[str] = "sweep"

    mode: Literal["simulate", "solve"] = "simulate"
    policies: Several
    traces: Several
    clusters: Several
    loads: Annotated[list[Positive], BeforeValidator(_listed)] | None = None
    seeds: Annotated[list[Annotated[Integer, Field(ge=0)]], BeforeValidator(_listed)] = Field(default=[0])
    round_seconds: Annotated[list[Positive | None], BeforeValidator(_listed)] = Field(default=[360.0])
    profile: Any = "gavel-osdi20"
    throughputs: Name | None = None
    extrapolate: bool = False
    fairness: bool = False
    allow_unknown_types: bool = False
    measure_jobs: Annotated[JobWindow | None, PlainValidator(job_window)] = None
    settings: dict[str, Any] = Field(default_factory=dict)
    results: Name | None = None


@dataclasses.dataclass(frozen=True)
class CheckedSpec:
    """A checked spec. folder: what relative paths in it are relative to; document: as it was given; settings: checked."""

    spec: Spec
    settings: Settings
    where: Where
    folder: Path
    document: Mapping[str, Any]

    def path(self, text: str) -> Path:
        """Return the path that a text in the spec stands for."""
        return self.folder / text


def read_spec(source: str | Path | Mapping[str, Any], changes: Mapping[str, Any]) -> CheckedSpec:
    """Return what a YAML file or a mapping asks for; changes: keys that replace those of it, with paths from where we are.

    Raises `InputError` for keys that are not known, with the nearest that are, for values of the wrong kind, and for an empty grid.
    """
    document: Any = source
    places: dict[tuple[str, ...], int] = {}
    folder = Path()
    if not isinstance(source, Mapping):
        document, places = reading.yaml_document(source)
        folder = Path(source).parent
        if not isinstance(document, dict):
            raise InputError(Fault(f"{source}, line 1", "", "must be a mapping with the keys policies, traces and clusters"))
    at_home = {key: _absolute_paths(value, key) for key, value in changes.items()} if folder != Path() else changes
    document = {str(key): value for key, value in document.items()} | dict(at_home)

    def where(*place: object) -> str:
        way = tuple(map(str, place))
        if isinstance(source, Mapping) or not way or way[0] in changes:
            return "sweep"
        found = next((places[way[:n]] for n in range(len(way), 0, -1) if way[:n] in places), None)
        return str(source) if found is None else f"{source}, line {found}"

    spec = _make_record(Spec, document, where, ())
    settings = _make_record(Settings, spec.settings, where, ("settings",))
    checked = CheckedSpec(spec, settings, where, folder, document)
    _check(checked)
    return checked


def _make_record(kind: type[Any], fields: Mapping[str, Any], where: Where, above: tuple[str, ...]) -> Any:
    """Make a record, with the line of each fault."""
    try:
        return kind(**{str(name): value for name, value in fields.items()})
    except InputError as error:
        places = [(*above, *fault.field.split(".")) for fault in error.faults]
        faults = zip(error.faults, places, strict=True)
        raise InputError(*(dataclasses.replace(f, where=where(*place), field=".".join(place)) for f, place in faults)) from None


def _absolute_paths(value: Any, key: str) -> Any:
    """Make paths in what was given beside a file, under this key, independent of where that file is."""
    if isinstance(value, Mapping):
        return {name: each if name == "options" else _absolute_paths(each, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_absolute_paths(each, key) for each in value]
    is_path = key in PATHS or (key in FILES and isinstance(value, str | Path) and Path(value).is_file())
    return str(Path(value).absolute()) if is_path and isinstance(value, str | Path) else value


def _check(checked: CheckedSpec) -> None:
    spec, faults = checked.spec, []
    for axis in ("policies", "traces", "clusters", "seeds", "round_seconds", "loads"):
        if getattr(spec, axis) == []:
            faults.append(Fault(checked.where(axis), axis, "is empty, and so is the grid: name at least one"))
    if spec.mode == "solve":
        given = spec.model_fields_set & {"loads", "round_seconds", "fairness", "measure_jobs"}
        text = "is about time, of which a static solve knows nothing; leave it out, or set mode: simulate"
        faults += [Fault(checked.where(key), key, text) for key in sorted(given)]
        faults += [Fault(checked.where("settings", key), f"settings.{key}", text) for key in checked.settings.of_time]
    if spec.throughputs is not None and "profile" in spec.model_fields_set:
        faults.append(
            Fault(checked.where("throughputs"), "throughputs", "and profile both say how fast jobs run; give one of them")
        )
    InputError.raise_any(faults)
