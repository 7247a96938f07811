"""Objectives with curves: solved, proven by their tangents, and refused where they cannot be."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.optimization.job_classes import classes_of
from gavel_py.optimization.solving import compilation as solver
from gavel_py.optimization.solving import concave as conic
from gavel_py.optimization.solving import highs
from gavel_py.optimization.solving.concave import tangent
from gavel_py.optimization.solving.highs import TimeLimit
from tests.support.examples import examples
from tests.support.instances import Floats, best_level, best_value, crowds, problems

Objective = Callable[[gp.Program], cp.Expression]


def policy(objective: Objective, direction: str = "max", reads: tuple[str, ...] = ("weights",)) -> gp.SumPolicy:
    def own_objective(self: gp.SumPolicy, program: gp.Program) -> cp.Expression:  # noqa: ARG001
        return objective(program)

    members = {"direction": direction, "reads": reads, "objective": own_objective, "__doc__": "Curved."}
    made: gp.SumPolicy = type("Curved", (gp.SumPolicy,), members)()
    return made


def v(program: gp.Program) -> cp.Expression:
    return program.normalized_throughput


def nash(program: gp.Program) -> cp.Expression:
    return program.total(cp.multiply(program.weights, cp.log(v(program))))


# What is maximised, and its slope by a job's v, written by hand.
SLOPES: dict[str, tuple[Objective, Callable[[Floats, Floats], Floats]]] = {
    "logarithm": (nash, lambda w, v: w / v),
    "square root": (lambda p: p.total(cp.multiply(p.weights, cp.sqrt(v(p)))), lambda w, v: w / (2 * np.sqrt(v))),
    "power": (lambda p: p.total(cp.multiply(p.weights, cp.power(v(p), 0.8))), lambda w, v: 0.8 * w * v**-0.2),
    "inverse": (lambda p: -p.total(cp.multiply(p.weights, cp.inv_pos(v(p)))), lambda w, v: w / v**2),
    "entropy": (lambda p: p.total(cp.entr(v(p))), lambda w, v: -np.log(v) - 1 + 0 * w),
    "log(1 + v)": (lambda p: p.total(cp.log1p(v(p))), lambda w, v: 1 / (1 + v) + 0 * w),
    "square": (lambda p: p.total(v(p) - 0.05 * cp.square(v(p))), lambda w, v: 1 - 0.1 * v + 0 * w),
}
CURVES: dict[str, gp.SumPolicy] = {name: policy(objective) for name, (objective, _) in SLOPES.items()} | {
    "least square": policy(lambda p: p.total(cp.square(v(p) - 1)), "min"),
    "exponential": policy(lambda p: p.total(cp.exp(-v(p))), "min"),
    "soft minimum": policy(lambda p: -cp.log_sum_exp(-v(p)), reads=("job_ids",)),
    "geometric mean": policy(lambda p: cp.geo_mean(v(p), approx=False), reads=("job_ids",)),
    "one square over another sum": policy(lambda p: p.total(v(p)) - cp.quad_over_lin(p.gpus, 1 + p.total(p.time))),
    "curve of a kink": policy(lambda p: p.total(cp.sqrt(cp.minimum(v(p), 0.7)))),
    "kink of a curve": policy(lambda p: p.minimum(cp.log(v(p))) + p.total(cp.minimum(v(p), 0.5))),
    "curve beside a kink": policy(lambda p: p.minimum(v(p)) + p.total(cp.log(v(p))) / p.num_jobs),
}


@pytest.mark.parametrize("name", CURVES)
@settings(max_examples=examples(25, costly=True))
@given(problem=st.one_of(problems(), crowds()))
def test_every_curve_is_solved_and_proven(name: str, problem: gp.AllocationProblem) -> None:
    allocation = gp.solve(problem, CURVES[name])
    if allocation.status == "empty":
        return
    proof = allocation.verify()
    assert proof.gap is not None
    assert proof.gap <= 1e-7
    assert proof.violation <= 1e-9
    assert allocation.route is not None
    assert allocation.route.algorithm == "conic interior point"
    assert allocation.route.failed == ()


@pytest.mark.parametrize("name", SLOPES)
@settings(max_examples=examples(25, costly=True))
@given(problem=problems())
def test_no_valid_direction_goes_up(name: str, problem: gp.AllocationProblem) -> None:
    """No allocation Y is better than the answer X, by linear programs of their own.

    For any T, a concave f has f(Y) - f(X) <= ∇f(X)(T - X) + ∇f(T)(Y - T). T is X, or a crumb of time more for all: where a curve is
    steep near 0, slopes differ widely among answers whose values are equal to nine digits.
    """
    problem = problem.select(problem.runnable.any(axis=1))
    if not problem.num_jobs:
        return
    allocation = gp.solve(problem, CURVES[name])
    found, value = allocation.normalized_throughputs, allocation.objective_value
    per_time = problem.throughputs / problem.equal_share[:, None]
    slopes = SLOPES[name][1](problem.weights, found)
    size = np.abs(slopes * found).sum() + abs(value)  # type: ignore[arg-type]
    improvements = []
    for crumb in (0.0, 1e-9, 1e-8):
        touched = found + crumb * per_time.max(axis=1)
        there = SLOPES[name][1](problem.weights, touched)
        best = best_value(problem, np.maximum(there[:, None] * per_time, 0))
        improvements.append(slopes @ (touched - found) + best - there @ touched)
    assert min(improvements) <= 1e-6 * size


def test_an_optimum_that_is_nearer_to_0_than_an_interior_point_comes_is_proven() -> None:
    """A gang is worth a crumb of time to a power of it: about 1e-8, which moves the value by 1e-9, but the slope by half."""
    speeds = [[0, 281.823667, 1 / 3], [0, 0, 1], [0, 1, 785.060871], [0, 0, 1], [0, 0, 1]]
    weights = [5.43322307, 2.69369489, 3.84752312, 9.24666557, 0.3]
    problem = gp.AllocationProblem.from_arrays(speeds, [2, 3, 4], num_gpus=[4, 1, 1, 1, 1], weights=weights)
    allocation = gp.solve(problem, CURVES["power"])
    assert allocation.route is not None
    assert allocation.route.failed == ()
    found = allocation.verify()
    assert found.gap is not None
    assert found.gap <= 1e-7


@settings(max_examples=examples(25))
@given(problem=problems(max_jobs=5))
def test_a_logarithm_of_the_least_is_that_of_the_best_level(problem: gp.AllocationProblem) -> None:
    problem = problem.select(problem.runnable.any(axis=1))
    if not problem.num_jobs:
        return
    value = gp.solve(problem, policy(lambda p: cp.log(p.minimum(v(p))))).objective_value
    assert value == pytest.approx(np.log(best_level(problem, problem.equal_share)), rel=1e-6, abs=1e-6)


def test_known_answers_on_one_gpu() -> None:
    """Time x_i of equal jobs on one GPU: log shares in proportion to w, a square root to w², −1/x to √w."""
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [1], weights=[1, 2, 4])
    for name, power in (("logarithm", 1.0), ("square root", 2.0), ("inverse", 0.5)):
        shares = problem.weights**power
        assert gp.solve(problem, CURVES[name]).time_fractions[:, 0] == pytest.approx(shares / shares.sum(), rel=1e-6), name


def test_the_farthest_from_a_goal_counts_most() -> None:
    """min Σ (x_i − 1)² on one GPU: all are as far from 1; with a second GPU both goals are met and the optimum is 0."""
    rows = [[1.0], [1.0]]
    one = gp.solve(gp.AllocationProblem.from_arrays(rows, [1]), CURVES["least square"])
    assert one.time_fractions.tolist() == [[pytest.approx(0.5)]] * 2
    assert one.objective_value == pytest.approx(0.5)
    assert one.shadow_prices is not None
    assert one.shadow_prices == pytest.approx([1.0], rel=1e-6)
    two = gp.solve(gp.AllocationProblem.from_arrays(rows, [2]), CURVES["least square"])
    assert two.objective_value == pytest.approx(0, abs=1e-9)


def random_fractions(program: gp.Program, chance: np.random.Generator) -> Floats:
    times = chance.random(len(program.rows)) * program.most
    return program.matrix_of(times)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("seed", range(4))
def test_a_tangent_touches_and_is_nowhere_below(name: str, seed: int) -> None:
    chance = np.random.default_rng(seed)
    problem = gp.AllocationProblem.from_types(
        chance.lognormal(size=(3, 2)), chance.integers(0, 3, 8), [3, 4], weights=chance.choice([1.0, 2.0], 8)
    )
    curved = CURVES[name]
    program = gp.Program(classes_of(problem, "curved", curved.reads))
    expression = curved.sign * curved.objective(program)
    here = random_fractions(program, chance)
    value = program.value(expression, here)
    above = tangent(expression)
    assert above.is_pwl()
    assert program.value(above, here) == pytest.approx(value, rel=1e-12)
    for _ in range(20):
        there = random_fractions(program, chance)
        assert program.value(above, there) >= program.value(expression, there) - 1e-9
        near = here + 1e-6 * (there - here)
        assert program.value(above, near) == pytest.approx(program.value(expression, near), abs=1e-9)


def test_what_is_linear_or_has_kinks_only_stays_a_linear_program() -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0, 1.0], [1.0, 3.0]], [1, 1])
    kinks = policy(lambda p: p.minimum(v(p)) + p.total(cp.minimum(v(p), 0.5)) - p.total(cp.abs(p.time - 1)))
    route = gp.solve(problem, kinks).route
    assert route is not None
    assert route.algorithm == "simplex"


def test_a_variable_of_ones_own_is_proven_too() -> None:
    """The mean over the worse half of the logarithms, with a variable for their limit."""

    def worse_half(program: gp.Program) -> cp.Expression:
        limit = cp.Variable()
        return limit - program.total(cp.pos(limit - cp.log(v(program)))) / (program.num_jobs / 2)

    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [1, 1])
    allocation = gp.solve(problem, policy(worse_half))
    worst = np.sort(np.log(allocation.normalized_throughputs))[:2].mean()
    assert allocation.objective_value == pytest.approx(worst, rel=1e-6)
    assert allocation.gap is not None
    assert allocation.gap <= 1e-7


def test_what_no_solver_takes_is_refused() -> None:
    def whole(program: gp.Program) -> cp.Expression:
        count = cp.Variable(integer=True, bounds=[0, 3])
        return program.total(cp.log(v(program))) + count

    problem = gp.AllocationProblem.from_arrays([[2.0], [1.0]], [1])
    cases: list[tuple[gp.SumPolicy, str]] = [
        (policy(whole), "whole-number variables"),
        (policy(lambda p: p.total(cp.square(v(p)))), "maximised and must be concave"),
        (policy(lambda p: p.total(cp.log(v(p))), "min"), "minimised and must be convex"),
    ]
    for curved, message in cases:
        with pytest.raises(gp.InputError, match=message):
            gp.solve(problem, curved)


def test_classes_that_are_counted_wrongly_are_refused() -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0], [4.0], [2.0]], [1])
    with pytest.raises(gp.InputError, match="depends on how equal jobs are counted"):
        gp.solve(problem, policy(lambda p: cp.sum(cp.log(v(p)))))


def test_an_objective_that_is_nowhere_finite_is_an_error() -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0], [1.0]], [1])
    with pytest.raises(gp.SolverError, match="Clarabel ended with status 'PrimalInfeasible'; there is no allocation"):
        gp.solve(problem, policy(lambda p: p.total(cp.log(v(p) - 100))))


def spoilt(part: float, calls: list[float], only_first: bool) -> Any:
    """A conic solver that returns `part` of the right answer."""
    right = solver.ConicProgram.solve

    def solve(self: solver.ConicProgram, step: float, limit: TimeLimit) -> int:
        iterations = right(self, step, limit)
        calls.append(step)
        if len(calls) == 1 or not only_first:
            for variable in self._variables:
                variable.save_value(part * variable.value)
        return iterations

    return solve


def test_an_answer_that_is_not_good_enough_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0, 1.0], [1.0, 3.0], [1.0, 1.0]], [1, 1], weights=[1, 2, 5])
    calls: list[float] = []
    monkeypatch.setattr(solver.ConicProgram, "solve", spoilt(0.9, calls, only_first=True))
    gap = gp.solve(problem, CURVES["logarithm"]).gap
    assert gap is not None
    assert gap <= 1e-8
    assert len(calls) > 1


def test_an_answer_that_cannot_be_proven_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0, 1.0], [1.0, 3.0]], [1, 1])
    monkeypatch.setattr(solver.ConicProgram, "solve", spoilt(0.999, [], only_first=False))
    with pytest.raises(gp.ProofError, match="not proven to be optimal"):
        gp.solve(problem, CURVES["logarithm"])


def test_of_several_answers_the_best_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no answer is good enough, the best one is returned and proven, which need not be the last."""
    problem = gp.AllocationProblem.from_arrays([[2.0, 1.0], [1.0, 3.0], [1.0, 1.0]], [1, 1])
    right, calls = solver.ConicProgram.solve, []

    def all_wrong_but_one(self: solver.ConicProgram, step: float, limit: TimeLimit) -> int:
        calls.append(step)
        iterations = right(self, step, limit)
        for variable in self._variables:
            variable.save_value((1.0 if len(calls) == 2 else 0.999) * variable.value)
        return iterations

    monkeypatch.setattr(solver.ConicProgram, "solve", all_wrong_but_one)
    program = gp.Program(classes_of(problem, "curved", ("weights",)))
    fractions, certificate = conic.maximize_concave(program, nash(program), highs.LinearSolver(), enough=-1.0)
    assert len(calls) > len(conic.STEPS)
    assert certificate.bound() == pytest.approx(certificate.value(fractions), abs=1e-7)


