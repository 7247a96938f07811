"""What is declared once about the columns of a job: how each field of `Job` is used, as a mark of its type.

Name, type, default, rule and meaning of a field stand in `Job` itself; keys, tables and checks follow from there and from here.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, NamedTuple, TypeVar, get_args

from pydantic import BaseModel

Value = TypeVar("Value")


class Use(Enum):
    """How a field of a job is used."""

    GANG = "determines where its gang may run and, with a profile by job type, how fast"
    SIZE = "is about its number of GPUs; such fields exclude or determine each other"
    HOST = "is what each of its GPUs requires on its node"
    NUMBER = "is a column of numbers in the job table, NaN for none"


Gang = Annotated[Value, Use.GANG]
Size = Annotated[Value, Use.GANG, Use.SIZE]
Host = Annotated[Value, Use.GANG, Use.HOST]
Number = Annotated[Value, Use.NUMBER]


class Fixed(NamedTuple):
    """Mark of a field that a job in the system cannot change."""

    reason: str


def fields_for(use: Use, record: type[BaseModel]) -> tuple[str, ...]:
    """Return the fields of a record with this use."""
    return tuple(name for name, field in record.model_fields.items() if use in field.metadata)


def text_fields(record: type[BaseModel]) -> tuple[str, ...]:
    """Return the fields of a record that are names or other texts, or lists of them."""

    def is_text(kind: object) -> bool:
        return kind is str or isinstance(kind, str) or any(map(is_text, get_args(kind)))

    return tuple(name for name, field in record.model_fields.items() if is_text(field.annotation))


def fixed_fields(record: type[BaseModel]) -> dict[str, str]:
    """Return {field: why} of the fields that a job in the system cannot change."""
    marks = ((name, mark) for name, field in record.model_fields.items() for mark in field.metadata)
    return {name: mark.reason for name, mark in marks if isinstance(mark, Fixed)}
