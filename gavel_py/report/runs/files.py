"""Files of runs: those of sweeps, and JSON files that single runs are written to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading
from gavel_py.io.writing import write_whole
from gavel_py.report.runs.documents import DAMAGED, document_of, run_from
from gavel_py.report.runs.run import Labels, Run
from gavel_py.report.runs.stored import stored_failures, stored_runs

__all__ = ["read_failures", "read_runs", "write_runs"]

FORMAT, VERSION = "gavel-py runs", 1
SQLITE = b"SQLite format 3\0"


def read_runs(path: str | Path) -> list[Run]:
    """Return the runs in a file: the finished cells of the store of a sweep, in the order of its grid, or what `write_runs` wrote.

    Of a store, they are those of the grid that was begun last; it may still be growing. Raises `InputError` for a file that is
    damaged, foreign or of another version.
    """
    return stored_runs(path) if _is_store(path) else _from_document(path, reading.json_document(path))


def read_failures(path: str | Path) -> list[tuple[Labels, str]]:
    """Return (labels, error) of each cell that failed in the store of a sweep, in the order of its grid; none of other files.

    Raises `InputError` for a file that cannot be read, and for a store that is damaged, foreign or of another version.
    """
    return stored_failures(path) if _is_store(path) else []


def write_runs(path: str | Path, runs: Iterable[Run]) -> None:
    """Write runs to a JSON file, whole or not at all; raises `InputError` where it cannot be written."""
    document = {"format": FORMAT, "version": VERSION, "runs": [document_of(run) for run in runs]}
    write_whole(path, json.dumps(document, allow_nan=False).encode() + b"\n")


def _is_store(path: str | Path) -> bool:
    """Whether a file is an SQLite database, as those of sweeps are."""
    try:
        with open(path, "rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError as error:
        raise InputError(Fault(str(path), "", f"cannot be read: {error.strerror or error}")) from None


def _from_document(path: str | Path, document: Any) -> list[Run]:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(Fault(str(path), "", "holds no runs: neither of gavel sweep nor of gavel simulate --run-out"))
    if document.get("version") != VERSION:
        found = f"has version {document.get('version')!r}, and this gavel-py reads version {VERSION}"
        raise InputError(Fault(str(path), "", f"{found}; another one has written it"))
    try:
        return [run_from(each) for each in document["runs"]]
    except DAMAGED as error:
        raise InputError(Fault(str(path), "", f"is damaged or was changed by hand: {type(error).__name__} {error}")) from None
