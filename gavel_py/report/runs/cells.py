"""The SQLite file of a sweep: each cell that has come to an end, by its content; and the grid that was asked for last."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from gavel_py.io.sqlite import BUSY_SECONDS, clear_errors
from gavel_py.report.runs.cell_tables import check_schema
from gavel_py.report.runs.documents import document_of
from gavel_py.report.runs.run import Labels, Run

__all__ = ["CellStore", "GridPlace", "Status", "StoredCell", "packed"]

Status = Literal["done", "failed"]

INSERT = """INSERT OR REPLACE INTO cells (key, content, status, error, attempts, seconds, session, metrics, run, jobs)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
SELECT = """SELECT grid.labels, cells.status, cells.error, cells.attempts, cells.seconds, cells.metrics
    FROM grid JOIN cells USING (key) ORDER BY grid.place"""


@dataclass(frozen=True)
class StoredCell:
    """A cell that has come to an end.

    key: of its content; content: what was played, as JSON; status: failed ones have an error; attempts: how often it was begun;
    seconds: what the last attempt took; metrics: numbers by name; run: the rest of its `Run`, as `packed` makes it;
    jobs: of a cell that others are compared with, what they need of each job.
    """

    key: str
    content: str
    status: Status
    error: str | None = None
    attempts: int = 1
    seconds: float = 0.0
    metrics: Mapping[str, float | None] | None = None
    run: bytes | None = None
    jobs: bytes | None = None


@dataclass(frozen=True)
class GridPlace:
    """A place of the grid: the key of its cell, and what it is called there."""

    key: str
    labels: Labels


def packed(run: Run) -> bytes:
    """Return a run without its labels and metrics, compressed."""
    document = document_of(run)
    del document["labels"], document["metrics"]
    return zlib.compress(json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


class CellStore:
    """The file, open for one sweep; `with` closes it. path: None keeps all in memory.

    What `add` was given is on the disk when it returns, and stays there if the process is killed; if it is killed before, the file
    is as it was. Raises `InputError` for a file that is foreign, damaged, or of another version, and where it cannot be written.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.where = "sweep store" if path is None else str(path)
        with clear_errors(self.where):
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            address = ":memory:" if path is None else f"{Path(path).absolute().as_uri()}?mode=rwc"
            # check_same_thread: the caller's business; isolation_level None: this module begins and commits.
            self._connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                with self._transaction():
                    check_schema(self.where, self._connection, make=True)
            except BaseException:
                self._connection.close()
                raise
        self._session = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def begin(self, spec: Any, versions: Mapping[str, str], begun: str, grid: Sequence[GridPlace]) -> None:
        """Note who sweeps now, and make this the grid that is shown; cells that are there stay, in it or not."""
        rows = [(place, each.key, json.dumps(dict(each.labels))) for place, each in enumerate(grid)]
        with clear_errors(self.where), self._transaction():
            values = (json.dumps(spec, default=str), json.dumps(dict(versions)), begun)
            statement = "INSERT INTO sessions (spec, versions, begun) VALUES (?, ?, ?)"
            self._session = self._connection.execute(statement, values).lastrowid or 0
            self._connection.execute("DELETE FROM grid")
            self._connection.executemany("INSERT INTO grid (place, key, labels) VALUES (?, ?, ?)", rows)

    def statuses(self) -> dict[str, str]:
        """Return {key: status} of all cells that have come to an end."""
        with clear_errors(self.where):
            return dict(self._connection.execute("SELECT key, status FROM cells"))

    def seconds(self) -> dict[str, float]:
        """Return {key: seconds} of all cells that are done."""
        with clear_errors(self.where):
            return dict(self._connection.execute("SELECT key, seconds FROM cells WHERE status = 'done'"))

    def jobs_of(self, key: str) -> bytes | None:
        """Return what a cell keeps of its jobs."""
        with clear_errors(self.where):
            found = self._connection.execute("SELECT jobs FROM cells WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def add(self, cells: Iterable[StoredCell]) -> None:
        """Store cells that have come to an end, all of them or, after an error, none."""
        rows = [
            (c.key, c.content, c.status, c.error, c.attempts, c.seconds, self._session, _json(c.metrics), c.run, c.jobs)
            for c in cells
        ]
        with clear_errors(self.where), self._transaction():
            self._connection.executemany(INSERT, rows)

    def rows(self) -> list[dict[str, str | float | None]]:
        """Return one row for each place of the grid whose cell has come to an end: labels, status, error, numbers."""
        with clear_errors(self.where):
            return [_row(*each) for each in self._connection.execute(SELECT)]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _row(
    labels: str, status: str, error: str | None, attempts: int, seconds: float, metrics: str | None
) -> dict[str, str | float | None]:
    told = {"status": status, "error": error, "attempts": attempts, "seconds": seconds}
    return {**json.loads(labels), **told, **(json.loads(metrics) if metrics else {})}


def _json(metrics: Mapping[str, float | None] | None) -> str | None:
    return None if metrics is None else json.dumps(dict(metrics), allow_nan=False)
