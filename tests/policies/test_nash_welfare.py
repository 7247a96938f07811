"""Nash welfare: answers by hand, the conditions of its optimum, and what each job is sure of, with and without the discount."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import Floats, best_value, crowds, problems

NashWelfare = gp.policy_class("nash_welfare")


def able(problem: gp.AllocationProblem) -> gp.AllocationProblem:
    return problem.select(problem.runnable.any(axis=1))


def three_jobs() -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays([[4, 1], [2, 1], [1, 1]], [1, 1])


def test_time_on_one_type_is_in_proportion_to_weight_over_gang() -> None:
    """With n equal GPUs, Σ w_i log x_i under Σ s_i x_i <= n is best at x_i = n w_i / (s_i Σ w)."""
    problem = gp.AllocationProblem.from_arrays([[3.0], [0.1], [7.0], [7.0]], [4], weights=[1, 2, 3, 4], num_gpus=[1, 1, 2, 4])
    allocation = gp.solve(problem, "nash_welfare")
    assert allocation.time_fractions[:, 0] == pytest.approx([0.4, 0.8, 0.6, 0.4], rel=1e-7)
    assert allocation.shadow_prices == pytest.approx([10 / 4], rel=1e-6)  # Σ w / n: all that there is to spend, per GPU


def test_a_heavy_job_runs_always_and_the_others_share_the_rest() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [2], weights=[100, 1, 3])
    assert gp.solve(problem, "nash_welfare").time_fractions[:, 0] == pytest.approx([1, 0.25, 0.75], rel=1e-6)


def test_each_job_takes_the_type_that_it_gains_most_from() -> None:
    """bert and resnet share the V100 at a price of 2, lstm takes the K80 at a price of 1; each spends its weight of 1."""
    allocation = gp.solve(three_jobs(), "nash_welfare")
    assert allocation.time_fractions.ravel() == pytest.approx([0.5, 0, 0.5, 0, 0, 1], abs=1e-5)
    assert allocation.objective_value == pytest.approx(np.log(0.8 * (2 / 3) * 1), abs=1e-9)
    assert allocation.shadow_prices == pytest.approx([2, 1], rel=1e-5)


def test_a_mix_of_types_by_hand() -> None:
    """bert (4, 1) and resnet (2, 1) on one GPU of each type: (1 + 3x)(2 − x) is largest at x = 5/6, bert's part of the V100."""
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0]], [1, 1])
    allocation = gp.solve(problem, "nash_welfare")
    assert allocation.time_fractions.ravel() == pytest.approx([5 / 6, 1 / 6, 1 / 6, 5 / 6], rel=1e-6)
    assert allocation.throughputs == pytest.approx([7 / 2, 7 / 6], rel=1e-7)


@settings(max_examples=examples(40, costly=True))
@given(problem=st.one_of(problems(), crowds()))
def test_no_other_allocation_gains_more_per_cent_than_it_costs(problem: gp.AllocationProblem) -> None:
    """Σ w_i u_i(Y) / u_i(X) <= Σ w for every valid Y: the condition of the optimum, with a linear program to find the worst Y."""
    problem = able(problem)
    if not problem.num_jobs:
        return
    gains = (problem.weights / gp.solve(problem, "nash_welfare").throughputs)[:, None] * problem.throughputs
    assert best_value(problem, gains) == pytest.approx(problem.weights.sum(), rel=1e-6)


@settings(max_examples=examples(20))
@given(problem=crowds(), seed=st.integers(0, 2**32 - 1))
def test_no_random_allocation_is_better(problem: gp.AllocationProblem, seed: int) -> None:
    problem = able(problem)
    if not problem.num_jobs:
        return
    allocation, rng = gp.solve(problem, "nash_welfare"), np.random.default_rng(seed)
    value = problem.weights @ np.log(allocation.normalized_throughputs)
    assert allocation.objective_value == pytest.approx(value, rel=1e-9, abs=1e-9)
    for _ in range(20):
        other = np.where(problem.runnable, rng.random(problem.throughputs.shape), 0)
        other = 0.5 * other + allocation.time_fractions * rng.uniform(0.5, 2)
        other /= np.maximum(1, other.sum(axis=1, keepdims=True))
        other /= np.maximum(1, (problem.num_gpus @ other) / np.maximum(problem.capacities, 1e-9))
        speeds = (problem.throughputs * other).sum(axis=1)
        with np.errstate(divide="ignore"):
            assert problem.weights @ np.log(speeds / problem.equal_share) <= value + 1e-7 * problem.weights.sum()


