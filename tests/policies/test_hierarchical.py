"""Hierarchical fairness: known answers by hand, and the definition, one linear program after the other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.cli.allocation_text import stages_text
from tests.support.commands import runner
from tests.support.constrained_programs import wishes
from tests.support.constraint_strategies import constraints, tenanted
from tests.support.examples import examples
from tests.support.fakes import refusal
from tests.support.instances import Floats, crowds
from tests.support.leximin import leximin
from tests.support.rising import incremental_leximin

Hierarchical = gp.policy_class("hierarchical")

POLICIES = st.sampled_from(["fairness", "fairness", "fifo"])
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 3.0])
TREES: dict[str, dict[str, Any]] = {
    "flat": {"red": {"weight": 2}, "blue": {}, "green": {}},
    "fifo": {"red": {"policy": "fifo", "weight": 3}, "blue": {"policy": "fifo"}, "green": {}},
    "nested": {"above": {"tenants": {"red": {}, "blue": {"weight": 2}}}, "green": {"weight": 0.5}},
    "taking turns": {"above": {"policy": "fifo", "tenants": {"red": {}, "blue": {"policy": "fifo"}}}, "green": {"weight": 4}},
}
every_tree = pytest.mark.parametrize("tree", [gp.TenantTree.from_dict(tree) for tree in TREES.values()], ids=list(TREES))


def tree_of(policy: str = "fairness", **tenants: dict[str, Any] | None) -> gp.TenantTree:
    return gp.TenantTree.from_dict(tenants, policy)  # type: ignore[arg-type]


def one_type(tenants: list[str], gpus: float, **arrays: Any) -> gp.AllocationProblem:
    """Jobs that do a step a second on the one type there is, so that v is the time that they run."""
    return gp.AllocationProblem.from_arrays([[1.0]] * len(tenants), [gpus], tenants=tenants, **arrays)


def v_of(problem: gp.AllocationProblem, tree: gp.TenantTree | None, **options: Any) -> Floats:
    return gp.solve(problem, "hierarchical", tenants=tree, **options).normalized_throughputs


@st.composite
def trees(draw: st.DrawFn) -> tuple[gp.TenantTree, list[str]]:
    """A tree of one to three levels, and the tenants that may have jobs."""
    names, tenants, leaves = iter("abcdefghij"), [], []

    def add(parent: str | None, levels: int) -> None:
        for name in [next(names, "") for _ in range(draw(st.integers(1, 3)))]:
            if name:
                tenants.append(gp.Tenant(name, parent=parent, weight=draw(WEIGHTS), policy=draw(POLICIES)))
                leaves.append(name)
                if levels > 1 and draw(st.booleans()):
                    leaves.pop()
                    add(name, levels - 1)
                    leaves.extend([name] if all(tenant.parent != name for tenant in tenants) else [])

    add(None, draw(st.integers(1, 3)))
    return gp.TenantTree(tenants, draw(POLICIES)), leaves


@st.composite
def hierarchies(draw: st.DrawFn, max_jobs: int = 7, max_types: int = 3) -> tuple[gp.AllocationProblem, gp.TenantTree]:
    """A tree and a problem of its tenants; speeds, gangs, weights and arrivals are often tied, and jobs may fit nowhere."""
    tree, leaves = draw(trees())
    n, k = draw(st.integers(1, max_jobs)), draw(st.integers(1, max_types))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    problem = gp.AllocationProblem.from_arrays(
        rng.choice([0.0, 0.5, 1.0, 1.7, 2.0, 3.0, 4.0, 8.0], (n, k)),
        rng.choice([0, 1, 2, 3, 5], k),
        job_ids=[f"job-{i}" for i in rng.permutation(n)],
        num_gpus=rng.choice(draw(st.sampled_from([[1], [1, 2, 4]])), n),
        weights=rng.choice([0.5, 1.0, 2.0, 3.0], n),
        arrival_seconds=rng.choice([0.0, 1.0, 2.0], n),
        tenants=rng.choice(leaves, n).tolist(),
    )
    return problem, tree


# --- known answers


def test_tenants_share_a_gpu_by_weight_whatever_the_number_of_their_jobs() -> None:
    tree = tree_of(red={}, blue={"weight": 2})
    assert v_of(one_type(["red", "blue"], 1), tree) == pytest.approx([1 / 3, 2 / 3], abs=1e-9)
    assert v_of(one_type(["red", "blue", "blue"], 1), tree) == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=1e-9)
    assert v_of(one_type(["red", "blue", "blue"], 1, weights=[5, 3, 1]), tree) == pytest.approx([1 / 3, 1 / 2, 1 / 6], abs=1e-9)


def test_the_value_is_what_the_worst_off_tenant_at_the_top_has_per_weight() -> None:
    tree = tree_of(red={}, blue={"weight": 2})
    allocation = gp.solve(one_type(["red", "red", "blue"], 1), "hierarchical", tenants=tree)
    assert allocation.objective_value == pytest.approx(1 / 3)  # all stop: red has 1/3, blue 2/3
    assert allocation.objective_bound == pytest.approx(1 / 3)
    assert allocation.shadow_prices == pytest.approx([1 / 3], abs=1e-9)
    allocation = gp.solve(one_type(["red", "red", "blue"], 1.8), "hierarchical", tenants=tree)
    assert allocation.normalized_throughputs == pytest.approx([0.4, 0.4, 1], abs=1e-9)
    assert allocation.objective_value == pytest.approx(1 / 2)  # blue's only job runs all the time; red has 0.8
    assert allocation.objective_bound == pytest.approx(1 / 2)
    assert allocation.shadow_prices == [0]
    assert allocation.stages[0].value == pytest.approx(1 / 2)


def test_a_tenant_goes_on_when_its_first_job_has_stopped() -> None:
    """Red's first job runs all the time at the level 4/3, and both tenants have 3/2 in the end, half of any further GPU each."""
    problem = one_type(["red", "red", "blue", "blue"], 3, weights=[3, 1, 1, 1])
    allocation = gp.solve(problem, "hierarchical")
    assert [stage.value for stage in allocation.stages] == pytest.approx([4 / 3, 3 / 2])
    assert allocation.objective_value == pytest.approx(3 / 2)
    assert allocation.objective_bound == pytest.approx(3 / 2)
    assert allocation.shadow_prices == pytest.approx([1 / 2], rel=1e-6)
    assert allocation.verify().value == allocation.objective_value


