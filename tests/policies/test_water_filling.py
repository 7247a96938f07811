"""Water-filling: known answers by hand, and the whole vector against its definition, with and without constraints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import Floats, crowds, problems
from tests.support.leximin import leximin

NAMES = ["bert", "resnet", "lstm"]


def water_filling(*constraints: gp.Constraint) -> gp.Policy:
    return gp.policy_class("water_filling")(constraints=constraints)


def three_jobs(**changes: Any) -> gp.AllocationProblem:
    """bert, resnet and lstm on one V100 and one K80, as in the documentation; P = 2.5, 1.5 and 1 steps/s."""
    arrays: dict[str, Any] = {"job_ids": NAMES, "accelerator_types": ["v100", "k80"]}
    return gp.AllocationProblem.from_arrays([[4, 1], [2, 1], [1, 1]], [1, 1], **(arrays | changes))


def five_jobs() -> gp.AllocationProblem:
    """bert, resnet, and three jobs that run on the K80 only; P = 2.5, 1.5 and three times 0.5 steps/s."""
    speeds = [[4, 1], [2, 1], [0, 1], [0, 1], [0, 1]]
    return gp.AllocationProblem.from_arrays(speeds, [1, 1], job_ids=[*NAMES, "gnn", "rnn"], accelerator_types=["v100", "k80"])


def gains_of(problem: gp.AllocationProblem) -> Floats:
    """(N, K) what all of a job's time on a type adds to u_i = s_i v_i / w_i."""
    share = np.where(problem.equal_share > 0, problem.equal_share, 1.0)
    return (problem.num_gpus / share / problem.weights)[:, None] * problem.throughputs


def levels_of(problem: gp.AllocationProblem, allocation: gp.Allocation) -> Floats:
    """(N,) u_i."""
    levels: Floats = (gains_of(problem) * allocation.time_fractions).sum(axis=1)
    return levels


def assert_levels(problem: gp.AllocationProblem, allocation: gp.Allocation, expected: Floats) -> None:
    assert levels_of(problem, allocation) == pytest.approx(expected, rel=1e-6, abs=1e-6 * expected.max(initial=0.0))


def test_a_job_that_cannot_run_faster_leaves_the_others_to_rise() -> None:
    # lstm, of weight 3, has v = 1 at most. On the V100 bert and resnet rise to v = θ with 0.625 θ + 0.75 θ = 1.
    problem = three_jobs(weights=[1, 1, 3])
    allocation = gp.solve(problem, "water_filling")
    assert allocation.normalized_throughputs.tolist() == pytest.approx([8 / 11, 8 / 11, 1])
    assert allocation.objective_value == pytest.approx(1 / 3)
    assert [stage.name for stage in allocation.stages] == ["first stop", "level 1"]
    assert [stage.value for stage in allocation.stages] == pytest.approx([1 / 3, 8 / 11])
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == [0, 0]  # no GPU makes lstm faster


def test_jobs_short_of_a_type_stop_and_leave_the_others_to_rise() -> None:
    # Three jobs need 0.5 θ each of the K80: θ = 2/3. bert and resnet go on, on the V100, to θ = 8/11.
    allocation = gp.solve(five_jobs(), "water_filling")
    assert allocation.normalized_throughputs.tolist() == pytest.approx([8 / 11, 8 / 11, 2 / 3, 2 / 3, 2 / 3])
    assert [stage.value for stage in allocation.stages] == pytest.approx([2 / 3, 2 / 3, 8 / 11])
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == pytest.approx([0, 2 / 3])  # δ more K80: θ = (1 + δ) / 1.5


def test_max_min_fairness_stops_at_the_first_level() -> None:
    plain = gp.solve(five_jobs(), "max_min_fairness")
    assert plain.normalized_throughputs.tolist() == pytest.approx([0.8, 2 / 3, 2 / 3, 2 / 3, 2 / 3])


