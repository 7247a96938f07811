"""The store: named throughput profiles of one's own in one SQLite file, next to the built-in ones."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.records import check_records
from gavel_py.throughput_profiles.builtin import builtin_names
from gavel_py.throughput_profiles.database import reading, writing
from gavel_py.throughput_profiles.measurement import Measurement, Row
from gavel_py.throughput_profiles.profile import ThroughputProfile

__all__ = ["ProfileSummary", "ThroughputStore"]

PATH_VARIABLE = "GAVEL_PY_STORE"

ABOUT = ("description", "licence", "notice", "url")

INSERT_PROFILE = """
    INSERT INTO profiles (name, description, licence, notice, url) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING"""
INSERT_ROW = """
    INSERT INTO measurements (profile, job_type, num_gpus, accelerator, placement,
        steps_per_second, partner_job_type, partner_steps_per_second, source, gpu_memory_gb)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
UPDATE_ROW = """
    ON CONFLICT (profile, job_type, num_gpus, accelerator, placement, ifnull(partner_job_type, '')) DO UPDATE SET
        steps_per_second = excluded.steps_per_second,
        partner_steps_per_second = excluded.partner_steps_per_second,
        source = excluded.source,
        gpu_memory_gb = ifnull(excluded.gpu_memory_gb, gpu_memory_gb)"""
SELECT_ABOUT = "SELECT description, licence, notice, url FROM profiles WHERE id = ?"
SELECT_ROWS = """
    SELECT job_type, num_gpus, accelerator, placement, steps_per_second, partner_job_type, partner_steps_per_second, source,
        gpu_memory_gb
    FROM measurements WHERE profile = ? ORDER BY id"""


@dataclass(frozen=True)
class ProfileSummary:
    """What a list of profiles shows of one: `rows` measurements, gang sizes in GPUs, and where it comes from."""

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
    """Throughput profiles under names, kept in one SQLite file that several processes may use at once.

    path: the file; by default what the environment variable GAVEL_PY_STORE names, or else profiles.sqlite in the user's
    data directory. It is made by the first write. Built-in profiles can be loaded by name, too, but not changed.
    All methods raise `InputError` when the file cannot be used.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        default = os.environ.get(PATH_VARIABLE) or user_data_path("gavel-py") / "profiles.sqlite"
        self.path = Path(default if path is None else path)

    def __repr__(self) -> str:
        return f"ThroughputStore({str(self.path)!r})"

    def names(self) -> tuple[str, ...]:
        """The names that `load` knows: the built-in ones, then those stored in alphabetical order."""
        with reading(self.path) as connection:
            return (*builtin_names(), *_stored_names(connection))

    def load(self, name: str) -> ThroughputProfile:
        """Return the built-in or stored profile of this name; raises `UnknownNameError`."""
        if name in builtin_names():
            return ThroughputProfile.builtin(name)
        with reading(self.path) as connection:
            return self._load(connection, name)

    def save(self, profile: ThroughputProfile, replace: bool = False) -> None:
        """Store a profile, all of it or nothing; raises `InputError` when its name is taken, unless `replace`."""
        self._refuse_builtin(profile.name, "give the profile another name")
        with writing(self.path) as connection:
            if profile.name in _stored_names(connection):
                if not replace:
                    problem = f"{profile.name!r} is taken; replace it (--replace, replace=True) or give the profile another name"
                    raise InputError(Fault(self._where, "name", problem))
                _delete(connection, profile.name)
            _insert(connection, profile, INSERT_ROW)

    def add(self, name: str, measurements: Iterable[Measurement]) -> None:
        """Add measurements to a stored profile, which is made when there is none; an entry already there takes the new figures.

        What it takes of GPU memory stays where the new ones do not tell.

        Raises `InputError` for measurements that contradict each other.
        """
        self._refuse_builtin(name, "save a copy under another name and add to that")
        added = ThroughputProfile(name, measurements)
        with writing(self.path) as connection:
            _insert(connection, added, INSERT_ROW + UPDATE_ROW)

    def delete(self, name: str) -> None:
        """Remove a stored profile; raises `UnknownNameError`."""
        self._refuse_builtin(name, "only stored profiles can be deleted")
        # Looked up first: asking for a name that is not there makes no file.
        with reading(self.path) as connection:
            self._profile_id(connection, name)
        with writing(self.path) as connection:
            _delete(connection, name)

    def summaries(self) -> tuple[ProfileSummary, ...]:
        """Summaries of all profiles, in the order of `names`."""
        profiles = [ThroughputProfile.builtin(name) for name in builtin_names()]
        with reading(self.path) as connection:
            profiles += [self._load(connection, name) for name in _stored_names(connection)]
        return tuple(_summary(profile) for profile in profiles)

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
        # Checked again: anyone can write to the file with other tools.
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


def _summary(profile: ThroughputProfile) -> ProfileSummary:
    return ProfileSummary(
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
