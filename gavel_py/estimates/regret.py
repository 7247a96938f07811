"""Sensitivity: the estimated throughputs that would change an allocation most if they were at an end of their interval.

The regret of an estimate is the loss of the present time fractions compared with the best ones for the other throughput. Weak
duality at the present prices bounds it without another solve, so that few programs are solved again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver
from gavel_py.errors import GavelError, check_type, refuse
from gavel_py.estimates import Estimate, EstimatedProfile
from gavel_py.io.tabular import Tabular, array_of
from gavel_py.optimization.checking.certificates import Evidence, Prices
from gavel_py.optimization.formulation.columns import Columns, elastic_columns
from gavel_py.optimization.job_classes import JobClasses, classes_of, separate_jobs
from gavel_py.policies import Policy
from gavel_py.policies.constraints.compiling import constrained
from gavel_py.policies.demand import FillingPolicy
from gavel_py.problem.arrays import Floats, check_number
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job
from gavel_py.problem.job_set import JobSet
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import PROOF_TOLERANCE, SOLVER_TOLERANCE

__all__ = ["EstimateEffect", "Sensitivity", "sensitivity"]

RESOLVED = 10
"""Default number of estimates for which the problem is solved again."""


@dataclass(frozen=True)
class EstimateEffect:
    """The loss of an allocation if an estimate is at an end of its interval.

    Attributes:
        estimate: The estimate, with its interval.
        jobs: Number of jobs that look it up.
        gpus: GPUs that these jobs hold on that type in such gangs under the present allocation, Σ s_i X_ij.
        regret_low: Part of the objective that is lost if the throughput is at the lower end; None if the constraints cannot hold
            together then.
        regret_high: The same at the upper end.
    """

    estimate: Estimate
    jobs: int
    gpus: float
    regret_low: float | None
    regret_high: float | None

    @property
    def regret(self) -> float:
        """The larger of both regrets; 1 if the constraints cannot hold together at one end."""
        return max(1.0 if each is None else each for each in (self.regret_low, self.regret_high))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return self.estimate.entry._asdict() | {
            "steps_per_second": self.estimate.steps_per_second,
            "low": self.estimate.low,
            "high": self.estimate.high,
            "jobs": self.jobs,
            "gpus": self.gpus,
            "regret": self.regret,
            "regret_low": self.regret_low,
            "regret_high": self.regret_high,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity(Tabular):
    """Which estimates an allocation depends on, the one with the largest regret first.

    Attributes:
        allocation: The allocation with unchanged estimates.
        effects: The estimates for which the problem was solved again, by regret.
        num_estimates: Number of all estimates that the jobs look up.
        largest_other: A bound on the regret of all other estimates; None if there is none.
    """

    allocation: Allocation
    effects: tuple[EstimateEffect, ...]
    num_estimates: int
    largest_other: float | None

    def __repr__(self) -> str:
        return f"Sensitivity({self.allocation.policy}: {len(self.effects)} of {self.num_estimates} estimates)"

    def to_dict(self) -> dict[str, Any]:
        """Return the effects as plain data."""
        return {
            "estimates": self.num_estimates,
            "largest_other_regret": self.largest_other,
            "effects": [effect.to_dict() for effect in self.effects],
        }

    def to_columns(self) -> dict[str, Any]:
        """Return a row for each effect."""
        rows = [effect.to_dict() for effect in self.effects]
        names = rows[0] if rows else ()
        return {name: array_of([row[name] for row in rows]) for name in names}


@dataclass(frozen=True)
class _Case:
    """An end of the interval of an estimate. bound: of the regret, NaN if unknown."""

    problem: AllocationProblem
    bound: float


def sensitivity(
    jobs: Iterable[Job],
    cluster: Cluster,
    profile: EstimatedProfile,
    policy: str | Policy = "max_min_fairness",
    *,
    count: int = RESOLVED,
    whole_gangs: bool = True,
    by_workflow: bool = True,
    now_seconds: float = 0.0,
    **options: Any,
) -> Sensitivity:
    """Return which estimated throughputs would change the answer of a policy most.

    An estimate is moved to the lower and to the upper end of its 80 % interval, for all jobs that look it up together, and
    normalisers follow from the changed throughputs. Its regret is the part of the objective that the present time fractions X lose
    against the optimum X' for the changed throughputs:

        1 - f(X) / f(X')  if f is maximised,   1 - f(X') / f(X)  if it is minimised,

    of the larger magnitude if f may be negative. Policies that fill level by level (`water_filling`, `hierarchical`) have no single
    objective: there, it is the largest part of its level u = s v / w that the k-th worst-off job loses,

        max_k 1 - u_(k)(X) / u_(k)(X'),

    for `hierarchical` the k-th worst-off job of each tenant. Under `Then`, f is the first objective.

    Estimates are ordered by a bound on their regret from the present dual prices (weak duality): it follows from the dual price
    times X where they are in use, and from the reduced cost where they are not. For the first ones the problem is solved again.
    Without a bound, as for filling level by level, those come first that change the levels of the present X most.

    Args:
        jobs: As for `AllocationProblem.from_jobs`.
        cluster: The cluster.
        profile: A profile with estimates (`ThroughputProfile.with_estimates`).
        policy: A name or a `Policy` object with an objective.
        count: Number of estimates for which the problem is solved again, at both ends each.
        whole_gangs: As for `AllocationProblem.from_jobs`.
        by_workflow: As for `AllocationProblem.from_jobs`.
        now_seconds: As for `AllocationProblem.from_jobs`.
        options: Further arguments of `solve`.

    Raises:
        InputError: The profile has no estimates, or the policy has no objective.
        SolverError, ProofError: As for `solve`.
    """
    check_number("count", count, least=1)
    rule = "must be a profile with estimates, as profile.with_estimates() returns one"
    check_type("sensitivity", "profile", profile, EstimatedProfile, rule)
    solver, job_set = Solver(policy, **options), jobs if isinstance(jobs, JobSet) else JobSet(jobs)
    withholds, no_regret = getattr(solver.policy, "strategy_proof", False), "so estimates have no regret under it"
    refuse(
        f"policy {solver.policy.name}",
        (solver.policy.empty_objective is None, "", f"has no objective that could be lost, {no_regret}"),
        (withholds, "", f"withholds time of its optimum, {no_regret}"),
    )
    make = partial(
        AllocationProblem.from_jobs, job_set, cluster, whole_gangs=whole_gangs, by_workflow=by_workflow, now_seconds=now_seconds
    )
    problem = make(profile)
    present = solver.solve(problem)
    estimates = [each for each in profile.estimates_of(job_set, problem.accelerator_types) if each.low < each.high]
    base = _bound(present, solver.policy, problem)
    cases = {
        estimate: [
            _Case(changed, _bound(present, solver.policy, changed) if problem.runnable.any() else 0.0)
            for changed in (make(profile.with_values({estimate.entry: end})) for end in (estimate.low, estimate.high))
        ]
        for estimate in estimates
    }
    order = sorted(estimates, key=lambda each: -_largest(cases[each], unknown=_moved(present, problem, cases[each])))
    able = [each for each in order if not _largest(cases[each], unknown=1.0) <= SOLVER_TOLERANCE]
    effects = [_effect(present, solver, _rows(job_set, profile, each), each, cases[each]) for each in able[: int(count)]]
    rest = [_largest(cases[each], unknown=np.nan) for each in able[int(count) :]]
    other = None if base > PROOF_TOLERANCE or np.isnan(rest).any() else float(max(rest, default=0.0))
    return Sensitivity(present, tuple(sorted(effects, key=lambda each: -each.regret)), len(estimates), other)


def _largest(cases: Iterable[_Case], unknown: float) -> float:
    """Return the larger bound of the regret of an estimate, `unknown` if one is unknown."""
    bounds = [case.bound for case in cases]
    return unknown if np.isnan(bounds).any() else max(bounds)


def _moved(present: Allocation, problem: AllocationProblem, cases: Iterable[_Case]) -> float:
    """Return by how much the log of a job's normalized throughput changes at most under the present times; 0 at full speed."""

    def levels(of: AllocationProblem) -> Floats:
        levels: Floats = np.log(_throughputs(present, of) / (of.throughputs @ of.capacities))
        return levels

    most = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        for changed in (case.problem for case in cases):
            slow = _throughputs(present, changed) < changed.best_throughputs.max(axis=1) * (1 - PROOF_TOLERANCE)
            moved = np.abs(levels(changed) - levels(problem))[slow]
            most = max(most, float(moved[np.isfinite(moved)].max(initial=0.0)))
    return most


def _throughputs(present: Allocation, problem: AllocationProblem) -> Floats:
    """Return (N,) steps/s of all jobs in the present times under the throughputs of a problem."""
    speeds, counts = problem.throughputs * present.time_fractions, present.counts
    if counts is None or problem.counts is None:
        total: Floats = speeds.sum(axis=1)
        return total
    own = problem.counts.speeds_at(counts.jobs, counts.types, counts.counts) * counts.times
    return np.where(problem.counts.is_elastic, np.bincount(counts.jobs, own, len(speeds)), speeds.sum(axis=1))


def _rows(jobs: JobSet, profile: EstimatedProfile, estimate: Estimate) -> list[int]:
    """Return the rows of the jobs that look up an estimate."""
    kind, size, accelerator, *_ = estimate.entry
    alike = ((i, job) for i, job in enumerate(jobs) if job.job_type == kind and job.allows(accelerator))
    return [i for i, job in alike if size in (max(each, 1) for each in profile.sizes_of(job))]


def _effect(present: Allocation, solver: Solver, rows: list[int], estimate: Estimate, cases: Iterable[_Case]) -> EstimateEffect:
    column = present.accelerator_types.index(estimate.entry.accelerator)
    held = float(present.gpus_in_gangs(estimate.entry.num_gpus)[rows, column].sum())
    low, high = (_regret(present, solver, case.problem) for case in cases)
    return EstimateEffect(estimate, len(rows), held, low, high)


def _regret(present: Allocation, solver: Solver, problem: AllocationProblem) -> float | None:
    """Return the part of the objective that the present times lose under other throughputs; None if rules cannot hold there."""
    try:
        best = solver.solve(problem)
    except GavelError:
        return None
    evidence = best.evidence
    if evidence is None or evidence.certificate is None or best.objective_value is None:
        return 0.0  # no job can run
    jobs, columns = evidence.certificate.jobs, evidence.columns
    times = columns.expand(present.time_fractions, present.spread_fractions, present.counts)
    if isinstance(solver.policy, FillingPolicy):
        jobs = solver.policy.view(separate_jobs(columns.problem, jobs.policy_name, jobs.reads, columns.rules, columns))
        chosen = columns.expand(best.time_fractions, best.spread_fractions, best.counts)
        return solver.policy.lost(jobs, times[jobs.rows], chosen[jobs.rows])
    by_class = times[jobs.rows]
    if np.array_equal(jobs.expanded(by_class)[jobs.jobs], times[jobs.jobs]):
        value = evidence.certificate.value(by_class)
    else:  # jobs that are equal now were not before
        policy = solver.policy
        jobs = policy.view(separate_jobs(columns.problem, policy.name, policy.reads, columns.rules, columns))
        certificate = policy.best_of(jobs, [times[jobs.rows]], []).certificate
        value = np.nan if certificate is None else certificate.value(times[jobs.rows])
    return _lost(value, best.objective_value, _worse(solver.policy))


def _bound(present: Allocation, policy: Policy, problem: AllocationProblem) -> float:
    """Return a bound on the regret under the throughputs of a problem, from the present prices; NaN if there is none."""
    evidence = present.evidence
    if evidence is None or evidence.certificate is None or isinstance(policy, FillingPolicy):
        return np.nan  # the prices of a first level say nothing about the others
    try:
        columns = _columns(evidence.columns, policy, problem)
        jobs = policy.view(classes_of(columns.problem, policy.name, policy.reads, columns.rules, columns))
        times = columns.expand(present.time_fractions, None, present.counts)[jobs.rows]
        certificate = policy.best_of(jobs, [times], _prices(evidence, jobs)).certificate
    except GavelError:
        return np.nan
    if certificate is None:
        return np.nan
    return _lost(certificate.value(times), certificate.bound(), _worse(policy))


def _columns(now: Columns, policy: Policy, problem: AllocationProblem) -> Columns:
    """Return one column for each type and number of GPUs, with the rules for other throughputs.

    The rows of whole gangs that were found so far are kept, if they are over the same columns.
    """
    problem, rules = constrained(problem, policy.constraints)
    counts = problem.counts
    columns = Columns.of_types(problem, rules) if counts is None else elastic_columns(problem, rules, counts)
    same = type(now) is type(columns) and np.array_equal(now.source, columns.source)
    if not same or not np.array_equal(now.parts, columns.parts):
        return columns
    constrained_rows = [row for each in now.rules.constraints for row in each.rows]
    own = set(map(id, [*constrained_rows, *(now.rules.hard_rows[place] for place in now.joint.values())]))
    return columns.with_rows(row for row in now.rules.rows if id(row) not in own)


def _prices(evidence: Evidence, jobs: JobClasses) -> list[Prices]:
    """Return the present prices, if they are those of the same types and limits."""
    prices = evidence.certificate.scarcity.over(evidence.certificate.jobs.rules, evidence.rules)  # type: ignore[union-attr]
    same = len(prices.gpus) == len(jobs.capacities) and len(prices.limits) in (0, len(jobs.limits[1]))
    return [prices] if same else []


def _worse(policy: Policy) -> float:
    """Return 1 if larger objectives are worse, -1 if they are better."""
    return 1.0 if getattr(policy, "direction", "max") == "min" else -1.0


def _lost(value: float, best: float, worse: float) -> float:
    """Return the part of an objective that is lost, from 0 to 1; NaN if the value is unknown."""
    if np.isnan(value) or np.isnan(best):
        return np.nan
    if np.isinf(value):
        return 0.0 if value == best else 1.0
    lost = worse * (value - best) / (max(abs(value), abs(best)) or 1.0)
    return min(float(lost), 1.0) if lost > SOLVER_TOLERANCE else 0.0
