"""Price decomposition finds the optimum of one large program, and its answers are proven, the same every time, and honest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.optimization import job_classes
from gavel_py.optimization.checking.certificates import CheapestMix
from gavel_py.optimization.solving import price_decomposition
from gavel_py.optimization.solving.best_responses import BestResponses
from gavel_py.optimization.solving.cutting_planes import PriceBox
from tests.support.examples import examples
from tests.support.instances import best_level, best_value, problems

MaxProgressRate = gp.policy_class("max_progress_rate")
MaxTotalThroughput = gp.policy_class("max_total_throughput")

FEW, NEVER = 1, 10**9


def all_different(count: int, types: int = 4, seed: int = 0) -> gp.AllocationProblem:
    """Jobs of 26 base rows with noise, no two rows equal, for a fifth of the GPUs that they request."""
    chance = np.random.default_rng(seed)
    base = chance.lognormal(0, 1, (26, 1)) * chance.lognormal(0, 0.6, (26, types))
    throughputs = base[chance.integers(0, 26, count)] * chance.lognormal(0, 0.05, (count, types))
    throughputs *= chance.random((count, types)) < 0.9
    gangs = chance.choice([1, 2, 4, 8], count, p=[0.7, 0.1, 0.15, 0.05])
    capacities = np.round(0.2 * gangs.sum() * chance.dirichlet(np.full(types, 4.0)))
    elapsed = chance.uniform(0, 1e5, count)
    return gp.AllocationProblem.from_arrays(
        throughputs,
        capacities,
        num_gpus=gangs,
        weights=chance.uniform(0.5, 2, count),
        steps_remaining=chance.lognormal(11, 1, count),
        elapsed_seconds=elapsed,
        isolated_seconds=elapsed * chance.uniform(0, 1, count),
        prices_per_hour=chance.uniform(0.5, 4, types),
    )


def by_prices(problem: gp.AllocationProblem, policy: str | gp.Policy, monkeypatch: pytest.MonkeyPatch) -> gp.Allocation:
    """The allocation with prices for any number of rows."""
    monkeypatch.setattr(job_classes, "PRICED_ROWS", FEW)
    allocation = gp.solve(problem, policy)
    monkeypatch.undo()
    assert allocation.verify().violation <= 1e-9
    return allocation


@st.composite
def markets(draw: st.DrawFn) -> tuple[BestResponses, np.ndarray, np.ndarray]:
    """Some jobs, with or without gains and needs, and a box of prices."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, types = 20, draw(st.integers(1, 6))
    speeds = chance.lognormal(0, 1, (types, count)) * (chance.random((types, count)) < 0.8)
    speeds[0, :2] = 0.0
    gains = speeds * chance.random(count) * 0.1 * draw(st.sampled_from([0.0, 1.0]))
    needs = speeds.max(axis=0) * chance.random(count) * chance.choice([0, 1], count)
    low = chance.random(types) * 0.3 * chance.choice([0, 1], types)
    return BestResponses(gains, chance.choice([1.0, 2.0], count), needs, speeds), low, low + 0.3 * chance.random(types)


@settings(max_examples=examples(60))
@given(market=markets(), seed=st.integers(0, 100))
def test_responses_cost_as_much_as_the_cheapest_mixes_and_fixed_jobs_keep_theirs(
    market: tuple[BestResponses, np.ndarray, np.ndarray], seed: int
) -> None:
    responses, low, high = market
    sure, choices = responses.certain(low, high)
    at = low + (high - low) * np.random.default_rng(seed).random(len(low))
    assert responses.gains is not None
    assert responses.throughputs is not None
    costs = (responses.gpus * at[:, None] - responses.gains).T
    mix = CheapestMix(responses.throughputs.T, responses.throughputs.T > 0, costs)
    for i in range(len(responses)):
        rows = np.array([i])
        found = responses.part(rows).at(at)
        least = mix.costs(np.bincount(rows, minlength=len(responses)), responses.needs[rows])[0]  # type: ignore[index]
        assert found.surplus == pytest.approx(-least, abs=1e-12)
        if sure[i]:
            gained, used, _ = responses.fixed(rows, choices)
            assert gained - at @ used == pytest.approx(found.surplus, abs=1e-12)


