"""Records that check themselves: pydantic finds the faults, this module words them for the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from gavel_py.errors import Fault, InputError, nearest

__all__ = ["Record", "check_records"]

# What each of pydantic's complaints means in the user's words; {…} are the limits that it names.
WORDING = {
    "missing": "is required",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of reasonable size",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must not contain line breaks or control characters",
    "literal_error": "must be one of {expected}",
    "tuple_type": "must be a list",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}


class Record(BaseModel):
    """A frozen, checked record; a wrong field raises `InputError` with one fault per field.

    Keyword arguments are the fields. Subclasses set `label`, the word for one of them in messages, and
    `identifier`, the field that names it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, coerce_numbers_to_str=True)
    label: ClassVar[str] = "record"
    identifier: ClassVar[str] = ""

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InputError(*self.faults(error, fields)) from None

    @classmethod
    def faults(cls, error: ValidationError, fields: Mapping[str, Any], where: str = "") -> list[Fault]:
        """Return pydantic's complaints in our words; `where` names file and line."""
        name = fields.get(cls.identifier)
        who = f"{cls.label} {name!r}" if isinstance(name, str | int) and name != "" else cls.label
        place = f"{where} ({who})" if where else who
        return [Fault(place, ".".join(str(part) for part in e["loc"]), cls._wording(e)) for e in error.errors()]

    @classmethod
    def _wording(cls, error: ErrorDetails) -> str:
        if error["type"] == "extra_forbidden":
            return f"is not known{nearest(str(error['loc'][-1]), cls.model_fields)}"
        if error["type"] == "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        template = WORDING.get(error["type"], error["msg"])
        text = template.format(**error.get("ctx", {})) if "{" in template else template
        return text if error["type"] == "missing" else f"{text}, found {_shown(error['input'])}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


RecordType = TypeVar("RecordType", bound=Record)


def check_records(model: type[RecordType], rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[RecordType]:
    """Return one `model` per (where, fields) row, or raise `InputError` with the faults of all rows."""
    records: list[RecordType] = []
    faults: list[Fault] = []
    for where, fields in rows:
        try:
            records.append(model(**fields))
        except InputError as error:
            faults += [Fault(f"{where} ({f.where})", f.field, f.problem) for f in error.faults]
    InputError.raise_any(faults)
    return records
