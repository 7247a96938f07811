"""What the SQLite file of a sweep has of its grid: the runs that are done, and the errors of those that failed."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from gavel_py.errors import Fault, InputError
from gavel_py.io.sqlite import BUSY_SECONDS, clear_errors
from gavel_py.report.runs.cell_tables import check_schema
from gavel_py.report.runs.documents import DAMAGED, labels_from, run_from
from gavel_py.report.runs.run import Labels, Run

__all__ = ["stored_failures", "stored_runs"]

Made = TypeVar("Made")

RUNS = """SELECT grid.labels, cells.metrics, cells.run
    FROM grid JOIN cells USING (key) WHERE cells.status = 'done' ORDER BY grid.place"""
FAILURES = """SELECT grid.labels, cells.error
    FROM grid JOIN cells USING (key) WHERE cells.status = 'failed' ORDER BY grid.place"""


def stored_runs(path: str | Path) -> list[Run]:
    """Return the finished runs of the grid; raises `InputError`."""
    return _found(path, RUNS, _run)


def stored_failures(path: str | Path) -> list[tuple[Labels, str]]:
    """Return (labels, error) of the cells of the grid that failed; raises `InputError`."""
    return _found(path, FAILURES, lambda labels, error: (labels_from(json.loads(labels)), str(error)))


def _found(path: str | Path, statement: str, make: Callable[..., Made]) -> list[Made]:
    """What is made of each row."""
    # rw falls back to reading only; it is needed to clean up after a sweep that was killed.
    address = f"{Path(path).absolute().as_uri()}?mode=rw"
    with clear_errors(str(path)), closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        check_schema(str(path), connection, make=False)
        rows: list[tuple[Any, ...]] = connection.execute(statement).fetchall()
    try:
        return [make(*row) for row in rows]
    except (*DAMAGED, zlib.error) as error:
        raise InputError(Fault(str(path), "", f"is damaged: {type(error).__name__} {error}")) from None


def _run(labels: str, metrics: str, run: bytes) -> Run:
    return run_from(json.loads(zlib.decompress(run)) | {"labels": json.loads(labels), "metrics": json.loads(metrics)})
