"""The formats of gavel_py: CSV, JSON, JSON Lines and Parquet with the fields of `Job`, and `recorded_` fields of `Submission`.

Parquet needs pyarrow (`gavel-py[parquet]`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, check_type, faults_among, faults_from, unknown_names
from gavel_py.io import reading
from gavel_py.io.names import is_absent
from gavel_py.io.records import number_of
from gavel_py.io.writing import check_libraries
from gavel_py.problem.columns import text_fields
from gavel_py.problem.job import Job
from gavel_py.problem.job_set import RECORDED
from gavel_py.workloads.intake import FileHead, Intake, TraceFormat, amount, count, is_missing, table_rows, wrong_cell
from gavel_py.workloads.submission import LABEL, RECORDED_FIELDS

KNOWN: tuple[str, ...] = (*Job.model_fields, "deadline", *(RECORDED + name for name in RECORDED_FIELDS))
TEXTS = {"status", "accelerator"}
NO_JOBS = re.compile(r'\s*(\[\s*\]|\{\s*"jobs"\s*:\s*\[\s*\]\s*\})\s*')
LITERAL = {*text_fields(Job), *(RECORDED + name for name in TEXTS)}
"""Fields whose values are taken literally: a tenant may be called "none"."""


def is_known(name: str) -> bool:
    """Return whether a column is a field of `Job` or `Submission`, or a label."""
    return name in KNOWN or (name.startswith(LABEL) and name != LABEL)


def _read_csv(path: Path, intake: Intake) -> None:
    where, header = reading.csv_header(path)
    InputError.raise_any(_unknown(where, header, intake))
    rows = table_rows(path, intake, required=(_column_of("job_id", intake),))
    take_rows(((where, {name: cell for name, cell in row.items() if cell}) for where, row in rows), intake)


def _column_of(field: str, intake: Intake) -> str:
    """Return the column that is a field."""
    return next((column for column, name in intake.columns.items() if name == field), field)


def _unknown(where: str, names: Collection[str], intake: Intake) -> list[Fault]:
    """Return a fault for each column that is neither known nor ignored, and for renamed ones that the file lacks or has twice."""
    unknown = (name for name in names if not is_known(name) and name not in intake.ignored and name not in intake.columns)
    return [*unknown_names(where, "", unknown, KNOWN, noun="column"), *_misnamed(where, names, intake)]


def _misnamed(where: str, names: Collection[str], intake: Intake) -> list[Fault]:
    """Return a fault for each renamed column that the file lacks, and for each field that two columns would be."""
    taken = [*intake.columns.values(), *(name for name in names if name not in intake.columns)]
    text = "column {!r} cannot be {!r}, which another column is, too; leave one of them out"
    absent = unknown_names(where, "", intake.columns, names, "is not in the file", noun="column")
    return [*absent, *(Fault(where, "", text.format(*each)) for each in intake.columns.items() if taken.count(each[1]) > 1)]


def _take_objects(rows: Iterable[tuple[str, Any]], intake: Intake) -> None:
    """Add the jobs of JSON objects. Renamed keys are checked when all objects are read, since each may have others."""
    listed = list(rows) if intake.columns else rows
    names = {name for _, row in listed if isinstance(row, Mapping) for name in row} if intake.columns else ()
    InputError.raise_any(_misnamed(intake.source, names, intake) if names else [])
    take_rows(listed, intake)


def _json_lines(path: Path, intake: Intake) -> Iterator[tuple[str, Any]]:
    for number, line in reading.numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            yield where, reading.parse_json(path, line, number)
        except InputError as error:
            intake.broken(where, *(replace(fault, where="") for fault in error.faults))


def take_rows(rows: Iterable[tuple[str, Any]], intake: Intake) -> None:
    """Add the job of each (place, {column: value}) to the intake; None is the default of a field."""
    for where, row in rows:
        with intake.entry(where):
            check_type("", "", row, Mapping, "must be an object of field to value")
            named = ((intake.columns.get(name, name), value) for name, value in row.items() if name not in intake.ignored)
            fields = {str(name): value for name, value in named if not _is_missing(name, value)}
            recorded = {name: _recorded(name, fields.pop(RECORDED + name)) for name in RECORDED_FIELDS if RECORDED + name in fields}
            labels = {name: fields.pop(name) for name in [*fields] if name.startswith(LABEL)}
            texts = ((name.removeprefix(LABEL), _text(name, value)) for name, value in labels.items())
            intake.job(fields, **recorded, labels=tuple(texts))


def _is_missing(name: str, value: Any) -> bool:
    """Return whether a value is absent, or a word for that where a number is expected."""
    if type(value) is not str:
        return is_absent(value)
    return name not in LITERAL and not name.startswith(LABEL) and is_missing(value)


def _text(field: str, value: Any) -> str:
    if isinstance(value, list | Mapping):
        raise wrong_cell(field, "must be text", value)
    return "" if is_absent(value) else str(value)


def _recorded(name: str, value: Any) -> Any:
    """Return the value of a field of `Submission`, converted to its type."""
    field = RECORDED + name
    if name in TEXTS:
        return _text(field, value)
    if name == "failed_attempts":
        return count({field: value}, field)
    if name != "cancelled_seconds":
        return amount({field: value}, field)
    number = number_of(value)  # negative if the clock starts later
    if not math.isfinite(number):
        raise wrong_cell(field, "must be a finite number", value)
    return number


def is_nearly_csv(head: FileHead) -> bool:
    """Return whether a file with unknown columns has mostly those of jobs; reading it then names the unknown ones."""
    columns = head.columns()
    return "job_id" in columns and 2 * sum(map(is_known, columns)) > len(columns)


def _is_json(head: FileHead) -> bool:
    """Return whether the file is a JSON document of jobs, possibly without any."""
    return head.is_json and (('"job_id"' in head.text and not _is_json_lines(head)) or NO_JOBS.fullmatch(head.text) is not None)


def _is_json_lines(head: FileHead) -> bool:
    """Return whether the first line is an object with a job_id; in a document on one line, only the jobs in its list have one."""
    line = head.first_line.strip()
    if not (line.startswith("{") and line.endswith("}")):
        return False
    try:
        return "job_id" in json.loads(line)
    except (ValueError, RecursionError):
        return '"job_id"' in line and '"jobs"' not in line


def _parquet_rows(path: Path, intake: Intake) -> Iterator[tuple[str, Any]]:
    """Yield the rows batch by batch, so that the whole table is never in memory."""
    check_libraries("Parquet files", "parquet", "pyarrow.parquet")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    with faults_from(str(path), "cannot be read as Parquet", ArrowException, OSError), ParquetFile(path) as file:
        names = file.schema_arrow.names
        job_id = _column_of("job_id", intake)
        faults = faults_among(str(path), (job_id not in names, "", f"column {job_id!r} is missing"))
        InputError.raise_any(_unknown(str(path), names, intake) + faults)
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row


CSV = TraceFormat(
    "csv",
    "jobs of gavel-py, CSV",
    lambda head: "job_id" in head.columns() and all(is_known(name) or name in head.ignored for name in head.columns()),
    _read_csv,
    is_strict=True,
)
JSON = TraceFormat(
    "json",
    "jobs of gavel-py, JSON",
    _is_json,
    lambda path, intake: _take_objects(reading.document_rows(path, "jobs"), intake),
    is_strict=True,
)
JSON_LINES = TraceFormat(
    "jsonl",
    "jobs of gavel-py, JSON Lines",
    _is_json_lines,
    lambda path, intake: _take_objects(_json_lines(path, intake), intake),
    is_strict=True,
)
PARQUET = TraceFormat(
    "parquet",
    "jobs of gavel-py, Parquet (needs pyarrow)",
    lambda head: head.text.startswith("PAR1"),
    lambda path, intake: take_rows(_parquet_rows(path, intake), intake),
    is_strict=True,
)


def own_format(head: FileHead) -> TraceFormat:
    """Return which of these formats a file with renamed columns has, whatever their names."""
    line = head.first_line.rstrip()
    is_whole = head.text.lstrip().startswith("[") or '"jobs"' in line or not line.endswith("}")
    return (JSON if is_whole else JSON_LINES) if head.is_json else PARQUET if PARQUET.recognises(head) else CSV
