"""Reading the user's files: text with limits, CSV, JSON, JSON Lines and YAML, each fault with file and line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from gavel_py.errors import Fault, InputError, nearest

__all__ = ["csv_rows", "json_document", "json_lines", "lines", "suffix_of", "yaml_document"]

LONGEST_LINE = 1 << 20
"""Characters in one line of a line-based file. A longer one is a broken file, and reading it whole helps nobody."""

MOST_YAML_NODES = 2_000_000
"""Entries of one YAML document; a few lines of nested aliases can stand for billions."""


def suffix_of(path: str | Path, known: Mapping[str, object]) -> str:
    """Return the file's suffix in lower case, or raise when it is none of `known`."""
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise InputError(Fault(str(path), "", f"cannot tell the format from the name; it must end in {', '.join(known)}"))
    return suffix


def lines(path: str | Path) -> Iterator[str]:
    """Yield the file's lines, ends included, as UTF-8 text; a line beyond `LONGEST_LINE` is a fault."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    _fail(path, number, f"the line is longer than {LONGEST_LINE:,} characters")
                yield line
    except UnicodeDecodeError as error:
        raise InputError(Fault(str(path), "", f"is not UTF-8 text (byte {error.start}: {error.reason})")) from None
    except OSError as error:
        raise InputError(Fault(str(path), "", f"cannot be read: {error.strerror or error}")) from None


def csv_rows(path: str | Path, required: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield ("file, line n", {column: cell}) for each row of a CSV file with a header; empty cells are left out."""
    reader = csv.reader(_without_nul(path), strict=True)
    header: list[str] | None = None
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            _fail(path, max(start, reader.line_num), f"is not valid CSV: {error}")
        if row is None:
            break
        if not any(cell.strip() for cell in row):
            continue
        if header is None:
            header = _checked_header(path, start, row, required)
        elif len(row) != len(header):
            _fail(path, start, f"has {len(row)} fields, the header names {len(header)}")
        else:
            yield f"{path}, line {start}", {k: c.strip() for k, c in zip(header, row, strict=True) if c.strip()}
    if header is None:
        raise InputError(Fault(str(path), "", "is empty; a header line with column names is needed"))


def _checked_header(path: str | Path, number: int, row: list[str], required: tuple[str, ...]) -> list[str]:
    header = [cell.strip() for cell in row]
    where = f"{path}, line {number}"
    faults = [Fault(where, "", f"column {c!r} is named twice") for c in sorted({c for c in header if header.count(c) > 1})]
    faults += [Fault(where, "", f"column {c!r} is missing{nearest(c, header)}") for c in required if c not in header]
    InputError.raise_any(faults)
    return header


def _without_nul(path: str | Path) -> Iterator[str]:
    for number, line in enumerate(lines(path), 1):
        if "\0" in line:
            _fail(path, number, "contains a NUL character; is this a text file?")
        yield line


def json_document(path: str | Path) -> Any:
    """Return the JSON document in the file; a key that stands twice in one object is a fault."""
    return _parse_json(path, "".join(_whole(path)), 1)


def json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield ("file, line n", document) for each non-empty line of a JSON Lines file."""
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            yield f"{path}, line {number}", _parse_json(path, line, number)


def _whole(path: str | Path) -> Iterator[str]:
    # A JSON document may legally stand in one line, so the limit on lines does not hold here.
    try:
        yield Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(Fault(str(path), "", f"is not UTF-8 text (byte {error.start}: {error.reason})")) from None
    except OSError as error:
        raise InputError(Fault(str(path), "", f"cannot be read: {error.strerror or error}")) from None


def _parse_json(path: str | Path, text: str, first_line: int) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        _fail(path, first_line + error.lineno - 1, f"is not valid JSON: {error.msg} (column {error.colno})")
    except RecursionError:
        _fail(path, first_line, "is nested too deeply to be a job set, cluster or profile")
    except ValueError as error:
        _fail(path, first_line, str(error))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return result


def yaml_document(path: str | Path) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """Return the YAML document and, for each path into it such as ("nodes", 3), the line where it starts."""
    import yaml

    text = "".join(lines(path))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        places: dict[tuple[str | int, ...], int] = {}
        _walk_yaml(path, node, (), places)
        return (None if node is None else loader.construct_document(node)), places
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _fail(path, mark.line + 1 if mark else 1, f"is not valid YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        raise InputError(Fault(str(path), "", f"is not valid YAML: {error}")) from None
    except (RecursionError, ValueError) as error:
        raise InputError(Fault(str(path), "", f"is not valid YAML: {error}")) from None
    finally:
        loader.dispose()


def _walk_yaml(path: str | Path, node: Any, place: tuple[str | int, ...], places: dict[tuple[str | int, ...], int]) -> None:
    if node is None or place in places:
        return
    if len(places) == MOST_YAML_NODES:
        _fail(path, node.start_mark.line + 1, f"has more than {MOST_YAML_NODES:,} entries, counting what aliases repeat")
    places[place] = node.start_mark.line + 1
    if node.id == "sequence":
        for index, child in enumerate(node.value):
            _walk_yaml(path, child, (*place, index), places)
    elif node.id == "mapping":
        for key, child in node.value:
            inner = (*place, str(key.value))
            if inner in places:
                _fail(path, key.start_mark.line + 1, f"key {key.value!r} stands twice in one mapping")
            _walk_yaml(path, child, inner, places)


def _fail(path: str | Path, number: int, problem: str) -> NoReturn:
    raise InputError(Fault(f"{path}, line {number}", "", problem)) from None
