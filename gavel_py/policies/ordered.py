"""The ordered family: serve jobs in an order, each takes the best of what is left."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.array_checks import returned_numbers
from gavel_py.job_classes import JobClasses
from gavel_py.ordering import NumberedNames, natural_key
from gavel_py.policies.base import Decision, Policy, option

if TYPE_CHECKING:
    from gavel_py.solver import LinearSolver

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

    reduces: ClassVar[bool] = False

    @abstractmethod
    def sort_key(self, jobs: JobClasses) -> Floats:
        """Return (N,) numbers, one per job; the smallest goes first."""

    @property
    def backfills(self) -> bool:
        return self.backfill

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:  # noqa: ARG002
        free = jobs.capacities.copy()
        fractions = np.zeros(jobs.throughputs.shape)
        order = self._order(jobs)
        if not self.preemptive:
            order = self._keep_running(jobs, order, free, fractions)
        # The types of each job, fastest first; equal ones in the order of the cluster.
        preference = np.argsort(-jobs.throughputs, axis=1, kind="stable")
        gangs, runnable = jobs.num_gpus, jobs.runnable
        for i in order.tolist():
            if not free.any():
                break
            types = [j for j in preference[i] if runnable[i, j]]
            left = _take(fractions[i], free, float(gangs[i]), types, self.fractional)
            if left > 0 and not self.backfill:
                break
        return Decision(fractions)

    def _order(self, jobs: JobClasses) -> NDArray[np.int64]:
        """The jobs by sort key, then arrival, then id."""
        key = returned_numbers(self.sort_key(jobs), len(jobs), f"policy {self.name}", "sort_key", "finite", jobs.example)
        arrival = jobs.problem.arrival_seconds[jobs.jobs]
        order = np.lexsort((arrival, key))
        ids, rows = jobs.problem.job_ids, jobs.jobs.tolist()
        if isinstance(ids, NumberedNames):
            return order  # the sort is stable, and numbers are in order
        # Reading ids takes long where there are many jobs, so it is done for those that tie only.
        ties = (key[order][1:] == key[order][:-1]) & (arrival[order][1:] == arrival[order][:-1])
        starts = np.flatnonzero(np.concatenate([[True], ~ties]))
        for start, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
            if end - start > 1:
                order[start:end] = sorted(order[start:end].tolist(), key=lambda i: natural_key(ids[rows[i]]))
        return order

    def _keep_running(self, jobs: JobClasses, order: NDArray[np.int64], free: Floats, fractions: Floats) -> NDArray[np.int64]:
        """Give every running job that still fits its type for all of its time, and return the others in order."""
        kept = np.zeros(len(order), dtype=bool)
        running_on = jobs.problem.running_on[jobs.jobs]
        for i in order[running_on[order] >= 0].tolist():
            j = running_on[i]
            if jobs.runnable[i, j] and free[j] >= jobs.num_gpus[i]:
                kept[i] = _take(fractions[i], free, float(jobs.num_gpus[i]), [j], fractional=False) == 0
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
