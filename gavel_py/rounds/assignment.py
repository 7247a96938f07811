"""What one round decided: the GPUs of each job that runs, and what changed since the round before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gavel_py.rounds.free_gpus import Gpu

__all__ = ["Assignment", "Round"]


@dataclass(frozen=True)
class Assignment:
    """GPUs of one accelerator type for one job; gpus: (node, index) pairs, as many as its gang."""

    accelerator: str
    gpus: list[Gpu]

    def to_dict(self) -> dict[str, Any]:
        """Return the assignment as plain data."""
        return {"accelerator": self.accelerator, "gpus": [list(gpu) for gpu in self.gpus]}


@dataclass(frozen=True)
class Round:
    """One round. All job ids are sorted.

    assignments: {job_id: Assignment} of the jobs that run, the disjoint union of kept and started;
    kept: run on the same GPUs as in the previous round; started: run, but not so (new, resumed or moved);
    preempted: ran in the previous round, are not finished, and do not run now;
    excluded: {job_id: reason} of the jobs that the allocation in force leaves out.
    """

    index: int
    start_seconds: float
    assignments: dict[str, Assignment]
    kept: tuple[str, ...]
    started: tuple[str, ...]
    preempted: tuple[str, ...]
    excluded: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the round as plain data."""
        return {
            "index": self.index,
            "start_seconds": self.start_seconds,
            "assignments": {job_id: assignment.to_dict() for job_id, assignment in self.assignments.items()},
            "kept": list(self.kept),
            "started": list(self.started),
            "preempted": list(self.preempted),
            "excluded": dict(self.excluded),
        }
