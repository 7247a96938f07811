"""The cells of a sweep that failed: what they were asked for, and the error of each."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from gavel_py.runs.cell_tables import check_schema
from gavel_py.sqlite_files import BUSY_SECONDS, clear_errors

__all__ = ["read_failures"]

SQLITE = b"SQLite format 3\0"
SELECT = "SELECT grid.labels, cells.error FROM grid JOIN cells USING (key) WHERE cells.status = 'failed' ORDER BY grid.place"


def read_failures(path: str | Path) -> list[tuple[Mapping[str, str | float | None], str]]:
    """Return (labels, error) of each cell that failed in the file of a sweep, in the order of its grid; none of other files.

    Raises `InputError` for a file that cannot be read, and one that is not of a sweep or of another version.
    """
    with clear_errors(str(path)):
        with open(path, "rb") as file:
            if file.read(len(SQLITE)) != SQLITE:
                return []
        # rw falls back to reading only; it is needed to clean up after a sweep that was killed.
        address = f"{Path(path).absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
            check_schema(str(path), connection, make=False)
            return [(json.loads(labels), str(error)) for labels, error in connection.execute(SELECT)]
