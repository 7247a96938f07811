"""Measured throughputs, and files of them: tidy CSV, the throughputs JSON of the published Gavel, and the built-in profiles.

A `Measurement` is a checked record, `MeasuredRow` the same data as a plain tuple, and `Entry` the key of a throughput in a profile.
The built-in profiles are published measurements with four significant digits.
"""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TextIO, TypedDict

from pydantic import Field, model_validator

from gavel_py.errors import Fault, InputError, check_known, check_together, shown, unknown_names, wrong_types
from gavel_py.io import reading
from gavel_py.io.records import GangSize, Integer, Name, NotNegative, Positive, Record, Text, check_records
from gavel_py.io.writing import write_atomic
from gavel_py.problem.accelerators import how_the_same, identity_of
from gavel_py.throughput_profiles.units import STEPS, Condition, Unit, UnitOf, condition_problem, mixed_units

Placement = Literal["consolidated", "spread"]
PLACEMENTS: tuple[Placement, ...] = ("consolidated", "spread")

AtLeastOne = Annotated[Integer, Field(ge=1)]


class Entry(NamedTuple):
    """Key of a throughput: gang and placement of `job_type`, alone or while it shares its GPUs with `partner`."""

    job_type: str
    num_gpus: float
    accelerator: str
    placement: str = "consolidated"
    partner: str | None = None

    def __str__(self) -> str:
        return f"{self.job_type!r} on {self.setting}"

    @property
    def setting(self) -> str:
        """The key without the job type, as text."""
        sharing = "" if self.partner is None else f", sharing with {self.partner!r}"
        return f"{self.num_gpus} x {self.accelerator} ({self.placement}{sharing})"


class MeasuredRow(NamedTuple):
    """The fields of a `Measurement` as a plain tuple, which profiles, files and the store hold since it is fast to create."""

    job_type: str
    num_gpus: float
    accelerator: str
    placement: str
    steps_per_second: float
    partner_job_type: str | None
    partner_steps_per_second: float | None
    source: str
    gpu_memory_gb: float | None = None
    unit: str = STEPS
    condition: str | None = None
    family: str | None = None
    batch_size: int | None = None
    sequence_length: int | None = None


class Measurement(Record):
    """Measured throughput of a whole gang, alone or in a pair that shares the same GPUs.

    Attributes:
        job_type: Job type of the gang.
        num_gpus: GPUs of the gang (of each gang in a pair), or a fraction of one GPU, without partner.
        accelerator: Accelerator type.
        placement: `consolidated` on as few nodes as possible, or `spread` over more nodes.
        steps_per_second: Throughput of `job_type` in `unit`; 0 means that it cannot run there.
        partner_job_type: Job type of the other gang of a pair, if the GPUs are shared.
        partner_steps_per_second: Throughput of the partner in the pair, in the same unit.
        source: Origin of the figure.
        gpu_memory_gb: GPU memory that the gang uses on each GPU (docs/throughput-profiles.md#gpu-memory); like the last three
            columns, not for pairs.
        unit: What the throughputs count (docs/throughput-profiles.md#units); 1/min is one over the minutes to a target. It is the
            same for all measurements of a job type.
        condition: How requests arrive when serving. It is required with requests/s, possible with tokens/s, absent with other
            units, and the same for all measurements of a job type.
        family: Model or program that job types with different batch sizes or precisions have in common.
        batch_size: Samples per step.
        sequence_length: Tokens per sample.

    >>> Measurement(job_type="A3C", num_gpus=1, accelerator="k80", steps_per_second=3.4).entry.accelerator
    'k80'
    """

    label: ClassVar[str] = "measurement"
    identifier: ClassVar[str] = "job_type"

    job_type: Name
    num_gpus: GangSize
    accelerator: Name
    placement: Placement = "consolidated"
    steps_per_second: NotNegative
    partner_job_type: Name | None = None
    partner_steps_per_second: NotNegative | None = None
    source: Text = ""
    gpu_memory_gb: Positive | None = None
    unit: Unit = STEPS
    condition: Condition | None = None
    family: Name | None = None
    batch_size: AtLeastOne | None = None
    sequence_length: AtLeastOne | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Measurement:
        is_pair, mirrored = self.partner_job_type is not None, self.partner_job_type == self.job_type
        speeds, condition = (self.steps_per_second, self.partner_steps_per_second), condition_problem(self.unit, self.condition)
        alone = [name for name in OF_ONE_GANG if is_pair and getattr(self, name) is not None]
        check_together(
            (is_pair != (speeds[1] is not None), "partner_job_type and partner_steps_per_second must be given together"),
            (
                is_pair and self.num_gpus < 1,
                "a pair shares whole GPUs; give the speed of a job with a fraction of a GPU without a partner",
            ),
            (
                mirrored and speeds[1] not in (None, speeds[0]),
                "a pair of one job type with itself must have the same steps_per_second on both sides",
            ),
            *((True, f"{name} describes {OF_ONE_GANG[name]}; give it where the gang runs alone, not for a pair") for name in alone),
            (condition, f"condition {condition}"),
        )
        return self

    @property
    def entry(self) -> Entry:
        """The key of `steps_per_second` in a profile."""
        return Entry(self.job_type, self.num_gpus, self.accelerator, self.placement, self.partner_job_type)

    def row(self) -> MeasuredRow:
        """Return the fields as a plain tuple."""
        return MeasuredRow(*(getattr(self, field) for field in MeasuredRow._fields))

    def canonical(self) -> Measurement:
        """Return the measurement with the two sides of a pair in alphabetical order."""
        if self.partner_job_type is None or self.job_type <= self.partner_job_type:
            return self
        swapped = {
            "job_type": self.partner_job_type,
            "steps_per_second": self.partner_steps_per_second,
            "partner_job_type": self.job_type,
            "partner_steps_per_second": self.steps_per_second,
        }
        return self.model_copy(update=swapped)


