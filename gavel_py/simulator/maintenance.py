"""Windows of maintenance from a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from gavel_py.errors import Fault, InputError, decimal_hint, nearest
from gavel_py.io import reading
from gavel_py.io.records import number_of
from gavel_py.simulator.events import NodeWindow

__all__ = ["read_maintenance"]

COLUMNS = ("node", "start_seconds", "end_seconds")


def read_maintenance(path: str | Path) -> tuple[NodeWindow, ...]:
    """Read windows from CSV with the columns node, start_seconds and end_seconds, on the clock of the trace.

    Raises `InputError` with all faults of the file, each with its line and field.
    """
    windows: list[NodeWindow] = []
    faults: list[Fault] = []
    for where, row in reading.csv_rows(path, required=COLUMNS):
        found = _faults(where, row)
        faults += found
        if not found:
            windows.append(NodeWindow(row["node"], float(row["start_seconds"]), float(row["end_seconds"])))
    InputError.raise_any(faults)
    return tuple(windows)


def _faults(where: str, row: Mapping[str, str]) -> list[Fault]:
    faults = [Fault(where, name, f"is not known{nearest(name, COLUMNS)}") for name in row if name not in COLUMNS]
    faults += [Fault(where, name, "is required") for name in COLUMNS if name not in row]
    times = {name: _number(row[name]) for name in COLUMNS[1:] if name in row}
    for name, value in times.items():
        if value is None:
            faults.append(Fault(where, name, f"must be a finite number of seconds, found {row[name]!r}{decimal_hint(row[name])}"))
    start, end = times.get("start_seconds"), times.get("end_seconds")
    if start is not None and end is not None and not start < end:
        faults.append(Fault(where, "end_seconds", f"must be after start_seconds ({start:g}), found {end:g}"))
    return faults


def _number(text: str) -> float | None:
    value = number_of(text)
    return value if math.isfinite(value) else None
