"""The profile store: named throughput profiles of the user in a database, in addition to the built-in ones; combined profiles."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from gavel_py.errors import Fault, InputError, UnknownNameError, faults_among, nearest, refuse, wrong_types
from gavel_py.io.records import check_records
from gavel_py.problem.accelerators import identity_of, same_accelerator
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.database import DatabaseSession, SqliteFile, database_at
from gavel_py.throughput_profiles.files import OF_ONE_GANG, Entry, MeasuredRow, Measurement, builtin_names, units_of
from gavel_py.throughput_profiles.observations import HALF_LIFE_SECONDS, ObservedRate, entry_of, observations_in, put, rate_of
from gavel_py.throughput_profiles.profile import Coverage, ThroughputProfile
from gavel_py.throughput_profiles.units import UnitOf, mixed_units

PATH_VARIABLE = "GAVEL_PY_STORE"

ABOUT = ("description", "licence", "notice", "url")
"""Texts about a profile."""

PROFILE_SUFFIXES = {".csv", ".json"}
"""Endings that distinguish names of files from names of profiles."""

INSERT_PROFILE = """
    INSERT INTO profiles (name, description, licence, notice, url) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING"""

BY_NAME = "(SELECT id FROM profiles WHERE name = ?)"

COLUMNS = ", ".join(MeasuredRow._fields)
INSERT_ROW = f"INSERT INTO measurements (profile, {COLUMNS}) VALUES (?{', ?' * len(MeasuredRow._fields)})"  # noqa: S608
SELECT_ROWS = f"SELECT {COLUMNS} FROM measurements WHERE profile = ? ORDER BY id"  # noqa: S608

UPDATE_ROW = """
    ON CONFLICT (profile, job_type, num_gpus, accelerator, placement, ifnull(partner_job_type, '')) DO UPDATE SET
        steps_per_second = excluded.steps_per_second,
        partner_steps_per_second = excluded.partner_steps_per_second,
        source = excluded.source,
        """ + ", ".join(f"{name} = ifnull(excluded.{name}, measurements.{name})" for name in OF_ONE_GANG)

SELECT_ENTRIES = f"""
    SELECT job_type, num_gpus, accelerator, placement, partner_job_type FROM measurements WHERE profile = {BY_NAME}"""  # noqa: S608

SELECT_UNITS = """
    SELECT job_type, unit, condition FROM measurements WHERE profile = ?
    UNION SELECT partner_job_type, unit, condition FROM measurements WHERE profile = ? AND partner_job_type IS NOT NULL"""

UPDATE_ABOUT = "UPDATE profiles SET description = ?, licence = ?, notice = ?, url = ? WHERE name = ?"

SELECT_ABOUT = "SELECT description, licence, notice, url FROM profiles WHERE id = ?"


@dataclass(frozen=True)
class ProfileSummary:
    """Overview of a profile for lists.

    rows: number of measurements; gang_sizes: in GPUs; measured: number of combinations of job type and accelerator with a
    throughput without partner; possible: number of all combinations.
    """

    name: str
    builtin: bool
    rows: int
    job_types: tuple[str, ...]
    accelerators: tuple[str, ...]
    gang_sizes: tuple[float, ...]
    units: tuple[str, ...]
    measured: int
    possible: int
    description: str
    licence: str
    url: str

    @property
    def coverage(self) -> Coverage:
        """The combinations of job type and accelerator that are measured."""
        return Coverage(self.measured, self.possible)


class ThroughputStore:
    """Named throughput profiles in a database that several processes may use at the same time.

    Built-in profiles can be loaded by name as well, but not changed. All methods raise `InputError` if the database cannot be used.

    Args:
        path: An SQLite file, which the first write creates, or the URL of a PostgreSQL database, postgresql://user@host/name. The
            default is the value of the environment variable GAVEL_PY_STORE, or profiles.sqlite in the user's data directory.

    Attributes:
        path: The file, None on a server.
        location: The file or the URL as text, without a password.

    Raises:
        InputError: The URL is not one of PostgreSQL.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        default = os.environ.get(PATH_VARIABLE) or user_data_path("gavel-py") / "profiles.sqlite"
        self._database = database_at(default if path is None else path)
        self.path: Path | None = self._database.path if isinstance(self._database, SqliteFile) else None
        self.location = self._database.location

    def __repr__(self) -> str:
        return f"ThroughputStore({self.location!r})"

    def names(self) -> tuple[str, ...]:
        """Return the names of all profiles: the built-in ones, then the stored ones in alphabetical order."""
        with self._database.reading() as session:
            return (*builtin_names(), *_stored_names(session))

    def load(self, name: str) -> ThroughputProfile:
        """Return a built-in or stored profile. Raises `UnknownNameError` for an unknown name."""
        if name in builtin_names():
            return ThroughputProfile.builtin(name)
        with self._database.reading() as session:
            return self._load(session, name)

    def find(self, text: str, folder: str | Path = ".") -> ThroughputProfile:
        """Return the profile of this name or file. Several names with "+", such as "mpt-2023+mine.csv", give one profile.

        Args:
            text: A name, or a file that ends in .csv or .json. Of two measurements of an entry, the first is kept
                (`combine_profiles`).
            folder: Folder of files with relative paths.

        Raises:
            UnknownNameError: There is no profile of this name.
            InputError: A file cannot be read, or the profiles cannot be combined.
        """
        path = Path(folder, text)
        is_file = path.suffix in PROFILE_SUFFIXES
        if "+" in text and not (path.exists() if is_file else text in self.names()):
            return combine_profiles([self.find(part.strip(), folder) for part in text.split("+")])
        beside = [suffix for suffix in PROFILE_SUFFIXES if not is_file and path.with_name(f"{path.name}{suffix}").is_file()]
        if beside and text not in self.names():
            files = " or ".join(repr(text + suffix) for suffix in beside)
            raise UnknownNameError(Fault(self._where, "name", f"has no profile {text!r}; did you mean the file {files}?"))
        return ThroughputProfile.from_file(path) if is_file else self.load(text)

    def save(self, profile: ThroughputProfile, replace: bool = False) -> None:
        """Store a profile in one transaction.

        Args:
            profile: The profile.
            replace: Whether to overwrite a stored profile of the same name; its observations are kept.

        Raises:
            InputError: The name is that of a built-in profile, or is taken and `replace` is false.
        """
        self._refuse_builtin(profile.name, "give the profile another name")
        with self._database.writing() as session:
            if profile.name in _stored_names(session):
                problem = f"{profile.name!r} exists; replace it (--replace, replace=True) or give the profile another name"
                refuse(self._where, (not replace, "name", problem))
                session.execute(f"DELETE FROM measurements WHERE profile = {BY_NAME}", (profile.name,))  # noqa: S608
                session.execute(UPDATE_ABOUT, [*(getattr(profile, field) for field in ABOUT), profile.name])
            _insert(session, profile, INSERT_ROW)

    def add(self, name: str, measurements: Iterable[Measurement]) -> None:
        """Add measurements to a stored profile.

        Args:
            name: Name of the profile, which is created if missing.
            measurements: They replace existing entries; an entry keeps its GPU memory, family, batch size and sequence length if
                the new measurement has none. An accelerator keeps the name that the profile has for it.

        Raises:
            InputError: The measurements contradict each other, a job type has another unit in the store, or the name is that of a
                built-in profile.
        """
        self._refuse_builtin(name, "save a copy under another name and add to that")
        added = ThroughputProfile(name, measurements)
        with self._database.writing() as session:
            self._check_units(session, added)
            _insert(session, _with_stored_names(session, added), INSERT_ROW + UPDATE_ROW)

    def observe(
        self,
        name: str,
        entry: Entry | Sequence[Any] | Job,
        accelerator: str | None = None,
        *,
        steps: float,
        seconds: float,
        at: float | None = None,
        half_life_seconds: float = HALF_LIFE_SECONDS,
    ) -> None:
        """Add the rate of a running job to the observations of a profile, which are kept beside its measurements.

        Args:
            name: Name of the profile, which is created if missing.
            entry: (job_type, num_gpus, accelerator), with placement and partner if necessary; or a job.
            accelerator: Where the job ran.
            steps: Steps done; 0 has no effect.
            seconds: The time that this took.
            at: Time of the observation, in seconds on any one clock; by default now, in seconds since 1970.
            half_life_seconds: Time after which an observation has half of its weight.

        Raises:
            InputError: A number is not finite or out of range, the entry is incomplete, or the name is that of a built-in profile.
        """
        self._refuse_builtin(name, "observe under another name")
        key, rate, when = entry_of(entry, accelerator), rate_of(steps, seconds, at), time.time() if at is None else float(at)
        if rate == 0:
            return
        with self._database.writing() as session:
            _insert(session, ThroughputProfile(name, ()), INSERT_ROW)
            number = self._profile_id(session, name)
            before = observations_in(session, number).get(key, ObservedRate())
            put(session, number, {key: before.including(rate, when, half_life_seconds)}, half_life_seconds)

    def observations(self, name: str) -> dict[Entry, ObservedRate]:
        """Return {entry: its observed rate} of a profile, for a `ThroughputLearner`; empty for built-in profiles.

        Raises:
            UnknownNameError: There is no such profile.
        """
        if name in builtin_names():
            return {}
        with self._database.reading() as session:
            return observations_in(session, self._profile_id(session, name, builtin_names()))

    def save_observations(
        self, name: str, observations: Mapping[Entry, ObservedRate], half_life_seconds: float = HALF_LIFE_SECONDS
    ) -> None:
        """Store observations, such as those of a `ThroughputLearner`, in place of those of the same entries.

        Args:
            name: Name of the profile, which is created if missing.
            observations: {entry: its observed rate}.
            half_life_seconds: The half-life with which their counts were reduced.

        Raises:
            InputError: The name is that of a built-in profile.
        """
        self._refuse_builtin(name, "store observations under another name")
        with self._database.writing() as session:
            _insert(session, ThroughputProfile(name, ()), INSERT_ROW)
            put(session, self._profile_id(session, name), observations, half_life_seconds)

    def delete(self, name: str) -> None:
        """Delete a stored profile. Raises `UnknownNameError` for an unknown name."""
        self._refuse_builtin(name, "only stored profiles can be deleted")
        # The read transaction comes first since it does not create a missing file.
        with self._database.reading() as session:
            self._profile_id(session, name)
        with self._database.writing() as session:
            _delete(session, name)

    def summaries(self) -> tuple[ProfileSummary, ...]:
        """Return summaries of all profiles in the order of `names`."""
        profiles = [ThroughputProfile.builtin(name) for name in builtin_names()]
        with self._database.reading() as session:
            profiles += [self._load(session, name) for name in _stored_names(session)]
        return tuple(
            ProfileSummary(
                name=profile.name,
                builtin=profile.name in builtin_names(),
                rows=len(profile),
                job_types=profile.job_types,
                accelerators=profile.accelerators,
                gang_sizes=profile.gang_sizes,
                units=profile.units,
                measured=profile.coverage.measured,
                possible=profile.coverage.possible,
                description=profile.description,
                licence=profile.licence,
                url=profile.url,
            )
            for profile in profiles
        )

    def _check_units(self, session: DatabaseSession, added: ThroughputProfile) -> None:
        """Raise `InputError` if a job type of the measurements has another unit in the stored profile of the same name."""
        if added.name not in _stored_names(session):
            return
        stored = session.execute(SELECT_UNITS, [self._profile_id(session, added.name)] * 2)
        where = f"{self._where}, profile {added.name!r}"
        known = [(where, job_type, UnitOf(unit, condition)) for job_type, unit, condition in stored]
        new = [(f"measurement {n}", *unit) for n, row in enumerate(added.rows, 1) for unit in units_of(row)]
        InputError.raise_any(mixed_units([*known, *new]))

    @property
    def _where(self) -> str:
        return self._database.where

    def _refuse_builtin(self, name: str, remedy: str) -> None:
        refuse(self._where, (name in builtin_names(), "name", f"{name!r} is a built-in profile; {remedy}"))

    def _profile_id(self, session: DatabaseSession, name: str, others: tuple[str, ...] = ()) -> int:
        found: tuple[int] | None = session.execute("SELECT id FROM profiles WHERE name = ?", (name,)).fetchone()
        if found is None:
            known = (*others, *_stored_names(session))
            raise UnknownNameError(Fault(self._where, "name", f"has no profile {name!r}{nearest(name, known)}"))
        return found[0]

    def _load(self, session: DatabaseSession, name: str) -> ThroughputProfile:
        number = self._profile_id(session, name, builtin_names())
        about = session.execute(SELECT_ABOUT, (number,)).fetchone()
        rows = (dict(zip(MeasuredRow._fields, row, strict=True)) for row in session.execute(SELECT_ROWS, (number,)))
        # Other tools can write to the file, so the rows are validated again.
        placed = ((f"{self._where}, profile {name!r}, row {n}", row) for n, row in enumerate(rows, 1))
        return ThroughputProfile(name, check_records(Measurement, placed), **dict(zip(ABOUT, about, strict=True)))