def test_a_job_without_competitors_has_all_of_its_time() -> None:
    problem = gp.AllocationProblem.from_arrays([[2, 1], [0, 3]], [1, 0])
    assert gp.solve(problem, "water_filling").time_fractions.tolist() == [[1, 0], [0, 0]]


def test_a_promised_throughput_counts_and_is_no_head_start() -> None:
    # d and e share 1.5 GPUs and rise to 0.75 each; d is promised 0.8 and waits there, e has the rest.
    problem = gp.AllocationProblem.from_arrays([[1, 0]] * 3 + [[0, 1]] * 2, [1, 1.5], job_ids=list("abcde"))
    assert gp.solve(problem, water_filling()).throughputs.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.75, 0.75])
    promised = gp.solve(problem, water_filling(gp.MinThroughput("d", 0.8)))
    assert promised.throughputs.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.8, 0.7])


@settings(max_examples=examples(150, costly=True))
@given(problem=st.one_of(problems(max_jobs=6), crowds(max_jobs=9, max_types=4)))
def test_every_job_has_what_the_definition_gives_it(problem: gp.AllocationProblem) -> None:
    assume(problem.runnable.any())
    allocation = gp.solve(problem, "water_filling")
    assert_levels(problem, allocation, leximin(problem, gains_of(problem)))
    assert allocation.route is not None
    assert allocation.route.failed == ()


@settings(max_examples=examples(100, costly=True))
@given(problem=crowds(max_jobs=8, max_types=4), seed=st.integers(0, 2**32 - 1))
def test_every_job_has_what_the_definition_gives_it_within_limits(problem: gp.AllocationProblem, seed: int) -> None:
    """Promised throughputs, a limit on a tenant and a budget, all of which some allocation keeps."""
    assume(problem.runnable.any())
    rng = np.random.default_rng(seed)
    n, k = problem.throughputs.shape
    arrays: dict[str, Any] = {"num_gpus": problem.num_gpus, "weights": problem.weights, "tenants": problem.tenants}
    prices = rng.choice([0.5, 1.0, 3.0], k)
    problem = gp.AllocationProblem.from_arrays(problem.throughputs, problem.capacities, prices_per_hour=prices, **arrays)
    x = some_allocation(problem, rng)
    throughputs, tenant = (problem.throughputs * x).sum(axis=1), problem.tenants[0]
    constraints: list[gp.Constraint] = []
    rows: list[Floats] = []
    limits: list[float] = []
    for i in np.flatnonzero((throughputs > 0) & (rng.random(n) < 0.4)).tolist():
        constraints.append(gp.MinThroughput(problem.job_ids[i], throughputs[i] * rng.choice([0.3, 0.9, 1.0])))
        rows.append(np.where(np.arange(n)[:, None] == i, -problem.throughputs / constraints[-1].rate, 0.0))
        limits.append(-1.0)
    theirs = np.array(problem.tenants) == tenant
    for group, price, make in (
        (theirs, np.ones(k), lambda most: gp.MaxGpus(most, tenant=tenant)),
        (np.ones(n), prices, gp.CostBudget),
    ):
        table = (group * problem.num_gpus)[:, None] * price
        most = float((table * x).sum()) * rng.choice([1.0, 1.5, 3.0])
        if most > 0 and rng.random() < 0.5:
            constraints.append(make(most))
            rows.append(table / most)
            limits.append(1.0)
    expected = leximin(problem, gains_of(problem), rows=np.array(rows).reshape(len(rows), n * k), limits=np.array(limits))
    assert_levels(problem, gp.solve(problem, water_filling(*constraints)), expected)


def some_allocation(problem: gp.AllocationProblem, rng: np.random.Generator) -> Floats:
    """(N, K) a valid allocation."""
    shape = problem.throughputs.shape
    x = np.where(problem.runnable, rng.random(shape) * rng.choice([0.0, 1.0], shape), 0.0)
    x /= np.maximum(1.0, x.sum(axis=1, keepdims=True))
    return x / np.maximum(1.0, problem.num_gpus @ x / np.maximum(1e-9, problem.capacities))