OF_ONE_GANG = {
    "gpu_memory_gb": "one gang",
    "family": "one job type",
    "batch_size": "one job type",
    "sequence_length": "one job type",
}
"""{field that a pair cannot have: what it describes}."""

_speeds = attrgetter("steps_per_second", "partner_steps_per_second")


def collect(placed: Iterable[tuple[str, Measurement]]) -> tuple[tuple[Measurement, ...], list[Fault]]:
    """Return the measurements, each pair once in canonical order, and a fault for each duplicate or contradiction.

    placed: (place for messages, measurement). A pair may be given from both sides if the figures are equal. A job type has one
    unit and condition. Names of the same accelerator are compared as one name.
    """
    placed = list(placed)
    identities = {name: identity_of(name) for name in dict.fromkeys(m.accelerator for _, m in placed)}
    found: dict[Entry, tuple[str, str]] = {}
    kept: dict[Entry, Measurement] = {}
    faults: list[Fault] = []
    for where, measurement in placed:
        name, canonical = measurement.accelerator, measurement.canonical()
        entry, either = (each.entry._replace(accelerator=identities[name]) for each in (measurement, canonical))
        known = kept.setdefault(either, canonical)
        if entry in found:
            first, spelled = found[entry]
            reason = "" if spelled == name else f" on {spelled}: {how_the_same(name, spelled)}"
            faults.append(Fault(where, "", f"{measurement.entry} appears twice, first at {first}{reason}"))
        elif known is not canonical and _speeds(known) != _speeds(canonical):
            other, _ = found[entry._replace(job_type=str(entry.partner), partner=entry.job_type)]
            faults.append(Fault(where, "", f"{measurement.entry} contradicts the same pair given in the other order at {other}"))
        found.setdefault(entry, (where, name))
    return tuple(kept.values()), faults + mixed_units((where, *unit) for where, m in placed for unit in units_of(m))


def units_of(row: MeasuredRow | Measurement) -> Iterator[tuple[str, UnitOf]]:
    """Yield each job type of a row with the unit of its throughput."""
    yield row.job_type, UnitOf(row.unit, row.condition)
    if row.partner_job_type is not None:
        yield row.partner_job_type, UnitOf(row.unit, row.condition)


REQUIRED = tuple(name for name, field in Measurement.model_fields.items() if field.is_required())

SPREAD = "_unconsolidated"
"""Suffix of accelerator names in Gavel's JSON for gangs that are spread over servers."""

DATA = files(__package__) / "data"

ALONE = "null"
"""Key of Gavel's JSON for throughputs without a partner."""


JOBS_COLUMN = "jobs"
"""Column of `gavel profiles missing`: the number of jobs that need a throughput."""


def read_csv(path: str | Path) -> tuple[Measurement, ...]:
    """Return the measurements of a CSV file. Raises `InputError` with all faults, each with its line.

    A file with the column `JOBS_COLUMN` is a form that may be filled in only in part: rows without a throughput are left out.
    """
    rows = list(reading.csv_rows(path, REQUIRED, MeasuredRow._fields))
    if JOBS_COLUMN in reading.csv_header(path)[1]:
        filled = ((where, row) for where, row in rows if "steps_per_second" in row)
        rows = [(where, {name: cell for name, cell in row.items() if name != JOBS_COLUMN}) for where, row in filled]
    unknown: dict[str, str] = {}
    for where, row in rows:
        for column in row.keys() - MeasuredRow._fields:
            unknown.setdefault(column, where)
    faults = unknown_names(unknown.__getitem__, "", sorted(unknown), MeasuredRow._fields, noun="column")
    return checked_rows(((where, {c: cell for c, cell in row.items() if c not in unknown}) for where, row in rows), faults)


