"""Why there is no answer: a smallest set of rules that cannot hold together, or jobs that rules leave without any time.

`check_rules` finds an allocation that keeps all rules, or the conflict. `check_everybody_served` names the jobs that the rules
leave nothing, where a policy must give every job something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import cvxpy as cp
import numpy as np

from gavel_py.errors import ConflictError, Fault, InputError
from gavel_py.optimization.formulation.linear_rows import Floor, Place, Rules
from gavel_py.optimization.formulation.matrices import AllocationLP
from gavel_py.optimization.formulation.program import Program
from gavel_py.optimization.job_classes import JobClasses, classes_of
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.optimization.solving.level_search import CapacityFactorLP
from gavel_py.optimization.solving.levels import Chambers
from gavel_py.problem.arrays import Floats, Indices, Mask

Item = TypeVar("Item")

ROUNDING = 1e-9


def check_rules(jobs: JobClasses, solver: LinearSolver) -> Floats:
    """Return (G, K) time fractions of a valid allocation that keeps all rules of these jobs.

    Raises `ConflictError` if there is none, naming some rules that cannot hold together.

    Any one of those named could be left out, and the others of the list would hold. What is asked of a job must be possible for
    the job alone.
    """
    found = _kept_by(jobs, solver)
    if found is None:
        raise ConflictError(_smallest_conflict(jobs), alone=False)
    return found


def _kept_by(jobs: JobClasses, solver: LinearSolver) -> Floats | None:
    """An allocation that keeps all rules, None where GPUs and limits would have to be multiplied for that."""
    chambers = Chambers(jobs)
    needs = np.minimum(jobs.floors, jobs.fastest)
    cells = chambers.cells(needs)
    program = CapacityFactorLP(chambers, cells)
    program.solve_for(cells, solver)
    return chambers.expand(cells, program.times, needs) if program.factor <= 1 + ROUNDING else None


def _smallest_conflict(jobs: JobClasses) -> list[str]:
    """The names of rules that cannot hold together while any of them less can."""
    items = _Items(jobs)
    tight = items.tight()
    conflict = _without_needless(tight if not items.hold(tight) else items.all, items.hold)
    rules, needed = items.rules_of(conflict)
    names = [items.name(item) for item in sorted(conflict)]  # limits, of which there are few, stand before throughputs
    bans = sorted(_bans(jobs, needed), key=lambda ban: ban.name in names)  # those of rules that are named already are left out last
    bans = _without_needless(bans, lambda fewer: _kept_by(_banned(jobs, rules, fewer), LinearSolver()) is not None)
    limits = sum(item < items.num_limits for item in conflict)
    return list(dict.fromkeys([*names[:limits], *(ban.name for ban in bans), *names[limits:]]))


def _without_needless(items: list[Item], hold: Callable[[list[Item]], bool]) -> list[Item]:
    """Leave out items, many at a time at first, as long as those that stay cannot hold."""
    size = max(1, len(items))
    while size:
        start = 0
        while start < len(items):
            fewer = items[:start] + items[start + size :]
            if hold(fewer):
                start += size
            else:
                items = fewer
        size //= 4 if size > 4 else 2
    return items


class _Items:
    """The rules of some jobs as rows of one program, in which each can be left out: first the limits, then one for each class."""

    def __init__(self, jobs: JobClasses) -> None:
        self._jobs = jobs
        self.num_limits = len(jobs.limits[1])
        self._classes = np.flatnonzero(jobs.floors > 0)
        self._solver = LinearSolver()
        self._program = AllocationLP(jobs)
        floors = self._program.floor_matrix
        self._program.compile_factor(floors, np.ones(floors.shape[0]))
        self._solution = self._program.solve(self._solver, "rules")
        self.all = list(range(self.num_limits + len(self._classes)))

    def tight(self) -> list[int]:
        """The rules that matter for the least factor, those of the least weight first; by themselves they conflict."""
        weights = np.concatenate([self._solution.duals[rows] for rows in (self._program.blocks.limits, self._floor_rows)])
        items = np.flatnonzero(weights > ROUNDING)
        return [int(item) for item in items[np.argsort(weights[items], kind="stable")]]

    def hold(self, items: list[int]) -> bool:
        """Say whether these rules alone can hold together."""
        there = np.zeros(self.num_limits + len(self._classes), dtype=bool)
        there[items] = True
        limits = self._program.program.limits.copy()
        limits[self._program.blocks.limits][~there[: self.num_limits]] = np.inf
        limits[self._floor_rows] *= there[self.num_limits :]
        return self._solver.again(limits).value <= 1 + ROUNDING

    def name(self, item: int) -> str:
        """The rule in the user's words."""
        if item < self.num_limits:
            return self._jobs.rules.hard_rows[item].name
        g = int(self._classes[item - self.num_limits])
        return self._jobs.rules.name_of_least(int(self._jobs.rows[g])) + _others(int(self._jobs.counts[g]))

    def rules_of(self, items: list[int]) -> tuple[Rules, Mask]:
        """Return these rules alone, and (G,) the classes that must have time by them."""
        rules, jobs = self._jobs.rules, self._jobs
        rows = tuple(rules.hard_rows[item] for item in items if item < self.num_limits)
        needed = np.zeros(len(jobs), dtype=bool)
        needed[self._classes[[item - self.num_limits for item in items if item >= self.num_limits]]] = True
        floors: tuple[Floor, ...] = ()
        if needed.any() and rules.least is not None:
            least = np.zeros(len(rules.least))
            least[jobs.jobs] = np.where(needed, jobs.floors, 0.0)[jobs.index]
            floors = (Floor(rules.name_of_least, least),)
        for row in rows:
            needed |= (row.costs(jobs.rows, jobs.num_gpus) < 0).any(axis=1)
        return Rules(rows, floors), needed

    @property
    def _floor_rows(self) -> slice:
        return self._program.blocks.own[0]


