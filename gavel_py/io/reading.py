"""Reading of CSV, JSON, JSON Lines and YAML files, with limits, and with the file and line of each fault."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from gavel_py.errors import Fault, InputError, faults_among, faults_from, nearest, refuse, unknown_names
from gavel_py.io.names import repeated

LONGEST_LINE = 1 << 20
"""Maximum number of characters in a line of a line-based file. A longer line indicates a broken file and would only fill memory."""

MAX_YAML_NODES = 2_000_000
"""Maximum number of entries of a YAML document; a few lines of nested aliases could expand to billions."""

MAX_DEPTH = 100
TOO_DEEP = "is nested too deeply for a job set, cluster or profile"


def suffix_of(path: str | Path, known: Mapping[str, object]) -> str:
    """Return the suffix of the file in lower case; raises `InputError` unless it is one of `known`."""
    suffix = Path(path).suffix.lower()
    refuse(str(path), (suffix not in known, "", f"cannot determine the format from the name; it must end in {', '.join(known)}"))
    return suffix


def lines(path: str | Path) -> Generator[str, None, None]:
    """Yield the lines of a UTF-8 file with their line ends; a line longer than `LONGEST_LINE` is a fault."""
    try:
        with faults_from(str(path), "cannot be read", OSError), open(path, encoding="utf-8-sig", newline="") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    _fail(path, number, f"the line is longer than {LONGEST_LINE:,} characters")
                yield line
    except UnicodeDecodeError:
        _fail_undecodable(path)


def _fail_undecodable(path: str | Path) -> NoReturn:
    """Raise the fault of a file that is not UTF-8, with the line of the first invalid byte, which `UnicodeDecodeError` lacks."""
    if Path(path).is_file():  # a pipe can be read only once
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    _fail(path, number, f"is not UTF-8 text (byte {error.start} of the line: {error.reason})")
    raise InputError(Fault(str(path), "", "is not UTF-8 text")) from None


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its line end) for each line that is not blank."""
    with closing(lines(path)) as text:
        for number, line in enumerate(text, 1):
            if line.strip():
                yield number, line.rstrip("\r\n")