def combine_profiles(profiles: Sequence[ThroughputProfile], name: str | None = None) -> ThroughputProfile:
    """Return one profile with the measurements of several. Of two measurements of an entry, that of the earlier profile is kept.

    Accelerators of later profiles get the names that earlier ones have for them (`gavel_py.AcceleratorTable`).

    Args:
        profiles: The profiles, the most trusted first.
        name: Name of the result; by default their names, joined by "+".

    Raises:
        InputError: There is no profile, one of them is something else, or a job type has different units in two of them.
    """
    faults = faults_among("combined profile", (not profiles, "profiles", "must not be empty"))
    InputError.raise_any(
        faults + wrong_types("combined profile", "profiles", profiles, ThroughputProfile, "must be throughput profiles")
    )
    name = "+".join(profile.name for profile in profiles) if name is None else name
    kept: dict[Entry, Measurement] = {}
    accelerators: list[str] = []
    origins: dict[str, ThroughputProfile] = {}
    faults = []
    for profile in profiles:
        names = {each: same_accelerator(each, accelerators) or each for each in profile.accelerators}
        accelerators += [each for each in names.values() if each not in accelerators]
        for job_type in profile.job_types:
            first = origins.setdefault(job_type, profile)
            if first.unit_of(job_type) != profile.unit_of(job_type):
                units = " and ".join(f"{each.unit_of(job_type)} in {each.name!r}" for each in (first, profile))
                problem = f"of job type {job_type!r} is {units}; convert one of them, or rename the job type"
                faults.append(Fault(f"throughput profile {name!r}", "unit", problem))
        for measurement in profile.measurements:
            renamed = measurement.model_copy(update={"accelerator": names[measurement.accelerator]})
            kept.setdefault(renamed.entry, renamed)
    InputError.raise_any(faults)
    about = {field: "; ".join(dict.fromkeys(filter(None, (getattr(each, field) for each in profiles)))) for field in ABOUT}
    return ThroughputProfile(name, kept.values(), **about)


