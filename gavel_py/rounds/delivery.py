"""What the allocations promised and what the rounds delivered, for all to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gavel_py.rounds.waits import WAITS, Wait

__all__ = ["DeliveryReport", "JobDelivery"]

SOME = 1e-6
"""Seconds; what is short by less is not short."""


@dataclass(frozen=True)
class JobDelivery:
    """One job's account, in seconds of its whole gang by accelerator type; of a gang that changed its size, as it is now.

    Time on a type beyond what was promised there (from GPUs that would have idled) does not make up for a shortfall on another.
    misplaced_seconds: of the delivered time, that on more nodes than was promised, or on fewer, where that is slower.
    """

    job_id: str
    num_gpus: float
    promised_by_type: dict[str, float]
    delivered_by_type: dict[str, float]
    waits: dict[Wait, int] = field(default_factory=dict)
    misplaced_seconds: float = 0.0

    @property
    def why(self) -> Wait | None:
        """Why it waited most often while it was owed time, the first of equals; None if it never did, or lacks nothing."""
        return max(self.waits, key=lambda reason: self.waits[reason]) if self.waits and self.shortfall_seconds > SOME else None

    @property
    def promised_seconds(self) -> float:
        """Σ_j promised_ij, the time fractions in force summed over the rounds."""
        return sum(self.promised_by_type.values())

    @property
    def delivered_seconds(self) -> float:
        """Σ_j delivered_ij, the rounds in which it ran."""
        return sum(self.delivered_by_type.values())

    @property
    def shortfall_seconds(self) -> float:
        """Σ_j max(0, promised_ij − delivered_ij)."""
        return sum(max(0.0, promised - self.delivered_by_type[name]) for name, promised in self.promised_by_type.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {
            "job_id": self.job_id,
            "num_gpus": self.num_gpus,
            "promised_seconds": self.promised_seconds,
            "delivered_seconds": self.delivered_seconds,
            "shortfall_seconds": self.shortfall_seconds,
            "misplaced_seconds": self.misplaced_seconds,
            "waits": {reason.name.lower(): count for reason, count in self.waits.items()},
            "promised_by_type": dict(self.promised_by_type),
            "delivered_by_type": dict(self.delivered_by_type),
        }


@dataclass(frozen=True)
class DeliveryReport:
    """Promised and delivered time of every job that any allocation so far counted in, by job_id; sums are weighted by GPUs."""

    jobs: dict[str, JobDelivery]

    @property
    def promised_gpu_seconds(self) -> float:
        """Σ_i s_i · promised seconds."""
        return sum(job.num_gpus * job.promised_seconds for job in self.jobs.values())

    @property
    def delivered_gpu_seconds(self) -> float:
        """Σ_i s_i · delivered seconds, those beyond the promise included."""
        return sum(job.num_gpus * job.delivered_seconds for job in self.jobs.values())

    @property
    def shortfall_gpu_seconds(self) -> float:
        """Σ_i s_i · shortfall seconds."""
        return sum(job.num_gpus * job.shortfall_seconds for job in self.jobs.values())

    @property
    def misplaced_gpu_seconds(self) -> float:
        """Σ_i s_i · misplaced seconds."""
        return sum(job.num_gpus * job.misplaced_seconds for job in self.jobs.values())

    @property
    def undelivered_share(self) -> float:
        """Shortfall over promise, in GPU-seconds; 0 when nothing was promised."""
        promised = self.promised_gpu_seconds
        return self.shortfall_gpu_seconds / promised if promised else 0.0

    @property
    def shortfall_by_reason(self) -> dict[Wait, float]:
        """Σ_i s_i · shortfall seconds by why jobs waited: each job's in parts of the rounds that it waited for each reason."""
        found = dict.fromkeys(WAITS, 0.0)
        for job in self.jobs.values():
            rounds = sum(job.waits.values())
            for reason, count in job.waits.items():
                found[reason] += job.num_gpus * job.shortfall_seconds * count / rounds
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "promised_gpu_seconds": self.promised_gpu_seconds,
            "delivered_gpu_seconds": self.delivered_gpu_seconds,
            "shortfall_gpu_seconds": self.shortfall_gpu_seconds,
            "misplaced_gpu_seconds": self.misplaced_gpu_seconds,
            "undelivered_share": self.undelivered_share,
            "shortfall_by_reason": {reason.name.lower(): seconds for reason, seconds in self.shortfall_by_reason.items()},
            "jobs": [job.to_dict() for job in self.jobs.values()],
        }
