"""The summary of a simulation: figures of its measured jobs, of its GPUs and of its rounds."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from numbers import Integral
from typing import Any

import numpy as np

from gavel_py.allocation.accounting import TenantShare
from gavel_py.problem.arrays import Floats, plain_size
from gavel_py.scheduling.round import exceeded_notes, fallback_text

JobWindow = tuple[int, int]
"""(first, end): the jobs with numbers first to end - 1, in order of arrival, from 0."""


def job_window(value: object) -> JobWindow | None:
    """Return a pair of numbers as a window, or None for all jobs. Raises `ValueError` for anything else."""
    if value is None:
        return None
    numbers = list(value) if isinstance(value, tuple | list) else []
    whole = [int(each) for each in numbers if isinstance(each, Integral) and not isinstance(each, bool)]
    if len(numbers) == len(whole) == 2 and 0 <= whole[0] < whole[1]:
        return whole[0], whole[1]
    text = "must be two whole numbers, the first job by arrival (from 0) and the one after the last, as in (4000, 5000)"
    raise ValueError(f"{text}, found {value!r}")


def window_text(window: JobWindow) -> str:
    """Return a window in the form of the command line, such as "4000:5000"."""
    return f"{window[0]}:{window[1]}"


class Outcome(StrEnum):
    """State of a job when it leaves, or when the simulation ends."""

    FINISHED = "finished"
    """All its steps are done."""
    FAILED = "failed"
    """It failed more often than `max_retries`."""
    CANCELLED = "cancelled"
    """It was cancelled before all its steps were done."""
    ACTIVE = "active"
    """It is still in the system."""


@dataclass(frozen=True)
class Distribution:
    """Mean, median, percentiles and maximum of `count` numbers, each None if there are no numbers; p95 also in older files."""

    count: int
    mean: float | None
    median: float | None
    p90: float | None
    p99: float | None
    max: float | None
    p95: float | None = None

    @classmethod
    def of(cls, numbers: array[float] | Floats) -> Distribution:
        """Return the distribution of an array of numbers.

        Args:
            numbers: the numbers.
        """
        if not len(numbers):
            return cls(0, *[None] * 6)
        values = np.array(numbers)
        return cls(len(values), float(values.mean()), *np.percentile(values, [50, 90, 99, 100, 95]).tolist())

    def to_dict(self) -> dict[str, Any]:
        """Return the distribution as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """Summary of the measured jobs: all jobs, or those of the window `measure_jobs`. Times are in seconds.

    Usage, job_rounds and spread_job_rounds cover all jobs that run between the round in which the first measured job is submitted
    and the round in which the last one leaves.

    Attributes:
        outcomes: number of jobs by outcome.
        jct: completion times of the finished jobs.
        makespan_seconds: from the first arrival to the end of the last job.
        queueing: time in the system without GPUs, of finished jobs.
        queueing_by_gpus: the same by gang size.
        usage: {accelerator type: {"gpu_seconds", "used", "idle", "down", "utilization"}}.
        starts: number of starts of the measured jobs.
        preemptions: number of preemptions of the measured jobs.
        failures: number of failures of the measured jobs.
        with_deadline: number of finished jobs with a deadline.
        late: number of these jobs that missed it.
        cost: cost of the GPUs that jobs held; None if a price is unknown.
        promised_gpu_seconds: GPU-seconds that allocations promised.
        undelivered_gpu_seconds: the part of it that rounds did not deliver.
        rounds: number of rounds of the whole simulation.
        job_rounds: number of running jobs, summed over rounds.
        spread_job_rounds: the part of it on more nodes than necessary.
        solver_seconds: computing time of allocations.
        wall_seconds: time that the whole simulation took.
        measure_jobs: the window, None for all jobs.
        ended_after_arrivals: number of jobs of the window that left after the last arrival of the trace.
        tenants: promised and received shares of each tenant, over the measured jobs; empty if no job names a tenant.
        workflow_jct: completion times of the workflows whose jobs have all finished, from their first arrival to their last end; of
            those with at least one measured job.
        blocked_seconds: time for which jobs waited for other jobs, summed over the measured jobs.
        queueing_elastic: that of elastic jobs.
        fallback_rounds: {policy: {kind: number of rounds}} of the rounds, of the whole simulation, for which no proven answer was
            found (`Round.fallback`).
        limit_rounds: {constraint: {"rounds": number, "exceeded": of these, those above it}} of the limits that hold on average, for
            the whole simulation (docs/constraints.md#in-every-round).
    """

    outcomes: dict[str, int]
    jct: Distribution
    makespan_seconds: float
    queueing: Distribution
    queueing_by_gpus: dict[float, Distribution]
    usage: dict[str, dict[str, float]]
    starts: int
    preemptions: int
    failures: int
    with_deadline: int
    late: int
    cost: float | None
    promised_gpu_seconds: float
    undelivered_gpu_seconds: float
    rounds: int
    job_rounds: int
    spread_job_rounds: int
    solver_seconds: float
    wall_seconds: float
    measure_jobs: JobWindow | None = None
    ended_after_arrivals: int = 0
    tenants: tuple[TenantShare, ...] = ()
    workflow_jct: Distribution = Distribution(0, *[None] * 5)
    blocked_seconds: float = 0.0
    queueing_elastic: Distribution = Distribution(0, *[None] * 5)
    fallback_rounds: dict[str, dict[str, int]] = field(default_factory=dict)
    limit_rounds: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def fallback_text(self) -> str:
        """`fallback_rounds` as a sentence, empty without such rounds."""
        return fallback_text(self.fallback_rounds)

    @property
    def exceeded_notes(self) -> tuple[str, ...]:
        """Notes on the limits of `limit_rounds` that were exceeded."""
        return exceeded_notes(self.limit_rounds)

    @property
    def unfinished(self) -> int:
        """Measured jobs without a completion time: failed, cancelled, still in the system, or not arrived yet."""
        first, end = self.measure_jobs or (0, sum(self.outcomes.values()))
        return end - first - self.outcomes[Outcome.FINISHED.value]

    @property
    def undelivered_share(self) -> float:
        """undelivered_gpu_seconds / promised_gpu_seconds, 0 without promises."""
        return self.undelivered_gpu_seconds / self.promised_gpu_seconds if self.promised_gpu_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        plain = asdict(self)
        by_gpus = {str(size): each for size, each in plain["queueing_by_gpus"].items()}
        more = {"undelivered_share": self.undelivered_share, "unfinished": self.unfinished}
        return plain | more | {"queueing_by_gpus": by_gpus, "tenants": list(plain["tenants"])}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Summary:
        """Restore a summary from `to_dict`.

        Args:
            document: what `to_dict` returned.
        """
        plain = {name: document[name] for name in cls.__dataclass_fields__}
        tenants = tuple(map(TenantShare.from_dict, document["tenants"]))
        by_gpus = {plain_size(float(size)): Distribution(**each) for size, each in document["queueing_by_gpus"].items()}
        parts = {name: Distribution(**document[name]) for name in ("jct", "queueing", "workflow_jct", "queueing_elastic")}
        return cls(
            **plain | parts | {"queueing_by_gpus": by_gpus, "measure_jobs": job_window(plain["measure_jobs"]), "tenants": tenants}
        )
