"""Specifications of accelerators: peak speed by precision, memory, bandwidth and power, found by any usual spelling of a name.

The built-in table is `data/accelerators.csv`; users extend it with rows of their own,
for all commands with the environment variable GAVEL_PY_ACCELERATORS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import field_validator, model_validator

from gavel_py.errors import Fault, InputError, NameWarning, check_together
from gavel_py.io import reading
from gavel_py.io.names import same_name
from gavel_py.io.records import Name, Positive, Record, Text, check_records

BUILTIN = files(__package__) / "data" / "accelerators.csv"

FILE_VARIABLE = "GAVEL_PY_ACCELERATORS"
"""Environment variable that names a CSV file of further accelerators."""

ALIAS_SEPARATOR = ";"

Value = TypeVar("Value")


class AcceleratorSpec(Record):
    """Specifications of one accelerator; None where unknown. A board with two GPUs has the figures of one GPU.

    Attributes:
        name: Short name, such as "h100" or "a100-80gb".
        aliases: Other names of the same accelerator.
        fp32_tflops: Peak FP32, in TFLOP/s.
        tf32_tflops: Peak dense TF32 of the matrix units, in TFLOP/s.
        fp16_tflops: Peak dense FP16 or BF16 with FP32 accumulation, of the matrix units where there are any, in TFLOP/s.
        fp8_tflops: Peak dense FP8, in TFLOP/s.
        memory_gb: Memory in GB.
        memory_bandwidth_gbs: Bandwidth of the memory in GB/s.
        power_watts: Board power in watts.
        usd_per_hour: List price in US dollars per hour; it needs `price_provider` and `price_date`.
        price_provider: Provider with this price.
        price_date: Date of the price, YYYY-MM-DD.
        source: Origin of the figures.

    >>> AcceleratorSpec(name="x1", fp16_tflops=100, memory_bandwidth_gbs=1000).memory_gb is None
    True
    """

    label: ClassVar[str] = "accelerator"
    identifier: ClassVar[str] = "name"

    name: Name
    aliases: tuple[Name, ...] = ()
    fp32_tflops: Positive | None = None
    tf32_tflops: Positive | None = None
    fp16_tflops: Positive | None = None
    fp8_tflops: Positive | None = None
    memory_gb: Positive | None = None
    memory_bandwidth_gbs: Positive | None = None
    power_watts: Positive | None = None
    usd_per_hour: Positive | None = None
    price_provider: Text = ""
    price_date: Text = ""
    source: Text = ""

    @field_validator("aliases", mode="before")
    @classmethod
    def _split_aliases(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(alias.strip() for alias in value.split(ALIAS_SEPARATOR) if alias.strip())
        return tuple(value) if isinstance(value, list) else value

    @field_validator("price_date")
    @classmethod
    def _check_date(cls, value: str) -> str:
        try:
            return value and date.fromisoformat(value).isoformat()
        except ValueError:
            raise ValueError(f"must be a date YYYY-MM-DD, found {value!r}") from None

    @model_validator(mode="after")
    def _check_price(self) -> AcceleratorSpec:
        text = "usd_per_hour needs price_provider and price_date, since prices differ and change"
        check_together((self.usd_per_hour is not None and not (self.price_provider and self.price_date), text))
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The name, then the aliases."""
        return (self.name, *self.aliases)


class _Key(NamedTuple):
    """A name without case, separators and words that do not distinguish accelerators.

    model: such as "h100"; form: "sxm", "pcie", "nvl" or empty; memory: in GB, 0 if the name has none.
    """

    model: str
    form: str
    memory: int


IGNORED = re.compile(
    r"nvidia|amd|intel|google|tesla|geforce|radeon|instinct|blackwell|ultra|grace|hopper|superchip|r|ai|gpu|graphics|accelerator"
    r"|virtualized|server|edition|se|dlc|oam|hbm2e?|hbm3e?|gddr\dx?|dgx|hgx"
)
"""Words of makers, families, memory and cooling, which occur in long names."""

NEAR = 0.05
"""Relative difference up to which a memory size in a name is that of the table: data sheets, drivers and binary units differ."""


