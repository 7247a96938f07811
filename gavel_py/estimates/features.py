"""Features of a throughput for estimators: the family and numbers of the job type, the gang and the accelerator.

Structure comes from the fields `family`, `batch_size` and `sequence_length` of measurements, and otherwise from the names of job
types: "ResNet-50 (mixed, batch size 64)" is of the family "ResNet-50" with the tag "mixed" and the number "batch size" 64. A name
of another form is itself a family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gavel_py.problem.accelerators import AcceleratorSpec
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.throughput_profiles.files import Entry, Measurement
from gavel_py.throughput_profiles.units import UnitOf

NAME = re.compile(r"^(?P<family>.*?)\s*\((?P<tags>.*)\)\s*$")
NUMBER = re.compile(r"^(?P<key>.*\D)\s+(?P<value>\d+(?:\.\d+)?)$")
"""A number with its name, such as "batch size 64"; "TensorFlow2" is a tag."""

HALF_PRECISION = frozenset({"mixed", "amp", "fp16", "bf16", "half", "tf16"})
LOW_PRECISION = frozenset({"fp8", "fp4", "nvfp4", "mxfp8", "fp8_mx", "fp8_cs"})


class Structure(NamedTuple):
    """The structure of a job type: family, tags, and numbers by name, as base-2 logarithms."""

    family: str
    tags: frozenset[str]
    numbers: Mapping[str, float]


def structure_of(job_type: str) -> Structure:
    """Return the structure of a name of the form "family (tag, key number, ...)"."""
    matched = NAME.match(job_type)
    if matched is None:
        return Structure(job_type, frozenset(), {})
    tags, numbers = set(), {}
    for tag in (each.strip() for each in matched["tags"].split(",")):
        number = NUMBER.match(tag)
        if number is not None and float(number["value"]) > 0:
            numbers[_key(number["key"])] = float(np.log2(float(number["value"])))
        elif tag:
            tags.add(tag)
    return Structure(matched["family"] or job_type, frozenset(tags), numbers)


def _key(text: str) -> str:
    """Return the name of a number, the same for the usual spellings of batch size and sequence length."""
    known = (
        name for beginning, name in (("batch", "batch size"), ("seq", "sequence length")) if text.lower().startswith(beginning)
    )
    return next(known, text.strip().lower())


def given_structures(measurements: Iterable[Measurement]) -> dict[str, Structure]:
    """Return {job type: structure}; fields override the name if all measurements of a job type agree."""
    given: dict[str, list[set[object]]] = {}
    for each in measurements:
        fields = given.setdefault(each.job_type, [set(), set(), set()])
        for values, value in zip(fields, (each.family, each.batch_size, each.sequence_length), strict=True):
            values.add(value)
    found = {}
    for job_type, fields in given.items():
        family, batch_size, sequence_length = (next(iter(values)) if len(values) == 1 else None for values in fields)
        named = structure_of(job_type)
        numbers = {key: value for key, value in (("batch size", batch_size), ("sequence length", sequence_length)) if value}
        logs = {key: float(np.log2(float(str(value)))) for key, value in numbers.items()}
        found[job_type] = Structure(str(family) if family else named.family, named.tags, {**named.numbers, **logs})
    return found


def compute_rate(tags: frozenset[str], spec: AcceleratorSpec | None) -> float:
    """Return log TFLOPS at the precision that the tags of a job type name, single precision or TF32 by default; NaN if unknown."""
    if spec is None:
        return np.nan
    lower = {tag.lower() for tag in tags}
    single = (spec.tf32_tflops, spec.fp32_tflops)
    half = (spec.fp16_tflops, *single)
    rates = (spec.fp8_tflops, *half) if lower & LOW_PRECISION else half if lower & HALF_PRECISION else single
    return next((float(np.log(rate)) for rate in (*rates, *half) if rate), np.nan)


class FamilyUnits:
    """Units of unmeasured job types, which follow from the measured ones of their families.

    Args:
        known: Structures and units of the measured job types.
    """

    def __init__(self, known: Iterable[tuple[Structure, UnitOf]]) -> None:
        self._units: dict[str, dict[frozenset[str], set[UnitOf]]] = {}
        self._all: set[UnitOf] = set()
        for structure, unit in known:
            self._units.setdefault(structure.family, {}).setdefault(structure.tags, set()).add(unit)
            self._all.add(unit)

    def candidates(self, structure: Structure) -> set[UnitOf]:
        """Return the possible units of a job type, none if its family was not measured.

        They are those of the job types of its family with the same tags, or else with a common tag, or else of all job types: names
        without a common tag may come from different sources, which count different things.
        """
        by_tags = self._units.get(structure.family, {})
        alike = by_tags.get(structure.tags) or set().union(*(units for tags, units in by_tags.items() if tags & structure.tags))
        return alike or (self._all if by_tags else set())

    def unit_of(self, structure: Structure) -> UnitOf:
        """Return the unit of a job type: the only possible one, or steps/s if there are none or several."""
        found = self.candidates(structure)
        return next(iter(found)) if len(found) == 1 else UnitOf()


@dataclass(frozen=True)
class Features:
    """n entries as arrays; equal codes are equal names.

    Attributes:
        job_types, families, units, accelerators, gangs: (n,) codes.
        gang_log2: (n,) log2 of the GPUs.
        tags: (n, t) indicators, each row of length 1 or 0.
        numbers: (n, k) log2 of the numbers of the job types over their measured mean, NaN where absent.
        compute, bandwidth: (n,) log of TFLOPS and GB/s of one GPU, 0 at the mean of the measured entries, and 0 where unknown.
        unknown: (n, 2) whether compute and bandwidth are unknown, as 1 or 0.
    """

    job_types: Indices
    families: Indices
    units: Indices
    accelerators: Indices
    gangs: Indices
    gang_log2: Floats
    tags: Floats
    numbers: Floats
    compute: Floats
    bandwidth: Floats
    unknown: Floats

    def __len__(self) -> int:
        return len(self.job_types)

    def take(self, rows: Indices) -> Features:
        """Return the features of some entries."""
        return Features(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def joined(self, other: Features) -> Features:
        """Return the features of these entries and then of others."""
        return Features(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in self.__dataclass_fields__))

    @cached_property
    def has_numbers(self) -> bool:
        """Whether a job type has numbers."""
        return bool(self.numbers.size) and not bool(np.isnan(self.numbers).all())


class Vocabulary:
    """Turns entries into `Features`, which are centred over the measured entries.

    Args:
        measured: The measured entries.
        structures: {job type: structure}; the structure of another job type is read from its name.
        find: Returns the specifications of an accelerator, or None.
        units: {job type: unit of its throughputs}, steps/s for others; of unmeasured job types see `FamilyUnits`.
    """

    def __init__(
        self,
        measured: Sequence[Entry],
        structures: Mapping[str, Structure],
        find: Callable[[str], AcceleratorSpec | None],
        units: Mapping[str, UnitOf],
    ) -> None:
        self._structures = dict(structures)
        self._find = find
        self._codes: dict[object, int] = {}
        self._specs: dict[str, AcceleratorSpec | None] = {}
        self._measured = sorted({entry.accelerator for entry in measured})
        known = {entry.job_type: self.structure(entry.job_type) for entry in measured}
        self._units = {job_type: units.get(job_type, UnitOf()) for job_type in known}
        self._families = FamilyUnits((known[job_type], unit) for job_type, unit in self._units.items())
        self._tags = {tag: column for column, tag in enumerate(sorted({tag for each in known.values() for tag in each.tags}))}
        self._keys = sorted({key for each in known.values() for key in each.numbers})
        compute, bandwidth = self._rates(measured)
        self._centres = {key: _mean(np.array([known[e.job_type].numbers.get(key, np.nan) for e in measured])) for key in self._keys}
        self._compute = _mean(compute)
        self._bandwidth = _mean(bandwidth)
        self.has_specifications = not measured or not np.isnan(compute + bandwidth).all()

    def structure(self, job_type: str) -> Structure:
        """Return the structure of a job type."""
        if job_type not in self._structures:
            self._structures[job_type] = structure_of(job_type)
        return self._structures[job_type]

    def features(self, entries: Sequence[Entry]) -> Features:
        """Return the features of entries."""
        structures = [self.structure(entry.job_type) for entry in entries]
        tags, numbers = np.zeros((len(entries), len(self._tags))), np.full((len(entries), len(self._keys)), np.nan)
        for row, each in enumerate(structures):
            columns = [self._tags[tag] for tag in each.tags if tag in self._tags]
            tags[row, columns] = 1 / np.sqrt(max(len(columns), 1))
            for column, key in enumerate(self._keys):
                numbers[row, column] = each.numbers.get(key, np.nan) - self._centres[key]
        rates = np.column_stack(self._rates(entries)) - (self._compute, self._bandwidth)
        compute, bandwidth = np.nan_to_num(rates).T
        gangs = np.array([entry.num_gpus for entry in entries], dtype=float)
        return Features(
            self._coded(entry.job_type for entry in entries),
            self._coded(("family", each.family) for each in structures),
            self._coded(("unit", self._unit(entry.job_type)) for entry in entries),
            self._coded(("accelerator", self._identity(entry.accelerator)) for entry in entries),
            self._coded(("gang", gang) for gang in gangs.tolist()),
            np.log2(gangs),
            tags,
            numbers,
            compute,
            bandwidth,
            np.isnan(rates).astype(float),
        )

    def _unit(self, job_type: str) -> UnitOf:
        return self._units.get(job_type) or self._families.unit_of(self.structure(job_type))

    def _identity(self, accelerator: str) -> str:
        """Return the name, or for an unmeasured accelerator the name of a measured one with the same specifications."""
        spec = self._spec(accelerator)
        if spec is None or accelerator in self._measured:
            return accelerator
        return next((name for name in self._measured if self._spec(name) == spec), accelerator)

    def _spec(self, accelerator: str) -> AcceleratorSpec | None:
        if accelerator not in self._specs:
            self._specs[accelerator] = self._find(accelerator)
        return self._specs[accelerator]

    def _coded(self, names: Iterable[object]) -> Indices:
        return np.array([self._codes.setdefault(name, len(self._codes)) for name in names], dtype=np.intp)

    def _rates(self, entries: Sequence[Entry]) -> tuple[Floats, Floats]:
        specs = [self._spec(entry.accelerator) for entry in entries]
        pairs = zip(entries, specs, strict=True)
        compute = np.array([compute_rate(self.structure(entry.job_type).tags, spec) for entry, spec in pairs], dtype=float)
        bandwidths = [spec.memory_bandwidth_gbs if spec is not None else None for spec in specs]
        return compute, np.log(np.array([np.nan if value is None else value for value in bandwidths], dtype=float))


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan
