"""Limits on groups get rows only where they are tight: with the same answers as with all rows, and without dividing the jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.allocation import solver
from tests.allocation.test_time_limit import check, stopped_after
from tests.support.constraint_strategies import TENANTS, constraints, tenanted
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")

NESTED = gp.TenantTree([gp.Tenant("all"), *(gp.Tenant(name, parent="all", weight=1.0 + n) for n, name in enumerate(TENANTS))])
COMPOSED: list[gp.Policy] = [
    gp.Then(gp.resolve_policy("max_min_fairness"), gp.resolve_policy("max_total_throughput"), tolerance=0.05),
    gp.Then(gp.resolve_policy("max_progress_rate"), gp.resolve_policy("min_makespan")),
    2 * gp.resolve_policy("max_progress_rate") + gp.resolve_policy("max_total_throughput"),
]
POLICIES: list[str | gp.Policy] = [
    *("max_min_fairness", "min_makespan", "min_lateness", "water_filling", "max_total_throughput", "max_progress_rate"),
    *("throughput_per_dollar", "min_cost", "nash_welfare", "fifo"),
    gp.resolve_policy("max_min_fairness", agnostic=True),
    gp.resolve_policy("max_min_fairness", efficiency=False),
    gp.resolve_policy("hierarchical", tenants=NESTED),
    *COMPOSED,
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: getattr(policy, "label", policy))


@contextmanager
def left_out(*, from_jobs: int = 0) -> Iterator[None]:
    """Leave rows out of the programs of problems with at least so many jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "MANY_JOBS", from_jobs)
        yield


def outcome(solves: gp.Solver, problem: gp.AllocationProblem) -> gp.Allocation | str:
    """Return the allocation, or the error as text."""
    try:
        return solves.solve(problem)
    except gp.GavelError as error:
        return f"{type(error).__name__}: {error}"


def policy_of(policy: str | gp.Policy, asked: Sequence[gp.Constraint]) -> gp.Policy:
    """Return the policy with these constraints."""
    if isinstance(policy, gp.Then):
        return gp.Then(policy.first, policy.second, tolerance=policy.tolerance, constraints=tuple(asked))
    if isinstance(policy, str):
        return gp.resolve_policy(policy, constraints=asked)
    return replace(policy, constraints=tuple(asked))


def same(found: gp.Allocation | str, best: gp.Allocation | str) -> None:
    """Both have the same objective, bound and prices of GPUs, or the same error; `found` keeps all constraints."""
    if isinstance(found, str) or isinstance(best, str):
        assert found == best
        return
    assert found.verify().violation <= 1e-9
    assert found.status is best.status
    if best.objective_value is not None and best.shadow_prices is not None:
        assert found.objective_value == pytest.approx(best.objective_value, rel=1e-9, abs=1e-12)
        # An interior point method proves a curved objective to 1e-6 only, from other iterates with other rows.
        curved = best.route is not None and best.route.algorithm == "conic interior point"
        assert found.objective_bound == pytest.approx(best.objective_bound, rel=1e-6 if curved else 1e-9, abs=1e-12)
        np.testing.assert_allclose(found.shadow_prices, best.shadow_prices, rtol=1e-4 if curved else 1e-6, atol=1e-8)
    for one, other in zip(found.constraints, best.constraints, strict=True):
        assert (one.constraint, one.penalty, one.price is None) == (other.constraint, other.penalty, other.price is None)


@every_policy
@settings(max_examples=examples(40, costly=True))
@given(data=st.data(), problem=tenanted(max_jobs=14))
def test_an_answer_without_slack_rows_is_that_with_all_rows(
    policy: str | gp.Policy, data: st.DataObject, problem: gp.AllocationProblem
) -> None:
    asked = data.draw(constraints(problem, soft=data.draw(st.booleans()), most=8))
    try:
        chosen = policy_of(policy, asked)
    except gp.InputError:
        return  # soft constraints in the first stage of a composition
    best = outcome(gp.Solver(chosen), problem)
    with left_out():
        same(outcome(gp.Solver(chosen), problem), best)


@pytest.mark.parametrize("policy", ["max_min_fairness", "water_filling", "max_total_throughput"])
@settings(max_examples=examples(40, costly=True))
@given(data=st.data(), problem=tenanted(max_jobs=14))
def test_a_kept_solver_with_other_jobs_each_time_finds_the_same(
    policy: str, data: st.DataObject, problem: gp.AllocationProblem
) -> None:
    chosen = policy_of(policy, data.draw(constraints(problem, most=8)))
    kept = gp.Solver(chosen)
    for _ in range(3):
        some = data.draw(st.lists(st.integers(0, problem.num_jobs - 1), min_size=1, unique=True))
        part = problem.select(np.sort(some))
        best = outcome(gp.Solver(chosen), part)
        loaded = gp.Solver(chosen)
        loaded.resume(json.loads(json.dumps(kept.to_dict())))
        with left_out():
            found, again = outcome(kept, part), outcome(loaded, part)
        same(found, best)
        if not isinstance(found, str):
            assert not isinstance(again, str)
            np.testing.assert_array_equal(found.time_fractions, again.time_fractions)


