"""Hierarchical fairness by its definition, in exact arithmetic: for small problems only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gavel_py as gp
from tests.support.instances import Floats
from tests.support.leximin import Space

__all__ = ["incremental_leximin"]


def incremental_leximin(
    problem: gp.AllocationProblem, tree: gp.TenantTree, space: Callable[..., Space] = Space.of_times, **limits: Any
) -> Floats:
    """Return (N,) v_i. Every job that can still rise exceeds its value so far by θ w'_i / s_i, with the largest θ.

    After that, jobs which can rise no further if each of the others keeps what it has never can again, since the others only get
    more; w' is then shared out anew among those that can. Jobs that can run nowhere stay at 0.
    space: what can be allocated; limits: its further arguments.
    """
    share = np.where(problem.equal_share > 0, problem.equal_share, 1.0)
    values = space(problem, problem.throughputs / share[:, None], **limits)
    members = _Members(tree, problem, np.flatnonzero(values.gains.any(axis=1)).tolist())
    return values.risen(lambda rising: members.shares(set(rising)) / problem.num_gpus)


class _Members:
    """The children of each tenant by name; jobs are numbers, and the root is None."""

    def __init__(self, tree: gp.TenantTree, problem: gp.AllocationProblem, jobs: list[int]) -> None:
        self.tree, self.problem, self.jobs = tree, problem, jobs
        self.tenants = tree.tenants or tuple(gp.Tenant(name) for name in sorted(set(problem.tenants)))

    def shares(self, rising: set[int]) -> Floats:
        """Return (N,) w', which sums to 1 over the jobs that can rise."""
        found = np.zeros(self.problem.num_jobs)
        self._give(found, None, self.tree.policy, 1.0, rising)
        return found

    def _give(self, found: Floats, name: str | None, policy: str, share: float, rising: set[int]) -> None:
        tenants = [t for t in self.tenants if t.parent == name and rising.intersection(self._below(t.name))]
        jobs = sorted(rising.intersection(self._own(name)))
        if policy == "fifo":
            tenants = sorted(tenants, key=lambda t: (min(self._arrival(i) for i in self._below(t.name)), t.name))[:1]
            jobs = sorted(jobs, key=lambda i: (self._arrival(i), self.problem.job_ids[i]))[:1]
        total = sum(t.weight for t in tenants) + float(self.problem.weights[jobs].sum())
        for t in tenants:
            self._give(found, t.name, t.policy, share * t.weight / total, rising)
        for i in jobs:
            found[i] = share * self.problem.weights[i] / total

    def _own(self, name: str | None) -> list[int]:
        return [i for i in self.jobs if self.problem.tenants[i] == name]

    def _below(self, name: str) -> list[int]:
        """Return the jobs of a tenant and its descendants, whether they can rise or not."""
        return self._own(name) + [i for t in self.tenants if t.parent == name for i in self._below(t.name)]

    def _arrival(self, i: int) -> float:
        return float(self.problem.arrival_seconds[i])
