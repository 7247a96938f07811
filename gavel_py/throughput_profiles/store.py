"""The profile store: named throughput profiles of the user in an SQLite file, next to the built-in ones.

`reading` and `writing` open transactions; `SCHEMA` creates the tables.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.records import check_records
from gavel_py.io.writing import BUSY_SECONDS, file_errors_as_faults
from gavel_py.throughput_profiles.files import Measurement, Row, builtin_names
from gavel_py.throughput_profiles.profile import ThroughputProfile

APPLICATION_ID = 0x6776_7470
"""Identifies a profile store; an SQLite file with tables and another number belongs to another application."""

SCHEMA_VERSION = 2

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
        gpu_memory_gb REAL
    )""",
    """CREATE UNIQUE INDEX measured_once ON measurements
        (profile, job_type, num_gpus, accelerator, placement, ifnull(partner_job_type, ''))""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

FROM_1 = ("ALTER TABLE measurements ADD COLUMN gpu_memory_gb REAL", f"PRAGMA user_version = {SCHEMA_VERSION}")
"""Migrates a store from schema 1 on its first write."""

AS_IF_FROM_1 = ("CREATE TEMP VIEW measurements AS SELECT *, NULL AS gpu_memory_gb FROM main.measurements",)
"""Presents a store of schema 1 to readers as the current schema, without changing the file."""


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the store in a read transaction, in which all queries see the same state; a missing file reads as empty."""
    with file_errors_as_faults(f"profile store {path}", BUSY_SECONDS):
        if path.exists() and path.stat().st_size > 0:
            # Mode rw, which falls back to read-only, lets SQLite roll back the journal of a writer that crashed.
            opened = _transaction(path, f"{path.absolute().as_uri()}?mode=rw", "BEGIN", AS_IF_FROM_1)
        else:
            opened = _transaction(path, ":memory:", "BEGIN", ())
        with opened as connection:
            yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the store in a write transaction, which is committed on exit and rolled back on error; creates the file if missing."""
    with file_errors_as_faults(f"profile store {path}", BUSY_SECONDS):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _transaction(path, f"{path.absolute().as_uri()}?mode=rwc", "BEGIN IMMEDIATE", FROM_1) as connection:
            yield connection


@contextmanager
def _transaction(path: Path, address: str, begin: str, from_1: Iterable[str]) -> Iterator[sqlite3.Connection]:
    # isolation_level None: transactions are explicit here; closing without a commit rolls back.
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
        connection.execute(begin)
        _check_schema(path, connection, from_1)
        yield connection
        connection.execute("COMMIT")


def _check_schema(path: Path, connection: sqlite3.Connection, from_1: Iterable[str]) -> None:
    """Create the tables of an empty database, or run `from_1` on schema 1. Raises `InputError` for any other database."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and tables == 0:
        for statement in SCHEMA:
            connection.execute(statement)
    elif application != APPLICATION_ID:
        raise InputError(Fault(f"profile store {path}", "", "is an SQLite database, but not a store of throughput profiles"))
    elif version > SCHEMA_VERSION:
        problem = f"was written by a newer gavel-py (schema {version}, this one reads up to {SCHEMA_VERSION}); upgrade gavel-py"
        raise InputError(Fault(f"profile store {path}", "", problem))
    elif version < SCHEMA_VERSION:
        for statement in from_1:
            connection.execute(statement)


PATH_VARIABLE = "GAVEL_PY_STORE"

ABOUT = ("description", "licence", "notice", "url")

INSERT_PROFILE = """
    INSERT INTO profiles (name, description, licence, notice, url) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING"""

COLUMNS = ", ".join(Row._fields)
INSERT_ROW = f"INSERT INTO measurements (profile, {COLUMNS}) VALUES (?{', ?' * len(Row._fields)})"  # noqa: S608
SELECT_ROWS = f"SELECT {COLUMNS} FROM measurements WHERE profile = ? ORDER BY id"  # noqa: S608

UPDATE_ROW = """
    ON CONFLICT (profile, job_type, num_gpus, accelerator, placement, ifnull(partner_job_type, '')) DO UPDATE SET
        steps_per_second = excluded.steps_per_second,
        partner_steps_per_second = excluded.partner_steps_per_second,
        source = excluded.source,
        gpu_memory_gb = ifnull(excluded.gpu_memory_gb, gpu_memory_gb)"""

SELECT_ABOUT = "SELECT description, licence, notice, url FROM profiles WHERE id = ?"


@dataclass(frozen=True)
class ProfileSummary:
    """Overview of a profile for lists; rows: number of measurements, gang_sizes: in GPUs."""

    name: str
    builtin: bool
    rows: int
    job_types: tuple[str, ...]
    accelerators: tuple[str, ...]
    gang_sizes: tuple[float, ...]
    description: str
    licence: str
    url: str


