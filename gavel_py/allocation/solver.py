"""Solving: from a problem and a policy to a proven allocation, by the first of several routes that succeeds."""

from __future__ import annotations

import copy
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from gavel_py.allocation.agnostic import even_decision
from gavel_py.allocation.incumbent import MOST_CUT_ROUNDS, incumbent, keep_rows, kept_allocation, kept_answer
from gavel_py.allocation.result import Allocation, Answer, Route, allocation_of, nothing
from gavel_py.errors import Fault, GavelWarning, InputError, SolverError, refuse
from gavel_py.io.locking import Synchronized, one_blas_thread, synchronized
from gavel_py.optimization.checking.certificates import Evidence, Prices, Stages
from gavel_py.optimization.checking.time_shares import KeptTimes, TimeShares
from gavel_py.optimization.formulation.colocation import pair_columns
from gavel_py.optimization.formulation.columns import Columns, elastic_columns
from gavel_py.optimization.formulation.cuts import node_rows
from gavel_py.optimization.formulation.linear_rows import NO_RULES, Limit, Rules
from gavel_py.optimization.job_classes import JobClasses, classes_of, merged, separate_jobs
from gavel_py.optimization.solving.highs import NO_LIMIT, Algorithm, LinearSolver, TimeLimit, TimeLimitReached, checked_limit
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.base import AllocationStatus
from gavel_py.policies.formulas import PackingPolicy
from gavel_py.problem.arrays import Floats
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import CLEAR, PROOF_TOLERANCE

logger = logging.getLogger(__name__)

TIME_LIMIT = AllocationStatus.TIME_LIMIT

CLOSING_SECONDS = 3e-7
"""Approximate time per job and type to bound and check the best allocation that is known."""

MANY_JOBS, MOST_LIMIT_ROUNDS = 1_000, 3
"""Number of jobs from which only tight limits on groups get rows, and maximum number of programs without the rows of others."""

MOST_SEPARATE_JOBS = 20_000
"""Maximum number of jobs for a program with one row per job, which takes seconds at this size."""


def solve(
    problem: AllocationProblem,
    policy: str | Policy = "max_min_fairness",
    *,
    merge_tolerance: float = 0.0,
    sharing: bool | None = None,
    time_limit_seconds: float | None = None,
    **options: Any,
) -> Allocation:
    """Return the allocation that the policy decides on, proven valid and, for policies with an objective, optimal.

    The answer does not depend on the order of the jobs, unless the time limit ends the solve.

    Args:
        problem: From `AllocationProblem.from_arrays`, `from_types` or `from_jobs`. Jobs that can run nowhere are left out with a
            reason (`Allocation.excluded`) and the others are solved.
        policy: A name or a `Policy` object.
        merge_tolerance: Relative difference of throughputs up to which jobs may be treated as equal; the loss is bounded and
            part of `objective_bound` and `gap`. 0 is exact.
        sharing: Whether jobs share GPUs; by default, if the problem has throughputs of pairs.
        time_limit_seconds: Seconds after which the best valid allocation known is returned, counted from this call. Its status is
            `TIME_LIMIT`; its bound holds, and its gap limits the distance from the optimum. None: no limit.
        options: The policy's own, and `constraints`, a list that any policy takes.

    Raises:
        UnknownNameError, InputError: A policy, option or problem is wrong.
        SolverError: The program could not be solved; or the time limit passed before an allocation that keeps the constraints was
            found.
        ProofError: The answer could not be proven.
    """
    solver = Solver(policy, merge_tolerance=merge_tolerance, sharing=sharing, time_limit_seconds=time_limit_seconds, **options)
    return solver.solve(problem)