def _stored_names(session: DatabaseSession) -> list[str]:
    return sorted(name for (name,) in session.execute("SELECT name FROM profiles"))  # databases sort in different orders


def _with_stored_names(session: DatabaseSession, added: ThroughputProfile) -> ThroughputProfile:
    """Return the measurements with the names of accelerators that the stored profile of the same name has."""
    stored = [Entry(*fields) for fields in session.execute(SELECT_ENTRIES, (added.name,))]
    identities = {name: identity_of(name) for name in dict.fromkeys([*(e.accelerator for e in stored), *added.accelerators])}
    names = {identities[entry.accelerator]: entry.accelerator for entry in reversed(stored)}
    spelled = {entry._replace(accelerator=identities[entry.accelerator]): entry.accelerator for entry in stored}
    renamed = []
    for each in added.measurements:
        identity = identities[each.accelerator]
        name = spelled.get(each.entry._replace(accelerator=identity), names.get(identity, each.accelerator))
        renamed.append(each.model_copy(update={"accelerator": name}))
    return ThroughputProfile(added.name, renamed)


def _insert(session: DatabaseSession, profile: ThroughputProfile, insert_row: str) -> None:
    about = [getattr(profile, field) for field in ABOUT]
    session.execute(INSERT_PROFILE, (profile.name, *about))
    (number,) = session.execute("SELECT id FROM profiles WHERE name = ?", (profile.name,)).fetchone()
    session.executemany(insert_row, ((number, *row) for row in profile.rows))


def _delete(session: DatabaseSession, name: str) -> None:
    for table in ("measurements", "observations"):
        session.execute(f"DELETE FROM {table} WHERE profile = {BY_NAME}", (name,))  # noqa: S608
    session.execute("DELETE FROM profiles WHERE name = ?", (name,))