@settings(max_examples=examples(80, costly=True))
@given(problem=problems())
def test_a_sum_by_prices_is_the_optimum_of_one_row_per_job(problem: gp.AllocationProblem) -> None:
    assume(problem.runnable.any())
    with pytest.MonkeyPatch.context() as patch:
        allocation = by_prices(problem, "max_progress_rate", patch)
    gains = (problem.weights / problem.steps_remaining)[:, None] * problem.throughputs
    assert allocation.objective_value == pytest.approx(best_value(problem, gains), rel=1e-6)


@pytest.mark.parametrize("policy", ["max_total_throughput", "max_progress_rate", "throughput_per_dollar"])
@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_that_of_one_large_program(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = all_different(700, 3 + seed, seed)
    one = gp.solve(problem, policy)
    other = by_prices(problem, policy, monkeypatch)
    assert one.route is not None
    assert other.route is not None
    assert (one.route.algorithm, other.route.algorithm) == ("simplex", "prices")
    assert other.objective_value == pytest.approx(one.objective_value, rel=1e-9)
    np.testing.assert_allclose(other.shadow_prices, one.shadow_prices, rtol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_least_throughputs_are_kept_at_the_same_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = all_different(600, 3 + seed, seed)
    parts = np.random.default_rng(seed).choice([0.02, 0.1, np.nan], problem.num_jobs)
    problem = replace(problem, deadlines_seconds=problem.steps_remaining / (parts * np.maximum(problem.fastest, 1e-9)))
    policy = MaxTotalThroughput(constraints=[gp.Deadline()])
    one, other = gp.solve(problem, policy), by_prices(problem, policy, monkeypatch)
    assert other.route is not None
    assert other.route.algorithm == "prices"
    assert other.objective_value == pytest.approx(one.objective_value, rel=1e-9)


def test_a_weighted_sum_of_linear_objectives_has_prices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = all_different(500)
    policy = 2 * MaxTotalThroughput() + MaxProgressRate()
    one, other = gp.solve(problem, policy), by_prices(problem, policy, monkeypatch)
    assert other.route is not None
    assert other.route.algorithm == "prices"
    assert other.objective_value == pytest.approx(one.objective_value, rel=1e-9)


LEVELS = ["max_min_fairness", "min_makespan", "finish_time_fairness"]


def total_service(allocation: gp.Allocation, problem: gp.AllocationProblem) -> float:
    """What the efficiency stage maximises, Σ_i s_i v_i."""
    return float(problem.num_gpus @ allocation.normalized_throughputs)


@settings(max_examples=examples(80, costly=True))
@given(problem=problems())
def test_the_fairest_level_by_prices_is_the_optimum_of_one_row_per_job(problem: gp.AllocationProblem) -> None:
    assume(problem.runnable.any())
    with pytest.MonkeyPatch.context() as patch:
        allocation = by_prices(problem, "max_min_fairness", patch)
    need = problem.weights * problem.equal_share / problem.num_gpus
    assert allocation.objective_value == pytest.approx(best_level(problem, need), rel=1e-6)


@pytest.mark.parametrize("policy", LEVELS)
@pytest.mark.parametrize("seed", range(4))
def test_the_level_and_its_most_efficient_allocation_are_those_of_one_large_program(
    policy: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = all_different(500, 3 + seed, seed)
    one, other = gp.solve(problem, policy), by_prices(problem, policy, monkeypatch)
    assert one.route is not None
    assert other.route is not None
    assert (one.route.algorithm, other.route.algorithm) == ("simplex", "prices")
    assert other.objective_value == pytest.approx(one.objective_value, rel=1e-9)
    assert total_service(other, problem) == pytest.approx(total_service(one, problem), rel=1e-8)
    np.testing.assert_allclose(other.shadow_prices, one.shadow_prices, rtol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("free", [[0], [1, 2], [0, 1, 2]])
def test_types_that_nobody_needs_for_the_level_go_to_the_most_efficient_jobs(
    free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = all_different(200, 4)
    capacities = problem.capacities.copy()
    capacities[free] += problem.num_gpus.sum()
    problem = problem.with_capacities(capacities)
    one, other = gp.solve(problem, "max_min_fairness"), by_prices(problem, "max_min_fairness", monkeypatch)
    assert other.route is not None
    assert other.route.algorithm == "prices"
    assert other.objective_value == pytest.approx(one.objective_value, rel=1e-9)
    assert total_service(other, problem) == pytest.approx(total_service(one, problem), rel=1e-8)


@pytest.mark.deep
@pytest.mark.parametrize("policy", LEVELS)
def test_levels_of_many_different_jobs_start_from_old_prices(policy: str) -> None:
    before, after = (all_different(2 * job_classes.PRICED_ROWS, seed=seed) for seed in (0, 1))
    solver = gp.Solver(policy)
    solver.solve(before)
    warm, cold = solver.solve(after), gp.solve(after, policy)
    assert warm.route is not None
    assert warm.route.algorithm == "prices"
    assert warm.objective_value == pytest.approx(cold.objective_value, rel=1e-9)
    assert total_service(warm, after) == pytest.approx(total_service(cold, after), rel=1e-7)


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["max_total_throughput", *LEVELS])
def test_prices_of_a_very_different_cluster_do_no_harm(policy: str) -> None:
    problem = all_different(2 * job_classes.PRICED_ROWS, 5)
    other = problem.with_capacities(problem.capacities * [0.3, 4, 0.05, 1, 2])
    solver = gp.Solver(policy)
    solver.solve(problem)
    warm, cold = solver.solve(other), gp.solve(other, policy)
    assert warm.route is not None
    assert warm.route.algorithm == "prices"
    assert warm.objective_value == pytest.approx(cold.objective_value, rel=1e-9)


@pytest.mark.deep
def test_a_price_that_is_0_in_a_sample_may_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = PriceBox.around(np.array([0.0, 1.0]), 0.1)
    assert kept.low.tolist() == [0.0, 0.9]
    assert kept.high[0] > 0
    problem = all_different(8_000, 3)
    problem = problem.with_capacities(np.array([2e3, 1e3, 8.0]))
    one = gp.solve(problem, "max_min_fairness")
    monkeypatch.setattr(job_classes, "PRICED_ROWS", NEVER)
    assert one.objective_value == pytest.approx(gp.solve(problem, "max_min_fairness").objective_value, rel=1e-9)


@pytest.mark.deep
def test_the_answer_does_not_depend_on_the_order_of_the_jobs_nor_on_the_run() -> None:
    problem = all_different(3 * job_classes.PRICED_ROWS)
    order = np.random.default_rng(1).permutation(problem.num_jobs)
    one, again = (gp.solve(problem, "max_total_throughput") for _ in range(2))
    other = gp.solve(problem.select(order), "max_total_throughput")
    assert one.route is not None
    assert one.route.algorithm == "prices"
    assert np.array_equal(one.time_fractions, again.time_fractions)
    assert np.array_equal(one.time_fractions[order], other.time_fractions)


def test_a_solver_that_knows_old_prices_finds_the_same_optimum() -> None:
    before, after = (all_different(2 * job_classes.PRICED_ROWS, seed=seed) for seed in (0, 1))
    solver = gp.Solver("max_total_throughput")
    solver.solve(before)
    warm = solver.solve(after)
    assert warm.route is not None
    assert warm.route.algorithm == "prices"
    assert warm.objective_value == pytest.approx(gp.solve(after, "max_total_throughput").objective_value, rel=1e-9)


def test_few_rows_and_jobs_that_rows_join_are_one_program() -> None:
    few, many = all_different(100), all_different(job_classes.PRICED_ROWS + 100)
    quota = MaxTotalThroughput(constraints=[gp.Quota("red", gpus=5.0, borrowable=False)])
    red = gp.AllocationProblem.from_arrays(
        many.throughputs, many.capacities, num_gpus=many.num_gpus, tenants=["red"] * many.num_jobs
    )
    for problem, policy in ((few, MaxTotalThroughput()), (red, quota)):
        route = gp.solve(problem, policy).route
        assert route is not None
        assert route.algorithm == "simplex"


def test_an_answer_that_is_not_proven_leads_to_the_next_route(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = all_different(job_classes.PRICED_ROWS + 100)
    monkeypatch.setattr(price_decomposition, "ACCEPTED", -1.0)
    allocation = gp.solve(problem, "max_total_throughput")
    assert allocation.route is not None
    assert allocation.route.algorithm == "simplex"
    assert allocation.verify().gap is not None


def test_explanations_read_the_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = all_different(60)

    def bindings() -> list[list[str]]:
        return [[str(each) for each in gp.explain(problem, job, "max_total_throughput").bindings] for job in problem.job_ids[:8]]

    expected = bindings()
    monkeypatch.setattr(job_classes, "PRICED_ROWS", FEW)
    assert bindings() == expected


def test_jobs_without_needs_get_the_gpus_that_others_leave() -> None:
    chance, count = np.random.default_rng(0), 4000
    throughputs = chance.uniform(1, 3, (count, 2))
    throughputs[::3, 1] = 0
    problem = gp.AllocationProblem.from_arrays(
        throughputs,
        [150, 4000],
        steps_remaining=chance.uniform(50, 100, count),
        deadlines_seconds=np.where(np.arange(count) % 2 == 0, chance.uniform(50, 100, count), np.nan),
    )
    allocation = gp.solve(problem, "min_lateness")
    assert allocation.route is not None
    assert allocation.route.algorithm == "prices"
    idle = allocation.time_fractions.sum(axis=1) == 0
    assert not (idle & (throughputs[:, 1] > 0)).any(), "there are more GPUs of the second type than jobs"


@pytest.mark.parametrize("full", [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_one_more_gpu_of_a_type_that_decided_jobs_fill_is_worth_its_price(full: tuple[int, ...]) -> None:
    """A number of jobs that equals the number of GPUs is much faster on a type than all others, so that its price is not unique."""
    chance, gpus = np.random.default_rng(len(full)), np.array([300, 200, 400, 900])
    throughputs = chance.uniform(0.5, 1, (4000, 4))
    for j in full:
        throughputs[1000 * j : 1000 * j + gpus[j], j] = chance.uniform(3, 4, gpus[j])
    problem = gp.AllocationProblem.from_arrays(throughputs, gpus)
    policy = MaxTotalThroughput(normalized=False)
    allocation = gp.solve(problem, policy)
    assert allocation.route is not None
    assert allocation.route.algorithm == "prices"
    for j, price in enumerate(allocation.shadow_prices):
        more = gp.solve(problem.with_capacities(gpus + np.eye(4)[j]), policy)
        assert more.objective_value - allocation.objective_value == pytest.approx(price, rel=1e-3)


def test_a_type_without_gpus_has_no_price_after_one_with_gpus() -> None:
    chance = np.random.default_rng(0)
    throughputs = np.stack([chance.uniform(1, 2, 4000), chance.uniform(0.5, 1, 4000)], axis=1)
    with_gpus, without = (gp.AllocationProblem.from_arrays(throughputs, gpus) for gpus in ([500, 500], [0, 500]))
    solver = gp.Solver(MaxTotalThroughput(normalized=False))
    solver.solve(with_gpus)
    assert solver.solve(without).shadow_prices[0] == 0


def test_at_a_kink_of_the_level_one_more_gpu_of_either_type_gains_nothing() -> None:
    """Two groups of equal jobs, each on a type of its own, have the same makespan, so that both types would have to grow."""
    speeds = np.random.default_rng(0).uniform(1, 3, 2000)
    throughputs = np.zeros((4000, 2))
    throughputs[:2000, 0] = throughputs[2000:, 1] = speeds
    problem = gp.AllocationProblem.from_arrays(throughputs, [500, 500], steps_remaining=np.tile(speeds, 2) * 100)
    allocation = gp.solve(problem, "min_makespan")
    assert allocation.route is not None
    assert allocation.route.algorithm == "prices"
    assert allocation.shadow_prices == pytest.approx([0, 0])
    more = gp.solve(problem.with_capacities([501, 501]), "min_makespan")
    assert more.objective_value < allocation.objective_value - 0.5, "with one more of both, it is 800 · 500 / 501"


@settings(max_examples=examples(20, costly=True))
@given(st.integers(0, 2**32 - 1), st.sampled_from(["min_makespan", "max_min_fairness", "min_lateness"]))
def test_the_price_of_a_level_is_what_one_more_gpu_is_worth(seed: int, policy: str) -> None:
    chance = np.random.default_rng(seed)
    throughputs = chance.uniform(1, 3, (400, 3)) * (chance.random((400, 3)) < 0.8)
    gpus, steps = chance.integers(5, 60, 3).astype(float), chance.uniform(50, 100, 400)
    problem = gp.AllocationProblem.from_arrays(
        throughputs, gpus, steps_remaining=steps, deadlines_seconds=steps * chance.uniform(0.1, 1, 400)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_classes, "PRICED_ROWS", FEW)
        prices = gp.solve(problem, policy).shadow_prices
    assert prices == pytest.approx(gp.solve(problem, policy).shadow_prices, rel=1e-5, abs=1e-9)
