"""The published program of a problem and a policy, with one row per job: for reading, for other solvers, and as a file.

`solve` never builds it: its programs have one row for each class of equal jobs, or none at all. So the two check each other.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np

from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError, refuse
from gavel_py.io.writing import check_writable, write_atomic
from gavel_py.optimization.formulation.columns import Columns
from gavel_py.optimization.formulation.cuts import node_rows
from gavel_py.optimization.formulation.linear_rows import Rules
from gavel_py.optimization.formulation.program import Program, check_objective
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.optimization.solving.compilation import compiled
from gavel_py.optimization.solving.highs import LinearSolver, write_model
from gavel_py.policies import Policy
from gavel_py.policies.constraints.compiling import constrained
from gavel_py.policies.demand import DemandPolicy, least_level
from gavel_py.problem.arrays import Floats
from gavel_py.problem.problem import AllocationProblem

FORMATS = (".mps", ".lp")

MOST = 1e6
"""Largest unit of the level in a linear program for it: solvers scale costs by at most about this."""


def formulation(
    problem: AllocationProblem, policy: str | Policy = "max_min_fairness", *, sharing: bool | None = None, **options: Any
) -> cp.Problem:
    """Return the published program of a problem and a policy as a `cvxpy.Problem`, with one row per job.

    It is for reading and teaching, and for any solver that cvxpy supports; `solve` finds the same objective value thousands of
    times faster. Its variable X has the shape (N, K): X_ij is the part of its time that job i has on type j, for the N jobs that
    can run, in the order of the problem. Symbols have the names of docs/concepts.md: T throughputs (steps/s), s GPUs of each gang,
    c GPUs of each type, P throughputs of an equal share. The constraints are those of Gavel (OSDI 2020, section 3.1), labelled:

        time           Σ_j X_ij <= 1             of each job
        GPUs           Σ_i s_i X_ij <= c_j       of each type
        cannot run     X_ij = 0                  where a job cannot run

    and those of CPUs, memory and `constraints`, labelled by their names. The rows that `solve` adds for whole gangs, for the
    placement of gangs, for pairs of jobs and for the numbers of GPUs of elastic jobs follow too, with their columns; X is then
    (N, K') (docs/sharing.md, docs/whole-gangs.md, docs/elastic.md).

    The objective is that of `Allocation.objective_value`, in its unit. For a policy that optimises one objective after the other,
    the program is that of the last one, with a constraint that keeps the earlier ones at their optimum; for `water_filling` and
    `hierarchical`, that of their first level. Where a level θ is minimised to which needs are inversely proportional
    (`min_makespan`), the variables are θ and Y = θ X, with which the program is linear. Later stages, such as the largest
    throughput at the same level, are not part of the program.

    >>> import gavel_py as gp
    >>> problem = gp.AllocationProblem.from_arrays([[4, 1], [2, 1]], [1, 1], accelerator_types=["v100", "k80"])
    >>> program = gp.formulation(problem, "max_min_fairness")
    >>> print(program)
    maximize min(1/need * Sum(T * X, 1, False), None, False)
    subject to nonnegative: 0.0 <= X
               time: Sum(X, 1, False) <= 1.0
               GPUs: s @ X <= c
    >>> round(program.solve(), 6), round(gp.solve(problem).objective_value, 6)
    (1.0, 1.0)

    Args:
        problem: The problem.
        policy: A name or a `Policy` object with an objective.
        sharing: As in `solve`.
        options: The policy's own, and `constraints`.

    Raises:
        UnknownNameError, InputError: A policy, option or problem is wrong, or the policy has no objective.
    """
    return _published(problem, Solver(policy, sharing=sharing, **options))[0]


def write_program(
    problem: AllocationProblem,
    path: str | Path,
    policy: str | Policy = "max_min_fairness",
    *,
    sharing: bool | None = None,
    **options: Any,
) -> None:
    """Write the program of `formulation` to a file in the MPS or LP format, which nearly every solver reads.

    Variables are named X_{row}_{job}_{type}, rows by their labels; characters that the formats do not allow become "_". Where a
    policy minimises a level θ to which needs are inversely proportional (`min_makespan`), the program maximises 1/θ, which is
    linear.

    Args:
        problem: The problem.
        path: The file, with the ending .mps or .lp.
        policy: A name or a `Policy` object with an objective.
        sharing: As in `solve`.
        options: The policy's own, and `constraints`.

    Raises:
        UnknownNameError, InputError: As `formulation`; and for another ending, a program that is not linear, and a file that cannot
            be written.
    """
    place = Path(path)
    refuse(str(path), (place.suffix.lower() not in FORMATS, "", "must end in .mps or .lp, the formats of programs"))
    check_writable(place)
    solver = Solver(policy, sharing=sharing, **options)
    published, rows_of = _published(problem, solver, as_linear=True)
    try:
        program = compiled(published)
    except InputError:
        text = "has a nonlinear program, which .mps and .lp files cannot represent; gavel_py.formulation returns it for cvxpy"
        raise InputError(Fault(f"policy {solver.policy.label}", "", text)) from None
    columns = {program.columns[rows_of.fractions.id].start + n: name for n, name in enumerate(rows_of.names())}
    rows, numbers = dict[int, str](), Counter[str]()  # several constraints may have one label
    for constraint in published.constraints:
        label = _plain(constraint.label)
        for row in range(program.rows[constraint.id].start, program.rows[constraint.id].start + constraint.size):
            rows[row] = f"{label}_{numbers[label]}"
            numbers[label] += 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"program{place.suffix.lower()}"
        write_model(program, file, columns, rows, maximize=isinstance(published.objective, cp.Maximize))
        write_atomic(place, file.read_bytes())


def _published(problem: AllocationProblem, solver: Solver, *, as_linear: bool = False) -> tuple[cp.Problem, _RowPerJob]:
    """Return the program of the last objective of a policy, and its variables.

    as_linear: for a file, with 1/θ maximised instead of θ minimised, if that is linear.
    """
    policy = solver.policy
    refuse(f"policy {policy.name}", (policy.empty_objective is None, "", "has no objective, and therefore no program"))
    columns = _columns(problem, solver)
    refuse("formulation", (not columns.problem.runnable.any(), "problem", "has no job that can run, and therefore no program"))
    jobs = separate_jobs(columns.problem, policy.name, policy.reads, columns.rules, columns)
    last, seen = policy.final_stage(policy.view(jobs), LinearSolver())
    minimized = getattr(last, "direction", "max") == "min"
    inverse = last.need(seen, 1.0) if minimized and isinstance(last, DemandPolicy) and last.is_proportional else None
    if inverse is not None and not as_linear and not seen.rules.kept and not seen.rules.has_penalties:
        until = _TimePerJob(seen, inverse)
        return cp.Problem(cp.Minimize(until.best), [*until.constraints()]), until
    program = _RowPerJob(seen, as_bounds=as_linear)
    if inverse is not None and as_linear:
        objective, minimized = least_level(program, inverse), False
    else:
        objective = last.objective(program)  # type: ignore[attr-defined]
        check_objective(objective, "min" if minimized else "max")
    if seen.rules.has_penalties:
        objective = objective + program.penalty if minimized else objective - program.penalty
    return cp.Problem((cp.Minimize if minimized else cp.Maximize)(objective), [*program.constraints()]), program


def _columns(problem: AllocationProblem, solver: Solver) -> Columns:
    """Return the columns and rules of the last program of `solve`."""
    if problem.hosts is None and problem.pairs is None and problem.counts is None and not solver.sharing:
        problem, rules = constrained(problem, solver.policy.constraints)
        return Columns.of_types(problem, rules.also(Rules(rows=tuple(node_rows(problem)))))
    evidence = solver.solve(problem).evidence  # finds the rows of whole gangs and of pairs, and the columns of elastic jobs
    assert evidence is not None  # noqa: S101
    return evidence.columns


class _RowPerJob(Program):
    """The program of separate jobs in a matrix X of time fractions, without leaving out pairs of a job and a type closed to it.

    as_bounds: express 0 <= X as bounds of the variables, as in files, instead of a visible constraint.
    """

    def __init__(self, jobs: JobClasses, *, as_bounds: bool = False) -> None:
        super().__init__(jobs)
        bounds = [0.0, 1.0] if as_bounds else None
        self.fractions = cp.Variable(jobs.throughputs.shape, name="X", bounds=bounds)
        self.sizes = np.ones(len(self.rows))
        self._used = self._gpus / self.units[self.columns]

    @cached_property
    def _parts(self) -> cp.Expression:
        return self.fractions[self.rows, self.columns]

    @cached_property
    def time(self) -> cp.Expression:
        return cp.sum(self.fractions, axis=1)

    @cached_property
    def throughput(self) -> cp.Expression:
        return cp.sum(cp.multiply(cp.Constant(self.jobs.throughputs, name="T"), self.fractions), axis=1)

    @cached_property
    def normalized_throughput(self) -> cp.Expression:
        return cp.multiply(cp.Constant(1 / self.jobs.equal_share, name="1/P"), self.throughput)

    def by_job(self, coefficients: Floats) -> cp.Expression:
        return cp.sum(cp.multiply(cp.Constant(self.matrix_of(coefficients), name="gains"), self.fractions), axis=1)

    @cached_property
    def gpus(self) -> cp.Expression:
        used, parts = cp.Constant(self.jobs.num_gpus, name="s") @ self.fractions, self.jobs.gpu_parts
        return used if (parts == 1).all() else cp.multiply(cp.Constant(parts, name="parts"), used)

    def constraints(self) -> Iterator[cp.Constraint]:
        """Yield the labelled constraints."""
        jobs = self.jobs
        if self.fractions.attributes["bounds"] is None:
            yield (self.fractions >= 0.0).set_label("nonnegative")
        yield (self.time <= self._all(1.0)).set_label("time")
        yield (self.gpus <= self._all(cp.Constant(jobs.capacities * jobs.gpu_parts, name="c"))).set_label("GPUs")
        blocked = np.nonzero(~jobs.runnable)
        if len(blocked[0]):
            yield (self.fractions[blocked] == 0.0).set_label("cannot run")
        for row in jobs.rules.hard_rows:
            costs = row.costs(jobs.rows, jobs.num_gpus)
            yield (cp.sum(cp.multiply(cp.Constant(costs, name="a"), self.fractions)) <= self._all(row.rhs)).set_label(row.name)
        floors = jobs.floors
        some = np.flatnonzero(floors > 0)
        if len(some):
            yield (self.throughput[some] >= self._all(cp.Constant(floors[some], name="least"))).set_label("least throughput")
        for kept in jobs.rules.kept:
            yield kept(self).set_label("kept objective")

    def _all(self, limit: cp.Expression | float) -> cp.Expression | float:
        """Return the right-hand side of a constraint in the unit of `fractions`."""
        return limit

    def names(self) -> Iterator[str]:
        """Yield the names of the entries of X in the order of cvxpy's columns, type by type."""
        jobs = [f"{row}_{_plain(self.jobs.example(row))}" for row in range(len(self.jobs))]
        types = [_plain(name) for name in self.jobs.accelerator_types]
        types = [f"{name}_{j}" if types.count(name) > 1 else name for j, name in enumerate(types)]
        return (f"X_{job}_{name}" for name in types for job in jobs)


class _TimePerJob(_RowPerJob):
    """The linear program of a level θ to be minimised to which needs are inversely proportional, thr_i(X) >= need_i / θ.

    Its variables are θ and Y = θ X, the time of each job on each type until θ, so that every constraint on X is multiplied by θ.
    Both are in units of about the optimum, since solvers have absolute tolerances; a unit above `MOST` would be as bad a cost.

    need: (N,) need_i, the required throughput at a level of 1.
    """

    def __init__(self, jobs: JobClasses, need: Floats) -> None:
        super().__init__(jobs)
        least = need / jobs.fastest  # the level of a job alone, with all of the time on its fastest type
        at_least = max(float(least.max(initial=0.0)), float(jobs.num_gpus @ least / jobs.capacities.sum()))
        self.unit = min(at_least, MOST) or 1.0
        self.need = need / self.unit
        self.fractions, self.level = cp.Variable(jobs.throughputs.shape, name="Y"), cp.Variable(name="θ")

    @property
    def best(self) -> cp.Expression:
        """The level."""
        return cp.Constant(self.unit, name="unit") * self.level

    def constraints(self) -> Iterator[cp.Constraint]:
        some = np.flatnonzero(self.need > 0)
        throughput = self.throughput if len(some) == len(self.need) else self.throughput[some]
        yield (throughput >= cp.Constant(self.need[some], name="need")).set_label("need")
        yield from super().constraints()

    def _all(self, limit: cp.Expression | float) -> cp.Expression | float:
        return limit * self.level


def _plain(name: str) -> str:
    """Return a name of letters, digits and _ only."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)[:80]