def test_a_price_is_the_slope_of_all_levels_together() -> None:
    """By hand: jobs do 2 (c_1 + c_2), divided by the weights 3 and 1; level 1 ends when the first type is full, before that."""
    tenants, tree = ["red", "blue", "red", "blue", "blue"], tree_of(red={"weight": 3}, blue={})
    problem = gp.AllocationProblem.from_arrays([[2, 0]] * 2 + [[0, 2]] * 3, [1, 1], tenants=tenants)
    allocation = gp.solve(problem, "hierarchical", tenants=tree)
    assert [stage.value for stage in allocation.stages] == pytest.approx([12 / 13, 12 / 13, 1])
    assert allocation.objective_value == pytest.approx(1)
    assert allocation.shadow_prices == pytest.approx([1 / 2, 1 / 2], rel=1e-6)


def test_prices_are_0_while_the_turn_of_a_tenant_has_not_come() -> None:
    """Tenant a is served first; all that b has is rounding, and so is what it gains from another GPU of the third type."""
    throughputs = [[8, 0, 0], [4, 0, 1], [0, 0, 8], [1.7, 0, 2], [2, 0, 1.7]]
    problem = gp.AllocationProblem.from_arrays(
        throughputs,
        [2, 0, 2],
        num_gpus=[1, 1, 2, 1, 2],
        weights=[1, 0.5, 0.5, 0.5, 0.5],
        arrival_seconds=[1, 2, 1, 0, 1],
        tenants=["b", "b", "a", "a", "a"],
    )
    tree = gp.TenantTree([gp.Tenant("a", weight=0.5), gp.Tenant("b", weight=0.5)], policy="fifo")
    allocation = gp.solve(problem, "hierarchical", tenants=tree)
    assert allocation.objective_value == pytest.approx(0, abs=1e-9)
    assert allocation.shadow_prices == pytest.approx([48 / 13, 0, 0], rel=1e-5, abs=0)


@pytest.mark.deep
@settings(max_examples=examples(200))
@given(case=hierarchies(), data=st.data())
def test_the_value_is_that_of_the_answer_and_prices_are_its_derivative(
    case: tuple[gp.AllocationProblem, gp.TenantTree], data: st.DataObject
) -> None:
    problem, tree = case
    allocation = gp.solve(problem, "hierarchical", tenants=tree)
    assume(allocation.status == "optimal")
    value, prices = allocation.objective_value, allocation.shadow_prices
    assert value == pytest.approx(least_work(allocation, problem, tree), rel=1e-9, abs=1e-9)
    assert value is not None
    assert prices is not None
    column = data.draw(st.sampled_from(np.flatnonzero(problem.capacities > 0).tolist()))
    gains = []
    for more in (1e-3, 1e-4, 1e-5):  # the value may bend within a thousandth of a GPU
        capacities = problem.capacities + more * np.eye(len(problem.capacities))[column]
        found = gp.solve(problem.with_capacities(capacities), "hierarchical", tenants=tree).objective_value
        assert found is not None
        gains.append((found - value) / more)
    assert any(each == pytest.approx(prices[column], rel=1e-3, abs=1e-5 * value) for each in gains)


