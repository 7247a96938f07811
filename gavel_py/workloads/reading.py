"""Reading traces of all known formats, and writing them in the formats of gavel_py.

`read_trace` restores a trace that `trace_text` wrote; `JobSet.from_file` reads only its jobs.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, UnknownNameError, check_known, refuse, unknown_names
from gavel_py.io.records import without_collection
from gavel_py.problem.job import Job
from gavel_py.problem.job_set import RECORDED, check_ignored
from gavel_py.workloads.formats import format_of
from gavel_py.workloads.formats.native import KNOWN, is_known
from gavel_py.workloads.intake import EPOCH, Intake, TraceFormat
from gavel_py.workloads.submission import LABEL, RECORDED_FIELDS, Submission
from gavel_py.workloads.trace import Trace

YEAR_2000 = (datetime(2000, 1, 1) - EPOCH).total_seconds()
BEFORE_2000 = "Jobs that arrived before the year 2000, possibly by an unknown time: {n} (first: {first})."


def read_trace(
    path: str | Path,
    format: str | TraceFormat | None = None,  # noqa: A002
    *,
    strict: bool = False,
    ignore: Collection[str] = (),
    columns: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> Trace:
    """Read a trace. Dates become seconds since the first arrival.

    Args:
        path: A file, or a folder for formats of several files.
        format: Name of the format (`trace_formats`), a `TraceFormat`, or package.module:name of one; by default it is recognised
            from the content.
        strict: Whether broken entries are an error, as they always are in files of jobs (csv, json, jsonl, parquet). By default
            they are skipped, and `report` has the file, line and field of each.
        ignore: Unknown columns or keys of a file of jobs (csv, json, jsonl, parquet) to leave out, which would otherwise be an
            error. Other formats always leave out unknown columns.
        columns: {column or key of a file of jobs: the field that it is}, such as {"submit": "arrival_seconds"}.
        fill: {field of a job: its value for all jobs for which the file has none}.
        now: When `deadline` of jobs counts from, by default the present.

    Raises:
        UnknownNameError: There is no such format, or no such field in `columns` or `fill`.
        InputError: A name in `ignore` is a field of a job; the file lacks a column in `columns`; or it cannot be read or
            recognised, has no valid job, or has broken entries and `strict` is true or the file is one of jobs.
    """
    check_ignored("trace", ignore)
    fields = [name for name in (columns or {}).values() if not is_known(name)]
    faults = unknown_names("trace", "columns", fields, KNOWN, "is not a field of a job")
    UnknownNameError.raise_any(faults + unknown_names("trace", "fill", fill or (), Job.model_fields, "is not a field of a job"))
    trace_format = format_of(path, format, ignore, columns or ())
    intake = Intake(str(path), trace_format.name, ignore, columns=columns, fill=fill, now=now)
    with without_collection():
        trace_format.read(Path(path), intake)
        if strict or trace_format.is_strict:
            InputError.raise_any(intake.faults)
        if not intake.submissions and intake.faults:
            raise InputError(Fault(str(path), "", f"contains no job that can be read as {trace_format.name!r}"), *intake.faults)
        if trace_format.has_dates and intake.submissions:
            early = [each.job.place for each in intake.submissions if each.job.arrival_seconds < YEAR_2000]
            if early:
                intake.assume(BEFORE_2000, len(early), where=early[0])
            zero = min(submission.job.arrival_seconds for submission in intake.submissions)
            for index, each in enumerate(intake.submissions):  # in place, to reuse the memory of the old ones
                intake.submissions[index] = each.moved(each.job.arrival_seconds - zero)
            date = datetime.fromtimestamp(zero, UTC).strftime("%Y-%m-%d %H:%M:%S")
            intake.assume(f"The clock starts with the first arrival, {date}; times without a time zone count as UTC.")
        return Trace(intake.submissions, intake.report()).complete()


BREAKS = frozenset("\n\r\0")
"""Characters that no cell may contain, since traces are read line by line."""

INSTEAD = "write JSON Lines instead (.jsonl)"

ALWAYS = ("job_id", "job_type", "num_gpus", "arrival_seconds")


def trace_text(trace: Trace, format: str = "csv") -> str:  # noqa: A002
    """Return the trace as text. Columns with only default values are omitted.

    Args:
        trace: The trace.
        format: "csv", "json" or "jsonl".

    Raises:
        InputError: The format is none of these, or CSV cannot hold a value: a text with a line break, or a list of names of which
            one contains "|".
    """
    check_known("trace", "format", [format], ["csv", "json", "jsonl"], "cannot be written")
    if format == "csv":
        return _csv(trace)
    if format == "json":
        return "[\n" + ",\n".join(_json_objects(trace)) + "\n]\n"
    return "".join(f"{line}\n" for line in _json_objects(trace))


def _csv(trace: Trace) -> str:
    columns = _columns(trace)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for submission in trace:
        values = _values(submission)
        cells = [_cell(values.get(column)) for column in columns]
        if not BREAKS.isdisjoint("".join(cells)) or any(isinstance(value, tuple) for value in values.values()):
            _check_cells(submission, values)
        writer.writerow(cells)
    return buffer.getvalue()


def _check_cells(submission: Submission, values: Mapping[str, Any]) -> None:
    """Raise `InputError` for values that would be read from CSV as something else, or not at all."""
    breaks, bars = "contains a line break, which CSV cannot hold", 'contains "|", which separates the names of a list in CSV'
    cases: list[tuple[object, str, str]] = []
    for field, value in values.items():
        has_bar = isinstance(value, tuple) and any("|" in str(each) for each in value)
        cases.append((not BREAKS.isdisjoint(_cell(value)), field, f"{breaks}: {value!r}; {INSTEAD}"))
        cases.append((has_bar, field, f"{bars}: {value!r}; {INSTEAD}"))
    refuse(submission.job.where, *cases)


def _json_objects(trace: Trace) -> list[str]:
    columns = _columns(trace)
    return [
        json.dumps({column: values[column] for column in columns if values.get(column) is not None}, ensure_ascii=False)
        for values in map(_values, trace)
    ]


def _columns(trace: Trace) -> list[str]:
    """Return the columns in which any job differs from the default."""
    defaults = {name: field.default for name, field in Job.model_fields.items()}
    unrecorded = Submission(Job("any"))
    defaults |= {RECORDED + name: getattr(unrecorded, name) for name in RECORDED_FIELDS}
    used = set(ALWAYS)
    for submission in trace:
        used |= {name for name, value in _values(submission).items() if name not in used and value != defaults.get(name)}
    return [name for name in defaults if name in used] + sorted(used - defaults.keys())


def _values(submission: Submission) -> dict[str, Any]:
    values = {name: getattr(submission.job, name) for name in Job.model_fields}
    if submission.job.is_elastic:
        values["num_gpus"] = None  # it follows from the other fields
    for name in RECORDED_FIELDS:
        values[RECORDED + name] = getattr(submission, name)
    return values | {LABEL + name: value for name, value in submission.labels}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "|".join(map(str, value)) if isinstance(value, tuple) else str(value)
