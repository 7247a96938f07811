"""Tables of text, line by line: a broken line is told and passed over, which a file of one's own would not be."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.io import reading
from gavel_py.workloads.intake import Intake

__all__ = ["split", "table_rows"]

Rows = Iterator[tuple[str, dict[str, str]]]


def table_rows(
    path: str | Path,
    intake: Intake,
    *,
    required: Collection[str] = (),
    columns: Sequence[str] | None = None,
    separator: str = ",",
) -> Rows:
    """Yield ("file, line n", {column: cell}) for each sound line; the others go to `intake` as broken.

    The first line names the columns, unless `columns` does. Raises `InputError` when a required column is missing.
    """
    names = columns
    for number, line in reading.numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            cells = split(line, separator)
            if names is None:
                names = _header(where, cells, required)
                continue
            if len(cells) != len(names):
                by = "the header names" if columns is None else "the table has"
                raise InputError(Fault("", "", f"has {len(cells)} fields, {by} {len(names)}"))
        except InputError as error:
            if names is None:
                raise
            intake.broken(where, *error.faults)
        else:
            yield where, dict(zip(names, cells, strict=True))
    if names is None:
        raise InputError(Fault(str(path), "", "is empty; a header line with column names is needed"))


def split(line: str, separator: str) -> list[str]:
    """Return the cells of a line, without the blanks around them."""
    if "\0" in line:
        raise InputError(Fault("", "", "contains a NUL character; is this a text file?"))
    if separator != "," or '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        (cells,) = csv.reader([line], strict=True)
    except csv.Error as error:
        raise InputError(Fault("", "", f"is not valid CSV: {error}")) from None
    return [cell.strip() for cell in cells]


def _header(where: str, names: Sequence[str], required: Collection[str]) -> Sequence[str]:
    faults = [Fault(where, "", f"column {name!r} is named twice") for name in sorted({n for n in names if names.count(n) > 1})]
    faults += [Fault(where, "", f"column {name!r} is missing{nearest(name, names)}") for name in required if name not in names]
    InputError.raise_any(faults)
    return names