def least_work(allocation: gp.Allocation, problem: gp.AllocationProblem, tree: gp.TenantTree) -> float:
    """Return the least Σ s v / weight of the tenants at the top with a job that can run."""
    known, work = {tenant.name: tenant for tenant in tree.tenants}, dict[str, float]()
    for i, name in enumerate(problem.tenants):
        while parent := known[name].parent:
            name = parent
        if problem.job_ids[i] not in allocation.excluded:
            share = problem.num_gpus[i] * allocation.normalized_throughputs[i] / known[name].weight
            work[name] = work.get(name, 0.0) + float(share)
    return min(work.values())


def test_a_fifo_tenant_gives_all_to_its_first_job_and_then_to_the_next() -> None:
    tree = tree_of(red={}, blue={"weight": 2, "policy": "fifo"})
    jobs: dict[str, Any] = {"tenants": ["red", "red", "blue", "blue"], "arrival_seconds": [0, 0, 9, 5]}
    assert v_of(one_type(gpus=1, **jobs), tree) == pytest.approx([1 / 6, 1 / 6, 0, 2 / 3], abs=1e-9)
    assert v_of(one_type(gpus=2, **jobs), tree) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1], abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_job_that_waits_for_its_turn_has_no_time_at_all(seed: int) -> None:
    """Solvers and the levels leave such jobs parts of 1e-18 to 1e-11 of their time, which are nothing."""
    rng = np.random.default_rng(seed)
    names = ["red", "blue", "green"]
    problem = gp.AllocationProblem.from_arrays(
        rng.choice([0.5, 1.0, 1.7, 2.0, 3.0, 8.0], (12, 2)),
        [2, 1],
        tenants=rng.choice(names, 12).tolist(),
        arrival_seconds=rng.permutation(12).astype(float),
    )
    allocation = gp.solve(problem, "hierarchical", tenants={name: {"policy": "fifo"} for name in names})
    times = allocation.time_fractions.max(axis=1)
    assert (times == 0).any()
    assert times[times > 0].min() > 1e-6
    assert allocation.verify().gap <= 1e-6


def test_a_share_as_small_as_dust_is_kept() -> None:
    """Red is owed a part of 1e-10 of the GPU, and blue's job fits into the rest."""
    problem = one_type(["red", "blue"], 1)
    assert v_of(problem, tree_of(red={"weight": 1e-10}, blue={})) == pytest.approx([1e-10, 1], rel=1e-6)


def test_jobs_that_came_together_are_served_by_id_in_natural_order() -> None:
    tree = tree_of(red={"policy": "fifo"})
    assert v_of(one_type(["red"] * 3, 1, job_ids=["job-10", "job-2", "job-9"]), tree) == pytest.approx([0, 1, 0], abs=1e-9)


def test_tenants_that_take_turns_go_by_the_arrival_of_their_first_job() -> None:
    tree = tree_of("fifo", red={}, blue={"policy": "fifo"}, green={})
    jobs: dict[str, Any] = {"tenants": ["red", "blue", "blue", "green"], "arrival_seconds": [2, 1, 3, 2]}
    assert v_of(one_type(gpus=1, **jobs), tree) == pytest.approx([0, 1, 0, 0], abs=1e-9)
    assert v_of(one_type(gpus=2, **jobs), tree) == pytest.approx([0, 1, 1, 0], abs=1e-9)
    assert v_of(one_type(gpus=3, **jobs), tree) == pytest.approx(
        [0, 1, 1, 1], abs=1e-9
    )  # of green and red, green comes first by name


def test_what_a_job_cannot_use_goes_to_its_siblings() -> None:
    """A is owed 3 of 4 GPUs, and x 2 of these; its only job can use 1, so that y has 2 for its three jobs."""
    tree = tree_of(A={"weight": 3, "tenants": {"x": {"weight": 2}, "y": {}}}, B={})
    problem = one_type(["x", "y", "y", "y", "B", "B", "B"], 4)
    assert v_of(problem, tree) == pytest.approx([1, 2 / 3, 2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 3], abs=1e-9)


def test_what_a_tenant_cannot_use_goes_to_the_others() -> None:
    tree = tree_of(A={"weight": 3, "tenants": {"x": {"weight": 2}, "y": {}}}, B={})
    assert v_of(one_type(["x", "B", "B", "B"], 3), tree) == pytest.approx([1, 2 / 3, 2 / 3, 2 / 3], abs=1e-9)


def test_a_gang_is_owed_gpu_time() -> None:
    """Each tenant has 2 of 4 GPUs: a gang of 4 for half of the time, or two jobs of one GPU always."""
    assert v_of(one_type(["red", "blue", "blue"], 4, num_gpus=[4, 1, 1]), tree_of(red={}, blue={})) == pytest.approx(
        [0.5, 1, 1], abs=1e-9
    )


