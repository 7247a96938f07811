"""The formulas: allocations stated outright, without an objective, to compare other policies with.

A `PackingPolicy` also states which jobs share GPUs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.formulation.colocation import PairColumns, Pairs
from gavel_py.optimization.formulation.cuts import node_rows
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.policies.base import AllocationStatus, Decision, Policy
from gavel_py.problem.arrays import Floats
from gavel_py.problem.pair_throughputs import PairSpeeds

if TYPE_CHECKING:
    from gavel_py.optimization.solving.highs import LinearSolver


@dataclass(frozen=True, kw_only=True)
class FormulaPolicy(Policy):
    """State the allocation itself; write `fractions`. There is no objective and no bound; what is proven is that it is valid.

    Time on types where a job cannot run is taken out. Where the nodes of a type lack the CPUs or the memory for what is stated, the
    jobs that need some have their time there reduced by the same factor.
    """

    family = "comparison"
    empty_objective = None

    @property
    def status(self) -> AllocationStatus:
        return AllocationStatus.FORMULA

    @abstractmethod
    def fractions(self, jobs: JobClasses) -> Floats:
        """Return (G, K) the time of each job of a class on each type; Σ_j x_gj <= 1 and Σ_g n_g s_g x_gj <= c_j."""

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:  # noqa: ARG002
        fractions = np.asarray(self.fractions(jobs), dtype=float)
        shape = jobs.throughputs.shape
        if fractions.shape != shape:
            text = f"must return a table of the shape {shape}, one row for each row of jobs, found {fractions.shape}"
            raise InputError(Fault(f"policy {self.name}", "fractions", text))
        times = np.where(jobs.runnable, fractions, 0.0)
        for row in node_rows(jobs.problem):
            needs = row.costs(jobs.rows, jobs.num_gpus)
            used = float(jobs.counts @ (needs * times).sum(axis=1))
            if used > row.most:
                times = np.where(needs > 0, times * (row.most / used), times)
        return Decision(times)


@dataclass(frozen=True, eq=False)
class Packing:
    """alone: (G, K) the time that each job has GPUs of a type for itself; pairs: who shares, by the jobs' rows in the problem."""

    alone: Floats
    pairs: Pairs


@dataclass(frozen=True, kw_only=True)
class PackingPolicy(FormulaPolicy):
    """State the allocation and who shares GPUs: write `fractions` for where nobody is to, and `packed`. Every job is a row."""

    reduces = False

    @abstractmethod
    def packed(self, jobs: JobClasses, pairs: PairSpeeds) -> Packing:
        """Return the time of each job on each type, alone and with others; pairs: how fast they are then, and who gains."""

    def decide_shared(self, columns: PairColumns) -> Decision:
        """Return the decision in the columns of jobs that share GPUs."""
        jobs = separate_jobs(columns.base, self.name, self.reads)
        packing = _within_nodes(jobs, self.packed(jobs, columns.pairs))
        found, kinds, types = packing.pairs, columns.pairs.kinds, len(columns.base.capacities)
        times = np.zeros((columns.base.num_jobs, len(columns.source)))
        times[jobs.rows, :types] = np.where(jobs.runnable, packing.alone, 0.0)
        keys = np.column_stack([kinds[found.first], kinds[found.second], found.types])
        for key in np.unique(keys, axis=0):
            here = (keys == key).all(axis=1)
            one, other = columns.columns_for(*key.tolist())
            np.add.at(times, (found.first[here], one), found.times[here])
            np.add.at(times, (found.second[here], other), found.times[here])
        return Decision(times[jobs.rows], pairs=found)


def _within_nodes(jobs: JobClasses, packing: Packing) -> Packing:
    """Reduce time on types whose nodes lack CPUs or memory, for jobs that need some and for pairs with such a job."""
    alone, pairs = packing.alone, packing.pairs
    for row in node_rows(jobs.problem):
        needs = row.costs(np.arange(jobs.problem.num_jobs), jobs.problem.num_gpus)
        of_pairs = (needs[pairs.first] + needs[pairs.second])[np.arange(len(pairs)), pairs.types]
        used = float((needs[jobs.rows] * alone).sum() + of_pairs @ pairs.times)
        if used > row.most:
            alone = np.where(needs[jobs.rows] > 0, alone * (row.most / used), alone)
            pairs = replace(pairs, times=np.where(of_pairs > 0, pairs.times * (row.most / used), pairs.times))
    return Packing(alone, pairs)
