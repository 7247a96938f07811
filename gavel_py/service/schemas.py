"""JSON schemas of what callers send, from the records that check it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from gavel_py.errors import check_known
from gavel_py.io.records import Record
from gavel_py.problem.job import Job
from gavel_py.problem.nodes import AcceleratorType, Node
from gavel_py.problem.tenants import Tenant
from gavel_py.service.events import RECORDS

SCHEMAS: Mapping[str, tuple[type[Record], ...]] = {
    "accelerator": (AcceleratorType,),
    "event": tuple(dict.fromkeys(RECORDS.values())),
    "job": (Job,),
    "node": (Node,),
    "tenant": (Tenant,),
}
"""{name: the record, or the records of which it is one}."""

KEYWORDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
"""{what pydantic calls a bound on a number that it converts: the keyword of JSON Schema}."""

RULE = (
    "Rules between fields are stated at each of them, and checked by gavel-py. Beside what this schema allows, gavel-py takes "
    "numbers that are written as text, durations such as 2d4h for seconds, and names that are numbers, as in files."
)


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a kind of record, such as `job` or `event`, with the meaning of each field.

    Raises:
        UnknownNameError: There is no such kind.

    >>> import gavel_py as gp
    >>> gp.json_schema("job")["properties"]["weight"]["exclusiveMinimum"]
    0
    """
    check_known("", "", [name], SCHEMAS, "is not a kind of record with a schema")
    first, *others = SCHEMAS[name]
    kind: Any = first
    for each in others:
        kind = kind | each
    document = _with_keywords(TypeAdapter(kind).json_schema())
    parts = document.get("$defs", {}) if others else {first.__name__: document}
    for record in SCHEMAS[name]:
        for field, text in _meanings(record).items():
            parts[record.__name__]["properties"][field].setdefault("description", text)
        parts[record.__name__]["description"] = (inspect.getdoc(record) or "").partition("\n")[0]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": RULE, **document}


def _with_keywords(part: Any) -> Any:
    if isinstance(part, list):
        return [_with_keywords(each) for each in part]
    if not isinstance(part, dict):
        return part
    is_number = part.get("type") in ("number", "integer")
    return {KEYWORDS.get(key, key) if is_number else key: _with_keywords(value) for key, value in part.items()}


def _meanings(record: type[Record]) -> dict[str, str]:
    """Return {field: its meaning} from the docstring of a record."""
    text = (inspect.getdoc(record) or "").partition("\nAttributes:\n")[2]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found if name in record.model_fields}
