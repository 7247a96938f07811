"""Policies made of policies: weighted sums, and one objective after the other, against independent programs."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import TIGHT, Floats, best_level, best_value, crowds, valid_rows

MaxMinFairness = gp.policy_class("max_min_fairness")
MaxProgressRate = gp.policy_class("max_progress_rate")
MaxTotalThroughput = gp.policy_class("max_total_throughput")
MinCost = gp.policy_class("min_cost")
MinMakespan = gp.policy_class("min_makespan")

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


@settings(max_examples=examples(60))
@given(problem=crowds(max_jobs=12, max_types=4))
def test_a_weighted_sum_is_optimal(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    share = problem.throughputs / problem.equal_share[:, None]
    progress = (problem.weights / problem.steps_remaining)[:, None] * problem.throughputs
    expected = best_value(problem, 2 * share + 100 * progress)
    allocation = gp.solve(problem, 2 * MaxTotalThroughput() + 100 * MaxProgressRate())
    assert allocation.objective_value == pytest.approx(expected, rel=1e-7)
    assert allocation.objective_bound == pytest.approx(expected, rel=1e-7)


def test_a_tenth_of_the_level_for_throughput() -> None:
    """0.8 may fall to 0.72: resnet has 1.08 steps/s in 0.54 of the V100, bert 1.84 in the rest of it, and lstm all of the K80."""
    problem = gp.AllocationProblem.from_arrays([[4, 1], [2, 1], [1, 1]], [1, 1])
    allocation = gp.solve(problem, gp.Then(MaxMinFairness(), MaxTotalThroughput(), tolerance=0.1))
    assert allocation.objective_value == pytest.approx(0.72, rel=1e-7)
    assert allocation.stages[1].value == pytest.approx(1.84 / 2.5 + 0.72 + 1, rel=1e-7)


@settings(max_examples=examples(60, costly=True))
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


@settings(max_examples=examples(60, costly=True))
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


class Indifferent(gp.SumPolicy):
    """Anything is as good as anything else: 3."""

    name = "indifferent"

    def objective(self, program: gp.Program) -> cp.Expression:  # noqa: ARG002
        return cp.Constant(3.0)


def test_a_constant_can_come_first_or_be_a_term() -> None:
    best = gp.solve(three_jobs(), MaxTotalThroughput())
    assert gp.solve(three_jobs(), gp.Then(Indifferent(), MaxTotalThroughput())).throughputs == pytest.approx(best.throughputs)
    together = gp.solve(three_jobs(), Indifferent() + MaxTotalThroughput())
    assert together.objective_value == pytest.approx(3 + (best.objective_value or 0))


def test_kinks_are_kept_by_a_sum() -> None:
    late = gp.Then(MinCost(), MaxTotalThroughput(), tolerance=1e-4)
    problem = three_jobs(deadlines_seconds=[60, 30, np.nan])
    alone, after = gp.solve(problem, MinCost()), gp.solve(problem, late)
    assert after.objective_value == pytest.approx(alone.objective_value, rel=2e-4)
    assert after.stages[0].value == pytest.approx(alone.stages[0].value, rel=2e-4)


def test_constraints_of_the_parts_hold_for_the_whole() -> None:
    budget, pin = gp.CostBudget(2), gp.Pin("bert", "v100")
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
        (lambda: gp.Then(MaxMinFairness(), gp.resolve_policy("fifo")), "needs policies with an objective, but fifo has none"),
        (lambda: gp.Then(MaxMinFairness(), "fifo"), "needs two policies, found 'fifo'"),
        (lambda: gp.Then(MaxMinFairness(), MinCost(), tolerance=0), "needs a tolerance greater than 0 and below 1, found 0"),
        (lambda: gp.solve(three_jobs(), gp.Then(MaxMinFairness(agnostic=True), MinMakespan())), "either both agnostic or both not"),
        (
            lambda: gp.solve(three_jobs(deadlines_seconds=[60, 30, np.nan]), gp.Then(MinCost(), MaxMinFairness())),
            "the objective of min_cost is piecewise linear, so only a sum policy can follow it, not max_min_fairness",
        ),
    ],
)
def test_what_does_not_compose_is_named(make: object, message: str) -> None:
    with pytest.raises(gp.InputError, match=message):
        make()  # type: ignore[operator]


def test_only_sums_can_be_added() -> None:
    with pytest.raises(TypeError):
        MaxTotalThroughput() + MaxMinFairness()  # type: ignore[operator]


def test_a_policy_of_stages_is_no_term() -> None:
    with pytest.raises(gp.InputError, match="min_cost is not defined by its objective alone, and a sum would drop the rest"):
        MaxTotalThroughput() + MinCost()


def test_compositions_are_parts_of_compositions() -> None:
    left = gp.solve(three_jobs(), gp.Then(gp.Then(MinMakespan(), MaxMinFairness()), MaxTotalThroughput()))
    right = gp.solve(three_jobs(), gp.Then(MinMakespan(), gp.Then(MaxMinFairness(), MaxTotalThroughput())))
    assert [stage.name for stage in left.stages] == [stage.name for stage in right.stages]
    assert [stage.value for stage in left.stages] == pytest.approx([stage.value for stage in right.stages], rel=5e-6)
    assert left.verify().stages == left.stages


@settings(max_examples=examples(40, costly=True))
@given(problem=crowds(max_jobs=8, max_types=3))
def test_each_part_of_a_composition_of_three_is_the_best_that_the_others_leave(problem: gp.AllocationProblem) -> None:
    problem, part = able(problem), 0.05
    first = gp.Then(MaxMinFairness(), MaxTotalThroughput(), tolerance=part)
    allocation = gp.solve(problem, gp.Then(first, MaxProgressRate(), tolerance=part))
    fairness, total, _ = allocation.stages
    need = problem.weights * problem.equal_share / problem.num_gpus
    level = best_level(problem, need)
    assert fairness.value >= level * (1 - part) ** 2 * (1 - 1e-7)
    gains = problem.throughputs / problem.equal_share[:, None]
    assert total.bound == pytest.approx(_best_above(problem, gains, need * level * (1 - part)), rel=1e-6)
    assert total.gap <= part * (1 + 1e-6)  # in parts of its value, or of its largest coefficient if that is more


def test_soft_constraints_and_changes_count_in_the_last_objective() -> None:
    # The total is 1 for either job on the GPU. Dividing its time is fairer by 1/2, and 1 GPU changes.
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1], previous_fractions=[[1], [0]])
    cheap, dear = (
        gp.solve(problem, gp.Then(MaxTotalThroughput(), MaxMinFairness(constraints=[gp.SwitchCost(cost)]))) for cost in (0.1, 0.6)
    )
    assert cheap.time_fractions[:, 0].tolist() == pytest.approx([1 / 2, 1 / 2])
    assert [stage.value for stage in cheap.stages] == pytest.approx([1, 1 / 2 - 0.1], rel=1e-5)
    assert dear.time_fractions[:, 0].tolist() == pytest.approx([1, 0], abs=1e-5)
    fair = gp.Then(MaxMinFairness(), MaxTotalThroughput(), constraints=[gp.SwitchCost(0.6)])
    assert gp.solve(problem, fair).stages[1].value == pytest.approx(1 - 0.6, rel=1e-5)


@pytest.mark.parametrize("constraint", [gp.SwitchCost(1), gp.CostBudget(2).soft(1)])
def test_they_are_not_given_to_the_first(constraint: gp.Constraint) -> None:
    message = "in its last objective: pass them to the second policy, not to max_min_fairness"
    with pytest.raises(gp.InputError, match=message):
        gp.Then(MaxMinFairness(constraints=[constraint]), MaxTotalThroughput())


def test_any_objective_can_follow_least_cost_without_a_shortfall() -> None:
    # bert needs 120 steps in 60 s, half of the V100; for a little more than that, the others share some of the K80.
    problem = three_jobs(steps_remaining=[120, 60, 60], deadlines_seconds=[60, np.nan, np.nan])
    alone = gp.solve(problem, MinCost(min_share=0.0))
    assert alone.objective_value == pytest.approx(1.5)
    after = gp.solve(problem, gp.Then(MinCost(min_share=0.0), MaxMinFairness(), tolerance=0.1))
    assert after.stages[1].value == pytest.approx(1.5 + 0.1 * 3, rel=1e-5)  # in parts of the largest term, a V100 for 3
    assert after.throughputs[0] == pytest.approx(2, rel=1e-6)
    assert after.throughputs[1:].min() > 0


def test_nothing_is_asked_for_and_nothing_is_kept() -> None:
    problem = three_jobs()
    after = gp.solve(problem, gp.Then(MinCost(min_share=0.0), MaxTotalThroughput()))
    assert after.objective_value == pytest.approx(0, abs=1e-5)


def test_kinks_are_not_lost_on_the_way_through_a_composition() -> None:
    late = three_jobs(deadlines_seconds=[60, 30, np.nan])
    with pytest.raises(gp.InputError, match="so only a sum policy can follow it, not max_min_fairness"):
        gp.solve(late, gp.Then(MinCost(), gp.Then(MaxTotalThroughput(), MaxMinFairness())))
    with pytest.raises(gp.InputError, match="so only a sum policy can follow it, not max_min_fairness"):
        gp.solve(late, gp.Then(gp.Then(MinCost(), MaxTotalThroughput()), MaxMinFairness()))
    assert len(gp.solve(late, gp.Then(MinCost(), gp.Then(MaxTotalThroughput(), MaxProgressRate()))).stages) == 4


def test_agnostic_parts_promise_no_throughputs() -> None:
    parts = (MaxMinFairness(agnostic=True), MaxTotalThroughput(agnostic=True))
    with pytest.raises(gp.InputError, match="ignores throughputs with agnostic, so it cannot guarantee any"):
        gp.solve(three_jobs(), gp.Then(*parts, constraints=[gp.MinThroughput("bert", 1)]))
    mixed = gp.Then(gp.Then(*parts), MaxTotalThroughput())
    with pytest.raises(gp.InputError, match="either both agnostic or both not"):
        gp.solve(three_jobs(), mixed)


def test_numbers_of_numpy_are_numbers() -> None:
    weights = [(np.int64(2) * MaxTotalThroughput()).terms[0][0], (MaxTotalThroughput() * np.float32(2)).terms[0][0]]
    assert weights == [2, 2]


@pytest.mark.parametrize("least_cost_is", ["first", "second"])
@settings(max_examples=examples(60, costly=True))
@given(problem=crowds(max_jobs=8, max_types=3), seed=st.integers(0, 99))
def test_stages_within_a_part_of_a_composition_are_preserved(least_cost_is: str, problem: gp.AllocationProblem, seed: int) -> None:
    """A policy after min_cost may cost a little more but makes no job late; water_filling may lose a part of its last level."""
    problem, rng = able(problem), np.random.default_rng(seed)
    n, k = problem.throughputs.shape
    problem = gp.AllocationProblem.from_arrays(
        problem.throughputs,
        problem.capacities,
        num_gpus=problem.num_gpus,
        weights=problem.weights,
        steps_remaining=problem.steps_remaining,
        deadlines_seconds=np.where(rng.random(n) < 0.5, np.nan, rng.choice([-5.0, 100.0, 1e4, 1e6], n)),
        prices_per_hour=rng.choice([0.5, 1.0, 3.0], k),
    )
    if least_cost_is == "first":
        allocation = gp.solve(problem, gp.Then(MinCost(), MaxTotalThroughput(), tolerance=0.01))
        shortfall = allocation.stages[0]
        assert shortfall.value == pytest.approx(shortfall.bound, rel=1e-7, abs=1e-7)
        assert allocation.stages[1].value >= allocation.stages[1].bound * (1 - 1e-6)
    else:
        filled = gp.solve(problem, "water_filling")
        allocation = gp.solve(problem, gp.Then(gp.resolve_policy("water_filling"), MinCost(), tolerance=0.01))
        assert [stage.name for stage in allocation.stages[-2:]] == ["least shortfall", "least cost"]
        least = 0.99 * (1 - 1e-6) * filled.normalized_throughputs
        assert np.all(allocation.normalized_throughputs >= least)