class ThroughputStore:
    """Named throughput profiles in an SQLite file that several processes may use at the same time.

    Built-in profiles can be loaded by name as well, but not changed. All methods raise `InputError` if the file cannot be used.

    Args:
        path: The file, which the first write creates. The default is the value of the environment variable GAVEL_PY_STORE, or
            profiles.sqlite in the user's data directory.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        default = os.environ.get(PATH_VARIABLE) or user_data_path("gavel-py") / "profiles.sqlite"
        self.path = Path(default if path is None else path)

    def __repr__(self) -> str:
        return f"ThroughputStore({str(self.path)!r})"

    def names(self) -> tuple[str, ...]:
        """Return the names of all profiles: the built-in ones, then the stored ones in alphabetical order."""
        with reading(self.path) as connection:
            return (*builtin_names(), *_stored_names(connection))

    def load(self, name: str) -> ThroughputProfile:
        """Return a built-in or stored profile. Raises `UnknownNameError` for an unknown name."""
        if name in builtin_names():
            return ThroughputProfile.builtin(name)
        with reading(self.path) as connection:
            return self._load(connection, name)

    def save(self, profile: ThroughputProfile, replace: bool = False) -> None:
        """Store a profile in one transaction.

        Args:
            profile: The profile.
            replace: Whether to overwrite a stored profile of the same name.

        Raises:
            InputError: The name is that of a built-in profile, or is taken and `replace` is false.
        """
        self._refuse_builtin(profile.name, "give the profile another name")
        with writing(self.path) as connection:
            if profile.name in _stored_names(connection):
                if not replace:
                    problem = f"{profile.name!r} exists; replace it (--replace, replace=True) or give the profile another name"
                    raise InputError(Fault(self._where, "name", problem))
                _delete(connection, profile.name)
            _insert(connection, profile, INSERT_ROW)

    def add(self, name: str, measurements: Iterable[Measurement]) -> None:
        """Add measurements to a stored profile.

        Args:
            name: Name of the profile, which is created if missing.
            measurements: They replace existing entries; an entry keeps its GPU memory if the new measurement has none.

        Raises:
            InputError: The measurements contradict each other, or the name is that of a built-in profile.
        """
        self._refuse_builtin(name, "save a copy under another name and add to that")
        added = ThroughputProfile(name, measurements)
        with writing(self.path) as connection:
            _insert(connection, added, INSERT_ROW + UPDATE_ROW)

    def delete(self, name: str) -> None:
        """Delete a stored profile. Raises `UnknownNameError` for an unknown name."""
        self._refuse_builtin(name, "only stored profiles can be deleted")
        # The read transaction comes first since it does not create a missing file.
        with reading(self.path) as connection:
            self._profile_id(connection, name)
        with writing(self.path) as connection:
            _delete(connection, name)

    def summaries(self) -> tuple[ProfileSummary, ...]:
        """Return summaries of all profiles in the order of `names`."""
        profiles = [ThroughputProfile.builtin(name) for name in builtin_names()]
        with reading(self.path) as connection:
            profiles += [self._load(connection, name) for name in _stored_names(connection)]
        return tuple(
            ProfileSummary(
                name=profile.name,
                builtin=profile.name in builtin_names(),
                rows=len(profile),
                job_types=profile.job_types,
                accelerators=profile.accelerators,
                gang_sizes=profile.gang_sizes,
                description=profile.description,
                licence=profile.licence,
                url=profile.url,
            )
            for profile in profiles
        )

    @property
    def _where(self) -> str:
        return f"profile store {self.path}"

    def _refuse_builtin(self, name: str, remedy: str) -> None:
        if name in builtin_names():
            raise InputError(Fault(self._where, "name", f"{name!r} is a built-in profile; {remedy}"))

    def _profile_id(self, connection: sqlite3.Connection, name: str, others: tuple[str, ...] = ()) -> int:
        found: tuple[int] | None = connection.execute("SELECT id FROM profiles WHERE name = ?", (name,)).fetchone()
        if found is None:
            known = (*others, *_stored_names(connection))
            raise UnknownNameError(Fault(self._where, "name", f"has no profile {name!r}{nearest(name, known)}"))
        return found[0]

    def _load(self, connection: sqlite3.Connection, name: str) -> ThroughputProfile:
        number = self._profile_id(connection, name, builtin_names())
        about = connection.execute(SELECT_ABOUT, (number,)).fetchone()
        rows = (dict(zip(Row._fields, row, strict=True)) for row in connection.execute(SELECT_ROWS, (number,)))
        # Other tools can write to the file, so the rows are validated again.
        placed = ((f"{self._where}, profile {name!r}, row {n}", row) for n, row in enumerate(rows, 1))
        return ThroughputProfile(name, check_records(Measurement, placed), **dict(zip(ABOUT, about, strict=True)))


def _stored_names(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM profiles ORDER BY name")]


def _insert(connection: sqlite3.Connection, profile: ThroughputProfile, insert_row: str) -> None:
    about = [getattr(profile, field) for field in ABOUT]
    connection.execute(INSERT_PROFILE, (profile.name, *about))
    (number,) = connection.execute("SELECT id FROM profiles WHERE name = ?", (profile.name,)).fetchone()
    connection.executemany(insert_row, ((number, *row) for row in profile.rows))


def _delete(connection: sqlite3.Connection, name: str) -> None:
    connection.execute("DELETE FROM measurements WHERE profile = (SELECT id FROM profiles WHERE name = ?)", (name,))
    connection.execute("DELETE FROM profiles WHERE name = ?", (name,))
