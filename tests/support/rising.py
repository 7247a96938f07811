"""Hierarchical fairness by its definition, with a sequence of dense linear programs in scipy: for small problems only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

import gavel_py as gp
from tests.support.instances import TIGHT, Floats, valid_rows

__all__ = ["incremental_leximin"]

KEPT = 1 - 1e-9
"""The part of the values reached so far that must be kept, so that rounding makes no program infeasible."""

RISES = 1e-6
"""A job that can rise by no more than this part of its fastest cannot rise."""


def incremental_leximin(
    problem: gp.AllocationProblem,
    tree: gp.TenantTree,
    *,
    rows: Floats | None = None,
    limits: Floats | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return (N,) v_i. Every job that can still rise exceeds its value so far by θ w'_i / s_i, with the largest θ.

    After that, jobs which can rise no further if each of the others keeps what it has never can again, since the others only get
    more; w' is then shared out anew among those that can. Jobs that can run nowhere stay at 0.
    rows, limits: (R, N K) and (R,) of further constraints, rows X <= limits; allowed: (N, K) where jobs may run.
    """
    programs = _Programs.of(problem, rows, limits, problem.runnable if allowed is None else allowed)
    members = _Members(tree, problem, np.flatnonzero(programs.allowed.any(axis=1)).tolist())
    rising, v = set(members.jobs), np.zeros(problem.num_jobs)
    while rising:
        shares = members.shares(rising) / problem.num_gpus
        v = (v + programs.most(v, shares) * shares) * KEPT
        stopped = {i for i in rising if programs.most(v, np.eye(len(v))[i]) <= RISES * programs.alone[i]}
        assert stopped, f"nobody is stopped at v = {v}"
        rising -= stopped
    return v


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


@dataclass
class _Programs:
    """The feasible allocations, rows X <= limits and X = 0 where not allowed, and their values v = gains X."""

    gains: Floats
    rows: Floats
    limits: Floats
    allowed: NDArray[np.bool_]
    alone: Floats

    @classmethod
    def of(cls, problem: gp.AllocationProblem, rows: Floats | None, limits: Floats | None, allowed: NDArray[np.bool_]) -> _Programs:
        valid, most = valid_rows(problem)
        if rows is not None and limits is not None:
            valid, most = np.vstack([valid, rows]), np.concatenate([most, limits])
        share = np.where(problem.equal_share > 0, problem.equal_share, 1.0)
        gains = problem.throughputs / share[:, None]
        return cls(gains, valid, most, allowed, np.where(allowed, gains, 0.0).max(axis=1))

    def most(self, v: Floats, rates: Floats) -> float:
        """max θ with v_i(X) >= v_i + θ rates_i for every job."""
        n, k = self.gains.shape
        unit = np.where(self.alone > 0, self.alone, 1.0)
        per_job = np.zeros((n, n * k + 1))
        for i in range(n):
            per_job[i, i * k : (i + 1) * k] = -self.gains[i] / unit[i]
        per_job[:, -1] = rates / unit
        answer = linprog(
            np.append(np.zeros(n * k), -1.0),
            np.vstack([np.hstack([self.rows, np.zeros((len(self.rows), 1))]), per_job]),
            np.concatenate([self.limits, -v / unit]),
            bounds=[*((0, float(runs)) for runs in self.allowed.ravel()), (0, None)],
            method="highs",
            options=TIGHT,
        )
        assert answer.status == 0, answer.message
        return float(-answer.fun)
