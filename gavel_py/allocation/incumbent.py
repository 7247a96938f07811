"""Valid allocations without an optimum: the best one known when the time limit of a solve has passed, and one that was kept.

`incumbent` compares candidates by the policy. `kept_answer` is for solves that fail: it needs neither policy nor solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gavel_py.allocation.agnostic import even_decision
from gavel_py.allocation.result import Allocation, Answer, Route, allocation_of
from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import Evidence, Prices, within_capacity
from gavel_py.optimization.checking.time_shares import KeptTimes, Pairs, TimeShares
from gavel_py.optimization.formulation.colocation import PairColumns
from gavel_py.optimization.formulation.columns import Columns
from gavel_py.optimization.formulation.cuts import placement_rows
from gavel_py.optimization.formulation.linear_rows import Row
from gavel_py.optimization.job_classes import JobClasses, classes_of, separate_jobs
from gavel_py.policies import Decision, Policy
from gavel_py.policies.base import AllocationStatus
from gavel_py.policies.constraints.outcomes import missing
from gavel_py.problem.arrays import Floats, Mask, isolated_shares
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import SOLVER_TOLERANCE

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
    return evidence.violation(TimeShares.of_classes(evidence.problem, jobs, fractions)) <= SOLVER_TOLERANCE


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


def _within_rows(jobs: JobClasses, fractions: Floats, taken: Floats | None = None) -> Floats:
    """Return (G, K) time fractions that satisfy each row of the rules, by scaling down the time of all jobs in the row.

    taken: (G, K) further time, which stays as it is.
    """
    costs, limits = jobs.limits
    if not len(limits):
        return fractions
    if taken is not None:
        limits = limits - costs @ (jobs.counts[:, None] * taken).ravel()
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


def _in_columns(columns: Columns, kept: KeptTimes) -> Floats:
    """Return (N, K') the times of an earlier allocation in columns."""
    pairs = Pairs.nobody() if kept.pairs is None else kept.pairs
    shared = pairs.by_job(*kept.times.shape)
    if isinstance(columns, PairColumns):
        return columns.with_pairs(kept.times - shared, pairs)
    return columns.expand(kept.times - shared / 2, kept.spread, kept.counts)  # pairs that do not gain any more take turns


def kept_answer(columns: Columns, kept: KeptTimes) -> Answer:
    """Return the times of an earlier allocation, with isolated shares of the GPUs that it leaves for jobs that it does not cover.

    All times are cut to the types where jobs can run, to the GPUs, to upper limits of hard rules, and to the room on nodes for
    whole gangs; those of the covered jobs first. Lower limits may be missed (`Proof.violation`).

    Args:
        columns: The columns of the allocation, with the problem and the rules.
        kept: The times.
    """
    for _ in range(MOST_CUT_ROUNDS):
        jobs = separate_jobs(columns.problem, "", (), columns.rules, columns)
        fractions = _valid(columns, jobs, _in_columns(columns, kept)[jobs.rows])
        free = np.maximum(0.0, columns.base.capacities - columns.gpus(fractions, jobs.num_gpus))
        shares = _isolated_of_others(columns, jobs, ~kept.covered[jobs.rows], free)
        fractions = columns.repaired(jobs, fractions + _within_rows(jobs, shares, fractions))
        times = TimeShares.of_classes(columns.problem, jobs, fractions)
        rows, wider = columns.separate(times)
        if not rows:
            break
        columns = wider.with_rows(rows)
    evidence = Evidence(columns, None)
    return Answer(Decision(fractions), times, len(jobs), evidence, evidence.proof_by_class(fractions, evidence.violation(times)))


def kept_allocation(policy: Policy, answer: Answer, started: float) -> Allocation:
    """Return a kept answer as an `Allocation`, with notes on the hard constraints that it does not satisfy.

    started: when it was begun, as of `time.perf_counter`.
    """
    rules = answer.evidence.rules
    broken = answer.times.broken(rules)
    notes = tuple(f"{each.name} is not satisfied: it is missed by {each.part:.2%}" for each in broken)
    answer = replace(answer, decision=replace(answer.decision, notes=notes))
    found = allocation_of(policy, answer, Route("none", answer.classes), started, AllocationStatus.KEPT)
    outcomes = zip(found.constraints, rules.constraints, strict=True)
    return replace(found, constraints=tuple(missing(*each, broken) for each in outcomes))


def _isolated_of_others(columns: Columns, jobs: JobClasses, others: Mask, free: Floats) -> Floats:
    """Return (G, K') the isolated shares of the free GPUs, (K,), for some of the jobs, in the first column of each type.

    An elastic job has its part of a type on the largest number of GPUs within it, or else on the smallest one.
    """
    times, count, types = np.zeros(jobs.throughputs.shape), int(others.sum()), len(free)
    shares = isolated_shares(jobs.num_gpus[others], free, count)
    times[others, :types] = np.where(jobs.runnable[others, :types], shares, 0.0)
    for g in np.flatnonzero(others & jobs.is_elastic).tolist():
        times[g] = 0.0
        for j, part in enumerate((free / count).tolist()):
            offered = np.flatnonzero(jobs.runnable[g] & (columns.source == j))
            sizes = columns.parts[offered]
            if len(offered):
                size = sizes[sizes <= part].max(initial=sizes.min())
                times[g, offered[sizes == size]] = min(1.0, part / size)
        times[g] /= max(1.0, times[g].sum())
    return times