def alone(problem: gp.AllocationProblem) -> Floats:
    """Steps/s of each job if it had the whole cluster: its fastest types first, until all its time is used."""
    speeds = np.zeros(problem.num_jobs)
    for i in range(problem.num_jobs):
        time = 1.0
        for j in np.argsort(-problem.throughputs[i], kind="stable"):
            part = min(time, problem.capacities[j] / problem.num_gpus[i]) if problem.runnable[i, j] else 0.0
            speeds[i] += part * problem.throughputs[i, j]
            time -= part
    return speeds


@settings(max_examples=examples(40))
@given(problem=st.one_of(problems(), crowds()))
def test_each_job_has_its_part_of_what_it_would_have_alone(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    share = problem.weights / max(1e-9, problem.weights.sum())
    assert np.all(gp.solve(problem, "nash_welfare").throughputs >= share * alone(problem) * (1 - 1e-6))


@pytest.mark.deep
@settings(max_examples=examples(20, costly=True))
@given(problem=crowds())
def test_one_row_per_job_gives_the_same_throughputs(problem: gp.AllocationProblem) -> None:
    class OneByOne(NashWelfare):
        """Nash welfare with a class for each job."""

        reads = ("weights", "job_ids")

    for options in ({}, {"strategy_proof": True}):
        classes = gp.solve(problem, NashWelfare(**options))
        assert classes.throughputs == pytest.approx(gp.solve(problem, OneByOne(**options)).throughputs, rel=1e-4)


def test_the_discount_of_equal_jobs_follows_the_formula() -> None:
    """n equal jobs have 1/n each, and without one of them 1/(n−1): each keeps ((n−1)/n)^(n−1) of its time, 1/e in the end."""
    for n in (1, 2, 3, 50):
        allocation = gp.solve(gp.AllocationProblem.from_arrays([[2.0]] * n, [1]), "nash_welfare", strategy_proof=True)
        kept = ((n - 1) / n) ** (n - 1)
        assert allocation.time_fractions[:, 0] == pytest.approx([kept / n] * n, rel=1e-5)
        assert allocation.objective_value == pytest.approx(n * np.log(1 / n), abs=1e-6)


def test_the_discount_by_hand() -> None:
    """u of all three is (2, 1, 1). Without bert (2, 1), without resnet (4, 1), and without lstm (7/2, 7/6)."""
    plain, proof = (gp.solve(three_jobs(), "nash_welfare", strategy_proof=flag) for flag in (False, True))
    kept = [1 * 1 / (2 * 1), 2 * 1 / (4 * 1), 2 * 1 / (7 / 2 * 7 / 6)]
    assert proof.throughputs / plain.throughputs == pytest.approx(kept, rel=1e-5)
    assert proof.objective_value == pytest.approx(plain.objective_value, abs=1e-12)
    assert proof.verify().gap == proof.gap


def test_a_weight_counts_in_the_discount() -> None:
    """One GPU, weights 1 and 3: times ¼ and ¾. The light job keeps ((3/4) / 1)^3, the heavy one ((1/4) / 1)^(1/3)."""
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1], weights=[1, 3])
    times = gp.solve(problem, "nash_welfare", strategy_proof=True).time_fractions[:, 0]
    assert times == pytest.approx([0.25 * 0.75**3, 0.75 * 0.25 ** (1 / 3)], rel=1e-6)


@settings(max_examples=examples(20, costly=True))
@given(problem=problems(max_jobs=5), seed=st.integers(0, 2**32 - 1))
def test_wrong_throughputs_do_not_pay(problem: gp.AllocationProblem, seed: int) -> None:
    problem = able(problem)
    if not problem.num_jobs:
        return
    rng = np.random.default_rng(seed)
    lie = problem.throughputs.copy()
    lie[0] *= rng.choice([0.1, 0.5, 1, 2, 10], len(lie[0]))
    weights, gangs = problem.weights, problem.num_gpus
    told = gp.AllocationProblem.from_arrays(lie, problem.capacities, weights=weights, num_gpus=gangs)
    honest = gp.solve(problem, "nash_welfare", strategy_proof=True).throughputs[0]
    lying = problem.throughputs[0] @ gp.solve(told, "nash_welfare", strategy_proof=True).time_fractions[0]
    assert lying <= honest * (1 + 1e-4)