def test_jobs_rise_above_what_they_have_and_not_from_nothing() -> None:
    """Two tenants of equal weight have 3 GPUs. Red gives its first job three quarters, until that runs always.

    Both have had 4/3 GPUs then: 1 + 1/3, 2/3 + 2/3. From there on red gives all to its second job, 1/6 of the last third of a GPU.
    To begin again with the new weights, 1/2, 1/4, 1/4 of the 2 GPUs which red's first job leaves, would give red twice as much.
    """
    problem = one_type(["red", "red", "blue", "blue"], 3, weights=[3, 1, 1, 1])
    assert v_of(problem, tree_of(red={}, blue={})) == pytest.approx([1, 1 / 2, 3 / 4, 3 / 4], abs=1e-9)

    new_weights = np.array([[0.5], [0.5], [0.25], [0.25]])
    from_nothing = leximin(problem, 1 / new_weights, rows=np.array([[-1.0, 0, 0, 0]]), limits=np.array([-1.0]))
    assert from_nothing * new_weights[:, 0] == pytest.approx([1, 1, 1 / 2, 1 / 2], abs=1e-9)


def test_jobs_on_a_type_that_is_full_stop_and_the_others_go_on() -> None:
    """Two GPUs and P = 1: scarce has 3/2 a level and owner 1 of the v = 2 on the V100, and plain 3/2 a level and then 3."""
    problem = gp.AllocationProblem.from_arrays(
        [[2, 0], [2, 0], [0, 2]], [1, 1], job_ids=["scarce", "owner", "plain"], tenants=["a", "b", "a"]
    )
    allocation = gp.solve(problem, "hierarchical", tenants=tree_of(a={"weight": 3}, b={}))
    assert allocation.normalized_throughputs == pytest.approx([1.2, 0.8, 2], abs=1e-9)
    assert [stage.name for stage in allocation.stages] == ["first stop", "level 1", "level 2"]
    assert [stage.value for stage in allocation.stages] == pytest.approx([0.8, 0.8, 0.8 + 0.8 / 3], abs=1e-9)
    assert allocation.objective_value == pytest.approx(0.8)  # b has stopped, and a has (1.2 + 2) / 3


def test_a_quota_that_asks_for_more_than_the_level_lets_its_jobs_rise_on() -> None:
    """Red rises to 9/5 of 3 GPUs, since green must have 6/5; within green, the heavy job rises to 1 and the light one to 1/5.

    Where red stops, GPUs cost what the quota takes off for green, but for rounding errors.
    """
    problem = one_type(["red", "green", "green", "red"], 3, weights=[2, 0.3, 2, 1])
    tree = tree_of(red={"weight": 1}, green={"weight": 0.5})
    quota = gp.Quota("green", share=0.4, borrowable=False)
    allocation = gp.solve(problem, Hierarchical(tenants=tree, constraints=(quota,)))
    assert allocation.time_fractions[:, 0] == pytest.approx([1, 0.2, 1, 0.8], abs=1e-9)


# --- the definition


@pytest.mark.deep
@settings(max_examples=examples(200, costly=True))
@given(case=hierarchies())
def test_shares_follow_the_definition(case: tuple[gp.AllocationProblem, gp.TenantTree]) -> None:
    problem, tree = case
    allocation = gp.solve(problem, "hierarchical", tenants=tree)
    assert allocation.normalized_throughputs == pytest.approx(incremental_leximin(problem, tree), rel=1e-5, abs=1e-5)
    if allocation.status == "optimal":
        assert allocation.route is not None
        assert allocation.route.failed == ()
        assert max(stage.gap for stage in allocation.stages) <= 1e-9
        assert allocation.objective_bound == pytest.approx(allocation.objective_value, rel=1e-9)


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
@every_tree
@settings(max_examples=examples(60, costly=True))
@given(data=st.data())
def test_constraints_are_kept_beside_the_tree(tree: gp.TenantTree, data: st.DataObject) -> None:
    problem = data.draw(tenanted(max_jobs=6))
    wanted = data.draw(constraints(problem, most=3))
    try:
        allocation = gp.solve(problem, Hierarchical(tenants=tree, constraints=tuple(wanted)))
    except gp.InputError:
        assume(False)
    asked = wishes(problem, wanted)
    rows = [row.table.ravel() / row.unit for row in asked.rows]
    limits = [row.most / row.unit for row in asked.rows]
    expected = incremental_leximin(
        problem,
        tree,
        rows=np.array(rows).reshape(len(rows), problem.throughputs.size),
        limits=np.array(limits),
        allowed=asked.allowed(),
    )
    assert allocation.normalized_throughputs == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"agnostic": True}], ids=["aware", "agnostic"])
