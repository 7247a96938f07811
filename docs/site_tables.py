"""Tables of the pages that follow from the code: fields of records and results, options of policies.

A page has a marker where a table belongs: `<!-- table: Job -->` for the fields of `gavel_py.Job`, of a class with the section
"Attributes" in its docstring; `<!-- table: METRICS -->` for the metrics of runs; `<!-- options: fifo -->` for the options of one or
several policies.

    python docs/site_tables.py PAGE...  prints pages with their tables
    python docs/site_tables.py          writes the tables of all pages for docs/site_hooks.py, as `make docs` does
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import gavel_py as gp
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.compiling import KINDS
from gavel_py.policies.registry import type_text

DOCS = Path(__file__).parent
FILE = DOCS.parent / "build" / "tables.json"
MARKER = re.compile(r"^<!-- (table|options): (.+) -->$", re.MULTILINE)
PAGE = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")
UNITS = {
    r"(.*_)?gpu_seconds$": "GPU-seconds",
    r"(.*_)?seconds(_by_\w+)?$": "s",
    r".*_hours$": "h",
    r"(.*_)?memory_gb(_per_gpu)?$": "GB",
    r"(total_steps|steps_done)$": "steps",
    r"throughput$|(.*_)?steps_per_second$": "steps/s",
}
"""The unit of numbers, by the name of the field."""
QUANTITIES = {"count": "whole", "number": "number", "time": "s", "clock": "s", "share": "part of 1", "money": "unit of prices"}
"""The unit of metrics, by what they measure."""
OWN_TABLES = ("stages", "tenant")
"""Keys whose parts are described elsewhere."""
WORDS = {bool: "true, false", int: "whole", float: "number", Path: "path"}


def with_tables(markdown: str) -> str:
    """Return a page with a table in place of each marker."""
    return MARKER.sub(_table, markdown)


def _table(marker: re.Match[str]) -> str:
    return options_table(marker[2].split()) if marker[1] == "options" else fields_table(*marker[2].split())


def options_table(policies: Sequence[str]) -> str:
    """Return the table of the options of policies, without those that every policy has, which are the options of "Policy"."""
    common = gp.policy_options(gp.Policy)  # type: ignore[type-abstract]
    rows = []
    for policy in policies:
        options = common if policy == "Policy" else gp.policy_options(gp.policy_class(policy))
        own = [option for option in options.values() if policy == "Policy" or option.name not in common]
        rows += [[f"`{policy}`", f"`{o.name}`", _default(o.default), type_text(o.type), o.help] for o in own]
    first = 0 if len(policies) > 1 else 1
    heads = ["policy", "option", "default", "value", "meaning"]
    return _markdown(heads[first:], [row[first:] for row in rows]) if rows else "No options of its own."


def fields_table(name: str, *more: str) -> str:
    """Return the table of the fields of a class, the keys of a file; more: a prefix of keys ("tenants[]."), "without" and keys."""
    if name == "METRICS":
        rows = [
            [f"`{name}`", QUANTITIES[each.quantity], f"{each.label or each.title}; {each.meaning}".removesuffix("; ")]
            for name, each in gp.METRICS.items()
        ]
        return _markdown(["metric", "value, unit", "meaning"], rows)
    cls = getattr(gp, name)
    if cls is Constraint:
        rows = [[f"`{kind}`", *row] for kind, each in KINDS.items() for row in _fields(each) if row[0] != "`penalty`"]
        return _markdown(["kind", "field", "default", "value, unit", "meaning"], rows)
    if issubclass(cls, BaseModel):
        return _markdown(["field", "default", "value, unit", "meaning"], list(_fields(cls)))
    prefix = next((word for word in more if word.endswith(".")), "")
    without = more[more.index("without") :] if "without" in more else ()
    return _markdown(["key", "value, unit", "meaning"], list(_keys(cls, prefix, without)))


def _fields(cls: type[BaseModel]) -> Iterator[list[str]]:
    meanings = {name: _sentence(field.description, "none") for name, field in cls.model_fields.items() if field.description}
    meanings |= _meanings(cls, "none")
    _check(cls, set(cls.model_fields) - set(meanings))
    for name, text in meanings.items():
        if field := cls.model_fields.get(name):
            default = dataclasses.MISSING if field.is_required() else field.get_default(call_default_factory=True)
            yield [f"`{name}`", _default(default), _values(field.annotation, field.metadata, _unit(name)), text]


def _keys(cls: type, prefix: str, without: Collection[str] = ()) -> Iterator[list[str]]:
    """Yield the rows of the keys that `to_dict` returns as a literal, or else of the fields of the class."""
    meanings, hints = _meanings(cls, "null"), typing.get_type_hints(cls, include_extras=True)
    hints |= {
        name: typing.get_type_hints(each.fget)["return"] for name, each in inspect.getmembers(cls) if isinstance(each, property)
    }
    keys: dict[str, ast.expr | None] = dict(_returned(cls.to_dict)) if hasattr(cls, "to_dict") else {}
    keys = keys or dict.fromkeys(field.name for field in dataclasses.fields(cls))
    for key, value in ((key, value) for key, value in keys.items() if key not in without):
        name = next((name for name in (key, *_names(value)) if name in meanings), "")
        _check(cls, set() if name else {key})
        word, text = _values(hints[name], (), _unit(key), " or null"), _with_members(meanings[name], hints[name])
        word = word.replace("number", "number by type") if "_by_type" in _names(value) else word
        yield [f"`{prefix}{key}`", f"{word} or null" if "null" in text and "null" not in word else word, text]
        several = get_origin(hints[name]) in (tuple, Mapping)
        for part in (hints[name], *get_args(hints[name])):
            if dataclasses.is_dataclass(part) and key not in OWN_TABLES:
                yield from _keys(typing.cast(type, part), f"{prefix}{key}{'[]' * several}.")


def _with_members(meaning: str, hint: Any) -> str:
    """Return the meaning with the members of an enumeration in place of its name."""
    for each in (part for part in get_args(hint) if isinstance(part, type) and issubclass(part, Enum)):
        meaning = meaning.replace(
            f"`{each.__name__}`", "; ".join(f"`{name.lower()}`: {each[name].value}" for name in each.__members__)
        )
    return meaning


def _returned(method: Any) -> Iterator[tuple[str, ast.expr]]:
    """Yield the keys and values of the dictionary that a method returns, if it is a literal."""
    for each in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(method)))):
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Dict):
            yield from _entries(each.value)


def _entries(literal: ast.Dict, outer: str = "") -> Iterator[tuple[str, ast.expr]]:
    for key, value in zip(literal.keys, literal.values, strict=True):
        if not isinstance(key, ast.Constant):  # **({} if … else {…})
            yield from (entry for each in ast.walk(value) if isinstance(each, ast.Dict) for entry in _entries(each, outer))
        elif isinstance(value, ast.Dict):
            yield from _entries(value, f"{outer}{key.value!s}.")
        else:
            yield f"{outer}{key.value!s}", value


def _names(value: ast.expr | None) -> list[str]:
    """Return the variables and attributes of an expression."""
    nodes = [] if value is None else list(ast.walk(value))
    return [
        each.attr if isinstance(each, ast.Attribute) else each.id for each in nodes if isinstance(each, ast.Attribute | ast.Name)
    ]


def _check(cls: type, missing: Collection[str]) -> None:
    if missing:
        raise LookupError(f"the docstring of {cls.__name__} does not explain {', '.join(sorted(missing))}")


def _meanings(cls: type, absent: str) -> dict[str, str]:
    """Return {name: meaning} from the sections "Attributes" of a class and its bases, and from the docstrings of properties."""
    found = {name: inspect.getdoc(each) or "" for name, each in inspect.getmembers(cls) if isinstance(each, property)}
    for each in reversed(cls.__mro__):
        section = (inspect.cleandoc(each.__doc__ or "") + "\n\n").partition("\nAttributes:\n")[2].partition("\n\n")[0]
        found |= dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE))
    return {name: _sentence(text, absent) for name, text in found.items()}


def _sentence(text: str, absent: str) -> str:
    first = re.sub(r"^\([A-Z, ]+\) ", "", " ".join(text.partition("\n\n")[0].split())).removesuffix(".")
    linked = PAGE.sub(r"[\1](\1.md\2)", first)
    linked = re.sub(r"(?<=\. )None\b", absent.capitalize(), linked)
    return re.sub(r"(?<!^)\b(None|NaN)\b", absent, linked)


def _unit(name: str) -> str:
    return next((unit for pattern, unit in UNITS.items() if re.match(pattern, name)), "")


def _values(annotation: Any, limits: Sequence[Any] = (), unit: str = "", null: str = "") -> str:
    """Return the values that a type allows, in words. A text in the metadata of a type says it where a validator decides."""
    args = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _values(args[0], [*args[1:], *limits], unit, null)
    if said := [each for each in limits if isinstance(each, str)]:
        return said[0]
    if get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [_values(part, limits, unit) for part in args if part is not types.NoneType]
        return " or ".join(dict.fromkeys(parts)) + (null if types.NoneType in args else "")
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in args)
    if get_origin(annotation) in (tuple, list):
        part = _values(args[0])
        return {"whole": "list of whole numbers", "object": "list"}.get(part, f"list of {part}")
    if get_origin(annotation) in (dict, Mapping):
        return f"{_values(args[1], (), unit)} by name"
    if get_origin(annotation) is np.ndarray:
        return unit or "number"
    if isinstance(annotation, type) and issubclass(annotation, str):
        return "text"
    word = unit if unit and annotation in (int, float) else WORDS.get(annotation, "object")
    return word + _range(limits)


def _range(limits: Iterable[Any]) -> str:
    flat = [part for each in limits for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
    ends = {kind: getattr(part, kind.__name__.lower()) for part in flat for kind in (Gt, Ge, Lt, Le) if isinstance(part, kind)}
    if Ge in ends and Le in ends:
        return f", {ends[Ge]:,.9g} to {ends[Le]:,.9g}"
    words = {Gt: "above", Ge: "at least", Lt: "below", Le: "at most"}
    return "".join(f", {word} {ends[kind]:,.9g}" for kind, word in words.items() if kind in ends)


def _default(value: object) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if value is None or isinstance(value, tuple | dict):
        return ":".join(map(str, value or ())) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value) or "empty"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in [heads, *rows]]
    lines.insert(1, " | ".join("---" for _ in heads))
    return "\n".join(f"| {line} |" for line in lines)


def write() -> None:
    """Write {marker: table} of all pages."""
    markers = {marker[0]: marker for page in DOCS.rglob("*.md") for marker in MARKER.finditer(page.read_text(encoding="utf-8"))}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps({text: _table(marker) for text, marker in markers.items()}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    for page in sys.argv[1:]:
        sys.stdout.write(with_tables(Path(page).read_text(encoding="utf-8")))
    if len(sys.argv) == 1:
        write()
