"""Explanations: rows that bind by hand, effects against independent solves, and that what is named as binding really binds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.allocation.explanation.bindings import service_order_of
from tests.support.examples import examples
from tests.support.instances import TIGHT, best_level, best_value, crowds, problems, valid_rows

SUMS_AND_LEVELS = ["max_total_throughput", "max_min_fairness", "min_makespan", "finish_time_fairness"]
EVERY_FAMILY = [*SUMS_AND_LEVELS, "nash_welfare", "water_filling", "fifo", "shortest_job_first", "isolated"]


def three_jobs(**arrays: Any) -> gp.AllocationProblem:
    """The jobs of docs/policies/README.md on one V100 and one K80; the equal share is (2.5, 1.5, 1)."""
    return gp.AllocationProblem.from_arrays(
        [[4, 1], [2, 1], [1, 1]],
        [1, 1],
        job_ids=["bert", "resnet", "lstm"],
        accelerator_types=["v100", "k80"],
        **({"total_steps": [240, 60, 60]} | arrays),
    )


def bindings_of(explanation: gp.Explanation, *kinds: str) -> list[tuple[str, str]]:
    """Kind and name of what binds the job, of these kinds or of all."""
    return [(each.kind, each.name) for each in explanation.bindings if not kinds or each.kind in kinds]


def prices(explanation: gp.Explanation, kind: str = "gpus") -> dict[str, float | None]:
    return {each.name: each.price for each in explanation.bindings if each.kind == kind}


def kept(policy: str, *constraints: Any, **options: Any) -> gp.Policy:
    return replace(gp.resolve_policy(policy, **options), constraints=constraints)


# Known answers


@pytest.mark.parametrize("job_id", ["bert", "resnet", "lstm"])
def test_all_three_jobs_are_held_by_the_level_and_by_both_types(job_id: str) -> None:
    """docs/policies/demand.md#max_min_fairness: θ = 0.8, and a GPU more is worth 8/15 and 4/15."""
    explanation = gp.explain(three_jobs(), job_id)
    assert bindings_of(explanation) == [("level", "level"), ("gpus", "v100"), ("gpus", "k80")]
    assert prices(explanation) == pytest.approx({"v100": 8 / 15, "k80": 4 / 15})
    assert explanation.normalized_throughput == pytest.approx(0.8)
    assert explanation.objective == pytest.approx(0.8)
    assert explanation.certain


def test_an_explanation_has_time_gpus_and_steps() -> None:
    explanation = gp.explain(three_jobs(), "resnet")
    assert explanation.time_fractions == pytest.approx({"v100": 0.5, "k80": 0.2})
    assert explanation.gpus == pytest.approx({"v100": 0.5, "k80": 0.2})
    assert (explanation.throughput, explanation.num_gpus, explanation.equal_jobs) == (pytest.approx(1.2), 1, 0)


def test_one_more_gpu_of_either_type_gives_each_job_an_equal_share() -> None:
    """lstm cannot be faster than 1 steps/s, which is its equal share: θ = 1 is the most."""
    explanation = gp.explain(three_jobs(), "lstm")
    for more in explanation.one_more_gpu:
        assert more.objective == pytest.approx(1.0)
        assert more.objective_change == pytest.approx(0.2)
        assert (more.throughput, more.throughput_change) == (pytest.approx(1.0), pytest.approx(0.2))
        assert more.certain
    assert [more.accelerator for more in explanation.one_more_gpu] == ["v100", "k80"]
    # bert could do with 2.5 steps/s then, and what it has beyond that is one of several ways to use what is left.
    assert [more.certain for more in gp.explain(three_jobs(), "bert").one_more_gpu] == [False, False]


def test_holders_are_the_jobs_on_scarce_types() -> None:
    explanation = gp.explain(three_jobs(), "resnet")
    held = {holder.job_id: holder.gpus for holder in explanation.holders}
    assert list(held) == ["lstm", "bert"]  # 0.8 and 0.5 GPUs
    assert held["lstm"] == pytest.approx({"v100": 0, "k80": 0.8})
    assert held["bert"] == pytest.approx({"v100": 0.5, "k80": 0})
    assert explanation.others.jobs == 0


