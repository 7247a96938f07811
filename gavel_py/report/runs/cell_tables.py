"""The tables of a sweep's SQLite file, and whether a file has them."""

from __future__ import annotations

import sqlite3

from gavel_py.errors import Fault, InputError

__all__ = ["SCHEMA_VERSION", "check_schema"]

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
