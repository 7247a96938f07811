"""Rates of running jobs, summarised by entry: number, mean and variance in log space, and age; and rates that contradict the
others.

`observations_in` and `put` read and write them in the tables of a profile store, in either database.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gavel_py.errors import Fault, InputError
from gavel_py.io.records import Finite, NotNegative, Positive, check
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.files import PLACEMENTS, Entry

if TYPE_CHECKING:
    from gavel_py.throughput_profiles.database import DatabaseSession

HALF_LIFE_SECONDS = 30 * 86_400.0
"""Default half-life of observations: 30 days, since drivers and frameworks change."""


@dataclass(frozen=True)
class ObservedRate:
    """The observations of one entry. The weight of each halves with every half-life since it was made.

    Attributes:
        count: Number of observations, reduced by age.
        log_mean: Mean of the logarithm of the rates.
        log_variance: Variance of the logarithm of one rate.
        last_seconds: Time of the latest observation, on the clock of the caller.
    """

    count: float = 0.0
    log_mean: float = 0.0
    log_variance: float = 0.0
    last_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Geometric mean of the rates, in steps/s or the unit of the job type."""
        return math.exp(self.log_mean)

    def aged(self, now_seconds: float, half_life_seconds: float) -> ObservedRate:
        """Return the observations at a later time, with a smaller count."""
        if now_seconds <= self.last_seconds or not self.count:
            return self
        weight = 0.5 ** ((now_seconds - self.last_seconds) / half_life_seconds)
        return ObservedRate(self.count * weight, self.log_mean, self.log_variance, now_seconds)

    def including(self, rate: float, at_seconds: float, half_life_seconds: float) -> ObservedRate:
        """Return the observations with one more. It counts fully, even if it is older than the latest one."""
        before, log = self.aged(at_seconds, half_life_seconds), math.log(rate)
        count, off = before.count + 1, log - before.log_mean
        mean = before.log_mean + off / count
        variance = (before.count * before.log_variance + off * (log - mean)) / count
        return ObservedRate(count, mean, variance, max(at_seconds, before.last_seconds) if before.count else at_seconds)


@dataclass(frozen=True)
class ObservedContradiction:
    """Observed rates that contradict the known throughput of their entry, and are not part of its mean.

    Attributes:
        entry: Job type, gang and accelerator.
        rate: The latest such rate, in steps/s or the unit of the job type.
        expected: The value for comparison: the measurement, the mean of other observations, or the estimate.
        deviations: The difference of the logarithms in standard deviations; infinite if the job should not run there at all.
        at_seconds: Time of the observation.
        count: Number of contradicting observations of the entry so far.
    """

    entry: Entry
    rate: float
    expected: float
    deviations: float
    at_seconds: float
    count: int = 1

    def __str__(self) -> str:
        off = "cannot run there" if math.isinf(self.deviations) else f"{self.deviations:.1f} standard deviations from"
        known = "according to the profile" if math.isinf(self.deviations) else f"the expected {self.expected:.4g}"
        return f"{self.entry} was observed at {self.rate:.4g}, {off} {known}"

    def to_list(self) -> list[Any]:
        """Return the fields as plain data, with None for infinity, which JSON lacks."""
        deviations = None if math.isinf(self.deviations) else self.deviations
        return [self.entry, self.rate, self.expected, deviations, self.at_seconds, self.count]

    @classmethod
    def from_list(cls, fields: Sequence[Any]) -> ObservedContradiction:
        """Return the contradiction from the data of `to_list`."""
        entry, rate, expected, deviations, at_seconds, count = fields
        return cls(Entry(*entry), rate, expected, math.inf if deviations is None else deviations, at_seconds, count)


def entry_of(observed: Entry | Sequence[Any] | Job, accelerator: str | None = None) -> Entry:
    """Return the entry of a job alone and consolidated on an accelerator, or of (job_type, num_gpus, accelerator, ...)."""
    if isinstance(observed, Job):
        if accelerator is None:
            raise InputError(Fault(f"job {observed.job_id!r}", "accelerator", "is required: the type on which the job ran"))
        return Entry(observed.job_type, observed.num_gpus, accelerator)
    is_entry = not isinstance(observed, str) and accelerator is None and 3 <= len(observed) <= len(Entry._fields)
    entry = Entry(*observed) if is_entry else Entry("", 0, "")
    if not (entry.job_type and isinstance(entry.num_gpus, int | float) and entry.num_gpus > 0 and entry.placement in PLACEMENTS):
        problem = (
            "must be (job_type, num_gpus above 0, accelerator), with placement (consolidated or spread) and partner if necessary, "
            "or a job and its accelerator"
        )
        raise InputError(Fault("observation", "entry", f"{problem}; found {observed!r}"))
    return entry


def rate_of(steps: float, seconds: float, at_seconds: float | None = None) -> float:
    """Return steps per second. Raises `InputError` for numbers that are not finite, negative steps, and no time."""
    check("observation", steps=(steps, NotNegative), seconds=(seconds, Positive), at=(at_seconds, Finite | None))
    return steps / seconds


KEY = "job_type, num_gpus, accelerator, placement, partner_job_type"
FIGURES = "count, log_mean, log_variance, last_seconds"

SELECT = f"SELECT {KEY}, {FIGURES} FROM observations WHERE profile = ? ORDER BY id"  # noqa: S608

INSERT = f"""
    INSERT INTO observations (profile, {KEY}, {FIGURES}, half_life_seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (profile, job_type, num_gpus, accelerator, placement, ifnull(partner_job_type, '')) DO UPDATE SET
        count = excluded.count,
        log_mean = excluded.log_mean,
        log_variance = excluded.log_variance,
        last_seconds = excluded.last_seconds,
        half_life_seconds = excluded.half_life_seconds"""  # noqa: S608


def observations_in(session: DatabaseSession, profile: int) -> dict[Entry, ObservedRate]:
    """Return {entry: its observations} of the profile with this number, in the order of the first one of each."""
    found = {}
    for job_type, num_gpus, accelerator, placement, partner, *figures in session.execute(SELECT, (profile,)):
        size = int(num_gpus) if num_gpus == int(num_gpus) else num_gpus
        found[Entry(job_type, size, accelerator, placement, partner)] = ObservedRate(*figures)
    return found


def put(session: DatabaseSession, profile: int, observations: Mapping[Entry, ObservedRate], half_life_seconds: float) -> None:
    """Replace the observations of these entries; half_life_seconds: the half-life with which their counts were reduced."""
    figures = ((e, (o.count, o.log_mean, o.log_variance, o.last_seconds)) for e, o in observations.items())
    session.executemany(INSERT, ((profile, *entry, *numbers, half_life_seconds) for entry, numbers in figures))
