"""What readers of published pages share: their interface, Markdown tables, cells, and results merged to one throughput."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gavel_py.errors import Fault, InputError, decimal_hint, refuse
from gavel_py.io import reading
from gavel_py.io.records import number_of
from gavel_py.problem.accelerators import AcceleratorTable

Placed = tuple[str, dict[str, Any]]
"""Place for messages and fields of a `Measurement`."""


@dataclass(frozen=True)
class ProfileFormat:
    """A format of published throughputs.

    read: Yields the measurements of a file; several: what represents several results of the same entry, the first or the median.
    """

    read: Callable[[Path], Iterable[Placed]]
    several: Literal["first", "median"] = "first"

    def merged(self, placed: Iterable[Placed]) -> list[Placed]:
        """Return one measurement for each entry."""
        entries: dict[tuple[Any, ...], list[Placed]] = {}
        for where, fields in placed:
            key = tuple(fields[name] for name in ("job_type", "num_gpus", "accelerator"))
            entries.setdefault(key, []).append((where, fields))
        return [each[0] if self.several == "first" else _median(each) for each in entries.values()]


def _median(results: Sequence[Placed]) -> Placed:
    """Return the median result; of 1/min, one over the median time."""
    where, first = results[0]
    if len(results) == 1:
        return where, first
    speeds = [fields["steps_per_second"] for _, fields in results]
    by_time = first.get("unit") == "1/min"
    median = 1 / statistics.median(1 / speed for speed in speeds) if by_time else statistics.median(speeds)
    sources = {fields["source"] for _, fields in results}
    which = "median of {} results" + (", the first: {}" if len(sources) > 1 else ": {}")
    return where, first | {"steps_per_second": median, "source": which.format(len(results), first["source"])}


def each_row(rows: Iterable[tuple[str, Mapping[str, str]]], fields_of: Callable[..., Iterable[dict[str, Any]]]) -> list[Placed]:
    """Return the measurements of all rows; `fields_of` yields those of one row. Raises `InputError` with the faults of all rows."""
    placed: list[Placed] = []
    faults: list[Fault] = []
    for where, row in rows:
        try:
            placed += [(where, fields) for fields in fields_of(row)]
        except InputError as error:
            faults += [Fault(where, fault.field, fault.problem) for fault in error.faults]
    InputError.raise_any(faults)
    return placed


def text(row: Mapping[str, str], field: str) -> str:
    """Return the text of a cell. Raises `InputError` if it is missing or empty."""
    value = row.get(field, "")
    refuse("", (not value, field, "is required"))
    return str(value)


def positive(row: Mapping[str, str], field: str) -> float:
    """Return the number above 0 in a cell, of "661 (624)" or "661[^note]" the first one. Raises `InputError` for anything else."""
    value = text(row, field)
    number = number_of(re.sub(r"\s*(\(.*\)|\[\^.*\])\s*$", "", value))
    if not 0 < number < math.inf:
        raise InputError(Fault("", field, f"must be a finite number above 0, found {value!r}{decimal_hint(value)}"))
    return number


def whole(row: Mapping[str, str], field: str) -> int:
    """Return the whole number above 0 in a cell; otherwise as `positive`."""
    number = positive(row, field)
    if not number.is_integer():
        raise InputError(Fault("", field, f"must be a whole number, found {row[field]!r}"))
    return int(number)


def accelerator_name(name: str) -> str:
    """Return the name of an accelerator in the table of specifications, or the name as given with dashes if it is not there."""
    spec = AcceleratorTable.builtin().find(name)
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") if spec is None else spec.name


def named(model: str, *parts: str) -> str:
    """Return the name of a job type, "model (part, part)", without empty parts."""
    given = [part for part in parts if part]
    return f"{model} ({', '.join(given)})" if given else model


def markdown_rows(path: Path, required: Collection[str]) -> Iterator[tuple[str, dict[int, str], dict[str, str]]]:
    """Yield (place, {level: heading above}, {column: cell}) for each row of the tables that have the required columns."""
    headings: dict[int, str] = {}
    header: list[str] | None = None
    for number, line in reading.numbered_lines(path):
        where, stripped = f"{path}, line {number}", line.strip()
        if match := re.match(r"(#+)\s+(.*)", stripped):
            level = len(match[1])
            headings = {above: each for above, each in headings.items() if above < level} | {level: match[2].strip()}
        if not stripped.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in stripped.strip("|").split("|")]
        if header is None:
            header = cells
        elif set("".join(cells)) <= set("-: "):
            continue  # the line below the header
        elif set(required) <= set(header):
            refuse(where, (len(cells) != len(header), "", f"has {len(cells)} cells, but the header of the table has {len(header)}"))
            yield where, headings, dict(zip(header, cells, strict=True))