@dataclass(frozen=True, eq=False)
class _Ban:
    """A place that keeps some equal jobs off types. rows: (M,); allowed: (M, K)."""

    name: str
    rows: Indices
    allowed: Mask


def _bans(jobs: JobClasses, needed: Mask) -> Iterator[_Ban]:
    """All that keeps jobs of these classes off types, class by class."""
    classes = np.full(jobs.problem.num_jobs, -1)
    classes[jobs.jobs] = np.where(needed[jobs.index], jobs.index, -1)
    for place in (place for each in jobs.rules.constraints for place in each.places):
        for g in np.unique(classes[place.rows]).tolist():
            if g >= 0:
                yield _ban(place, classes[place.rows] == g)


def _ban(place: Place, which: Mask) -> _Ban:
    rows = place.rows[which]
    return _Ban(place.name_of(int(rows[0])) + _others(len(rows)), rows, place.allowed[which])


def _banned(jobs: JobClasses, rules: Rules, bans: list[_Ban]) -> JobClasses:
    """The jobs under these rules, with these bans and no others."""
    problem = jobs.rules.unplaced
    assert problem is not None  # noqa: S101
    runnable = problem.runnable.copy()
    for ban in bans:
        runnable[ban.rows] &= ban.allowed
    return classes_of(replace(problem, runnable=runnable), jobs.reader, (), rules, jobs.columns)


def _others(count: int) -> str:
    return f" (and {count - 1} like it)" if count > 1 else ""


NOTHING = 1e-9
"""A part of all GPUs that is as good as none: rules are kept with about this tolerance."""

MOST_NAMED = 5


def check_everybody_served(jobs: JobClasses, fractions: Floats, asker: str) -> None:
    """Raise `InputError` naming jobs, of those with next to no time in (G, K) fractions, to which the rules leave none at all.

    asker: the policy, at whose best level everybody has what it needs; without any time there is no such level.
    """
    gpus = jobs.counts * jobs.num_gpus / jobs.capacities.sum()
    suspects = np.flatnonzero(gpus * fractions.sum(axis=1) <= NOTHING)
    suspects = suspects[np.argsort(jobs.rows[suspects])]
    faults: list[Fault] = []
    for g in suspects.tolist():
        most, rules = _most_time(jobs, g)
        if gpus[g] * most <= NOTHING:
            because = f" beside {' and '.join(rules)}" if rules else ""
            text = (
                f"is left no time{because}, and {asker} needs some for every job: ask for less, make it soft, or leave the job out"
            )
            faults.append(Fault(f"job {jobs.example(g)!r}", "", text))
        if len(faults) == MOST_NAMED:
            break
    InputError.raise_any(faults)


def _most_time(jobs: JobClasses, g: int) -> tuple[float, list[str]]:
    """The most time that jobs of one class can have, and the names of the limits that keep it from being more."""
    program = Program(jobs)
    program.compile(cp.Maximize(program.time[g]), program.rules)
    solution = program.solve(LinearSolver(), "time")
    duals = solution.duals[program.blocks.limits]
    names = [row.name for row, dual in zip(jobs.rules.hard_rows, duals, strict=True) if dual > NOTHING]
    return float(program.fractions_of(solution)[g].sum()), names