def test_a_job_that_runs_all_of_the_time_where_it_is_fastest_is_held_by_its_time_only() -> None:
    explanation = gp.explain(three_jobs(), "bert", "max_total_throughput")
    assert bindings_of(explanation) == [("time", "time")]
    assert "on v100: it can run nowhere faster" in explanation.bindings[0].text
    assert explanation.holders == ()


def test_a_job_that_runs_all_of_the_time_and_would_be_faster_elsewhere() -> None:
    """b is half again as fast on the V100, where a is worth more: b runs always, but slowly."""
    problem = gp.AllocationProblem.from_arrays([[9, 1], [3, 2]], [1, 1], job_ids=["a", "b"], accelerator_types=["v100", "k80"])
    explanation = gp.explain(problem, "b", "max_total_throughput", normalized=False)
    assert bindings_of(explanation) == [("gpus", "v100"), ("time", "time")]
    assert prices(explanation) == {"v100": pytest.approx(1.0)}  # one more V100 moves b from 2 to 3 steps/s
    assert [(more.accelerator, more.throughput_change) for more in explanation.one_more_gpu] == [("v100", 1.0), ("k80", 0.0)]


def test_jobs_that_set_the_level_alone_are_held_by_their_time_and_nothing_is_scarce() -> None:
    """The job of weight 4 cannot have more than all of the V100; no other job limits it."""
    problem = gp.AllocationProblem.from_arrays([[2, 1], [2, 1]], [4, 4], weights=[4, 1], accelerator_types=["v100", "k80"])
    heavy, light = gp.explain(problem, "0"), gp.explain(problem, "1", efficiency=False)
    assert bindings_of(heavy) == [("level", "level"), ("time", "time")]
    assert "it can run nowhere faster" in heavy.bindings[1].text
    assert heavy.certain
    assert bindings_of(light, "gpus", "level") == []
    assert not light.certain


def test_a_job_above_the_level_sees_that_others_need_what_is_scarce() -> None:
    """a and b share the V100: θ = ½ / (2 · ½). c has the K80 for itself, and with it 3 / 3.5 of an equal share."""
    problem = gp.AllocationProblem.from_arrays(
        [[1, 0], [1, 0], [4, 3]], [1, 1], job_ids=["a", "b", "c"], accelerator_types=["v100", "k80"], weights=[2, 2, 1]
    )
    explanation = gp.explain(problem, "c")
    assert (explanation.objective, explanation.normalized_throughput) == (pytest.approx(0.5), pytest.approx(6 / 7))
    assert bindings_of(explanation) == [("gpus", "v100"), ("time", "time")]
    assert {holder.job_id: holder.gpus["v100"] for holder in explanation.holders} == pytest.approx({"a": 0.5, "b": 0.5})


def test_equal_jobs_are_counted() -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0]] * 7 + [[1.0]], [4])
    assert gp.explain(problem, "3").equal_jobs == 6
    assert gp.explain(problem, "7").equal_jobs == 0


def test_the_largest_holders_are_named_and_the_rest_is_summed_up() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 9, [4], num_gpus=[1, 1, 1, 1, 1, 1, 1, 2, 3], accelerator_types=["v100"])
    explanation = gp.explain(problem, "0", "fifo")  # by id: the first four have a GPU each
    assert explanation.holders == ()
    explanation = gp.explain(problem, "8", "fifo")
    assert [(holder.job_id, holder.gpus) for holder in explanation.holders] == [(str(i), {"v100": 1.0}) for i in range(4)]
    fair = gp.explain(problem, "0")
    assert [holder.job_id for holder in fair.holders][:2] == ["7", "8"] or len(fair.holders) == 5
    assert (len(fair.holders), fair.others.jobs) == (5, 3)


def test_a_limit_of_its_tenant_binds_a_job_and_its_price_is_the_gain_per_gpu() -> None:
    """Four equal jobs of two tenants on 8 GPUs; red may have 1 GPU, so that each of its jobs has half of one."""
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 4, [8], tenants=["red", "red", "blue", "blue"])
    policy = kept("max_total_throughput", gp.MaxGpus(1, tenant="red"))
    red, blue = gp.explain(problem, "0", policy), gp.explain(problem, "2", policy)
    assert prices(red, "limit") == {"the limit of 1 GPUs for tenant 'red'": pytest.approx(1.0)}
    assert [holder.job_id for holder in red.holders] == ["1"]
    assert bindings_of(blue) == [("time", "time")]


