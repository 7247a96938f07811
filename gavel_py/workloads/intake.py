"""The interface of trace formats, and the functions they share to recognise files and to read tables and cells.

A `TraceFormat` recognises a file by its beginning (`FileHead`) and adds its entries to an `Intake`, which collects jobs, skipped
and broken entries, and assumptions. `table_rows` reads text tables. A broken line is reported and skipped and does not end the
import, since users usually cannot correct a trace; in the formats of gavel_py it is an error, as for `JobSet.from_file`. `amount`,
`count` and `moment` convert cells.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from gavel_py.errors import Fault, InputError, decimal_hint, faults_from, refuse, shown, unknown_names
from gavel_py.io import reading
from gavel_py.io.records import number_of
from gavel_py.problem.job import Job, read_deadline
from gavel_py.workloads.submission import Labels, Skipped, Submission, TraceReport, counted

MISSING = {"", "none", "null", "nan", "unknown", "n/a"}

ROUNDING_SECONDS = 1.0
"""Start and end are rounded to whole seconds, with an error of up to half a second each."""

EPOCH = datetime(1970, 1, 1)
"""Time 0 of clocks with dates; without a time zone, like the times in traces."""


EPOCH_SECONDS = re.compile(r"[0-9]{9,10}(\.[0-9]+)?")
"""Times in seconds since 1970 as from 1973 to 2286, as sacct prints them with SLURM_TIME_FORMAT=%s."""

MOMENT = "must be a time such as 2017-10-09 07:01:55"

LONGEST_SECONDS = 10 * 365.25 * 86400.0
LONG = "Jobs that ran or waited for more than 10 years, possibly by a wrong unit or clock: {n} (first: {first})."


def is_missing(value: object) -> bool:
    """Return whether a cell is empty or contains a word for a missing value."""
    return value is None or (isinstance(value, str) and value.strip().lower() in MISSING)


def wrong_cell(field: str, rule: str, value: object) -> InputError:
    """Return the error for the value of a cell that breaks a rule, such as "must be text"; a missing value is called so."""
    found = f"is missing; {rule}" if is_missing(value) else f"{rule}, found {shown(value)}{decimal_hint(str(value))}"
    return InputError(Fault("", field, found))


def amount(row: Mapping[str, object], field: str, default: float | None = None) -> float:
    """Return the finite number of at least 0 in a cell, or `default` if it is missing.

    Raises `InputError` for any other text, and for a missing value without default.
    """
    value = row.get(field)
    if is_missing(value) and default is not None:
        return default
    number = number_of(value)
    if not 0 <= number < math.inf:
        raise wrong_cell(field, "must be a finite number of at least 0", value)
    return number


def count(row: Mapping[str, object], field: str, default: int | None = None) -> int:
    """Return the whole number of at least 0 in a cell, written as 4 or 4.0; in all other respects like `amount`."""
    number = amount(row, field, default)
    if number != int(number):
        raise wrong_cell(field, "must be a whole number", row.get(field))
    return int(number)


def host_requests(num_gpus: float, cpus: float, memory_gb: float | None = None) -> dict[str, float]:
    """Return the fields of a job for the CPUs and memory that its whole gang requests."""
    return {"cpus_per_gpu": cpus / num_gpus} | ({} if memory_gb is None else {"memory_gb_per_gpu": memory_gb / num_gpus})


def requested_types(names: Iterable[str]) -> dict[str, Any]:
    """Return the field of a job for the GPU models that it requests, none for empty names."""
    models = tuple(dict.fromkeys(filter(None, map(str.strip, names))))
    return {"allowed_accelerators": models} if models else {}


def moment(row: Mapping[str, object], field: str) -> float | None:
    """Return the time in a cell in seconds since `EPOCH`, or None if it is missing: YYYY-MM-DD HH:MM:SS or `EPOCH_SECONDS`."""
    value = row.get(field)
    if is_missing(value):
        return None
    text = str(value).strip()
    if EPOCH_SECONDS.fullmatch(text):
        return float(text)
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            time = time.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise wrong_cell(field, MOMENT, value) from None
    return (time - EPOCH).total_seconds()


def text(row: Mapping[str, object], field: str) -> str:
    """Return the text or number in a cell as text, "" if it is missing. Raises `InputError` for other values of JSON."""
    value = row.get(field)
    if is_missing(value):
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong_cell(field, "must be text", value)
    return str(value)


def labels_of(row: Mapping[str, object], **columns: str) -> Labels:
    """Return labels of `Submission` from a row; columns: {label: column}; missing values are left out."""
    return tuple((label, text(row, column)) for label, column in columns.items() if not is_missing(row.get(column)))


def required_moment(row: Mapping[str, object], field: str) -> float:
    """Return the time in a cell like `moment`. Raises `InputError` if it is missing."""
    time = moment(row, field)
    if time is None:
        raise wrong_cell(field, MOMENT, row.get(field))
    return time


def run_between(start: float, end: float, field: str) -> float:
    """Return end - start in seconds. Raises `InputError` for `field` if the end is before the start."""
    if end < start:
        raise InputError(Fault("", field, f"must not be before the start; it is {start - end:,.0f} s earlier"))
    return end - start


def contradicts(run: float, start: float | None, end: float | None) -> bool:
    """Return whether a recorded run time differs from end - start by more than the rounding error of the two times."""
    return start is not None and end is not None and abs(end - start - run) > ROUNDING_SECONDS


LENGTH = 1 << 16
"""Characters read to recognise a file; the first record of each format is much shorter."""


@dataclass(frozen=True)
class FileHead:
    """The path of a file or folder, with the file names in a folder (`inside`) or the beginning of a file (`text`).

    ignored: columns to leave out.
    """

    path: Path
    inside: frozenset[str]
    text: str
    ignored: frozenset[str] = frozenset()

    @property
    def first_line(self) -> str:
        """The first non-blank line; only line feeds end lines, since JSON may contain U+2028 and others of `str.splitlines`."""
        return next((line.rstrip("\r") for line in self.text.split("\n") if line.strip()), "")

    @property
    def is_json(self) -> bool:
        """Whether the beginning of the file looks like a JSON document."""
        return self.text.lstrip()[:1] in ("[", "{")

    def columns(self, separator: str = ",") -> Collection[str]:
        """Return the cells of the first line."""
        return [cell.strip().strip('"') for cell in self.first_line.split(separator)]


@dataclass(frozen=True)
class HasColumns:
    """Tests whether the first line of a file names all these columns."""

    names: tuple[str, ...]
    separator: str

    def __call__(self, head: FileHead) -> bool:
        """Return whether the file has all columns."""
        return not self.lacking(head)

    def lacking(self, head: FileHead) -> list[str]:
        """Return the columns that the file lacks."""
        return [name for name in self.names if name not in head.columns(self.separator)]


def with_columns(*names: str, separator: str = ",") -> HasColumns:
    """Return a function that tests whether the first line of a file names all these columns."""
    return HasColumns(names, separator)


def head_of(path: str | Path, ignored: Collection[str] = ()) -> FileHead:
    """Return the head of a file or folder. Raises `InputError` if it cannot be read."""
    there = Path(path)
    with faults_from(str(path), "cannot be read", OSError):
        if there.is_dir():
            return FileHead(there, frozenset(file.name for file in there.iterdir()), "", frozenset(ignored))
        with open(there, encoding="utf-8-sig", errors="replace") as file:
            return FileHead(there, frozenset(), file.read(LENGTH), frozenset(ignored))


EARLY_START = "Jobs with a start recorded before their submission are read as waiting 0 s: {n} (first: {first})."


class SkipError(Exception):
    """The current entry is valid, but not a job to schedule; the message is the reason."""


NO_GPU = "asks for no GPU"
"""Why an entry is skipped that requests none."""


def skip_if(*cases: tuple[object, str]) -> None:
    """Raise `SkipError` with the first reason that applies to the current entry: (does it apply, reason)."""
    for reason in (reason for applies, reason in cases if applies):
        raise SkipError(reason)


def known_status(word: str, field: str, known: Mapping[str, str], unfinished: Collection[str] = ()) -> str:
    """Return the status of an entry in the words of `Submission`.

    known: {word of the trace: status}; unfinished: its words for jobs that had not ended, whose entries are skipped.
    """
    if word not in known:  # nearly all are
        skip_if((word in unfinished, f"had not ended ({field.lower()} {word})"))
        InputError.raise_any(unknown_names("", field, [word], [each for each in known if each]))
    return known[word]


class Intake:
    """Collects the entries of one trace.

    Formats read each entry inside `with intake.entry(where):`, so that an error skips only that entry, and add its job with `job`.

    Args:
        source: The file, for messages.
        format_name: The name of the format.
        ignored: Columns to leave out, which a format would otherwise refuse as unknown.
        columns: {column of a file of jobs: the field that it is}.
        fill: {field of a job: its value where an entry has none}.
        now: When `deadline` counts from, by default the present.
    """

    def __init__(
        self,
        source: str,
        format_name: str,
        ignored: Collection[str] = (),
        *,
        columns: Mapping[str, str] | None = None,
        fill: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> None:
        self.source, self.format_name, self.ignored = source, format_name, frozenset(ignored)
        self.columns, self.fill = dict(columns or {}), dict(fill or {})
        self.submissions: list[Submission] = []
        self.faults: list[Fault] = []
        self._places: dict[str, str] = {}
        self._skipped: dict[str, tuple[int, str]] = {}
        self._assumptions: dict[str, tuple[int, str]] = {}
        self._num_records = self._num_broken = 0
        self.now = now or datetime.now().astimezone()
        self._where = ""  # place of the entry that is being read

    def entry(self, where: str) -> Self:
        """Return a context in which an `InputError` counts the entry as broken.

        Args:
            where: The place of the entry, such as "trace.csv, line 3".
        """
        self._where = where
        return self

    def __enter__(self) -> None:
        """Begin an entry. With `contextmanager`, reading would take a tenth longer."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, SkipError):
            self.skip(self._where, str(error))
        elif isinstance(error, InputError):
            self.broken(self._where, *error.faults)
        return isinstance(error, SkipError | InputError)

    def job(self, fields: Mapping[str, Any], **recorded: Any) -> None:
        """Add the job of the current entry. An entry whose job id is a duplicate counts as broken.

        Args:
            fields: Fields of `Job`.
            recorded: Recorded fields of `Submission`, such as run_seconds.

        Raises:
            InputError: A field is wrong.
        """
        submission = Submission(Job(**read_deadline({**self.fill, **fields}, self.now)).placed(self._where), **recorded)
        job_id = submission.job.job_id
        earlier = self._places.setdefault(job_id, self._where)
        if earlier is not self._where:
            self.broken(self._where, Fault(f"job {job_id!r}", "job_id", f"appears twice, first at {earlier}"))
            return
        self._num_records += 1
        self.submissions.append(submission)
        if max(submission.run_seconds or 0.0, submission.wait_seconds or 0.0) > LONGEST_SECONDS:
            self.assume(LONG)

    def assume(self, sentence: str, count: int = 1, *, where: str = "") -> None:
        """Record an assumption about entries.

        Args:
            sentence: Sentence for the report; `{n}` in it stands for the number of entries, `{first}` for the place of the first.
            count: Number of entries to which it now applies.
            where: Place of the first of them, by default the current entry.
        """
        earlier, first = self._assumptions.get(sentence, (0, where or self._where))
        self._assumptions[sentence] = earlier + count, first

    def wait_between(self, submitted: float, started: float) -> float:
        """Return the seconds from submission to start, or 0 and record an assumption if the start is earlier.

        Args:
            submitted: Time of submission, seconds.
            started: Time of the start, seconds.
        """
        if started < submitted:
            self.assume(EARLY_START)
        return max(0.0, started - submitted)

    def broken(self, where: str, *faults: Fault) -> None:
        """Count an entry as broken, and add its faults.

        Args:
            where: The place of the entry.
            faults: Its faults.
        """
        self._num_records += 1
        self._num_broken += 1
        for fault in faults:
            place = f"{where} ({fault.where})" if fault.where else where
            self.faults.append(Fault(place, fault.field, fault.problem))

    def skip(self, where: str, reason: str) -> None:
        """Count an entry as valid, but not a job to schedule.

        Args:
            where: The place of the entry.
            reason: The reason, with equal text for all entries of a kind.
        """
        self._num_records += 1
        count, first = self._skipped.get(reason, (0, where))
        self._skipped[reason] = (count + 1, first)

    def report(self) -> TraceReport:
        """Return the report on the entries so far."""
        return TraceReport(
            source=self.source,
            format=self.format_name,
            num_records=self._num_records,
            num_jobs=len(self.submissions),
            num_broken=self._num_broken,
            skipped=tuple(Skipped(reason, count, first) for reason, (count, first) in self._skipped.items()),
            faults=tuple(self.faults),
            assumptions=tuple(
                sentence.replace("{n}", f"{count:,}").replace("{first}", first)
                for sentence, (count, first) in self._assumptions.items()
            ),
        )


