"""Takes in what an importer reads, entry by entry: jobs, what is skipped, what is broken, and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.problem.job import Job
from gavel_py.workloads.report import Skipped, TraceReport
from gavel_py.workloads.submission import Submission

__all__ = ["Intake", "SkipError"]


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
