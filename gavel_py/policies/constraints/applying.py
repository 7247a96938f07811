"""Applying constraints to a problem: where jobs may still run, and the rules that their allocation must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.linear_rows import NO_RULES, Asked, Rules, floors_of
from gavel_py.policies.constraints.alone import check_alone
from gavel_py.policies.constraints.base import Constraint, Scope
from gavel_py.policies.constraints.placement import SwitchCost
from gavel_py.policies.constraints.shares import Quota
from gavel_py.problem.problem import AllocationProblem

__all__ = ["constrained", "placed"]


def constrained(problem: AllocationProblem, constraints: Sequence[Constraint]) -> tuple[AllocationProblem, Rules]:
    """Return the problem with jobs kept off the types that constraints rule out, and the rules that remain.

    Raises `InputError` with all that is wrong, such as types that there are not, or more than 100 % guaranteed, and `ConflictError`
    where one job cannot keep what is asked of it, whatever the others get.
    """
    if not constraints:
        return problem, NO_RULES
    scope = Scope(problem)
    InputError.raise_any([fault for each in constraints for fault in each.faults(scope)] + _guaranteed(scope, constraints))
    where = _where(scope, constraints)
    scope.problem = _placed(problem, where)
    asked = tuple(_asked(each, before, scope) for each, before in zip(constraints, where, strict=True))
    rules = Rules(
        rows=tuple(row for each in asked for row in each.rows),
        floors=floors_of([need for each in asked for need in each.needs], scope.problem.fastest),
        switch_cost=sum(each.switch_cost for each in asked),
        asked=asked,
        unplaced=problem,
    )
    check_alone(scope.problem, rules)
    return scope.problem, rules


def placed(problem: AllocationProblem, constraints: Sequence[Constraint]) -> AllocationProblem:
    """Return the problem that `constrained` returns, without the rules that remain, for constraints that it has found right."""
    return _placed(problem, _where(Scope(problem), constraints)) if constraints else problem


def _where(scope: Scope, constraints: Sequence[Constraint]) -> list[Asked]:
    """What each constraint asks of places alone."""
    return [Asked(each.text, each.penalty, places=tuple(each.places(scope))) for each in constraints]


def _asked(constraint: Constraint, before: Asked, scope: Scope) -> Asked:
    cost = constraint.cost if isinstance(constraint, SwitchCost) else 0.0
    return replace(before, rows=tuple(constraint.rows(scope)), needs=tuple(constraint.needs(scope)), switch_cost=cost)


def _guaranteed(scope: Scope, constraints: Sequence[Constraint]) -> list[Fault]:
    """A fault if all guarantees together exceed the GPUs; it would show only once all tenants have jobs."""
    quotas: dict[str, float] = {}
    for each in constraints:
        if isinstance(each, Quota) and each.guaranteed and each.penalty is None:
            quotas[each.tenant] = max(quotas.get(each.tenant, 0.0), each.gpus_of(scope))
    total, there = sum(quotas.values()), float(scope.problem.capacities.sum())
    if total <= there * (1 + 1e-9):
        return []
    named = ", ".join(f"{tenant}: {gpus:g}" for tenant, gpus in quotas.items())
    return [Fault("quotas", "", f"guarantee {total:g} GPUs in all ({named}), and there are {there:g}")]


def _placed(problem: AllocationProblem, asked: Sequence[Asked]) -> AllocationProblem:
    """The problem in which no job may run where its places forbid it; jobs left without any are excluded by name."""
    places = [place for each in asked for place in each.places]
    if not places:
        return problem
    runnable = problem.runnable.copy()
    for place in places:
        runnable[place.rows] &= place.allowed
    names: dict[int, list[str]] = {i: [] for i in np.flatnonzero(problem.runnable.any(axis=1) & ~runnable.any(axis=1)).tolist()}
    for place in places if names else ():
        for i in names.keys() & place.rows.tolist():
            names[i].append(place.name_of(i))
    excluded = {problem.job_ids[i]: f"a constraint forbids it: {'; '.join(found)}" for i, found in names.items()}
    return replace(problem, runnable=runnable, excluded=problem.excluded | excluded)
