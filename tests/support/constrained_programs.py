"""Constraints as one dense linear program per problem, by scipy: one row or variable per job, written from their formulas.

Of `gavel_py.policies.constraints`, only the records and their fields are used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

import gavel_py as gp
from tests.support.instances import TIGHT, Floats, valid_rows

__all__ = ["Wishes", "best_level", "best_sum", "excess", "wishes"]

Mask = NDArray[np.bool_]


@dataclass
class Ban:
    """The types on which a rule allows a job to run. shared: the rule is a limit of 0 on several jobs."""

    name: str
    job: int
    types: Mask
    shared: bool = False


@dataclass
class Row:
    """Σ a_ij X_ij <= most; price: penalty per unit of violation, None for a hard limit."""

    name: str
    table: Floats
    most: float
    price: float | None = None

    @property
    def unit(self) -> float:
        return abs(self.most) or float(np.abs(self.table).max()) or 1.0


@dataclass
class Wishes:
    """The rules of constraints. insisting: rules that require a job to run, as (name, job)."""

    problem: gp.AllocationProblem
    bans: list[Ban] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    insisting: list[tuple[str, int]] = field(default_factory=list)
    switch_cost: float = 0.0

    def allowed(self, names: Collection[str] | None = None, *, shared: bool = True) -> Mask:
        """Return (N, K) where jobs may run by all rules, or by those named."""
        allowed = self.problem.runnable.copy()
        for ban in self.bans:
            if (names is None or ban.name in names) and (shared or not ban.shared):
                allowed[ban.job] &= ban.types
        return allowed

    def contradicts(self, names: Collection[str] | None = None) -> bool:
        """Return True if a job that must run has no type left."""
        able, allowed = self.problem.runnable.any(axis=1), self.allowed(names, shared=False).any(axis=1)
        return any(able[i] and not allowed[i] for name, i in self.insisting if names is None or name in names)

    def at_most(self, name: str, table: Floats, most: float, penalty: float | None, asked_for: float) -> None:
        if most == 0 and penalty is None:
            jobs = np.flatnonzero(table.any(axis=1)).tolist()
            self.bans += [Ban(name, i, table[i] == 0, shared=True) for i in jobs]
        else:
            self.rows.append(Row(name, table, most, None if penalty is None else penalty / (asked_for or 1.0)))

    def at_least(self, name: str, table: Floats, least: float, penalty: float | None) -> None:
        self.rows.append(Row(name, -table, -least, None if penalty is None else penalty / least))


def wishes(problem: gp.AllocationProblem, constraints: Sequence[gp.Constraint]) -> Wishes:
    """Read the constraints: first exclusions, then upper limits, then the rest, which depends on where jobs can run."""
    asked = Wishes(problem)
    for phase in (WHERE, AT_MOST, AT_LEAST):
        for each in constraints:
            phase.get(type(each), _nothing)(asked, each)
    return asked


def _nothing(asked: Wishes, each: gp.Constraint) -> None:
    pass


def _row_of(problem: gp.AllocationProblem, job: str) -> list[int]:
    return [i for i, name in enumerate(problem.job_ids) if name == job]


def _gpus(problem: gp.AllocationProblem, jobs: Sequence[bool] | Mask, accelerator: str | None = None) -> Floats:
    """Return (N, K) the GPUs of these jobs on these types, per unit of time fraction."""
    there = [accelerator in (None, name) for name in problem.accelerator_types]
    table: Floats = problem.num_gpus[:, None] * np.array(jobs, dtype=float)[:, None] * np.array(there, dtype=float)
    return table


def _only(problem: gp.AllocationProblem, i: int, values: Floats) -> Floats:
    table = np.zeros(problem.throughputs.shape)
    table[i] = values
    return table


def _pin(asked: Wishes, each: gp.Pin) -> None:
    for i in _row_of(asked.problem, each.job):
        types = np.array([name in each.accelerators for name in asked.problem.accelerator_types])
        asked.bans.append(Ban(each.text, i, types))
        asked.insisting.append((each.text, i))


def _forbid(asked: Wishes, each: gp.Forbid) -> None:
    for i in _row_of(asked.problem, each.job):
        types = [bool(each.accelerators) and name not in each.accelerators for name in asked.problem.accelerator_types]
        asked.bans.append(Ban(each.text, i, np.array(types)))


def _running(asked: Wishes, each: gp.KeepRunning) -> list[tuple[str, int, int]]:
    problem = asked.problem
    running = [(i, int(j)) for i, j in enumerate(problem.running_on) if j >= 0 and problem.runnable[i, j]]
    names = ((f"no preemption of running job {problem.job_ids[i]!r}", i, j) for i, j in running)
    return [(name, i, j) for name, i, j in names if each.jobs is None or problem.job_ids[i] in each.jobs]


def _only_there(asked: Wishes, each: gp.KeepRunning) -> None:
    for name, i, j in _running(asked, each):
        asked.bans.append(Ban(name, i, np.arange(len(asked.problem.capacities)) == j))
        asked.insisting.append((name, i))


def _all_the_time(asked: Wishes, each: gp.KeepRunning) -> None:
    for name, i, j in _running(asked, each):
        asked.at_least(name, _only(asked.problem, i, np.eye(len(asked.problem.capacities))[j]), 1.0, None)


def _has_no_say(asked: Wishes, i: int, each: gp.MinThroughput | gp.Deadline) -> bool:
    """Return True if job i gets no time in any case, which is not a conflict."""
    return not asked.allowed()[i].any() and (each.penalty is not None or (isinstance(each, gp.Deadline) and each.job is None))


def _min_throughput(asked: Wishes, each: gp.MinThroughput) -> None:
    for i in _row_of(asked.problem, each.job):
        if not _has_no_say(asked, i, each):
            asked.at_least(each.text, _only(asked.problem, i, asked.problem.throughputs[i]), each.rate, each.penalty)


def _deadline(asked: Wishes, each: gp.Deadline) -> None:
    problem = asked.problem
    for i in range(problem.num_jobs) if each.job is None else _row_of(problem, each.job):
        seconds = problem.deadlines_seconds[i] if each.seconds is None else each.seconds
        if np.isnan(seconds) or _has_no_say(asked, i, each):
            continue
        when = f"in {seconds:g} s" if seconds > 0 else f"which passed {-seconds:g} s ago"
        name = f"the deadline of job {problem.job_ids[i]!r} {when}"
        rate = problem.steps_remaining[i] / seconds if seconds > 0 else np.inf
        if np.isinf(rate) and each.penalty is not None:  # missed altogether, whatever the job gets
            asked.at_least(name, np.zeros(problem.throughputs.shape), 1.0, each.penalty)
            continue
        rate = min(rate, 1e9 * max(1.0, problem.throughputs[i].max()))
        asked.at_least(name, _only(problem, i, problem.throughputs[i]), rate, each.penalty)


def _cost_budget(asked: Wishes, each: gp.CostBudget) -> None:
    prices = np.nan_to_num(asked.problem.prices_per_hour)
    asked.at_most(each.text, asked.problem.num_gpus[:, None] * prices, each.per_hour, each.penalty, each.per_hour)


def _max_gpus(asked: Wishes, each: gp.MaxGpus) -> None:
    problem = asked.problem
    jobs = [each.tenant in (None, t) and each.job in (None, j) for t, j in zip(problem.tenants, problem.job_ids, strict=True)]
    asked.at_most(each.text, _gpus(problem, jobs, each.accelerator), each.gpus, each.penalty, each.gpus)


def _reserve(asked: Wishes, each: gp.Reserve) -> None:
    problem = asked.problem
    others = [
        tenant not in each.reserved_for and job not in each.reserved_for and (each.min_gang is None or gang < each.min_gang)
        for tenant, job, gang in zip(problem.tenants, problem.job_ids, problem.num_gpus, strict=True)
    ]
    there = float(problem.capacities[problem.accelerator_types.index(each.accelerator)])
    asked.at_most(each.text, _gpus(problem, others, each.accelerator), there - each.gpus, each.penalty, each.gpus)


def _quota_of(problem: gp.AllocationProblem, each: gp.Quota) -> tuple[Mask, float]:
    theirs = np.array([tenant == each.tenant for tenant in problem.tenants], dtype=bool)
    return theirs, float(each.gpus if each.gpus is not None else (each.share or 0.0) * problem.capacities.sum())


def _not_more(asked: Wishes, each: gp.Quota) -> None:
    theirs, quota = _quota_of(asked.problem, each)
    if not each.borrowable:
        asked.at_most(each.text, _gpus(asked.problem, theirs), quota, each.penalty, quota)


def _not_less(asked: Wishes, each: gp.Quota) -> None:
    problem = asked.problem
    theirs, quota = _quota_of(problem, each)
    table = _gpus(problem, theirs)
    rows, limits = valid_rows(problem)
    free = (asked.allowed() & theirs[:, None]).ravel()
    alone = linprog(-table.ravel(), rows, limits, bounds=[(0, float(runs)) for runs in free], method="highs", options=TIGHT)
    if each.guaranteed and min(quota, -alone.fun) > 0:
        asked.at_least(each.text, table, min(quota, -alone.fun), each.penalty)


def _switch_cost(asked: Wishes, each: gp.SwitchCost) -> None:
    asked.switch_cost += each.cost


Readers = dict[type, Callable[[Wishes, Any], None]]
WHERE: Readers = {gp.Pin: _pin, gp.Forbid: _forbid, gp.KeepRunning: _only_there}
AT_MOST: Readers = {gp.CostBudget: _cost_budget, gp.MaxGpus: _max_gpus, gp.Quota: _not_more, gp.Reserve: _reserve}
AT_LEAST: Readers = {
    gp.KeepRunning: _all_the_time,
    gp.MinThroughput: _min_throughput,
    gp.Deadline: _deadline,
    gp.Quota: _not_less,
    gp.SwitchCost: _switch_cost,
}


class Program:
    """max Σ costs·z, the first N·K of the variables z being X; rows are added one by one."""

    def __init__(self, problem: gp.AllocationProblem, allowed: Mask) -> None:
        self.shape = problem.throughputs.shape
        self.costs = [0.0] * allowed.size
        self.bounds: list[tuple[float | None, float | None]] = [(0.0, float(runs)) for runs in allowed.ravel()]
        self.rows: list[dict[int, float]] = []
        self.most: list[float] = []
        rows, limits = valid_rows(problem)
        for row, limit in zip(rows, limits, strict=True):
            self.row(row, float(limit))

    def variable(self, cost: float, least: float | None = 0.0) -> int:
        self.costs.append(cost)
        self.bounds.append((least, None))
        return len(self.costs) - 1

    def row(self, table: Floats, most: float, more: dict[int, float] | None = None) -> None:
        """Σ a_ij X_ij + Σ (more) <= most."""
        flat = table.ravel()
        self.rows.append({int(at): float(flat[at]) for at in np.flatnonzero(flat)} | (more or {}))
        self.most.append(most)

    def best(self) -> float:
        table = np.zeros((len(self.rows), len(self.costs)))
        for r, row in enumerate(self.rows):
            table[r, list(row)] = list(row.values())
        scale = max(map(abs, self.costs)) or 1.0  # linprog's tolerances are absolute
        costs = -np.array(self.costs) / scale
        answer = linprog(costs, table, np.array(self.most), bounds=self.bounds, method="highs", options=TIGHT)
        assert answer.status == 0, answer.message
        return float(-answer.fun * scale)


def _with_wishes(asked: Wishes) -> Program:
    """The valid allocations that satisfy all hard rules, with the penalties of the others."""
    problem, allowed = asked.problem, asked.allowed()
    program = Program(problem, allowed)
    for row in asked.rows:
        over = {} if row.price is None else {program.variable(-row.price * row.unit): -1.0}
        program.row(row.table / row.unit, row.most / row.unit, over)
    for i, j in zip(*np.nonzero(allowed), strict=True) if asked.switch_cost else ():
        moved, before = program.variable(-asked.switch_cost * float(problem.num_gpus[i])), float(problem.previous_fractions[i, j])
        here = np.zeros(program.shape)
        here[i, j] = 1.0
        program.row(here, before, {moved: -1.0})
        program.row(-here, -before, {moved: -1.0})
    return program


def best_sum(asked: Wishes, gains: Floats) -> float:
    """max Σ G_ij X_ij − penalties."""
    program = _with_wishes(asked)
    program.costs[: gains.size] = gains.ravel().tolist()
    return program.best()


def best_level(asked: Wishes, need: Floats) -> float:
    """max θ − penalties with thr_i >= θ·need_i for every job that can run."""
    program, problem = _with_wishes(asked), asked.problem
    level = program.variable(1.0, None)
    for i in np.flatnonzero(asked.allowed().any(axis=1)).tolist():
        program.row(_only(problem, i, -problem.throughputs[i] / need[i]), 0.0, {level: 1.0})
    return program.best()


def excess(asked: Wishes, names: Collection[str] | None = None) -> float:
    """Return the least relative relaxation of GPUs and rules that makes all hard rules, or those named, feasible; 0 if they are."""
    if asked.contradicts(names):
        return np.inf
    problem = asked.problem
    program = Program(problem, asked.allowed(names))
    give = program.variable(-1.0)
    for r in range(problem.num_jobs, len(program.rows)):
        program.rows[r][give] = -max(1.0, program.most[r])
    for row in asked.rows:
        if row.price is None and (names is None or row.name in names):
            program.row(row.table / row.unit, row.most / row.unit, {give: -1.0})
    return -program.best()
