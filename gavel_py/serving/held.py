"""Policies on the rest of a cluster, where the replicas of services count for the shares and limits of their tenants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gavel_py.errors import ConflictError
from gavel_py.policies import Policy
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.shares import CostBudget, MaxGpus, Quota, Reserve, Shared
from gavel_py.policies.hierarchical import Hierarchical
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tolerances import MET


class BrokenLimitError(ConflictError):
    """Replicas exceed a limit of training and services by themselves."""

    def __init__(self, limit: Shared) -> None:
        super().__init__([limit.text, "the floors of services"], alone=False, can_be_soft=False)


@dataclass(frozen=True)
class Held:
    """GPUs that replicas hold. replicas: (tenant, accelerator type, GPUs) of each; cluster: all GPUs, with these names of types."""

    replicas: tuple[tuple[str | None, str, int], ...]
    cluster: Cluster

    def gpus(self, tenants: Iterable[str] | None = None, accelerator: str | None = None) -> float:
        """Return the GPUs of the replicas of some tenants, or all, on a type, or all."""
        names = None if tenants is None else set(tenants)
        name = None if accelerator is None else same_accelerator(accelerator, self.cluster.accelerator_names)
        return float(sum(n for t, k, n in self.replicas if (names is None or t in names) and (accelerator is None or k == name)))

    def policy(self, policy: Policy) -> Policy:
        """Return the policy for the rest of the cluster.

        What replicas hold is part of what constraints limit, guarantee or reserve. Under `hierarchical`, a tenant has s·C / c_j for
        each replica before its jobs rise: the work of a job of s GPUs that can run on type j only, and always does.

        Raises:
            BrokenLimitError: Replicas exceed a limit.
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

    def _beside(self, constraints: Iterable[Constraint]) -> Iterator[Constraint]:
        """Yield the constraints without what replicas hold of them."""
        for each in constraints:
            if isinstance(each, MaxGpus) and each.job is None:
                tenants = None if each.tenant is None else [each.tenant]
                yield each.model_copy(update={"gpus": _left(each, each.gpus, self.gpus(tenants, each.accelerator))})
            elif isinstance(each, Quota):
                yield from self._quota(each)
            elif isinstance(each, CostBudget):
                prices = dict(zip(self.cluster.accelerator_names, np.nan_to_num(self.cluster.prices_per_hour), strict=True))
                cost = sum(prices[name] * count for _, name, count in self.replicas)
                yield each.model_copy(update={"per_hour": _left(each, each.per_hour, float(cost))})
            elif isinstance(each, Reserve):
                yield from self._reserve(each)
            else:
                yield each

    def _quota(self, quota: Quota) -> Iterator[Constraint]:
        total = quota.gpus if quota.gpus is not None else (quota.share or 0.0) * self.cluster.num_gpus
        held = self.gpus([quota.tenant])
        left = total - held if quota.borrowable else _left(quota, total, held)
        if left > 0 or not quota.borrowable:
            guaranteed = quota.guaranteed and left > 0
            yield quota.model_copy(update={"share": None, "gpus": left, "guaranteed": guaranteed})

    def _reserve(self, reserve: Reserve) -> Iterator[Constraint]:
        of_type, own = self.gpus(None, reserve.accelerator), self.gpus(reserve.reserved_for, reserve.accelerator)
        left = float(sum(n.num_gpus for n in self.cluster.nodes_of(self._known(reserve.accelerator)))) - of_type
        _left(reserve, left, reserve.gpus - own)
        if reserve.gpus > own:
            yield reserve.model_copy(update={"gpus": reserve.gpus - own})

    def _known(self, accelerator: str) -> str:
        return same_accelerator(accelerator, self.cluster.accelerator_names) or accelerator


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


def _left(constraint: Shared, limit: float, held: float) -> float:
    """Return what is left of the limit of a constraint. Raises `BrokenLimitError` if more is held and it is not soft."""
    if constraint.penalty is None and held > limit * (1 + MET) + MET:
        raise BrokenLimitError(constraint)
    return max(0.0, limit - held)
