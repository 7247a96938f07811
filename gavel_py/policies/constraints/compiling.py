"""Conflicts that a job has with itself: what is asked of it cannot hold, whatever the other jobs get.

Applying constraints to a problem: where jobs may still run, and the rules that their allocation must keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import ConflictError, Fault, InputError
from gavel_py.optimization.linear_rows import NO_RULES, Asked, Rules, floors_of
from gavel_py.policies.constraints.base import Constraint, Scope
from gavel_py.policies.constraints.placement import SwitchCost
from gavel_py.policies.constraints.shares import Quota
from gavel_py.problem.problem import AllocationProblem

__all__ = ["check_alone", "constrained", "placed"]

ROUNDING = 1e-9


@dataclass(frozen=True)
class _Ban:
    """What keeps one job to (K,) types: the rule's name, whether it insists that the job runs, and whether it is a shared limit."""

    name: str
    allowed: NDArray[np.bool_]
    insists: bool
    shared: bool


def check_alone(problem: AllocationProblem, rules: Rules) -> None:
    """Raise `ConflictError` where a job can nowhere have the throughput that it must have, or is left without a type.

    problem: with jobs kept to their places. If several rules of a job are at odds, those of the first such job are named.
    """
    before, least = rules.unplaced, rules.least
    if before is None:
        return
    slow = np.flatnonzero(least > problem.fastest * (1 + ROUNDING)).tolist() if least is not None else []
    lost = np.flatnonzero(before.runnable.any(axis=1) & ~problem.runnable.any(axis=1)).tolist()
    bans = _bans(rules, {*slow, *lost})
    own = {i: [ban for ban in bans[i] if not ban.shared] for i in lost}
    insisted = [i for i in lost if any(ban.insists for ban in own[i]) and not _fastest(before, i, own[i])]
    conflicts = [_nowhere(before, i, own[i]) for i in insisted]
    conflicts += [_too_slow(before, rules, i, bans.get(i, [])) for i in slow if i not in insisted]
    alone = [conflict[0] for conflict in conflicts if len(conflict) == 1]
    if alone:
        raise ConflictError(alone, alone=True)
    if conflicts:
        raise ConflictError(conflicts[0], alone=False)


def _bans(rules: Rules, jobs: set[int]) -> dict[int, list[_Ban]]:
    """All that keeps each of these jobs off types."""
    found: dict[int, list[_Ban]] = {}
    for place in (place for each in rules.asked for place in each.places) if jobs else ():
        for row, allowed in zip(place.rows.tolist(), place.allowed, strict=True):
            if row in jobs:
                found.setdefault(row, []).append(_Ban(place.name_of(row), allowed, place.insists, place.shared))
    return found


def _too_slow(problem: AllocationProblem, rules: Rules, i: int, bans: list[_Ban]) -> list[str]:
    """The rules by which a job cannot have its least throughput, as few as will do; one alone says why."""
    assert rules.least is not None  # noqa: S101
    name, least = rules.name_of_least(i), float(rules.least[i])
    own = [ban for ban in bans if ban.name == name]

    def conflicts(others: Sequence[_Ban]) -> bool:
        return _fastest(problem, i, [*own, *others]) * (1 + ROUNDING) < least

    if not conflicts([]):
        return [*(ban.name for ban in _fewest([ban for ban in bans if ban.name != name], conflicts)), name]
    if np.isinf(least):
        return [f"{name}: the job is late by that much already"]
    fastest = _fastest(problem, i, own)
    if not fastest:
        return [f"{name}: the job gets no time, {problem.excluded[problem.job_ids[i]]}"]
    return [f"{name}: it asks for {least:.6g} steps/s, and all of the time on its fastest type gives {fastest:.6g}"]


def _nowhere(problem: AllocationProblem, i: int, bans: list[_Ban]) -> list[str]:
    """The rules that leave a job no type though one of them insists on some, as few as will do; one alone says why."""
    return min((_nowhere_with(problem, i, bans, ban) for ban in bans if ban.insists), key=len)


def _nowhere_with(problem: AllocationProblem, i: int, bans: list[_Ban], insists: _Ban) -> list[str]:
    def conflicts(others: Sequence[_Ban]) -> bool:
        return not _fastest(problem, i, [insists, *others])

    if conflicts([]):
        where = ", ".join(np.array(problem.accelerator_types)[problem.runnable[i]])
        return [f"{insists.name}: the job can run on {where} only"]
    return [*(ban.name for ban in _fewest([ban for ban in bans if ban is not insists], conflicts)), insists.name]


def _fastest(problem: AllocationProblem, i: int, bans: Iterable[_Ban]) -> float:
    """The job's throughput on its fastest type that is left."""
    left = np.logical_and.reduce([problem.runnable[i], *(ban.allowed for ban in bans)])
    return float(np.where(left, problem.throughputs[i], 0.0).max())


def _fewest(bans: list[_Ban], conflicts: Callable[[Sequence[_Ban]], bool]) -> list[_Ban]:
    """Leave out what is not needed for a conflict."""
    for ban in list(bans):
        fewer = [other for other in bans if other is not ban]
        if conflicts(fewer):
            bans = fewer
    return bans


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
