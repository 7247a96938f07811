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

ROUNDING = 1e-10
"""A part of a job's time that is not told from none, or from all: limits are left as differences, which lose digits."""


@dataclass(frozen=True, kw_only=True)
class OrderedPolicy(Policy):
    """Serve jobs in the order of `sort_key` (ties: arrival, then id); no solver, so no objective and no bound.

    Each job takes the accelerator type where it is fastest among those with its gang's GPUs left, for all of its time.
    """

    fractional: bool = option(False, "let a job take parts of its time on several types, x_ij <= GPUs left / s_i")
    preemptive: bool = option(True, "false: jobs that run keep their accelerator type and come first")
    backfill: bool = option(True, "let later jobs pass one that does not fit; without it GPUs may stay idle")

    family: ClassVar[str] = "ordered"
    empty_objective: ClassVar[float | None] = None

    reduces: ClassVar[bool] = False

    @abstractmethod
    def sort_key(self, jobs: JobClasses) -> Floats:
        """Return (N,) numbers, one per job; the smallest goes first."""

    @property
    def backfills(self) -> bool:
        return self.backfill

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:  # noqa: ARG002
        free = _Free(jobs)
        fractions = np.zeros(jobs.throughputs.shape)
        order = self._order(jobs)
        if not self.preemptive:
            order = self._keep_running(jobs, order, free, fractions)
        order = free.promised_first(order)
        # The types of each job, fastest first; equal ones in the order of the cluster.
        preference = np.argsort(-jobs.throughputs, axis=1, kind="stable")
        runnable = jobs.runnable
        for i in order.tolist():
            if not free.gpus.any():
                break
            types = [j for j in preference[i] if runnable[i, j]]
            left = _take(fractions[i], free, i, types, self.fractional)
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

    def _keep_running(self, jobs: JobClasses, order: NDArray[np.int64], free: _Free, fractions: Floats) -> NDArray[np.int64]:
        """Give every running job that still fits its type for all of its time, and return the others in order."""
        kept = np.zeros(len(order), dtype=bool)
        running_on = jobs.problem.running_on[jobs.jobs]
        for i in order[running_on[order] >= 0].tolist():
            j = running_on[i]
            if jobs.runnable[i, j]:
                kept[i] = _take(fractions[i], free, i, [j], fractional=False) == 0
        return order[~kept[order]]


class _Free:
    """What is left to be given: GPUs of each type, and of each upper limit that rules set."""

    def __init__(self, jobs: JobClasses) -> None:
        self.gpus = jobs.capacities.copy()
        self._gangs = jobs.num_gpus.astype(float)
        costs, most = jobs.limits
        upper = most >= 0
        self._costs, self._left = costs[upper], most[upper].copy()
        self._promised = (jobs.floors > 0) | (costs[~upper] < 0).any(axis=(0, 2))

    def promised_first(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the order with the jobs in front to which rules promise throughput or GPUs."""
        first = self._promised[order]
        return np.concatenate([order[first], order[~first]])

    def part(self, i: int, j: int) -> float:
        """Return which part of its time job i can have on type j."""
        part = float(self.gpus[j] / self._gangs[i])
        costs = self._costs[:, i, j]
        taking = costs > 0
        part = min(part, float((self._left[taking] / costs[taking]).min())) if taking.any() else part
        return 0.0 if part < ROUNDING else 1.0 if abs(part - 1) < ROUNDING else part

    def take(self, i: int, j: int, part: float) -> None:
        """Give it."""
        self.gpus[j] = max(0.0, self.gpus[j] - part * self._gangs[i])
        np.maximum(0.0, self._left - part * self._costs[:, i, j], out=self._left)


def _take(row: Floats, free: _Free, i: int, types: list[int], fractional: bool) -> float:
    """Fill job i's `row` from what is free of the types in turn; return the part of its time that is left unserved."""
    left = 1.0
    for j in types:
        part = min(left, free.part(i, j))
        if part <= 0 or (part < 1 and not fractional):
            continue
        row[j] = part
        free.take(i, j, part)
        left -= part
        if left <= 0:
            return 0.0
    return left