def test_a_limit_binds_a_level_too_and_is_worth_what_it_gains() -> None:
    """a and b share one GPU of the eight that are there: the level is 1/2, and 1 for two GPUs."""
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [8], tenants=["red", "red", "blue"])
    explanation = gp.explain(problem, "0", kept("max_min_fairness", gp.MaxGpus(1, tenant="red")))
    assert bindings_of(explanation) == [("level", "level"), ("limit", "the limit of 1 GPUs for tenant 'red'")]
    assert explanation.normalized_throughput == pytest.approx(0.5)
    assert prices(explanation, "limit") == {"the limit of 1 GPUs for tenant 'red'": pytest.approx(0.5)}


def test_a_guarantee_is_reported_as_met_at_the_cost_of_others() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [3.0]], [1], tenants=["red", "blue"], job_ids=["a", "b"])
    policy = kept("max_total_throughput", gp.Quota("red", gpus=0.25), normalized=False)
    explanation = gp.explain(problem, "a", policy)
    assert explanation.throughput == pytest.approx(0.25)
    (limit,) = [each for each in explanation.bindings if each.kind == "limit"]
    assert limit.price == pytest.approx(2.0)  # a GPU of red's is worth 1 and would be worth 3
    assert limit.text.startswith("the quota of 0.25 GPUs for 'red' is just met, at the cost of others")


@pytest.mark.parametrize(
    ("constraint", "name"),
    [
        (gp.MinThroughput("a", 0.5), "the throughput of 0.5 steps/s for job 'a'"),
        (gp.Deadline("a", 20), "the deadline of job 'a' in 20 s"),
    ],
)
def test_a_job_that_has_just_what_is_promised_is_held_by_that(constraint: Any, name: str) -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [3.0]], [1], job_ids=["a", "b"], total_steps=[10, 10])
    policy = kept("max_total_throughput", constraint, normalized=False)
    assert ("floor", name) in bindings_of(gp.explain(problem, "a", policy))
    assert bindings_of(gp.explain(problem, "b", policy), "floor") == []


def test_a_missed_soft_bound_is_reported_with_its_shortage() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [3.0]], [1], job_ids=["a", "b"])
    policy = kept("max_total_throughput", gp.MinThroughput("a", 0.5).soft(0.01), normalized=False)
    (floor,) = [each for each in gp.explain(problem, "a", policy).bindings if each.kind == "floor"]
    assert floor.text.endswith("soft, and missed by 100.00%")


def test_a_late_stage_tells_of_the_jobs_that_rose_to_it() -> None:
    """a is alone on the K80; b and c share the V100: b and c stop at v = 1, and a at 2, where it runs all of the time."""
    problem = gp.AllocationProblem.from_arrays(
        [[0, 1], [1, 0], [1, 0]], [1, 1], job_ids=["a", "b", "c"], accelerator_types=["v100", "k80"]
    )
    low, high = gp.explain(problem, "b", "water_filling"), gp.explain(problem, "a", "water_filling")
    assert [kind for kind, _ in bindings_of(low)] == ["level", "gpus"]
    assert low.bindings[0].text.startswith(f"it has just what the level asks for (1, {low.bindings[0].name}), and no")
    assert prices(low) == {"v100": pytest.approx(1)}  # c V100 for two jobs are v = (c / 2) / (1 / 2)
    assert bindings_of(high, "gpus", "time") == [("time", "time")]


def test_the_first_of_two_policies_holds_a_job_that_has_no_more_than_it_asks_for() -> None:
    """As above, with weights; what c has beyond θ is up to the second policy."""
    problem = gp.AllocationProblem.from_arrays(
        [[1, 0], [1, 0], [4, 3]], [1, 1], job_ids=["a", "b", "c"], accelerator_types=["v100", "k80"], weights=[2, 2, 1]
    )
    policy = gp.Then(gp.resolve_policy("max_min_fairness"), gp.resolve_policy("max_total_throughput"))
    assert bindings_of(gp.explain(problem, "a", policy)) == [("level", "max_min_fairness"), ("gpus", "v100")]
    beyond = gp.explain(problem, "c", policy)
    assert bindings_of(beyond, "level") == []
    assert prices(beyond) == {"v100": None}  # scarce, but not for the reported objective
    assert gp.explain(problem, "a", policy).certain
    assert not gp.explain(problem, "a", replace(policy, tolerance=0.1)).certain


