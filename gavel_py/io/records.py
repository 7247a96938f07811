"""Records with validated fields: pydantic finds the faults, and this module converts them to messages for users."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gavel_py.errors import Fault, InputError, decimal_hint, nearest, shown, wrong_types
from gavel_py.io.names import CONTROL, MAX_COUNT, SMALLEST_FRACTION, is_absent
from gavel_py.io.times import with_seconds

LONGEST_TEXT = 1000
"""Maximum number of characters of a name. A longer one indicates a broken file, and messages and tables would repeat it."""


def _check_decimal(value: object) -> None:
    if isinstance(value, str) and (hint := decimal_hint(value)):
        raise ValueError(f"must be a decimal number, found {shown(value)}{hint}")


def _plain_number(value: object) -> object:
    if type(value) is float:  # nearly all
        return value
    # pydantic would read true as 1, but `num_gpus: yes` is a mistake.
    if isinstance(value, bool):
        raise ValueError(f"must be a number, found {value!r}")
    _check_decimal(value)
    # Strict records take no other numbers than Python's, and lax ones would round large integers of NumPy.
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


def gang_size(value: object) -> int | float:
    """Return the number of GPUs of a job, a whole number or a fraction of one; the value may be text."""
    if type(value) is int and 1 <= value <= MAX_COUNT:
        return value
    _check_decimal(value)
    size = number_of(value)
    if size < SMALLEST_FRACTION:
        raise ValueError(f"must be at least {SMALLEST_FRACTION:g} of a GPU, found {shown(value)}")
    if size > MAX_COUNT:
        raise ValueError(f"must be at most {MAX_COUNT:,}, found {shown(value)}")
    if size >= 1 and size.is_integer():
        return int(size)
    if size < 1:
        return size
    raise ValueError(f"must be a whole number of GPUs, or a fraction of one, found {shown(value)}")


def job_size(value: object) -> int | float:
    """Return the number of GPUs of a job as `gang_size` does; 0 is that of a job without GPUs."""
    if number_of(value) == 0:
        raise ValueError(f"must be at least {SMALLEST_FRACTION:g} of a GPU, found {shown(value)}; CPU jobs are not scheduled")
    return gang_size(value)


def number_of(value: object) -> float:
    """Return a value or text as a number; NaN if it is not a number in decimal form."""
    if isinstance(value, bool | bytes) or decimal_hint(value) or (isinstance(value, str) and not value.isascii()):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _present(value: object) -> object:
    # pydantic would convert NaN to the name "nan".
    if type(value) is not str and value is not None and is_absent(value):
        raise ValueError(f"must be text, found {value!r}")
    return value


# Types of fields. Numbers may be text, such as the cells of a CSV file. A text in a type says its values in the documentation.
_LIMITS = Field(pattern=f"^[^{CONTROL}]*$", max_length=LONGEST_TEXT)
Text = Annotated[str, _LIMITS, BeforeValidator(_present)]
PlainName = Annotated[str, _LIMITS, Field(min_length=1)]
Name = Annotated[PlainName, BeforeValidator(_present)]
Flag = Annotated[bool, BeforeValidator(lambda value: bool(value) if value in (0, 1) else value)]
Integer = Annotated[int, BeforeValidator(_plain_number)]
Whole = Annotated[Integer, Field(ge=1, le=MAX_COUNT)]
_SIZES = "whole, 1 to 1,000,000, or a fraction from 0.001 to below 1"
GangSize = Annotated[int | float, PlainValidator(gang_size), _SIZES]
JobSize = Annotated[
    int | float,
    PlainValidator(
        job_size,
        json_schema_input_type=Annotated[int, Field(ge=1, le=MAX_COUNT)] | Annotated[float, Field(ge=SMALLEST_FRACTION, lt=1)],
    ),
    _SIZES,
]
Finite = Annotated[float, BeforeValidator(_plain_number), Field(allow_inf_nan=False)]
NotNegative = Annotated[Finite, Field(ge=0)]
Positive = Annotated[Finite, Field(gt=0)]
Part = Annotated[Finite, Field(ge=0, le=1)]
Share = Annotated[Finite, Field(gt=0, le=1)]
ProperPart = Annotated[Finite, Field(gt=0, lt=1)]
Multiple = Annotated[Finite, Field(ge=1)]
Seconds = Annotated[Finite, BeforeValidator(with_seconds)]
SecondsFromZero = Annotated[Seconds, Field(ge=0)]
SecondsAboveZero = Annotated[Seconds, Field(gt=0)]
Count = Annotated[Integer, Field(ge=1)]
Port = Annotated[Integer, Field(ge=1, le=65_535)]
Natural = Annotated[Integer, Field(ge=0)]


def part_or(word: str, *, zero: bool) -> PlainValidator:
    """Return a validator for a part of 1 or a word, whose message names both."""

    def checked(value: object) -> object:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value == word or (number and 0 <= value < 1 and (zero or value > 0)):  # type: ignore[operator]
            return value
        raise ValueError(f"must be {'at least' if zero else 'greater than'} 0 and below 1, or {word}, found {value!r}")

    return PlainValidator(checked)


def command_option(default: Any, help_text: str, group: str = "Options", *, metavar: str | None = None) -> Any:
    """Declare a field of a record that a command has as an option of the same name; its help is the first sentence.

    group: the heading of the option in the help; metavar: its value there.
    """
    return Field(default, description=help_text, json_schema_extra={"flag": {"group": group, "names": [], "metavar": metavar}})


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
    "int_parsing_size": "must be a whole number in a reasonable range",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "string_unicode": "must be text with valid characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must not contain line breaks or control characters",
    "literal_error": "must be one of {expected}",
    "tuple_type": "must be a list",
    "callable_type": "must be a function",
    "dataclass_type": "must be an instance of {class_name}",
    "dataclass_exact_type": "must be an instance of {class_name}",
}
"""The message for each type of pydantic's errors; {…} are limits of the error."""


