"""From an answer in the columns of its program to an allocation in the words of the problem."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from gavel_py.allocation.allocation import Allocation, Route
from gavel_py.allocation.figures import figures_of
from gavel_py.optimization.certificates import Evidence, Proof
from gavel_py.optimization.colocation import PairColumns, Pairs, deal
from gavel_py.optimization.columns import TwoKinds
from gavel_py.optimization.linear_rows import Rules
from gavel_py.optimization.shadow_prices import limit_prices
from gavel_py.optimization.time_shares import ClassTimes, JobTimes
from gavel_py.policies import Decision, Policy
from gavel_py.policies.base import AllocationStatus
from gavel_py.policies.constraints import outcomes_of
from gavel_py.problem.problem import AllocationProblem

__all__ = ["Answer", "nothing", "stated"]


@dataclass(frozen=True)
class Answer:
    """A decision, the time that all jobs have by it, and its proof."""

    decision: Decision
    times: JobTimes | ClassTimes
    classes: int
    evidence: Evidence
    proof: Proof


def nothing(problem: AllocationProblem, policy: Policy, rules: Rules, started: float) -> Allocation:
    """The allocation of a problem in which no job can run."""
    value = policy.empty_objective
    prices = None if value is None else np.zeros(len(problem.capacities))
    fractions = np.zeros(problem.throughputs.shape)
    decision, evidence = Decision(fractions, None, prices), Evidence(problem, None, rules=rules, empty_value=value)
    times = JobTimes(problem, fractions)
    answer = Answer(decision, times, 0, evidence, evidence.proof(times))
    return stated(problem, policy, answer, Route("none", 0), started, AllocationStatus.EMPTY)


def stated(
    problem: AllocationProblem,
    policy: Policy,
    answer: Answer,
    route: Route,
    started: float,
    status: AllocationStatus | None = None,
    columns: TwoKinds | PairColumns | None = None,
) -> Allocation:
    """Put the answer into words of the problem: all jobs, all types, real throughputs; columns: those that the answer is in."""
    rules, prices = answer.evidence.rules, answer.decision.shadow_prices
    worths = limit_prices(answer.decision.certificate, rules)
    outcomes = outcomes_of(problem.job_ids, rules, answer.times, worths)
    pairs = _pairs(answer, problem, columns)
    if columns is not None:
        problem = columns.base
        prices = None if prices is None else columns.folded_prices(prices, worths)
    figures = figures_of(problem, answer.times, columns)
    evidence = replace(
        answer.evidence,
        kinds=columns,
        times=answer.times if isinstance(answer.times, ClassTimes) else None,
        shadow_prices=None if prices is None else prices.copy(),
        limit_prices=worths,
    )
    return Allocation(
        policy=policy.name,
        options=policy.changed_options,
        status=status or policy.status,
        job_ids=problem.job_ids,
        accelerator_types=problem.accelerator_types,
        time_fractions=figures.time_fractions,
        spread_fractions=figures.spread_fractions,
        pairs=pairs,
        throughputs=figures.throughputs,
        normalized_throughputs=figures.normalized_throughputs,
        utilization=figures.utilization,
        objective_value=answer.proof.value,
        objective_bound=answer.proof.bound,
        shadow_prices=prices,
        excluded=dict(problem.excluded),
        seconds={"solve": time.perf_counter() - started},
        gap=answer.proof.gap,
        stages=answer.proof.stages,
        notes=answer.decision.notes,
        constraints=outcomes,
        route=route,
        evidence=evidence,
    )


def _pairs(answer: Answer, problem: AllocationProblem, columns: TwoKinds | PairColumns | None) -> Pairs | None:
    """Who shares GPUs; None where nobody is to."""
    if isinstance(columns, PairColumns) and isinstance(answer.times, ClassTimes):
        stated = answer.decision.pairs
        return deal(columns, answer.times) if stated is None else stated
    return None if problem.pairs is None else Pairs.nobody()