@settings(max_examples=examples(100, costly=True))
@given(problem=problems())
def test_it_starts_as_max_min_fairness_and_lowers_no_job_further_up(problem: gp.AllocationProblem) -> None:
    assume(problem.runnable.any())
    filled, plain = gp.solve(problem, "water_filling"), gp.solve(problem, "max_min_fairness")
    assert filled.objective_value == pytest.approx(plain.objective_value, rel=1e-7)
    able = problem.runnable.any(axis=1)
    ours, theirs = (np.sort(levels_of(problem, each)[able]) for each in (filled, plain))
    assert filled.objective_value == pytest.approx(ours[0], rel=1e-9)
    apart = np.flatnonzero(np.abs(ours - theirs) > 1e-6 * ours)
    assert not len(apart) or ours[apart[0]] > theirs[apart[0]]


@settings(max_examples=examples(100, costly=True))
@given(problem=crowds())
def test_every_level_is_proven(problem: gp.AllocationProblem) -> None:
    assume(problem.runnable.any())
    allocation = gp.solve(problem, "water_filling")
    assert [stage.name for stage in allocation.stages] == ["first stop", *(f"level {n}" for n in range(1, len(allocation.stages)))]
    assert max(stage.gap for stage in allocation.stages) <= 1e-8
    assert sorted(stage.value for stage in allocation.stages[1:]) == [stage.value for stage in allocation.stages[1:]]
    assert allocation.verify().stages == allocation.stages


@settings(max_examples=examples(60, costly=True))
@given(one=crowds(max_types=3), other=crowds(max_types=3))
def test_throughputs_do_not_depend_on_where_the_solver_starts(one: gp.AllocationProblem, other: gp.AllocationProblem) -> None:
    """The vector v is unique, though time fractions are not."""
    solver = gp.Solver("water_filling")
    solver.solve(other)
    new, kept = gp.solve(one, "water_filling"), solver.solve(one)
    assert kept.throughputs == pytest.approx(new.throughputs, rel=1e-7, abs=1e-9 * new.throughputs.max(initial=0.0))


@settings(max_examples=examples(60))
@given(problem=problems(max_jobs=4), copies=st.integers(2, 4))
def test_equal_jobs_have_equal_time(problem: gp.AllocationProblem, copies: int) -> None:
    n = problem.num_jobs
    arrays = {name: np.tile(getattr(problem, name), copies) for name in ("num_gpus", "weights")}
    many = gp.AllocationProblem.from_arrays(np.tile(problem.throughputs, (copies, 1)), problem.capacities, **arrays)
    fractions = gp.solve(many, "water_filling").time_fractions
    for copy in range(1, copies):
        assert np.array_equal(fractions[copy * n : (copy + 1) * n], fractions[:n])


