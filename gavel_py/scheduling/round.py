"""What one round decided: the GPUs of each job that runs, what changed since the round before, and the leases of the jobs.

A `Lease` is a job's right to its GPUs: until when it has them, and whether it keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gavel_py.scheduling.placement.topology import Gpu


@dataclass(frozen=True)
class Assignment:
    """GPUs of one accelerator type for one job; gpus: (node, index) pairs, as many as its gang.

    shared_with: the jobs that run on the same GPUs; it is the same assignment whoever they are, and nobody restarts for them;
    gpu_part: the part of its GPU that the job asked for, 1 of a whole gang.
    """

    accelerator: str
    gpus: list[Gpu]
    shared_with: tuple[str, ...] = field(default=(), compare=False, repr=False)
    gpu_part: float = field(default=1.0, compare=False, repr=False)

    @cached_property
    def num_nodes(self) -> int:
        """On how many nodes the GPUs are."""
        return len({node for node, _ in self.gpus})

    @cached_property
    def gpu_share(self) -> float:
        """The GPUs that count as this job's: its part of one, or of a whole gang's an equal part for each who has them."""
        return self.gpu_part if self.gpu_part < 1 else len(self.gpus) / (1 + len(self.shared_with))

    def to_dict(self) -> dict[str, Any]:
        """Return the assignment as plain data."""
        company = {"shared_with": list(self.shared_with)} if self.shared_with else {}
        part = {"gpu_part": self.gpu_part} if self.gpu_part < 1 else {}
        return {"accelerator": self.accelerator, "gpus": [list(gpu) for gpu in self.gpus], **company, **part}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Assignment:
        """Return the assignment that `to_dict` described."""
        gpus = [(node, index) for node, index in document["gpus"]]
        return cls(document["accelerator"], gpus, tuple(document.get("shared_with", ())), document.get("gpu_part", 1.0))


@dataclass(frozen=True)
class Round:
    """One round. All job ids are sorted.

    assignments: {job_id: Assignment} of the jobs that run, the disjoint union of kept and started;
    kept: run on the same GPUs as in the previous round; started: run, but not so (new, resumed or moved);
    preempted: ran in the previous round, are not finished, and do not run now;
    excluded: {job_id: reason} of the jobs that the allocation in force leaves out;
    end_seconds: when the leases of this round end, those that are not renewed;
    failed: {job_id: reason} of the jobs that left since the previous round because they failed too often;
    notes: what should be known of the allocation in force, such as that a time limit has ended its solve.
    """

    index: int
    start_seconds: float
    assignments: dict[str, Assignment]
    kept: tuple[str, ...]
    started: tuple[str, ...]
    preempted: tuple[str, ...]
    excluded: dict[str, str]
    end_seconds: float
    failed: dict[str, str]
    notes: tuple[str, ...] = ()

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
            "end_seconds": self.end_seconds,
            "failed": dict(self.failed),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Round:
        """Return the round that `to_dict` described."""
        assignments = {job_id: Assignment.from_dict(held) for job_id, held in document["assignments"].items()}
        lists = {name: tuple(document[name]) for name in ("kept", "started", "preempted")}
        return cls(**{**document, **lists, "assignments": assignments, "notes": tuple(document.get("notes", ()))})


@dataclass(frozen=True)
class Lease:
    """The GPUs that a job holds now.

    end_seconds: it has them until then; renewed: whether it keeps them in the next round, so that it need not write a checkpoint;
    None while the next round has not been planned.
    """

    assignment: Assignment
    end_seconds: float
    renewed: bool | None = None
