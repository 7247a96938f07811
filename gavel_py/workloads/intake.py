"""What importers of traces share: recognising a file, reading its cells, and taking in its entries one by one.

`Importer` is a name, a way to recognise files by their beginning (`Head`), and a way to read them. `Intake` takes in what an
importer reads: jobs, what is skipped, what is broken, and what is assumed. `table_rows` reads tables of text line by line: a broken
line is reported and passed over, which one in a file of the user's own would not be. `amount`, `count`, `moment` and others read
cells: numbers, times, and the many ways to say that nothing is known. `without_collection` builds many records at once without
searching them for garbage.
"""

from __future__ import annotations

import csv
import gc
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from gavel_py.errors import Fault, InputError, decimal_hint, nearest
from gavel_py.io import reading
from gavel_py.io.records import number_of
from gavel_py.problem.job import Job
from gavel_py.workloads.submission import Skipped, Submission, TraceReport

MISSING = {"", "none", "null", "nan", "unknown", "n/a"}

ROUNDING_SECONDS = 1.0
"""Start and end are whole seconds, each off by up to half of one."""

EPOCH = datetime(1970, 1, 1)
"""Without a time zone, as the times in traces are; only differences count."""


def is_missing(value: object) -> bool:
    """Say whether the cell holds nothing, or one of the words for it."""
    return value is None or (isinstance(value, str) and value.strip().lower() in MISSING)


def amount(row: Mapping[str, object], field: str, default: float | None = None) -> float:
    """Return the finite number, at least 0, in a cell; `default` where it is missing, or else an `InputError`."""
    value = row.get(field)
    if is_missing(value):
        if default is not None:
            return default
        raise InputError(Fault("", field, "is missing; a number is needed"))
    number = number_of(value)
    if not 0 <= number < math.inf:
        raise InputError(Fault("", field, f"must be a finite number, at least 0, found {value!r}{decimal_hint(str(value))}"))
    return number


def count(row: Mapping[str, object], field: str, default: int | None = None) -> int:
    """Return the whole number, at least 0, in a cell, be it written as 4 or 4.0."""
    number = amount(row, field, default)
    if number != int(number):
        raise InputError(Fault("", field, f"must be a whole number, found {row.get(field)!r}"))
    return int(number)


def moment(row: Mapping[str, object], field: str) -> float | None:
    """Return the time in a cell, YYYY-MM-DD HH:MM:SS, as seconds on a clock without time zones; None where it is missing."""
    value = row.get(field)
    if is_missing(value):
        return None
    try:
        time = datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise InputError(Fault("", field, f"must be a time as in 2017-10-09 07:01:55, found {value!r}")) from None
    if time.tzinfo is not None:
        time = time.astimezone(UTC).replace(tzinfo=None)
    return (time - EPOCH).total_seconds()


def required_moment(row: Mapping[str, object], field: str) -> float:
    """Return the time in a cell; an `InputError` where it is missing."""
    time = moment(row, field)
    if time is None:
        raise InputError(Fault("", field, "is missing; a time as in 2017-10-09 07:01:55 is needed"))
    return time


def run_between(start: float, end: float, field: str) -> float:
    """Return the seconds from start to end; an `InputError` about `field` where the end comes first."""
    if end < start:
        raise InputError(Fault("", field, f"must not be before the start; it is {start - end:,.0f} s before"))
    return end - start


def contradicts(run: float, start: float | None, end: float | None) -> bool:
    """Say whether a recorded running time differs from end - start by more than the rounding of the two times explains."""
    return start is not None and end is not None and abs(end - start - run) > ROUNDING_SECONDS


def whole_or_part(gpus: float) -> float:
    """Return what a job gets that asks for so many GPUs in all: less than one as it is, more rounded up to whole ones."""
    asked = round(gpus, 6)  # sums of parts
    return asked if asked < 1 else math.ceil(asked)


