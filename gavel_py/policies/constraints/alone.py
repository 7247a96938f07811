"""Conflicts that a job has with itself: what is asked of it cannot hold, whatever the other jobs get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import ConflictError
from gavel_py.optimization.linear_rows import Rules
from gavel_py.problem.problem import AllocationProblem

__all__ = ["check_alone"]

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
