"""Programs assembled from matrices equal those that cvxpy compiles from the formulas."""

from __future__ import annotations

from contextlib import suppress

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.optimization.job_classes import classes_of
from gavel_py.optimization.solving.compilation import compiled
from gavel_py.optimization.solving.highs import LinearProgram, LinearSolver
from gavel_py.policies.constraints.compiling import constrained
from tests.support.constraint_strategies import constraints, tenanted


@st.composite
def classes_drawn(draw: st.DrawFn) -> gp.JobClasses:
    """Classes of jobs, with limits and floors or without."""
    problem = draw(tenanted())
    try:
        problem, rules = constrained(problem, tuple(draw(constraints(problem))))
    except (gp.ConflictError, gp.InputError):
        reject()
    assume(problem.runnable.any())
    return classes_of(problem, "test", (), rules)


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
@given(classes_drawn(), st.booleans())
def test_a_linear_objective(jobs: gp.JobClasses, constant: bool) -> None:
    program = gp.Program(jobs)
    objective = program.total(program.normalized_throughput) + (3.0 if constant else 0.0)
    program.compile(cp.Maximize(objective), program.rules)
    by_cvxpy, keys = program.program, program.keys
    with suppress(gp.SolverError):  # the rules may exclude all allocations, of which the programs have to be the same, too
        program.maximize(objective, LinearSolver())
    blocks = program.blocks
    rows = [blocks.time, blocks.capacity, blocks.limits, *blocks.own]
    assert lengths(rows) == [len(jobs), len(jobs.capacities), len(jobs.limits[1]), (jobs.floors > 0).sum()]
    same(program.program, by_cvxpy)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(program.keys, keys, strict=True))


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
@given(classes_drawn())
def test_the_capacity_factor(jobs: gp.JobClasses) -> None:
    ours = gp.Program(jobs)
    speeds = jobs.throughputs[ours.rows, ours.columns]
    least = 0.3 * jobs.throughputs.max(axis=1)
    ours.compile_factor(ours.rows_by_job(speeds), least, 0.7)
    factor, parts = cp.Variable(bounds=[0, None]), cp.Variable(len(ours.rows), bounds=[0, 2.0 / ours.most])
    types = len(jobs.capacities)
    time, gpus, throughput = (np.zeros((count, len(speeds))) for count in (len(jobs), types, len(jobs)))
    for p, (g, j) in enumerate(zip(ours.rows, ours.columns, strict=True)):
        time[g, p] = ours.most[p]
        throughput[g, p] = speeds[p] * ours.most[p]
        gpus[j, p] = jobs.counts[g] * jobs.num_gpus[g] * ours.most[p] / jobs.capacities[j]
    rows, most = jobs.limits
    of_limits = rows.toarray()[:, ours.rows * types + ours.columns] * (jobs.counts[ours.rows] * ours.most)
    limits = [of_limits @ parts <= most + (factor - 1) * jobs.limits_grow] if len(most) else []
    valid = [time @ parts <= 0.7, gpus @ parts <= factor, *limits, throughput @ parts >= least]
    same(ours.program, compiled(cp.Problem(cp.Minimize(factor), valid)))
    blocks = ours.blocks
    assert lengths([blocks.factor, blocks.parts]) == [1, len(speeds)]
    assert lengths([blocks.time, blocks.capacity, blocks.limits, *blocks.own]) == [len(jobs), types, len(most), len(jobs)]


def lengths(blocks: list[slice]) -> list[int]:
    """Return the length of each block; the blocks must follow each other."""
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    return [block.stop - block.start for block in blocks]


def same(ours: LinearProgram, theirs: LinearProgram) -> None:
    """Check that two programs are the same to the last column."""
    assert ours.matrix.toarray() == pytest.approx(theirs.matrix.toarray(), rel=1e-12)
    for name in ("costs", "limits", "lower", "upper", "offset", "equalities"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-12), name


def test_an_objective_with_kinks_is_compiled_by_cvxpy() -> None:
    jobs = classes_of(gp.AllocationProblem.from_arrays([[1.0], [2.0]], [1]), "test", ())
    program = gp.Program(jobs)
    program.maximize(program.minimum(program.throughput), LinearSolver())
    assert program.solution.value == pytest.approx(-2 / 3)