class Solver(Synchronized):
    """Solves problems one after the other under one policy, each from the last basis of the previous one.

    From round to round few jobs change; starting from the last basis takes a fraction of the time of `solve`. The objective is
    the same as that of `solve`; among equally good allocations it may find another one. The arguments are those of `solve`.

    Several threads may use one solver: it solves their problems one after the other. Different solvers run in parallel. A policy
    may call the solver that is calling it, which does not disturb the solve in progress. A copy (`copy`, `pickle`) starts from the
    same basis and is independent. See "Threads, processes and copies" in docs/rounds.md.

    >>> import gavel_py as gp
    >>> solver = gp.Solver("max_min_fairness")
    >>> for gpus in (1, 2):
    ...     solver.solve(gp.AllocationProblem.from_arrays([[2.0], [3.0]], [gpus])).objective_value
    0.5
    1.0
    """

    def __init__(
        self,
        policy: str | Policy = "max_min_fairness",
        *,
        merge_tolerance: float = 0.0,
        sharing: bool | None = None,
        time_limit_seconds: float | None = None,
        **options: Any,
    ) -> None:
        self.policy: Policy = resolve_policy(policy, **options)
        if not (isinstance(merge_tolerance, Real) and 0 <= merge_tolerance < 1):
            text = f"must be a number of at least 0 and below 1, found {merge_tolerance!r}"
            raise InputError(Fault("solve", "merge_tolerance", text))
        self.merge_tolerance: float = float(merge_tolerance)
        self.sharing: bool | None = sharing
        self.time_limit_seconds: float | None = checked_limit("solve", time_limit_seconds)
        self._kept: LinearSolver = LinearSolver()
        self._is_solving: bool = False

    @synchronized
    def to_dict(self) -> dict[str, Any]:
        """Return the state from which the next solve starts, as plain data without the policy."""
        return self._kept.to_dict()

    @synchronized
    def resume(self, document: Mapping[str, Any]) -> None:
        """Restore the state that `to_dict` returned, so that the next solve starts as that solver's would."""
        self._kept = LinearSolver.from_dict(document)

    def solve(self, problem: AllocationProblem) -> Allocation:
        """Return the proven allocation of a problem, like the function `solve`."""
        if not isinstance(problem, AllocationProblem):
            raise InputError(f"solve needs an AllocationProblem, found {problem!r}")
        return self._solve_by(problem, self._limit(problem))  # the limit includes the time for which another thread solves

    @synchronized
    def _solve_by(self, problem: AllocationProblem, limit: TimeLimit) -> Allocation:
        if self._is_solving:  # the policy calls back while its program is in use
            return copy.copy(self)._solve_by(problem, limit)
        self._is_solving = True
        try:
            with one_blas_thread():
                allocation = self._solve(problem, limit)
        finally:
            self._is_solving = False
        _log(allocation)
        return allocation

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_kept": copy.copy(self._kept), "_is_solving": False}

    def _recover(self) -> None:
        self._kept, self._is_solving = LinearSolver(), False

    def _solve(self, problem: AllocationProblem, limit: TimeLimit) -> Allocation:
        started = time.perf_counter()
        problem, rules = self._ruled(problem)
        if not problem.runnable.any():
            return nothing(problem, self.policy, rules, started)
        _check_units(problem, self.policy)
        self._kept.limit = limit
        columns = self._columns(problem, rules)
        try:
            answer, route = self._answer_by_rows(columns)
        except _Stopped as stopped:
            answer = incumbent(columns, self.policy, stopped.jobs, stopped.fractions, stopped.prices)
            return allocation_of(self.policy, self._noted(answer), stopped.route, started, TIME_LIMIT)
        for _ in range(MOST_CUT_ROUNDS if answer.decision.certificate is not None else 0):
            rows, wider = columns.separate(answer.times)
            if not rows:
                break
            logger.debug("%s: the answer violates %d rows, which are added", self.policy.label, len(rows))
            try:
                answer, again = self._answer_by_rows(wider.with_rows(rows))
            except _Stopped as stopped:
                certificate = answer.evidence.certificate
                assert certificate is not None  # noqa: S101
                prices = certificate.scarcity.over(certificate.jobs.rules, answer.evidence.rules)
                answer = keep_rows(answer, self.policy, certificate.jobs, [prices])
                return allocation_of(self.policy, self._noted(answer), stopped.route.after(route), started, TIME_LIMIT)
            columns, route = answer.evidence.columns, again.after(route)
        return allocation_of(self.policy, answer, route, started)

    def keep(self, problem: AllocationProblem, kept: KeptTimes) -> Allocation:
        """Return the times of an earlier allocation for this problem, without a solve; the status is `KEPT` (`kept_answer`).

        Args:
            problem: The problem.
            kept: The times.

        Raises:
            InputError: As for `solve`.
        """
        started = time.perf_counter()
        problem, rules = self._ruled(problem)
        if not problem.runnable.any():
            return nothing(problem, self.policy, rules, started)
        return kept_allocation(self.policy, kept_answer(self._columns(problem, rules), kept), started)

    def _ruled(self, problem: AllocationProblem) -> tuple[AllocationProblem, Rules]:
        """Return the problem without what options and constraints rule out, and the rules of constraints and nodes."""
        if self.sharing and problem.pairs is None:
            raise InputError(Fault("solve", "sharing", "the problem has no pairs of jobs that could share GPUs"))
        if self.sharing is False:
            problem = replace(problem, pairs=None)
        rules = NO_RULES
        if self.policy.constraints:
            from gavel_py.policies.constraints.compiling import constrained

            problem, rules = constrained(problem, self.policy.constraints)
        return problem, rules.also(Rules(rows=tuple(node_rows(problem))))

    def _columns(self, problem: AllocationProblem, rules: Rules) -> Columns:
        """Return the columns of the program: for types, and for partners or numbers of GPUs."""
        if problem.counts is not None:
            check_elastic(self.policy)
            if problem.pairs is not None:
                text = "cannot decide which jobs share GPUs while some are elastic; disable sharing"
                raise InputError(Fault(f"policy {self.policy.name}", "", text))
            return elastic_columns(problem, rules, problem.counts)
        if problem.pairs is not None:
            check_sharing(self.policy)
            return pair_columns(problem, rules, problem.pairs)
        return Columns.of_types(problem, rules)

    def _limit(self, problem: AllocationProblem) -> TimeLimit:
        """Return the limit of the search, which leaves time to bound and check the best allocation found by then."""
        seconds = self.time_limit_seconds
        if seconds is None:
            return NO_LIMIT
        passes = 2 if self.policy.is_agnostic else 1  # the second one splits time evenly
        return TimeLimit(seconds - min(seconds / 2, CLOSING_SECONDS * problem.throughputs.size * passes))

    def _answer_by_rows(self, columns: Columns) -> tuple[Answer, Route]:
        """Return the first proven answer; in large problems, only tight limits on groups of jobs get rows.

        Each of these rows divides classes of jobs. An answer that keeps the other limits without their rows is optimal with them,
        too. After `MOST_LIMIT_ROUNDS` programs, each of whose answers breaks further limits, or if a program fails, all get rows.
        """
        limits, before, kept = self._separate_limits(columns), Route("", 0), self._kept
        named = dict.fromkeys(kept.tight)
        for _ in range(MOST_LIMIT_ROUNDS if limits else 0):
            some = [row for name in named for row in limits if row.name == name]
            if 2 * len(some) > len(limits):
                break
            try:
                answer, route = self._answer(columns.with_only(some, limits))
            except (InputError, SolverError):  # all rows decide which conflict is named
                break
            except _Stopped as stopped:
                raise stopped.over(columns, self.policy) from None
            before, kept.tight = route.after(before), _tight(answer.times, limits)
            if kept.tight.keys() <= named.keys():
                return replace(answer, evidence=replace(answer.evidence, columns=columns)), before
            named |= kept.tight
            logger.debug("%s: %d of %d limits may need a row", self.policy.label, len(named), len(limits))
        answer, route = self._answer(columns)
        kept.tight = _tight(answer.times, limits)
        return answer, route.after(before)

    def _separate_limits(self, columns: Columns) -> list[Limit]:
        """Return the hard limits on groups of jobs that a program may leave out; none if it is small or has several objectives."""
        problem, is_plain = columns.problem, getattr(self.policy, "is_plain", False) and not self.merge_tolerance
        if not is_plain or problem.num_jobs < MANY_JOBS or problem.counts is not None or problem.pairs is not None:
            return []
        own = {id(row) for each in columns.rules.constraints for row in each.rows}
        return [row for row in columns.rules.hard_rows if id(row) in own and isinstance(row, Limit) and not row.at_once]

    def _answer(self, columns: Columns) -> tuple[Answer, Route]:
        """Return the first proven answer, and how it was found. Raises `_Stopped` when the time limit ends the search."""
        failed: list[str] = []
        for attempt in self._attempts(columns):
            jobs, kept = attempt.jobs(self.policy, columns), None
            before = attempt.solver.programs, attempt.solver.iterations
            try:
                if columns.rules:
                    kept = self.policy.check_rules(jobs, attempt.solver)
                self._kept.limit.check()
                answer = self._proven(self.policy.view(jobs), attempt, columns)
            except SolverError as error:
                failed.append(f"{attempt.reduction}, {attempt.solver.algorithm}: {error}")
                logger.debug("%s: no proven answer, trying the next route: %s", self.policy.label, failed[-1])
                last = error
                continue
            except TimeLimitReached as reached:
                found = reached.fractions if kept is None else (*reached.fractions, kept)
                route = _route(len(jobs), None, attempt, before, failed)
                stopped = _Stopped(self.policy.view(jobs), found, reached.prices, route)
                raise stopped.over(columns, self.policy) if attempt.tolerance else stopped from None
            if answer is not None:
                return answer, _route(answer.classes, answer.decision.algorithm, attempt, before, failed)
        raise type(last)("no solution route led to a proven answer\n  " + "\n  ".join(failed))

    def _attempts(self, columns: Columns) -> list[Attempt]:
        """Return the ways to an answer, the quickest first, each safer than the one before."""
        if not self.policy.reduces:
            return [Attempt("none", self._kept)]
        limit, attempts = self._kept.limit, [Attempt("classes", self._kept)]
        if self.merge_tolerance and not columns.rules:
            problem = merged(columns.problem, self.merge_tolerance)
            if problem is not columns.problem:
                attempts.insert(0, Attempt("merged", self._kept, self.merge_tolerance, problem))
        attempts.append(Attempt("classes", LinearSolver(Algorithm.INTERIOR_POINT, limit)))
        if columns.problem.num_jobs <= MOST_SEPARATE_JOBS:
            attempts.append(Attempt("none", LinearSolver(limit=limit)))
        return attempts

    def _proven(self, jobs: JobClasses, attempt: Attempt, columns: Columns) -> Answer | None:
        """Decide and prove; None if jobs cannot be merged under this policy. Raises `SolverError` if either step fails.

        jobs: the classes as the policy sees them.
        """
        policy, problem = self.policy, columns.problem
        decision = policy.decide(jobs, attempt.solver)
        if policy.is_agnostic:
            decision = even_decision(policy, jobs, decision, columns.source, self._kept.limit)
        decision = replace(decision, time_fractions=columns.repaired(jobs, decision.time_fractions))
        by_class = decision.time_fractions
        if not attempt.tolerance:
            times = TimeShares.of_classes(problem, jobs, by_class)
            evidence = Evidence(columns, decision.certificate)
            if decision.certificate is None and columns.rules:
                text = "which does not search for another allocation; a policy with an objective does"
                text = f"is violated by {policy.name}, {text}"
                InputError.raise_any([Fault(f"constraint {each.name}", "", text) for each in times.broken(columns.rules)])
            proof = evidence.proof_by_class(by_class, evidence.violation(times))
        else:
            exact = policy.view(classes_of(problem, policy.name, policy.reads, columns=columns))
            if decision.certificate is None or isinstance(decision.certificate, Stages):
                return None
            fractions = jobs.expanded(by_class)[exact.rows]
            certificate = policy.best_of(exact, [fractions], [decision.certificate.scarcity]).certificate
            if certificate is None:
                return None
            # An error of tolerance/2 in throughputs changes both optimum and answer by about the same fraction.
            times = TimeShares.of_classes(problem, exact, fractions)
            evidence = Evidence(columns, certificate, PROOF_TOLERANCE + 2 * attempt.tolerance)
            proof = evidence.proof(times)
        proof.check()
        return Answer(decision, times, len(jobs), evidence, proof)

    def _noted(self, answer: Answer) -> Answer:
        """Return the answer with a note that the time limit has ended the solve."""
        gap = answer.proof.gap
        if gap is None:
            text = "the distance of this allocation from the optimum is unknown"
        elif gap <= PROOF_TOLERANCE:
            text = "the objective is optimal, but secondary objectives, such as the largest throughput, may not be"
        else:
            text = f"value and proven bound differ by {gap:.2%} of the larger one"
        note = f"the time limit of {self.time_limit_seconds:g} s was reached; {text}"
        return replace(answer, decision=replace(answer.decision, notes=(note, *answer.decision.notes)))