@dataclass(frozen=True)
class TraceFormat:
    """A trace format, which reads the traces of another system.

    `docs/writing-a-trace-format.md` shows one; `gavel_py.testing.check_trace_format` checks it.

    Attributes:
        name: Name of the format (`format` of `read_trace`, `--format`).
        about: A short description.
        recognises: Returns whether a file or folder has this format. Its argument has `path`; for a file also `text` (the first
            65,536 characters), `first_line`, `columns(separator)` and `is_json`; for a folder `inside` (the names of its files).
        read: Adds all entries of a file to an `Intake`; raises `InputError` only if nothing can be read.
        has_dates: Whether times are calendar times in seconds; the clock then starts at the first arrival.
        is_strict: Whether a broken entry is an error, as in a list that users write themselves and can correct.
    """

    name: str
    about: str
    recognises: Callable[[FileHead], bool]
    read: Callable[[Path, Intake], None]
    has_dates: bool = False
    is_strict: bool = False

    def recognises_file(self, path: str | Path) -> bool:
        """Return whether a file or folder has this format.

        Args:
            path: The file or folder.

        Raises:
            InputError: It cannot be read.
        """
        return self.recognises(head_of(path))


def table_rows(
    path: str | Path,
    intake: Intake,
    *,
    required: Collection[str] = (),
    columns: Sequence[str] | None = None,
    separator: str = ",",
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield ("file, line n", {column: cell}) for each valid line; other lines are added to `intake` as broken.

    The first line names the columns, unless `columns` is given. Raises `InputError` if a required column is missing.
    """
    names = columns
    for number, line in reading.numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            cells = split(line, separator)
            if names is None:
                names = reading.checked_header(where, cells, required, nameless=True)
                continue
            if len(cells) != len(names):
                by = "the header has" if columns is None else "the table has"
                raise InputError(Fault("", "", f"has {counted(len(cells), 'field')}, but {by} {len(names)}"))
        except InputError as error:
            if names is None:
                raise
            intake.broken(where, *error.faults)
        else:
            yield where, dict(zip(names, cells, strict=True))
    refuse(str(path), (names is None, "", "is empty; a header line with column names is required"))


def split(line: str, separator: str) -> list[str]:
    """Return the stripped cells of a line."""
    if "\0" in line:
        raise InputError(Fault("", "", "contains a NUL character; is this a text file?"))
    if separator != "," or '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    with faults_from("", "is not valid CSV", csv.Error):
        (cells,) = csv.reader([line], strict=True)
    return [cell.strip() for cell in cells]