def test_the_reported_stage_explains_a_job_with_no_shortfall() -> None:
    """Both jobs must have 0.8 steps/s. One K80 is there at 1 per hour, and V100 at 3: another K80 would do for 0.6 of a V100."""
    problem = gp.AllocationProblem.from_arrays(
        [[1, 1], [1, 1]], [2, 1], accelerator_types=["v100", "k80"], prices_per_hour=[3, 1], total_steps=[1, 1]
    )
    explanation = gp.explain(problem, "0", "min_cost", min_share=0.8)
    assert explanation.objective == pytest.approx(0.6 * 3 + 1)
    assert prices(explanation) == {"k80": pytest.approx(2)}
    assert [more.objective_change for more in explanation.one_more_gpu] == pytest.approx([0, -1.2])
    assert bindings_of(explanation, "floor") == [("floor", "what min_cost gives job '0'")]


def test_a_discount_is_reported() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1])
    explanation = gp.explain(problem, "0", "nash_welfare", strategy_proof=True)
    assert explanation.throughput == pytest.approx(0.25, rel=1e-3)  # alone, the other has twice as much: half of a half
    (discount,) = [each for each in explanation.bindings if each.kind == "discount"]
    assert discount.text.startswith("it keeps 50.0% of its time")


def test_an_agnostic_twin_does_not_know_what_is_faster() -> None:
    problem = gp.AllocationProblem.from_arrays([[9.0, 1.0]], [1, 1], accelerator_types=["k80", "v100"][::-1])
    problem = problem.with_capacities([0, 1])
    explanation = gp.explain(gp.AllocationProblem.from_arrays([[1.0, 9.0]], [1, 1]), "0", "fifo", agnostic=True)
    assert "and the policy takes no type to be faster" in explanation.bindings[0].text
    assert bindings_of(gp.explain(problem, "0", "fifo", agnostic=True)) == [("time", "time")]


# Orders


def test_an_ordered_job_is_held_by_those_before_it_where_it_would_be_faster() -> None:
    explanation = gp.explain(three_jobs(arrival_seconds=[0, 10, 20]), "resnet", "fifo")
    assert [each.text for each in explanation.bindings] == [
        "it runs all of the time: only faster GPUs would help it",
        "it is number 2 of 3 in the order",
        "v100 was taken: 1 job before it had 1 of 1 GPUs",
    ]
    assert [holder.job_id for holder in explanation.holders] == ["bert"]
    assert explanation.objective is None
    assert explanation.certain


def test_a_job_behind_a_blocked_one_is_bound_by_the_order() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [4], num_gpus=[3, 4, 1], job_ids=["a", "b", "c"])
    waiting = gp.explain(problem, "c", "fifo")
    assert bindings_of(waiting) == [("order", "fifo"), ("order", "b")]
    assert waiting.bindings[1].text == "b comes before it and does not fit, and without `backfill` no job passes it"
    assert bindings_of(gp.explain(problem, "b", "fifo")) == [("order", "fifo"), ("gpus", "type-0")]
    assert bindings_of(gp.explain(problem, "c", "fifo", backfill=True)) == [("time", "time")]


def test_only_those_before_it_compete_with_an_ordered_job() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [4], num_gpus=[3, 4, 1], job_ids=["a", "b", "c"])
    assert [holder.job_id for holder in gp.explain(problem, "b", "fifo", backfill=True).holders] == ["a"]


def test_jobs_with_promises_come_before_those_without() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1], job_ids=["a", "b"])
    explanation = gp.explain(problem, "a", kept("fifo", gp.MinThroughput("b", 1)))
    assert explanation.bindings[0].text == "it is number 2 of 2 in the order"
    assert [holder.job_id for holder in explanation.holders] == ["b"]


def test_running_jobs_that_keep_their_type_come_before_all_others() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [1], job_ids=["a", "b"], running_on=[None, 0])
    explanation = gp.explain(problem, "a", "fifo", preemptive=False)
    assert [holder.job_id for holder in explanation.holders] == ["b"]
    assert explanation.bindings[0].text == "it is number 2 of 2 in the order"


