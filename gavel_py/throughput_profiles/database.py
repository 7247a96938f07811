"""The databases that can hold a profile store: an SQLite file, or a PostgreSQL server.

`database_at` returns the database of a file or URL. Its methods `reading` and `writing` open transactions on the tables of
`SCHEMA`. Statements are written for SQLite; `ON_POSTGRES` lists the words that differ in PostgreSQL. On a server, the tables have
their own namespace, and an advisory lock allows one writer at a time, as the lock of the file does for SQLite.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.io.writing import BUSY_SECONDS, check_libraries, file_errors_as_faults

if TYPE_CHECKING:
    import psycopg

APPLICATION_ID = 0x6776_7470
"""Identifies a profile store. An SQLite file that has tables but another number belongs to another application."""

SCHEMA_VERSION = 4

OBSERVATIONS = """CREATE TABLE observations (
        id INTEGER PRIMARY KEY,
        profile INTEGER NOT NULL REFERENCES profiles (id),
        job_type TEXT NOT NULL,
        num_gpus INTEGER NOT NULL,
        accelerator TEXT NOT NULL,
        placement TEXT NOT NULL,
        partner_job_type TEXT,
        count REAL NOT NULL,
        log_mean REAL NOT NULL,
        log_variance REAL NOT NULL,
        last_seconds REAL NOT NULL,
        half_life_seconds REAL NOT NULL
    )"""
"""Rates of running jobs, kept apart from the measurements of a profile."""

OBSERVED_ONCE = """CREATE UNIQUE INDEX observed_once ON observations
        (profile, job_type, num_gpus, accelerator, placement, ifnull(partner_job_type, ''))"""

# A pair is stored once in canonical order, so the unique index also rejects a pair given from the other side.
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
        gpu_memory_gb REAL,
        unit TEXT NOT NULL DEFAULT 'steps/s',
        condition TEXT,
        family TEXT,
        batch_size INTEGER,
        sequence_length INTEGER
    )""",
    """CREATE UNIQUE INDEX measured_once ON measurements
        (profile, job_type, num_gpus, accelerator, placement, ifnull(partner_job_type, ''))""",
    OBSERVATIONS,
    OBSERVED_ONCE,
)


class Cursor(Protocol):
    """Rows of a query."""

    def __iter__(self) -> Iterator[Any]: ...
    def fetchone(self) -> Any: ...


class DatabaseSession(Protocol):
    """Runs statements within a transaction. Each "?" in a statement is replaced by a value."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Cursor: ...
    def executemany(self, statement: str, values: Iterable[Sequence[Any]], /) -> object: ...


class Database(ABC):
    """A database that holds a store; location: its name in messages, without a password."""

    location: str

    @property
    def where(self) -> str:
        """The place that error messages name."""
        return f"profile store {self.location}"

    @abstractmethod
    def reading(self) -> AbstractContextManager[DatabaseSession]:
        """Open a read transaction, in which all queries see the same state. A store that does not exist yet is empty."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[DatabaseSession]:
        """Open a write transaction, which is committed on exit and rolled back on error; the first one creates the tables."""

    @abstractmethod
    def _version(self, session: DatabaseSession) -> int | None:
        """Return the schema of the tables, None if there are none. Raises `InputError` if they belong to another application."""

    @abstractmethod
    def _marks(self) -> Iterable[str]:
        """Return the statements that record `SCHEMA_VERSION` in the database."""

    def _prepare(self, session: DatabaseSession) -> None:
        """Create the tables of an empty database. Raises `InputError` for those of another schema."""
        if self._is_new(session):
            for statement in (*SCHEMA, *self._marks()):
                session.execute(statement)

    def _is_new(self, session: DatabaseSession) -> bool:
        """Return whether there are no tables yet. Raises `InputError` for those of another schema."""
        version = self._version(session)
        problem = f"was written by another version of gavel-py (schema {version}, this one reads {SCHEMA_VERSION})"
        refuse(self.where, (version not in (None, SCHEMA_VERSION), "", problem))
        return version is None