def test_a_price_at_a_kink_is_that_of_more() -> None:
    """Two jobs on two GPUs: with one GPU less, a job loses its time; with one more, no job gains."""
    allocation = gp.solve(gp.AllocationProblem.from_arrays([[1.0], [1.0]], [2]), CURVES["logarithm"])
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == [0]


@settings(max_examples=examples(25, costly=True))
@given(problem=crowds(max_jobs=10, max_types=4), more=st.sampled_from([1e-3, 0.1, 1.0, 10.0]), data=st.data())
def test_a_gain_lies_between_the_prices_before_and_after(problem: gp.AllocationProblem, more: float, data: st.DataObject) -> None:
    problem = problem.select(problem.runnable.any(axis=1))
    if not problem.num_jobs:
        return
    column = data.draw(st.sampled_from(np.flatnonzero(problem.capacities > 0).tolist()))
    capacities = problem.capacities.copy()
    capacities[column] += more
    before = gp.solve(problem, CURVES["logarithm"])
    after = gp.solve(problem.with_capacities(capacities), CURVES["logarithm"])
    gain = after.objective_value - before.objective_value  # type: ignore[operator]
    rounding = 1e-7 * problem.weights.sum()
    assert before.shadow_prices is not None
    assert after.shadow_prices is not None
    assert after.shadow_prices[column] * more - rounding <= gain <= before.shadow_prices[column] * more + rounding