def test_a_limit_that_those_before_it_have_used_up() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [8], tenants=["red", "blue", "red"], job_ids=["a", "b", "c"])
    explanation = gp.explain(problem, "c", kept("fifo", gp.MaxGpus(1, tenant="red"), backfill=True))
    assert bindings_of(explanation) == [("order", "fifo"), ("limit", "the limit of 1 GPUs for tenant 'red'")]
    assert [holder.job_id for holder in explanation.holders] == ["a"]


def test_a_formula_weighs_nothing() -> None:
    explanation = gp.explain(three_jobs(), "bert", "isolated")
    assert bindings_of(explanation) == [("formula", "isolated")]
    assert explanation.holders == ()


# Where a job cannot run


def test_an_excluded_job_has_its_reason_and_nothing_else() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [2], num_gpus=[4, 1])
    explanation = gp.explain(problem, "0")
    assert explanation.excluded == "its gang of 4 GPUs fits nowhere (largest gang that fits: type-0: 2)"
    assert (explanation.bindings, explanation.holders, explanation.one_more_gpu) == ((), (), ())


def test_types_where_a_job_cannot_run_have_the_reason() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]], [4, 4, 3, 1, 4], num_gpus=[4, 1], accelerator_types=["a", "b", "c", "d", "e"]
    )
    explanation = gp.explain(problem, "0", kept("max_total_throughput", gp.Pin("0", ["a"])))
    closed = {more.accelerator: more.closed for more in explanation.one_more_gpu}
    assert closed == {
        "a": "",
        "b": "it cannot run there",
        "c": "its gang of 4 does not fit there now, and numbers of GPUs do not show whether nodes would then have room for it",
        "d": "its gang of 4 cannot be placed there",
        "e": "the pin of job '0' to a keeps it off",
    }
    assert all(more.throughput_change == 0 for more in explanation.one_more_gpu if more.closed)


def test_a_ban_binds_where_it_keeps_a_job_off_a_faster_type() -> None:
    problem = gp.AllocationProblem.from_arrays([[1, 3, 2], [1, 1, 1]], [2, 2, 2], accelerator_types=["k80", "v100", "p100"])
    banned = bindings_of(gp.explain(problem, "0", kept("max_total_throughput", gp.Forbid("0", ["v100"]))))
    assert banned == [("time", "time"), ("place", "the ban of job '0' from v100")]
    harmless = bindings_of(gp.explain(problem, "0", kept("fifo", gp.Forbid("0", ["k80"]))))
    assert harmless == [("time", "time")]


def test_constraints_that_conflict_with_one_more_gpu_are_reported() -> None:
    """Red has half of all GPUs, but no K80; with a third V100 there would be too few for blue's guarantee."""
    problem = gp.AllocationProblem.from_arrays(
        [[1.0], [1.0]], [2], tenants=["red", "blue"], job_ids=["a", "b"], num_gpus=[2, 1], accelerator_types=["v100"]
    )
    policy = kept("max_total_throughput", gp.Quota("red", share=0.5), gp.MaxGpus(1, tenant="red"))
    (more,) = gp.explain(problem, "a", policy).one_more_gpu
    assert more.throughput is None
    assert more.failed.startswith("these constraints cannot all hold")


def test_unknown_jobs_are_named_with_the_nearest() -> None:
    with pytest.raises(gp.UnknownNameError, match=r"there is no job 'resnt'; did you mean 'resnet'"):
        gp.explain(three_jobs(), "resnt")
    with pytest.raises(gp.InputError, match="explain, field problem: must be an AllocationProblem, found"):
        gp.explain([[1.0]], "0")  # type: ignore[arg-type]


# Properties


def able(problem: gp.AllocationProblem) -> gp.AllocationProblem:
    """The jobs that can run."""
    rows = np.flatnonzero(problem.runnable.any(axis=1))
    assume(rows.size > 0)
    return problem.select(rows)


def one_of(problem: gp.AllocationProblem, data: st.DataObject) -> str:
    return data.draw(st.sampled_from(list(problem.job_ids)))


