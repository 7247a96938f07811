"""Elastic jobs: a column for each accelerator type and number of GPUs, and the resulting times.

X_i(j,n) is the time for which job i runs on n GPUs of type j:

    Σ_j,n X_i(j,n) <= 1,     Σ_i Σ_n n X_i(j,n) <= c_j.

The first column of a type is for gangs with a fixed number of GPUs, and for one GPU of an elastic job. Each further number n has
a column, in which a job takes n GPUs for each GPU that it requests; elastic jobs request 1. These are ordinary columns and rows, so
every policy that solves programs chooses numbers of GPUs. The columns exist for one job of each class of equal jobs only
(`ElasticColumns.widened`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gavel_py.optimization.checking.time_shares import CountTimes, TimeShares
from gavel_py.optimization.formulation.columns import Columns, with_columns, with_rules
from gavel_py.optimization.formulation.cuts import gang_rows
from gavel_py.optimization.formulation.linear_rows import Row, Rules
from gavel_py.optimization.formulation.packings import fraction_rows
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.gpu_counts import GpuCounts
from gavel_py.problem.problem import AllocationProblem


@dataclass(frozen=True, eq=False)
class ElasticColumns(Columns):
    """The columns of the numbers of GPUs that some job can use. counts: the throughputs; sizes: (K',) GPUs in each column."""

    counts: GpuCounts
    sizes: Indices

    @property
    def accelerator_types(self) -> tuple[str, ...]:
        types = self.base.accelerator_types
        further = range(len(types), len(self.source))
        return (*types, *(f"{types[self.source[column]]} x{self.sizes[column]}" for column in further))

    @property
    def partner_groups(self) -> Indices:
        return self.counts.kinds

    @cached_property
    def _tables(self) -> tuple[Floats, Mask]:
        """(Q + 1, K') throughputs of the kinds in all columns, and where they may have time; the last row is for fixed gangs."""
        types, places = self.source, np.searchsorted(self.counts.counts, self.sizes)
        places = np.minimum(places, len(self.counts.counts) - 1)
        offered = self.counts.counts[places] == self.sizes
        speeds, able = self.counts.speeds[:, types, places] * offered, self.counts.able[:, types, places] & offered
        fixed = np.arange(len(types)) < len(self.base.capacities)
        return np.vstack([speeds, np.zeros(len(types))]), np.vstack([able, fixed])

    def widened(self, problem: AllocationProblem, rows: Indices) -> AllocationProblem:
        narrow = problem.select(rows)
        assert narrow.counts is not None  # noqa: S101
        kinds, types = narrow.counts.kinds, len(self.base.capacities)
        speeds, able = self._tables[0][kinds], self._tables[1][kinds]
        names = self.accelerator_types[types:]
        wide = with_columns(narrow, self.source, self.parts, names, speeds[:, types:], able[:, types:])
        return replace(wide, runnable=wide.runnable & able)

    def repaired(self, jobs: JobClasses, fractions: Floats) -> Floats:
        """Return (G, K') fractions that keep the row for the GPUs of a type exactly, not only within the solver's tolerance."""
        used = self.gpus(fractions, jobs.counts * jobs.num_gpus)
        room = np.divide(self.base.capacities, used, out=np.ones_like(used), where=used > self.base.capacities)
        repaired: Floats = fractions * room[self.source]
        return repaired

    def counts_of(self, times: TimeShares) -> CountTimes:
        """Return the times of elastic jobs by type and number of GPUs."""
        jobs = times.classes
        assert jobs is not None  # noqa: S101
        some = (times.fractions > 0) & (self.counts.kinds[jobs.rows] >= 0)[:, None]
        number, (_, columns) = some.sum(axis=1), np.nonzero(some)
        first = np.concatenate([[0], np.cumsum(number)[:-1]])
        of_each = number[jobs.index]
        rows = np.repeat(np.arange(len(of_each)), of_each)
        starts = np.repeat(np.cumsum(of_each) - of_each, of_each)
        entries = first[jobs.index[rows]] + np.arange(len(rows)) - starts
        chosen = columns[entries]
        found = times.fractions[some][entries]
        return CountTimes(jobs.jobs[rows], self.source[chosen], self.sizes[chosen], found)

    def separate(self, times: TimeShares) -> tuple[list[Row], Columns]:
        """Return the rows of whole gangs and of fractions that an answer breaks; each column has gangs of its own size."""
        problem = self.base
        if problem.hosts is None:
            return [], self
        wide, fractions = self.widened(problem, np.arange(problem.num_jobs)), times.by_job(times.fractions)
        return [*gang_rows(wide, fractions, self.columns_of), *fraction_rows(wide, fractions, self.columns_of)], self


def elastic_columns(problem: AllocationProblem, rules: Rules, counts: GpuCounts) -> Columns:
    """Return the columns of all numbers of GPUs that some job can use and a type can hold."""
    types = len(problem.capacities)
    present = np.unique(counts.kinds[counts.is_elastic & problem.runnable.any(axis=1)])
    offered = counts.able[present].any(axis=0) & (counts.counts > 1)
    where, places = np.nonzero(offered)
    source = np.concatenate([np.arange(types), where]).astype(np.int64)
    sizes = np.concatenate([np.ones(types, dtype=np.int64), counts.counts[places]])
    wider, joint = with_rules(problem, rules, source, sizes.astype(float), per_gpu=True)
    return ElasticColumns(problem, problem, wider, source, sizes.astype(float), joint, counts, sizes)
