"""The formulas: allocations stated outright, without an objective, to compare other policies with."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.cuts import node_rows
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import AllocationStatus, Decision, Policy

if TYPE_CHECKING:
    from gavel_py.optimization.highs import LinearSolver

__all__ = ["FormulaPolicy"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class FormulaPolicy(Policy):
    """State the allocation itself; write `fractions`. There is no objective and no bound; what is proven is that it is valid.

    Time on types where a job cannot run is taken out. Where the nodes of a type lack the CPUs or the memory for what is stated, the
    jobs that need some have their time there reduced by the same factor.
    """

    family: ClassVar[str] = "comparison"
    empty_objective: ClassVar[float | None] = None

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
