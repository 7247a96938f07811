"""Reading a trace of any known format, and writing one so that it can be read again.

Of what `trace_text` writes, `read_trace` makes the same trace and `JobSet.from_file` its jobs.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.problem.job import RECORDED, Job
from gavel_py.workloads.formats import importer_of
from gavel_py.workloads.intake import Intake, without_collection
from gavel_py.workloads.submission import RECORDED_FIELDS, Submission
from gavel_py.workloads.trace import Trace


def read_trace(path: str | Path, format: str | None = None, *, strict: bool = False) -> Trace:  # noqa: A002
    """Read a trace; its format is recognised by its content unless `format` names it (`trace_formats`).

    What is broken is left out and told in `report` with file, line and field; with `strict` it is an `InputError`. Dates become
    seconds since the first arrival.
    """
    importer = importer_of(path, format)
    intake = Intake(str(path), importer.name)
    with without_collection():
        importer.read(Path(path), intake)
        if strict:
            InputError.raise_any(intake.faults)
        if not intake.submissions and intake.faults:
            raise InputError(Fault(str(path), "", f"holds no job that can be read as {importer.name!r}"), *intake.faults)
        if importer.has_dates and intake.submissions:
            _count_from_zero(intake)
        return Trace(intake.submissions, intake.report())


def _count_from_zero(intake: Intake) -> None:
    submissions = intake.submissions
    zero = min(submission.job.arrival_seconds for submission in submissions)
    for index, submission in enumerate(submissions):
        submissions[index] = submission.moved(submission.job.arrival_seconds - zero)
    date = datetime.fromtimestamp(zero, UTC).strftime("%Y-%m-%d %H:%M:%S")
    intake.assume(f"The clock starts with the first arrival, {date}; time zones are not taken into account.")


ALWAYS = ("job_id", "job_type", "num_gpus", "arrival_seconds")


def trace_text(trace: Trace, format: str = "csv") -> str:  # noqa: A002
    """Return the trace as text of our own format: csv, json or jsonl. Columns that say nothing are left out."""
    writers: dict[str, Callable[[Trace], str]] = {"csv": _csv, "json": _json, "jsonl": _json_lines}
    if format not in writers:
        raise InputError(Fault("trace", "format", f"{format!r} cannot be written{nearest(format, writers)}"))
    return writers[format](trace)


def _csv(trace: Trace) -> str:
    columns = _columns(trace)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for submission in trace:
        values = _values(submission)
        writer.writerow([_cell(values[column]) for column in columns])
    return buffer.getvalue()


def _json(trace: Trace) -> str:
    return "[\n" + ",\n".join(_json_objects(trace)) + "\n]\n"


def _json_lines(trace: Trace) -> str:
    return "".join(f"{line}\n" for line in _json_objects(trace))


def _json_objects(trace: Trace) -> list[str]:
    columns = _columns(trace)
    return [
        json.dumps({column: values[column] for column in columns if values[column] is not None}, ensure_ascii=False)
        for values in map(_values, trace)
    ]


def _columns(trace: Trace) -> list[str]:
    """The columns in which some job differs from what an empty cell means."""
    defaults = {name: field.default for name, field in Job.model_fields.items()}
    defaults |= {RECORDED + name: _recorded_defaults()[name] for name in RECORDED_FIELDS}
    used = set(ALWAYS)
    for submission in trace:
        used |= {name for name, value in _values(submission).items() if name not in used and value != defaults[name]}
    return [name for name in defaults if name in used]


def _recorded_defaults() -> dict[str, Any]:
    plain = Submission(Job("any"))
    return {name: getattr(plain, name) for name in RECORDED_FIELDS}


def _values(submission: Submission) -> dict[str, Any]:
    values = {name: getattr(submission.job, name) for name in Job.model_fields}
    for name in RECORDED_FIELDS:
        values[RECORDED + name] = getattr(submission, name)
    return values


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "|".join(value) if isinstance(value, tuple) else str(value)