def write_csv(rows: Iterable[MeasuredRow], target: str | Path | TextIO) -> None:
    """Write rows to a path or an open text file. From gpu_memory_gb on, only columns with a value in some row are written."""
    rows, text, optional = list(rows), io.StringIO(), MeasuredRow._field_defaults
    columns = [
        name for name in MeasuredRow._fields if name not in optional or any(getattr(row, name) != optional[name] for row in rows)
    ]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(attrgetter(*columns), rows))
    if isinstance(target, str | Path):
        write_atomic(target, text.getvalue().encode())
    else:
        target.write(text.getvalue())


def read_gavel_json(path: str | Path) -> tuple[Measurement, ...]:
    """Return the measurements of Gavel's throughputs JSON, each pair once. Raises `InputError` with all faults."""
    faults: list[Fault] = []
    return checked_rows(_gavel_rows(path, faults), faults)


def checked_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], faults: list[Fault]) -> tuple[Measurement, ...]:
    """Return the rows as measurements. Raises `InputError` with `faults`, the faults of all rows, and contradictions."""
    placed: list[tuple[str, Measurement]] = []
    for where, row in rows:
        try:
            placed += [(where, measurement) for measurement in check_records(Measurement, [(where, row)])]
        except InputError as error:
            faults += error.faults
    measurements, contradictions = collect(placed)
    InputError.raise_any(faults + contradictions)
    return measurements


def _gavel_rows(path: str | Path, faults: list[Fault]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, fields of the measurement) for each throughput; entries that cannot be read are appended to `faults`."""
    source = Path(path).name
    for server, table in _object(f"{path}, line 1", reading.json_document(path), faults):
        common = {
            "accelerator": server.removesuffix(SPREAD),
            "placement": "spread" if server.endswith(SPREAD) else "consolidated",
            "source": f"{source}, {server}",
        }
        for key, cells in _object(f"{path}, type {server!r}", table, faults):
            where = f"{path}, type {server!r}, key {key!r}"
            for partner, speeds in _object(where, cells, faults):
                try:
                    yield f"{where}, partner {partner}", common | _gavel_speeds(key, partner, speeds)
                except InputError as error:
                    faults += [Fault(where, partner, own.problem) for own in error.faults]


def _object(where: str, value: object, faults: list[Fault]) -> Iterable[tuple[str, Any]]:
    faults += wrong_types(where, "", [value], dict, "must be an object")
    return value.items() if isinstance(value, dict) else ()


def _gavel_speeds(key: str, partner: str, speeds: object) -> dict[str, Any]:
    job_type, num_gpus = _gavel_key(key)
    own: dict[str, Any] = {"job_type": job_type, "num_gpus": num_gpus}
    if partner == ALONE:
        return own | {"steps_per_second": speeds}
    partner_job_type, partner_gpus = _gavel_key(partner)
    both = speeds if isinstance(speeds, list) and len(speeds) == 2 else [None, None]
    check_together(
        (partner_gpus != num_gpus, f"the gangs of a pair must be of equal size, found {num_gpus} and {partner_gpus}"),
        (both is not speeds, f"must be a list [own steps/s, partner's steps/s], found {shown(speeds)}"),
    )
    return own | {"partner_job_type": partner_job_type, "steps_per_second": both[0], "partner_steps_per_second": both[1]}


def _gavel_key(text: str) -> tuple[str, int]:
    try:
        key = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        key = None
    match key:
        case (str(job_type), int(num_gpus)):
            return job_type, num_gpus
    raise InputError(f"{text!r} is not a key of the form ('job type', GPUs)")


NUMBERS: dict[str, Callable[[str], Any]] = {
    "num_gpus": int,
    "steps_per_second": float,
    "partner_steps_per_second": float,
    "gpu_memory_gb": float,
    "batch_size": int,
    "sequence_length": int,
}
"""Columns of built-in profiles that are numbers."""

ABSENT: dict[str, Any] = {"partner_job_type": None, "partner_steps_per_second": None, "source": ""}


class About(TypedDict):
    """Description and origin of a profile."""

    description: str
    licence: str
    notice: str
    url: str


def builtin_names() -> tuple[str, ...]:
    """Return the names of the built-in profiles."""
    return tuple(_catalogue())


def read_builtin(name: str) -> tuple[tuple[MeasuredRow, ...], About]:
    """Return rows, description and origin of a built-in profile, without validating the rows again.

    Raises `UnknownNameError` for an unknown name.
    """
    catalogue = _catalogue()
    check_known("built-in throughput profiles", "name", [name], catalogue, "is not built in")
    with (DATA / f"{name}.csv").open(encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    of = [NUMBERS.get(column, str) for column in header]
    # Empty cells are left out, so that the defaults of `MeasuredRow` apply. A column without a default has its own empty value.
    cells = ({c: kind(cell) for c, kind, cell in zip(header, of, line, strict=True) if cell} for line in lines)
    rows = (MeasuredRow(**(ABSENT | each)) for each in cells)
    return tuple(rows), catalogue[name]


def _catalogue() -> dict[str, About]:
    catalogue: dict[str, About] = json.loads((DATA / "profiles.json").read_text(encoding="utf-8"))
    return catalogue
