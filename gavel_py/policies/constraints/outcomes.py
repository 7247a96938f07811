"""What became of the constraints: which an allocation keeps, and by how much it misses those that are soft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.linear_rows import Asked, Limit, Need, Rules, shortfalls
from gavel_py.optimization.time_shares import ClassTimes, JobTimes

__all__ = ["ConstraintOutcome", "outcomes_of"]

Floats = NDArray[np.float64]

KEPT = 1e-8
"""A part by which a constraint is missed that is no more than the tolerance of a solver."""


@dataclass(frozen=True)
class ConstraintOutcome:
    """What became of one constraint.

    constraint: it in words; penalty: None where it must hold; missed_by: the part of what it asks for that is missed, summed over
    jobs where it is about single jobs (for a cost of change: the GPUs that change hands); the objective loses penalty · missed_by;
    jobs: the part by which each job misses it; price: what the objective gains per unit by which a limit is less strict, for the
    first small part of one; None where it is no limit or no price is known.
    """

    constraint: str
    penalty: float | None = None
    missed_by: float = 0.0
    jobs: Mapping[str, float] = field(default_factory=dict)
    price: float | None = None

    @property
    def kept(self) -> bool:
        """Whether all that it asks for is kept."""
        return self.missed_by == 0

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {
            "constraint": self.constraint,
            "soft": self.penalty,
            "kept": self.kept,
            "missed_by": self.missed_by,
            "jobs": dict(self.jobs),
            "price": self.price,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ConstraintOutcome:
        """Return the outcome that `to_dict` described."""
        missed, jobs = document["missed_by"], dict(document["jobs"])
        return cls(document["constraint"], document["soft"], missed, jobs, document["price"])


def outcomes_of(
    job_ids: Sequence[str], rules: Rules, times: JobTimes | ClassTimes, prices: Floats | None
) -> tuple[ConstraintOutcome, ...]:
    """Return what became of each constraint. prices: (R,) of the limits that must hold (`Rules.hard_rows`), per unit."""
    if not rules.asked:
        return ()
    by_row = {} if prices is None else {id(row): price for row, price in zip(rules.hard_rows, prices.tolist(), strict=True)}
    return tuple(_outcome(each, job_ids, times, by_row) for each in rules.asked)


def _outcome(asked: Asked, job_ids: Sequence[str], times: JobTimes | ClassTimes, prices: Mapping[int, float]) -> ConstraintOutcome:
    if asked.switch_cost:
        moved = times.moved()
        return ConstraintOutcome(asked.text, asked.switch_cost, moved if moved > KEPT else 0.0)
    limits = [row for row in asked.rows if isinstance(row, Limit)]
    over = [max(0.0, times.used(row) - row.most) / row.unit for row in limits] if asked.penalty else []
    short = [_short(need, times.job_throughputs) for need in asked.needs] if asked.penalty else []
    jobs = {job_ids[i]: part for found in short for i, part in found.items()}
    missed = float(sum(part for part in over if part > KEPT) + sum(jobs.values()))
    known = [prices[id(row)] for row in limits if id(row) in prices]
    return ConstraintOutcome(asked.text, asked.penalty, missed, jobs, max(known, default=None))


def _short(need: Need, throughputs: Floats) -> dict[int, float]:
    """The part of its need by which each job falls short."""
    part = shortfalls(need.throughputs, throughputs[need.rows])
    return {int(need.rows[m]): float(part[m]) for m in np.flatnonzero(part > KEPT)}