@dataclass(frozen=True)
class Attempt:
    """One way to an answer.

    reduction: the rows of the program, "classes", "merged" classes or "none"; solver: the solver of its programs; tolerance: the
    relative difference of the throughputs of merged jobs; merged_problem: the problem with these jobs made equal.
    """

    reduction: str
    solver: LinearSolver
    tolerance: float = 0.0
    merged_problem: AllocationProblem | None = None

    def jobs(self, policy: Policy, columns: Columns) -> JobClasses:
        """Return the rows of the program."""
        reduced = separate_jobs if self.reduction == "none" else classes_of
        return reduced(self.merged_problem or columns.problem, policy.name, policy.reads, columns.rules, columns)


class _Stopped(Exception):  # noqa: N818
    """The time limit has ended an attempt.

    Args:
        jobs: The classes as the policy sees them.
        fractions: Candidates for an allocation, each (G, K).
        prices: Dual prices.
        route: The route so far.
    """

    def __init__(self, jobs: JobClasses, fractions: tuple[Floats, ...], prices: tuple[Prices, ...], route: Route) -> None:
        super().__init__()
        self.jobs, self.fractions, self.prices, self.route = jobs, fractions, prices, route

    def over(self, columns: Columns, policy: Policy) -> _Stopped:
        """Return the same with the classes and prices of all rows of these columns."""
        jobs = policy.view(classes_of(columns.problem, policy.name, policy.reads, columns.rules, columns))
        fractions = tuple(self.jobs.expanded(each)[jobs.rows] for each in self.fractions)
        return _Stopped(jobs, fractions, tuple(each.over(self.jobs.rules, columns.rules) for each in self.prices), self.route)


