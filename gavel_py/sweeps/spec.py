"""The spec of a sweep: a YAML file or a mapping, checked key by key, with the file and line of each fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)

from gavel_py.errors import Fault, InputError, check_type, refuse, relocated_faults
from gavel_py.io import reading
from gavel_py.io.records import Integer, Name, Positive, Record, SecondsAboveZero, SecondsFromZero, part_or
from gavel_py.report.runs.summary import JobWindow, job_window
from gavel_py.scheduling.mechanism import resolve_mechanism
from gavel_py.scheduling.options import AllocationOptions, SchedulerOptions
from gavel_py.simulator import NodeFailures, NodeWindow, read_maintenance
from gavel_py.simulator.options import ExecutionOptions

Where = Callable[..., str]
"""Returns the place of an entry in the file, by its keys and positions from the top."""

HOUR = 3600.0


def _listed(value: object) -> object:
    """Return a list; a single value becomes a list of one."""
    return list(value) if isinstance(value, list | tuple | range) else [value]


def _load(value: object, checked: ValidatorFunctionWrapHandler) -> Any:
    """Return a load in jobs per hour or, as text such as 1.5x, a factor of that of a recorded trace."""
    text = str(value).strip()
    return f"{checked(text[:-1]):g}x" if text.endswith("x") else checked(value)


def _distinct(values: list[Any]) -> list[Any]:
    """Return each value once, so that no cell counts twice in a mean."""
    return list(dict.fromkeys(values))


class Settings(ExecutionOptions, SchedulerOptions):
    """The settings of all simulations, as of `gp.Simulation` and `gavel simulate`, with the same defaults."""

    model_config = ConfigDict(strict=False)  # numbers may be text, as in all files
    label: ClassVar[str] = "settings"

    node_mtbf_hours: Positive | None = None
    node_repair_hours: Positive | None = None
    maintenance: Annotated[list[Name], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = Field(
        default_factory=list
    )
    until_seconds: SecondsFromZero | None = None

    @field_validator("mechanism", mode="before")
    @classmethod
    def _known(cls, mechanism: Any) -> str:
        """Return the name of a mechanism that exists; a function could not be sent to other processes."""
        check_type("", "", mechanism, str, "must be the name of a mechanism")
        name = str(mechanism).strip()
        resolve_mechanism(name, ())
        return name

    @property
    def is_random(self) -> bool:
        """Whether a simulation draws random numbers, whatever the trace."""
        return self.node_mtbf_hours is not None or (self.job_failures != "recorded" and self.job_failures > 0)

    def arguments(self, path: Callable[[str], Path], where: Where) -> dict[str, Any]:
        """Return arguments of `Simulation`, and until_seconds; path: resolves names of files; where: see `Where`."""
        given = self.model_dump(exclude_unset=True, exclude={"node_mtbf_hours", "node_repair_hours", "maintenance"})
        failures = self._failures(where)
        windows: list[NodeWindow] = [window for file in self.maintenance for window in read_maintenance(path(file))]
        if self.until_seconds is None:
            given.pop("until_seconds", None)
        return given | ({"node_failures": failures} if failures else {}) | ({"maintenance": windows} if windows else {})

    def _failures(self, where: Where) -> NodeFailures | None:
        mtbf, repair = self.node_mtbf_hours, self.node_repair_hours
        if mtbf is None and repair is None:
            return None
        is_wrong = mtbf is None or repair is None or repair >= mtbf
        text = "and node_repair_hours must be given together, the repair being shorter: it is part of the time between failures"
        refuse(where("settings"), (is_wrong, "settings.node_mtbf_hours", text))
        between, repair = mtbf or 0.0, repair or 0.0
        return NodeFailures((between - repair) * HOUR, repair * HOUR)


PATHS = ("results", "throughputs")

FILES = ("traces", "file", "durations", "clusters", "cluster", "constraints", "maintenance", "profile")
"""Keys of a spec, at any depth, with paths as values, and keys with paths as values if such a file exists."""


Several = Annotated[list[Any], BeforeValidator(_listed)]


class Spec(Record):
    """The keys of a sweep."""

    label: ClassVar[str] = "sweep"

    mode: Literal["simulate", "solve"] = "simulate"
    policies: Several
    traces: Several
    clusters: Several
    loads: (
        Annotated[list[Annotated[Positive, WrapValidator(_load)]], BeforeValidator(_listed), AfterValidator(_distinct)] | None
    ) = None
    seeds: Annotated[list[Annotated[Integer, Field(ge=0)]], BeforeValidator(_listed), AfterValidator(_distinct)] = Field(
        default=[0]
    )
    round_seconds: Annotated[list[SecondsAboveZero | None], BeforeValidator(_listed), AfterValidator(_distinct)] = Field(
        default=[360.0]
    )
    profile: Any = "gavel-osdi20"
    throughputs: Name | None = None
    extrapolate: bool = False
    estimate: bool | Literal["gaussian_process", "additive", "specs"] = False
    confidence: Annotated[float | Literal["optimistic"], part_or("optimistic", zero=False)] | None = None
    fairness: bool = False
    allow_unknown_types: bool = False
    measure_jobs: Annotated[JobWindow | None, PlainValidator(job_window)] = None
    settings: dict[str, Any] = Field(default_factory=dict)
    results: Name | None = None


@dataclasses.dataclass(frozen=True)
class CheckedSpec:
    """A checked spec; folder: where its relative paths start; document: the spec as given, with changes."""

    spec: Spec
    settings: Settings
    where: Where
    folder: Path
    document: Mapping[str, Any]

    def path(self, text: str) -> Path:
        """Return a path of the spec, resolved."""
        return self.folder / text

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that exist and from which the cells are made."""
        named = (self.path(text) for key, text in _named_paths("", self.document) if key != "results")
        return tuple(dict.fromkeys(path for path in named if path.is_file()))


