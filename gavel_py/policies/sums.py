"""The sum family: one concave objective over all jobs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from gavel_py.errors import Fault, InputError, PolicyError, SolverError, UnboundedError
from gavel_py.optimization.checking.certificates import Certificate, Prices, within_capacity
from gavel_py.optimization.formulation.linear_rows import Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.free_times import FreeTimes
from gavel_py.policies.base import Decision, Policy
from gavel_py.problem.arrays import Floats

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program
    from gavel_py.optimization.solving.highs import LinearSolver
    from gavel_py.problem.problem import AllocationProblem

NUDGE, ROUNDING = 1e-7, 1e-12
"""Two values of an objective that differ by no more than such a change of all times makes, or by such a part, are the same."""

LARGE = 20_000
"""Pairs of a class and a type from which on an objective is looked at for fewer allocations."""

SMALL = 1e-9
"""Parts of a gain, or of a job's time, that are as good as none."""


@dataclass(frozen=True, kw_only=True)
class SumPolicy(Policy):
    """Maximise an objective over the valid allocations; write `objective`, and value, bound and prices follow.

    direction: "max", or "min" for an objective that is to be as small as possible, such as a cost.
    """

    family: ClassVar[str] = "sum"
    direction: ClassVar[Literal["max", "min"]] = "max"

    @abstractmethod
    def objective(self, program: Program) -> cp.Expression:
        """Return the number to maximise (minimise): a concave (convex) cvxpy expression of the program's throughputs."""

    def enough(self, jobs: JobClasses) -> Floats | None:  # noqa: ARG002
        """Return (G,) the throughput beyond which a job of each class is worth no more, if there is one.

        The time that it takes is what time is measured in, so that jobs that need next to none are not lost in rounding.
        """
        return None

    @property
    def sign(self) -> float:
        """1 where the objective is maximised, -1 where it is minimised."""
        return 1.0 if self.direction == "max" else -1.0

    @property
    def is_plain(self) -> bool:
        """Whether its objective is all that there is to it, so that it can be a term of a sum of policies."""
        return True

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        from gavel_py.optimization.formulation.program import Program, check_objective

        program = Program(jobs, self.enough(jobs))
        objective = check_objective(self.objective(program), self.direction)
        charged = objective - program.penalty if jobs.rules.has_penalties else objective
        try:
            fractions, certificate, algorithm = self._best(program, charged, solver)
        except SolverError as error:
            if isinstance(error, UnboundedError) or program.keeps_growing(charged):
                raise self._unbounded() from error
            raise
        if program.keeps_growing(charged):
            raise self._unbounded()
        self._check_rows(program, objective, fractions)
        return Decision(fractions, certificate, program.shadow_prices(solver), algorithm)

    def _best(self, program: Program, objective: cp.Expression, solver: LinearSolver) -> tuple[Floats, Certificate, str | None]:
        """The (G, K) time fractions that are best for a concave objective, what proves them, and what found them."""
        if objective.is_pwl():
            fractions = within_capacity(program.jobs, program.maximize(objective, solver))
            return fractions, SumCertificate(program, objective, self.sign), None
        from gavel_py.optimization.solving.concave import ALGORITHM, maximize_concave

        return *maximize_concave(program, objective, solver, self.sign), ALGORITHM

    def _unbounded(self) -> PolicyError:
        """The error for an objective without a bound, which only variables of its own can leave it without: time is bounded."""
        better = "large" if self.direction == "max" else "small"
        text = (
            f"is unbounded: with its own cvxpy variables it can be made as {better} as one likes, whatever the allocation; "
            "bound these variables, or make none and write the objective on the program's expressions"
        )
        return PolicyError(Fault(f"policy {self.name}", "objective", text))

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        from gavel_py.optimization.formulation.program import Program, check_objective

        certificate = decision.certificate
        assert certificate is not None  # noqa: S101
        program, fractions = Program(jobs, self.enough(jobs)), decision.time_fractions
        objective = check_objective(self.objective(program), self.direction)
        value = program.value(objective, fractions)
        least = value - tolerance * max(abs(value), certificate.scale(fractions))
        if not objective.is_pwl():
            text = "has a curved objective, which no linear program can keep, so it cannot come before another policy"
            raise InputError(Fault(f"policy {self.name}", "", text))
        if not objective.is_affine():
            # Whatever throughputs another policy sees, this objective stays that of the throughputs seen here.
            return Rules(kept=(lambda other: check_objective(self.objective(other.seen_as(jobs)), self.direction) >= least,))
        constant, gains = program.linear_parts(objective)
        return Rules(rows=(jobs.gains(f"the objective of {self.name}", gains, least - constant),))

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes | None:
        from gavel_py.optimization.formulation.program import Program, check_objective

        if jobs.rules.kept:
            return None
        program = Program(jobs)
        objective = check_objective(self.objective(program), self.direction)
        if not objective.is_affine() or program.own_variables(objective):
            return None
        constant, gains = program.linear_parts(objective)
        row = jobs.gains(self.name, gains, program.value(objective, decision.time_fractions) - constant)
        least, most = np.minimum(jobs.floors / jobs.fastest, 1.0), np.ones(len(jobs))
        certificate = decision.certificate
        if not isinstance(certificate, SumCertificate):  # the decision is not optimal
            return FreeTimes(least, most, (row,))
        # Whose time is worth more than it takes has all of it, and whose time is worth less nowhere has none.
        times: Floats = decision.time_fractions @ np.ones(len(jobs.capacities))
        small = SMALL * np.abs(gains).max(axis=1)
        idle = (times <= SMALL) & (certificate.program.net_gains() < -small[:, None]).all(axis=1, where=jobs.runnable)
        least = np.where((times >= 1 - SMALL) & (certificate.program.time_prices > small), 1.0, least)
        most = np.where(idle, least, 1.0)
        means = gains.sum(axis=1, where=jobs.runnable) / jobs.runnable.sum(axis=1)
        if jobs.rules or (np.abs(gains - means[:, None]) > small[:, None] * SMALL).any(where=jobs.runnable):
            return FreeTimes(least, most, (row,))
        # Where only the total time of a job counts, it has to be spent where it is worth what it takes.
        worth = jobs.runnable & (idle[:, None] | (certificate.program.net_gains() >= -small[:, None]))
        return FreeTimes(least, most, where=worth)

    def __mul__(self, weight: float) -> WeightedSum:
        return WeightedSum(terms=((weight, self),))

    __rmul__ = __mul__

    def __add__(self, other: SumPolicy) -> WeightedSum:
        return self * 1.0 + other * 1.0 if isinstance(other, SumPolicy) else NotImplemented

    def _check_rows(self, program: Program, objective: cp.Expression, fractions: Floats) -> None:
        """Raise `PolicyError` if the objective changes when the same jobs with the same time stand in other rows.

        Rows are classes of jobs in an order of no meaning, so the objective may depend neither on how many jobs a row stands for
        nor on where it stands. What is wrong may not show at the best answer, hence the other allocations.
        """
        points = [fractions, *_samples(program.jobs)]
        if self._is_same(program, objective, points, moved=1):
            return
        if self._is_same(program, objective, points, moved=0):
            text = (
                "depends on the order of the rows, which means nothing: take what differs between jobs from the program's "
                "attributes (declared in reads), never from the position"
            )
        else:
            text = (
                "depends on how equal jobs are counted (its value changes when classes are split): "
                "reduce over jobs with program.total and program.minimum, never with cp.sum, cp.min and the like, and divide by "
                "program.num_jobs, never by the number of rows; "
                'or make every job a class of its own with reads = ("job_ids",)'
            )
        raise PolicyError(Fault(f"policy {self.name}", "objective", text), check="order")

    def _is_same(self, program: Program, objective: cp.Expression, points: Sequence[Floats], moved: int) -> bool:
        """Whether the objective has the same value for (G, K) time fractions in other rows (`JobClasses.regrouped`)."""
        from gavel_py.optimization.formulation.program import Program, check_objective

        jobs, rows = program.jobs.regrouped(moved)
        other = Program(jobs, self.enough(jobs))
        same = check_objective(self.objective(other), self.direction)
        theirs, ours = other.own_variables(same), program.own_variables(objective)
        if any(variable.size != 1 for variable in theirs):
            if len(jobs) == len(program.jobs):
                return True  # every row is one job, and may have an entry
            text = "has variables of its own with more than one entry, which cannot stand for classes of jobs"
            raise PolicyError(Fault(f"policy {self.name}", "objective", text), check="order")
        for variable, known in zip(theirs, ours, strict=True):
            variable.value = known.value
        nudge = NUDGE * np.random.default_rng(0).uniform(-1, 1, points[0].shape)
        for fractions in points:
            with np.errstate(all="ignore"):
                expected, found = program.value(objective, fractions), other.value(same, fractions[rows])
                # Both ways, since a kink may be on either side.
                nearby = [abs(program.value(objective, fractions * (1 + way * nudge)) - expected) for way in (1, -1)]
            rounding = max(*nearby, ROUNDING * abs(expected), ROUNDING * abs(found))
            # A curve may have no value where a job has no time.
            if np.isfinite([expected, found, rounding]).all() and abs(found - expected) > rounding:
                return False
        return True

    def guess(self, jobs: JobClasses) -> Floats | None:
        from gavel_py.optimization.formulation.program import Program, check_objective

        program = Program(jobs, self.enough(jobs))
        objective = check_objective(self.objective(program), self.direction)
        if self.sign < 0 or not objective.is_affine() or program.own_variables(objective):
            return None
        return _by_gain(jobs, program.linear_parts(objective)[1])

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        from gavel_py.optimization.formulation.program import Program, check_objective
        from gavel_py.optimization.solving.concave import best_priced

        program = Program(jobs)
        objective = check_objective(self.objective(program), self.direction)
        return Decision(*best_priced(program, objective, self.sign, candidates, [each.gpus for each in prices]))


