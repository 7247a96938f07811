"""Levels weighed against soft constraints and the cost of change: known answers, and an independent search over the level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import gavel_py as gp
from tests.support.constrained_programs import best_level, best_sum, excess, wishes
from tests.support.constraint_strategies import tenanted
from tests.support.examples import examples
from tests.support.instances import Floats, crowds


def policy(name: str, *constraints: gp.Constraint, **options: Any) -> gp.Policy:
    return gp.policy_class(name)(constraints=constraints, **options)


def two_jobs(**arrays: Any) -> gp.AllocationProblem:
    """Two equal jobs and one GPU, which job a has."""
    return gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1], job_ids=["a", "b"], previous_fractions=[[1], [0]], **arrays)


@pytest.mark.parametrize(("cost", "value", "b_has"), [(0.2, 0.3, 0.5), (0.8, 0.0, 0.0)])
def test_fairness_is_not_worth_any_change(cost: float, value: float, b_has: float) -> None:
    # The level is the time x of job b, and 2x GPUs change hands: x − 2 cost x, for x up to 1/2.
    allocation = gp.solve(two_jobs(), policy("max_min_fairness", gp.SwitchCost(cost)))
    assert allocation.time_fractions[1, 0] == pytest.approx(b_has, abs=1e-9)
    assert allocation.objective_value == pytest.approx(value, abs=1e-9)
    assert allocation.objective_bound == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("penalty", "time", "value"),
    [
        pytest.param(100 / 3, 1 / 2, 50 + 50 / 3, id="25/x + penalty (3x − 1) is least where 25/x² = 3 penalty"),
        pytest.param(1.0, 1.0, 25 + 2.0, id="cheap: as if there were no budget"),
        pytest.param(1000.0, 1 / 3, 75.0, id="dear: as if it were hard"),
    ],
)
def test_a_makespan_within_a_soft_budget(penalty: float, time: float, value: float) -> None:
    """100 steps at 4 steps/s; the GPU costs 3 an hour and the budget is 1: with time x it takes 25/x s and costs 3x."""
    problem = gp.AllocationProblem.from_arrays([[4.0]], [1], steps_remaining=[100], prices_per_hour=[3])
    allocation = gp.solve(problem, policy("min_makespan", gp.CostBudget(1).soft(penalty)))
    assert allocation.time_fractions[0, 0] == pytest.approx(time, rel=1e-4)
    assert allocation.objective_value == pytest.approx(value, rel=1e-8)
    assert allocation.objective_bound == pytest.approx(value, rel=1e-8)


def test_a_soft_quota_gives_way_where_fairness_is_worth_more() -> None:
    # Each job of b that gets a part x of the GPU leaves 1 − 3x to a, which is to have 1/2: 3x − 1/2 of 1/2 are missed.
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 4, [1], tenants=["a", "b", "b", "b"])
    quota = gp.Quota("a", gpus=0.5)
    cheap, dear = (gp.solve(problem, policy("max_min_fairness", quota.soft(price))) for price in (0.1, 0.3))
    assert cheap.time_fractions[:, 0].tolist() == pytest.approx([1 / 4] * 4)
    assert cheap.objective_value == pytest.approx(1 / 4 - 0.1 / 2)  # half of the quota is missed
    assert dear.time_fractions[:, 0].tolist() == pytest.approx([1 / 2, *[1 / 6] * 3])
    assert dear.objective_value == pytest.approx(1 / 6)


def test_shadow_prices_are_those_of_level_and_penalties() -> None:
    # b's quarter of a GPU more would cost a change of as much; with δ more GPUs, it is free.
    allocation = gp.solve(two_jobs(), policy("max_min_fairness", gp.SwitchCost(0.2)))
    more = gp.solve(two_jobs().with_capacities([1.001]), policy("max_min_fairness", gp.SwitchCost(0.2)))
    assert allocation.shadow_prices is not None
    assert (more.objective_value or 0.0) - (allocation.objective_value or 0.0) == pytest.approx(0.001 * allocation.shadow_prices[0])


def test_needs_that_are_not_said_to_be_convex_are_refused() -> None:
    class Root(gp.DemandPolicy):
        """The need grows as the root of the level."""

        def need(self, jobs: gp.JobClasses, level: float) -> Floats:
            return np.sqrt(level) * jobs.fastest

        def level(self, jobs: gp.JobClasses, throughputs: Floats) -> Floats:
            return (throughputs / jobs.fastest) ** 2

    assert gp.solve(two_jobs(), Root()).objective_value == pytest.approx(1 / 4)
    with pytest.raises(gp.InputError, match=r"policy root, field need: must be convex in the level if there are soft constraints"):
        gp.solve(two_jobs(), Root(constraints=[gp.SwitchCost(1)]))


# ---- against independent programs ----

Need = Callable[[gp.AllocationProblem, float], Floats]


def makespan_need(problem: gp.AllocationProblem, level: float) -> Floats:
    return problem.steps_remaining / level


def lateness_need(problem: gp.AllocationProblem, level: float) -> Floats:
    return problem.steps_remaining / (problem.deadlines_seconds + level)


def finish_need(problem: gp.AllocationProblem, level: float) -> Floats:
    fair = problem.steps_remaining / problem.isolated_throughput
    return problem.steps_remaining / (level * fair - problem.elapsed_seconds)


@st.composite
def wanting(draw: st.DrawFn) -> tuple[gp.AllocationProblem, list[gp.Constraint]]:
    """A problem in which all jobs can run, with soft constraints and sometimes a cost of change."""
    drawn = draw(tenanted(max_jobs=5))
    rows = np.flatnonzero(drawn.runnable.any(axis=1))
    assume(rows.size > 0)
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    some = drawn.select(rows)
    problem = gp.AllocationProblem.from_arrays(
        some.throughputs,
        some.capacities,
        job_ids=list(some.job_ids),
        tenants=list(some.tenants),
        num_gpus=some.num_gpus,
        weights=some.weights,
        steps_remaining=some.steps_remaining,
        elapsed_seconds=chance.choice([0.0, 5.0, 30.0], len(rows)),
        deadlines_seconds=chance.choice([-20.0, 5.0, 60.0], len(rows)),
        prices_per_hour=chance.choice([0.5, 1.0, 3.0], len(some.capacities)),
        previous_fractions=some.previous_fractions,
    )
    whole = float(problem.prices_per_hour @ problem.capacities)
    job, tenant = str(chance.choice(problem.job_ids)), str(chance.choice(problem.tenants))
    wanted: list[gp.Constraint] = [
        gp.CostBudget(whole * float(chance.choice([0.1, 0.5]))),
        gp.Quota(tenant, float(chance.choice([0.2, 0.9]))),
        gp.MaxGpus(float(chance.choice([0.5, 1.0])), tenant=tenant),
        gp.MinThroughput(job, float(problem.fastest[list(problem.job_ids).index(job)] * chance.choice([0.3, 1.0]))),
    ]
    price = st.sampled_from([0.05, 1.0, 30.0])
    soft = [each.soft(draw(price)) for each in wanted if draw(st.booleans())]
    costs = [gp.SwitchCost(draw(price))] if not soft or draw(st.booleans()) else []
    return problem, [*soft, *costs]


@settings(max_examples=examples(100, costly=True))
@given(wanted=wanting())
def test_fairness_less_penalties_is_that_of_one_linear_program(wanted: tuple[gp.AllocationProblem, list[gp.Constraint]]) -> None:
    problem, constraints = wanted
    need = problem.weights * problem.equal_share / problem.num_gpus
    expected = best_level(wishes(problem, constraints), need)
    allocation = gp.solve(problem, policy("max_min_fairness", *constraints))
    assert allocation.objective_value == pytest.approx(expected, rel=1e-6, abs=1e-8)
    assert allocation.objective_bound == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "need"),
    [("min_makespan", makespan_need), ("min_lateness", lateness_need), ("finish_time_fairness", finish_need)],
)
@settings(max_examples=examples(25, costly=True))
@given(wanted=wanting())
def test_a_time_and_its_penalties_are_the_least_over_all_times(
    name: str, need: Need, wanted: tuple[gp.AllocationProblem, list[gp.Constraint]]
) -> None:
    problem, constraints = wanted
    least = gp.solve(problem, name).objective_value  # no level is better, whatever is missed
    assert least is not None

    def value(level: float) -> float:
        return level + penalties(problem, constraints, need(problem, level))

    start = least + 1e-7 * max(1.0, abs(least))
    worst = value(start)
    found = minimize_scalar(
        value, bounds=(start, max(worst, start + 1e-6)), method="bounded", options={"xatol": 1e-8 * max(1.0, worst)}
    )
    expected = min(worst, float(found.fun))
    allocation = gp.solve(problem, policy(name, *constraints))
    assert allocation.objective_value == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert allocation.verify().gap == allocation.gap


@pytest.mark.deep
@pytest.mark.parametrize("name", ["max_min_fairness", "min_makespan", "min_lateness", "finish_time_fairness"])
@settings(max_examples=examples(30, costly=True))
@given(problem=crowds(max_jobs=12, max_types=4), data=st.data())
def test_levels_and_penalties_of_any_size_are_proven(name: str, problem: gp.AllocationProblem, data: st.DataObject) -> None:
    """From seconds to years, and needs from all of a job's time to a millionth."""
    assume(problem.runnable.any())
    size = st.floats(-4, 4).map(lambda exponent: 10.0**exponent)
    tenant, gpus = problem.tenants[0], float(problem.capacities.sum())
    limit = gp.MaxGpus(data.draw(st.floats(0.1, 1.0)) * gpus, tenant=tenant).soft(data.draw(size))
    allocation = gp.solve(problem, policy(name, limit, gp.SwitchCost(data.draw(size)), gp.MaxGpus(0.8 * gpus)))
    assert allocation.gap is not None
    assert allocation.gap <= 1e-6
    assert np.isfinite(allocation.objective_value or 0.0)


def penalties(problem: gp.AllocationProblem, constraints: Sequence[gp.Constraint], need: Floats) -> float:
    """What is lost at least where every job has what it needs; infinite where not all can have it."""
    asked = wishes(problem, [*constraints, *(gp.MinThroughput(j, r) for j, r in zip(problem.job_ids, need.tolist(), strict=True))])
    return -best_sum(asked, np.zeros_like(problem.throughputs)) if excess(asked) <= 1e-9 else np.inf
