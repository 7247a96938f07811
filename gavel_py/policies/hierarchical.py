"""Hierarchical fairness over a tree of tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.policies.base import option
from gavel_py.policies.demand import FillingPolicy
from gavel_py.policies.fair_queueing import ServiceTree, service_tree
from gavel_py.problem.tenants import Tenant, TenantTree

if TYPE_CHECKING:
    from gavel_py.optimization.solving.progressive_filling import Groups
    from gavel_py.problem.problem import AllocationProblem


@dataclass(frozen=True, kw_only=True)
class Hierarchical(FillingPolicy):
    """Divide fairly among tenants, then among their jobs.

    Hierarchical fairness: every job raises v_i above its value so far by θ · w'_i / s_i until some cannot rise, and so on.

    w'_i: the product over the job and the tenants above it of weight / Σ weights of its siblings that can still rise; a tenant
    with policy fifo gives all to the first of its jobs or tenants that can rise. The objective value is what the worst-off tenant
    at the top has in the end: Σ s_i · v_i over its jobs, per weight. Source: Gavel (OSDI 2020), section 4.3.
    """

    tenants: TenantTree | Mapping[Any, Any] | Sequence[Tenant] | str | None = option(
        None, "file of the tenant tree; none: all tenants that jobs name, side by side with weight 1"
    )
    held: Mapping[str, Sequence[float]] | None = option(
        None, "{tenant: s·v of each replica of its services}, which it has before its jobs rise", in_label=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tenants is not None and not isinstance(self.tenants, str):
            object.__setattr__(self, "tenants", TenantTree.of(self.tenants))
        _ = self.tenant_tree  # a file is read here, so that its faults are raised here

    @cached_property
    def tenant_tree(self) -> TenantTree:
        """The tree of `tenants`, read from its file if it is a path."""
        return TenantTree.of(self.tenants)

    @cached_property
    def _leaves(self) -> frozenset[str]:
        return frozenset(tenant.name for tenant in self.tenant_tree.tenants) - self.tenant_tree.parents

    @property
    def reads(self) -> tuple[str, ...]:
        tree = self.tenant_tree
        is_fifo = tree.policy == "fifo" or any(tenant.policy == "fifo" for tenant in tree.tenants)
        arrivals = ("arrival_seconds",) if is_fifo else ()
        return ("weights", "tenants", *arrivals, *(("job_ids",) if tree.orders_jobs else ()))

    def shares(self, jobs: JobClasses) -> ServiceTree:
        ids = jobs.problem.job_ids
        return service_tree(
            self.tenant_tree,
            jobs.tenants,
            job_ids=[ids[row] for row in jobs.rows.tolist()],
            counts=jobs.counts,
            weights=jobs.weights,
            arrivals=jobs.arrival_seconds if "arrival_seconds" in self.reads else np.zeros(len(jobs)),
            held=self.held or {},
        )

    def groups(self, shares: ServiceTree) -> Groups:
        from gavel_py.optimization.solving.progressive_filling import Groups

        of, weights = shares.tops
        jobs = len(of) - len(shares.held)
        present, rows = np.unique(of[:jobs], return_inverse=True)
        return Groups(rows, weights[present], np.bincount(of[jobs:], shares.held, len(weights))[present].astype(float))

    def peers(self, jobs: JobClasses) -> Sequence[Any]:
        tenants: Sequence[Any] = jobs.tenants
        return tenants

    def check(self, problem: AllocationProblem) -> None:
        jobs = self.view(separate_jobs(problem, self.name, self.reads))
        if not self._leaves.issuperset(jobs.tenants):
            self.shares(jobs)  # raises an error that names the jobs without a tenant in the tree

    @property
    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults, with the tenants in the form of a tenant file (docs/file-formats.md)."""
        options = super().changed_options
        if self.tenants is not None:
            options["tenants"] = {"policy": self.tenant_tree.policy, "tenants": self.tenant_tree.to_dict()}
        return options
