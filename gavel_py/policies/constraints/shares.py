"""Constraints on the GPUs that groups of jobs have together, or what these cost."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from gavel_py.errors import Fault, nearest
from gavel_py.io.records import Finite, Name, NotNegative, Positive, Whole
from gavel_py.optimization.formulation.linear_rows import Limit, Place, Row
from gavel_py.policies.constraints.base import Constraint, Scope, listed
from gavel_py.problem.arrays import Floats, Mask

Share = Annotated[Finite, Field(gt=0, le=1)]


class _Shared(Constraint):
    """Upper limits on groups of jobs. One of 0 that must hold keeps the group off the types that count."""

    @abstractmethod
    def _limits(self, scope: Scope) -> list[Limit]:
        """The upper limits."""

    def places(self, scope: Scope) -> list[Place]:
        return [_off_types(limit) for limit in self._limits(scope) if not limit.limit and self.penalty is None]

    def rows(self, scope: Scope) -> list[Row]:
        limits = (limit for limit in self._limits(scope) if limit.limit or self.penalty is not None)
        return [limit.charged(self.penalty, scope.problem) for limit in limits]


class CostBudget(_Shared):
    """All GPUs in use must not cost more than the budget: Σ_ij s_i price_j X_ij <= per_hour.

    It cannot hold where jobs must have what costs more. Every type with GPUs needs a price.
    """

    per_hour: NotNegative

    @property
    def text(self) -> str:
        return f"the budget of {self.per_hour:g} per hour"

    def faults(self, scope: Scope) -> list[Fault]:
        problem = scope.problem
        unpriced = np.isnan(problem.prices_per_hour) & (problem.capacities > 0)
        names = [problem.accelerator_types[j] for j in np.flatnonzero(unpriced).tolist()]
        return [Fault(f"accelerator type {name!r}", "price_per_hour", f"is unknown, and {self.where} needs it") for name in names]

    def _limits(self, scope: Scope) -> list[Limit]:
        prices = np.nan_to_num(scope.problem.prices_per_hour)
        return [Limit(self.text, np.ones(scope.num_jobs, dtype=bool), prices, self.per_hour)]


class MaxGpus(_Shared):
    """So many GPUs at most: Σ s_i X_ij <= gpus over the jobs of a tenant, one job, or all, on one accelerator type or all."""

    gpus: NotNegative
    tenant: Name | None = None
    job: Name | None = None
    accelerator: Name | None = None

    @model_validator(mode="after")
    def _check_together(self) -> MaxGpus:
        if self.tenant is not None and self.job is not None:
            raise ValueError("tenant and job are both given; give one")
        return self

    @property
    def text(self) -> str:
        whom = f" for tenant {self.tenant!r}" if self.tenant else f" for job {self.job!r}" if self.job else ""
        where = f" on {self.accelerator}" if self.accelerator else ""
        return f"the limit of {self.gpus:g} GPUs{whom}{where}"

    def faults(self, scope: Scope) -> list[Fault]:
        return self._unknown_types(scope, "accelerator", () if self.accelerator is None else (self.accelerator,))

    def _limits(self, scope: Scope) -> list[Limit]:
        group = np.ones(scope.num_jobs, dtype=bool)
        if self.tenant is not None:
            group = scope.tenant(self.tenant, self)
        elif self.job is not None:
            group = scope.mask(scope.jobs(self.job, self))
        counts = scope.columns(scope.problem.accelerator_types if self.accelerator is None else [self.accelerator]).astype(float)
        return [Limit(self.text, group, counts, self.gpus)] if group.any() else []


class Quota(_Shared):
    """A tenant's part of the GPUs: q = share · C, or `gpus`.

    guaranteed: the tenant's jobs have at least q, or all that they can use if that is less: Σ s_i X_ij >= min(q, most);
    borrowable: they may use more while others leave it; if not, Σ s_i X_ij <= q.
    A guarantee cannot hold where its jobs may not run on enough GPUs, or where others must have them.
    """

    tenant: Name
    share: Share | None = None
    gpus: NotNegative | None = None
    guaranteed: bool = True
    borrowable: bool = True

    @model_validator(mode="after")
    def _check_together(self) -> Quota:
        if (self.share is None) == (self.gpus is None):
            raise ValueError("one of share (0.5 for half of all GPUs) and gpus must be given")
        if self.borrowable and not self.guaranteed:
            raise ValueError("a quota that is neither guaranteed nor a limit says nothing; set guaranteed, or borrowable: false")
        return self

    @property
    def text(self) -> str:
        return f"the quota of {f'{self.share:.4g} of all' if self.share is not None else f'{self.gpus:g}'} GPUs for {self.tenant!r}"

    def gpus_of(self, scope: Scope) -> float:
        """Return q, in GPUs."""
        return float(self.gpus if self.gpus is not None else (self.share or 0.0) * scope.problem.capacities.sum())

    def rows(self, scope: Scope) -> list[Row]:
        rows, group, quota = super().rows(scope), scope.tenant(self.tenant, self), self.gpus_of(scope)
        if self.guaranteed and group.any() and (least := min(quota, most_gpus(scope, group, quota))) > 0:
            everywhere = np.ones(len(scope.problem.capacities))
            rows.append(Limit(self.text, group, everywhere, least, at_least=True).charged(self.penalty, scope.problem))
        return rows

    def _limits(self, scope: Scope) -> list[Limit]:
        group, everywhere = scope.tenant(self.tenant, self), np.ones(len(scope.problem.capacities))
        if self.borrowable or not group.any():
            return []
        return [Limit(self.text, group, everywhere, self.gpus_of(scope))]


class Reserve(_Shared):
    """GPUs of one type kept for those who need them (reserve-and-pack; Weng et al., NSDI 2022, section 6).

    All jobs but those meant have at most Σ s_i X_ij <= c_j − gpus on the type. Meant are the tenants and jobs named in
    `reserved_for`, and gangs of at least `min_gang` GPUs.
    """

    accelerator: Name
    gpus: Positive
    reserved_for: Annotated[tuple[Name, ...], BeforeValidator(listed)] = ()
    min_gang: Whole | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Reserve:
        if not self.reserved_for and self.min_gang is None:
            raise ValueError("reserved_for (tenants or jobs) or min_gang must say for whom the GPUs are kept")
        return self

    @property
    def text(self) -> str:
        whom = [", ".join(self.reserved_for)] if self.reserved_for else []
        whom += [] if self.min_gang is None else [f"gangs of {self.min_gang} GPUs and more"]
        return f"the reserve of {self.gpus:g} {self.accelerator} GPUs for {' and '.join(whom)}"

    def faults(self, scope: Scope) -> list[Fault]:
        column = scope.column(self.accelerator)
        if column is None:
            return self._unknown_types(scope, "accelerator", (self.accelerator,))
        there = scope.problem.capacities[column]
        return [self._fault("gpus", f"there are only {there:g}")] if self.gpus > there else []

    def _limits(self, scope: Scope) -> list[Limit]:
        problem, column = scope.problem, scope.column(self.accelerator)
        others = ~self._meant(scope)
        on_type = np.arange(len(problem.capacities)) == column
        limit = float(problem.capacities[on_type][0]) - self.gpus
        return [Limit(self.text, others, on_type.astype(float), limit, asks=self.gpus)] if others.any() else []

    def _meant(self, scope: Scope) -> Mask:
        problem = scope.problem
        names = set(self.reserved_for)
        meant = np.array(
            [tenant in names or job in names for tenant, job in zip(problem.tenants, problem.job_ids, strict=True)], bool
        )
        unknown = names - set(problem.tenants) - set(problem.job_ids)
        for name in sorted(unknown):
            scope.warn(self, f"there is neither a tenant nor a job {name!r}{nearest(name, sorted(set(problem.tenants)))}")
        return meant if self.min_gang is None else meant | (problem.num_gpus >= self.min_gang)


def _off_types(limit: Limit) -> Place:
    """No time on the types that count towards a limit of 0."""
    rows = np.flatnonzero(limit.group)
    return Place(lambda i: limit.name, rows, np.tile(limit.per_gpu == 0, (len(rows), 1)), shared=True)  # noqa: ARG005


def most_gpus(scope: Scope, group: Mask, enough: float) -> float:
    """Return the most GPUs that the jobs of a group can use at a time if nobody else is there, max Σ s_i X_ij, or `enough`."""
    problem = scope.problem
    where, of = np.unique(problem.runnable[group], axis=0, return_inverse=True)
    gangs: Floats = np.bincount(of.ravel(), problem.num_gpus[group], len(where)).astype(float)
    # Jobs that can run on few types go first: with one set of types, or none in the way of another, that is the most.
    free, used = problem.capacities.copy(), 0.0
    for p in np.argsort(where.sum(axis=1), kind="stable").tolist():
        before = np.concatenate([[0.0], np.cumsum(np.where(where[p], free, 0.0))])
        taken = np.diff(np.minimum(before, gangs[p]))
        free, used = free - taken, used + float(taken.sum())
    return used if used >= enough or len(where) == 1 else _most_flow(where, gangs, problem.capacities)


def _most_flow(where: Mask, gangs: Floats, capacities: Floats) -> float:
    """Return max Σ_pj f_pj with Σ_j f_pj <= gangs_p and Σ_p f_pj <= c_j, f_pj on the types j where jobs of pattern p can run."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    patterns, types = np.nonzero(where)
    flows = np.arange(len(patterns))
    rows = np.concatenate([patterns, len(gangs) + types])
    table = csr_array((np.ones(2 * len(flows)), (rows, np.tile(flows, 2))), shape=(len(gangs) + len(capacities), len(flows)))
    return float(-linprog(-np.ones(len(flows)), table, np.concatenate([gangs, capacities]), method="highs").fun)
