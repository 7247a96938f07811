"""The sum family: maximise one concave objective over all jobs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from gavel_py.errors import Fault, InputError, PolicyError, SolverError, UnboundedError, refuse
from gavel_py.optimization.checking.certificates import Certificate, PricedCertificate, Prices, within_capacity
from gavel_py.optimization.formulation.linear_rows import Rules
from gavel_py.optimization.formulation.matrices import SumCertificate
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.best_responses import greedy_times, tightest_prices
from gavel_py.optimization.solving.free_times import FreeTimes
from gavel_py.policies.base import Decision, Policy
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import FLOAT_ROUNDING, SOLVER_TOLERANCE

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program
    from gavel_py.optimization.solving.highs import LinearSolver
    from gavel_py.problem.problem import AllocationProblem

NUDGE = 1e-7
"""Two values of an objective count as equal if they differ no more than under such a relative change of all times, or by
`FLOAT_ROUNDING`."""

LARGE = 20_000
"""Number of entries (G · K) above which an objective is checked on fewer allocations."""


@dataclass(frozen=True, kw_only=True)
class SumPolicy(Policy):
    """Maximise or minimise an objective over the valid allocations.

    Subclasses define `objective`; value, bound and prices follow from it.

    Attributes:
        direction: "max", or "min" for objectives such as a cost.
    """

    family: ClassVar[str] = "sum"
    direction: ClassVar[Literal["max", "min"]] = "max"

    @abstractmethod
    def objective(self, program: Program) -> cp.Expression:
        """Return the objective: a scalar cvxpy expression, concave to maximise, convex to minimise.

        Args:
            program: Throughputs, times and attributes of the job classes as expressions and arrays.
        """

    def enough(self, jobs: JobClasses) -> Floats | None:  # noqa: ARG002
        """Return (G,) the throughput beyond which the objective does not improve for a job of each class, None if there is none.

        It scales the variables of the program, so that the time of jobs that need very little is not lost to rounding.

        Args:
            jobs: The classes as this policy sees them.
        """
        return None

    @property
    def sign(self) -> float:
        """1 if the objective is maximised, -1 if it is minimised."""
        return 1.0 if self.direction == "max" else -1.0

    @property
    def is_plain(self) -> bool:
        """Whether the objective defines the policy completely, so that it can be a term of a `WeightedSum`.

        An optimum without some hard rows is then one with them if it keeps them.
        """
        return True

    @property
    def is_linear(self) -> bool:
        """Whether the policy is known to be only a linear sum, which is solved without expressions."""
        return False

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        return self._decide_by_prices(jobs, solver) or self._decide_by_program(jobs, solver)

    def _decide_by_program(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        from gavel_py.optimization.checking.infeasibility import check_finite

        program, objective = self._program(jobs, self.enough(jobs))
        charged = objective - program.penalty if jobs.rules.has_penalties else objective
        try:
            fractions, certificate, algorithm = self._best(program, charged, solver)
        except SolverError as error:
            check_finite(program, objective, np.zeros(jobs.throughputs.shape), self.name)
            if isinstance(error, UnboundedError) or program.keeps_growing(charged):
                raise self._unbounded() from error
            raise
        if program.keeps_growing(charged):
            raise self._unbounded()
        check_finite(program, objective, fractions, self.name)
        self._check_rows(program, objective, fractions)
        return Decision(fractions, certificate, program.shadow_prices(solver), algorithm)

    def _decide_by_prices(self, jobs: JobClasses, solver: LinearSolver) -> Decision | None:
        """Return the decision for a linear objective on many rows; None if prices do not apply or do not give a proof."""
        gains = self._gains(jobs) if self._uses_prices(jobs, len(jobs), solver) else None
        if gains is None:
            return None
        from gavel_py.optimization.solving import price_decomposition

        found = price_decomposition.largest_gains(jobs, self.sign * gains, solver)
        if found is None:
            return None
        fractions, certificate, shadow_prices = found
        return Decision(fractions, replace(certificate, sign=self.sign), shadow_prices, price_decomposition.ALGORITHM)

    def _gains(self, jobs: JobClasses) -> Floats | None:  # noqa: ARG002
        """Return (G, K) the gains of a linear objective, None if it is not known to be one."""
        return None

    def _known_gains(self, jobs: JobClasses) -> Floats | None:
        """Return (G, K) the gains of the objective to be maximised, 0 where jobs cannot run, if `_gains` returns them."""
        gains = self._gains(jobs)
        if gains is None:
            return None
        gains = self.sign * gains
        return gains if jobs.runnable.all() else np.where(jobs.runnable, gains, 0.0)

    def _linear_gains(self, jobs: JobClasses) -> Floats | None:
        """Return (G, K) the gains of the objective to be maximised if it is linear in the times alone, else None."""
        gains = self._known_gains(jobs)
        if gains is not None:
            return gains
        program, objective = self._program(jobs)
        is_linear = objective.is_affine() and not program.own_variables(objective)
        return program.tangent_plane(objective)[1] if is_linear else None

    def _program(self, jobs: JobClasses, enough: Floats | None = None) -> tuple[Program, cp.Expression]:
        """Return the program of job classes, with the objective to be maximised."""
        from gavel_py.optimization.formulation.program import Program

        program = Program(jobs, enough)
        return program, self._checked(program)

    def _checked(self, program: Program) -> cp.Expression:
        """Return the objective of a program with the sign for maximisation; raises `InputError` if it is not one concave number."""
        from gavel_py.optimization.formulation.program import check_objective

        return check_objective(self.objective(program), self.direction)

    def _best(self, program: Program, objective: cp.Expression, solver: LinearSolver) -> tuple[Floats, Certificate, str | None]:
        """Return (G, K) optimal time fractions, their certificate, and the algorithm if it is not the given solver."""
        if objective.is_pwl():
            from gavel_py.optimization.formulation.program import ExpressionCertificate

            fractions = within_capacity(program.jobs, program.maximize(objective, solver))
            return fractions, ExpressionCertificate(program, objective, self.sign), None
        from gavel_py.optimization.solving.concave import ALGORITHM, maximize_concave

        return *maximize_concave(program, objective, solver, self.sign), ALGORITHM

    def _unbounded(self) -> PolicyError:
        """Return the error for an unbounded objective. Time fractions are bounded, so the objective's own variables are not."""
        better = "large" if self.direction == "max" else "small"
        text = (
            f"is unbounded: its own cvxpy variables can make it arbitrarily {better}, whatever the allocation; "
            "bound these variables, or write the objective with the program's expressions only"
        )
        return PolicyError(Fault(f"policy {self.name}", "objective", text))

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        certificate, fractions = decision.certificate, decision.time_fractions
        assert certificate is not None  # noqa: S101
        program, objective = self._program(jobs, self.enough(jobs))
        value = program.value(objective, fractions)
        size = max(abs(value), certificate.scale(fractions)) or 1.0
        least = value - tolerance * size
        refuse(
            f"policy {self.name}",
            (not objective.is_pwl(), "", "has a nonlinear objective, which a linear program cannot preserve for another policy"),
        )
        if not objective.is_affine():
            # The other policy may see other throughputs; this objective keeps those seen here.
            return Rules(kept=(lambda other: self._checked(other.seen_as(jobs)) / size >= least / size,))
        constant, gains = program.tangent_plane(objective)
        return Rules(rows=(jobs.gains(f"the objective of {self.name}", gains, least - constant),))

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes | None:
        if jobs.rules.kept:
            return None
        gains = self._linear_gains(jobs)
        if gains is None:
            return None
        row = jobs.gains(self.name, gains, float(jobs.counts @ (gains * decision.time_fractions).sum(axis=1)))
        lower, upper = np.minimum(jobs.floors / jobs.fastest, 1.0), np.ones(len(jobs))
        certificate = decision.certificate
        if not isinstance(certificate, SumCertificate):  # the decision is not optimal
            return FreeTimes(lower, upper, (row,))
        # By complementary slackness, jobs with a positive price of time run all of it, jobs with only negative reduced costs none.
        times: Floats = decision.time_fractions @ np.ones(len(jobs.capacities))
        small = SOLVER_TOLERANCE * np.abs(gains).max(axis=1)
        idle = (times <= SOLVER_TOLERANCE) & (certificate.program.net_gains() < -small[:, None]).all(axis=1, where=jobs.runnable)
        lower = np.where((times >= 1 - SOLVER_TOLERANCE) & (certificate.program.time_prices > small), 1.0, lower)
        upper = np.where(idle, lower, 1.0)
        means = gains.sum(axis=1, where=jobs.runnable) / jobs.runnable.sum(axis=1)
        if jobs.rules or (np.abs(gains - means[:, None]) > small[:, None] * SOLVER_TOLERANCE).any(where=jobs.runnable):
            return FreeTimes(lower, upper, (row,))
        # If only the total time of a job counts, it must be spent in columns with a reduced cost of 0.
        usable = jobs.runnable & (idle[:, None] | (certificate.program.net_gains() >= -small[:, None]))
        return FreeTimes(lower, upper, where=usable)

    def __mul__(self, weight: float) -> WeightedSum:
        return WeightedSum(terms=((weight, self),))

    __rmul__ = __mul__

    def __add__(self, other: SumPolicy) -> WeightedSum:
        return self * 1.0 + other * 1.0 if isinstance(other, SumPolicy) else NotImplemented

    def _check_rows(self, program: Program, objective: cp.Expression, fractions: Floats) -> None:
        """Raise `PolicyError` if the objective changes when the same jobs with the same time are in other rows.

        Rows are job classes in arbitrary order, so the objective may not depend on the number of jobs in a row nor on its position.
        It is compared at several allocations, since an error may not show at the optimum.
        """
        points = [fractions, *_samples(program.jobs)]
        if self._is_same(program, objective, points, moved=1):
            return
        if self._is_same(program, objective, points, moved=0):
            text = (
                "depends on the order of the rows, which is arbitrary: take differences between jobs from the program's "
                "attributes (declared in reads), never from row positions"
            )
        else:
            text = (
                "depends on how equal jobs are counted (its value changes when classes are split): "
                "reduce over jobs with program.total and program.minimum, never with cp.sum, cp.min or similar, and divide by "
                "program.num_jobs, never by the number of rows; "
                'or put every job into a class of its own with reads = ("job_ids",)'
            )
        raise PolicyError(Fault(f"policy {self.name}", "objective", text), check="order")

    def _is_same(self, program: Program, objective: cp.Expression, points: Sequence[Floats], moved: int) -> bool:
        """Return whether the objective has the same value at each (G, K) point after regrouping rows (`JobClasses.regrouped`)."""
        jobs, rows = program.jobs.regrouped(moved)
        other, same = self._program(jobs, self.enough(jobs))
        theirs, ours = other.own_variables(same), program.own_variables(objective)
        if any(variable.size != 1 for variable in theirs):
            if len(jobs) == len(program.jobs):
                return True  # rows are single jobs, so that a variable may have an entry per row
            text = "has own cvxpy variables with more than one entry, which have no meaning for job classes"
            raise PolicyError(Fault(f"policy {self.name}", "objective", text), check="order")
        for variable, known in zip(theirs, ours, strict=True):
            variable.value = known.value
        nudge = NUDGE * np.random.default_rng(0).uniform(-1, 1, points[0].shape)
        for fractions in points:
            with np.errstate(all="ignore"):
                expected, found = program.value(objective, fractions), other.value(same, fractions[rows])
                # In both directions, since a kink may be on either side.
                nearby = [abs(program.value(objective, fractions * (1 + way * nudge)) - expected) for way in (1, -1)]
            rounding = max(*nearby, FLOAT_ROUNDING * abs(expected), FLOAT_ROUNDING * abs(found))
            # Objectives such as a logarithm have no finite value for jobs without time.
            if np.isfinite([expected, found, rounding]).all() and abs(found - expected) > rounding:
                return False
        return True

    def guess(self, jobs: JobClasses) -> Floats | None:
        gains = self._linear_gains(jobs) if self.sign > 0 else None
        return None if gains is None else greedy_times(jobs, gains)

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        gains = None if jobs.rules.has_penalties else self._known_gains(jobs)
        if gains is not None:
            return self._best_linear(jobs, gains, candidates, prices)
        from gavel_py.optimization.solving.concave import best_priced

        program, objective = self._program(jobs)
        return Decision(*best_priced(program, objective, self.sign, candidates, [each.gpus for each in prices]))

    def _best_linear(self, jobs: JobClasses, gains: Floats, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        """Return the result of `best_of` for a linear objective, without an expression. gains: (G, K), to be maximised."""
        best = tightest_prices(jobs, gains, [each.gpus for each in prices], jobs.floors)
        none = np.zeros(len(jobs.limits[1]))
        tried = [Prices(best, none), *(Prices(p.gpus, np.maximum(p.limits, 0.0)) for p in prices if len(p.limits) == len(none))]
        certificate = min((PricedCertificate(jobs, gains, p, self.sign) for p in tried), key=lambda each: self.sign * each.bound())
        return Decision(max(candidates, key=lambda fractions: self.sign * certificate.value(fractions)), certificate)


@dataclass(frozen=True, kw_only=True)
class WeightedSum(SumPolicy):
    """A weighted sum of objectives: max Σ_t a_t f_t(X), f_t the objective of term t, or −f_t if that is minimised.

    Written as 2 * MaxTotalThroughput() + MaxProgressRate(). Each term has its own view of the jobs (agnostic or not). The
    constraints of all terms hold.

    Attributes:
        terms: Pairs of a weight a_t > 0 and a sum policy.
    """

    terms: tuple[tuple[float, SumPolicy], ...]

    def __post_init__(self) -> None:
        faults = [Fault("weighted sum", "", text) for term in self.terms if (text := _wrong(term)) is not None]
        InputError.raise_any(faults)
        super().__post_init__()
        constraints = (*self.constraints, *(each for _, policy in self.terms for each in policy.constraints))
        object.__setattr__(self, "constraints", tuple(dict.fromkeys(constraints)))

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, policy in self.terms for name in policy.reads))

    @property
    def is_agnostic(self) -> bool:
        return self.agnostic or all(policy.is_agnostic for _, policy in self.terms)

    @property
    def adds_raw_throughputs(self) -> bool:
        return any(policy.adds_raw_throughputs for _, policy in self.terms)

    @property
    def counts_gangs_whole(self) -> bool:
        return any(policy.counts_gangs_whole for _, policy in self.terms)

    @property
    def label(self) -> str:
        return " + ".join(f"{weight:g} * {policy.label}" for weight, policy in self.terms)

    @property
    def changed_options(self) -> dict[str, Any]:
        """The terms as text."""
        return {"terms": self.label}

    def check(self, problem: AllocationProblem) -> None:
        for _, policy in self.terms:
            policy.check(problem)

    def objective(self, program: Program) -> cp.Expression:
        return sum(
            weight * policy.sign * policy.objective(program.seen_as(policy.view(program.jobs))) for weight, policy in self.terms
        )

    def _gains(self, jobs: JobClasses) -> Floats | None:
        total = np.zeros(jobs.throughputs.shape)
        for weight, policy in self.terms:
            gains = policy._gains(policy.view(jobs))
            if gains is None:
                return None
            total += weight * policy.sign * gains
        return total

    def __mul__(self, weight: float) -> WeightedSum:
        return WeightedSum(terms=tuple((weight * own, policy) for own, policy in self.terms), constraints=self.constraints)

    __rmul__ = __mul__

    def __add__(self, other: SumPolicy) -> WeightedSum:
        if not isinstance(other, SumPolicy):
            return NotImplemented
        more = other if isinstance(other, WeightedSum) else 1.0 * other
        return WeightedSum(terms=(*self.terms, *more.terms), constraints=(*self.constraints, *more.constraints))