def csv_rows(path: str | Path, required: tuple[str, ...] = (), known: Iterable[str] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield ("file, line n", {column: cell}) for each row of a CSV file with a header, without empty cells."""
    header: list[str] | None = None
    with closing(_cells(path)) as rows:
        for number, row in rows:
            if header is None:
                header = checked_header(f"{path}, line {number}", row, required, known)
            elif len(row) != len(header):
                _fail(path, number, f"has {len(row)} {'field' if len(row) == 1 else 'fields'}, but the header has {len(header)}")
            else:
                yield f"{path}, line {number}", {k: c for k, c in zip(header, row, strict=True) if c}
    refuse(str(path), (header is None, "", "is empty; a header line with column names is required"))


def known_csv_rows(path: str | Path, required: tuple[str, ...], known: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file as `csv_rows` does. Raises `InputError` for columns that are not `known`."""
    where, header = csv_header(path)
    InputError.raise_any(unknown_names(where, "", filter(None, header), known, noun="column"))
    return csv_rows(path, required, known)


def entries(path: str | Path, key: str, required: tuple[str, ...], known: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (place, fields) of the records of a file: rows of a CSV file, or the list under `key` of a YAML or JSON file."""
    readers: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
        ".csv": lambda: known_csv_rows(path, required, known),
        **dict.fromkeys((".yaml", ".yml", ".json"), lambda: document_rows(path, key)),
    }
    return readers[suffix_of(path, readers)]()


def document_rows(path: str | Path, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (place, entry) of a YAML or JSON file that is a list, or a mapping with the list under `key` and nothing else."""
    file = document(path)
    is_mapping = isinstance(file.value, Mapping)
    rows = file.value.get(key) if is_mapping else file.value
    rule = f'must be a list of {key}, or an object with the list under "{key}"'
    refuse(file.line(key), (not isinstance(rows, list), "", rule))
    above = (key,) if is_mapping else ()
    others = [name for name in file.value if name != key] if is_mapping else []
    InputError.raise_any([Fault(file.line(name), "", f'key {name!r} is not known; the only key is "{key}"') for name in others])
    for index, row in enumerate(rows):
        yield file.line(*above, index) + (f", entry {index + 1}" if file.is_json else ""), row


def csv_header(path: str | Path) -> tuple[str, list[str]]:
    """Return ("file, line n", cells) of the first row that is not blank; no cells if there is none."""
    with closing(_cells(path)) as rows:
        number, cells = next(rows, (1, []))
    return f"{path}, line {number}", cells


def _cells(path: str | Path) -> Generator[tuple[int, list[str]], None, None]:
    """Yield (number of its first line, stripped cells) for each row that is not blank."""
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


def checked_header(
    where: str, row: list[str], required: Iterable[str], known: Iterable[str] = (), *, nameless: bool = False
) -> list[str]:
    """Return the column names of a table. Raises `InputError`. known: for messages; nameless: whether column names may be empty."""
    faults = faults_among(
        where,
        *((not name and not nameless, "", f"column {i} has no name") for i, name in enumerate(row, 1)),
        *((name or nameless, "", f"column {name!r} appears twice") for name in sorted(repeated(row))),
    )
    hints = {c: hint if "did you mean" in (hint := nearest(c, row)) else nearest("", [*required, *known]) for c in required}
    missing = [Fault(where, "", f"column {name!r} is missing{hint}") for name, hint in hints.items() if name not in row]
    if missing and len(row) == 1 and re.search(r"[;\t]", row[0]):
        missing = [Fault(where, "", f"found one column, {row[0]!r}; cells must be separated by commas")]
    InputError.raise_any(faults + missing)
    return row


def _without_nul(path: str | Path) -> Generator[str, None, None]:
    with closing(lines(path)) as text:
        for number, line in enumerate(text, 1):
            if "\0" in line:
                _fail(path, number, "contains a NUL character; is this a text file?")
            yield line


@dataclass(frozen=True)
class Document:
    """The content of a YAML or JSON file, with the line of each entry.

    value: the parsed content; lines: maps a depth to {path of keys and positions, as text: line} of the entries down to that
    depth; is_json: whether places include the path, since JSON is often written in a single line.
    """

    path: str
    value: Any
    lines: Callable[[int], Mapping[tuple[str, ...], int]]
    is_json: bool

    def where(self, *way: str | int) -> str:
        """Return the place of an entry with these keys and positions: "a.yaml, line 7", or "a.json, line 7, nodes[2]"."""
        pointer = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in way).lstrip(".")
        return self.line(*way) + (f", {pointer}" if self.is_json and pointer else "")

    def line(self, *way: str | int) -> str:
        """Return "file, line n" of an entry, or if it does not exist, of the innermost entry that would contain it."""
        names, lines = tuple(map(str, way)), self.lines(len(way))
        number = next((lines[names[:n]] for n in range(len(names), -1, -1) if names[:n] in lines), 1)
        return f"{self.path}, line {number}"


def document(path: str | Path) -> Document:
    """Return the YAML or JSON document in a file, depending on its suffix."""
    if suffix_of(path, {".yaml": 1, ".yml": 1, ".json": 1}) != ".json":
        value, places = yaml_document(path)
        return Document(str(path), value, lambda depth: places, is_json=False)  # noqa: ARG005
    text = text_of(path)
    return Document(str(path), parse_json(path, text, 1), cache(partial(_json_places, path, text)), is_json=True)


def json_document(path: str | Path) -> Any:
    """Return the JSON document in a file; a repeated key in an object is a fault."""
    return parse_json(path, text_of(path), 1)


def json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield ("file, line n", document) for each non-empty line of a JSON Lines file."""
    for number, line in numbered_lines(path):
        yield f"{path}, line {number}", parse_json(path, line, number)


def csv_or_json_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, row) of a CSV file, or of a JSON Lines file, which begins with "{"."""
    _, first = next(numbered_lines(path), (1, ""))
    return json_lines(path) if first.lstrip().startswith("{") else csv_rows(path)


def text_of(path: str | Path) -> str:
    """Return the text of a file, without a limit on lines, since a JSON document may be a single one; raises `InputError`."""
    try:
        with faults_from(str(path), "cannot be read", OSError):
            return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        _fail_undecodable(path)


def parse_json(path: str | Path, text: str, first_line: int) -> Any:
    """Return the JSON document in a part of a file that begins at this line; raises `InputError`."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        _fail(path, first_line + error.lineno - 1, f"is not valid JSON: {error.msg} (column {error.colno})")
    except RecursionError:
        _fail(path, first_line, TOO_DEEP)
    except _RepeatedKeyError as error:
        _json_places(path, text, MAX_DEPTH, first_line)  # raises the fault with the line of the key
        _fail(path, first_line, str(error))
    except ValueError:
        _fail(path, first_line, "has a number with too many digits")


class _RepeatedKeyError(Exception):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(_repeated_key(next(n for n in names if names.count(n) > 1)))
    return result


def _repeated_key(name: str) -> str:
    return f"key {name!r} appears twice in one object"


_BLANK = re.compile(r"[ \t\n\r,:]*")


def _json_places(path: str | Path, text: str, depth: int, line: int = 1) -> dict[tuple[str, ...], int]:
    """Return {path of keys and positions: line} of the entries of a JSON document down to this depth.

    The text is valid JSON, so the only possible fault is a repeated key. line: the number of its first line.
    """
    decoder = json.JSONDecoder()
    places: dict[tuple[str, ...], int] = {}
    seen = 0

    def next_part(at: int) -> int:
        """Return the offset of the next key, value or closing bracket, and count lines up to it."""
        nonlocal line, seen
        found = _BLANK.match(text, at)
        at = found.end() if found else at
        line, seen = line + text.count("\n", seen, at), at
        return at

    def walk(at: int, keys: tuple[str, ...]) -> int:
        """Record the lines of the entries of a value, and return the offset of its end."""
        closing_bracket = {"[": "]", "{": "}"}.get(text[at])
        if closing_bracket is None or len(keys) == depth:
            return decoder.raw_decode(text, at)[1]
        is_object, number, at = text[at] == "{", 0, next_part(at + 1)
        while text[at] != closing_bracket:
            inner, begins = (*keys, str(number)), line
            if is_object:
                key, at = decoder.raw_decode(text, at)
                inner, at = (*keys, key), next_part(at)
                if inner in places:
                    _fail(path, begins, _repeated_key(key))
            places[inner] = begins
            at, number = next_part(walk(at, inner)), number + 1
        return at + 1

    start = next_part(0)
    places[()] = line
    walk(start, ())
    return places


def yaml_document(path: str | Path) -> tuple[Any, dict[tuple[str, ...], int]]:
    """Return the YAML document, and {path of keys and positions, such as ("nodes", "3"): line} of its entries.

    Keys are text. So are plain scalars such as `on`, `010`, `0x10`, `1_000`, `1:30`, `1.10` and dates: all but null, true, false,
    and numbers in the form in which Python prints them.
    """
    import yaml

    text = "".join(lines(path))
    try:
        with faults_from(str(path), "is not valid YAML", RecursionError, ValueError):
            _check_depth(path, yaml.parse(text, _yaml_loader()))
            loader = _yaml_loader()(text)
            try:
                node = loader.get_single_node()
                places: dict[tuple[str, ...], int] = {}
                _walk_yaml(path, node, (), 1, places)
                return (None if node is None else loader.construct_document(node)), places
            finally:
                loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or ""
        # The limit of the parser itself is 1,000 levels.
        _fail(path, mark.line + 1 if mark else 1, TOO_DEEP if "nesting depth" in problem else f"is not valid YAML: {problem}")
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        _fail(path, number, f"is not valid YAML: character number {error.character:#x} is not allowed")


_TAG = "tag:yaml.org,2002:"
_PLAIN = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+.0-9].*", "-+.0123456789"),
    ("merge", r"<<", "<"),
)
"""Plain scalars that are not text: tag, pattern and first characters. PyYAML by itself reads YAML 1.1, where `on` is true, 010 is
8, 1:30 is 90, 1_0 is 10, and 2024-01-01 is a date."""


@cache
def _yaml_loader() -> Any:
    """Return the class that reads YAML."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

        def construct_number(self, node: Any) -> int | float | str:
            """Return a number if Python prints it as this text, otherwise the text, so that a rack 1.10 is not 1.1."""
            text: str = self.construct_scalar(node)
            if re.fullmatch(r"[-+]?\.inf|\.nan", text.lower()):
                return float(text.replace(".", ""))
            for number_type in (int, float):
                with suppress(ValueError):
                    if str(number_type(text)) == text and math.isfinite(number_type(text)):
                        return number_type(text)
            return text

    for name, form, begins in _PLAIN:
        Loader.add_implicit_resolver(_TAG + name, re.compile(f"(?:{form})$"), [*begins, *([""] if name == "null" else [])])
    for name in ("int", "float"):
        Loader.add_constructor(_TAG + name, Loader.construct_number)
    return Loader


def _check_depth(path: str | Path, events: Iterator[Any]) -> None:
    """Raise `InputError` for nesting that would exhaust the C stack of the parser, which crashes the process."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > MAX_DEPTH:
            _fail(path, event.start_mark.line + 1, TOO_DEEP)


def _walk_yaml(path: str | Path, node: Any, place: tuple[str, ...], line: int, places: dict[tuple[str, ...], int]) -> None:
    if node is None or place in places:
        return
    # An alias may refer to an entry that contains it, which would nest forever.
    if len(places) == MAX_YAML_NODES or len(place) > MAX_DEPTH:
        _fail(path, line, f"has more than {MAX_YAML_NODES:,} entries or {MAX_DEPTH} levels, including those that aliases repeat")
    places[place] = line
    if node.id == "sequence":
        for index, child in enumerate(node.value):
            _walk_yaml(path, child, (*place, str(index)), child.start_mark.line + 1, places)
    elif node.id == "mapping":
        for key, child in node.value:
            if key.id == "scalar" and key.tag != _TAG + "merge":
                key.tag = _TAG + "str"  # keys are names, even if they look like numbers
            inner, at = (*place, str(key.value)), key.start_mark.line + 1
            if inner in places:
                _fail(path, at, f"key {key.value!r} appears twice in one mapping")
            _walk_yaml(path, child, inner, at, places)


def _fail(path: str | Path, number: int, problem: str) -> NoReturn:
    raise InputError(Fault(f"{path}, line {number}", "", problem)) from None
