"""Lexicographic composition of policies: one objective after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gavel_py.errors import InputError, refuse, wrong_types
from gavel_py.optimization.checking.certificates import Certificate, Prices, Stage, Stages
from gavel_py.optimization.formulation.linear_rows import NO_RULES, ObjectiveRow, Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.free_times import FreeTimes
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimitReached
from gavel_py.policies.base import Decision, Policy, option
from gavel_py.policies.sums import SumPolicy
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import PROOF_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.problem.problem import AllocationProblem
    from gavel_py.problem.tenants import TenantTree


WHERE = "policy then"
"""The composition in messages."""


@dataclass(frozen=True, kw_only=True)
class Then(Policy):
    """Lexicographic stages: optimise `first`, then `second` among the allocations that preserve the first objective.

    The second objective may lower the first by a part of `tolerance`: of its value, or of a sum's largest coefficient if that is
    larger. Both optima are proven (`Proof.stages`), and the reported value is that of the first. Then(Then(a, b), c) has three
    stages. Constraints of either policy hold for both; soft constraints and the cost of change count in the last objective.

    Args:
        first: A policy with an objective.
        second: A policy with an objective.
        tolerance: The relative loss of the first objective that the second may cause, above 0 and below 1.

    Raises:
        InputError: A policy has no objective, the tolerance is out of range, or the first policy has soft constraints.
    """

    first: Policy
    second: Policy
    tolerance: float = option(PROOF_TOLERANCE, "relative loss of the first objective that is allowed in favour of the second")

    def __init__(self, first: Policy, second: Policy, *, tolerance: float = PROOF_TOLERANCE, **options: Any) -> None:
        own = {"first": first, "second": second, "tolerance": tolerance, "agnostic": False, "reference": None, "constraints": ()}
        for name, value in (own | options).items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        parts = (self.first, self.second)
        InputError.raise_any(wrong_types(WHERE, "", parts, Policy, "needs two policies"))
        is_part = isinstance(self.tolerance, int | float) and 0 < self.tolerance < 1
        from gavel_py.policies.constraints.single_jobs import SwitchCost

        weighed = any(each.penalty is not None or isinstance(each, SwitchCost) for each in self.first.constraints)
        text = "weighs soft constraints and the cost of change in its last objective: pass them to the second policy"
        refuse(
            WHERE,
            *((p.empty_objective is None, "", f"needs policies with an objective, but {p.name} has none") for p in parts),
            (not is_part, "", f"needs a tolerance greater than 0 and below 1, found {self.tolerance!r}"),
            (weighed, "", f"{text}, not to {self.first.name}"),
        )
        super().__post_init__()
        constraints = (*self.constraints, *self.first.constraints, *self.second.constraints)
        object.__setattr__(self, "constraints", tuple(dict.fromkeys(constraints)))

    @property
    def direction(self) -> str:
        """The direction of the first objective: "max" or "min"."""
        return str(getattr(self.first, "direction", "max"))

    @property
    def equates_speeds(self) -> bool:
        """Whether one of the policies does; the other must see the same speeds, so that it preserves the same levels."""
        return self.first.equates_speeds or self.second.equates_speeds

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.first.reads, *self.second.reads)))

    @property
    def is_agnostic(self) -> bool:
        return self.agnostic or (self.first.is_agnostic and self.second.is_agnostic)

    @property
    def needs_isolated_share(self) -> bool:
        return self.first.needs_isolated_share or self.second.needs_isolated_share

    @property
    def adds_raw_throughputs(self) -> bool:
        return self.first.adds_raw_throughputs or self.second.adds_raw_throughputs

    @property
    def tenant_tree(self) -> TenantTree:
        """The tree of the first policy that has one."""
        return self.first.tenant_tree if self.first.tenant_tree.tenants else self.second.tenant_tree

    @property
    def counts_gangs_whole(self) -> bool:
        return self.first.counts_gangs_whole or self.second.counts_gangs_whole

    @property
    def label(self) -> str:
        tolerance = f"; tolerance={self.tolerance:g}" if self.tolerance != PROOF_TOLERANCE else ""
        return f"then({self.first.label}; {self.second.label}{tolerance})"

    @property
    def changed_options(self) -> dict[str, Any]:
        """Both policies as text, and the tolerance."""
        return {"first": self.first.label, "second": self.second.label, "tolerance": self.tolerance}

    def check(self, problem: AllocationProblem) -> None:
        for part in (self.first, self.second):
            part.check(problem)

    def check_rules(self, jobs: JobClasses, solver: LinearSolver) -> Floats | None:
        found = super().check_rules(jobs, solver)
        for part in (self.first, self.second):
            if part.agnostic:
                part.check_rules(jobs, solver)
        return found

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        first, kept = self._decide_first(jobs, solver)
        try:
            second = self.second.decide(self._after(jobs, kept), solver)
        except TimeLimitReached:
            assert first.certificate is not None  # noqa: S101
            raise TimeLimitReached(None, (first.time_fractions,), (first.certificate.scarcity,)) from None
        assert first.certificate is not None  # noqa: S101
        assert second.certificate is not None  # noqa: S101
        stages = (*_stages(self.first, first, self.tolerance), *_stages(self.second, second, 0.0))
        main, whole = (first.certificate.main, first.certificate.whole) if isinstance(first.certificate, Stages) else (0, None)
        algorithm, notes = second.algorithm or first.algorithm, first.notes + second.notes
        certificate = _Lexicographic(stages, main, whole, second.certificate, kept)
        return Decision(second.time_fractions, certificate, first.shadow_prices, algorithm, notes)

    def _decide_first(self, jobs: JobClasses, solver: LinearSolver) -> tuple[Decision, Rules]:
        """Return the decision of the first policy, and the rules that preserve its objective, in the view of the second."""
        _check_kinks("the objective before it", self.first, jobs.rules)
        some = without_penalties(jobs)
        first = self.first.decide(self.first.view(some), solver)
        kept = self.first.keep(self.first.view(some), first, self.tolerance)
        _check_kinks(f"the objective of {self.first.name}", self.second, jobs.rules.also(kept))
        is_mixed = kept.floors and len(_views(self.first) | _views(self.second)) > 1
        text = "needs policies that are either both agnostic or both not"
        if self.is_agnostic:
            text = f"cannot preserve the result of {self.first.name} in a sum of agnostic policies; write it as one policy"
        refuse(WHERE, (is_mixed, "", text))
        return first, _translated(kept, jobs, _speeds(self.first, jobs, last=True), _speeds(self.second, jobs))

    def final_stage(self, jobs: JobClasses, solver: LinearSolver) -> tuple[Policy, JobClasses]:
        _, kept = self._decide_first(jobs, solver)
        return self.second.final_stage(self._after(jobs, kept), solver)

    def guess(self, jobs: JobClasses) -> Floats | None:
        return self.first.guess(self.first.view(without_penalties(jobs)))

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        return self.first.best_of(self.first.view(without_penalties(jobs)), candidates, prices)

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        in_turn = decision.certificate
        assert isinstance(in_turn, _Lexicographic)  # noqa: S101
        # The first objective keeps its row: if it could fall further, the second could exceed its bound.
        last = Decision(decision.time_fractions, in_turn.last)
        kept = _translated(in_turn.kept, jobs, _speeds(self.second, jobs), _speeds(self.second, jobs, last=True))
        return kept.also(self.second.keep(self.second.view(jobs), last, tolerance))

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes | None:
        in_turn = decision.certificate
        if not isinstance(in_turn, _Lexicographic):  # the time limit passed before the second policy decided
            return self.first.leaves_free(self.first.view(without_penalties(jobs)), decision)
        last = Decision(decision.time_fractions, in_turn.last)
        free = self.second.leaves_free(self._after(jobs, in_turn.kept), last)
        if free is None:
            return None
        # The decision may preserve more of the first objective than the tolerance requires.
        times = jobs.counts[:, None] * decision.time_fractions
        gains = (row for row in in_turn.kept.rows if isinstance(row, ObjectiveRow))
        kept = [replace(row, least=max(row.least, float((row.table * times).sum()))) for row in gains]
        return replace(free, rows=(*kept, *free.rows))

    def _after(self, jobs: JobClasses, kept: Rules) -> JobClasses:
        """Return the jobs as the second policy sees them, with the rows that preserve the first objective."""
        rules = _translated(jobs.rules, jobs, _speeds(self.first, jobs), _speeds(self.second, jobs))
        return self.second.view(jobs).with_rules(rules.also(kept))


@dataclass(frozen=True)
class _Lexicographic(Stages):
    """The stages of two policies. last: the certificate of the second alone; kept: the rules that preserve the first objective."""

    last: Certificate | None = None
    kept: Rules = NO_RULES


def without_penalties(jobs: JobClasses) -> JobClasses:
    """Return the jobs with hard rules only; of several objectives, only the last one counts the penalties of soft rules."""
    rules = jobs.rules
    if not rules.has_penalties:
        return jobs
    floors = tuple(floor for floor in rules.floors if floor.penalty is None)
    return replace(jobs, rules=replace(rules, rows=rules.hard_rows, floors=floors, switch_cost=0.0))


def _check_kinks(before: str, policy: Policy, rules: Rules) -> None:
    """Raise `InputError` if a policy other than a sum follows a piecewise linear objective, which is not a single row."""
    text = f"{before} is piecewise linear, so only a sum policy can follow it, not {policy.name}"
    refuse(WHERE, (rules.kept and not isinstance(policy, SumPolicy | Then), "", text))


def _views(policy: Policy) -> set[bool]:
    """Return the set of values of `agnostic` in the policy or its parts."""
    return _views(policy.first) | _views(policy.second) if isinstance(policy, Then) else {policy.agnostic}


def _speeds(policy: Policy, jobs: JobClasses, *, last: bool = False) -> Floats | None:
    """Return (G,) the throughput on any type in the view of an agnostic policy, None if it is not agnostic.

    For a composition, the view of its first or last policy.
    """
    if isinstance(policy, Then):
        return _speeds(policy.second if last else policy.first, jobs, last=last)
    return policy.view(jobs).throughputs[:, 0] if policy.agnostic else None


def _translated(rules: Rules, jobs: JobClasses, before: Floats | None, after: Floats | None) -> Rules:
    """Return the rules with lower bounds converted between the views of two agnostic policies, so that they bound the same time."""
    if not rules.floors or before is None or after is None:
        return rules
    factor = jobs.by_job(after / before)
    return replace(rules, floors=tuple(replace(floor, throughputs=floor.throughputs * factor) for floor in rules.floors))


def _stages(policy: Policy, decision: Decision, tolerance: float) -> tuple[Stage, ...]:
    """Return the stages that prove a decision, with the relative loss that later stages may cause added to their tolerances."""
    certificate = decision.certificate
    assert certificate is not None  # noqa: S101
    parts = certificate.stages if isinstance(certificate, Stages) else (Stage(policy.name, certificate),)
    return tuple(Stage(part.name, part.certificate, part.tolerance + tolerance) for part in parts)
