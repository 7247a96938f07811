"""The SQLite file behind the store: its tables and its transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gavel_py.errors import Fault, InputError
from gavel_py.io.writing import BUSY_SECONDS, clear_errors

__all__ = ["reading", "writing"]

APPLICATION_ID = 0x6776_7470
"""Marks the file as ours; any other number in an SQLite file that holds tables is somebody else's."""

SCHEMA_VERSION = 2

# A pair is stored once, in canonical order, so the unique index also catches a pair given from its other side.
SCHEMA = (
    """CREATE TABLE profiles (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        description TEXT NOT NULL,
        licence TEXT NOT NULL,
        notice TEXT NOT NULL,
        url TEXT NOT NULL
    )""",
    """CREATE TABLE measurements (
        id INTEGER PRIMARY KEY,
        profile INTEGER NOT NULL REFERENCES profiles (id),
        job_type TEXT NOT NULL,
        num_gpus INTEGER NOT NULL,
        accelerator TEXT NOT NULL,
        placement TEXT NOT NULL,
        steps_per_second REAL NOT NULL,
        partner_job_type TEXT,
        partner_steps_per_second REAL,
        source TEXT NOT NULL,
        gpu_memory_gb REAL
    )""",
    """CREATE UNIQUE INDEX measured_once ON measurements
        (profile, job_type, num_gpus, accelerator, placement, ifnull(partner_job_type, ''))""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

FROM_1 = ("ALTER TABLE measurements ADD COLUMN gpu_memory_gb REAL", f"PRAGMA user_version = {SCHEMA_VERSION}")
"""What makes a store of schema 1 one of today, when it is written to."""

AS_IF_FROM_1 = ("CREATE TEMP VIEW measurements AS SELECT *, NULL AS gpu_memory_gb FROM main.measurements",)
"""What makes it look so to a reader, who changes no file."""


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the store in one transaction, so that all reads see the same state; a file that is not there reads as empty."""
    with clear_errors(f"profile store {path}", BUSY_SECONDS):
        if path.exists() and path.stat().st_size > 0:
            # rw falls back to reading only; it is needed to clean up after a writer that crashed.
            opened = _transaction(path, f"{path.absolute().as_uri()}?mode=rw", "BEGIN", AS_IF_FROM_1)
        else:
            opened = _transaction(path, ":memory:", "BEGIN", ())
        with opened as connection:
            yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the store, made when needed, in one transaction: at the end all of it is written, after an error nothing."""
    with clear_errors(f"profile store {path}", BUSY_SECONDS):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _transaction(path, f"{path.absolute().as_uri()}?mode=rwc", "BEGIN IMMEDIATE", FROM_1) as connection:
            yield connection


@contextmanager
def _transaction(path: Path, address: str, begin: str, from_1: Iterable[str]) -> Iterator[sqlite3.Connection]:
    # isolation_level None: this module begins and commits; closing without a commit rolls back.
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
        connection.execute(begin)
        _check_schema(path, connection, from_1)
        yield connection
        connection.execute("COMMIT")


def _check_schema(path: Path, connection: sqlite3.Connection, from_1: Iterable[str]) -> None:
    """Make the tables in an empty database; from_1: what is to be done with older ones; raise unless they are ours, and known."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and tables == 0:
        for statement in SCHEMA:
            connection.execute(statement)
    elif application != APPLICATION_ID:
        raise InputError(Fault(f"profile store {path}", "", "is an SQLite database, but no store of throughput profiles"))
    elif version > SCHEMA_VERSION:
        problem = f"was written by a newer gavel-py (schema {version}, this one knows up to {SCHEMA_VERSION}); upgrade gavel-py"
        raise InputError(Fault(f"profile store {path}", "", problem))
    elif version < SCHEMA_VERSION:
        for statement in from_1:
            connection.execute(statement)
