"""What came of reading a trace: how much was read, what was left out and why, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from gavel_py.errors import SHOWN_FAULTS, Fault

__all__ = ["Skipped", "TraceReport", "counted"]


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