@settings(max_examples=examples(60))
@given(problem=crowds(max_jobs=12, max_types=4))
def test_the_jobs_of_a_single_tenant_are_filled_like_water(problem: gp.AllocationProblem, options: dict[str, Any]) -> None:
    tree = tree_of(all={"tenants": {"red": {}}}, nobody={"weight": 3})
    alone = rebuilt(problem, tenants=["red"] * problem.num_jobs)
    filled = gp.solve(alone, "water_filling", **options)
    time = gp.solve(alone, "hierarchical", tenants=tree, **options).time_fractions
    seen = problem.runnable if options else problem.throughputs
    expected = (seen * filled.time_fractions).sum(axis=1)
    assert (seen * time).sum(axis=1) == pytest.approx(expected, rel=1e-6, abs=1e-9 * problem.throughputs.max())


@settings(max_examples=examples(60))
@given(case=hierarchies())
def test_the_agnostic_twin_sees_equal_speeds(case: tuple[gp.AllocationProblem, gp.TenantTree]) -> None:
    problem, tree = case
    twin = gp.solve(problem, "hierarchical", tenants=tree, agnostic=True)
    flat = rebuilt(problem, throughputs=np.ones(problem.throughputs.shape))
    expected = incremental_leximin(flat, tree, allowed=problem.runnable)
    assert twin.time_fractions.sum(axis=1) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert twin.throughputs == pytest.approx((problem.throughputs * twin.time_fractions).sum(axis=1), rel=1e-12)


# --- equivalent forms of trees


def rebuilt(problem: gp.AllocationProblem, rows: list[int] | None = None, **changes: Any) -> gp.AllocationProblem:
    """These jobs in this order, all if none are named, with changes."""
    order = list(range(problem.num_jobs)) if rows is None else rows
    values: dict[str, Any] = {
        name: getattr(problem, name)[order] for name in ("throughputs", "num_gpus", "weights", "arrival_seconds")
    }
    values |= {name: [getattr(problem, name)[i] for i in order] for name in ("job_ids", "tenants")}
    return gp.AllocationProblem.from_arrays(**(values | {"capacities": problem.capacities} | changes))


@settings(max_examples=examples(40))
@given(case=hierarchies(), data=st.data())
def test_permuting_jobs_and_tenants_permutes_the_answer(
    case: tuple[gp.AllocationProblem, gp.TenantTree], data: st.DataObject
) -> None:
    problem, tree = case
    order = data.draw(st.permutations(range(problem.num_jobs)))
    expected = gp.solve(problem, "hierarchical", tenants=tree).time_fractions[order]
    other = gp.TenantTree(data.draw(st.permutations(tree.tenants)), tree.policy)
    assert np.array_equal(gp.solve(rebuilt(problem, order), "hierarchical", tenants=other).time_fractions, expected)


@settings(max_examples=examples(40))
@given(case=hierarchies())
def test_equal_jobs_are_equally_well_off_and_without_fifo_have_equal_time(
    case: tuple[gp.AllocationProblem, gp.TenantTree],
) -> None:
    problem, tree = case
    fair = gp.TenantTree([tenant.model_copy(update={"policy": "fairness"}) for tenant in tree.tenants])
    rows = np.arange(problem.num_jobs).repeat(2).tolist()
    twice = rebuilt(problem, rows, job_ids=[f"{problem.job_ids[i]}-{place % 2}" for place, i in enumerate(rows)])
    x = gp.solve(twice, "hierarchical", tenants=fair).time_fractions
    assert np.array_equal(x[0::2], x[1::2])

    served_in_order = {tenant.name for tenant in tree.tenants if tenant.policy == "fifo"}
    equal = np.array([tenant not in served_in_order for tenant in problem.tenants])
    v = v_of(twice, tree)
    assert v[0::2][equal] == pytest.approx(v[1::2][equal], rel=1e-8, abs=1e-9)


@settings(max_examples=examples(40))
@given(case=hierarchies())
def test_a_tenant_above_all_and_tenants_without_jobs_change_nothing(case: tuple[gp.AllocationProblem, gp.TenantTree]) -> None:
    problem, tree = case
    below = [t if t.parent else t.model_copy(update={"parent": "top"}) for t in tree.tenants]
    more = [gp.Tenant("top", policy=tree.policy, weight=7), gp.Tenant("idle"), gp.Tenant("idler", parent="top", weight=9)]
    expected = gp.solve(problem, "hierarchical", tenants=tree)
    allocation = gp.solve(problem, "hierarchical", tenants=gp.TenantTree([*below, *more]))
    assert allocation.normalized_throughputs == pytest.approx(expected.normalized_throughputs, rel=1e-8, abs=1e-9)


def test_without_a_tree_all_tenants_that_jobs_name_stand_side_by_side() -> None:
    problem = one_type(["red", "blue", "blue", ""], 1)
    assert v_of(problem, None) == pytest.approx([1 / 3, 1 / 6, 1 / 6, 1 / 3])
    assert v_of(problem, gp.TenantTree()) == pytest.approx([1 / 3, 1 / 6, 1 / 6, 1 / 3])
    assert v_of(one_type(["", "", ""], 1), None) == pytest.approx([1 / 3] * 3)