@settings(max_examples=examples(60, costly=True))
@given(problem=problems(), data=st.data())
def test_one_more_gpu_has_the_effect_that_an_independent_program_finds(problem: gp.AllocationProblem, data: st.DataObject) -> None:
    problem = able(problem)
    fair = gp.explain(problem, one_of(problem, data))
    total = gp.explain(problem, one_of(problem, data), "max_total_throughput", normalized=False)
    need = problem.weights * problem.equal_share / problem.num_gpus
    for j, (level, sum_) in enumerate(zip(fair.one_more_gpu, total.one_more_gpu, strict=True)):
        more = problem.with_capacities(problem.capacities + np.eye(len(problem.capacities))[j])
        assert level.objective == pytest.approx(best_level(more, need), rel=1e-6)
        assert sum_.objective == pytest.approx(best_value(more, problem.throughputs), rel=1e-6)
        assert fair.objective is not None
        assert level.objective_change == pytest.approx(best_level(more, need) - fair.objective, abs=2e-6 * abs(fair.objective))


@pytest.mark.parametrize("name", SUMS_AND_LEVELS)
@settings(max_examples=examples(40, costly=True))
@given(problem=crowds(max_jobs=10, max_types=4), data=st.data())
def test_types_that_bind_are_full_and_worth_their_price_and_others_are_worth_nothing(
    name: str, problem: gp.AllocationProblem, data: st.DataObject
) -> None:
    problem = able(problem)
    policy = gp.resolve_policy(name)
    explanation = gp.explain(problem, one_of(problem, data), policy)
    allocation = gp.solve(problem, policy)
    value, shadow_prices, types = allocation.objective_value, allocation.shadow_prices, problem.accelerator_types
    assert value is not None
    assert shadow_prices is not None
    sign = -1 if name in ("min_makespan", "finish_time_fairness") else 1
    for more, price in zip(explanation.one_more_gpu, shadow_prices, strict=True):
        assert more.objective_change is not None
        if price == 0:
            assert more.objective_change == pytest.approx(0, abs=1e-6 * abs(value))
        assert sign * more.objective_change <= price * (1 + 1e-5) + 1e-6 * abs(value)
    for accelerator, price in prices(explanation).items():
        j = types.index(accelerator)
        assert price == pytest.approx(shadow_prices[j])
        assert allocation.utilization[j] == pytest.approx(1, abs=1e-6)
        if price is not None and price > 1e-3 * abs(value):
            gain = max(sign * (solved(problem, policy, j, part) - value) / part for part in (1e-3, 1e-5))
            assert gain == pytest.approx(price, rel=1e-2)


def solved(problem: gp.AllocationProblem, policy: gp.Policy, j: int, more: float) -> float:
    value = gp.solve(
        problem.with_capacities(problem.capacities + more * np.eye(len(problem.capacities))[j]), policy
    ).objective_value
    assert value is not None
    return value


@settings(max_examples=examples(60, costly=True))
@given(problem=crowds(max_jobs=10, max_types=4), data=st.data())
def test_a_throughput_that_is_certain_is_the_same_in_every_best_allocation(
    problem: gp.AllocationProblem, data: st.DataObject
) -> None:
    problem = able(problem)
    job_id = one_of(problem, data)
    explanation = gp.explain(problem, job_id, efficiency=data.draw(st.booleans()))
    assert explanation.objective is not None
    need = explanation.objective * problem.weights * problem.equal_share / problem.num_gpus
    most = most_throughput(problem, need * (1 - 1e-7), problem.job_ids.index(job_id))
    if explanation.certain:
        assert most == pytest.approx(explanation.throughput, rel=1e-4)
    else:
        assert most > explanation.throughput * (1 - 1e-6)


def most_throughput(problem: gp.AllocationProblem, need: np.ndarray, i: int) -> float:
    """max thr_i over the valid allocations that give every job what it needs, by scipy."""
    n, k = problem.throughputs.shape
    rows, limits = valid_rows(problem)
    speeds = problem.throughputs / problem.fastest[:, None]
    enough = np.zeros((n, n * k))
    for row in range(n):
        enough[row, row * k : (row + 1) * k] = -speeds[row]
    bounds = [(0, 1 if runs else 0) for runs in problem.runnable.ravel()]
    table, most = np.vstack([rows, enough]), np.concatenate([limits, -need / problem.fastest])
    answer = linprog(enough[i], table, most, bounds=bounds, method="highs", options=TIGHT)
    assert answer.status == 0
    return float(-answer.fun * problem.fastest[i])