def _wrong(term: tuple[float, SumPolicy]) -> str | None:
    """Return what is wrong with a term, None if it is valid."""
    weight, policy = term
    if not isinstance(policy, SumPolicy):
        return f"only sum policies can be added, found {policy!r}; to optimise one objective after another, use Then"
    if not policy.is_plain:
        return f"{policy.label} is not defined by its objective alone, and a sum would drop the rest; use Then, which keeps it"
    if not (isinstance(weight, Real) and math.isfinite(weight) and weight > 0):
        return f"the weight of {policy.name} must be a number greater than 0, found {weight!r}"
    return None


def _samples(jobs: JobClasses) -> Iterator[Floats]:
    """Yield (G, K) valid allocations at which an objective is compared before and after regrouping, the same in every call.

    Jobs have similar or very different amounts of time; classes that `regrouped` splits have far more than others, far less, or
    all; or random classes have all.
    """
    random, shape, count = np.random.default_rng(0), jobs.throughputs.shape, len(jobs)
    split = np.bincount(jobs.regrouped()[1]) > 1
    sizes = [np.ones(count), 10 ** random.uniform(-3, 0, count)]
    sizes += [np.where(split, 1.0, 1e-3), np.where(split, 1e-3, 1.0)] if split.any() else []
    if jobs.throughputs.size <= LARGE:
        sizes += [np.where(split, 1.0, 0.0), *(random.random((3, count)) < 1 / 2).astype(float)]
    for size in sizes:
        yield 0.9 * within_capacity(jobs, random.uniform(0.1, 1, shape) * size[:, None])