def test_tenants_that_take_turns_need_not_be_named() -> None:
    problem = one_type(["red", "blue", "blue", "green"], 2, arrival_seconds=[2, 1, 3, 0])
    assert v_of(problem, gp.TenantTree(policy="fifo")) == pytest.approx([0, 1 / 2, 1 / 2, 1], abs=1e-9)


# --- jobs that cannot run, and jobs without a tenant


def test_jobs_that_can_run_nowhere_are_ignored_for_every_tenant() -> None:
    """The first job of the fifo tenant has finished, and the tenant of the last one is not in the tree."""
    problem = one_type(["red", "red", "blue", "nobody"], 1, num_gpus=[1, 1, 1, 9], steps_remaining=[0, 5, 5, 5])
    allocation = gp.solve(problem, "hierarchical", tenants=tree_of(red={"policy": "fifo"}, blue={}))
    assert list(allocation.excluded) == ["0", "3"]
    assert allocation.normalized_throughputs == pytest.approx([0, 1 / 2, 1 / 2, 0])


def test_without_a_job_that_can_run_the_answer_is_empty() -> None:
    allocation = gp.solve(one_type(["red", "nobody"], 0), "hierarchical", tenants=tree_of(red={}))
    assert (allocation.status, allocation.objective_value, allocation.stages) == ("empty", 0.0, ())


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [
        (["vision", "visoin"], "job '1', field tenant: 'visoin' is not in the tenant tree; did you mean 'vision'?"),
        (["vision", ""], "job '1', field tenant: is empty; known: product, vision"),
        (
            ["vision", "research"],
            "job '1', field tenant: 'research' has tenants below it, so it cannot have jobs; use 'vision', or",
        ),
        (["x", "y"], "jobs, field tenant: no job names a tenant in the tree; they name '"),
    ],
)
def test_jobs_of_tenants_that_there_are_not_are_named(tenants: list[str], problem: str) -> None:
    tree = tree_of(research={"tenants": {"vision": {}}}, product={})
    with pytest.raises(gp.InputError) as caught:
        gp.solve(one_type(tenants, 1), "hierarchical", tenants=tree)
    assert str(caught.value).startswith(problem)


def test_prices_take_hardly_more_than_one_program_per_level_and_type() -> None:
    """The levels with slightly more GPUs start from the prices of those found: 15 programs for two levels and four types."""
    chance = np.random.default_rng(0)
    speeds, kinds, users = chance.lognormal(0, 1, (30, 4)), chance.integers(0, 30, 200), chance.integers(0, 5, 200)
    names, weights = [f"user {n}" for n in users], chance.integers(1, 9, 200)
    problem = gp.AllocationProblem.from_types(speeds, kinds, [32, 48, 64, 16], tenants=names, weights=weights)
    allocation = gp.solve(problem, "hierarchical")
    assert len(allocation.stages) == 3  # the first stop and two levels
    assert allocation.shadow_prices is not None
    assert (allocation.shadow_prices > 0).all()
    assert allocation.route is not None
    assert allocation.route.programs <= 20


def test_penalties_cannot_be_weighed_level_by_level() -> None:
    policy = Hierarchical(constraints=(gp.Quota("red", 0.5).soft(2),))
    with pytest.raises(
        gp.InputError, match="optimises its levels one after another, so it cannot weigh them against soft constraints"
    ):
        gp.solve(one_type(["red", "blue"], 1), policy)


def test_a_quota_comes_before_the_tree() -> None:
    """Blue is owed a fifth of 4 GPUs by the tree, and 2 of them by its quota."""
    problem, tree = one_type(["red"] * 5 + ["blue"] * 3, 4), tree_of(red={"weight": 4}, blue={})
    assert v_of(problem, tree) == pytest.approx([16 / 25] * 5 + [4 / 15] * 3)
    quota = Hierarchical(tenants=tree, constraints=(gp.Quota("blue", gpus=2),))
    assert gp.solve(problem, quota).normalized_throughputs == pytest.approx([2 / 5] * 5 + [2 / 3] * 3)


# --- rounds


