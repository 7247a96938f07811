"""Files of runs: the SQLite store of a sweep and JSON files of single runs.

`CellStore` keeps every finished or failed cell under the checksum of its content, and the grid of the last sweep.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from gavel_py.errors import faults_from, refuse
from gavel_py.io import reading
from gavel_py.io.snapshots import DAMAGED
from gavel_py.io.writing import BUSY_SECONDS, file_errors_as_faults, write_atomic
from gavel_py.report.runs.run import Labels, Run, Runs, document_of, labels_from, run_from

APPLICATION_ID = 0x6776_7377
"""Identifies the stores of sweeps among other SQLite databases."""

SCHEMA_VERSION = 1

SCHEMA = (
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY, spec TEXT NOT NULL, versions TEXT NOT NULL, begun TEXT NOT NULL)",
    """CREATE TABLE cells (
        key TEXT PRIMARY KEY, content TEXT NOT NULL, status TEXT NOT NULL, error TEXT, attempts INTEGER NOT NULL,
        seconds REAL NOT NULL, session INTEGER NOT NULL REFERENCES sessions (id), metrics TEXT, run BLOB, jobs BLOB
    )""",
    "CREATE TABLE grid (place INTEGER PRIMARY KEY, key TEXT NOT NULL, labels TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def check_schema(where: str, connection: sqlite3.Connection, *, make: bool) -> None:
    """Raise `InputError` unless the database is a sweep store of this version; with `make`, create its tables in an empty one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if make and application == 0 and tables == 0:
        for statement in SCHEMA:
            connection.execute(statement)
    else:
        is_ours = application == APPLICATION_ID
        text = f"was written by another version of gavel-py (schema {version}, this one knows {SCHEMA_VERSION})"
        refuse(
            where,
            (not is_ours, "", "is an SQLite database, but not that of a sweep"),
            (is_ours and version != SCHEMA_VERSION, "", f"{text}; read it with that one, or sweep into another file"),
        )


Status = Literal["done", "failed"]
INSERT = """INSERT OR REPLACE INTO cells (key, content, status, error, attempts, seconds, session, metrics, run, jobs)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

SELECT = """SELECT grid.labels, cells.content, cells.status, cells.error, cells.attempts, cells.seconds, cells.metrics
    FROM grid JOIN cells USING (key) ORDER BY grid.place"""

PlaceRow = tuple[Any, ...]
"""A row of a query on the grid: labels and content of the cell as JSON, and further columns."""


def _counted_once(rows: Iterable[PlaceRow]) -> Iterator[tuple[Any, ...]]:
    """Yield rows with their labels read, without a seed where none enters, and then only the first of equal labels.

    Earlier stores have a place for each seed of such a cell.
    """
    seen = set[tuple[Any, ...]]()
    for text, content, *columns in rows:
        labels = json.loads(text)
        if "seed" in labels and json.loads(content).get("seed", labels["seed"]) is None:
            labels["seed"] = None
            if tuple(labels.items()) in seen:
                continue
            seen.add(tuple(labels.items()))
        yield labels, *columns


@dataclass(frozen=True)
class StoredCell:
    """A finished or failed cell.

    key: checksum of the content; content: inputs of the cell as JSON; error: set if the status is "failed"; seconds: duration of
    the last attempt; metrics: by name; run: the rest of the `Run` from `packed`; jobs: packed records that dependent cells read.
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
    """A position of the grid: the key of its cell and the labels of its run."""

    key: str
    labels: Labels


