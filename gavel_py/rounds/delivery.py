"""What the allocations promised, what the rounds delivered, and what is still owed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.rounds.waits import WAITS, Wait

__all__ = ["DeliveryLedger", "DeliveryReport", "JobDelivery"]

Floats = NDArray[np.float64]

SOME = 1e-6
"""Seconds; what is short by less is not short."""

# A job that idle GPUs served beyond its fraction has taken from nobody; counted in full, that time would be held against it for as
# long as it took to "pay it back" once GPUs are scarce. So nobody waits longer than ten rounds for being ahead, or until the round
# is paid back by which an honest turn can put a job ahead. More must not be forgotten: what others
# are owed sums to it.
LONGEST_PAYBACK_ROUNDS = 10.0
# A fraction that no round can deliver (two gangs of 2 on 3 GPUs) builds up a debt without end, which would crowd out all others
# when the cluster or the job set changes. Ten rounds keep such a job in front; what it lost stays in the report.
MOST_OWED_ROUNDS = 10.0


@dataclass(frozen=True)
class JobDelivery:
    """One job's account, in seconds of its whole gang by accelerator type; of a gang that changed its size, as it is now.

    Time on a type beyond what was promised there (from GPUs that would have idled) does not make up for a shortfall on another.
    """

    job_id: str
    num_gpus: int
    promised_by_type: dict[str, float]
    delivered_by_type: dict[str, float]
    waits: dict[Wait, int] = field(default_factory=dict)

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
            "undelivered_share": self.undelivered_share,
            "shortfall_by_reason": {reason.name.lower(): seconds for reason, seconds in self.shortfall_by_reason.items()},
            "jobs": [job.to_dict() for job in self.jobs.values()],
        }


class DeliveryLedger:
    """The accounts of all jobs over all rounds. K accelerator types, the same throughout; a job gets its row when first seen.

    A deficit is the running balance in rounds: D_ij += X_ij − received_ij each round, whatever the allocation, kept between
    −max(1, LONGEST_PAYBACK_ROUNDS·X_ij) and MOST_OWED_ROUNDS, and dropped where the job can no longer run.
    """

    def __init__(self, accelerator_types: Sequence[str]) -> None:
        self.accelerator_types = tuple(accelerator_types)
        self._rows: dict[str, int] = {}
        self._num_gpus: list[int] = []
        self._promised, self._delivered, self._deficits, self._received = (
            np.zeros((0, len(self.accelerator_types))) for _ in range(4)
        )
        self._waits = np.zeros((0, len(WAITS)))

    def deficits(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) D_ij, rounds owed; 0 for jobs not seen yet."""
        return self._looked_up(self._deficits, job_ids)

    def received(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) rounds received since the allocation in force began; 0 for jobs not seen yet."""
        return self._looked_up(self._received, job_ids)

    def knows(self, job_ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return (N,) the jobs that have an account."""
        return np.array([job_id in self._rows for job_id in job_ids], dtype=bool)

    def begin_allocation(self) -> None:
        """Say that the rounds entered from now on follow a new allocation."""
        self._received[:] = 0.0

    def record(
        self,
        job_ids: Sequence[str],
        num_gpus: NDArray[np.int64],
        runnable: NDArray[np.bool_],
        fractions: Floats,
        columns: NDArray[np.int64],
        round_seconds: float,
        waits: NDArray[np.int64] | None = None,
    ) -> None:
        """Enter one round: the (N, K) fractions in force, and the (N,) columns on which jobs ran, -1 = none.

        waits: (N,) why the others waited (`waits_of`).
        """
        rows = self._rows_of(job_ids, num_gpus)
        if waits is not None:
            self._waits[rows] += waits[:, None] == np.arange(len(WAITS))
        received = (columns[:, None] == np.arange(len(self.accelerator_types))).astype(float)
        self._promised[rows] += fractions * round_seconds
        self._delivered[rows] += received * round_seconds
        self._received[rows] += received
        most_ahead = -np.maximum(1.0, LONGEST_PAYBACK_ROUNDS * fractions)
        balance = np.clip(self._deficits[rows] + fractions - received, most_ahead, MOST_OWED_ROUNDS)
        self._deficits[rows] = np.where(runnable, balance, 0.0)

    def take_back(self, job_id: str, accelerator: str, round_seconds: float) -> None:
        """Enter that a job lost its GPUs of this type in the round entered last: it did not receive it after all."""
        row, column = self._rows[job_id], self.accelerator_types.index(accelerator)
        self._delivered[row, column] -= round_seconds
        self._waits[row, WAITS.index(Wait.NODE)] += 1
        self._received[row, column] = max(0.0, self._received[row, column] - 1.0)
        self._deficits[row, column] = min(self._deficits[row, column] + 1.0, MOST_OWED_ROUNDS)

    def forget(self, job_ids: Set[str]) -> None:
        """Drop the accounts of jobs."""
        kept = {job_id: row for job_id, row in self._rows.items() if job_id not in job_ids}
        rows = list(kept.values())
        self._rows = {job_id: row for row, job_id in enumerate(kept)}
        self._num_gpus = [self._num_gpus[row] for row in rows]
        self._promised, self._delivered, self._deficits, self._received, self._waits = (
            table[rows] for table in (self._promised, self._delivered, self._deficits, self._received, self._waits)
        )

    def report(self) -> DeliveryReport:
        """Return all accounts, sorted by job_id."""
        return DeliveryReport({job_id: self._account(job_id, row) for job_id, row in sorted(self._rows.items())})

    def account(self, job_id: str) -> JobDelivery | None:
        """Return the account of one job, None if it has none."""
        return self._account(job_id, self._rows[job_id]) if job_id in self._rows else None

    def _looked_up(self, table: Floats, job_ids: Sequence[str]) -> Floats:
        """The rows of these jobs, 0 for jobs not seen yet."""
        found = np.zeros((len(job_ids), len(self.accelerator_types)))
        known = [(i, self._rows[job_id]) for i, job_id in enumerate(job_ids) if job_id in self._rows]
        if known:
            here, there = np.array(known).T
            found[here] = table[there]
        return found

    def _account(self, job_id: str, row: int) -> JobDelivery:
        promised, delivered = (
            dict(zip(self.accelerator_types, table[row].tolist(), strict=True)) for table in (self._promised, self._delivered)
        )
        waits = {reason: int(count) for reason, count in zip(WAITS, self._waits[row].tolist(), strict=True) if count}
        return JobDelivery(job_id, self._num_gpus[row], promised, delivered, waits)

    def _rows_of(self, job_ids: Sequence[str], num_gpus: NDArray[np.int64]) -> list[int]:
        """The row of each job; new jobs get rows of zeros."""
        for job_id, gang in zip(job_ids, num_gpus.tolist(), strict=True):
            if job_id not in self._rows:
                self._rows[job_id] = len(self._rows)
                self._num_gpus.append(gang)
            elif gang != self._num_gpus[self._rows[job_id]]:
                self._resize(self._rows[job_id], gang)
        new = ((0, len(self._rows) - len(self._deficits)), (0, 0))
        if new[0][1]:
            self._promised, self._delivered, self._deficits, self._received, self._waits = (
                np.pad(table, new) for table in (self._promised, self._delivered, self._deficits, self._received, self._waits)
            )
        return [self._rows[job_id] for job_id in job_ids]

    def _resize(self, row: int, gang: int) -> None:
        """Count what a gang of another size was promised and had in seconds of the gang of now, GPU-seconds being the same."""
        for table in (self._promised, self._delivered):
            table[row] *= self._num_gpus[row] / gang
        self._num_gpus[row] = gang
