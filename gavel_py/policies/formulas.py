"""The formula family: baselines that compute the allocation directly, without an objective.

A `PackingPolicy` also chooses which jobs share GPUs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.optimization.checking.time_shares import Pairs
from gavel_py.optimization.formulation.colocation import PairColumns
from gavel_py.optimization.formulation.cuts import node_rows
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.policies.base import AllocationStatus, Decision, Policy
from gavel_py.problem.arrays import Floats
from gavel_py.problem.pair_throughputs import PairSpeeds


@dataclass(frozen=True, kw_only=True)
class FormulaPolicy(Policy):
    """Compute the allocation by a formula, without objective and bound; only its validity is proven.

    Subclasses define `fractions`. Time on types where a job cannot run is set to 0. If the nodes of a type have too few CPUs or too
    little memory, the time of all jobs that require some is reduced there by the same factor.
    """

    family = "comparison"
    empty_objective = None

    @property
    def status(self) -> AllocationStatus:
        return AllocationStatus.FORMULA

    @abstractmethod
    def fractions(self, jobs: JobClasses) -> Floats:
        """Return (G, K) time fractions of one job of each class, with Σ_j x_gj <= 1 and Σ_g n_g s_g x_gj <= c_j.

        Args:
            jobs: The classes as this policy sees them.
        """

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:  # noqa: ARG002
        returned, shape = self.fractions(jobs), jobs.throughputs.shape
        text = f"must return a table of the shape {shape}, with one row for each row of jobs, found"
        try:
            fractions = np.asarray(returned, dtype=float)
        except (TypeError, ValueError):
            raise InputError(Fault(f"policy {self.name}", "fractions", f"{text} {returned!r}")) from None
        refuse(f"policy {self.name}", (fractions.shape != shape, "fractions", f"{text} {fractions.shape}"))
        times = np.where(jobs.runnable, fractions, 0.0)
        for row in node_rows(jobs.problem):
            needs = row.costs(jobs.rows, jobs.num_gpus)
            used = float(jobs.counts @ (needs * times).sum(axis=1))
            if used > row.rhs:
                times = np.where(needs > 0, times * (row.rhs / used), times)
        return Decision(times)


@dataclass(frozen=True, eq=False)
class Packing:
    """An allocation with co-location. alone: (G, K) time on unshared GPUs; pairs: co-located pairs, by rows of the problem."""

    alone: Floats
    pairs: Pairs


@dataclass(frozen=True, kw_only=True)
class PackingPolicy(FormulaPolicy):
    """Compute the allocation and the co-located pairs. Subclasses define `fractions`, without co-location, and `packed`."""

    reduces = False

    @abstractmethod
    def packed(self, jobs: JobClasses, pairs: PairSpeeds) -> Packing:
        """Return the time of each job alone and co-located; each job is a row. pairs: throughputs and gains of pairs."""

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        columns = jobs.columns
        if not isinstance(columns, PairColumns):
            return super().decide(jobs, solver)
        jobs = separate_jobs(columns.base, self.name, self.reads)
        packing = _within_nodes(jobs, self.packed(jobs, columns.pairs))
        alone = np.zeros(columns.base.throughputs.shape)
        alone[jobs.rows] = np.where(jobs.runnable, packing.alone, 0.0)
        return Decision(columns.with_pairs(alone, packing.pairs)[jobs.rows], pairs=packing.pairs)


def _within_nodes(jobs: JobClasses, packing: Packing) -> Packing:
    """Reduce time on types whose nodes lack CPUs or memory, for jobs and pairs that require some."""
    alone, pairs = packing.alone, packing.pairs
    for row in node_rows(jobs.problem):
        needs = row.costs(np.arange(jobs.problem.num_jobs), jobs.problem.num_gpus)
        of_pairs = (needs[pairs.first] + needs[pairs.second])[np.arange(len(pairs)), pairs.types]
        used = float((needs[jobs.rows] * alone).sum() + of_pairs @ pairs.times)
        if used > row.rhs:
            alone = np.where(needs[jobs.rows] > 0, alone * (row.rhs / used), alone)
            pairs = replace(pairs, times=np.where(of_pairs > 0, pairs.times * (row.rhs / used), pairs.times))
    return Packing(alone, pairs)
