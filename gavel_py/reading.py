"""Reading the user's files: text with limits, CSV, JSON, JSON Lines and YAML, each fault with file and line."""

from __future__ import annotations

import csv
import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from gavel_py.errors import Fault, InputError, nearest

__all__ = [
    "csv_header",
    "csv_rows",
    "json_document",
    "json_line",
    "json_lines",
    "lines",
    "numbered_lines",
    "suffix_of",
    "yaml_document",
]

LONGEST_LINE = 1 << 20
"""Characters in one line of a line-based file. A longer one is a broken file, and reading it whole helps nobody."""

MOST_YAML_NODES = 2_000_000
"""Entries of one YAML document; a few lines of nested aliases can stand for billions."""

MOST_YAML_DEPTH = 100
TOO_DEEP = "is nested too deeply to be a job set, cluster or profile"


def suffix_of(path: str | Path, known: Mapping[str, object]) -> str:
    """Return the file's suffix in lower case, or raise when it is none of `known`."""
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise InputError(Fault(str(path), "", f"cannot tell the format from the name; it must end in {', '.join(known)}"))
    return suffix


def lines(path: str | Path) -> Generator[str, None, None]:
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


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its end) for each line that is not blank, and close the file whatever happens."""
    with closing(lines(path)) as text:
        for number, line in enumerate(text, 1):
            if line.strip():
                yield number, line.rstrip("\r\n")


def csv_rows(path: str | Path, required: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield ("file, line n", {column: cell}) for each row of a CSV file with a header; empty cells are left out."""
    header: list[str] | None = None
    with closing(_cells(path)) as rows:
        for number, row in rows:
            if header is None:
                header = _checked_header(path, number, row, required)
            elif len(row) != len(header):
                _fail(path, number, f"has {len(row)} fields, the header names {len(header)}")
            else:
                yield f"{path}, line {number}", {k: c for k, c in zip(header, row, strict=True) if c}
    if header is None:
        raise InputError(Fault(str(path), "", "is empty; a header line with column names is needed"))


def csv_header(path: str | Path) -> list[str]:
    """Return the cells of the first row that is not blank, none if there is no such row."""
    with closing(_cells(path)) as rows:
        return next(rows, (0, []))[1]


def _cells(path: str | Path) -> Generator[tuple[int, list[str]], None, None]:
    """Yield (number of its first line, cells without the blanks around them) for each row that is not blank."""
    with closing(_without_nul(path)) as text:
        reader = csv.reader(text, strict=True)
        while True:
            start = reader.line_num + 1
            try:
                row = [cell.strip() for cell in next(reader)]
            except StopIteration:
                return
            except csv.Error as error:
                _fail(path, start, f"is not valid CSV: {error}")
            if any(row):
                yield start, row


def _checked_header(path: str | Path, number: int, row: list[str], required: tuple[str, ...]) -> list[str]:
    where = f"{path}, line {number}"
    faults = [Fault(where, "", f"column {index} has no name") for index, name in enumerate(row, 1) if not name]
    faults += [Fault(where, "", f"column {c!r} is named twice") for c in sorted({c for c in row if c and row.count(c) > 1})]
    faults += [Fault(where, "", f"column {c!r} is missing{nearest(c, row)}") for c in required if c not in row]
    InputError.raise_any(faults)
    return row


def _without_nul(path: str | Path) -> Generator[str, None, None]:
    with closing(lines(path)) as text:
        for number, line in enumerate(text, 1):
            if "\0" in line:
                _fail(path, number, "contains a NUL character; is this a text file?")
            yield line


def json_document(path: str | Path) -> Any:
    """Return the JSON document in the file; a key that stands twice in one object is a fault."""
    return _parse_json(path, "".join(_whole(path)), 1)


def json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield ("file, line n", document) for each non-empty line of a JSON Lines file."""
    for number, line in numbered_lines(path):
        yield f"{path}, line {number}", _parse_json(path, line, number)


def json_line(path: str | Path, line: str, number: int) -> Any:
    """Return the document in one line of a file, which stands there as this number. Raises `InputError`."""
    return _parse_json(path, line, number)


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
        _fail(path, first_line, TOO_DEEP)
    except _RepeatedKeyError as error:
        # The parser does not say where it is; in JSON Lines the line is known all the same.
        raise InputError(Fault(f"{path}, line {first_line}" if first_line > 1 else str(path), "", str(error))) from None
    except ValueError:
        _fail(path, first_line, "has a number of too many digits")


class _RepeatedKeyError(Exception):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(f"key {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return result


def yaml_document(path: str | Path) -> tuple[Any, dict[tuple[str, ...], int]]:
    """Return the YAML document and the line of each entry, by its way from the top in words, as ("nodes", "3")."""
    import yaml

    text = "".join(lines(path))
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_depth(path, yaml.parse(text, kind))
        loader = kind(text)
        try:
            node = loader.get_single_node()
            places: dict[tuple[str, ...], int] = {}
            _walk_yaml(path, node, (), 1, places)
            return (None if node is None else loader.construct_document(node)), places
        finally:
            loader.dispose()
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _fail(path, mark.line + 1 if mark else 1, f"is not valid YAML: {error.problem or error.context}")
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        _fail(path, number, f"is not valid YAML: character number {error.character:#x} is not allowed")
    except (RecursionError, ValueError) as error:
        raise InputError(Fault(str(path), "", f"is not valid YAML: {error}")) from None


def _check_depth(path: str | Path, events: Iterator[Any]) -> None:
    """Refuse nesting that would exhaust the stack of the parser, which is not Python's and ends the process."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > MOST_YAML_DEPTH:
            _fail(path, event.start_mark.line + 1, TOO_DEEP)


def _walk_yaml(path: str | Path, node: Any, place: tuple[str, ...], line: int, places: dict[tuple[str, ...], int]) -> None:
    if node is None or place in places:
        return
    # An alias may stand for what contains it; nothing that deep was written out.
    if len(places) == MOST_YAML_NODES or len(place) > MOST_YAML_DEPTH:
        _fail(path, line, f"has more than {MOST_YAML_NODES:,} entries or {MOST_YAML_DEPTH} levels, counting what aliases repeat")
    places[place] = line
    if node.id == "sequence":
        for index, child in enumerate(node.value):
            _walk_yaml(path, child, (*place, str(index)), child.start_mark.line + 1, places)
    elif node.id == "mapping":
        for key, child in node.value:
            inner, at = (*place, str(key.value)), key.start_mark.line + 1
            if inner in places:
                _fail(path, at, f"key {key.value!r} stands twice in one mapping")
            _walk_yaml(path, child, inner, at, places)


def _fail(path: str | Path, number: int, problem: str) -> NoReturn:
    raise InputError(Fault(f"{path}, line {number}", "", problem)) from None
