"""A solver that is kept from problem to problem finds what a new one finds."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import OPTIONS, RETRIES, LinearProgram, LinearSolver, new_highs
from tests.support.examples import examples
from tests.support.instances import Floats

POLICIES = ["max_total_throughput", "max_min_fairness", "min_makespan", "finish_time_fairness"]


class Crowd:
    """Jobs that arrive, leave and progress on a cluster that loses and regains GPUs."""

    def __init__(self, seed: int, distinct: bool) -> None:
        self.chance = np.random.default_rng(seed)
        self.base = self.chance.uniform(0.5, 8, (5, 3))
        self.distinct = distinct
        self.gpus = np.array([6.0, 5.0, 4.0])
        self.rows, self.gangs, self.steps = np.zeros((0, 3)), np.zeros(0, dtype=int), np.zeros(0)
        self.arrive(12)

    def arrive(self, count: int) -> None:
        rows: Floats = self.base[self.chance.integers(0, 5, count)]
        if self.distinct:
            rows = rows * self.chance.uniform(0.9, 1.1, rows.shape)
        self.rows = np.vstack([self.rows, rows])
        self.gangs = np.append(self.gangs, self.chance.choice([1, 2, 4], count))
        self.steps = np.append(self.steps, self.chance.uniform(10, 1e4, count))

    def leave(self, count: int) -> None:
        stay = self.chance.permutation(len(self.steps))[min(count, len(self.steps) - 1) :]
        self.rows, self.gangs, self.steps = self.rows[stay], self.gangs[stay], self.steps[stay]

    def change(self, event: str) -> None:
        if event == "arrive":
            self.arrive(2)
        elif event == "leave":
            self.leave(2)
        elif event == "progress":
            self.steps = self.steps * self.chance.uniform(0.3, 1, len(self.steps))
        elif event == "fail":
            self.gpus = np.maximum(0, self.gpus - self.chance.integers(0, 3, 3))
        else:
            self.gpus = np.array([6.0, 5.0, 4.0])

    @property
    def problem(self) -> gp.AllocationProblem:
        return gp.AllocationProblem.from_arrays(self.rows, self.gpus, num_gpus=self.gangs, steps_remaining=self.steps)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(20, costly=True))
@given(
    events=st.lists(st.sampled_from(["arrive", "leave", "progress", "fail", "repair"]), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    distinct=st.booleans(),
)
def test_warm_answers_are_as_good_as_cold_ones(name: str, events: list[str], seed: int, distinct: bool) -> None:
    crowd, solver = Crowd(seed, distinct), gp.Solver(name)
    for event in ["none", *events]:
        crowd.change(event)
        warm, cold = solver.solve(crowd.problem), gp.solve(crowd.problem, name)
        assert warm.objective_value == pytest.approx(cold.objective_value, rel=1e-8)
        assert warm.status == cold.status
        totals = [float(crowd.gangs @ each.normalized_throughputs) for each in (warm, cold)]
        assert totals[0] == pytest.approx(totals[1], rel=1e-6)
        assert warm.route is not None
        assert warm.route.failed == ()


def test_few_changes_take_few_steps() -> None:
    chance = np.random.default_rng(0)
    rows, gangs = chance.uniform(0.5, 8, (400, 4)), chance.choice([1, 2, 4], 400)
    solver = gp.Solver("max_total_throughput")
    first = solver.solve(gp.AllocationProblem.from_arrays(rows, [60, 60, 60, 60], num_gpus=gangs))
    rows[:4] = chance.uniform(0.5, 8, (4, 4))
    again = solver.solve(gp.AllocationProblem.from_arrays(rows, [60, 60, 60, 60], num_gpus=gangs))
    assert first.route is not None
    assert again.route is not None
    assert again.route.iterations * 10 <= first.route.iterations


def test_a_solve_that_was_interrupted_does_not_spoil_the_next() -> None:
    chance = np.random.default_rng(0)
    rows = chance.lognormal(size=(15_000, 4))
    solver = gp.Solver("max_min_fairness")

    def solve_until_the_signal_comes() -> None:
        for _ in range(100):
            solver.solve(gp.AllocationProblem.from_arrays(rows * chance.uniform(0.9, 1.1, rows.shape), [500] * 4))

    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        solve_until_the_signal_comes()
    after = solver.solve(gp.AllocationProblem.from_arrays(rows[:1500], [500] * 4))
    assert after.route is not None
    assert after.route.failed == ()


class Imprecise:
    """HiGHS whose price of the only row is off by a rounding."""

    def __init__(self) -> None:
        self._highs = new_highs(OPTIONS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._highs, name)

    def getSolution(self) -> Any:  # noqa: N802
        answer = self._highs.getSolution()
        answer.row_dual = [1e-12]
        return answer


@pytest.mark.parametrize(("equalities", "price"), [(0, 0.0), (1, -1e-12)])
def test_no_price_of_a_limit_is_negative_although_the_solver_rounds(equalities: int, price: float) -> None:
    """Bounds hold for prices >= 0 only; those of equalities may have any sign."""
    solver, zero = LinearSolver(), np.zeros(1)
    solver._highs = Imprecise()
    matrix = SparseMatrix(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.ones(1), (1, 1))
    program = LinearProgram(np.ones(1), 0.0, matrix, zero, equalities, zero, np.ones(1))
    assert solver.solve_first(program).duals.tolist() == [price]


class Undecided(Imprecise):
    """HiGHS that ends its first runs without an answer."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self.runs = runs

    def getModelStatus(self) -> Any:  # noqa: N802
        self.runs -= 1
        return SimpleNamespace(name="kUnknown") if self.runs >= 0 else self._highs.getModelStatus()


@pytest.mark.parametrize("failed", range(2 * len(RETRIES)))
def test_options_of_retries_do_not_apply_to_later_solves(failed: int) -> None:
    solver, zero = LinearSolver(), np.zeros(1)
    highs = solver._highs = Undecided(failed)
    before = [highs.getOptionValue(name) for name in ("presolve", "simplex_strategy")]
    matrix = SparseMatrix(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.ones(1), (1, 1))
    program = LinearProgram(np.ones(1), 0.0, matrix, zero, 0, zero, np.ones(1))
    with contextlib.suppress(gp.SolverError):
        solver.solve_first(program)
    assert [highs.getOptionValue(name) for name in ("presolve", "simplex_strategy")] == before
