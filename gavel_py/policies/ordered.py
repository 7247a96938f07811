"""The ordered family: serve jobs in an order, each takes the best of what is left."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.io.names import NumberedNames, natural_key
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import Decision, Policy, option
from gavel_py.problem.array_validation import returned_numbers
from gavel_py.problem.arrays import Floats, Indices, Mask

if TYPE_CHECKING:
    from gavel_py.optimization.solving.highs import LinearSolver

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

    family = "ordered"
    empty_objective = None
    reduces = False

    @abstractmethod
    def sort_key(self, jobs: JobClasses) -> Floats:
        """Return (N,) numbers, one per job; the smallest goes first."""

    @property
    def backfills(self) -> bool:
        return self.backfill

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:  # noqa: ARG002
        return Decision(self.serve(jobs)[0])

    @property
    def by_job(self) -> bool:
        """Whether what `sort_key` says of a job follows from that job alone, whoever else is there.

        It then reads nothing but the attributes in `reads` and `fastest`, and may be asked about some jobs only; nor do `view` and
        `check` look at more than one job. Who decides often can keep the order then, instead of finding it anew each time.
        """
        return False

    def serve(self, jobs: JobClasses) -> tuple[Floats, Indices]:
        """Return (G, K) the time fractions, and (G,) the jobs in the order in which they were served.

        First those that keep running if nothing is preempted, then as many as it takes for what rules promise, then the others.
        """
        if not jobs.rules and not self.fractional:
            return self._serve_whole(jobs)
        free = _Free(jobs)
        fractions = np.zeros(jobs.throughputs.shape)
        order = self._order(jobs)
        kept, order = (order[:0], order) if self.preemptive else self._keep_running(jobs, order, free, fractions)
        # The types of each job, fastest first; equal ones in the order of the cluster.
        preference = np.argsort(-jobs.throughputs, axis=1, kind="stable")
        runnable = jobs.runnable

        def left(i: int) -> float:
            return _take(fractions[i], free, i, [j for j in preference[i] if runnable[i, j]], self.fractional)

        first, order = _promised_first(order, free, left)
        for i in order.tolist():
            if not free.gpus.any() or (left(i) > 0 and not self.backfill):
                break
        return fractions, np.concatenate([kept, first, order])

    def _serve_whole(self, jobs: JobClasses) -> tuple[Floats, Indices]:
        """The same where no rule says anything and each job gets all of its time on one type, or none: whole GPUs are counted."""
        order, runnable = self._order(jobs), jobs.runnable
        # The types of each job, fastest first; equal ones in the order of the cluster. Those that it cannot use are marked.
        preference = np.argsort(-jobs.throughputs, axis=1, kind="stable")
        preference = np.where(np.take_along_axis(runnable, preference, axis=1), preference, -1)
        running_on = np.full(len(order), -1, dtype=np.int64)
        if not self.preemptive:
            running_on = jobs.problem.running_on[jobs.jobs]
            running_on = np.where((running_on >= 0) & runnable[np.arange(len(order)), running_on], running_on, -1)
        seats, kept = self.seats(
            preference[order].tolist(),
            jobs.num_gpus.astype(float)[order].tolist(),
            running_on[order].tolist(),
            jobs.capacities.tolist(),
        )
        columns = np.empty(len(order), dtype=np.int64)
        columns[order] = seats
        fractions = (columns[:, None] == np.arange(len(jobs.capacities))).astype(float)
        stays = np.zeros(len(order), dtype=bool)
        stays[kept] = True
        return fractions, np.concatenate([order[stays], order[~stays]])

    def seats(
        self, wishes: Sequence[list[int]], sizes: Sequence[float], running_on: Sequence[int], free: list[float]
    ) -> tuple[list[int], list[int]]:
        """Return the type on which each job has all of its time, -1 for none, and who keeps its type since nobody is preempted.

        Jobs in the order in which they are served. wishes: the types of each, the fastest first, -1 for those that it cannot use;
        sizes: of their gangs; running_on: where each runs and may go on, -1 for nowhere; free: GPUs of each type, which change.
        """
        if self.preemptive:
            seats = _seated(wishes, sizes, free, backfill=self.backfill)
            return seats + [-1] * (len(wishes) - len(seats)), []
        columns = [-1] * len(wishes)
        runs = [i for i, column in enumerate(running_on) if column >= 0]
        for i, seat in zip(runs, _seated([[running_on[i]] for i in runs], [sizes[i] for i in runs], free), strict=False):
            columns[i] = seat
        kept = [i for i in runs if columns[i] >= 0]
        waits = [i for i, column in enumerate(columns) if column < 0]
        found = _seated([wishes[i] for i in waits], [sizes[i] for i in waits], free, backfill=self.backfill)
        for i, seat in zip(waits, found, strict=False):  # the others have none
            columns[i] = seat
        return columns, kept

    def _order(self, jobs: JobClasses) -> Indices:
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

    def _keep_running(self, jobs: JobClasses, order: Indices, free: _Free, fractions: Floats) -> tuple[Indices, Indices]:
        """Give every running job that still fits its type for all of its time; return these and the others, each in order."""
        kept = np.zeros(len(order), dtype=bool)
        running_on = jobs.problem.running_on[jobs.jobs]
        for i in order[running_on[order] >= 0].tolist():
            j = running_on[i]
            if jobs.runnable[i, j]:
                kept[i] = _take(fractions[i], free, i, [j], fractional=False) == 0
        return order[kept[order]], order[~kept[order]]


def _seated(wishes: Sequence[Sequence[int]], sizes: Sequence[float], free: list[float], *, backfill: bool = True) -> list[int]:
    """Give each gang in turn the first type of its wishes (-1: none) that has GPUs left for it; return the types, -1 for none.

    free: GPUs left of each type, which change. The list ends where no GPU is left, or, without backfill, at a gang that does not
    fit.
    """
    seats: list[int] = []
    most = max(free, default=0.0)  # no more than this is left of any
    for types, size in zip(wishes, sizes, strict=True):
        if most <= 0:
            break
        seat, needed = -1, size * (1 - ROUNDING)
        if most >= needed:
            for column in types:
                if column >= 0 and (had := free[column]) >= needed:
                    seat, free[column] = column, had - size if had > size else 0.0
                    break
            if seat < 0 or not free[seat]:
                most = max(free)
        seats.append(seat)
        if seat < 0 and not backfill:
            break
    return seats


def _promised_first(order: Indices, free: _Free, left: Callable[[int], float]) -> tuple[Indices, Indices]:
    """Serve jobs to which rules promise something while that is not there yet; return these and the others, each in order.

    left: serves a job and returns the part of its time that it did not get.
    """
    served = np.zeros(len(order), dtype=bool)
    for place in np.flatnonzero(free.promised[order]).tolist():
        if not free.gpus.any():
            break
        i = int(order[place])
        served[place] = free.is_owed(i) and left(i) < 1
    return order[served], order[~served]


class _Free:
    """What is left to be given: GPUs of each type, of each upper limit that rules set, and of what they promise.

    promised: (G,) the jobs to which rules promise throughput or, together with others, GPUs.
    """

    def __init__(self, jobs: JobClasses) -> None:
        self.gpus = jobs.capacities.copy()
        self._gangs = jobs.num_gpus
        costs, most = jobs.limit_tables
        upper = most >= 0
        self._costs, self._left = costs[upper], most[upper].copy()
        self._gains, self._owed = -costs[~upper], -most[~upper]
        self._has_floor = jobs.floors > 0
        self.promised: Mask = self._has_floor | (self._gains > 0).any(axis=(0, 2))

    def is_owed(self, i: int) -> bool:
        """Say whether job i still has something to get by a promise, be it its own or that of others and itself together."""
        owing = self._owed > ROUNDING
        return bool(self._has_floor[i]) or bool((self._gains[owing, i] > 0).any())

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
        self._owed -= part * self._gains[:, i, j]


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
