"""Files of runs: the SQLite file of a sweep, written and read, and JSON files that single runs are written to.

`CellStore` stores each cell that has come to an end, by its content, and the grid that was asked for last. `stored_runs` and
`stored_failures` read what the file has of its grid: the runs that are done, and the errors of cells that failed.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading
from gavel_py.io.writing import BUSY_SECONDS, clear_errors, write_whole
from gavel_py.report.runs.run import DAMAGED, Labels, Run, document_of, labels_from, run_from

APPLICATION_ID = 0x6776_7377
"""Marks the file as ours; any other number in an SQLite file that holds tables is somebody else's."""

SCHEMA_VERSION = 1

SCHEMA = (
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        spec TEXT NOT NULL,
        versions TEXT NOT NULL,
        begun TEXT NOT NULL
    )""",
    """CREATE TABLE cells (
        key TEXT PRIMARY KEY,
        content TEXT NOT NULL,
        status TEXT NOT NULL,
        error TEXT,
        attempts INTEGER NOT NULL,
        seconds REAL NOT NULL,
        session INTEGER NOT NULL REFERENCES sessions (id),
        metrics TEXT,
        run BLOB,
        jobs BLOB
    )""",
    """CREATE TABLE grid (
        place INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        labels TEXT NOT NULL
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def check_schema(where: str, connection: sqlite3.Connection, *, make: bool) -> None:
    """Raise `InputError` unless the tables are those of this version; make: in an empty file, make them."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if make and application == 0 and tables == 0:
        for statement in SCHEMA:
            connection.execute(statement)
    elif application != APPLICATION_ID:
        raise InputError(Fault(where, "", "is an SQLite database, but not that of a sweep"))
    elif version != SCHEMA_VERSION:
        text = f"was written by another version of gavel-py (schema {version}, this one knows {SCHEMA_VERSION})"
        raise InputError(Fault(where, "", f"{text}; read it with that one, or sweep into another file"))


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