def test_shares_move_on_as_jobs_come_and_go() -> None:
    cluster = gp.Cluster.from_inline("v100:4")
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 4, job_ids=["a", "b", "c", "d"], accelerators=["v100"])
    tree = tree_of(red={}, blue={"weight": 3, "policy": "fifo"})
    scheduler = gp.RoundScheduler(cluster, speeds, policy=Hierarchical(tenants=tree))

    def shares() -> dict[str, float]:
        scheduler.next_round()
        assert scheduler.allocation is not None
        v = scheduler.allocation.normalized_throughputs.round(9).tolist()
        return dict(zip(scheduler.allocation.job_ids, v, strict=True))

    def submit(job_id: str, tenant: str) -> None:
        scheduler.submit(gp.Job(job_id, tenant=tenant, num_gpus=4, total_steps=1e6))

    assert shares() == {}
    submit("a", "red")
    assert shares() == {"a": 1}
    submit("c", "blue")
    submit("d", "blue")
    assert shares() == {"a": 0.25, "c": 0.75, "d": 0}
    submit("b", "red")
    assert shares() == {"a": 0.125, "b": 0.125, "c": 0.75, "d": 0}
    scheduler.report("c", steps_done=1e6)
    assert shares() == {"a": 0.125, "b": 0.125, "c": 0, "d": 0.75}
    scheduler.complete("c")
    scheduler.cancel("d")
    assert shares() == {"a": 0.5, "b": 0.5}


