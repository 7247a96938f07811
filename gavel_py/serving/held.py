"""Policies on the rest of a cluster, where the replicas of services count for the shares and limits of their tenants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import numpy as np

from gavel_py.policies import Policy
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.shares import CostBudget, MaxGpus, Quota, Reserve, Shared
from gavel_py.policies.hierarchical import Hierarchical
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tolerances import MET
from gavel_py.serving.market import Rule


@dataclass(frozen=True)
class Held:
    """GPUs that replicas hold. replicas: (tenant, accelerator type, GPUs) of each; cluster: all GPUs, with these names of types."""

    replicas: tuple[tuple[str | None, str, int], ...]
    cluster: Cluster

    @classmethod
    def on(cls, cluster: Cluster, *replicas: tuple[str | None, str, int]) -> Held:
        """Return what replicas hold; their types may have other names than those of the cluster."""
        names = cluster.accelerator_names
        return cls(tuple((tenant, same_accelerator(name, names) or name, count) for tenant, name, count in replicas), cluster)

    def gpus(self, tenants: Iterable[str] | None = None, accelerator: str | None = None) -> float:
        """Return the GPUs of the replicas of some tenants, or all, on a type, or all."""
        names = None if tenants is None else set(tenants)
        name = None if accelerator is None else same_accelerator(accelerator, self.cluster.accelerator_names)
        return float(sum(n for t, k, n in self.replicas if (names is None or t in names) and (accelerator is None or k == name)))

    def policy(self, policy: Policy) -> Policy:
        """Return the policy for the rest of the cluster.

        What replicas hold is part of what constraints limit, guarantee or reserve. Under `hierarchical`, a tenant has s·C / c_j for
        each replica before its jobs rise: the work of a job of s GPUs that can run on type j only, and always does.
        """
        policy = replace(policy, constraints=tuple(self._beside(policy.constraints)))
        if not isinstance(policy, Hierarchical):
            return policy
        gpus = dict(zip(self.cluster.accelerator_names, self.cluster.capacities.tolist(), strict=True))
        held: dict[str, list[float]] = {}
        for tenant, name, count in self.replicas:
            if tenant is not None:
                held.setdefault(tenant, []).append(count * self.cluster.num_gpus / gpus[name])
        return replace(policy, held=held or None)

    def of(self, limit: Shared) -> tuple[float, float]:
        """Return how much a constraint allows, and how much of it the replicas hold."""
        if isinstance(limit, CostBudget):
            prices = dict(zip(self.cluster.accelerator_names, np.nan_to_num(self.cluster.prices_per_hour).tolist(), strict=True))
            return limit.per_hour, sum(prices[name] * count for _, name, count in self.replicas)
        if isinstance(limit, Reserve):
            known = same_accelerator(limit.accelerator, self.cluster.accelerator_names)
            others = self.gpus(None, known) - self.gpus(limit.reserved_for, known)
            return float(sum(node.num_gpus for node in self.cluster.nodes_of(known or ""))) - limit.gpus, others
        assert isinstance(limit, MaxGpus | Quota)  # noqa: S101
        part = limit.share or 0.0 if isinstance(limit, Quota) else 0.0
        gpus, accelerator = part * self.cluster.num_gpus if limit.gpus is None else limit.gpus, getattr(limit, "accelerator", None)
        return gpus, self.gpus(None if limit.tenant is None else [limit.tenant], accelerator)

    def _beside(self, constraints: Iterable[Constraint]) -> Iterator[Constraint]:
        """Yield the constraints without what replicas hold of them."""
        for each in constraints:
            if not _counts_replicas(each):
                yield each
                continue
            most, held = self.of(each)
            left = most - held
            if isinstance(each, CostBudget | MaxGpus):
                yield each.model_copy(update={"per_hour" if isinstance(each, CostBudget) else "gpus": max(0.0, left)})
            elif isinstance(each, Reserve):
                more = each.gpus - self.gpus(each.reserved_for, each.accelerator)
                yield from [each.model_copy(update={"gpus": more})] if more > 0 else []
            elif isinstance(each, Quota) and (left > 0 or not each.borrowable):
                yield each.model_copy(update={"share": None, "gpus": max(0.0, left), "guaranteed": each.guaranteed and left > 0})


def rules_of(policy: Policy, cluster: Cluster) -> Iterator[Rule]:
    """Yield the hard limits of a policy that replicas alone must keep."""
    for each in policy.constraints:
        if _counts_replicas(each) and each.penalty is None and not (isinstance(each, Quota) and each.borrowable):
            yield Rule(each.text, Held.on(cluster).of(each)[0] * (1 + MET), partial(_use, each, cluster))


def _use(limit: Shared, cluster: Cluster, *replica: Any) -> float:
    return Held.on(cluster, replica).of(limit)[1]


def _counts_replicas(constraint: Constraint) -> TypeGuard[Shared]:
    """Return whether replicas are part of what a constraint limits or guarantees."""
    return isinstance(constraint, Shared) and not (isinstance(constraint, MaxGpus) and constraint.job is not None)


def without_guarantees(policy: Policy) -> Policy:
    """Return a policy whose objective is as good as beside any replicas, or better: limits are for jobs alone."""
    kept = (
        each.model_copy(update={"guaranteed": False}) if isinstance(each, Quota) else each
        for each in policy.constraints
        if not isinstance(each, Reserve) and not (isinstance(each, Quota) and each.borrowable)
    )
    return replace(policy, constraints=tuple(kept))


def has_shared_limits(policy: Policy) -> bool:
    """Return whether the objective depends on whose replicas hold GPUs."""
    return any(isinstance(each, Shared) for each in policy.constraints)
