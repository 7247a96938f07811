"""One job as a trace tells of it, what became of it when it ran, and the report on reading a trace.

`TraceReport`: how much was read, what was left out and why, and what was assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from gavel_py.errors import SHOWN_FAULTS, Fault, InputError
from gavel_py.problem.job import RECORDED, Job


def counted(count: int, word: str = "job") -> str:
    """Return "1 job", "2,000 jobs"."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


@dataclass(frozen=True)
class Skipped:
    """Entries that are sound, but no jobs to schedule: why, how many, and where the first of them stands."""

    reason: str
    count: int
    first: str


@dataclass(frozen=True)
class TraceReport:
    """What was read of a trace, what was not, and what was assumed.

    source, format: from where; num_records: entries found; num_jobs: of them read as jobs; num_broken: left out since they are
    wrong, `faults` says where and why; skipped: left out although sound; assumptions: sentences, in the order in which they were
    made.
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
        """Return the report with further assumptions."""
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
            yield f"Left out {self.num_broken:,} broken:"
        yield from (f"  {fault}" for fault in self.faults[:SHOWN_FAULTS])
        if len(self.faults) > SHOWN_FAULTS:
            yield f"  ... and {len(self.faults) - SHOWN_FAULTS:,} more faults"
        yield from (f"Assumed: {sentence}" for sentence in self.assumptions)


Status = Literal["", "passed", "killed", "failed"]

STATUSES = frozenset(get_args(Status))


@dataclass(frozen=True, slots=True)
class Submission:
    """A job of a trace, with what was recorded of its past; a policy sees the job only, a simulator may replay the rest.

    job: what was submitted, and when (`arrival_seconds`);
    run_seconds: how long it held its GPUs, all its attempts together; wait_seconds: how long it had waited before its first one;
    status: how it ended: passed, killed (by its user, an operator or its time limit), failed, or "" where the trace does not say;
    failed_attempts: attempts that ended in a failure, the last one included if the job failed;
    cancelled_seconds: when it was killed, on the clock of the trace;
    estimate_seconds: what was expected of run_seconds before it ran, such as a time limit or a mean of its user's jobs;
    accelerator: the type of GPU that it ran on. None and "" mean: not recorded.

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

    def __post_init__(self) -> None:
        InputError.raise_any(list(self._faults()))

    def _faults(self) -> Iterator[Fault]:
        lengths = (
            ("run_seconds", self.run_seconds),
            ("wait_seconds", self.wait_seconds),
            ("estimate_seconds", self.estimate_seconds),
        )
        for name, value in lengths:
            if value is not None and not 0 <= value < math.inf:
                yield self._fault(name, f"must be a finite number of seconds, at least 0, found {value!r}")
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
        """GPUs times seconds that it held them; None where that is not recorded."""
        return None if self.run_seconds is None else self.run_seconds * self.job.num_gpus

    def moved(self, arrival_seconds: float) -> Submission:
        """Return the same job submitted at another time; what follows from that time moves with it."""
        by = arrival_seconds - self.job.arrival_seconds
        changes: dict[str, float] = {"arrival_seconds": arrival_seconds}
        if self.job.deadline_seconds is not None:
            changes["deadline_seconds"] = self.job.deadline_seconds + by
        cancelled = None if self.cancelled_seconds is None else self.cancelled_seconds + by
        return replace(self, job=self.job.model_copy(update=changes), cancelled_seconds=cancelled)


RECORDED_FIELDS = tuple(field.name for field in fields(Submission) if field.name != "job")
"""What a submission holds besides the job; in files each has the prefix `recorded_`."""
