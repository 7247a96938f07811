"""Reading a trace of any format that is known."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from gavel_py.errors import Fault, InputError
from gavel_py.workloads.collecting import without_collection
from gavel_py.workloads.formats import importer_of
from gavel_py.workloads.intake import Intake
from gavel_py.workloads.trace import Trace

__all__ = ["read_trace"]


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
