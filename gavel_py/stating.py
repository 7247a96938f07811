"""From an answer in the columns of its program to an allocation in the words of the problem."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation import Allocation, AllocationStatus, Route
from gavel_py.constraints import outcomes_of
from gavel_py.limit_prices import limit_prices
from gavel_py.pair_columns import PairColumns
from gavel_py.pairing import Pairs, deal
from gavel_py.policies import Decision, Policy
from gavel_py.problem import AllocationProblem
from gavel_py.proof import Evidence, Proof
from gavel_py.rules import Rules
from gavel_py.two_kinds import TwoKinds, spread_part

__all__ = ["Answer", "nothing", "stated"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """A decision, (N, K) time fractions over all jobs, and their proof."""

    decision: Decision
    time_fractions: Floats
    classes: int
    evidence: Evidence
    proof: Proof


def nothing(problem: AllocationProblem, policy: Policy, rules: Rules, started: float) -> Allocation:
    """The allocation of a problem in which no job can run."""
    value = policy.empty_objective
    prices = None if value is None else np.zeros(len(problem.capacities))
    fractions = np.zeros(problem.throughputs.shape)
    proof = Proof(0.0, value, value, None if value is None else 0.0)
    answer = Answer(Decision(fractions, None, prices), fractions, 0, Evidence(problem, None, rules=rules), proof)
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
    found, rules = answer.time_fractions, answer.evidence.rules
    worths = limit_prices(answer.decision.certificate, rules)
    throughputs = np.einsum("ij,ij->i", problem.throughputs, found)
    outcomes = outcomes_of(problem, rules, found, worths)
    fractions, prices, evidence = found, answer.decision.shadow_prices, answer.evidence
    pairs = None if problem.pairs is None else Pairs.nobody()
    if columns is None:
        used, spread = problem.num_gpus.astype(float) @ found, spread_part(problem, found)
    else:
        problem, fractions, spread, used = columns.base, columns.folded(found), columns.spread(found), columns.gpus(found)
        prices = None if prices is None else columns.folded_prices(prices, worths)
        evidence = replace(evidence, kinds=columns)
        if isinstance(columns, PairColumns):
            pairs, evidence = deal(columns, found), replace(evidence, columns=found)
    capacities, share = problem.capacities, problem.equal_share
    if problem.excluded:
        share = np.where(problem.runnable.any(axis=1), share, 0.0)
    return Allocation(
        policy=policy.name,
        options=policy.changed_options,
        status=status or policy.status,
        job_ids=problem.job_ids,
        accelerator_types=problem.accelerator_types,
        time_fractions=fractions,
        spread_fractions=spread,
        pairs=pairs,
        throughputs=throughputs,
        normalized_throughputs=np.divide(throughputs, share, out=np.zeros_like(share), where=share > 0),
        utilization=np.divide(used, capacities, out=np.zeros_like(capacities), where=capacities > 0),
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
