"""Records that check themselves: pydantic finds the faults, this module words them for the user."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from gavel_py.errors import Fault, InputError, decimal_hint, nearest

CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
"""Control characters and line breaks: an id with one of them would garble tables, messages and files."""

MAX_COUNT = 1_000_000
"""The largest gang and the most nodes of one entry; a larger number is a slip, and building it helps nobody."""

SMALLEST_FRACTION = 0.001
"""Of a GPU; schedulers that share GPUs count in thousandths at most, and a smaller part is a slip."""

LONGEST_TEXT = 1000
"""Characters of a name; a longer one is a broken file, and every message and table would repeat it."""


def has_control(text: str) -> bool:
    """Say whether the text has a line break or control character."""
    return re.search(f"[{CONTROL}]", text) is not None


def _check_decimal(value: object) -> None:
    hint = decimal_hint(value) if isinstance(value, str) else ""
    if hint:
        raise ValueError(f"must be a decimal number, found {_shown(value)}{hint}")


def _plain_number(value: object) -> object:
    # pydantic would read true as 1, which nobody who writes `num_gpus: yes` means.
    if isinstance(value, bool):
        raise ValueError(f"must be a number, found {value!r}")
    _check_decimal(value)
    return value


def gang_size(value: object) -> int | float:
    """Return the GPUs that a job asks for, which may be given as text: a whole number of them, or a fraction of one."""
    if type(value) is int and 1 <= value <= MAX_COUNT:
        return value
    _check_decimal(value)
    size = number_of(value)
    if size < SMALLEST_FRACTION:
        raise ValueError(f"must be at least {SMALLEST_FRACTION:g} of a GPU, found {_shown(value)}")
    if size > MAX_COUNT:
        raise ValueError(f"must be at most {MAX_COUNT:,}, found {_shown(value)}")
    if size >= 1 and size.is_integer():
        return int(size)
    if size < 1:
        return size
    raise ValueError(f"must be a whole number of GPUs, or a fraction of one, found {_shown(value)}")


def number_of(value: object) -> float:
    """Return the number that a value or a text says, NaN where it is none, or text in another than decimal form."""
    if isinstance(value, bool | bytes) or (isinstance(value, str) and (decimal_hint(value) or not value.isascii())):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def is_absent(value: object) -> bool:
    """Say whether a value stands for none at all: None, NaN, NaT, pandas.NA, or a masked entry of numpy."""
    if value is None or isinstance(value, str):
        return value is None
    if type(value).__name__ in ("NAType", "MaskedConstant"):  # whose comparisons are neither true nor false
        return True
    try:
        return bool(value != value)  # NaN of any kind
    except (TypeError, ValueError):
        return False


def _present(value: object) -> object:
    # pydantic would make the name "nan" of it.
    if value is not None and is_absent(value):
        raise ValueError(f"must be text, found {value!r}")
    return value


# The kinds of fields. Numbers may be given as text, as cells of a CSV file are.
_LIMITS = Field(pattern=f"^[^{CONTROL}]*$", max_length=LONGEST_TEXT)

Text = Annotated[str, _LIMITS, BeforeValidator(_present)]

Name = Annotated[str, _LIMITS, Field(min_length=1), BeforeValidator(_present)]

Integer = Annotated[int, BeforeValidator(_plain_number)]

Whole = Annotated[Integer, Field(ge=1, le=MAX_COUNT)]

GangSize = Annotated[int | float, PlainValidator(gang_size)]

Finite = Annotated[float, BeforeValidator(_plain_number), Field(allow_inf_nan=False)]

NotNegative = Annotated[Finite, Field(ge=0)]

Positive = Annotated[Finite, Field(gt=0)]

# What each of pydantic's complaints means in the user's words; {…} are the limits that it names.
WORDING = {
    "missing": "is required",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of reasonable size",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "string_unicode": "must be text of valid characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must not contain line breaks or control characters",
    "literal_error": "must be one of {expected}",
    "tuple_type": "must be a list",
}


class Record(BaseModel):
    """A frozen, checked record; a wrong field raises `InputError` with one fault per field.

    Keyword arguments are the fields. Subclasses set `label`, the word for one of them in messages, and
    `identifier`, the field that names it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, coerce_numbers_to_str=True)
    label: ClassVar[str] = "record"
    identifier: ClassVar[str] = ""

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InputError(*self._faults(error, fields)) from None

    @property
    def place(self) -> str:
        """Where it was read, as in "jobs.csv, line 3", empty if it was not read from a file. Equal records may differ in it."""
        return str(self.__dict__.get("place", ""))

    def placed(self, place: str) -> Self:
        """Note where the record was read, for messages, and return it."""
        # Pydantic compares, hashes, prints and dumps fields only; copies keep the rest of __dict__.
        self.__dict__["place"] = place
        return self

    @property
    def where(self) -> str:
        """What messages call it: its name, after the place where it was read."""
        who = f"{self.label} {_shown(getattr(self, self.identifier))}" if self.identifier else self.label
        return f"{self.place} ({who})" if self.place else who

    @classmethod
    def _faults(cls, error: ValidationError, fields: Mapping[str, Any]) -> list[Fault]:
        """Return pydantic's complaints in our words."""
        name = fields.get(cls.identifier)
        who = f"{cls.label} {_shown(name)}" if isinstance(name, str | int) and name != "" else cls.label
        return [Fault(who, ".".join(str(part) for part in e["loc"]), cls._wording(e)) for e in error.errors()]

    @classmethod
    def _wording(cls, error: ErrorDetails) -> str:
        if error["type"] == "extra_forbidden":
            name = str(error["loc"][-1])
            return f"is not known{nearest(name, cls.model_fields)}"
        if error["type"] == "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        template = WORDING.get(error["type"], error["msg"])
        limits = {name: _limit(value) for name, value in error.get("ctx", {}).items()}
        text = template.format(**limits) if error["type"] in WORDING else template
        return text if error["type"] == "missing" else f"{text}, found {_shown(error['input'])}"


def _limit(value: object) -> object:
    return f"{value:,.12g}" if isinstance(value, int | float) else value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


RecordType = TypeVar("RecordType", bound=Record)


def check_records(model: type[RecordType], rows: Iterable[tuple[str, Any]]) -> list[RecordType]:
    """Return one `model` per (where, fields) row, or raise `InputError` with the faults of all rows."""
    records: list[RecordType] = []
    faults: list[Fault] = []
    for where, fields in rows:
        if not isinstance(fields, Mapping):
            faults.append(Fault(where, "", f"must be a mapping of field to value, found {_shown(fields)}"))
            continue
        try:
            records.append(model(**{str(name): value for name, value in fields.items()}).placed(where))
        except InputError as error:
            faults += [Fault(f"{where} ({f.where})", f.field, f.problem) for f in error.faults]
    InputError.raise_any(faults)
    return records


def repeated(label: str, field: str, names: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return a fault for each name of a (where, name) row that stands twice, with the place of its first."""
    first: dict[str, str] = {}
    found = [(where, name, first.setdefault(name, where)) for where, name in names]
    return [
        Fault(f"{where} ({label} {_shown(name)})", field, f"stands twice, first at {earlier}")
        for where, name, earlier in found
        if earlier != where
    ]