@pytest.mark.parametrize("name", ["max_total_throughput", "max_min_fairness"])
@settings(max_examples=examples(40, costly=True))
@given(problem=crowds(max_jobs=10, max_types=3), data=st.data())
def test_a_limit_gains_at_most_its_price(name: str, problem: gp.AllocationProblem, data: st.DataObject) -> None:
    problem = able(problem)
    gpus = data.draw(st.sampled_from([0.25, 0.5, 1.0, 2.0]))
    policy = kept(name, gp.MaxGpus(gpus, tenant="red"))
    assume("red" in problem.tenants)
    job_id = next(job for job, tenant in zip(problem.job_ids, problem.tenants, strict=True) if tenant == "red")
    explanation = gp.explain(problem, job_id, policy)
    value = explanation.objective
    assert value is not None
    price = prices(explanation, "limit")
    gains = {}
    for part in (1e-4, 0.1):
        looser = gp.solve(problem, kept(name, gp.MaxGpus(gpus + part, tenant="red"))).objective_value
        assert looser is not None
        gains[part] = looser - value
    if not price:
        assert max(gains.values()) <= 1e-6 * value
    (worth,) = price.values() or (None,)
    for part, gain in gains.items():
        if worth is not None:
            assert gain <= worth * part * (1 + 1e-5) + 1e-6 * value


@pytest.mark.parametrize("name", EVERY_FAMILY)
@settings(max_examples=examples(15, costly=True))
@given(problem=crowds(max_jobs=12, max_types=3), data=st.data())
def test_holdings_sum_up_to_what_is_in_use(name: str, problem: gp.AllocationProblem, data: st.DataObject) -> None:
    job_id = one_of(problem, data)
    explanation = gp.explain(problem, job_id, name)
    allocation = gp.solve(problem, name)
    used = problem.num_gpus @ allocation.time_fractions
    held = [holder.gpus for holder in explanation.holders] + [explanation.others.gpus]
    for j, accelerator in enumerate(problem.accelerator_types):
        if accelerator in prices(explanation) and allocation.objective_value is not None:
            total = explanation.gpus[accelerator] + sum(gpus[accelerator] for gpus in held)
            assert total == pytest.approx(used[j], abs=1e-6)
    sizes = [sum(holder.gpus.values()) for holder in explanation.holders]
    assert sizes == sorted(sizes, reverse=True)
    assert job_id not in [holder.job_id for holder in explanation.holders]
    assert gp.Explanation.from_dict(json.loads(json.dumps(explanation.to_dict()))) == explanation


@pytest.mark.parametrize("options", [{}, {"backfill": True}, {"fractional": True}, {"preemptive": False}], ids=str)
@settings(max_examples=examples(40))
@given(problem=problems(), data=st.data())
def test_an_ordered_job_has_what_it_has_because_of_those_before_it(
    options: dict[str, Any], problem: gp.AllocationProblem, data: st.DataObject
) -> None:
    problem = able(problem)
    i = problem.job_ids.index(one_of(problem, data))
    policy = gp.resolve_policy("fifo", **options)
    assert isinstance(policy, gp.OrderedPolicy)
    allocation = gp.solve(problem, policy)
    assert allocation.evidence is not None
    turn = service_order_of(policy, problem, allocation.evidence.rules, allocation.time_fractions, i)
    alone = gp.solve(problem.select(turn.before | (np.arange(problem.num_jobs) == i)), policy)
    assert np.array_equal(alone.time_fractions[alone.job_ids.index(problem.job_ids[i])], allocation.time_fractions[i])
    # Without the jobs that hold the exhausted types, it would have at least as much.
    holders = turn.before & (allocation.time_fractions[:, turn.exhausted_types] > 0).any(axis=1)
    if turn.exhausted_types.any():
        freed = gp.solve(problem.select(np.arange(problem.num_jobs) == i), policy)
        assert holders.any()
        assert freed.throughputs[0] >= allocation.throughputs[i]


@pytest.mark.parametrize("change", [{}, {"excluded": 1}, {"bindings": [{}]}])
def test_a_document_that_is_no_explanation_is_named(change: dict[str, Any]) -> None:
    document = gp.explain(three_jobs(), "bert").to_dict() | change
    document.pop("certain", None) if not change else document.pop("job_id")
    with pytest.raises(gp.InputError, match="not an explanation as gavel writes it"):
        gp.Explanation.from_dict(document)