def test_without_the_discount_a_job_can_gain_by_it() -> None:
    """A job (4, t) beside one of (2, 1) gets x = 1 − t / (2 (4 − t)) of the V100: 5/6 for t = 1, and more for a lower t."""
    for strategy_proof, gains in ((False, True), (True, False)):
        honest, lying = (
            gp.solve(
                gp.AllocationProblem.from_arrays([[4.0, t], [2.0, 1.0]], [1, 1]), "nash_welfare", strategy_proof=strategy_proof
            ).time_fractions[0]
            @ [4.0, 1.0]
            for t in (1.0, 0.01)
        )
        assert (lying > honest * 1.01) == gains


@settings(max_examples=examples(20, costly=True))
@given(problem=crowds(max_jobs=10))
def test_what_is_kept_is_between_a_part_of_e_and_all(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    plain, proof = (gp.solve(problem, "nash_welfare", strategy_proof=flag) for flag in (False, True))
    kept = proof.throughputs / plain.throughputs if problem.num_jobs else np.ones(0)
    rest = problem.weights.sum() - problem.weights
    least = np.exp(-rest / problem.weights * np.log1p(problem.weights / np.maximum(rest, 1e-300)))
    assert np.all(kept <= 1 + 1e-9)
    assert np.all(kept >= np.where(rest > 1e-9, least, 1) - 1e-4)


def test_what_the_discount_cannot_stand_is_refused() -> None:
    problem = three_jobs()
    strict = NashWelfare(strategy_proof=True)
    with pytest.raises(gp.InputError, match="option strategy_proof: cannot be used with constraints"):
        gp.solve(problem, NashWelfare(strategy_proof=True, constraints=(gp.MaxGpus(gpus=1),)))
    for composed in (lambda: 2 * strict, lambda: strict + NashWelfare()):
        with pytest.raises(gp.InputError, match="nash_welfare,strategy_proof=true is not defined by its objective alone"):
            composed()
    far = gp.AllocationProblem.from_arrays([[1.0, 2.0], [2.0, 1.0], [1.0, 3.0]], [1, 1], weights=[1e-9, 1, 1e6])
    with pytest.raises(gp.ProofError, match="the discount of a job of weight 1e-09 where all weights are 1e"):
        gp.solve(far, strict)


def test_an_inaccurate_discount_is_refused_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gavel_py.policies.nash_welfare.WORST", -1.0)  # no accuracy is enough
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1], weights=[2, 3])
    with pytest.raises(gp.ProofError, match=r"the discount of a job of weight (2|3) where all weights are 5 may be off by"):
        gp.solve(problem, NashWelfare(strategy_proof=True))


def test_gpus_that_the_discount_frees_stay_free() -> None:
    assert NashWelfare().backfills
    assert not NashWelfare(strategy_proof=True).backfills


def test_merged_jobs_are_proven_without_the_discount_only() -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [4.01, 1.0], [1.0, 2.0]], [1, 1])
    for strategy_proof, reduction in ((False, "merged"), (True, "classes")):
        route = gp.solve(problem, "nash_welfare", strategy_proof=strategy_proof, merge_tolerance=0.01).route
        assert route is not None
        assert route.reduction == reduction


@pytest.mark.parametrize("seed", range(6))
def test_many_classes_with_numbers_of_several_orders_are_proven(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, types = 300, int(rng.integers(2, 6))
    table = 10 ** rng.uniform(-4, 4, (classes, 1)) * 10 ** rng.uniform(-1, 1, (classes, types))
    table[rng.random(table.shape) < 0.2] = 0
    index = np.repeat(np.arange(classes), rng.integers(1, 50, classes))
    problem = gp.AllocationProblem.from_types(
        table,
        index,
        np.round(10 ** rng.uniform(0.9, 3, types)),
        num_gpus=rng.choice([1, 2, 4, 8], classes)[index],
        weights=10 ** rng.uniform(-2, 2, classes)[index],
    )
    allocation = gp.solve(problem, "nash_welfare")
    assert allocation.gap is not None
    assert allocation.gap <= 1e-8
    assert allocation.verify().violation <= 1e-9
    assert allocation.route is not None
    assert allocation.route.failed == ()


def test_the_agnostic_twin_shares_time() -> None:
    twin = gp.solve(three_jobs(), "nash_welfare", agnostic=True)
    assert twin.time_fractions.sum(axis=1) == pytest.approx([2 / 3] * 3)
    assert twin.objective_value == pytest.approx(3 * np.log(2 / 3))