def _tight(times: TimeShares, limits: Sequence[Limit]) -> dict[str, None]:
    """Return the names of the limits that an answer breaks, or leaves no clear slack, so that a few more GPUs might break them."""
    return {row.name: None for row in limits if times.used(row) > row.rhs - CLEAR * abs(row.rhs)}


def _route(classes: int, algorithm: str | None, attempt: Attempt, before: tuple[int, int], failed: list[str]) -> Route:
    """Return the route of an attempt. algorithm: the algorithm that found the answer, if it is not the attempt's solver."""
    programs, iterations = attempt.solver.programs - before[0], attempt.solver.iterations - before[1]
    used = algorithm or (str(attempt.solver.latest) if programs else None)
    return Route(attempt.reduction, classes, used, programs, iterations, tuple(failed))


def _check_units(problem: AllocationProblem, policy: Policy) -> None:
    """Issue a `GavelWarning` if the objective adds throughputs in different units."""
    if policy.adds_raw_throughputs and (units := problem.mixed_units):
        text = f"{policy.label} adds throughputs in different units ({', '.join(units)}), so its sum means nothing"
        warnings.warn(f"{text}; convert the profile to one unit (ThroughputProfile.converted)", GavelWarning, stacklevel=6)


def _log(allocation: Allocation) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    value, gap, route = allocation.objective_value, allocation.gap, allocation.route
    objective = "" if value is None or gap is None else f", objective {value:.9g}, gap {gap:.1e}"
    size = f"{len(allocation.job_ids)} jobs ({len(allocation.excluded)} excluded), {len(allocation.accelerator_types)} GPU types"
    logger.info("%s: %s: %s%s, %.3f s", allocation.policy, size, allocation.status, objective, allocation.seconds["solve"])
    if route is not None:
        text = "%s: reduction %s, %d classes, %s, %d programs, %d iterations"
        algorithm = route.algorithm or "no program"
        logger.debug(text, allocation.policy, route.reduction, route.classes, algorithm, route.programs, route.iterations)


