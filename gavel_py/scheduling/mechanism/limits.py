"""Limits that hold in every round: the same sums over groups of jobs that limit an allocation, of the GPUs of one round.

Before a mechanism selects, `within_limits` leaves only jobs that keep all limits together, those of the largest s·score that fit.
So mechanisms need not know of limits. `first_within` leaves out gangs that may not stay where they are; selections in which elastic
jobs have more than their smallest number of GPUs are reduced by `elastic.reduced_to_limits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.policies.constraints.compiling import limits_on
from gavel_py.policies.constraints.shares import common_divisor
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import DEFICIT_ROUNDING, WHOLE_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.policies.constraints.base import Constraint
    from gavel_py.problem.problem import AllocationProblem
    from gavel_py.scheduling.placement.gangs import HeldGpus

EXACT_UNITS = 64
"""The best jobs take all of a limit but about this many units; the jobs that take the rest are selected exactly."""

COARSE_UNITS = 2000
"""Units into which a limit is divided if its sizes and prices have no common divisor."""


@dataclass(frozen=True, eq=False)
class RoundLimit:
    """Σ_i parts_i · n_i · per_gpu_j <= limit over the jobs i that run on n_i GPUs of type j in a round.

    Attributes:
        name: The constraint as text.
        parts: (N,) the part of each of its GPUs for which a job counts: 0 if it is not in the group, below 1 for a fraction of a
            GPU, or for the GPUs that it shares.
        per_gpu: (K,) the weight of a GPU of each type: 1, 0 if the type does not count, or its price.
        limit: The limit, in these units; below 0 if it is exceeded already.
        below: Jobs count only while they have fewer GPUs than this.
    """

    name: str
    parts: Floats
    per_gpu: Floats
    limit: float
    below: float = np.inf

    def costs(self, rows: Indices, columns: Indices, num_gpus: Indices) -> Floats:
        """Return (M,) what these jobs use of the limit on types and numbers of GPUs, all (M,)."""
        return self.parts[rows] * self.per_gpu[columns] * np.where(num_gpus < self.below, num_gpus, 0)

    def cost_table(self, rows: Indices, num_gpus: Indices) -> Floats:
        """Return (M, K) what these jobs would use on each type; rows, num_gpus: (M,)."""
        return np.outer(self.parts[rows] * np.where(num_gpus < self.below, num_gpus, 0), self.per_gpu)

    def used(self, held: HeldGpus) -> Floats:
        """Return (N,) what each job uses of the limit on the GPUs that it holds, its part of them or an equal share."""
        runs = np.flatnonzero(held.runs & (self.parts > 0))
        jobs_on = np.bincount(held.gpus, minlength=1)
        used, first = np.zeros(len(held)), held.gpus[held.starts[runs]]
        fractions = np.where(self.parts[runs] < 1, self.parts[runs], 1 / jobs_on[first])
        sizes = np.where(held.sizes[runs] < self.below, held.sizes[runs], 0)
        used[runs] = fractions * sizes * self.per_gpu[held.types[runs]]
        return used

    @property
    def most(self) -> float:
        """The limit with its tolerance."""
        return self.limit + WHOLE_TOLERANCE * max(1.0, self.limit)

    def is_exceeded(self, used: float) -> bool:
        """Return whether this use exceeds the limit."""
        return used > self.most

    def less(self, used: float) -> RoundLimit:
        """Return the rest of the limit."""
        return replace(self, limit=self.limit - used)

    def joined(self, groups: Iterable[Sequence[int]], fractions: Floats) -> RoundLimit:
        """Return the limit in which the first job of each group of jobs on the same GPUs stands for all of them.

        fractions: (N,) the part of each of its GPUs that a job requests; jobs that request whole GPUs have them in equal parts.
        """
        parts = self.parts.copy()
        for group in groups:
            rows = list(group)
            shares = self.parts[rows] / np.where(fractions[rows] < 1, 1, len(rows))
            parts[rows], parts[rows[0]] = 0.0, shares.sum()
        return replace(self, parts=parts)


def within_limits(runnable: Mask, worths: Floats, claims: Floats, num_gpus: Indices, limits: Sequence[RoundLimit]) -> Mask:
    """Return (N, K) the pairs of job and type that all limits leave: jobs that keep all limits together, wherever they run.

    Each job counts on its best type, and may run on types that cost no more. Jobs with a score come before those without one, which
    follow in the order of their claims.

    Args:
        runnable: (N, K) the pairs that are possible.
        worths: (N, K) s·score of pairs (`worths_of`), -inf without a score.
        claims: (N, K).
        num_gpus: (N,) gang sizes, of elastic jobs the smallest.
        limits: What is left of all limits.
    """
    left = runnable.copy()
    for limit in limits:
        rows = np.flatnonzero(limit.parts)
        costs = limit.cost_table(rows, num_gpus[rows])
        counts = (left[rows] & (costs > 0)).any(axis=1)
        rows, costs = rows[counts], costs[counts]
        worth, claim = (np.where(left[rows], table[rows], -np.inf) for table in (worths, claims))
        best = np.where(np.isfinite(worth).any(axis=1), worth.argmax(axis=1), claim.argmax(axis=1))
        here = np.arange(len(rows))
        cost = costs[here, best]
        most = np.where(_chosen(cost, np.maximum(worth[here, best], 0.0), claim[here, best], limit.most), cost, 0.0)
        left[rows] &= costs <= most[:, None] * (1 + WHOLE_TOLERANCE)
    return left


def worths_of(scores: Floats, sizes: Floats | Indices) -> Floats:
    """Return (N, K) s·score, -inf without a score; sizes: (N,) s, which may be below 1. A score of 0 is worth a little."""
    return (scores + DEFICIT_ROUNDING) * sizes[:, None]


def _chosen(costs: Floats, worths: Floats, claims: Floats, limit: float) -> Mask:
    """Return (M,) a set of jobs of (nearly) the largest worth that costs at most the limit; first jobs first.

    The jobs with the largest worth per cost are taken up to a rest of the limit, which is divided exactly (`_knapsack`) but for the
    rounding of costs to units. Other jobs get what remains after that, in the order of their claims.
    """
    chosen = costs <= 0
    rows = np.flatnonzero(~chosen & (costs <= limit))
    if costs[rows].sum() <= limit:
        chosen[rows] = True
        return chosen
    with_worth = rows[worths[rows] > 0]
    order = with_worth[np.argsort(-worths[with_worth] / costs[with_worth], kind="stable")]
    if len(order):
        unit = common_divisor(costs[order]) or limit / COARSE_UNITS
        units = np.ceil(costs[order] / unit - WHOLE_TOLERANCE).astype(np.int64)
        room = int(limit / unit + WHOLE_TOLERANCE)
        exact = max(EXACT_UNITS, 2 * int(units.max()))
        first = int(np.searchsorted(np.cumsum(units), room - exact, side="right")) if room > exact else 0
        chosen[order[:first]] = True
        chosen[order[first:][_knapsack(units[first:], worths[order[first:]], room - int(units[:first].sum()))]] = True
    left = limit - costs[chosen].sum()
    others = rows[~chosen[rows]]
    for row in others[np.argsort(-claims[others], kind="stable")].tolist():
        if costs[row] <= left:
            chosen[row], left = True, left - costs[row]
    return chosen


def _knapsack(units: Indices, worths: Floats, room: int) -> Indices:
    """Return the items of the largest total worth with at most `room` units; of items of one size, those of largest worth first.

    Items are in the order of their worth per unit. Of each size, only as many as there is room for can be selected.
    """
    room = min(room, int(units.sum()))
    of_size = np.argsort(units, kind="stable")
    rank = np.empty(len(units), dtype=np.int64)
    rank[of_size] = np.arange(len(units)) - np.searchsorted(units[of_size], units[of_size])
    items = np.flatnonzero((rank + 1) * units <= room)
    best, taken = np.zeros(room + 1), np.zeros((len(items), room + 1), dtype=bool)
    for n, (size, worth) in enumerate(zip(units[items].tolist(), worths[items].tolist(), strict=True)):
        with_it = best[: room + 1 - size] + worth
        taken[n, size:] = with_it > best[size:]
        best[size:] = np.maximum(with_it, best[size:])
    selected = []
    for n in reversed(range(len(items))):
        if taken[n, room]:
            selected.append(n)
            room -= int(units[items[n]])
    return items[selected[::-1]]


def first_within(limits: Sequence[RoundLimit], held: HeldGpus, fixed: Mask | None = None) -> Mask:
    """Return (N,) the gangs that keep all limits together, in order; of jobs on the same GPUs, all or none.

    fixed: (N,) gangs that stay and come first, None for none.
    """
    used = [limit.used(held) for limit in limits]
    if not any(limit.is_exceeded(float(each.sum())) for limit, each in zip(limits, used, strict=True)):
        return held.runs
    kept = np.zeros(len(held), dtype=bool) if fixed is None else fixed.copy()
    total = [float(each[kept].sum()) for each in used]
    for row in np.flatnonzero(held.runs & ~kept).tolist():
        more = [before + float(each[row]) for before, each in zip(total, used, strict=True)]
        if not any(each[row] > 0 and limit.is_exceeded(sum_) for limit, each, sum_ in zip(limits, used, more, strict=True)):
            kept[row], total = True, more
    without = held.gpus[~kept[held.owners]]
    together = np.zeros(len(held), dtype=bool)
    together[held.owners[np.isin(held.gpus, without)]] = True
    return kept & (~together if fixed is None else ~together | fixed)


@dataclass(frozen=True, eq=False)
class RoundLimits:
    """The limits of constraints in rounds, for the jobs of a problem.

    Attributes:
        problem: The problem, None for no limits.
        constraints: The constraints.
        in_every_round: Limits that no round may exceed.
        on_average: Other hard limits, which hold on average over rounds.
    """

    problem: AllocationProblem | None = None
    constraints: tuple[Constraint, ...] = ()
    in_every_round: tuple[RoundLimit, ...] = ()
    on_average: tuple[RoundLimit, ...] = ()

    @classmethod
    def of(cls, problem: AllocationProblem, constraints: tuple[Constraint, ...]) -> RoundLimits:
        """Return the limits for the N jobs of a problem."""
        parts = np.minimum(1.0, problem.num_gpus)
        found: dict[bool, list[RoundLimit]] = {True: [], False: []}
        for each, limits in limits_on(problem, constraints):
            found[each.every_round] += [
                RoundLimit(each.text, np.where(limit.group, parts, 0.0), limit.per_gpu, limit.limit, limit.below)
                for limit in limits
            ]
        return cls(problem, constraints, tuple(found[True]), tuple(found[False]))


NO_LIMITS = RoundLimits()
