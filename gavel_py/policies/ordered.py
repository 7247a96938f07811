"""The ordered family: a greedy pass over sorted jobs, in which each job takes the best accelerator type with free GPUs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gavel_py.io.names import NumberedNames, natural_key
from gavel_py.optimization.job_classes import JobClasses, returned_numbers
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.policies.base import Decision, Policy, option
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import DIFFERENCE_ROUNDING


@dataclass(frozen=True, kw_only=True)
class OrderedPolicy(Policy):
    """Serve jobs in the order of `sort_key` (ties: arrival, then id), without solver, objective and bound.

    Each job gets all of its time on the type where it is fastest, among those with enough free GPUs for its gang.

    Attributes:
        fractional: Whether a job may split its time over several types.
        preemptive: Whether running jobs may lose their GPUs. If not, they keep their types and come first.
        backfill: Whether later jobs may pass one that does not fit.
    """

    fractional: bool = option(False, "allow a job to split its time over several types, x_ij <= GPUs left / s_i")
    preemptive: bool = option(True, "false: running jobs keep their accelerator type and come first")
    backfill: bool = option(True, "allow later jobs to overtake one that does not fit; otherwise GPUs may stay idle")

    family = "ordered"
    empty_objective = None
    reduces = False

    @abstractmethod
    def sort_key(self, jobs: JobClasses) -> Floats:
        """Return (N,) the sort key of each job; the smallest is served first.

        Args:
            jobs: One row per job, as this policy sees them.
        """

    @property
    def changes_at(self) -> Mapping[str, tuple[float, ...]]:
        """{field: ascending values} of `attained_gpu_seconds` and `waiting_seconds`, for schedulers, in which these grow with time.

        The order of given jobs changes only when a job reaches one of these values, or falls below it. If the policy reads such a
        field without listing it here, its order may change at any time.
        """
        return {}

    @property
    def backfills(self) -> bool:
        return self.backfill

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:  # noqa: ARG002
        return Decision(self.serve(jobs)[0])

    @property
    def by_job(self) -> bool:
        """Whether the sort key of a job depends on this job alone.

        `sort_key` then reads only the attributes in `reads` and `fastest` and accepts any subset of the jobs, and `view` and
        `check` treat each job by itself. Event-driven scheduling then keeps a sorted queue instead of sorting at each decision,
        unless the policy has its own `seats` or, outside of simulations, reads times.
        """
        return False

    def serve(self, jobs: JobClasses) -> tuple[Floats, Indices]:
        """Return (G, K) the time fractions, and (G,) the jobs in the order in which they were served.

        Jobs that keep running come first without preemption, then as many as are needed for the lower bounds of rules, then the
        others.

        Args:
            jobs: One row per job, as this policy sees them.
        """
        if not jobs.rules and not self.fractional:
            return self._serve_whole(jobs)
        free = _FreeResources(jobs)
        fractions = np.zeros(jobs.throughputs.shape)
        order = self._order(jobs)
        kept, order = (order[:0], order) if self.preemptive else self._keep_running(jobs, order, free, fractions)
        preference = _preference(jobs)

        def unserved(i: int) -> float:
            return free.fill(fractions[i], i, [j for j in preference[i] if j >= 0], self.fractional)

        served = np.zeros(len(order), dtype=bool)  # jobs with lower bounds, until the bounds are met
        for place in np.flatnonzero(free.has_bound[order]).tolist():
            if not free.gpus.any():
                break
            i = int(order[place])
            served[place] = free.lacks_bound(i) and unserved(i) < 1
        for i in order[~served].tolist():
            if not free.gpus.any() or (unserved(i) > 0 and not self.backfill):
                break
        return fractions, np.concatenate([kept, order[served], order[~served]])

    def _serve_whole(self, jobs: JobClasses) -> tuple[Floats, Indices]:
        """Serve jobs without rules and fractions: each gets all of its time on one type or none, so counting free GPUs suffices."""
        order, runnable, preference = self._order(jobs), jobs.runnable, _preference(jobs)
        running_on = np.full(len(order), -1, dtype=np.int64)
        if not self.preemptive:
            running_on = jobs.problem.running_on[jobs.jobs]
            running_on = np.where((running_on >= 0) & runnable[np.arange(len(order)), running_on], running_on, -1)
        selected, kept = self.seats(
            preference[order].tolist(),
            jobs.num_gpus.astype(float)[order].tolist(),
            running_on[order].tolist(),
            jobs.capacities.tolist(),
        )
        columns = np.empty(len(order), dtype=np.int64)
        columns[order] = selected
        fractions = (columns[:, None] == np.arange(len(jobs.capacities))).astype(float)
        stays = np.zeros(len(order), dtype=bool)
        stays[kept] = True
        return fractions, np.concatenate([order[stays], order[~stays]])

    def seats(
        self, wishes: Sequence[list[int]], sizes: Sequence[float], running_on: Sequence[int], free: list[float]
    ) -> tuple[list[int], list[int]]:
        """Select an accelerator type for each job, in service order.

        Args:
            wishes: The types of each job, the fastest first; -1 for types that it cannot use.
            sizes: GPUs of each gang.
            running_on: The type on which each job runs and may stay, -1 for none.
            free: Free GPUs of each type; updated in place.

        Returns:
            The type on which each job gets all of its time, -1 for none; and the jobs that keep their type because the policy does
            not preempt.
        """
        if self.preemptive:
            selected = select_types(wishes, sizes, free, backfill=self.backfill)
            return selected + [-1] * (len(wishes) - len(selected)), []
        columns = [-1] * len(wishes)
        running = [i for i, column in enumerate(running_on) if column >= 0]
        for i, column in zip(
            running, select_types([[running_on[i]] for i in running], [sizes[i] for i in running], free), strict=False
        ):
            columns[i] = column
        kept = [i for i in running if columns[i] >= 0]
        waiting = [i for i, column in enumerate(columns) if column < 0]
        found = select_types([wishes[i] for i in waiting], [sizes[i] for i in waiting], free, backfill=self.backfill)
        for i, column in zip(waiting, found, strict=False):  # the list ends early if no GPU is left
            columns[i] = column
        return columns, kept

    def _order(self, jobs: JobClasses) -> Indices:
        """Return (G,) the jobs by sort key, then arrival, then id."""
        key = returned_numbers(self.sort_key(jobs), len(jobs), f"policy {self.name}", "sort_key", "finite", jobs.example)
        arrival = jobs.problem.arrival_seconds[jobs.jobs]
        order = np.lexsort((arrival, key))
        ids, rows = jobs.problem.job_ids, jobs.jobs.tolist()
        if isinstance(ids, NumberedNames):
            return order  # the sort is stable, and numbered ids are sorted already
        # Comparing ids is slow, so only ties are sorted by id.
        ties = (key[order][1:] == key[order][:-1]) & (arrival[order][1:] == arrival[order][:-1])
        starts = np.flatnonzero(np.concatenate([[True], ~ties]))
        for start, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
            if end - start > 1:
                order[start:end] = sorted(order[start:end].tolist(), key=lambda i: natural_key(ids[rows[i]]))
        return order

    def _keep_running(self, jobs: JobClasses, order: Indices, free: _FreeResources, fractions: Floats) -> tuple[Indices, Indices]:
        """Give running jobs that still fit all of their time on their type; return these and the other jobs, each in order."""
        kept = np.zeros(len(order), dtype=bool)
        running_on = jobs.problem.running_on[jobs.jobs]
        for i in order[running_on[order] >= 0].tolist():
            j = running_on[i]
            if jobs.runnable[i, j]:
                kept[i] = free.fill(fractions[i], i, [j], fractional=False) == 0
        return order[kept[order]], order[~kept[order]]


def _preference(jobs: JobClasses) -> Indices:
    """Return (G, K) the types of each job, fastest first, equal ones in the order of the cluster; -1 if the job cannot use one."""
    preference = np.argsort(-jobs.throughputs, axis=1, kind="stable")
    return np.where(np.take_along_axis(jobs.runnable, preference, axis=1), preference, -1)


def select_types(wishes: Sequence[Sequence[int]], sizes: Sequence[float], free: list[float], *, backfill: bool = True) -> list[int]:
    """Return for each gang in turn the first type of its wishes (-1: not usable) with enough free GPUs, -1 for none.

    free: free GPUs of each type, updated in place. The list ends when no GPU is left or, without backfill, at a gang that does not
    fit.
    """
    selected: list[int] = []
    largest = max(free, default=0.0)  # upper bound on the free GPUs of any type
    for types, size in zip(wishes, sizes, strict=True):
        if largest <= 0:
            break
        selection, required = -1, size * (1 - DIFFERENCE_ROUNDING)
        if largest >= required:
            for column in types:
                if column >= 0 and (had := free[column]) >= required:
                    selection, free[column] = column, had - size if had > size else 0.0
                    break
            if selection < 0 or not free[selection]:
                largest = max(free)
        selected.append(selection)
        if selection < 0 and not backfill:
            break
    return selected


class _FreeResources:
    """Free GPUs of each type, free units of each upper limit, and units that lower limits still require.

    has_bound: (G,) the jobs with a lower bound on throughput or, together with others, on GPUs.
    """

    def __init__(self, jobs: JobClasses) -> None:
        self.gpus = jobs.capacities.copy()
        self._gangs = jobs.num_gpus
        costs, limits = jobs.limit_tables
        is_upper = limits >= 0
        self._costs, self._left = costs[is_upper], limits[is_upper].copy()
        self._gains, self._lacking = -costs[~is_upper], -limits[~is_upper]
        self._has_floor = jobs.floors > 0
        self.has_bound: Mask = self._has_floor | (self._gains > 0).any(axis=(0, 2))

    def lacks_bound(self, i: int) -> bool:
        """Return whether job i has a lower bound on throughput, or counts in a lower limit that is not met yet."""
        unmet = self._lacking > DIFFERENCE_ROUNDING
        return bool(self._has_floor[i]) or bool((self._gains[unmet, i] > 0).any())

    def fill(self, row: Floats, i: int, types: list[int], fractional: bool) -> float:
        """Fill the row of job i with time on the given types in turn; return the part of its time that remains unserved."""
        left = 1.0
        for j in types:
            part = min(left, self._part(i, j))
            if part <= 0 or (part < 1 and not fractional):
                continue
            row[j] = part
            self.gpus[j] = max(0.0, self.gpus[j] - part * self._gangs[i])
            np.maximum(0.0, self._left - part * self._costs[:, i, j], out=self._left)
            self._lacking -= part * self._gains[:, i, j]
            left -= part
            if left <= 0:
                return 0.0
        return left

    def _part(self, i: int, j: int) -> float:
        """Return the part of its time that job i can have on type j."""
        part = float(self.gpus[j] / self._gangs[i])
        costs = self._costs[:, i, j]
        taking = costs > 0
        part = min(part, float((self._left[taking] / costs[taking]).min())) if taking.any() else part
        return 0.0 if part < DIFFERENCE_ROUNDING else 1.0 if abs(part - 1) < DIFFERENCE_ROUNDING else part