def check_elastic(policy: Policy) -> None:
    """Raise `InputError` for a policy that cannot choose the numbers of GPUs of elastic jobs."""
    cannot = "so it cannot choose the number of GPUs of elastic jobs"
    share = "compares jobs with their isolated share, which is not defined for an elastic job"
    refuse(
        f"policy {policy.name}",
        (policy.empty_objective is None, "", f"solves no program, {cannot}; use a policy with an objective"),
        (policy.is_agnostic, "option agnostic", f"ignores throughputs, {cannot}"),
        (policy.needs_isolated_share, "", f"{share}; give min_share" if hasattr(policy, "min_share") else share),
    )


def check_sharing(policy: Policy) -> None:
    """Raise `InputError` for a policy that cannot decide which jobs share GPUs."""
    solves_nothing = policy.empty_objective is None and not isinstance(policy, PackingPolicy)
    no_program = "solves no program, so it cannot decide which jobs share GPUs; use a policy with an objective, or disable sharing"
    withholds = "withholds time from every job, which its partners would lose as well; disable sharing"
    refuse(
        f"policy {policy.name}",
        (solves_nothing, "", no_program),
        (getattr(policy, "strategy_proof", False), "option strategy_proof", withholds),
        (policy.agnostic, "option agnostic", "ignores throughputs, so it cannot weigh the cost of sharing"),
    )