def packed(run: Run) -> bytes:
    """Return a run as compressed JSON, without its labels and metrics, which are stored in other columns."""
    document = document_of(run)
    del document["labels"], document["metrics"]
    return zlib.compress(json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


class CellStore:
    """The store of a sweep, open for writing until the end of a `with` block; `path` None keeps it in memory.

    Each `add` is one durable transaction, so a killed process loses only the call in progress. Raises `InputError` for a file of
    another program or version, a damaged one, and one that cannot be written.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.where = "sweep store" if path is None else str(path)
        with file_errors_as_faults(self.where):
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            address = ":memory:" if path is None else f"{Path(path).absolute().as_uri()}?mode=rwc"
            # With isolation_level None, sqlite3 opens no transactions itself.
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
        """Add a session and replace the current grid; stored cells are kept, whether or not the new grid contains them."""
        rows = [(place, each.key, json.dumps(dict(each.labels))) for place, each in enumerate(grid)]
        with file_errors_as_faults(self.where), self._transaction():
            values = (json.dumps(spec, default=str), json.dumps(dict(versions)), begun)
            statement = "INSERT INTO sessions (spec, versions, begun) VALUES (?, ?, ?)"
            self._session = self._connection.execute(statement, values).lastrowid or 0
            self._connection.execute("DELETE FROM grid")
            self._connection.executemany("INSERT INTO grid (place, key, labels) VALUES (?, ?, ?)", rows)

    def statuses(self) -> dict[str, str]:
        """Return {key: status} of all stored cells."""
        with file_errors_as_faults(self.where):
            return dict(self._connection.execute("SELECT key, status FROM cells"))

    def seconds(self) -> dict[str, float]:
        """Return {key: seconds} of all finished cells."""
        with file_errors_as_faults(self.where):
            return dict(self._connection.execute("SELECT key, seconds FROM cells WHERE status = 'done'"))

    def jobs_of(self, key: str) -> bytes | None:
        """Return the packed job records of a cell, if it has any."""
        with file_errors_as_faults(self.where):
            found = self._connection.execute("SELECT jobs FROM cells WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def add(self, cells: Iterable[StoredCell]) -> None:
        """Store cells in one transaction."""
        rows = []
        for c in cells:
            metrics = None if c.metrics is None else json.dumps(dict(c.metrics), allow_nan=False)
            rows.append((c.key, c.content, c.status, c.error, c.attempts, c.seconds, self._session, metrics, c.run, c.jobs))
        with file_errors_as_faults(self.where), self._transaction():
            self._connection.executemany(INSERT, rows)

    def rows(self) -> list[dict[str, str | float | None]]:
        """Return labels, status, error and metrics of each stored cell of the grid, in grid order."""
        with file_errors_as_faults(self.where):
            stored = self._connection.execute(SELECT).fetchall()
        rows = []
        for labels, status, error, attempts, seconds, metrics in _counted_once(stored):
            cell = {"status": status, "error": error, "attempts": attempts, "wall_seconds": seconds}
            rows.append({**labels, **cell, **json.loads(metrics or "{}")})
        return rows

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


RUNS = """SELECT grid.labels, cells.content, cells.metrics, cells.run
    FROM grid JOIN cells USING (key) WHERE cells.status = 'done' ORDER BY grid.place"""

FAILURES = """SELECT grid.labels, cells.content, cells.error
    FROM grid JOIN cells USING (key) WHERE cells.status = 'failed' ORDER BY grid.place"""

FORMAT, VERSION = "gavel-py runs", 1
Item = TypeVar("Item")
SQLITE = b"SQLite format 3\0"


def read_runs(path: str | Path) -> Runs:
    """Read the runs of a sweep store or of a file from `write_runs`, as a list with `to_columns` and `to_pandas`.

    Args:
        path: The file. Of a store, which may still be growing, the finished cells of the latest grid are read, in grid order. Cells
            into which no seed enters are read once, with the seed None.

    Raises:
        InputError: The file is damaged, or of another program or version.
    """
    head = _head(path)
    if head == SQLITE:
        return Runs(_stored(path, RUNS, _run))
    found = reading.json_document(path) if head.removeprefix(BOM_UTF8).lstrip()[:1] in b"{[" else None
    document: dict[str, Any] = found if isinstance(found, dict) else {}
    is_ours, version = document.get("format") == FORMAT, document.get("version")
    kinds = "neither the store of gavel sweep (--results) nor a .json file of gavel simulate --run-out"
    text = f"has version {version!r}, and this gavel-py reads version {VERSION}; another one has written it"
    refuse(
        str(path),
        (not is_ours, "", f"holds no runs: it is {kinds}"),
        (is_ours and version != VERSION, "", text),
    )
    with faults_from(str(path), "is damaged or was changed by hand", *DAMAGED, named=True):
        return Runs(run_from(each) for each in document["runs"])


def read_failures(path: str | Path) -> list[tuple[Labels, str]]:
    """Read the failed cells of a sweep store.

    Args:
        path: The file; other files than stores have no failures.

    Returns:
        (labels, error) of each failed cell, in grid order.

    Raises:
        InputError: The file cannot be read, or is a store that is damaged or of another program or version.
    """
    if _head(path) != SQLITE:
        return []
    return _stored(path, FAILURES, lambda labels, error: (labels_from(labels), str(error)))


def write_runs(path: str | Path, runs: Iterable[Run]) -> None:
    """Write runs to a JSON file atomically.

    Args:
        path: The file to write.
        runs: The runs, in the order in which `read_runs` returns them.

    Raises:
        InputError: The file cannot be written.
    """
    document = {"format": FORMAT, "version": VERSION, "runs": [document_of(run) for run in runs]}
    write_atomic(path, json.dumps(document, allow_nan=False).encode() + b"\n")


def _head(path: str | Path) -> bytes:
    """Return the first bytes of a file, as many as `SQLITE` has."""
    with faults_from(str(path), "cannot be read", OSError), open(path, "rb") as file:
        return file.read(len(SQLITE))


def _stored(path: str | Path, statement: str, convert: Callable[..., Item]) -> list[Item]:
    """Return the converted rows of a query on a store."""
    # SQLite needs write access to roll back the journal of a killed sweep; without it, mode=rw opens the file read-only.
    address = f"{Path(path).absolute().as_uri()}?mode=rw"
    with file_errors_as_faults(str(path)), closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        check_schema(str(path), connection, make=False)
        rows: list[PlaceRow] = connection.execute(statement).fetchall()
    with faults_from(str(path), "is damaged", *DAMAGED, zlib.error, named=True):
        return [convert(*row) for row in _counted_once(rows)]


def _run(labels: Labels, metrics: str, run: bytes) -> Run:
    return run_from(json.loads(zlib.decompress(run)) | {"labels": labels, "metrics": json.loads(metrics)})