def _key(name: str) -> _Key | None:
    """Return the key of a name; None for a slice of a GPU (MIG), such as "1g.5gb", whose name has several sizes."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and not IGNORED.fullmatch(word)]
    model = ""
    forms: list[str] = []
    memories: list[int] = []
    for word in words:
        if form := re.fullmatch(r"(sxm|pcie|nvl)\d?", word):
            forms.append(form[1])
        elif memory := re.fullmatch(r"(\d+)g(?:i?b)?", word):
            memories.append(int(memory[1]))
        else:
            model += word
    if len(memories) > 1 or len(forms) > 1:
        return None
    return _Key(model, forms[0] if forms else "", memories[0] if memories else 0)


class AcceleratorTable:
    """Specifications of accelerators by name; immutable.

    Args:
        specs: The accelerators. A name that two of them share refers to the first.

    >>> table = AcceleratorTable.builtin()
    >>> [table.find(name).name for name in ("H100", "NVIDIA H100 80GB HBM3", "h100_sxm", "Tesla V100-SXM2-32GB")]
    ['h100', 'h100', 'h100', 'v100-32gb']
    >>> table.find("abacus") is None
    True
    """

    def __init__(self, specs: Iterable[AcceleratorSpec]) -> None:
        self._specs: dict[str, AcceleratorSpec] = {}
        for spec in specs:
            self._specs.setdefault(spec.name.lower(), spec)
        self._names: dict[str, AcceleratorSpec] = {}
        self._exact: dict[_Key, AcceleratorSpec] = {}
        self._models: dict[str, list[tuple[_Key, AcceleratorSpec]]] = {}
        for spec in self:
            for name in spec.names:
                self._names.setdefault(name.lower(), spec)
                if key := _key(name):
                    self._exact.setdefault(key, spec)
                    self._models.setdefault(key.model, []).append((key, spec))

    def __iter__(self) -> Iterator[AcceleratorSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"AcceleratorTable({len(self)} accelerators)"

    @classmethod
    def builtin(cls) -> AcceleratorTable:
        """Return the built-in table, extended by the CSV file that the environment variable GAVEL_PY_ACCELERATORS names."""
        return _builtin(os.environ.get(FILE_VARIABLE) or None)

    def find(self, name: str) -> AcceleratorSpec | None:
        """Return the specifications of the accelerator with this name, or None if the table has none.

        Names are compared without case, separators, makers and kinds of memory, with their aliases. A form (SXM, PCIe, NVL) or a
        memory size in the name selects among the accelerators of a model. Without them, the table decides: "h100" is the SXM
        module with 80 GB, "a100" the SXM module with 80 GB, "v100" the PCIe card with 16 GB. A slice of a GPU (MIG) is not found.

        Args:
            name: Such as "h100-sxm", "H100 80GB HBM3" or "AMD Instinct MI300X 192GB HBM3".
        """
        if spec := self._names.get(name.strip().lower()):
            return spec
        key = _key(name)
        if key is None:
            return None
        if spec := self._exact.get(key):
            return spec
        known = self._models.get(key.model, ())
        if any(other.form not in ("", "sxm") for other, _ in known):
            known = [each for each in known if each[0].form == key.form or {each[0].form, key.form} == {"", "sxm"}]
        return next(
            (
                spec
                for _, spec in known
                if not key.memory or (spec.memory_gb is not None and abs(spec.memory_gb - key.memory) <= NEAR * key.memory)
            ),
            None,
        )

    def with_names(self, names: Iterable[str]) -> AcceleratorTable:
        """Return this table with exactly these names added; entries of unknown accelerators have no figures."""
        found = {name: self.find(name) for name in names}
        new = [AcceleratorSpec(name=n) if s is None else s.model_copy(update={"name": n, "aliases": ()}) for n, s in found.items()]
        return AcceleratorTable([*new, *self])

    def extended(self, more: str | Path | Iterable[AcceleratorSpec | Mapping[str, Any]]) -> AcceleratorTable:
        """Return this table with further accelerators, which replace those of the same name.

        Args:
            more: A CSV file with the fields of `AcceleratorSpec` as columns (aliases separated by ";"), or rows.

        Raises:
            InputError: A row has a wrong field, or two rows have a name in common.
        """
        if isinstance(more, str | Path):
            return AcceleratorTable([*_read(more), *self])
        rows = [row.model_dump() if isinstance(row, AcceleratorSpec) else row for row in more]
        return AcceleratorTable([*_checked((f"row {n}", row) for n, row in enumerate(rows, 1)), *self])


def same_accelerator(name: str, known: Collection[str]) -> str | None:
    """Return the known name that equals this one except for case, or the only known name of the same accelerator.

    Everything that takes names of accelerators compares them in this way.

    Args:
        name: Any name of an accelerator, as `AcceleratorTable.find` reads it.
        known: The names to choose from.

    Returns:
        One of the known names, or None if there is none, or several.

    >>> same_accelerator("H100", ["v100", "h100"]), same_accelerator("NVIDIA H100 80GB HBM3", ["v100", "h100"])
    ('h100', 'h100')
    >>> same_accelerator("H100", ["a100"]) is None
    True
    """
    found = same_name(name, known)
    spec = None if found is not None else AcceleratorTable.builtin().find(name)
    if spec is None:
        return found
    same = [other for other in known if AcceleratorTable.builtin().find(other) is spec]
    return same[0] if len(same) == 1 else None


def entry_of(name: str, entries: Mapping[str, Value], default: Value) -> Value:
    """Return the entry of the same accelerator, as `same_accelerator` compares names, or the default if there is none.

    >>> entry_of("H100-80GB", {"h100": 2.9}, 0.0)
    2.9
    """
    known = same_accelerator(name, entries)
    return default if known is None else entries[known]


def identity_of(name: str) -> str:
    """Return a text that is equal for all names of an accelerator, as `same_accelerator` compares them.

    >>> identity_of("NVIDIA H100 80GB HBM3") == identity_of("H100"), identity_of("Abacus") == identity_of("abacus")
    (True, True)
    """
    spec = AcceleratorTable.builtin().find(name)
    return (name if spec is None else spec.name).casefold()


def how_the_same(name: str, other: str) -> str:
    """Return a short reason why two names mean the same accelerator."""
    return "they differ only in case" if name.casefold() == other.casefold() else "they name the same accelerator"


def notes_on_names(renamed: Mapping[str, str], profile_name: str, measured: Container[str]) -> Iterator[NameWarning]:
    """Yield a warning for all {accelerator of a cluster: accelerator of a profile} that are the same in one way.

    measured: the accelerators with measurements in the profile; of others it has only specifications.
    """
    alike: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for name, other in renamed.items():
        alike.setdefault((how_the_same(name, other), other in measured), []).append((name, other))
    for (how, is_measured), pairs in alike.items():
        there = f"profile {profile_name!r}" if is_measured else f"the specifications (profile {profile_name!r} has no measurement)"
        if len(pairs) == 1:
            note = f"accelerator {pairs[0][0]!r} of the cluster is treated as {pairs[0][1]!r} of {there}: {how}"
        else:
            listed, how = ", ".join(f"{name!r} as {other!r}" for name, other in pairs), how.replace("accelerator", "accelerators")
            note = f"accelerators of the cluster are treated as those of {there}: {listed}; {how}"
        yield NameWarning(note, len(pairs))


@cache
def _builtin(more: str | None) -> AcceleratorTable:
    if more is not None:
        return _builtin(None).extended(more)
    with as_file(BUILTIN) as path:
        return AcceleratorTable(_read(path))


def _read(path: str | Path) -> list[AcceleratorSpec]:
    """Return the accelerators of a CSV file. Raises `InputError` with all faults, each with its line."""
    return _checked(reading.known_csv_rows(path, ("name",), AcceleratorSpec.model_fields))


def _checked(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[AcceleratorSpec]:
    specs = check_records(AcceleratorSpec, rows)
    first: dict[str, str] = {}
    faults = []
    for spec in specs:
        for name in dict.fromkeys(name.lower() for name in spec.names):
            if name in first:
                faults.append(Fault(spec.where, "name", f"{name!r} appears twice, first at {first[name]}"))
            first.setdefault(name, spec.where)
    InputError.raise_any(faults)
    return specs
