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
from gavel_py.times import ClassTimes, JobTimes
from gavel_py.two_kinds import TwoKinds, spread_part

__all__ = ["Answer", "nothing", "stated"]

Floats = NDArray[np.float64]


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
    proof = Proof(0.0, value, value, None if value is None else 0.0)
    decision, evidence = Decision(fractions, None, prices), Evidence(problem, None, rules=rules)
    answer = Answer(decision, JobTimes(problem, fractions), 0, evidence, proof)
    return stated(problem, policy, answer, Route("none", 0), started, AllocationStatus.EMPTY)


@dataclass(frozen=True, eq=False)
class _Told:
    """Times as time on types: (N, K) all of it and the part that is spread; used: (K,) GPUs; pairs: who shares."""

    fractions: Floats
    spread: Floats | None
    used: Floats
    pairs: Pairs | None


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
    rules, throughputs = answer.evidence.rules, answer.times.job_throughputs
    worths = limit_prices(answer.decision.certificate, rules)
    outcomes = outcomes_of(problem.job_ids, rules, answer.times, worths)
    told = _told(problem, answer.times, columns, answer.decision.pairs)
    prices, evidence = answer.decision.shadow_prices, answer.evidence
    if columns is not None:
        problem, evidence = columns.base, replace(evidence, kinds=columns)
        prices = None if prices is None else columns.folded_prices(prices, worths)
    if isinstance(answer.times, ClassTimes):
        evidence = replace(evidence, times=answer.times)
    capacities, share = problem.capacities, problem.equal_share
    if problem.excluded:
        share = np.where(problem.runnable.any(axis=1), share, 0.0)
    return Allocation(
        policy=policy.name,
        options=policy.changed_options,
        status=status or policy.status,
        job_ids=problem.job_ids,
        accelerator_types=problem.accelerator_types,
        time_fractions=told.fractions,
        spread_fractions=told.spread,
        pairs=told.pairs,
        throughputs=throughputs,
        normalized_throughputs=np.divide(throughputs, share, out=np.zeros_like(share), where=share > 0),
        utilization=np.divide(told.used, capacities, out=np.zeros_like(capacities), where=capacities > 0),
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


def _told(
    problem: AllocationProblem, times: JobTimes | ClassTimes, columns: TwoKinds | PairColumns | None, paired: Pairs | None
) -> _Told:
    """paired: who shares, where the policy has said it itself."""
    if isinstance(columns, PairColumns) and isinstance(times, ClassTimes):
        fractions, used = times.jobs.spread(columns.folded(times.fractions)), columns.gpus(times.fractions, times.num_gpus)
        alone = None if problem.speeds is None else times.jobs.spread(times.fractions[:, : len(problem.capacities)])
        spread = None if alone is None else spread_part(problem, alone)
        return _Told(fractions, spread, used, deal(columns, times) if paired is None else paired)
    found, gpus = times.fractions, problem.num_gpus
    pairs = None if problem.pairs is None else Pairs.nobody()
    if isinstance(columns, TwoKinds):
        return _Told(columns.folded(found), columns.spread(found), columns.gpus(found, gpus), pairs)
    return _Told(found, spread_part(problem, found), gpus @ found, pairs)