def test_a_job_of_a_tenant_that_there_is_not_is_refused_when_it_is_submitted() -> None:
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 2, job_ids=["a", "b"], accelerators=["v100"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:1"), speeds, policy=Hierarchical(tenants=tree_of(red={})))
    scheduler.submit(gp.Job("a", tenant="red"))
    with pytest.raises(gp.InputError, match="job 'b', field tenant: 'rde' is not in the tenant tree; did you mean 'red'"):
        scheduler.submit(gp.Job("b", tenant="rde"))
    assert set(scheduler.next_round().assignments) == {"a"}


# --- the tree as an option, and the command line

FILE = """\
tenants:
  top: {weight: 2, policy: fifo, tenants: {red: {}, green: {policy: fifo}}}
  blue: {}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file of tenants, three jobs and their speeds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tenants.yaml").write_text(FILE)
    (tmp_path / "jobs.csv").write_text("job_id,tenant,total_steps\na,red,9\nb,blue,9\nc,blue,9\n")
    (tmp_path / "speeds.csv").write_text("job_id,v100\na,1\nb,1\nc,1\n")
    return tmp_path


@pytest.mark.deep
@pytest.mark.usefixtures("folder")
def test_the_contract_is_kept_with_a_tree() -> None:
    gp.testing.check_policy(gp.resolve_policy("hierarchical", tenants="tenants.yaml"), problems=6)


@pytest.mark.deep
def test_the_contract_is_kept_with_a_tree_of_python() -> None:
    """Its label cannot be parsed, so the check of labels covers the other options only."""
    report = gp.testing.check_policy(Hierarchical(tenants=gp.TenantTree(policy="fifo"), agnostic=True), problems=2)
    assert [check.problems for check in report.checks if check.name == "options"] == [1]


@pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))
def test_a_mapping_is_read_as_a_tree(tree: dict[str, Any]) -> None:
    expected = Hierarchical(tenants=gp.TenantTree.from_dict(tree, "fifo"))
    for said in (tree, {"tenants": tree}, gp.TenantTree.from_dict(tree).tenants):
        assert gp.resolve_policy("hierarchical", tenants=said) == Hierarchical(tenants=gp.TenantTree.from_dict(tree))
        assert gp.resolve_policy(expected, tenants=said) == Hierarchical(tenants=said)
    assert gp.resolve_policy("hierarchical", tenants={"policy": "fifo", "tenants": tree}) == expected
    assert gp.resolve_policy("hierarchical", **expected.changed_options) == expected


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [
        ({"red": {"wieght": 2}}, "tenants.red (tenant 'red'), field wieght: is not known; did you mean 'weight'?"),
        ({"red": 3}, "tenants.red: must be a mapping of field to value, found 3"),
        ({"tenants": [3]}, "tenants (tenant tree), field tenants: must be a mapping from name to details, found [3]"),
        (3, "policy hierarchical, field option tenants: must be TenantTree or a mapping or a list or text or none, found 3"),
        ([3], "policy hierarchical, field option tenants: must be TenantTree or a mapping or a list or text or none, found [3]"),
    ],
)
def test_a_value_that_is_no_tree_is_refused(tenants: Any, problem: str) -> None:
    assert refusal(gp.solve, one_type(["red"], 1), "hierarchical", tenants=tenants) == problem


def test_a_file_is_named_in_the_label_and_its_content_is_in_the_results(folder: Path) -> None:
    policy = gp.resolve_policy("hierarchical", tenants="tenants.yaml", agnostic=True)
    assert policy.label == "hierarchical,agnostic=true,tenants=tenants.yaml"
    problem = one_type(["red", "blue"], 1)
    allocation = gp.solve(problem, policy)
    content = allocation.options["tenants"]
    assert content == {
        "policy": "fairness",
        "tenants": {"blue": {}, "top": {"weight": 2.0, "policy": "fifo", "tenants": {"red": {}, "green": {"policy": "fifo"}}}},
    }
    assert gp.Allocation.from_json(allocation.to_json()).options == allocation.options
    (folder / "again.json").write_text(json.dumps(content))
    again = gp.resolve_policy("hierarchical", tenants="again.json", agnostic=True)
    assert gp.solve(problem, again).to_dict()["options"] == allocation.to_dict()["options"]


def test_a_tree_of_python_is_named_by_its_size() -> None:
    tree = gp.TenantTree.from_dict(TREES["nested"])
    policy = gp.resolve_policy("hierarchical", tenants=tree)
    assert policy.label == "hierarchical,tenants=TenantTree(4 tenants in 2 levels)"
    assert policy == Hierarchical(tenants=tree) != Hierarchical()
    assert gp.resolve_policy("hierarchical").changed_options == {}


class TestCommand:
    JOBS = ("jobs.csv", "--cluster", "v100:1", "--throughputs", "speeds.csv")

    @pytest.fixture(autouse=True)
    def here(self, folder: Path) -> None:
        """In the folder with the files."""

    def gavel(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
        done = runner(capsys, arguments[0], *self.JOBS)(*arguments[1:])
        return done.code, done.out, done.err

    def test_shows_the_levels(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = self.gavel(capsys, "solve", "-p", "hierarchical,tenants=tenants.yaml")
        assert code == 0
        start = "hierarchical,tenants=tenants.yaml: objective 0.333333, proven bound 0.333333; 3 jobs, "
        first = next(i for i, line in enumerate(out.splitlines()) if line.startswith(start))
        assert out.splitlines()[first + 1 : first + 3] == [
            "  first stop: 0.333333, proven bound 0.333333",
            "  level 1: 0.333333, proven bound 0.333333",
        ]

    def test_the_number_of_the_sentence_is_what_the_worst_off_tenant_has(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("four.csv").write_text("job_id,tenant,weight\na,red,3\nb,red,1\nc,blue,1\nd,blue,1\n")
        Path("four-speeds.csv").write_text("job_id,v100\na,1\nb,1\nc,1\nd,1\n")
        command = ["solve", "four.csv", "-c", "v100:3", "--throughputs", "four-speeds.csv", "-p", "hierarchical"]
        run = runner(capsys, *command, "--what-if", "v100-1", "--what-if", "v100+1")
        shown = [run(*more).out for more in ([], ["--json"])]
        document = json.loads(shown[1])
        least = []
        for each in (document, *(what_if["allocation"] for what_if in document["what_if"])):
            speed = {job["job_id"]: job["normalized_throughput"] for job in each["jobs"]}
            least.append(min(speed["a"] + speed["b"], speed["c"] + speed["d"]))
            assert each["objective"]["value"] == pytest.approx(least[-1])
        assert least == pytest.approx([1.5, 1, 2])
        assert f"Proven optimal: the worst-off tenant does the work of {least[0]:.4g} average GPUs per unit of weight." in shown[0]

    @pytest.mark.parametrize("command", ["solve", "rounds", "explain"])
    def test_json_has_the_tree(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        name = ("explain", "b") if command == "explain" else (command,)
        done = runner(capsys, *name)(*self.JOBS, "-p", "hierarchical,tenants=tenants.yaml", "--json")
        assert done.code == 0
        document = json.loads(done.out)
        assert document["options"]["tenants"]["tenants"]["blue"] == {}

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (
                "tenants:\n  red: {weight: 0}\n  blue:\n",
                "tenants.yaml, line 2 (tenant 'red'), field weight: must be greater than 0",
            ),
            (
                "tenants:\n  red:\n",
                "jobs.csv, line 3 (job 'b' and 1 more), field tenant: 'blue' is not in the tenant tree; known: red",
            ),
            (
                "tenants:\n  red: {parent: blue}\n  blue: {parent: red}\n",
                "tenants.yaml, line 2 (tenant 'red'), field parent: forms a cycle: red -> blue -> red",
            ),
        ],
    )
    def test_faults_are_reported(self, content: str, problem: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "tenants.yaml").write_text(content)
        code, out, err = self.gavel(capsys, "solve", "-p", "hierarchical,tenants=tenants.yaml")
        assert (code, out) == (2, "")
        assert err.startswith(f"Error: {problem}")

    def test_a_missing_file_is_reported(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = self.gavel(capsys, "solve", "-p", "hierarchical,tenants=nowhere.yaml")
        assert (code, err) == (2, "Error: nowhere.yaml: cannot be read: No such file or directory\n")


def test_many_stages_are_counted() -> None:
    problem = one_type(["red"] * 3, 1)
    allocation = gp.solve(problem, "hierarchical")
    stages = tuple(dataclasses.replace(allocation.stages[0], name=f"level {i}") for i in range(14))
    shown = stages_text(dataclasses.replace(allocation, stages=stages)).splitlines()
    assert shown[0] == "  level 0: 1, proven bound 1"
    assert shown[9:] == ["  level 9: 1, proven bound 1", "  ... and 4 more"]
