"""Why a job has what it has: from the proof, from the order in which jobs are served, or from a formula."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.allocation import Allocation
from gavel_py.allocation.explain.binding import bindings_of, scarce_limits, scarce_types
from gavel_py.allocation.explain.duals import Duals, duals_of
from gavel_py.allocation.explain.order import turn_bindings, turn_of
from gavel_py.allocation.explain.places import place_bindings
from gavel_py.allocation.explain.records import Binding
from gavel_py.allocation.explain.types import Types, types_of
from gavel_py.optimization.certificates import Certificate, Evidence
from gavel_py.optimization.linear_rows import Row
from gavel_py.policies import OrderedPolicy, Policy
from gavel_py.problem.problem import AllocationProblem

__all__ = ["Reasons", "duals_of_job", "is_certain", "reasons_of"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Reasons:
    """Why a job has what it has.

    contested: (N, K) where a job's time is what this one could use; certain: whether it has the same throughput in every allocation
    that is as good; equal_jobs: other jobs that the policy cannot tell apart from it.
    """

    bindings: tuple[Binding, ...]
    contested: Mask
    certain: bool = True
    equal_jobs: int = 0


def reasons_of(policy: Policy, allocation: Allocation, evidence: Evidence, i: int) -> Reasons:
    """Return why job i of an allocation has what it has."""
    nothing = np.zeros(evidence.asked.runnable.shape, dtype=bool)
    if allocation.job_ids[i] in allocation.excluded:
        return Reasons((), nothing)
    if evidence.certificate is not None:
        return _by_proof(allocation, evidence, evidence.certificate, i)
    if isinstance(policy, OrderedPolicy):
        return _by_order(policy, allocation, evidence, i)
    text = f"{policy.name} states by a formula what each job gets, whatever else could be done"
    return Reasons((Binding("formula", policy.name, None, text),), nothing)


def is_certain(allocation: Allocation, evidence: Evidence, i: int) -> bool:
    """Return whether job i has the same throughput in every allocation that is as good as this one."""
    is_out = allocation.job_ids[i] in allocation.excluded
    return is_out or evidence.certificate is None or duals_of_job(allocation, evidence.certificate, i)[0].certain


def duals_of_job(allocation: Allocation, certificate: Certificate, i: int) -> tuple[Duals, Floats]:
    """Return what holds job i where it is, and (G, K') the time of all classes in the columns of the proof."""
    jobs, times = certificate.jobs, None if allocation.evidence is None else allocation.evidence.times
    at = int(jobs.index[np.searchsorted(jobs.jobs, i)])
    by_class = allocation.by_column.time_fractions[jobs.rows] if times is None else times.fractions
    return duals_of(certificate, by_class, at), by_class


def _by_proof(allocation: Allocation, evidence: Evidence, certificate: Certificate, i: int) -> Reasons:
    duals, by_class = duals_of_job(allocation, certificate, i)
    types, times = types_of(evidence), by_class[duals.at]
    rows = [duals.jobs.rules.hard_rows[r] for r in scarce_limits(duals, types)]
    contested = _contested(evidence.asked, types, scarce_types(duals, types, times / duals.kept), rows)
    # Where a job may run is said of types where jobs share, since all of their columns are alike in that.
    placed = allocation.time_fractions[i] if evidence.times is not None else times
    bindings = (*bindings_of(duals, types, allocation, evidence, i, times), *place_bindings(evidence, placed, i))
    return Reasons(bindings, contested, duals.certain, int(duals.jobs.counts[duals.at]) - 1)


def _by_order(policy: OrderedPolicy, allocation: Allocation, evidence: Evidence, i: int) -> Reasons:
    turn = turn_of(policy, evidence.problem, evidence.rules, allocation.time_fractions, i)
    rows = [turn.jobs.rules.hard_rows[r] for r in np.flatnonzero(turn.used_up)]
    contested = _contested(evidence.asked, types_of(evidence), turn.gone, rows)
    before = np.zeros(evidence.problem.num_jobs, dtype=bool)
    before[turn.jobs.jobs] = turn.before
    bindings = (*turn_bindings(turn), *place_bindings(evidence, allocation.time_fractions[i], i))
    return Reasons(bindings, contested & before[:, None])


def _contested(problem: AllocationProblem, types: Types, scarce: Mask, limits: Iterable[Row]) -> Mask:
    """(N, K) the time of all jobs on scarce types, and of those who count in limits that are used up."""
    everyone = np.arange(problem.num_jobs)
    contested = np.repeat(scarce[None], problem.num_jobs, axis=0)
    for row in limits:
        contested |= types.any_of(row.costs(everyone, problem.num_gpus) > 0)
    return contested
