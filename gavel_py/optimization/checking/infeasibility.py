"""Infeasibility diagnosis: an irreducible set of rules that contradict each other (IIS), or jobs that get no time under the rules.

`check_rules` returns an allocation that keeps all rules or raises their conflict. `check_all_served` and `check_finite` name the
jobs that can get no time under the rules, for a policy that must give some to every job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gavel_py.errors import ConflictError, Fault, InputError
from gavel_py.optimization.checking.certificates import within_capacity
from gavel_py.optimization.formulation.linear_rows import Floor, Rules
from gavel_py.optimization.formulation.matrices import AllocationLP
from gavel_py.optimization.job_classes import JobClasses, classes_of
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.optimization.solving.level_search import CapacityFactorLP
from gavel_py.optimization.solving.levels import Chambers
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import INTERIOR_TOLERANCE, MET, SOLVER_TOLERANCE

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program

Item = TypeVar("Item")


def check_rules(jobs: JobClasses, solver: LinearSolver) -> Floats:
    """Return (G, K) time fractions of a valid allocation that keeps all rules of these jobs.

    Raises `ConflictError` if there is none. The error names rules that cannot all hold; without any one of them, the others can.
    Each rule on a single job must be feasible for that job alone.
    """
    found, factor = _kept_by(jobs, solver)
    if found is None:
        raise ConflictError(_smallest_conflict(jobs), alone=False, factor=factor)
    return found


def _kept_by(jobs: JobClasses, solver: LinearSolver) -> tuple[Floats | None, float]:
    """Return an allocation that keeps all rules, and the factor of GPUs and limits that it needs; None if that is above 1."""
    chambers = Chambers(jobs)
    needs = np.minimum(jobs.floors, jobs.fastest)
    cells = chambers.cells(needs)
    program = CapacityFactorLP(chambers, cells)
    program.solve_for(cells, solver, "rules")  # a basis of its own: that of a level is far from one without needs
    factor = program.factor
    return chambers.expand(cells, program.times, needs) if factor <= 1 + MET else None, factor


def _smallest_conflict(jobs: JobClasses) -> list[str]:
    """Return the names of rules that cannot all hold, but can without any one of them."""
    items = _Items(jobs)
    tight = items.tight()
    conflict = irreducible(tight if not items.hold(tight) else items.all, items.hold)
    rules, needed = items.rules_of(conflict)
    names = [items.name(item) for item in sorted(conflict)]  # limits come before throughputs
    # Rules with names that are already in the list are dropped last.
    restrictions = sorted(_restrictions(jobs, needed), key=lambda each: each.name in names)
    restrictions = irreducible(restrictions, lambda fewer: _kept_by(_restricted(jobs, rules, fewer), LinearSolver())[0] is not None)
    limits = sum(item < items.num_limits for item in conflict)
    return list(dict.fromkeys([*names[:limits], *(each.name for each in restrictions), *names[limits:]]))


def irreducible(items: list[Item], hold: Callable[[list[Item]], bool]) -> list[Item]:
    """Return items that cannot all hold, but can without any one of them. Many items at a time are removed at first."""
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
    """The rules of some jobs as rows of one program that can be disabled: first the limits, then one floor for each class."""

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
        """Return the rules with dual values, the smallest first; in exact arithmetic, these rules alone conflict."""
        weights = np.concatenate([self._solution.duals[rows] for rows in (self._program.blocks.limits, self._floor_rows)])
        items = np.flatnonzero(weights > SOLVER_TOLERANCE)
        return [int(item) for item in items[np.argsort(weights[items], kind="stable")]]

    def hold(self, items: list[int]) -> bool:
        """Return whether these rules alone can hold together."""
        there = np.zeros(self.num_limits + len(self._classes), dtype=bool)
        there[items] = True
        limits = self._program.program.limits.copy()
        limits[self._program.blocks.limits][~there[: self.num_limits]] = np.inf
        limits[self._floor_rows] *= there[self.num_limits :]
        return self._solver.again(limits).value <= 1 + MET

    def name(self, item: int) -> str:
        """Return the rule for messages."""
        if item < self.num_limits:
            return self._jobs.rules.hard_rows[item].name
        g = int(self._classes[item - self.num_limits])
        return self._jobs.rules.name_of_least(int(self._jobs.rows[g])) + _others(int(self._jobs.counts[g]))

    def rules_of(self, items: list[int]) -> tuple[Rules, Mask]:
        """Return these rules alone, and (G,) the classes that need time to keep them."""
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
class _Restriction:
    """A restriction of the types of equal jobs (`Place`). rows: (M,); allowed: (M, K)."""

    name: str
    rows: Indices
    allowed: Mask


def _restrictions(jobs: JobClasses, needed: Mask) -> Iterator[_Restriction]:
    """Yield all restrictions of the types of jobs in these classes, class by class."""
    classes = np.full(jobs.problem.num_jobs, -1)
    classes[jobs.jobs] = np.where(needed[jobs.index], jobs.index, -1)
    for place in (place for each in jobs.rules.constraints for place in each.places):
        for g in np.unique(classes[place.rows]).tolist():
            if g >= 0:
                which = classes[place.rows] == g
                rows = place.rows[which]
                yield _Restriction(place.name_of(int(rows[0])) + _others(len(rows)), rows, place.allowed[which])


def _restricted(jobs: JobClasses, rules: Rules, restrictions: list[_Restriction]) -> JobClasses:
    """Return the jobs under these rules and restrictions only."""
    problem = jobs.rules.unplaced
    assert problem is not None  # noqa: S101
    runnable = problem.runnable.copy()
    for each in restrictions:
        runnable[each.rows] &= each.allowed
    return classes_of(replace(problem, runnable=runnable), jobs.policy_name, (), rules, jobs.columns)


def _others(count: int) -> str:
    return f" (and {count - 1} like it)" if count > 1 else ""


MOST_NAMED = 5


def check_all_served(jobs: JobClasses, fractions: Floats, policy: str) -> None:
    """Raise `InputError` with the jobs that can get no time under the rules, among those with almost none in (G, K) fractions.

    policy: the name of a policy with an infinitely bad objective for a job without time.
    """
    idle = unserved(jobs, fractions)
    faults: list[Fault] = []
    for g in idle[np.argsort(jobs.rows[idle])][:MOST_NAMED].tolist():
        rules = _most_time(jobs, np.array([g]))[1]
        because = f" beside {_listed(rules)}" if rules else ""
        text = f"can get no time{because}, but {policy} needs some for every job: require less, make it soft, or exclude the job"
        faults.append(Fault(f"job {jobs.example(g)!r}", "", text))
    InputError.raise_any(faults)


def check_finite(program: Program, objective: cp.Expression, fractions: Floats, policy: str) -> None:
    """Raise `InputError` as `check_all_served` if an objective to be maximised is infinite for the jobs that can get no time.

    Only a curved objective can be, such as a logarithm. Its own variables, if any, decide as well, so that nothing is known then.
    """
    jobs = program.jobs
    if objective.is_pwl() or program.own_variables(objective) or not jobs.rules.can_conflict:
        return
    some = np.where(fractions.sum(axis=1, keepdims=True) > INTERIOR_TOLERANCE, fractions, 0.0)
    others = within_capacity(jobs, np.where(jobs.runnable, 1.0, 0.0))
    others[unserved(jobs, some)] = 0.0
    with np.errstate(all="ignore"):
        value = program.value(objective, others)
    if np.isneginf(value):
        check_all_served(jobs, some, policy)


def _listed(names: list[str]) -> str:
    """Return names joined by "and", the number of those beyond a few instead of their names."""
    more = len(names) - MOST_NAMED
    return " and ".join(names if more <= 0 else [*names[:MOST_NAMED], f"{more} more"])


def unserved(jobs: JobClasses, fractions: Floats) -> Indices:
    """Return the classes that can get no time under the rules, among those with almost none in (G, K) fractions."""
    gpus = jobs.counts * jobs.num_gpus / jobs.capacities.sum()
    suspects = np.flatnonzero(gpus * fractions.sum(axis=1) <= SOLVER_TOLERANCE)
    while len(suspects):
        served = gpus[suspects] * _most_time(jobs, suspects)[0][suspects] > SOLVER_TOLERANCE
        if not served.any():
            break
        suspects = suspects[~served]
    return suspects


def _most_time(jobs: JobClasses, classes: Indices) -> tuple[Floats, list[str]]:
    """Return (G,) times with the largest sum over some classes, and the names of the rules that bind it.

    Each of several classes may have a part of its time only, so that as many as possible get some.
    """
    program = AllocationLP(jobs)
    counts = np.isin(program.rows, classes)
    program.compile_linear(0.0, np.where(counts, program.sizes, 0.0))
    program.program = replace(program.program, upper=np.where(counts, program.tops / len(classes), program.tops))
    solution = program.solve(LinearSolver(), "time")
    duals = solution.duals[program.blocks.limits]
    names = [row.name for row, dual in zip(jobs.rules.hard_rows, duals, strict=True) if dual > SOLVER_TOLERANCE]
    required = np.flatnonzero(jobs.floors > 0)[solution.duals[program.blocks.own[0]] > SOLVER_TOLERANCE]
    names += [jobs.rules.name_of_least(int(jobs.rows[g])) + _others(int(jobs.counts[g])) for g in required.tolist()]
    times: Floats = program.fractions_of(solution).sum(axis=1)
    return times, names
