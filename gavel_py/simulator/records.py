"""What became of one job of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

__all__ = ["FIELDS", "JobRecord", "Outcome"]


class Outcome(StrEnum):
    """How a job stands when it leaves, or when the simulation ends."""

    FINISHED = "finished"
    """All its steps are done."""
    FAILED = "failed"
    """It failed more often than it may be tried again."""
    CANCELLED = "cancelled"
    """It was cancelled before it was done."""
    ACTIVE = "active"
    """It is still in the system."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job; times are seconds on the clock of the trace, None where something has not happened.

    jct_seconds: from arrival to end, of finished jobs; running_seconds: while it held GPUs; queueing_seconds: in the system without
    any; gpu_seconds: num_gpus · running_seconds; lost_gpu_seconds: of these, starting and work that was lost; starts: how often it
    was given GPUs that it did not have; preemptions: how often it lost GPUs before it was done; failures: how often it failed;
    late_seconds: by how much it missed its deadline, 0 in time, None without one; cost: of the GPUs that it held, in the unit of
    their prices per hour, None if one has no price; promised_seconds, undelivered_seconds: of its gang, as in `JobDelivery`;
    reason: why it got no GPUs, if it was left out at the end; measured: whether it is of the window that is measured
    (`measure_jobs` of `Simulation`), so that it counts in the summary.
    """

    job_id: str
    job_type: str
    num_gpus: float
    tenant: str
    outcome: Outcome
    arrival_seconds: float
    first_start_seconds: float | None
    end_seconds: float | None
    jct_seconds: float | None
    queueing_seconds: float
    running_seconds: float
    gpu_seconds: float
    lost_gpu_seconds: float
    starts: int
    preemptions: int
    failures: int
    steps_done: float
    total_steps: float
    late_seconds: float | None
    cost: float | None
    promised_seconds: float
    undelivered_seconds: float
    reason: str = ""
    measured: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self) | {"outcome": self.outcome.value}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobRecord:
        """Return the record that `to_dict` described."""
        return cls(**{**document, "outcome": Outcome(document["outcome"])})


FIELDS = tuple(field.name for field in fields(JobRecord))
"""The names of a record's fields, in order: the columns of a table of jobs."""
