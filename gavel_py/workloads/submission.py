"""A job of a trace with its recorded history (`Submission`), and the report on reading a trace (`TraceReport`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from gavel_py.errors import SHOWN_FAULTS, Fault, InputError
from gavel_py.problem.job import Job
from gavel_py.problem.job_set import RECORDED


def counted(count: int, word: str = "job") -> str:
    """Return "1 job", "2,000 jobs"."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


@dataclass(frozen=True)
class Skipped:
    """Entries that are valid but not jobs to schedule: the reason, their number, and the place of the first one."""

    reason: str
    count: int
    first: str


@dataclass(frozen=True)
class TraceReport:
    """Report on reading a trace.

    Attributes:
        source: File or folder.
        format: Name of the format.
        num_records: Entries found.
        num_jobs: Entries read as jobs.
        num_broken: Invalid entries, which were skipped.
        skipped: Valid entries that are not jobs to schedule, by reason.
        faults: Faults of the invalid entries.
        assumptions: Sentences, in the order in which the assumptions were made.
    """

    source: str = ""
    format: str = ""
    num_records: int = 0
    num_jobs: int = 0
    num_broken: int = 0
    skipped: tuple[Skipped, ...] = ()
    faults: tuple[Fault, ...] = ()
    assumptions: tuple[str, ...] = ()

    def assuming(self, *sentences: str) -> TraceReport:
        """Return the report with these assumptions appended."""
        return replace(self, assumptions=(*self.assumptions, *sentences))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        return {
            "source": self.source,
            "format": self.format,
            "records": self.num_records,
            "jobs": self.num_jobs,
            "skipped": [{"reason": s.reason, "count": s.count, "first": s.first} for s in self.skipped],
            "broken": self.num_broken,
            "faults": [{"where": f.where, "field": f.field, "problem": f.problem} for f in self.faults],
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        if self.source:
            yield f"{self.source} ({self.format}): {counted(self.num_jobs)} of {self.num_records:,} entries read."
        for skipped in self.skipped:
            yield f"Skipped {skipped.count:,}: {skipped.reason} (first: {skipped.first})."
        if self.num_broken:
            yield f"Ignored {self.num_broken:,} with errors:"
        yield from (f"  {fault}" for fault in self.faults[:SHOWN_FAULTS])
        if len(self.faults) > SHOWN_FAULTS:
            yield f"  ... and {len(self.faults) - SHOWN_FAULTS:,} more faults"
        yield from (f"Assumed: {sentence}" for sentence in self.assumptions)


Status = Literal["", "passed", "killed", "failed"]
STATUSES = frozenset(get_args(Status))


Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Submission:
    """A job of a trace with its recorded history. Policies see only the job; a simulator may replay its history.

    Values that were not recorded are None or "".

    Attributes:
        job: The job, with its submission time `arrival_seconds`.
        run_seconds: Time for which it held its GPUs, summed over all attempts.
        wait_seconds: Queueing time before the first attempt.
        status: "passed", "killed" (by its user, an operator or its time limit) or "failed".
        failed_attempts: Attempts that failed, the last one included if the job failed.
        cancelled_seconds: Time at which it was killed, on the clock of the trace.
        estimate_seconds: Estimate of `run_seconds` before the run, such as a time limit or a mean of the user's jobs.
        accelerator: Accelerator type on which it ran.
        labels: Further columns of the trace that are known on arrival, such as the user: sorted (name, value) pairs without empty
            values.

    >>> Submission(Job("a", arrival_seconds=60), run_seconds=3600, status="passed").job.arrival_seconds
    60.0
    """

    job: Job
    run_seconds: float | None = None
    wait_seconds: float | None = None
    status: Status = ""
    failed_attempts: int = 0
    cancelled_seconds: float | None = None
    estimate_seconds: float | None = None
    accelerator: str = ""
    labels: Labels = ()

    def __post_init__(self) -> None:
        if self.labels:
            object.__setattr__(self, "labels", tuple(sorted((name, value) for name, value in self.labels if value)))
        InputError.raise_any(list(self._faults()))

    def _faults(self) -> Iterator[Fault]:
        for name in ("run_seconds", "wait_seconds", "estimate_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                yield self._fault(name, f"must be a finite number of seconds of at least 0, found {value!r}")
        if self.cancelled_seconds is not None and not math.isfinite(self.cancelled_seconds):
            yield self._fault("cancelled_seconds", f"must be a finite number, found {self.cancelled_seconds!r}")
        if self.status not in STATUSES:
            yield self._fault("status", f"must be passed, killed, failed or empty, found {self.status!r}")
        if self.failed_attempts < 0:
            yield self._fault("failed_attempts", f"must be at least 0, found {self.failed_attempts!r}")

    def _fault(self, field: str, problem: str) -> Fault:
        return Fault(f"job {self.job.job_id!r}", RECORDED + field, problem)

    @property
    def gpu_seconds(self) -> float | None:
        """GPU-seconds of all attempts, or None if `run_seconds` was not recorded."""
        return None if self.run_seconds is None else self.run_seconds * self.job.num_gpus

    def moved(self, arrival_seconds: float) -> Submission:
        """Return the submission at another arrival time; deadline and cancellation time are shifted with it."""
        by = arrival_seconds - self.job.arrival_seconds
        changes: dict[str, float] = {"arrival_seconds": arrival_seconds}
        if self.job.deadline_seconds is not None:
            changes["deadline_seconds"] = self.job.deadline_seconds + by
        cancelled = None if self.cancelled_seconds is None else self.cancelled_seconds + by
        return replace(self, job=self.job.model_copy(update=changes), cancelled_seconds=cancelled)


RECORDED_FIELDS = tuple(field.name for field in fields(Submission) if field.name not in ("job", "labels"))

LABEL = f"{RECORDED}label_"
"""Prefix of the columns of labels."""
"""Fields of a submission besides the job; in files each has the prefix `recorded_`."""