@contextmanager
def without_collection() -> Iterator[None]:
    """Hold the search for cyclic garbage: there is none among records, and it would go through all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


LENGTH = 1 << 16
"""Characters read; the first record of every known format is far shorter."""


@dataclass(frozen=True)
class Head:
    """The name of a file or folder, the names of the files in a folder, and the first lines of a file."""

    path: Path
    inside: frozenset[str]
    text: str

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.text.splitlines() if line.strip()), "")

    @property
    def is_json(self) -> bool:
        """Whether this begins as a JSON document."""
        return self.text.lstrip()[:1] in ("[", "{")

    def has_columns(self, *names: str, separator: str = ",") -> bool:
        """Say whether the first line names all these columns."""
        return set(names) <= set(self.columns(separator))

    def columns(self, separator: str = ",") -> Collection[str]:
        """The cells of the first line."""
        return [cell.strip().strip('"') for cell in self.first_line.split(separator)]


def head_of(path: str | Path) -> Head:
    """Return the beginning of the file, or the names in the folder; raises `InputError` where it cannot be read."""
    there = Path(path)
    try:
        if there.is_dir():
            return Head(there, frozenset(file.name for file in there.iterdir()), "")
        with open(there, encoding="utf-8-sig", errors="replace") as file:
            return Head(there, frozenset(), file.read(LENGTH))
    except OSError as error:
        raise InputError(Fault(str(path), "", f"cannot be read: {error.strerror or error}")) from None


EARLY_START = "Jobs whose start is recorded before their submission waited 0 s: {n}."


class SkipError(Exception):
    """The entry at hand is sound, but no job to schedule; its text says why."""


class Intake:
    """Gathers one trace. An importer opens `entry(where)` around each of its entries; what fails inside concerns that one only."""

    def __init__(self, source: str, format_name: str) -> None:
        self.source, self.format_name = source, format_name
        self.submissions: list[Submission] = []
        self.faults: list[Fault] = []
        self._places: dict[str, str] = {}
        self._skipped: dict[str, tuple[int, str]] = {}
        self._assumptions: dict[str, int] = {}
        self._num_records = self._num_broken = 0

    def entry(self, where: str) -> Entry:
        """Return a context in which an `InputError` makes this entry a broken one and a `SkipError` leaves it out."""
        return Entry(self, where)

    def assume(self, sentence: str, count: int = 1) -> None:
        """Note an assumption. `{n}` in it becomes the number of entries that it was noted for."""
        self._assumptions[sentence] = self._assumptions.get(sentence, 0) + count

    def wait_between(self, submitted: float, started: float) -> float:
        """Return the seconds from submission to start; 0 where the start is recorded first, which is noted as an assumption."""
        if started < submitted:
            self.assume(EARLY_START)
        return max(0.0, started - submitted)

    def broken(self, where: str, *faults: Fault) -> None:
        """Count the entry as a broken one; each fault tells its field and what would be right."""
        self._num_records += 1
        self._num_broken += 1
        for fault in faults:
            who = f"{where} ({fault.where})" if fault.where else where
            self.faults.append(Fault(who, fault.field, fault.problem))

    def skip(self, where: str, reason: str) -> None:
        """Count the entry as left out."""
        self._num_records += 1
        count, first = self._skipped.get(reason, (0, where))
        self._skipped[reason] = (count + 1, first)

    def take(self, where: str, submission: Submission) -> None:
        """Keep a job; its id must be new."""
        job_id = submission.job.job_id
        earlier = self._places.setdefault(job_id, where)
        if earlier is not where:
            self.broken(where, Fault(f"job {job_id!r}", "job_id", f"stands twice, first at {earlier}"))
            return
        self._num_records += 1
        self.submissions.append(submission)

    def report(self) -> TraceReport:
        """Return what was read, skipped and assumed so far."""
        return TraceReport(
            source=self.source,
            format=self.format_name,
            num_records=self._num_records,
            num_jobs=len(self.submissions),
            num_broken=self._num_broken,
            skipped=tuple(Skipped(reason, count, first) for reason, (count, first) in self._skipped.items()),
            faults=tuple(self.faults),
            assumptions=tuple(sentence.replace("{n}", f"{count:,}") for sentence, count in self._assumptions.items()),
        )


class Entry:
    """One entry of a trace while it is read."""

    __slots__ = ("intake", "where")

    def __init__(self, intake: Intake, where: str) -> None:
        self.intake, self.where = intake, where

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, SkipError):
            self.intake.skip(self.where, str(error))
        elif isinstance(error, InputError):
            self.intake.broken(self.where, *error.faults)
        return isinstance(error, SkipError | InputError)

    def job(self, fields: Mapping[str, Any], **recorded: Any) -> None:
        """Keep the job of these fields, with what was recorded of it."""
        self.intake.take(self.where, Submission(Job(**fields).placed(self.where), **recorded))


@dataclass(frozen=True)
class Importer:
    """One format of traces.

    name: as `--format` takes it; about: whose format it is, in a few words; recognises: from the beginning of a file or the
    names in a folder; read: puts every entry into the intake, and raises `InputError` only where nothing can be read at all;
    has_dates: its times are dates, so that the clock is to start with the first arrival.
    """

    name: str
    about: str
    recognises: Callable[[Head], bool]
    read: Callable[[Path, Intake], None]
    has_dates: bool = False


Rows = Iterator[tuple[str, dict[str, str]]]


def table_rows(
    path: str | Path,
    intake: Intake,
    *,
    required: Collection[str] = (),
    columns: Sequence[str] | None = None,
    separator: str = ",",
) -> Rows:
    """Yield ("file, line n", {column: cell}) for each sound line; the others go to `intake` as broken.

    The first line names the columns, unless `columns` does. Raises `InputError` when a required column is missing.
    """
    names = columns
    for number, line in reading.numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            cells = split(line, separator)
            if names is None:
                names = _header(where, cells, required)
                continue
            if len(cells) != len(names):
                by = "the header names" if columns is None else "the table has"
                raise InputError(Fault("", "", f"has {len(cells)} fields, {by} {len(names)}"))
        except InputError as error:
            if names is None:
                raise
            intake.broken(where, *error.faults)
        else:
            yield where, dict(zip(names, cells, strict=True))
    if names is None:
        raise InputError(Fault(str(path), "", "is empty; a header line with column names is needed"))


def split(line: str, separator: str) -> list[str]:
    """Return the cells of a line, without the blanks around them."""
    if "\0" in line:
        raise InputError(Fault("", "", "contains a NUL character; is this a text file?"))
    if separator != "," or '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        (cells,) = csv.reader([line], strict=True)
    except csv.Error as error:
        raise InputError(Fault("", "", f"is not valid CSV: {error}")) from None
    return [cell.strip() for cell in cells]


def _header(where: str, names: Sequence[str], required: Collection[str]) -> Sequence[str]:
    faults = [Fault(where, "", f"column {name!r} is named twice") for name in sorted({n for n in names if names.count(n) > 1})]
    faults += [Fault(where, "", f"column {name!r} is missing{nearest(name, names)}") for name in required if name not in names]
    InputError.raise_any(faults)
    return names
