"""The ordered family: serve jobs in an order, each takes the best of what is left."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.policies.base import Decision, Policy, numbers_by_job, option
from gavel_py.problem import AllocationProblem

__all__ = ["OrderedPolicy"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class OrderedPolicy(Policy):
    """Serve jobs in the order of `sort_key` (ties: arrival, then id); no solver, so no objective and no bound.

    Each job takes the accelerator type where it is fastest among those with its gang's GPUs left, for all of its time.
    """

    fractional: bool = option(False, "let a job take parts of its time on several types, x_ij <= GPUs left / s_i")
    preemptive: bool = option(True, "false: jobs that run keep their accelerator type and come first")
    backfill: bool = option(True, "let later jobs pass one that does not fit; without it GPUs may stay idle")

    empty_objective: ClassVar[float | None] = None

    @abstractmethod
    def sort_key(self, problem: AllocationProblem) -> Floats:
        """Return (N,) numbers; the smallest goes first."""

    @property
    def backfills(self) -> bool:
        return self.backfill

    def decide(self, problem: AllocationProblem) -> Decision:
        free = problem.capacities.copy()
        fractions = np.zeros(problem.throughputs.shape)
        key = numbers_by_job(self, "sort_key", self.sort_key(problem), problem)
        order = np.lexsort((problem.arrival_seconds, key))
        if not self.preemptive:
            order = self._keep_running(problem, order, free, fractions)
        # The types of each job, fastest first; equal ones in the order of the cluster.
        preference = np.argsort(-problem.throughputs, axis=1, kind="stable")
        for i in order:
            if not free.any():
                break
            types = [j for j in preference[i] if problem.runnable[i, j]]
            left = _take(fractions[i], free, float(problem.num_gpus[i]), types, self.fractional)
            if left > 0 and not self.backfill:
                break
        return Decision(fractions)

    def _keep_running(
        self, problem: AllocationProblem, order: NDArray[np.int64], free: Floats, fractions: Floats
    ) -> NDArray[np.int64]:
        """Give every running job that still fits its type for all of its time, and return the others in order."""
        kept = np.zeros(len(order), dtype=bool)
        for i in order:
            j = problem.running_on[i]
            if j >= 0 and problem.runnable[i, j] and free[j] >= problem.num_gpus[i]:
                kept[i] = _take(fractions[i], free, float(problem.num_gpus[i]), [j], fractional=False) == 0
        return order[~kept[order]]


def _take(row: Floats, free: Floats, gang: float, types: list[int], fractional: bool) -> float:
    """Fill one job's `row` from the `free` GPUs of the types in turn; return the part of its time that is left unserved."""
    left = 1.0
    for j in types:
        part = min(left, free[j] / gang)
        if part <= 0 or (part < 1 and not fractional):
            continue
        row[j] = part
        free[j] = max(0.0, free[j] - part * gang)
        left -= part
        if left <= 0:
            return 0.0
    return left
