"""The incumbent: the best valid allocation known when the time limit of a solve has passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gavel_py.allocation.agnostic import even_decision
from gavel_py.allocation.result import Answer
from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import VIOLATION_TOLERANCE, Evidence, Prices, within_capacity
from gavel_py.optimization.checking.time_shares import TimeShares
from gavel_py.optimization.formulation.columns import Columns
from gavel_py.optimization.formulation.cuts import placement_rows
from gavel_py.optimization.formulation.linear_rows import Row
from gavel_py.optimization.job_classes import JobClasses, classes_of
from gavel_py.policies import Decision, Policy
from gavel_py.problem.arrays import Floats, isolated_shares
from gavel_py.problem.problem import AllocationProblem

MOST_CUT_ROUNDS = 30
"""Maximum number of times that broken rows are added. Rounds cannot deliver an answer that still breaks rows."""

ANY_GAP = 2.0
"""The difference of two numbers is at most twice the larger magnitude, so this accepts every gap."""


def incumbent(columns: Columns, policy: Policy, jobs: JobClasses, found: Sequence[Floats], prices: Sequence[Prices]) -> Answer:
    """Return the best known valid allocation, with a bound by weak duality.

    The candidates are the fractions found so far, scaled down to the capacities, a guess by the policy, and the isolated share
    (`_isolated`). The best one is split evenly over types if the policy is agnostic (`even_decision`).

    Args:
        columns: The columns of the allocation, with the problem and the rules.
        policy: The policy that compares the candidates.
        jobs: The classes as the policy sees them.
        found: (G, K) time fractions, valid or not.
        prices: Dual prices of GPUs and limits.

    Raises:
        SolverError: No candidate keeps the constraints.
    """
    guess = policy.guess(jobs)
    several = (*found, *([] if guess is None else [guess]), _isolated(columns.base, jobs))
    candidates = [_valid(columns, jobs, fractions) for fractions in several]
    return keep_rows(_best(columns, policy, jobs, candidates, prices), policy, jobs, prices)


def keep_rows(answer: Answer, policy: Policy, jobs: JobClasses, prices: Sequence[Prices]) -> Answer:
    """Return the answer with less time for jobs in rows that rounds could not keep (`Columns.separate`).

    The bound stays valid, as rows cannot improve the optimum. If less time would break other rules, the time fractions stay
    unchanged; rounds then cannot deliver all of the allocation.
    """
    columns = answer.evidence.columns
    for _ in range(MOST_CUT_ROUNDS):
        rows = _broken_rows(columns, answer.times)
        if not rows:
            break
        columns = columns.with_rows(rows)
        fractions = answer.times.by_job(answer.times.fractions)
        if TimeShares(jobs.wide or columns.problem, answer.times.fractions, jobs).stand_for_all(columns.rules):
            jobs = jobs.with_rules(columns.rules)
        else:  # the rows tell jobs apart that were equal
            jobs = policy.view(classes_of(columns.problem, policy.name, policy.reads, columns.rules, columns))
        prices = [replace(each, limits=np.append(each.limits, np.zeros(len(rows)))) for each in prices]
        try:
            answer = _best(columns, policy, jobs, [_valid(columns, jobs, fractions[jobs.rows])], prices)
        except SolverError:
            break
    return answer


def _broken_rows(columns: Columns, times: TimeShares) -> Sequence[Row]:
    """Return the rows over these columns that an answer breaks; gangs of a type with one column have its faster placement."""
    rows, wider = columns.separate(times)
    return rows if wider is columns else placement_rows(columns.problem, times.fractions)


def _best(columns: Columns, policy: Policy, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Answer:
    """Return the best of several (G, K) time fractions with its proof. Raises `SolverError` if none keeps the constraints."""
    evidence = Evidence(columns, None, ANY_GAP)
    kept = [each for each in candidates if _keeps_rules(evidence, jobs, each)]
    if not kept:
        text = "the time limit was reached before an allocation that satisfies all constraints was found"
        raise SolverError(f"{text}; allow more time, or make constraints soft")
    decision = policy.best_of(jobs, kept, prices)
    even = even_decision(policy, jobs, decision, limit=None)
    fractions = columns.repaired(jobs, even.time_fractions)
    if _keeps_rules(evidence, jobs, fractions):
        decision = replace(even, time_fractions=fractions)
    return _proven(jobs, replace(evidence, certificate=decision.certificate), decision)


def _keeps_rules(evidence: Evidence, jobs: JobClasses, fractions: Floats) -> bool:
    return evidence.violation(TimeShares.of_classes(evidence.problem, jobs, fractions)) <= VIOLATION_TOLERANCE


def _proven(jobs: JobClasses, evidence: Evidence, decision: Decision) -> Answer:
    """Return the decision with its proof, which accepts any gap."""
    times = TimeShares.of_classes(evidence.problem, jobs, decision.time_fractions)
    violation = evidence.violation(times)
    proof = evidence.proof_by_class(decision.time_fractions, violation)
    if proof.value is not None and not np.isfinite(proof.value):  # such as a makespan with a job that gets no time
        evidence = replace(evidence, certificate=None)
        proof = evidence.proof_by_class(decision.time_fractions, violation)
    proof.check()
    return Answer(replace(decision, shadow_prices=None), times, len(jobs), evidence, proof)


def _within_rows(jobs: JobClasses, fractions: Floats) -> Floats:
    """Return (G, K) time fractions that satisfy each row of the rules, by scaling down the time of all jobs in the row."""
    costs, limits = jobs.limits
    if not len(limits):
        return fractions
    flat, counts = fractions.ravel().copy(), np.repeat(jobs.counts, fractions.shape[1])
    starts = np.searchsorted(costs.rows, np.arange(len(limits) + 1))
    for row in range(len(limits)):
        part = slice(starts[row], starts[row + 1])
        places, each = costs.columns[part], costs.values[part]
        used = each * counts[places] * flat[places]
        excess, reducible = float(used.sum() - limits[row]), float(used[used > 0].sum())
        if excess > 0 and reducible > 0:
            flat[places[used > 0]] *= max(0.0, 1 - excess / reducible)
    return flat.reshape(fractions.shape)


def _valid(columns: Columns, jobs: JobClasses, fractions: Floats) -> Floats:
    """Return the fractions reduced to the time of jobs, the capacities and the rows of the rules; NaN counts as 0."""
    return columns.repaired(jobs, _within_rows(jobs, within_capacity(jobs, np.nan_to_num(fractions, nan=0.0))))


def _isolated(problem: AllocationProblem, jobs: JobClasses) -> Floats:
    """Return (G, K') the isolated share on the first column of each type, 0 on the others."""
    times = np.zeros(jobs.throughputs.shape)
    times[:, : len(problem.capacities)] = isolated_shares(jobs.num_gpus, problem.capacities, jobs.num_jobs)
    return times
