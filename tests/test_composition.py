"""Policies made of policies: weighted sums, and one objective after the other, against independent programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.constraints import CostBudget, Pin
from gavel_py.policies.max_min_fairness import MaxMinFairness
from gavel_py.policies.max_progress_rate import MaxProgressRate
from gavel_py.policies.max_total_throughput import MaxTotalThroughput
from gavel_py.policies.min_cost import MinCost
from gavel_py.policies.min_makespan import MinMakespan
from tests.instances import TIGHT, Floats, best_level, best_value, crowds, valid_rows

PRICES = [3.0, 1.0]


def three_jobs(**changes: object) -> gp.AllocationProblem:
    """bert, resnet and lstm on one V100 and one K80, as in the documentation."""
    arrays: dict[str, object] = {
        "job_ids": ["bert", "resnet", "lstm"],
        "accelerator_types": ["v100", "k80"],
        "steps_remaining": [240, 60, 60],
        "prices_per_hour": PRICES,
    }
    return gp.AllocationProblem.from_arrays([[4, 1], [2, 1], [1, 1]], [1, 1], **(arrays | changes))  # type: ignore[arg-type]


def able(problem: gp.AllocationProblem) -> gp.AllocationProblem:
    rows = np.flatnonzero(problem.runnable.any(axis=1))
    assume(rows.size > 0)
    return problem.select(rows)


def test_a_weighted_sum_is_the_sum_of_its_terms() -> None:
    policy = 2 * MaxTotalThroughput() + 0.5 * MaxTotalThroughput(normalized=False)
    allocation = gp.solve(three_jobs(), policy)
    # bert has the V100, lstm the K80: v = 1.6 + 1, steps/s = 4 + 1.
    assert allocation.objective_value == pytest.approx(2 * 2.6 + 0.5 * 5)
    assert allocation.options == {"terms": "2 * max_total_throughput + 0.5 * max_total_throughput,normalized=false"}


def test_weights_multiply_and_sums_go_on() -> None:
    both = (MaxTotalThroughput() + MaxProgressRate()) * 3 + MaxTotalThroughput(normalized=False)
    assert [weight for weight, _ in both.terms] == [3, 3, 1]


def test_a_term_that_is_minimised_counts_against_the_others() -> None:
    # A V100 costs 3 and gives bert 1.6 and resnet 4/3; a K80 costs 1 and gives lstm 1.
    dear = gp.solve(three_jobs(), MaxTotalThroughput() + 0.6 * _cost())
    assert dear.time_fractions.round(6).tolist() == [[0, 0], [0, 0], [0, 1]]
    cheap = gp.solve(three_jobs(), MaxTotalThroughput() + 0.5 * _cost())
    assert cheap.time_fractions.round(6).tolist() == [[1, 0], [0, 0], [0, 1]]
    assert cheap.objective_value == pytest.approx(2.6 - 0.5 * 4)


def _cost() -> gp.SumPolicy:
    return Cost()


class Cost(gp.SumPolicy):
    """What the GPUs cost per hour."""

    direction = "min"

    def objective(self, program: gp.Program) -> object:  # type: ignore[override]
        prices = program.jobs.prices_per_hour
        return program.total(program.by_job(prices[program.columns] * program.jobs.num_gpus[program.rows]))


@settings(max_examples=60, deadline=None)
@given(problem=crowds(max_jobs=12, max_types=4))
def test_a_weighted_sum_is_optimal(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    share = problem.throughputs / problem.equal_share[:, None]
    progress = (problem.weights / problem.steps_remaining)[:, None] * problem.throughputs
    expected = best_value(problem, 2 * share + 100 * progress)
    allocation = gp.solve(problem, 2 * MaxTotalThroughput() + 100 * MaxProgressRate())
    assert allocation.objective_value == pytest.approx(expected, rel=1e-7)
    assert allocation.objective_bound == pytest.approx(expected, rel=1e-7)


@settings(max_examples=60, deadline=None)
@given(problem=crowds(max_jobs=10, max_types=4))
def test_after_fairness_the_most_throughput_that_it_leaves(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    tolerance = 1e-3
    allocation = gp.solve(problem, gp.Then(MaxMinFairness(), MaxTotalThroughput(), tolerance=tolerance))
    need = problem.weights * problem.equal_share / problem.num_gpus
    level = best_level(problem, need)
    assert allocation.objective_value is not None
    assert allocation.objective_value >= level * (1 - tolerance) * (1 - 1e-7)
    gains = problem.throughputs / problem.equal_share[:, None]
    assert allocation.stages[1].value == pytest.approx(_best_above(problem, gains, need * level * (1 - tolerance)), rel=1e-6)
    assert allocation.verify().stages == allocation.stages


@settings(max_examples=60, deadline=None)
@given(problem=crowds(max_jobs=10, max_types=4))
def test_after_throughput_the_fairest_that_it_leaves(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    gains = problem.throughputs / problem.equal_share[:, None]
    most = best_value(problem, gains)
    allocation = gp.solve(problem, gp.Then(MaxTotalThroughput(), MaxMinFairness(), tolerance=0.1))
    assert allocation.objective_bound == pytest.approx(most, rel=1e-7)
    assert float((gains * allocation.time_fractions).sum()) >= most * 0.9 * (1 - 1e-7)
    need = problem.weights * problem.equal_share / problem.num_gpus
    fairest = _best_level_above(problem, need, gains / most, 0.9)
    assert allocation.stages[1].value == pytest.approx(fairest, rel=1e-5, abs=1e-7)


def _best_above(problem: gp.AllocationProblem, gains: Floats, least: Floats) -> float:
    """max Σ G X over valid allocations with thr_i >= least_i, by scipy."""
    n, k = problem.throughputs.shape
    rows, limits = valid_rows(problem)
    floors = np.zeros((n, n * k))
    for i in range(n):
        floors[i, i * k : (i + 1) * k] = -problem.throughputs[i] / max(least[i], 1e-300)
    bounds = [(0, 1 if runs else 0) for runs in problem.runnable.ravel()]
    table, right = np.vstack([rows, floors]), np.concatenate([limits, np.full(n, -1 + 1e-9)])
    answer = linprog(-gains.ravel() / gains.max(), table, right, bounds=bounds, options=TIGHT)
    assert answer.status == 0
    return float(-answer.fun * gains.max())


def _best_level_above(problem: gp.AllocationProblem, need: Floats, gains: Floats, least: float) -> float:
    """max ℓ with thr_i >= ℓ need_i and Σ G X >= least, by scipy."""
    n, k = problem.throughputs.shape
    rows, limits = valid_rows(problem)
    levels = np.zeros((n, n * k + 1))
    for i in range(n):
        levels[i, i * k : (i + 1) * k] = -problem.throughputs[i] / need[i]
        levels[i, -1] = 1
    table = np.vstack([np.hstack([rows, np.zeros((len(rows), 1))]), levels, np.append(-gains.ravel(), 0.0)])
    bounds = [(0, 1 if runs else 0) for runs in problem.runnable.ravel()] + [(0, None)]
    costs = np.zeros(n * k + 1)
    costs[-1] = -1
    answer = linprog(costs, table, np.concatenate([limits, np.zeros(n), [-least]]), bounds=bounds, options=TIGHT)
    assert answer.status == 0
    return float(-answer.fun)


def test_three_in_a_row() -> None:
    policy = gp.Then(MinMakespan(), gp.Then(MaxMinFairness(), MaxTotalThroughput()))
    allocation = gp.solve(three_jobs(), policy)
    assert [stage.name for stage in allocation.stages] == ["min_makespan", "max_min_fairness", "max_total_throughput"]
    assert allocation.objective_value == pytest.approx(80, rel=2e-6)
    assert allocation.policy == "then"
    assert policy.label == "then(min_makespan; then(max_min_fairness; max_total_throughput))"


def test_an_answer_in_stages_survives_a_file() -> None:
    allocation = gp.solve(three_jobs(), gp.Then(MinMakespan(), MaxTotalThroughput()))
    assert gp.Allocation.from_json(allocation.to_json()).stages == allocation.stages


def test_kinks_are_kept_by_a_sum() -> None:
    late = gp.Then(MinCost(), MaxTotalThroughput(), tolerance=1e-4)
    problem = three_jobs(deadlines_seconds=[60, 30, np.nan])
    alone, after = gp.solve(problem, MinCost()), gp.solve(problem, late)
    assert after.objective_value == pytest.approx(alone.objective_value, rel=2e-4)
    assert after.stages[0].value == pytest.approx(alone.stages[0].value, rel=2e-4)


def test_constraints_of_the_parts_hold_for_the_whole() -> None:
    budget, pin = CostBudget(2), Pin("bert", "v100")
    allocation = gp.solve(three_jobs(), gp.Then(MaxMinFairness(constraints=[budget]), MaxTotalThroughput(constraints=[pin])))
    assert float(allocation.time_fractions.sum(axis=0) @ PRICES) <= 2 + 1e-9
    assert allocation.time_fractions[0, 1] == 0
    sums = gp.solve(three_jobs(), MaxTotalThroughput(constraints=[budget]) + MaxProgressRate(constraints=[pin]))
    assert float(sums.time_fractions.sum(axis=0) @ PRICES) <= 2 + 1e-9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaxTotalThroughput() * 0, "the weight of max_total_throughput must be a number greater than 0, found 0"),
        (lambda: MaxTotalThroughput() * np.inf, "greater than 0, found inf"),
        (lambda: gp.Then(MaxMinFairness(), gp.resolve_policy("fifo")), "takes policies with an objective, and fifo has none"),
        (lambda: gp.Then(MaxMinFairness(), "fifo"), "takes two policies, found 'fifo'"),
        (lambda: gp.Then(MaxMinFairness(), MinCost(), tolerance=0), "takes a tolerance greater than 0 and below 1, found 0"),
        (lambda: gp.solve(three_jobs(), gp.Then(MaxMinFairness(agnostic=True), MinMakespan())), "both agnostic, or none"),
        (
            lambda: gp.solve(three_jobs(deadlines_seconds=[60, 30, np.nan]), gp.Then(MinCost(), MaxMinFairness())),
            "the objective of min_cost has kinks, after which only a sum can come, not max_min_fairness",
        ),
    ],
    ids=str,
)
def test_what_does_not_compose_is_named(make: object, message: str) -> None:
    with pytest.raises(gp.InputError, match=message):
        make()  # type: ignore[operator]


def test_only_sums_can_be_added() -> None:
    with pytest.raises(TypeError):
        MaxTotalThroughput() + MaxMinFairness()  # type: ignore[operator]


def test_a_policy_of_stages_is_no_term() -> None:
    with pytest.raises(gp.InputError, match="min_cost is more than its objective, and a sum would keep nothing else of it"):
        MaxTotalThroughput() + MinCost()
