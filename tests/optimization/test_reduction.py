"""The reduction to classes and chambers is exact: the reduced optimum is the unreduced one, and jobs are interchangeable."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.optimization.checking.certificates import Prices, priced_bound
from gavel_py.optimization.job_classes import classes_of, separate_jobs
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.optimization.solving.level_search import find_best_level
from gavel_py.optimization.solving.levels import Chambers, Levels
from tests.support.examples import examples
from tests.support.instances import TIGHT, best_level, best_value, crowds, valid_rows


class TenantMinimum(gp.SumPolicy):
    """The sum of the worst-off job of each tenant and the average of all: an objective with kinks and an attribute in words."""

    reads = ("tenants",)

    def objective(self, program: gp.Program) -> cp.Expression:
        v = program.normalized_throughput
        tenants = np.array(program.jobs.tenants)
        worst = [cp.min(v[np.flatnonzero(tenants == name)]) for name in sorted(set(tenants))]
        return sum(worst) + program.total(v) / program.num_jobs


LEVELS = ["max_min_fairness", "min_makespan", "finish_time_fairness"]
SUMS = ["max_total_throughput", "max_progress_rate"]
EVERY = [*(gp.resolve_policy(name) for name in [*LEVELS, "min_lateness", *SUMS]), TenantMinimum()]
every_policy = pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)


def able(problem: gp.AllocationProblem) -> gp.AllocationProblem:
    rows = np.flatnonzero(problem.runnable.any(axis=1))
    assume(rows.size > 0)
    return problem.select(rows)


def unreduced(problem: gp.AllocationProblem, policy: gp.Policy) -> float:
    """The objective of the same policy with one row per job."""
    decision = policy.decide(separate_jobs(problem, policy.name, policy.reads), LinearSolver())
    assert decision.certificate is not None
    return decision.certificate.value(decision.time_fractions)


@every_policy
@settings(max_examples=examples(80, costly=True))
@given(problem=crowds())
def test_reduced_and_unreduced_objectives_are_equal(policy: gp.Policy, problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    allocation = gp.solve(problem, policy)
    assert allocation.evidence is not None
    certificate = allocation.evidence.certificate
    assert certificate is not None
    scale = certificate.scale(allocation.time_fractions[certificate.jobs.rows])  # a lateness may be 0 and its terms not
    assert allocation.objective_value == pytest.approx(unreduced(problem, policy), rel=1e-8, abs=1e-8 * scale)
    assert allocation.route is not None
    assert allocation.route.failed == ()
    x = allocation.time_fractions
    assert x.min() >= 0
    assert x.sum(axis=1).max() <= 1 + 1e-9
    assert np.all(problem.num_gpus @ x <= problem.capacities * (1 + 1e-9))
    assert not x[~problem.runnable].any()
    assert allocation.gap is not None
    assert allocation.gap <= 1e-9


@pytest.mark.parametrize("name", LEVELS)
@settings(max_examples=examples(60, costly=True))
@given(problem=crowds(max_jobs=12, max_types=4))
def test_levels_are_those_of_an_independent_program(name: str, problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    theta = gp.solve(problem, name).objective_value
    assert theta is not None
    policy = gp.resolve_policy(name)
    assert isinstance(policy, gp.DemandPolicy)
    jobs = separate_jobs(problem, name, policy.reads)
    better, worse = (0.999, 1.001) if policy.direction == "min" else (1.001, 0.999)
    assert best_level(problem, np.asarray(policy.need(jobs, theta))) == pytest.approx(1, rel=1e-5)
    with np.errstate(divide="ignore"):
        harder = np.asarray(policy.need(jobs, theta * better))
    assert np.any(harder <= 0) or best_level(problem, harder) < 1
    assert best_level(problem, np.asarray(policy.need(jobs, theta * worse))) > 1


@settings(max_examples=examples(60))
@given(problem=crowds(max_jobs=12, max_types=4))
def test_the_efficiency_stage_finds_the_most_that_the_level_leaves(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    allocation = gp.solve(problem, "max_min_fairness")
    gains = problem.num_gpus[:, None] * problem.throughputs / problem.equal_share[:, None]
    need = problem.weights * problem.equal_share / problem.num_gpus * allocation.objective_value
    found = float((gains * allocation.time_fractions).sum())
    rows, limits = valid_rows(problem)
    n, k = problem.throughputs.shape
    levels = np.zeros((n, n * k))
    for i in range(n):
        levels[i, i * k : (i + 1) * k] = -problem.throughputs[i] / need[i]
    bounds = [(0, 1 if runs else 0) for runs in problem.runnable.ravel()]
    table, right = np.vstack([rows, levels]), np.concatenate([limits, np.full(n, -1 + 1e-9)])
    answer = linprog(-gains.ravel() / gains.max(), table, right, bounds=bounds, options=TIGHT)
    assert found == pytest.approx(-answer.fun * gains.max(), rel=1e-6)


@every_policy
@settings(max_examples=examples(30, costly=True))
@given(problem=crowds(), data=st.data())
def test_permuting_jobs_permutes_the_answer(policy: gp.Policy, problem: gp.AllocationProblem, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(problem.num_jobs))))
    answer, other = gp.solve(problem, policy), gp.solve(problem.select(order), policy)
    assert np.array_equal(other.time_fractions, answer.time_fractions[order])


@settings(max_examples=examples(60))
@given(problem=crowds())
def test_equal_jobs_get_equal_time(problem: gp.AllocationProblem) -> None:
    x = gp.solve(problem, "max_min_fairness").time_fractions
    rows = np.column_stack([problem.throughputs, problem.num_gpus, problem.weights])
    for i in range(problem.num_jobs):
        assert np.array_equal(x[(rows == rows[i]).all(axis=1)], np.tile(x[i], ((rows == rows[i]).all(axis=1).sum(), 1)))


@settings(max_examples=examples(60, costly=True))
@given(problem=crowds())
def test_types_and_arrays_give_the_same_answer(problem: gp.AllocationProblem) -> None:
    same = gp.AllocationProblem.from_arrays(
        problem.throughputs,
        problem.capacities,
        num_gpus=problem.num_gpus,
        weights=problem.weights,
        steps_remaining=problem.steps_remaining,
    )
    assert same.type_index is None
    for name in ("max_min_fairness", "max_total_throughput", "min_makespan"):
        assert np.array_equal(gp.solve(same, name).time_fractions, gp.solve(problem, name).time_fractions)


@settings(max_examples=examples(100))
@given(
    speeds=st.lists(st.one_of(st.just(0.0), st.sampled_from([1.0, 1.0 + 1e-10, 2.0]), st.floats(0.1, 10)), min_size=1, max_size=5),
    parts=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_of_needs_in_one_chamber_are_exact(speeds: list[float], parts: list[float], seed: int) -> None:
    """Any mean time of a cell that meets the mean need can be split so that the need of every job is met."""
    assume(max(speeds) > 0)
    count, types = len(parts), len(speeds)
    problem = gp.AllocationProblem.from_arrays([speeds] * count, [1e6] * types, weights=np.arange(1, count + 1))
    jobs = classes_of(problem, "test", ("weights",))
    chambers = Chambers(jobs)
    needs = np.array(parts) * max(speeds)
    cells = chambers.cells(needs)
    chance = np.random.default_rng(seed)
    times = np.zeros((len(cells.counts), types))
    for s, mean in enumerate(cells.means):
        costs = chance.uniform(-1, 1, types)
        bounds = [(0, 1 if speed > 0 else 0) for speed in speeds]
        answer = linprog(costs, [[-speed for speed in speeds], [1.0] * types], [-mean, 1], bounds=bounds, options=TIGHT)
        assert answer.status == 0
        times[s] = answer.x
    x = chambers.expand(cells, times, needs)
    assert x.min() >= 0
    assert x.sum(axis=1).max() <= 1 + 1e-9
    assert np.all(x @ np.array(speeds) >= needs * (1 - 1e-8) - 1e-12)
    for s in range(len(cells.counts)):
        assert x[cells.of == s].mean(axis=0) == pytest.approx(times[s], abs=1e-7)


def test_summing_all_needs_of_a_kind_would_be_wrong() -> None:
    """The sum of the steps, 410 at 5 steps/s of both types, would promise 82 s; the long job alone takes 100."""
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0]] * 2, [1, 1], steps_remaining=[400, 10])
    allocation = gp.solve(problem, "min_makespan")
    assert allocation.objective_value == pytest.approx(100)


def test_a_million_jobs_of_few_types_are_a_few_rows() -> None:
    table, types = np.array([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]]), np.repeat([0, 1, 2], 50_000)
    problem = gp.AllocationProblem.from_types(table, types, [50_000, 50_000])
    allocation = gp.solve(problem, "max_min_fairness")
    assert allocation.objective_value == pytest.approx(0.8)  # as with one job of each type on one GPU of each
    assert allocation.route is not None
    assert allocation.route.classes == 3
    assert allocation.verify().violation <= 1e-9


def test_levels_of_unknown_form_are_searched_from_the_side_of_too_much() -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]], [1, 1], steps_remaining=[240, 60, 60])
    policy = gp.resolve_policy("min_makespan")
    assert isinstance(policy, gp.DemandPolicy)
    levels = Levels(policy, classes_of(problem, policy.name, policy.reads))
    assert levels.alone == 60
    best = find_best_level(levels, LinearSolver(), efficiency=False)
    assert levels.affordable(60.0, best.prices) == pytest.approx(80)
    assert levels.affordable(60.0, Prices(np.array([0.5, 0.5]), np.zeros(0))) < 80  # other prices prove less


@settings(max_examples=examples(60, costly=True))
@given(problem=crowds(max_jobs=10, max_types=4))
def test_a_sum_is_optimal(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    expected = best_value(problem, problem.throughputs / problem.equal_share[:, None])
    assert gp.solve(problem, "max_total_throughput").objective_value == pytest.approx(expected, rel=1e-7)


def test_a_bound_counts_no_gain_where_a_job_cannot_run() -> None:
    """Without prices, the bound is what the job gains on the only type on which it runs."""
    jobs = classes_of(gp.AllocationProblem.from_arrays([[1.0, 0.0]], [1, 1]), "test", ())
    assert priced_bound(jobs, np.array([[1.0, 5.0]]), np.zeros(2)) == 1.0


class Faithful(gp.SumPolicy):
    """Time counts more for jobs that had time on the last type."""

    reads = ("previous_fractions",)

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.total(cp.multiply(1 + program.jobs.previous_fractions[:, -1], program.normalized_throughput))


def test_jobs_that_differ_only_in_what_they_had_of_the_last_type_are_not_alike() -> None:
    had = [[0.5, 0.0], [0.5, 0.5]]
    problem = gp.AllocationProblem.from_arrays([[1.0, 1.0]] * 2, [1, 0], previous_fractions=had)
    allocation = gp.solve(problem, Faithful())
    assert allocation.objective_value == pytest.approx(1.5)
    assert allocation.time_fractions[:, 0] == pytest.approx([0, 1])