class Record(BaseModel):
    """A frozen record with checked fields, which are its keyword arguments.

    Subclasses set `label`, the word for a record in messages, and `identifier`, the field with its name.

    Raises:
        InputError: with a fault for each field that is wrong.
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
        """The place from which the record was read, such as "jobs.csv, line 3", or empty; it does not count for equality."""
        return str(self.__dict__.get("place", ""))

    def placed(self, place: str) -> Self:
        """Set the place from which the record was read.

        Args:
            place: for messages, such as "jobs.csv, line 3".

        Returns:
            The record itself.
        """
        # Pydantic compares, hashes, prints and dumps fields only, but copies all of __dict__.
        self.__dict__["place"] = place
        return self

    @property
    def where(self) -> str:
        """The record in messages: its place, then its label and name."""
        name = f"{self.label} {shown(getattr(self, self.identifier))}" if self.identifier else self.label
        return f"{self.place} ({name})" if self.place else name

    @classmethod
    def _faults(cls, error: ValidationError, fields: Mapping[str, Any]) -> list[Fault]:
        """Return pydantic's errors as faults."""
        name = fields.get(cls.identifier)
        where = f"{cls.label} {shown(name)}" if isinstance(name, str | int) and name != "" else cls.label
        faults: list[Fault] = []
        for each in error.errors():
            field, cause = ".".join(map(str, each["loc"])), each.get("ctx", {}).get("error")
            if isinstance(cause, InputError):  # of a validator that checks several rules
                faults += [Fault(where, own.field or field, own.problem) for own in cause.faults]
            else:
                faults.append(Fault(where, field, cls._wording(each)))
        return faults

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
        return text if error["type"] == "missing" else f"{text}, found {shown(error['input'])}"


class Options(Record):
    """The base of records of options, which are arguments in Python: text is no number here, as it is in files."""

    model_config = ConfigDict(strict=True)

    def _with(self, changes: Mapping[str, Any]) -> Self:
        """Return the options with other values for some fields, checked; `model_fields_set` has those set here or there."""
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **changes})


RANGES = {"ge": " of at least {}", "gt": " greater than {}", "le": " at most {}", "lt": " less than {}"}
"""The limit of a type in words."""


@cache
def _rule_of(kind: Any) -> tuple[TypeAdapter[Any], type, str]:
    """Return the test of a type of numbers, their class, and the rule in words: "a finite number from 0 to 1"."""
    is_optional = type(None) in get_args(kind)
    number, *marks = get_args(get_args(kind)[0] if is_optional else kind)
    limits = [limit for mark in marks for limit in getattr(mark, "metadata", ())]
    bounds = {name: _limit(getattr(limit, name)) for limit in limits for name in RANGES if hasattr(limit, name)}
    limit = (
        " from {ge} to {le}".format(**bounds)
        if bounds.keys() == {"ge", "le"}
        else " and".join(RANGES[name].format(bounds[name]) for name in bounds)
    )
    numbers, word = (Integral, "whole") if number is int else (Real, "finite")
    return TypeAdapter(kind), numbers, f"a {word} number{limit}{', or None' * is_optional}"


def faults_of(where: str, /, **values: tuple[object, Any]) -> list[Fault]:
    """Return a fault for each number that breaks the rule of its type; values: {field: (value, type)}.

    Values are not converted: other than in the records of files, text is not a number here, and 3.0 is not a whole number.
    """
    faults = []
    for field, (value, kind) in values.items():
        adapter, numbers, text = _rule_of(kind)
        try:
            adapter.validate_python(value, strict=not isinstance(value, numbers))
        except ValidationError:
            faults.append(Fault(where, field, f"must be {text}, found {shown(value)}{decimal_hint(value)}"))
    return faults


def check(where: str, /, **values: tuple[object, Any]) -> None:
    """Raise one `InputError` with the faults of all values that break the rules of their types (`faults_of`)."""
    InputError.raise_any(faults_of(where, **values))


def _limit(value: object) -> object:
    return f"{value:,.12g}" if isinstance(value, int | float) else value


@contextmanager
def without_collection() -> Iterator[None]:
    """Suspend cyclic garbage collection, which would scan all records repeatedly while many are created."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


RecordType = TypeVar("RecordType", bound=Record)


def check_records(
    model: type[RecordType], rows: Iterable[tuple[str, Any]], read: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> list[RecordType]:
    """Return one `model` per (where, fields) row, or raise `InputError` with the faults of all rows.

    read: converts fields that are written in another form than those of the record.
    """
    records: list[RecordType] = []
    faults: list[Fault] = []
    for where, fields in rows:
        if wrong := wrong_types(where, "", [fields], Mapping, "must be a mapping of field to value"):
            faults += wrong
            continue
        try:
            records.append(model(**read({str(name): value for name, value in fields.items()})).placed(where))
        except InputError as error:
            faults += [Fault(f"{where} ({f.where})", f.field, f.problem) for f in error.faults]
    InputError.raise_any(faults)
    return records


def repeated(label: str, field: str, names: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return a fault for each (where, name) row with a name of an earlier row."""
    first: dict[str, str] = {}
    return [
        Fault(f"{where} ({label} {shown(name)})", field, f"appears twice, first at {first[name]}")
        for where, name in names
        if first.setdefault(name, where) != where
    ]