def test_constraints_hold_beside_a_curve() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 4, [2], tenants=["red", "blue", "blue", "blue"])
    for constraint, times in (
        (gp.MaxGpus(tenant="red", gpus=0.2), [0.2, 0.6, 0.6, 0.6]),
        (gp.MinThroughput(job="1", rate=0.8), [0.4, 0.8, 0.4, 0.4]),
        (gp.Quota(tenant="red", gpus=0.8), [0.8, 0.4, 0.4, 0.4]),
    ):
        curved = policy(nash)
        allocation = gp.solve(problem, type(curved)(constraints=(constraint,)))
        assert allocation.time_fractions[:, 0] == pytest.approx(times, abs=1e-6), constraint
        assert allocation.verify().violation <= 1e-9


def test_jobs_that_are_merged_lose_no_more_than_is_told() -> None:
    chance = np.random.default_rng(0)
    base = np.array([[4.0, 1.0, 0.0], [2.0, 1.0, 0.5], [1.0, 1.0, 1.0]])
    rows = base[chance.integers(0, 3, 30)] * chance.uniform(0.98, 1.02, (30, 3))
    problem = gp.AllocationProblem.from_arrays(rows, [3, 4, 5], weights=chance.choice([1, 2], 30))
    exact = gp.solve(problem, CURVES["logarithm"])
    near = gp.solve(problem, CURVES["logarithm"], merge_tolerance=0.05)
    assert near.route is not None
    assert exact.route is not None
    assert near.route.reduction == "merged"
    assert near.route.classes < exact.route.classes
    assert near.objective_value < exact.objective_value <= near.objective_bound  # type: ignore[operator]
    assert near.verify().gap == near.gap
    kinked = gp.solve(problem, CURVES["curve beside a kink"], merge_tolerance=0.05)
    assert kinked.route is not None
    assert kinked.route.reduction == "classes"


def test_clarabel_is_told_to_stop_by_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        """A solver that runs until it is stopped."""

        def set_termination_callback(self, stop: Callable[[object], bool]) -> None:
            self.stop = stop

        def solve(self) -> None:
            while not self.stop(None):
                time.sleep(0.005)

    monkeypatch.setattr(solver.ConicProgram, "_solver", lambda self, step: Endless())  # noqa: ARG005
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        gp.solve(gp.AllocationProblem.from_arrays([[1.0]], [1]), CURVES["logarithm"])


def test_clarabel_stops_when_it_is_told_to() -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0, 1.0], [1.0, 3.0]], [1, 1])
    program = gp.Program(classes_of(problem, "curved", ("weights",)))
    clarabel = program.cones(nash(program))._solver(0.8)
    clarabel.set_termination_callback(lambda _: True)
    assert str(clarabel.solve().status) == "CallbackTerminated"
