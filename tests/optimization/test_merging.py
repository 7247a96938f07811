"""Merging jobs of nearly equal throughputs: a smaller program, and a loss that is bounded and reported."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.optimization.job_classes import merged
from tests.support.examples import examples

POLICIES = ["max_total_throughput", "max_min_fairness", "min_makespan", "finish_time_fairness"]


def noisy(seed: int, jobs: int = 30, noise: float = 0.02) -> gp.AllocationProblem:
    """Jobs of three types with noisy throughputs."""
    chance = np.random.default_rng(seed)
    base = np.array([[4.0, 1.0, 0.0], [2.0, 1.0, 0.5], [1.0, 1.0, 1.0]])
    rows = base[chance.integers(0, 3, jobs)] * chance.uniform(1 - noise, 1 + noise, (jobs, 3))
    return gp.AllocationProblem.from_arrays(rows, [3, 4, 5], steps_remaining=chance.uniform(10, 100, jobs))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(25, costly=True))
@given(seed=st.integers(0, 2**32 - 1), tolerance=st.sampled_from([1e-4, 0.01, 0.05, 0.2]))
def test_the_loss_is_bounded_and_told(name: str, seed: int, tolerance: float) -> None:
    problem = noisy(seed)
    merges = merged(problem, tolerance) is not problem
    exact, near = gp.solve(problem, name), gp.solve(problem, name, merge_tolerance=tolerance)
    assert near.route is not None
    assert near.route.reduction == ("merged" if merges else "classes")
    assert exact.objective_value is not None
    assert near.objective_value is not None
    assert near.objective_bound is not None
    assert near.gap is not None
    loss = abs(near.objective_value - exact.objective_value) / max(exact.objective_value, near.objective_value)
    assert loss <= near.gap * (1 + 1e-6) + 1e-9
    assert near.gap <= 2 * tolerance + 1e-6
    sign = -1 if name in ("min_makespan", "finish_time_fairness") else 1
    assert sign * near.objective_value <= sign * exact.objective_value * (1 + sign * 1e-9)
    assert sign * near.objective_bound >= sign * exact.objective_value * (1 - sign * 1e-9)
    assert near.verify().accepted_gap == pytest.approx(2 * tolerance * merges + 1e-6)


@pytest.mark.parametrize("kinds", [[-1, -1, -1], [-1, -1, 0]])
def test_elastic_jobs_that_have_no_choice_are_merged_like_others(kinds: list[int]) -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[1.01], [1.05], [1.0]], [2], count_kinds=kinds, gpu_counts=[1, 2], count_throughputs=[[[1, 0]]], steps_remaining=[10] * 3
    )
    for name in ("max_total_throughput", "max_min_fairness", "min_makespan"):
        exact, near = gp.solve(problem, name), gp.solve(problem, name, merge_tolerance=0.1)
        assert near.route is not None
        assert near.route.reduction == "merged"
        assert near.objective_value == pytest.approx(exact.objective_value, rel=0.1)
        assert near.throughputs == pytest.approx((problem.throughputs * near.time_fractions).sum(axis=1))
        near.verify()


def test_rows_that_are_near_become_equal_and_others_stay() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0, 0.0], [1.01, 0.0], [1.0, 1e-9], [3.0, 0.0]], [1, 1])
    rows = merged(problem, 0.05).throughputs
    assert rows[:2].tolist() == [[pytest.approx(1.005), 0]] * 2
    assert rows[2:].tolist() == [[1.0, 1e-9], [3.0, 0.0]]


@settings(max_examples=examples(50))
@given(seed=st.integers(0, 2**32 - 1), tolerance=st.sampled_from([1e-3, 0.05, 0.5]))
def test_no_throughput_changes_by_more_than_half_the_tolerance(seed: int, tolerance: float) -> None:
    problem = noisy(seed, noise=0.3)
    rows = merged(problem, tolerance).throughputs
    assert np.all(np.abs(rows - problem.throughputs) <= problem.throughputs * tolerance / 2 * (1 + 1e-9))


def test_a_policy_that_cannot_bound_the_loss_is_solved_exactly() -> None:
    class Blend(gp.SumPolicy):
        """The worst-off job and the average: not linear."""

        def objective(self, program: gp.Program) -> cp.Expression:
            v = program.normalized_throughput
            return program.minimum(v) + program.total(v) / program.num_jobs

    allocation = gp.solve(noisy(0), Blend(), merge_tolerance=0.1)
    assert allocation.route is not None
    assert allocation.route.reduction == "classes"
    assert allocation.gap is not None
    assert allocation.gap <= 1e-9


def test_a_policy_without_a_program_has_nothing_to_merge() -> None:
    allocation = gp.solve(noisy(0), "fifo", merge_tolerance=0.1)
    assert allocation.route is not None
    assert allocation.route.reduction == "none"


def test_without_nearly_equal_jobs_nothing_is_merged() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0, 2.0], [1.0, 2.0], [3.0, 1.0]], [1, 1])
    assert merged(problem, 0.05) is problem
    allocation = gp.solve(problem, "max_min_fairness", merge_tolerance=0.05)
    assert allocation.route is not None
    assert allocation.route.reduction != "merged"


@pytest.mark.parametrize("value", [-0.1, 1, np.nan, "much", None])
def test_a_tolerance_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(gp.InputError, match="field merge_tolerance: must be a number of at least 0 and below 1"):
        gp.solve(noisy(0), merge_tolerance=value)


def test_merged_throughputs_are_still_reported_as_they_are() -> None:
    problem = noisy(1)
    allocation = gp.solve(problem, "max_min_fairness", merge_tolerance=0.1)
    assert allocation.throughputs == pytest.approx((problem.throughputs * allocation.time_fractions).sum(axis=1), rel=1e-12)
