"""Max-min fairness with caution: answers by hand, an independent program, and what it promises when an estimate is wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.constraint_strategies import tenanted
from tests.support.examples import examples
from tests.support.instances import Floats, crowds, problems

MaxMinFairness = gp.policy_class("max_min_fairness")


def two_jobs(**changes: Any) -> gp.AllocationProblem:
    """A job whose speed on the first type is an estimate (κ = 1: perhaps half of it), and one that is measured."""
    arrays: dict[str, Any] = {"uncertainty": [[np.log(2), 0.0], [0.0, 0.0]], "accelerator_types": ["h100", "l40s"]}
    return gp.AllocationProblem.from_arrays([[3.0, 1.0], [3.0, 1.0]], [1, 1], **(arrays | changes))


@st.composite
def uncertain(draw: st.DrawFn) -> gp.AllocationProblem:
    """A problem with some estimates."""
    problem = draw(st.one_of(problems(), crowds(max_jobs=12, max_types=4)))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = chance.choice([0.0, 0.0, 0.1, 0.4, 1.5], problem.throughputs.shape)
    if draw(st.booleans()):
        table[:] = table[:1]  # so that equal jobs stay equal
    return gp.AllocationProblem.from_arrays(
        problem.throughputs,
        problem.capacities,
        job_ids=problem.job_ids,
        num_gpus=problem.num_gpus,
        weights=problem.weights,
        uncertainty=table,
    )


def speeds(problem: gp.AllocationProblem) -> Floats:
    """s_i T_ij / (w_i P_i), 0 where a job cannot run."""
    share = problem.throughputs @ problem.capacities / problem.capacities.sum()
    scale = problem.num_gpus / problem.weights / np.where(share > 0, share, 1.0)
    return np.where(problem.runnable, problem.throughputs * scale[:, None], 0.0)


def cautious_level(problem: gp.AllocationProblem, kappa: float) -> float:
    """The program of the documentation, one row per job, by cvxpy: m_i X_i - z_i >= theta, z_i >= d_ij X_ij."""
    n, k = problem.throughputs.shape
    m, able = speeds(problem), np.flatnonzero(problem.runnable.any(axis=1))
    x, z, theta = cp.Variable((n, k), nonneg=True), cp.Variable(n), cp.Variable()
    rules = [cp.sum(x, axis=1) <= 1, problem.num_gpus @ x <= problem.capacities, cp.multiply(~problem.runnable, x) == 0]
    lost = (1 - np.exp(-kappa * problem.uncertainty)) * m
    rules += [z[i] >= lost[i, j] * x[i, j] for i in range(n) for j in range(k)]
    rules += [m[i] @ x[i] - z[i] >= theta for i in able]
    return float(cp.Problem(cp.Maximize(theta), rules).solve(solver="HIGHS"))


def test_a_guess_counts_for_less_so_the_job_gets_more_time() -> None:
    """P = 2: the first job counts 0.75 of its 1.5 on the H100. 0.75 x + 0.5 (1 - x) = 1.5 (1 - x) + 0.5 x at x = 0.8."""
    bold, cautious = (gp.solve(two_jobs(), "max_min_fairness", caution=kappa) for kappa in (0.0, 1.0))
    assert bold.objective_value == pytest.approx(1.0)
    assert cautious.time_fractions.ravel() == pytest.approx([0.8, 0.2, 0.2, 0.8], rel=1e-6)
    assert cautious.objective_value == pytest.approx(0.7, rel=1e-6)
    assert [stage.name for stage in cautious.stages] == ["cautious_level", "efficiency"]


def test_without_caution_or_without_estimates_nothing_changes() -> None:
    known = gp.AllocationProblem.from_arrays([[3.0, 1.0], [2.0, 1.0]], [1, 1])
    plain = gp.solve(known, "max_min_fairness")
    for other in (
        gp.solve(known, "max_min_fairness", caution=1.64),
        gp.solve(gp.AllocationProblem.from_arrays([[3.0, 1.0], [2.0, 1.0]], [1, 1], uncertainty=[[1, 0], [0, 2]])),
    ):
        assert np.array_equal(other.time_fractions, plain.time_fractions)
        assert other.objective_value == plain.objective_value
        assert np.array_equal(other.shadow_prices, plain.shadow_prices)


@pytest.mark.deep
@settings(max_examples=examples(60, costly=True))
@given(problem=uncertain(), kappa=st.sampled_from([0.3, 1.0, 1.64]))
def test_the_level_is_that_of_the_published_program(problem: gp.AllocationProblem, kappa: float) -> None:
    if not problem.runnable.any():
        return
    expected = cautious_level(problem, kappa)
    for efficiency in (True, False):
        allocation = gp.solve(problem, "max_min_fairness", caution=kappa, efficiency=efficiency)
        assert allocation.objective_value == pytest.approx(expected, rel=1e-6, abs=1e-7)
        proof = allocation.verify()
        assert proof.gap is not None
        assert proof.gap <= proof.accepted_gap <= 1.02e-6


@settings(max_examples=examples(40, costly=True))
@given(problem=uncertain(), seed=st.integers(0, 2**32 - 1))
def test_one_wrong_estimate_of_each_job_leaves_it_the_level(problem: gp.AllocationProblem, seed: int) -> None:
    """One entry of each job is κ deviations lower, in s_i T_ij / P_i: each job still has the level that the answer states."""
    if not problem.runnable.any():
        return
    kappa, chance = 0.6, np.random.default_rng(seed)
    allocation = gp.solve(problem, "max_min_fairness", caution=kappa)
    wrong = speeds(problem)
    at = np.arange(problem.num_jobs), chance.integers(0, len(problem.capacities), problem.num_jobs)
    wrong[at] *= np.exp(-kappa * problem.uncertainty[at])
    got = (wrong * allocation.time_fractions).sum(axis=1)[problem.runnable.any(axis=1)]
    assert allocation.objective_value is not None
    assert got.min() >= allocation.objective_value - 1e-7 * max(1.0, abs(allocation.objective_value))


@settings(max_examples=examples(25, costly=True))
@given(problem=uncertain())
def test_the_level_falls_with_caution(problem: gp.AllocationProblem) -> None:
    levels = [gp.solve(problem, "max_min_fairness", caution=kappa).objective_value or 0.0 for kappa in (0.0, 0.5, 1.0, 2.0)]
    assert all(later <= level + 1e-6 * max(1.0, abs(level)) for level, later in pairwise(levels))


@settings(max_examples=examples(20, costly=True))
@given(problem=tenanted(), data=st.data())
def test_constraints_hold_beside_caution(problem: gp.AllocationProblem, data: st.DataObject) -> None:
    n, k = problem.throughputs.shape
    table = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))).choice([0.0, 0.2, 0.6], (n, k))
    problem = gp.AllocationProblem.from_arrays(
        problem.throughputs, problem.capacities, job_ids=problem.job_ids, num_gpus=problem.num_gpus, uncertainty=table
    )
    most = 0.7 * float(problem.capacities.sum())
    limit = gp.MaxGpus(most)
    allocation = gp.solve(problem, "max_min_fairness", caution=1.0, constraints=[limit])
    assert (problem.num_gpus @ allocation.time_fractions).sum() <= most * (1 + 1e-9)
    free = gp.solve(problem, "max_min_fairness", caution=1.0)
    soft = gp.solve(problem, "max_min_fairness", caution=1.0, constraints=[limit.soft(1e-9)])
    assert (allocation.objective_value or 0) <= (free.objective_value or 0) + 1e-7
    assert soft.objective_value == pytest.approx(free.objective_value, rel=1e-6, abs=1e-6)


def test_an_estimate_counts_in_all_columns_of_its_type() -> None:
    """Time beside a partner depends on the same estimate as time alone: guarding pairs costs as much."""
    arrays = {"uncertainty": [[-np.log(0.6)], [0.0]], "pair_kinds": [0, 1], "pair_throughputs": [[[0.0], [0.8]], [[0.8], [0.0]]]}
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1], **arrays)  # type: ignore[arg-type]
    bold, cautious = (gp.solve(problem, "max_min_fairness", caution=kappa) for kappa in (0.0, 1.0))
    assert bold.objective_value == pytest.approx(0.8)
    # The first job alone for x, both together for 1 - x: 0.6 (0.8 (1 - x) + x) = 0.8 (1 - x).
    x = (0.8 - 0.48) / (0.8 - 0.48 + 0.6)
    assert cautious.objective_value == pytest.approx(0.8 * (1 - x), rel=1e-6)
    cautious.verify()


def test_gangs_of_two_placements_are_guarded_too() -> None:
    profile = gp.ThroughputProfile(
        "both",
        [
            gp.Measurement(job_type="a", num_gpus=4, accelerator="v100", steps_per_second=8.0),
            gp.Measurement(job_type="a", num_gpus=4, accelerator="v100", steps_per_second=4.0, placement="spread"),
        ],
    )
    cluster = gp.Cluster.from_counts({"v100": (12, 6)})
    jobs = [gp.Job(f"a{i}", job_type="a", num_gpus=4, total_steps=100) for i in range(3)]
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, Guessed(profile))
    bold, cautious = (gp.solve(problem, "max_min_fairness", caution=kappa) for kappa in (0.0, 0.5))
    assert cautious.objective_value == pytest.approx(np.exp(-0.1) * (bold.objective_value or 0.0), rel=1e-6)  # what all have
    cautious.verify()


def test_elastic_jobs_are_guarded_by_their_least_certain_number_of_gpus() -> None:
    chance = np.random.default_rng(0)
    known = [
        gp.Measurement(job_type=f"m{i}", num_gpus=size, accelerator=name, steps_per_second=float(chance.lognormal()) * size)
        for i in range(6)
        for size in (1, 2)
        for name in ("v100", "k80")
        if (i, name) != (0, "k80") and (i, size) != (0, 2)
    ]
    profile, cluster = gp.ThroughputProfile("part", known).with_estimates(), gp.Cluster.from_counts({"v100": (2, 2), "k80": (4, 4)})
    elastic = gp.Job("e", job_type="m0", total_steps=100, gpu_counts=(1, 2))
    fixed = [gp.Job(f"f{size}", job_type="m0", total_steps=100, num_gpus=size) for size in (1, 2)]
    by_size = gp.AllocationProblem.from_jobs(fixed, cluster, profile).uncertainty
    assert (by_size[1] > 0).all()
    problem = gp.AllocationProblem.from_jobs([elastic, fixed[0]], cluster, profile)
    assert problem.uncertainty.tolist() == [by_size.max(axis=0).tolist(), by_size[0].tolist()]
    bold, cautious = (gp.solve(problem, "max_min_fairness", caution=kappa) for kappa in (0.0, 1.0))
    assert (cautious.objective_value or 0.0) < (bold.objective_value or 0.0)
    cautious.verify()


class Guessed:
    """A profile that calls all its figures estimates, with a deviation of a fifth."""

    def __init__(self, profile: gp.ThroughputProfile) -> None:
        self._profile = profile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._profile, name)

    def uncertainty_matrix(self, jobs: Any, accelerators: Any, shares: Floats) -> Floats:
        assert shares.sum() == pytest.approx(1.0)
        return np.full((len(jobs), len(accelerators)), 0.2)


def test_rounds_follow_the_cautious_plan() -> None:
    """The scheduler passes the uncertainty on: the guessed type runs less than its throughput would earn it."""
    measured = [gp.Measurement(job_type=name, num_gpus=1, accelerator="v100", steps_per_second=2.0) for name in "ab"]
    profile = Guessed(gp.ThroughputProfile("all", measured))
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), profile, policy=MaxMinFairness(caution=1.0))  # type: ignore[arg-type]
    for name in "ab":
        scheduler.submit(gp.Job(name, job_type=name, total_steps=1e6))
    scheduler.next_round()
    assert scheduler.allocation is not None
    assert scheduler.allocation.objective_value == pytest.approx(0.5 * np.exp(-0.2), rel=1e-6)


def test_a_second_objective_keeps_the_cautious_level() -> None:
    stages = gp.Then(MaxMinFairness(caution=1.0), gp.resolve_policy("max_total_throughput"))
    alone, both = gp.solve(two_jobs(), "max_min_fairness", caution=1.0), gp.solve(two_jobs(), stages)
    assert both.objective_value == pytest.approx(alone.objective_value, rel=3e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"caution": -1.0}, "policy max_min_fairness, field option caution: must be a finite number of at least 0, found -1.0"),
        (
            {"caution": float("inf")},
            "policy max_min_fairness, field option caution: must be a finite number of at least 0, found inf",
        ),
        (
            {"caution": 1.0, "agnostic": True},
            "policy max_min_fairness, field option caution: has no meaning with agnostic, which ignores throughputs",
        ),
    ],
)
def test_what_cannot_be_combined(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gp.InputError) as caught:
        gp.resolve_policy("max_min_fairness", **options)
    assert str(caught.value) == message


def test_the_time_limit_gives_an_allocation_with_a_bound() -> None:
    chance = np.random.default_rng(0)
    speeds_of = chance.uniform(1, 10, (3000, 4))
    problem = gp.AllocationProblem.from_arrays(
        speeds_of, [300, 600, 450, 150], uncertainty=chance.choice([0.0, 0.2, 0.5], speeds_of.shape)
    )
    allocation = gp.solve(problem, "max_min_fairness", caution=1.0, time_limit_seconds=0.6)
    assert allocation.objective_bound is not None
    assert allocation.objective_value is not None
    assert allocation.objective_value <= allocation.objective_bound * (1 + 1e-9)


@pytest.mark.parametrize("weight", [1e-9, 1e-3, 1.0, 1e6, 1e9])
@pytest.mark.parametrize("efficiency", [True, False])
def test_the_unit_of_the_weights_does_not_matter(weight: float, efficiency: bool) -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[3, 1], [3, 1], [2, 2]], [1, 1], uncertainty=[[0.7, 0], [0, 0], [0.3, 0.3]], weights=[weight] * 3
    )
    allocation = gp.solve(problem, MaxMinFairness(caution=1.0, efficiency=efficiency))
    assert allocation.objective_value * weight == pytest.approx(0.573276318, rel=2e-8)
    assert allocation.gap <= 2e-8


def test_a_level_far_below_1_is_kept_by_the_efficiency_stage() -> None:
    chance = np.random.default_rng(1)
    problem = gp.AllocationProblem.from_arrays(
        chance.uniform(1, 3, (300, 2)),
        [2, 1],
        uncertainty=chance.uniform(0.1, 0.5, (300, 2)),
        weights=10 ** chance.uniform(0, 3, 300),
    )
    level, efficient = (gp.solve(problem, MaxMinFairness(caution=1.0, efficiency=each)) for each in (False, True))
    assert level.objective_value < 1e-4
    assert efficient.objective_value == pytest.approx(level.objective_value, rel=2e-8)