@dataclass(frozen=True, kw_only=True)
class WeightedSum(SumPolicy):
    """Several sums at once: max Σ_t a_t f_t(X), f_t the objective of term t; a term that is to be minimised counts as −f_t.

    terms: pairs of a number a_t > 0 and a sum policy; written as 2 * MaxTotalThroughput() + MaxProgressRate(). Each term
    sees the jobs in its own way (agnostic or not); constraints of terms hold for the whole.
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
    def label(self) -> str:
        return " + ".join(f"{weight:g} * {policy.label}" for weight, policy in self.terms)

    @property
    def changed_options(self) -> dict[str, Any]:
        """The terms, in words."""
        return {"terms": self.label}

    def check(self, problem: AllocationProblem) -> None:
        for _, policy in self.terms:
            policy.check(problem)

    def objective(self, program: Program) -> cp.Expression:
        return sum(
            weight * policy.sign * policy.objective(program.seen_as(policy.view(program.jobs))) for weight, policy in self.terms
        )

    def __mul__(self, weight: float) -> WeightedSum:
        return WeightedSum(terms=tuple((weight * own, policy) for own, policy in self.terms), constraints=self.constraints)

    __rmul__ = __mul__

    def __add__(self, other: SumPolicy) -> WeightedSum:
        if not isinstance(other, SumPolicy):
            return NotImplemented
        more = other if isinstance(other, WeightedSum) else 1.0 * other
        return WeightedSum(terms=(*self.terms, *more.terms), constraints=(*self.constraints, *more.constraints))


def _wrong(term: tuple[float, SumPolicy]) -> str | None:
    weight, policy = term
    if not isinstance(policy, SumPolicy):
        return f"only sum policies can be added, found {policy!r}; to reach one objective after the other, use Then"
    if not policy.is_plain:
        return f"{policy.label} is more than its objective, and a sum would keep nothing else of it; Then keeps all of it"
    if not (isinstance(weight, Real) and math.isfinite(weight) and weight > 0):
        return f"the weight of {policy.name} must be a number greater than 0, found {weight!r}"
    return None


def _by_gain(jobs: JobClasses, gains: Floats) -> Floats:
    """(G, K) time for jobs in the order of their gain per GPU, each on its best type that is left."""
    left, waiting, fractions = jobs.capacities.astype(float), jobs.counts.astype(float), np.zeros(gains.shape)
    for _ in range(len(left)):
        worth = np.where(jobs.runnable & (left > 0) & (gains > 0), gains / jobs.num_gpus[:, None], 0.0)
        best, most = worth.argmax(axis=1), worth.max(axis=1)
        for j in range(len(left)):
            some = np.flatnonzero((best == j) & (most > 0) & (waiting > 0))
            some = some[np.argsort(-most[some], kind="stable")]
            wanted = waiting[some] * jobs.num_gpus[some]
            given = np.clip(left[j] - (np.cumsum(wanted) - wanted), 0.0, wanted)
            fractions[some, j] += given / (jobs.num_gpus * jobs.counts)[some]
            waiting[some] -= given / jobs.num_gpus[some]
            left[j] = max(0.0, left[j] - given.sum())
    return fractions


def _samples(jobs: JobClasses) -> Iterator[Floats]:
    """Valid (G, K) allocations by which to compare two ways of writing an objective, the same every time.

    All jobs have time, alike or in very different amounts; or jobs of classes that `regrouped` splits have far more than others,
    far less, or all; or some classes chosen by chance.
    """
    chance, shape, count = np.random.default_rng(0), jobs.throughputs.shape, len(jobs)
    split = np.bincount(jobs.regrouped()[1]) > 1
    sizes = [np.ones(count), 10 ** chance.uniform(-3, 0, count)]
    sizes += [np.where(split, 1.0, 1e-3), np.where(split, 1e-3, 1.0)] if split.any() else []
    if jobs.throughputs.size <= LARGE:
        sizes += [np.where(split, 1.0, 0.0), *(chance.random((3, count)) < 1 / 2).astype(float)]
    for size in sizes:
        yield 0.9 * within_capacity(jobs, chance.uniform(0.1, 1, shape) * size[:, None])


@dataclass(frozen=True)
class SumCertificate:
    """Proves a sum: what is maximised as an expression, and the bound that the program's dual values give (`Program.bound`).

    sign: -1 where the policy's objective is the negative of it.
    """

    program: Program
    objective: cp.Expression
    sign: float = 1.0

    @property
    def jobs(self) -> JobClasses:
        return self.program.jobs

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) time fractions."""
        return self.sign * self.program.value(self.objective, fractions)

    def bound(self) -> float:
        """Return a bound on the objective that no valid allocation which keeps the rules can beat."""
        return self.sign * self.program.bound()

    def scale(self, fractions: Floats) -> float:  # noqa: ARG002
        """Return the largest coefficient of the objective."""
        return self.program.scale

    @property
    def scarcity(self) -> Prices:
        """The dual values of capacities and limits."""
        return self.program.scarcity
