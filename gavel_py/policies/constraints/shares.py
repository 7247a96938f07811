"""Constraints on the number of GPUs, or their cost, summed over groups of jobs."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Self

import numpy as np
from pydantic import BeforeValidator, model_validator

from gavel_py.errors import Fault, check_together, nearest
from gavel_py.io.records import Name, NotNegative, Positive, Share, Whole
from gavel_py.optimization.formulation.linear_rows import Limit, Place, Row
from gavel_py.policies.constraints.base import Constraint, Scope, listed, same_name, uniform_place
from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.row_hashing import number_equal
from gavel_py.problem.tolerances import MET, SOLVER_TOLERANCE


class Shared(Constraint):
    """Base of upper limits on groups of jobs. A hard limit of 0 keeps the group off the types that count.

    Elastic jobs of which only the smaller numbers of GPUs count stay on these types, with a row for those numbers.

    Attributes:
        every_round: Whether the limit holds in every round, not only on average. Gangs that exceed it get no time, and no more is
            promised than whole gangs can use at once.
    """

    by_keyword = ("every_round", "penalty")

    every_round: bool = False

    @model_validator(mode="after")
    def _check_every_round(self) -> Self:
        text = "every_round cannot be soft: a penalty is paid for the average over rounds; give only one of both"
        check_together((self.every_round and self.penalty is not None, text))
        return self

    @property
    def text(self) -> str:
        return f"{self.quantity} in every round" if self.every_round else self.quantity

    @property
    @abstractmethod
    def quantity(self) -> str:
        """The limit as text for messages, without the time for which it holds."""

    @abstractmethod
    def limits(self, scope: Scope) -> list[Limit]:
        """Return the upper limits."""

    def places(self, scope: Scope) -> list[Place]:
        limits = self.limits(scope)
        bans = [
            uniform_place(limit.name, np.flatnonzero(limit.group & ~_in_part(scope, limit)), limit.per_gpu == 0, shared=True)
            for limit in limits
            if self._bans(limit)
        ]
        return bans + [place for limit in limits if self.every_round for place in _too_large(scope, limit)]

    def rows(self, scope: Scope) -> list[Row]:
        limits = [replace(limit, group=_in_part(scope, limit)) if self._bans(limit) else limit for limit in self.limits(scope)]
        limits = [self._at_once(scope, limit) for limit in limits if limit.group.any()]
        return [limit.charged(self.penalty, scope.problem) for limit in limits]

    def _bans(self, limit: Limit) -> bool:
        return not limit.limit and self.penalty is None

    def _at_once(self, scope: Scope, limit: Limit) -> Limit:
        """Return the limit, lowered to what whole gangs can use at once if it holds in every round."""
        if not self.every_round or not limit.limit:
            return limit
        most = usable_at_once(scope, limit)
        if most >= limit.limit * (1 - MET):
            return replace(limit, at_once=True)
        return replace(limit, limit=most, name=f"{limit.name} (whole gangs can use {most:g} of it at once)", at_once=True)


class CostBudget(Shared):
    """Limit the cost of all GPUs in use: Σ_ij s_i price_j X_ij <= per_hour.

    Every type with GPUs needs a price. It conflicts with lower bounds that cost more.

    Attributes:
        per_hour: The budget, in the currency of the prices.
    """

    per_hour: NotNegative

    @property
    def quantity(self) -> str:
        return f"the budget of {self.per_hour:g} per hour"

    def faults(self, scope: Scope) -> list[Fault]:
        problem = scope.problem
        unpriced = np.isnan(problem.prices_per_hour) & (problem.capacities > 0)
        names = [problem.accelerator_types[j] for j in np.flatnonzero(unpriced).tolist()]
        return [Fault(f"accelerator type {name!r}", "price_per_hour", f"is unknown, but {self.where} needs it") for name in names]

    def limits(self, scope: Scope) -> list[Limit]:
        prices = np.nan_to_num(scope.problem.prices_per_hour)
        return [Limit(self.text, np.ones(scope.num_jobs, dtype=bool), prices, self.per_hour)]


class MaxGpus(Shared):
    """Limit the GPUs of a group of jobs: Σ s_i X_ij <= gpus over these jobs, on one accelerator type or all.

    Attributes:
        gpus: Largest number of GPUs in use.
        tenant: The tenant whose jobs count.
        job: The only job that counts, instead of a tenant. Without tenant and job, all jobs count.
        accelerator: The type that counts; None for all.
    """

    gpus: NotNegative
    tenant: Name | None = None
    job: Name | None = None
    accelerator: Name | None = None

    @model_validator(mode="after")
    def _check_together(self) -> MaxGpus:
        check_together((self.tenant is not None and self.job is not None, "tenant and job are both given; give only one"))
        return self

    @property
    def quantity(self) -> str:
        group = f" for tenant {self.tenant!r}" if self.tenant else f" for job {self.job!r}" if self.job else ""
        where = f" on {self.accelerator}" if self.accelerator else ""
        return f"the limit of {self.gpus:g} GPUs{group}{where}"

    def faults(self, scope: Scope) -> list[Fault]:
        return self._unknown_types(scope, "accelerator", () if self.accelerator is None else (self.accelerator,))

    def limits(self, scope: Scope) -> list[Limit]:
        group = np.ones(scope.num_jobs, dtype=bool)
        if self.tenant is not None:
            group = scope.tenant(self.tenant, self)
        elif self.job is not None:
            group = scope.mask(scope.jobs(self.job, self))
        counts = scope.columns(scope.problem.accelerator_types if self.accelerator is None else [self.accelerator]).astype(float)
        return [Limit(self.text, group, counts, self.gpus)] if group.any() else []


class Quota(Shared):
    """The quota of a tenant: q = share · C, or q = gpus.

    A guarantee conflicts with constraints that keep the tenant's jobs off too many GPUs, or require them for other jobs.

    Attributes:
        tenant: The tenant.
        share: Part of all GPUs of the cluster; this or `gpus` is required.
        gpus: Number of GPUs.
        guaranteed: The tenant's jobs get at least q, or all they can use if that is less: Σ s_i X_ij >= min(q, max Σ s_i X_ij).
            Elastic jobs can use their largest number of GPUs.
        borrowable: They may use idle GPUs beyond q. If not, Σ s_i X_ij <= q.
    """

    tenant: Name
    share: Share | None = None
    gpus: NotNegative | None = None
    guaranteed: bool = True
    borrowable: bool = True

    @model_validator(mode="after")
    def _check_together(self) -> Quota:
        no_effect = "a quota that is neither guaranteed nor a limit has no effect; set guaranteed, or borrowable: false"
        no_limit = "every_round needs borrowable: false; a quota that is borrowable is no limit"
        check_together(
            ((self.share is None) == (self.gpus is None), "either share (0.5 for half of all GPUs) or gpus must be given"),
            (self.borrowable and not self.guaranteed, no_effect),
            (self.borrowable and self.every_round, no_limit),
        )
        return self

    @property
    def quantity(self) -> str:
        return f"the quota of {f'{self.share:.4g} of all' if self.share is not None else f'{self.gpus:g}'} GPUs for {self.tenant!r}"

    def gpus_of(self, scope: Scope) -> float:
        """Return q in GPUs."""
        return float(self.gpus if self.gpus is not None else (self.share or 0.0) * scope.problem.capacities.sum())

    def rows(self, scope: Scope) -> list[Row]:
        rows, group = super().rows(scope), scope.tenant(self.tenant, self)
        # In every round, gangs of the tenant can use no more than the limit above allows at once.
        quota = min([self.gpus_of(scope), *(row.rhs for row in rows)])
        if self.guaranteed and group.any() and (least := min(quota, usable_gpus(scope, group, quota))) > 0:
            everywhere = np.ones(len(scope.problem.capacities))
            rows.append(Limit(self.text, group, everywhere, least, at_least=True).charged(self.penalty, scope.problem))
        return rows

    def limits(self, scope: Scope) -> list[Limit]:
        group, everywhere = scope.tenant(self.tenant, self), np.ones(len(scope.problem.capacities))
        if self.borrowable or not group.any():
            return []
        return [Limit(self.text, group, everywhere, self.gpus_of(scope))]


class Reserve(Shared):
    """Reserve GPUs of one type for some jobs (reserve-and-pack; Weng et al., NSDI 2022, section 6).

    All other jobs together get Σ s_i X_ij <= c_j − gpus on the type.

    Attributes:
        accelerator: The type.
        gpus: Number of reserved GPUs.
        reserved_for: Tenants and jobs that may use them.
        min_gang: Gangs of at least this many GPUs may use them too, and elastic jobs while they have that many. This or
            `reserved_for` is required.
    """

    accelerator: Name
    gpus: Positive
    reserved_for: Annotated[tuple[Name, ...], BeforeValidator(listed)] = ()
    min_gang: Whole | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Reserve:
        text = "reserved_for (tenants or jobs) or min_gang must be given, to define which jobs may use the GPUs"
        check_together((not self.reserved_for and self.min_gang is None, text))
        return self

    @property
    def quantity(self) -> str:
        owners = [", ".join(self.reserved_for)] if self.reserved_for else []
        owners += [] if self.min_gang is None else [f"gangs of {self.min_gang} or more GPUs"]
        return f"the reserve of {self.gpus:g} {self.accelerator} GPUs for {' and '.join(owners)}"

    def faults(self, scope: Scope) -> list[Fault]:
        column = scope.column(self.accelerator)
        if column is None:
            return self._unknown_types(scope, "accelerator", (self.accelerator,))
        available = scope.problem.capacities[column]
        return [self._fault("gpus", f"must be at most {available:g}, found {self.gpus:g}")] if self.gpus > available else []

    def limits(self, scope: Scope) -> list[Limit]:
        problem, column = scope.problem, scope.column(self.accelerator)
        others = ~self._entitled(scope)
        on_type = np.arange(len(problem.capacities)) == column
        limit = float(problem.capacities[on_type][0]) - self.gpus
        below = np.inf if self.min_gang is None else self.min_gang
        return [Limit(self.text, others, on_type.astype(float), limit, requested=self.gpus, below=below)] if others.any() else []

    def _entitled(self, scope: Scope) -> Mask:
        """Return (N,) the jobs that may always use the reserved GPUs."""
        problem, names = scope.problem, set(self.reserved_for)
        owners = zip(problem.tenants, problem.job_ids, strict=True)
        entitled = np.array([tenant in names or job in names for tenant, job in owners], bool)
        for name in sorted(names - set(problem.tenants) - set(problem.job_ids)):
            scope.warn(self, f"no tenant or job is named {name!r}{nearest(name, sorted(set(problem.tenants)))}")
        return entitled if self.min_gang is None else entitled | (problem.least_gpus >= self.min_gang)


def _in_part(scope: Scope, limit: Limit) -> Mask:
    """Return (N,) the elastic jobs of a limit of which only the smaller numbers of GPUs count."""
    exempt: Mask = scope.problem.most_gpus >= limit.below
    return limit.group & exempt


def _too_large(scope: Scope, limit: Limit) -> list[Place]:
    """Return the restriction of the gangs that exceed a limit alone, and of the numbers of GPUs with which elastic jobs do."""
    problem, most, counts, numbers = scope.problem, limit.limit * (1 + MET), scope.problem.counts, None
    fits = problem.num_gpus[:, None] * limit.per_gpu <= most
    exceeding = (problem.runnable & ~fits).any(axis=1)
    if counts is not None:
        numbers = (counts.counts * limit.per_gpu[:, None] <= most) | (counts.counts >= limit.below)
        fits = counts.by_job((counts.able & numbers).any(axis=2), fits)
        exceeding = counts.by_job((counts.able & ~numbers).any(axis=(1, 2)), exceeding)
    rows = np.flatnonzero(limit.group & exceeding)
    return [Place(same_name(limit.name), rows, fits[rows], shared=True, numbers=numbers)] if len(rows) else []


MOST_UNITS = 1 << 20
"""Largest limit, in units of the common divisor of all gangs, for which sums of gangs are computed."""


def usable_at_once(scope: Scope, limit: Limit) -> float:
    """Return the largest sum within a limit that whole gangs of its group can have on some of their types at one time.

    This is a subset sum: bit n of `sums` is set if some gangs have a sum of n units. The GPUs of types are left out. If sizes and
    prices have no simple common divisor, it is the limit.
    """
    kinds = _costs_of_gangs(scope, limit)
    if sum(number * max(costs) for costs, number in kinds) <= limit.limit:
        return limit.limit
    unit = common_divisor(np.array([cost for costs, _ in kinds for cost in costs]))
    most = MOST_UNITS if unit is None else int(limit.limit / unit * (1 + MET))
    if unit is None or most >= MOST_UNITS:
        return limit.limit
    sums, within = 1, (2 << most) - 1
    for costs, number in kinds:
        units = [round(cost / unit) for cost in costs]
        for times in _doubling(number) if len(units) == 1 else [1] * min(number, most // units[0]):
            before = sums
            for size in units:
                sums |= (before << size * times) & within
            if sums == before or sums >> most:
                break
    return (sums.bit_length() - 1) * unit


def _costs_of_gangs(scope: Scope, limit: Limit) -> list[tuple[list[float], int]]:
    """Return the different units of a limit that a gang can use, ascending, with the number of such gangs; small gangs first."""
    problem = scope.problem
    rows = np.flatnonzero(limit.group & (problem.runnable & (limit.per_gpu > 0)).any(axis=1))
    if not len(rows):
        return []
    table = np.where(problem.runnable[rows], problem.num_gpus[rows, None] * limit.per_gpu, 0.0)
    if problem.pairs is not None:  # one of two jobs that share GPUs counts for half of them
        table = np.hstack([table, table / 2])
    if (counts := problem.counts) is not None:
        counted = np.where(counts.counts < limit.below, counts.counts, 0) * limit.per_gpu[:, None]
        options = np.where(counts.able, counted, 0.0)[np.maximum(counts.kinds[rows], 0)] * problem.runnable[rows][:, :, None]
        fixed = np.zeros(options.shape)
        fixed[:, :, 0] = table
        table = np.where(counts.is_elastic[rows][:, None, None], options, fixed).reshape(len(rows), -1)
    alike = number_equal(list(table.T), len(rows))
    kinds = zip(table[alike.first].tolist(), alike.counts.tolist(), strict=True)
    return sorted((costs, number) for row, number in kinds if (costs := sorted({cost for cost in row if cost > 0})))


def _doubling(number: int) -> list[int]:
    """Return numbers of which the sums are all numbers from 0 to this one: 1, 2, 4, ..., and what remains."""
    powers = [1 << n for n in range((number + 1).bit_length() - 1)]
    rest = number - sum(powers)
    return [*powers, rest] if rest else powers


LARGEST_DENOMINATOR, MOST_PARTS = 10_000, 1_000_000
"""Numbers have a common divisor if they are fractions with denominators up to the first, and of a common one up to the second."""


def common_divisor(values: Floats) -> float | None:
    """Return the largest number of which all these positive numbers are multiples, None if it is not simple."""
    parts = [Fraction(value).limit_denominator(LARGEST_DENOMINATOR) for value in np.unique(values).tolist()]
    denominator = math.lcm(*(part.denominator for part in parts))
    exact = np.allclose([float(part) for part in parts], np.unique(values), rtol=SOLVER_TOLERANCE, atol=0.0)
    if not exact or denominator > MOST_PARTS:
        return None
    return math.gcd(*(part.numerator * (denominator // part.denominator) for part in parts)) / denominator


def usable_gpus(scope: Scope, group: Mask, enough: float) -> float:
    """Return max Σ s_i X_ij of a group of jobs alone on the cluster, or a lower bound on it that is at least `enough`.

    With all of its time on type j, a job uses as many GPUs as it can have there. Jobs in the same proportion on all types add up.
    """
    problem = scope.problem
    able = problem.most_gpus_by_type[group]
    most = able.max(axis=1, initial=0.0)
    parts = able / np.where(most > 0, most, 1.0)[:, None]
    equal = number_equal(list(parts.T), len(parts))
    shapes: Floats = parts[equal.first]
    gangs: Floats = np.bincount(equal.index, most, len(shapes)).astype(float)
    # A greedy pass, jobs with few types first; optimal if all jobs have the same shape, or their sets of types do not overlap.
    free, used = problem.capacities.copy(), 0.0
    for p in np.argsort((shapes > 0).sum(axis=1), kind="stable").tolist():
        order = np.argsort(-shapes[p], kind="stable")
        shape = shapes[p][order]
        room = np.divide(free[order], shape, out=np.zeros_like(shape), where=shape > 0)
        given = np.diff(np.minimum(np.concatenate([[0.0], np.cumsum(room)]), gangs[p])) * shape
        free[order] -= given
        used += float(given.sum())
    return used if used >= enough or len(shapes) == 1 else _max_flow(shapes, gangs, problem.capacities)


def _max_flow(shapes: Floats, gangs: Floats, capacities: Floats) -> float:
    """Return max Σ_pj f_pj with Σ_j f_pj / shape_pj <= gangs_p and Σ_p f_pj <= c_j, f_pj on the types j with a shape above 0."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    patterns, types = np.nonzero(shapes)
    flows = np.arange(len(patterns))
    rows, values = (
        np.concatenate([patterns, len(gangs) + types]),
        np.concatenate([1 / shapes[patterns, types], np.ones(len(flows))]),
    )
    table = csr_array((values, (rows, np.tile(flows, 2))), shape=(len(gangs) + len(capacities), len(flows)))
    return float(-linprog(-np.ones(len(flows)), table, np.concatenate([gangs, capacities]), method="highs").fun)