def read_spec(source: str | Path | Mapping[str, Any], changes: Mapping[str, Any]) -> CheckedSpec:
    """Return the checked spec of a YAML file or a mapping; changes: keys that replace those of it, with paths from here.

    Raises `InputError` for unknown keys, for values of a wrong type, and for an empty grid.
    """
    document: Any = source
    places: dict[tuple[str, ...], int] = {}
    folder = Path()
    if not isinstance(source, Mapping):
        document, places = reading.yaml_document(source)
        folder = Path(source).parent
        check_type(f"{source}, line 1", "", document, dict, "must be a mapping with the keys policies, traces and clusters")
    if folder != Path():
        changes = {key: _absolute_paths(value, key) for key, value in changes.items()}
    document = {str(key): value for key, value in document.items()} | dict(changes)

    def where(*place: object) -> str:
        keys = tuple(map(str, place))
        if isinstance(source, Mapping) or not keys or keys[0] in changes:
            return "sweep"
        found = next((places[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in places), None)
        return str(source) if found is None else f"{source}, line {found}"

    spec = _make_record(Spec, document, where, ())
    settings = _make_record(Settings, spec.settings, where, ("settings",))
    checked = CheckedSpec(spec, settings, where, folder, document)
    _check(checked)
    return checked


def _make_record(model: type[Any], fields: Mapping[str, Any], where: Where, above: tuple[str, ...]) -> Any:
    """Return a record of the fields, with the line of each fault."""

    def relocate(fault: Fault) -> Fault:
        place = (*above, *fault.field.split("."))
        return dataclasses.replace(fault, where=where(*place), field=".".join(place))

    with relocated_faults(relocate):
        return model(**{str(name): value for name, value in fields.items()})


def _absolute_paths(value: Any, key: str) -> Any:
    """Return a value under this key with its paths made absolute, so that they do not depend on the folder of the spec."""
    if isinstance(value, Mapping):
        return {name: each if name == "options" else _absolute_paths(each, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_absolute_paths(each, key) for each in value]
    is_path = key in PATHS or (key in FILES and isinstance(value, str | Path) and Path(value).is_file())
    return str(Path(value).absolute()) if is_path and isinstance(value, str | Path) else value


def _named_paths(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, text) for each text of a value under this key that may be a path."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name != "options":
                yield from _named_paths(str(name), each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _named_paths(key, each)
    elif key in (*PATHS, *FILES) and isinstance(value, str | Path):
        yield key, str(value)


def _check(checked: CheckedSpec) -> None:
    spec, settings = checked.spec, checked.settings
    given, of_settings, is_static = spec.model_fields_set, settings.model_fields_set, spec.mode == "solve"
    may_share = settings.sharing or any(isinstance(each, Mapping) and each.get("sharing") for each in spec.policies)
    of_rounds = "is not a setting: give round_seconds beside settings, as a list of lengths; null is event mode"
    of_time = "concerns time, so it does not apply to a static solve; remove it, or set mode: simulate"
    axes = ("policies", "traces", "clusters", "seeds", "round_seconds", "loads")
    timed = sorted(of_settings - AllocationOptions.model_fields.keys())
    cases: list[tuple[object, str, str]] = [  # is it wrong, key, problem
        *((key in of_settings, f"settings.{key}", of_rounds) for key in ("by_events", "round_seconds")),
        *((getattr(spec, axis) == [], axis, "is empty, so the grid is empty; give at least one") for axis in axes),
        *((is_static and key in given, key, of_time) for key in ("fairness", "loads", "measure_jobs", "round_seconds")),
        *((is_static, f"settings.{key}", of_time) for key in timed),
        *(
            (not may_share, f"settings.{name}", f"{use}, but no policy shares them; set sharing: true as well")
            for name, use in sorted(Settings.of_sharing.items())
            if name in of_settings
        ),
        (
            spec.throughputs is not None and "profile" in given,
            "throughputs",
            "and profile both define the speeds of jobs; give only one of them",
        ),
        (
            settings.mechanism == "direct" and len(spec.policies) > 1,
            "settings.mechanism",
            "direct chooses jobs without a policy, so all policies give the same results; give one policy",
        ),
        (
            spec.confidence is not None and not spec.estimate,
            "confidence",
            "selects values of estimates; set estimate: true as well",
        ),
    ]
    InputError.raise_any([Fault(checked.where(*key.split(".")), key, problem) for is_wrong, key, problem in cases if is_wrong])
