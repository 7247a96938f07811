"""Solve: from a problem and a policy to an allocation that has been checked."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gavel_py.allocation import Allocation, AllocationStatus
from gavel_py.errors import InputError
from gavel_py.ordering import natural_key
from gavel_py.policies import Decision, Policy, resolve_policy
from gavel_py.problem import AllocationProblem
from gavel_py.proof import check_gap, check_valid

__all__ = ["solve"]


def solve(problem: AllocationProblem, policy: str | Policy = "max_min_fairness", **options: Any) -> Allocation:
    """Return the allocation that the policy decides on, proven valid and, for policies with an objective, optimal.

    problem: from `AllocationProblem.from_arrays` or `from_jobs`; policy: a name or a `Policy` object; options: the policy's
    own. Jobs that can run nowhere are left out with a reason (`Allocation.excluded`) and the others are solved.
    The same problem gives the same answer whatever the order of its jobs.

    Raises `UnknownNameError` and `InputError` for a policy, option or problem that is wrong, `SolverError` when the
    program could not be solved, `ProofError` when its answer could not be proven.
    """
    if not isinstance(problem, AllocationProblem):
        raise InputError(f"solve needs an AllocationProblem, found {problem!r}")
    policy = resolve_policy(policy, **options)
    started = time.perf_counter()
    active = np.flatnonzero(problem.runnable.any(axis=1))
    if active.size == 0:
        nothing = Decision(np.zeros((0, len(problem.capacities))), policy.empty_objective, policy.empty_objective)
        return _expanded(problem, policy, nothing, active, AllocationStatus.EMPTY, started)
    active = np.array(sorted(active.tolist(), key=lambda i: natural_key(problem.job_ids[i])))
    seen = policy.view(problem.select(active))
    decision = policy.decide(seen)
    check_valid(seen, decision.time_fractions)
    status = AllocationStatus.ORDERED
    if decision.objective_value is not None and decision.objective_bound is not None:
        check_gap(decision.objective_value, decision.objective_bound, decision.objective_scale)
        status = AllocationStatus.OPTIMAL
    return _expanded(problem, policy, decision, active, status, started)


def _expanded(
    problem: AllocationProblem,
    policy: Policy,
    decision: Decision,
    active: np.ndarray,
    status: AllocationStatus,
    started: float,
) -> Allocation:
    """Put the active jobs' answer into place among all jobs, and state it in real throughputs."""
    fractions = np.zeros(problem.throughputs.shape)
    fractions[active] = decision.time_fractions
    throughputs = (problem.throughputs * fractions).sum(axis=1)
    share = problem.equal_share
    capacities = problem.capacities
    prices = decision.shadow_prices
    if prices is None and decision.objective_value is not None:
        prices = np.zeros(len(capacities))
    return Allocation(
        policy=policy.name,
        options=policy.changed_options,
        status=status,
        job_ids=problem.job_ids,
        accelerator_types=problem.accelerator_types,
        time_fractions=fractions,
        throughputs=throughputs,
        normalized_throughputs=np.divide(throughputs, share, out=np.zeros_like(share), where=share > 0),
        utilization=np.divide(problem.num_gpus @ fractions, capacities, out=np.zeros_like(capacities), where=capacities > 0),
        objective_value=decision.objective_value,
        objective_bound=decision.objective_bound,
        shadow_prices=prices,
        excluded=dict(problem.excluded),
        seconds={"solve": time.perf_counter() - started},
    )