def test_many_jobs_take_hardly_more_levels_than_there_are_types() -> None:
    """Most jobs can use the first of four types only, fewer the first two, and so on: what is left for each grows."""
    rng = np.random.default_rng(0)
    kinds = rng.lognormal(0, 0.5, (40, 4)) * (np.arange(4) <= np.arange(40)[:, None] // 10)
    groups = rng.choice(4, 20_000, p=[0.6, 0.25, 0.1, 0.05])
    problem = gp.AllocationProblem.from_types(
        kinds, 10 * groups + rng.integers(0, 10, 20_000), [300, 300, 300, 300], weights=rng.uniform(0.5, 4, 20_000)
    )
    allocation = gp.solve(problem, "water_filling")
    assert [stage.name for stage in allocation.stages] == ["first stop", "level 1", "level 2", "level 3"]
    assert max(stage.gap for stage in allocation.stages) <= 1e-9
    assert allocation.route is not None
    assert allocation.route.programs <= 40


@pytest.mark.parametrize("constraint", [gp.CostBudget(2).soft(1), gp.MinThroughput("bert", 1).soft(1), gp.SwitchCost(1)])
def test_what_would_have_to_be_weighed_is_refused(constraint: gp.Constraint) -> None:
    message = "optimises its levels one after another, so it cannot weigh them against soft constraints and the cost of change"
    with pytest.raises(gp.InputError, match=f"policy water_filling, field constraints: {message}"):
        gp.solve(three_jobs(prices_per_hour=[3, 1]), water_filling(constraint))


@pytest.mark.parametrize("policy", ["water_filling", "hierarchical"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_type_that_stopped_jobs_use_up_lets_the_others_rise(policy: str, scale: float) -> None:
    """Whole gangs: a row of patterns and the v100s are used up at once, up to rounding, whatever the units."""
    ids, types = list("abcde"), ["v100", "p100", "k80"]
    speeds = gp.ThroughputProfile.from_matrix(np.array([[3.0, 1, 2]] * 5) * scale, job_ids=ids, accelerators=types)
    gangs = zip(ids, (1, 3, 2, 1, 1), (1, 0.5, 1, 2, 0.5), strict=True)
    jobs = [gp.Job(name, num_gpus=gpus, weight=weight * scale) for name, gpus, weight in gangs]
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_inline("v100:3/3,p100:8/8,k80:9/9"), speeds)
    allocation = gp.solve(problem, policy)
    assert allocation.throughputs / scale == pytest.approx([3, 2, 2, 3, 3], rel=1e-7)
    assert allocation.route is not None
    assert allocation.route.failed == ()


@pytest.mark.parametrize("policy", ["max_min_fairness", "water_filling", "hierarchical"])
def test_a_column_of_single_precision_is_no_obstacle(policy: str) -> None:
    speeds = np.array([[0.3, 0.7], [2.3, 2.3], [0.7, 2.3]])
    speeds[:, 1] = speeds[:, 1].astype(np.float32)
    exact = gp.solve(gp.AllocationProblem.from_arrays(np.round(speeds, 3), [1, 3]), policy)
    allocation = gp.solve(gp.AllocationProblem.from_arrays(speeds, [1, 3]), policy)
    assert allocation.objective_value == pytest.approx(exact.objective_value, rel=1e-6)


@pytest.mark.parametrize("part", [1e-15, 1e-12, 1e-10, 1e-8, 3e-8])
def test_speeds_that_differ_by_rounding_count_as_equal(part: float) -> None:
    """Row 2 reaches its top at the level of row 0: for its last digits it must not take what the others can use."""
    speeds = np.array([[2.0, 2, 3], [3, 4, 4], [3, 2, 4], [3, 4, 4], [4, 3, 1], [1, 4, 4]])
    signs = np.array([[-1.0, -1, 2], [3, -3, 2], [1, -1, -3], [1, -1, -1], [2, 4, -1], [-1, -2, 3]])
    arrays: dict[str, Any] = {"weights": [2, 2, 1, 1, 2, 1]}
    exact, near = (
        gp.solve(gp.AllocationProblem.from_arrays(each, [3, 3, 1], **arrays), "water_filling")
        for each in (speeds, speeds * (1 + part * signs))
    )
    assert near.throughputs == pytest.approx(exact.throughputs, rel=1e-8 + 10 * part)


@pytest.mark.parametrize(("part", "second"), [(2e-7, 2.0), (4e-7, 1.0)])
def test_others_keep_what_they_have_beyond_a_job_that_would_gain_within_3e_7(part: float, second: float) -> None:
    """One step more a second for a job at 1 makes it worth any loss of a job that has 2."""
    problem = gp.AllocationProblem.from_arrays([[1, 1 + part], [0, 4]], [1, 1])
    assert gp.solve(problem, "water_filling").normalized_throughputs == pytest.approx([1, second], rel=1e-6)


def test_a_guarantee_of_the_fastest_of_nearly_equal_speeds_is_kept() -> None:
    fastest = 1 + 2e-7
    problem = gp.AllocationProblem.from_arrays([[1, fastest], [0, 2]], [1, 1], job_ids=["a", "b"])
    allocation = gp.solve(problem, water_filling(gp.MinThroughput("a", fastest)))
    assert allocation.throughputs.tolist() == pytest.approx([fastest, 0], abs=1e-9)
