"""The time of all jobs, with a row for each job or for each class of equal jobs, and what it comes to.

What a proof checks of all N jobs may be checked of one job of each class, counted as often as the class has jobs. That is the same
if the jobs of a class are equal in all that is looked at, which is checked too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.formulation.linear_rows import Broken, Row, Rules, entries_of, shortfalls
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.arrays import Floats
from gavel_py.problem.problem import AllocationProblem

ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class JobTimes:
    """fractions: (N, K) time of each job of a problem."""

    problem: AllocationProblem
    fractions: Floats

    @cached_property
    def job_throughputs(self) -> Floats:
        """(N,) steps/s of each job."""
        throughputs: Floats = np.einsum("ij,ij->i", self.problem.throughputs, self.fractions)
        return throughputs

    def used(self, row: Row) -> float:
        """Return what all jobs have of what a rule counts."""
        return row.used(self.problem, self.fractions)

    def moved(self) -> float:
        """Return how many GPUs change hands, Σ_ij s_i |X_ij − previous_ij|, on the types where jobs can run."""
        problem = self.problem
        change = np.where(problem.runnable, np.abs(self.fractions - problem.previous_fractions), 0.0)
        return float(problem.num_gpus @ change @ np.ones(change.shape[1]))

    def broken(self, rules: Rules) -> list[Broken]:
        """Return every rule that must hold and does not, by more than rounding."""
        return rules.broken(self.problem, self.fractions) if rules else []


@dataclass(frozen=True, eq=False)
class ClassTimes:
    """jobs: the classes, whose jobs have K' columns; fractions: (G, K') time of each job of a class."""

    jobs: JobClasses
    fractions: Floats

    @cached_property
    def throughputs(self) -> Floats:
        """(G,) steps/s of a job of each class."""
        throughputs: Floats = np.einsum("ij,ij->i", self.jobs.real_throughputs, self.fractions)
        return throughputs

    @cached_property
    def job_throughputs(self) -> Floats:
        """(N,) steps/s of each job."""
        return self.jobs.by_job(self.throughputs)

    @property
    def num_gpus(self) -> Floats:
        """(G,) GPUs of all jobs of each class."""
        return self.jobs.counts * self.jobs.num_gpus

    def used(self, row: Row) -> float:
        """Return what all jobs have of what a rule counts, Σ_g n_g Σ_j a_gj x_gj."""
        places, values = entries_of(row, self.jobs.rows, self.jobs.num_gpus)
        return float(values @ (self.jobs.counts[:, None] * self.fractions).ravel()[places])

    def moved(self) -> float:
        """Return how many GPUs change hands, Σ_g n_g s_g Σ_j |x_gj − previous_gj| on the types where jobs can run."""
        change = np.where(self.jobs.runnable, np.abs(self.fractions - self.jobs.before), 0.0)
        return float(self.num_gpus @ change @ np.ones(change.shape[1]))

    def broken(self, rules: Rules) -> list[Broken]:
        """Return every rule that must hold and does not, by more than rounding."""
        jobs = self.jobs if self.jobs.rules is rules else replace(self.jobs, rules=rules)
        costs, most = jobs.limits
        over = costs @ (jobs.counts[:, None] * self.fractions).ravel() - most
        found = [Broken(rules.hard_rows[r].name, float(over[r])) for r in np.flatnonzero(over > ROUNDING).tolist()]
        for floor in rules.floors:
            if floor.penalty is None:
                short = shortfalls(floor.throughputs[jobs.rows], self.throughputs)
                names = {g: floor.name_of(int(jobs.rows[g])) for g in np.flatnonzero(short > ROUNDING).tolist()}
                found += [Broken(name, float(short[g])) for g, name in names.items()]
        return found

    def are_equal(self, rules: Rules) -> bool:
        """Return whether the jobs of each class are equal in all that a proof looks at, these rules included."""
        jobs = self.jobs
        able = slice(None) if jobs.num_jobs == jobs.problem.num_jobs else jobs.jobs
        return all(np.array_equal(column[able], column[jobs.rows].take(jobs.index, axis=0)) for column in self._looked_at(rules))

    def _looked_at(self, rules: Rules) -> Iterator[NDArray[np.generic]]:
        problem = self.jobs.problem
        yield from (problem.throughputs, problem.runnable, problem.num_gpus)
        if problem.pairs is not None:
            yield problem.pairs.kinds
        yield from {id(column): column for row in rules.hard_rows for column in row.split}.values()
        yield from (floor.throughputs for floor in rules.floors)