@contextmanager
def empty() -> Iterator[DatabaseSession]:
    """Open an empty temporary store."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in SCHEMA:
            connection.execute(statement)
        yield connection


class SqliteFile(Database):
    """An SQLite file, which the first write creates."""

    def __init__(self, path: Path) -> None:
        self.path, self.location = path, str(path)

    @contextmanager
    def reading(self) -> Iterator[DatabaseSession]:
        with file_errors_as_faults(self.where, BUSY_SECONDS):
            if not self.path.exists() or self.path.stat().st_size == 0:
                with empty() as session:
                    yield session
                return
            # With mode rw, which falls back to read-only, SQLite can roll back the journal of a writer that crashed.
            with self._transaction("rw", "BEGIN") as session, empty() as without_profiles:
                yield without_profiles if self._is_new(session) else session

    @contextmanager
    def writing(self) -> Iterator[DatabaseSession]:
        with file_errors_as_faults(self.where, BUSY_SECONDS):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._transaction("rwc", "BEGIN IMMEDIATE") as session:
                self._prepare(session)
                yield session

    @contextmanager
    def _transaction(self, mode: str, begin: str) -> Iterator[DatabaseSession]:
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        # isolation_level None: transactions are explicit here; closing without a commit rolls back.
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute(begin)
            yield connection
            connection.execute("COMMIT")

    def _version(self, session: DatabaseSession) -> int | None:
        (application,) = session.execute("PRAGMA application_id").fetchone()
        (version,) = session.execute("PRAGMA user_version").fetchone()
        (tables,) = session.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables == 0:
            return None
        problem = "is an SQLite database, but not a store of throughput profiles"
        refuse(self.where, (application != APPLICATION_ID, "", problem))
        return int(version)

    def _marks(self) -> Iterable[str]:
        return (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {SCHEMA_VERSION}")


NAMESPACE = "gavel_py"
"""Schema (namespace) of the tables on a PostgreSQL server."""

VERSION_TABLE = "profile_store_version"
"""Identifies a profile store on a server. A namespace with other tables but without this one belongs to another application."""

ON_POSTGRES = (
    ("INTEGER PRIMARY KEY", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    ("num_gpus INTEGER", "num_gpus DOUBLE PRECISION"),  # may be a fraction; SQLite keeps any number in any column
    ("INTEGER", "BIGINT"),
    ("REAL", "DOUBLE PRECISION"),
    ("ifnull(", "coalesce("),
    ("?", "%s"),
)
"""Words of statements in SQLite and in PostgreSQL, replaced in this order."""

CONNECTING = {
    "connect_timeout": 10,
    "tcp_user_timeout": int(BUSY_SECONDS * 1000),
    "application_name": "gavel-py",
    "client_encoding": "utf8",
}
"""Parameters of connections, which a URL may override."""

_HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^:,/?@\[\]]*)(?::\d*)?"
URL = re.compile(
    rf"(?P<scheme>postgres(?:ql)?)://(?:(?P<user>[^:@/]*)(?::[^@/]*)?@)?(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<name>/[^?@/]*)?(?:\?[^@]*)?"
)
"""A URL that libpq parses in the same way, so that no part of a password is mistaken for a host and shown."""

LOOKS_LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class PostgresServer(Database):
    """A database on a PostgreSQL server, in which the first write creates the namespace and the tables."""

    def __init__(self, url: str) -> None:
        found = URL.fullmatch(url)
        if found is None:
            problem = (
                "must be a file or a URL such as postgresql://user@host/database; write special characters in it as %40 (for @)"
            )
            raise InputError(Fault("profile store", "", problem))
        user = f"{found['user']}@" if found["user"] else ""
        self.location = f"{found['scheme']}://{user}{found['hosts']}{found['name'] or ''}"
        self._url = url

    @contextmanager
    def reading(self) -> Iterator[DatabaseSession]:
        with self._session() as session:
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            if self._is_new(session):
                with empty() as without_profiles:
                    yield without_profiles
                return
            session.execute(f"SET LOCAL search_path TO {NAMESPACE}")
            yield session

    @contextmanager
    def writing(self) -> Iterator[DatabaseSession]:
        with self._session() as session:
            session.execute("BEGIN")
            # The server ends the transaction of a writer that no longer responds.
            for limit in ("lock_timeout", "idle_in_transaction_session_timeout"):
                session.execute(f"SET LOCAL {limit} = {int(BUSY_SECONDS * 1000)}")
            session.execute(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")
            if session.execute("SELECT 1 FROM pg_namespace WHERE nspname = ?", (NAMESPACE,)).fetchone() is None:
                session.execute(f"CREATE SCHEMA {NAMESPACE}")
            session.execute(f"SET LOCAL search_path TO {NAMESPACE}")
            self._prepare(session)
            yield session
            session.execute("COMMIT")

    @contextmanager
    def _session(self) -> Iterator[DatabaseSession]:
        """Open a connection, and raise its errors as `InputError` without the password."""
        check_libraries("profile stores on PostgreSQL", "postgres", "psycopg")
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        if not (log := logging.getLogger("psycopg")).handlers:
            log.addHandler(logging.NullHandler())  # Python would print its warnings of lost connections next to the error
        try:
            parameters = CONNECTING | conninfo_to_dict(self._url)
        except psycopg.Error:  # its message would repeat that part of the URL
            raise InputError(Fault(self.where, "", "is not a valid URL; write special characters in it as %40 (for @)")) from None
        connection = None
        try:
            # Connection poolers in front of a server may not support prepared statements.
            connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
            with closing(connection):  # without a commit, the server rolls back
                yield _PostgresSession(connection)
        except psycopg.Error as error:
            problem = _problem(error, is_connected=connection is not None)
            password = str(parameters.get("password") or "")
            raise InputError(Fault(self.where, "", problem.replace(password, "***") if password else problem)) from None

    def _version(self, session: DatabaseSession) -> int | None:
        relations = "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = ? AND relkind IN"
        tables = {name for (name,) in session.execute(f"{relations} ('r', 'v', 'm', 'p', 'f')", (NAMESPACE,))}
        if not tables:
            return None
        problem = f"has a schema {NAMESPACE} with tables of another application; use another database"
        refuse(self.where, (VERSION_TABLE not in tables, "", problem))
        (version,) = session.execute(f"SELECT version FROM {NAMESPACE}.{VERSION_TABLE}").fetchone()  # noqa: S608
        return int(version)

    def _marks(self) -> Iterable[str]:
        yield f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version INTEGER NOT NULL)"
        yield f"DELETE FROM {VERSION_TABLE}"  # noqa: S608
        yield f"INSERT INTO {VERSION_TABLE} VALUES ({SCHEMA_VERSION})"  # noqa: S608


class _PostgresSession:
    """Runs statements of SQLite on a PostgreSQL server."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor:
        rows: Cursor = self._connection.execute(_translated(statement), values)
        return rows

    def executemany(self, statement: str, values: Iterable[Sequence[Any]], /) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated(statement), values)


def _translated(statement: str) -> str:
    for ours, theirs in ON_POSTGRES:
        statement = statement.replace(ours, theirs)
    return statement


def _problem(error: psycopg.Error, *, is_connected: bool) -> str:
    """Return an error of a server as one line."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__
    if not is_connected:
        return f"cannot be reached: {text.removeprefix('connection failed: ')}"
    if error.sqlstate == "55P03":
        return f"has been locked by another process for more than {BUSY_SECONDS:g} s"
    # 57P: the server shuts down; 08: the connection is broken; no state: the server no longer responds.
    if error.sqlstate is None or error.sqlstate[:3] == "57P" or error.sqlstate[:2] == "08":
        return f"the connection was lost: {text}; a change that was under way is stored whole or not at all"
    return f"failed: {text}"


def database_at(place: str | Path) -> Database:
    """Return the database of a file or a URL. Raises `InputError` for other URLs."""
    return PostgresServer(str(place)) if LOOKS_LIKE_URL.match(str(place)) else SqliteFile(Path(place))
