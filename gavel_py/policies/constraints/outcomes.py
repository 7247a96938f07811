"""Outcomes of constraints in an allocation: by how much it misses soft ones, and the prices of hard limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.optimization.formulation.linear_rows import Broken, CompiledConstraint, Limit, Rules, shortfalls
from gavel_py.problem.tolerances import SOLVER_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.optimization.checking.time_shares import TimeShares
    from gavel_py.problem.arrays import Floats, Indices

KEPT = 10 * SOLVER_TOLERANCE
"""A miss up to this part of a constraint is within the tolerance of a solver, and counts as 0."""


@dataclass(frozen=True)
class ConstraintOutcome:
    """The outcome of one constraint in an allocation.

    Attributes:
        constraint: The constraint as text.
        penalty: Its penalty, or the cost of change; None if it is hard.
        missed_by: The part of its requirement that is missed, summed over jobs if it applies to single jobs; for a cost of change,
            the number of GPUs that change. The objective loses penalty · missed_by.
        jobs: {job id: part that the job misses}.
        price: Gain in the objective per unit by which a limit is relaxed; None if it is not a limit or the price is unknown.
    """

    constraint: str
    penalty: float | None = None
    missed_by: float = 0.0
    jobs: Mapping[str, float] = field(default_factory=dict)
    price: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the constraint holds completely."""
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
        """Return the outcome from the data of `to_dict`.

        Raises:
            KeyError: A part is missing.
        """
        missed, jobs = document["missed_by"], dict(document["jobs"])
        return cls(document["constraint"], document["soft"], missed, jobs, document["price"])


def outcomes_of(
    job_ids: Sequence[str], rules: Rules, times: TimeShares, source: Indices, prices: Floats | None
) -> tuple[ConstraintOutcome, ...]:
    """Return the outcome of each constraint.

    source: (K',) the type of each column; prices: (R,) dual prices of the hard limits (`Rules.hard_rows`), per unit.
    """
    if not rules.constraints:
        return ()
    by_row = {} if prices is None else {id(row): price for row, price in zip(rules.hard_rows, prices.tolist(), strict=True)}
    return tuple(_outcome(each, job_ids, times, source, by_row) for each in rules.constraints)


def _outcome(
    compiled: CompiledConstraint, job_ids: Sequence[str], times: TimeShares, source: Indices, prices: Mapping[int, float]
) -> ConstraintOutcome:
    if compiled.switch_cost:
        moved = times.moved(source)
        return ConstraintOutcome(compiled.text, compiled.switch_cost, moved if moved > KEPT else 0.0)
    limits = [row for row in compiled.rows if isinstance(row, Limit)]
    excess = [max(0.0, times.used(row) - row.rhs) / row.unit for row in limits] if compiled.penalty else []
    jobs: dict[str, float] = {}
    for need in compiled.needs if compiled.penalty else ():
        part = shortfalls(need.throughputs, times.job_throughputs[need.rows])
        jobs |= {job_ids[need.rows[m]]: float(part[m]) for m in np.flatnonzero(part > KEPT)}
    missed = float(sum(part for part in excess if part > KEPT) + sum(jobs.values()))
    known = [prices[id(row)] for row in limits if id(row) in prices]
    return ConstraintOutcome(compiled.text, compiled.penalty, missed, jobs, max(known, default=None))


def missing(outcome: ConstraintOutcome, compiled: CompiledConstraint, broken: Sequence[Broken]) -> ConstraintOutcome:
    """Return the outcome of a constraint in an allocation that breaks these hard rules."""
    names = {row.name for row in compiled.rows} | {need.name_of(i) for need in compiled.needs for i in need.rows.tolist()}
    several = tuple(f"{name} and " for name in names)  # the rule of several jobs has the name of the first
    parts = [each.part for each in broken if each.name in names or each.name.startswith(several)]
    return replace(outcome, missed_by=outcome.missed_by + sum(parts))
