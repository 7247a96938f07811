"""The JSON schemas accept what the records accept: drawn values of each field, within and outside its bounds."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.service.events import event_of
from gavel_py.service.schemas import SCHEMAS
from tests.support.commands import runner
from tests.support.examples import CHARACTERS, examples

NUMBERS = [0, 1, -1, 0.5, 0.0005, 1.0, 2.5, 4.0, 10**6, 10**6 + 1, 1e300, -2.5]
VALUES: st.SearchStrategy[Any] = (
    st.sampled_from([None, True, False, [], {}, "", "any", "node", "a\nb", "x" * 1001, *NUMBERS, [1, 2], [0], ["a"], [""], [1.5]])
    | st.text(CHARACTERS, max_size=5)
    | st.integers(-3, 10)
    | st.floats(allow_nan=False, allow_infinity=False)
)


def is_valid(schema: dict[str, Any], value: Any, defs: dict[str, Any]) -> bool:
    """Return whether a value is valid by the keywords that the schemas use; another keyword is an error."""
    known = {"title", "default", "description", "$comment", "$schema", "$defs", "anyOf", "$ref", "type", "enum", "const"}
    known |= {"pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "items"}
    assert schema.keys() <= known | {"properties", "required", "additionalProperties"}, schema
    if "$ref" in schema:
        return is_valid(defs[schema["$ref"].rpartition("/")[2]], value, defs)
    if "anyOf" in schema:
        return any(is_valid(each, value, defs) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    types = {
        "string": isinstance(value, str),
        "number": is_number,
        "integer": is_number and value == int(value),
        "boolean": isinstance(value, bool),
        "null": value is None,
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    if "type" in schema and not types[schema["type"]]:
        return False
    if isinstance(value, str):
        fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return fits and re.search(schema.get("pattern", ""), value) is not None
    if is_number:
        within = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        return within and schema.get("exclusiveMinimum", -math.inf) < value < schema.get("exclusiveMaximum", math.inf)
    if isinstance(value, list):
        return all(is_valid(schema.get("items", {}), each, defs) for each in value)
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        if not set(schema.get("required", ())) <= value.keys() or (others is False and not value.keys() <= fields.keys()):
            return False
        rest = others if isinstance(others, dict) else {}
        return all(is_valid(fields.get(name, rest), each, defs) for name, each in value.items())
    return True


def is_coerced(value: Any) -> bool:
    """Return whether a value is of a kind that records take for another one, as the comment of each schema says."""
    return any(map(is_coerced, value)) if isinstance(value, list) else isinstance(value, str | bool | int | float)


@settings(max_examples=examples(400))
@given(st.dictionaries(st.sampled_from(sorted(gp.Job.model_fields)), VALUES, max_size=3))
def test_a_job_is_valid_iff_the_library_takes_it(fields: dict[str, Any]) -> None:
    schema, job, faults = gp.json_schema("job")["properties"], {"job_id": "a", **fields}, tuple[gp.Fault, ...]()
    wrong = {name: value for name, value in job.items() if not is_valid(schema[name], value, {})}
    try:
        gp.Job(**job)
    except gp.InputError as error:
        faults = error.faults
    if faults:
        assert wrong or not any(fault.field for fault in faults)  # rules of the whole record have no field
    else:
        assert [name for name, value in wrong.items() if not is_coerced(value)] == []


@pytest.mark.parametrize("field", sorted(set(gp.Job.model_fields) - {"job_id"}))
def test_each_number_of_each_field_is_valid_iff_the_library_takes_it(field: str) -> None:
    schema = gp.json_schema("job")["properties"][field]
    if not {"number", "integer"} & {each.get("type") for each in [schema, *schema.get("anyOf", [])]}:
        return
    for value in NUMBERS:
        try:
            gp.Job("a", **{field: value})
            taken = True
        except gp.InputError as error:
            taken = not any(fault.field for fault in error.faults)
        assert is_valid(schema, value, {}) == taken, value


@pytest.mark.parametrize(
    "event",
    [
        {"id": "a", "event": "round"},
        {"id": "a", "event": "round", "now_seconds": 3, "table": True},
        {"id": "a", "event": "round", "now_seconds": "3"},
        {"id": "a b", "event": "round"},
        {"id": "x" * 129, "event": "round"},
        {"event": "round"},
        {"id": "a", "event": "rond"},
        {"id": "a", "event": "round", "more": 1},
        {"id": "a", "event": "report", "job_id": "j", "steps_done": -1},
        {"id": "a", "event": "report", "job_id": "j", "steps_done": 2.5},
        {"id": "a", "event": "drain", "node": ""},
        {"id": "a", "event": "node_up", "node": "n"},
        {"id": "a", "event": "policy", "policy": "fifo", "options": {"x": [1]}},
        {"id": "a", "event": "policy", "policy": "fifo", "options": {"x": 1}},
        {"id": "a", "event": "submit", "job": []},
    ],
)
def test_an_event_is_valid_iff_a_session_takes_its_fields(event: dict[str, Any]) -> None:
    schema = gp.json_schema("event")
    try:
        event_of(event)
        taken = True
    except gp.InputError:
        taken = False
    assert is_valid(schema, event, schema["$defs"]) == taken


def test_the_command_prints_every_schema(capsys: pytest.CaptureFixture[str]) -> None:
    gavel = runner(capsys)
    for name in SCHEMAS:
        assert json.loads(gavel("schema", name).out) == gp.json_schema(name)
    assert "did you mean 'job'?" in gavel("schema", "jobs").err
    described = gp.json_schema("job")["properties"]
    assert all(each.get("description") for each in described.values())