@settings(max_examples=examples(60, costly=True))
@given(data=st.data(), problem=tenanted(max_jobs=14))
def test_a_limit_without_a_price_and_clear_slack_is_worth_nothing(data: st.DataObject, problem: gp.AllocationProblem) -> None:
    asked = data.draw(constraints(problem, most=8))
    with left_out():
        found = outcome(gp.Solver(policy_of("max_min_fairness", asked)), problem)
    if isinstance(found, str):
        return
    needed = [each for each, known in zip(asked, found.constraints, strict=True) if known.price is None or known.price > 0]
    free = gp.solve(problem, "max_min_fairness", constraints=needed)
    assert free.objective_value == pytest.approx(found.objective_value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "water_filling"])
@settings(max_examples=examples(40, costly=True))
@given(data=st.data(), problem=tenanted(max_jobs=14), looks=st.integers(0, 40))
def test_a_stopped_solve_keeps_the_limits_without_rows(
    policy: str, data: st.DataObject, problem: gp.AllocationProblem, looks: int
) -> None:
    asked = data.draw(constraints(problem, most=8))
    best = outcome(gp.Solver(policy, constraints=asked), problem)
    if isinstance(best, str):
        return
    with left_out():
        try:
            found, message = stopped_after(looks, problem, policy, constraints=asked), ""
        except gp.SolverError as error:
            message = str(error)
    if message:
        assert "before an allocation that satisfies all constraints was found" in message
        return
    check(found, best)


def crowd(tenants: int, *, jobs: int = 1_200) -> gp.AllocationProblem:
    """Return jobs of 5 classes, shared evenly among tenants, on two types that a fifth of them fill."""
    number = np.arange(jobs)
    table = np.array([[4.0, 1.0], [2.0, 1.0], [1.0, 0.9], [3.0, 0.5], [5.0, 2.0]])
    names = [f"t{each}" for each in number // 5 % tenants]
    return gp.AllocationProblem.from_arrays(table[number % 5], [jobs / 10, jobs / 10], tenants=names)


def quotas(tenants: int, gpus: float, *, guaranteed: bool = True, borrowable: bool = True) -> list[gp.Quota]:
    return [gp.Quota(f"t{each}", gpus=gpus, guaranteed=guaranteed, borrowable=borrowable) for each in range(tenants)]


LIMIT = {"guaranteed": False, "borrowable": False}


@pytest.mark.parametrize("asked", [quotas(20, 13, **LIMIT), quotas(20, 11)], ids=["limits", "guarantees"])
def test_quotas_that_the_answer_keeps_do_not_divide_the_classes(asked: list[gp.Quota]) -> None:
    problem = crowd(20)
    found = gp.solve(problem, "max_min_fairness", constraints=asked)
    assert found.route is not None
    assert found.route.classes == 5
    assert found.objective_value == pytest.approx(gp.solve(problem).objective_value, rel=1e-9)
    assert [each.price for each in found.constraints] == [0.0] * 20
    assert found.verify().violation <= 1e-9


def test_only_the_tenants_at_their_limits_are_divided_from_the_others() -> None:
    problem, asked = crowd(20), [gp.Quota("t3", gpus=7, **LIMIT), *quotas(20, 14, **LIMIT)]
    found = gp.solve(problem, "max_min_fairness", constraints=asked)
    with left_out(from_jobs=10_000):
        best = gp.solve(problem, "max_min_fairness", constraints=asked)
    assert found.route is not None
    assert found.route.classes == 10
    same(found, best)


def test_a_kept_solver_begins_with_the_limits_that_were_tight() -> None:
    asked = [gp.Quota("t3", gpus=7, **LIMIT), *quotas(20, 14, **LIMIT)]
    kept = gp.Solver("max_min_fairness", constraints=asked)
    first, second = kept.solve(crowd(20)), kept.solve(crowd(20))
    assert first.route is not None
    assert second.route is not None
    assert (first.route.classes, second.route.classes) == (10, 10)
    assert second.route.iterations < first.route.iterations / 2
    tight = kept.to_dict()["tight"]
    assert tight == [first.constraints[0].constraint]


def test_guarantees_that_cannot_all_hold_are_named_as_with_all_rows() -> None:
    problem = crowd(20)
    asked = [*quotas(20, 11.0), gp.MaxGpus(60.0, accelerator=problem.accelerator_types[0]), gp.MaxGpus(100.0)]
    found = outcome(gp.Solver("max_min_fairness", constraints=asked), problem)
    with left_out(from_jobs=10_000):
        assert found == outcome(gp.Solver("max_min_fairness", constraints=asked), problem)
    assert str(found).startswith("ConflictError")
