"""The contract that every registered policy keeps, and the optimum of each against an independent program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import best_level, best_value, problems

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in gp.policy_names()),
    *((name, {"agnostic": True, "reference": "type-0"}) for name in gp.policy_names()),
    ("max_total_throughput", {"normalized": False}),
    ("max_min_fairness", {"efficiency": False}),
    ("max_min_fairness", {"caution": 1.64}),
    ("fifo", {"backfill": True}),
    ("fifo", {"fractional": True}),
    ("shortest_job_first", {"by": "total", "fractional": True}),
    ("shortest_job_first", {"preemptive": False}),
    ("nash_welfare", {"strategy_proof": True}),
    ("priority", {"max_wait_seconds": 60}),
    ("least_attained_service", {"thresholds": "600:3600"}),
    ("least_attained_service", {"thresholds": ()}),
    ("min_lateness", {"efficiency": False}),
]
NOT_BY_NATURE = {
    "throughput_per_dollar": ("units",),  # its objective counts steps, whatever they are worth
    "min_cost": ("more_gpus",),  # with more GPUs less falls short, which comes first and costs more
}
"""Checks of the contract that a policy does not keep by what it is."""

every_policy = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda value: str(value))


@st.composite
def detailed_problems(draw: st.DrawFn) -> gp.AllocationProblem:
    """A problem with all that a policy may read; deadlines may have passed or be missing, but not all of them."""
    problem = draw(problems())
    n, k = problem.throughputs.shape
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    deadlines = rng.choice([-3600.0, 0.0, 600.0, 1e5], n)
    active = problem.runnable.any(axis=1)
    missing = rng.random(n) < 0.3
    return gp.AllocationProblem.from_arrays(
        **arrays(
            problem,
            prices_per_hour=rng.choice([0.4, 1.0, 3.06], k),
            priorities=rng.integers(-1, 3, n),
            waiting_seconds=rng.choice([0.0, 60.0, 90.0, 7200.0], n),
            attained_gpu_seconds=rng.choice([0.0, 600.0, 1800.0, 3600.0, 1e5], n),
            uncertainty=rng.choice([0.0, 0.1, 0.5], (n, k)),
            deadlines_seconds=deadlines if missing[active].all() else np.where(missing, np.nan, deadlines),
        )
    )


def solvable(problem: gp.AllocationProblem, name: str, options: dict[str, Any]) -> gp.AllocationProblem:
    """Give the policy what it asks for: jobs of one GPU, or a reference on which every job that runs somewhere has a speed."""
    if name == "allox":
        problem = gp.AllocationProblem.from_arrays(**arrays(problem, num_gpus=np.ones(problem.num_jobs)))
    active = problem.runnable.any(axis=1)
    assume(not options.get("agnostic") or np.all(problem.throughputs[active, 0] > 0))
    return problem


def arrays(problem: gp.AllocationProblem, rows: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    """The arrays of a problem, in another order of jobs or with changes, for `from_arrays`."""
    order = list(range(problem.num_jobs)) if rows is None else rows
    by_job = ("throughputs", "num_gpus", "weights", "priorities", "steps_remaining", "arrival_seconds", "waiting_seconds")
    by_job += ("attained_gpu_seconds", "deadlines_seconds", "uncertainty")
    values: dict[str, Any] = {name: getattr(problem, name)[order] for name in by_job}
    values |= {"job_ids": [problem.job_ids[i] for i in order], "capacities": problem.capacities}
    values["prices_per_hour"] = problem.prices_per_hour
    values["total_steps"] = problem.steps_remaining[order]
    return values | changes


def assert_valid(problem: gp.AllocationProblem, allocation: gp.Allocation) -> None:
    x = allocation.time_fractions
    assert x.shape == problem.throughputs.shape
    assert x.min(initial=0) >= 0
    assert x.sum(axis=1).max(initial=0) <= 1 + 1e-9
    assert np.all(problem.num_gpus @ x <= problem.capacities * (1 + 1e-9))
    assert np.all(x[problem.throughputs == 0] == 0)
    assert np.all(x[problem.num_gpus[:, None] > problem.capacities] == 0)
    assert all(not x[problem.job_ids.index(job_id)].any() for job_id in allocation.excluded)
    assert allocation.throughputs == pytest.approx((problem.throughputs * x).sum(axis=1), rel=1e-12)


FAMILIES = {"max_min_fairness", "max_total_throughput", "water_filling", "fifo", "isolated", "allox"}
"""A policy of each family, whose whole contract is checked in each run: a level, a sum, levels one after the other, an order, a
formula, and a schedule. Under `deep` all are, with the twins and options."""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=[] if name in FAMILIES and not options else [pytest.mark.deep])
        for name, options in VARIANTS
    ],
    ids=lambda value: str(value),
)
def test_the_contract_is_kept(name: str, options: dict[str, Any]) -> None:
    skip = ("units",) if options.get("normalized") is False else NOT_BY_NATURE.get(name, ())
    gp.testing.check_policy(gp.resolve_policy(name, **options), problems=examples(12), skip=skip)


@every_policy
@settings(max_examples=examples(24))
@given(problem=detailed_problems())
def test_allocation_is_valid_and_proven(name: str, options: dict[str, Any], problem: gp.AllocationProblem) -> None:
    problem = solvable(problem, name, options)
    allocation = gp.solve(problem, name, **options)
    assert_valid(problem, allocation)
    if allocation.objective_value is None:
        assert allocation.objective_bound is None
        assert allocation.shadow_prices is None
        assert allocation.status in ("ordered", "formula", "empty")
    else:
        # A lateness may be near 0 where deadlines and durations are not, and logarithms may cancel out.
        terms = {"min_lateness": 1e5, "nash_welfare": 1e3}.get(name, 0.0)
        assert allocation.objective_bound == pytest.approx(allocation.objective_value, rel=1e-6, abs=1e-9 * terms)
        assert allocation.shadow_prices is not None
        assert allocation.shadow_prices.min(initial=0) >= 0


@every_policy
@settings(max_examples=examples(20, costly=True))
@given(problem=detailed_problems(), data=st.data())
def test_permuting_jobs_permutes_the_answer(
    name: str, options: dict[str, Any], problem: gp.AllocationProblem, data: st.DataObject
) -> None:
    problem = solvable(problem, name, options)
    order = data.draw(st.permutations(range(problem.num_jobs)))
    shuffled = gp.AllocationProblem.from_arrays(**arrays(problem, order))
    expected = gp.solve(gp.AllocationProblem.from_arrays(**arrays(problem)), name, **options)
    assert np.array_equal(gp.solve(shuffled, name, **options).time_fractions, expected.time_fractions[order])


@every_policy
def test_a_finished_job_gets_nothing_and_the_others_everything(name: str, options: dict[str, Any]) -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[1.0], [1.0]], [1], steps_remaining=[0, 10], total_steps=[10, 10], deadlines_seconds=[5, 5], prices_per_hour=[1]
    )
    allocation = gp.solve(problem, name, **options)
    assert allocation.time_fractions.ravel().tolist() == pytest.approx([0, 1], abs=1e-9)
    assert list(allocation.excluded) == ["0"]


@settings(max_examples=examples(100))
@given(problem=problems(), normalized=st.booleans())
def test_max_total_throughput_is_optimal(problem: gp.AllocationProblem, normalized: bool) -> None:
    assume(problem.runnable.any())
    share = problem.equal_share[:, None]
    gains = np.divide(problem.throughputs, share, out=np.zeros_like(problem.throughputs), where=share > 0)
    expected = best_value(problem, gains if normalized else problem.throughputs)
    assert gp.solve(problem, "max_total_throughput", normalized=normalized).objective_value == pytest.approx(expected, rel=1e-7)


@settings(max_examples=examples(100))
@given(problem=problems())
def test_max_min_fairness_is_optimal(problem: gp.AllocationProblem) -> None:
    assume(problem.runnable.any())
    need = problem.weights * problem.equal_share / problem.num_gpus
    assert gp.solve(problem, "max_min_fairness").objective_value == pytest.approx(best_level(problem, need), rel=1e-6)


@settings(max_examples=examples(100))
@given(problem=problems())
def test_min_makespan_is_optimal(problem: gp.AllocationProblem) -> None:
    assume(problem.runnable.any())
    # In units of the longest job, so that the program to compare with is not lost in its own tolerances.
    alone = max(n / fast for n, fast in zip(problem.steps_remaining, problem.fastest, strict=True) if fast > 0)
    expected = alone / best_level(problem, problem.steps_remaining / alone)
    assert gp.solve(problem, "min_makespan").objective_value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["max_min_fairness", "min_makespan"])
@settings(max_examples=examples(40))
@given(problem=problems())
def test_efficiency_keeps_the_level_and_does_not_lower_the_total(name: str, problem: gp.AllocationProblem) -> None:
    plain = gp.solve(problem, name, efficiency=False)
    full = gp.solve(problem, name, efficiency=True)
    assert full.objective_value == pytest.approx(plain.objective_value, rel=1e-8)
    totals = [float(problem.num_gpus @ allocation.normalized_throughputs) for allocation in (plain, full)]
    assert totals[1] >= totals[0] * (1 - 1e-8)


@pytest.mark.parametrize("name", ["max_total_throughput", "max_min_fairness", "min_makespan"])
@settings(max_examples=examples(40))
@given(problem=problems(), data=st.data())
def test_scaling_the_units_of_a_row_changes_no_normalised_answer(
    name: str, problem: gp.AllocationProblem, data: st.DataObject
) -> None:
    scale = np.array(data.draw(st.lists(st.sampled_from([1e-6, 1.0, 1e6]), min_size=problem.num_jobs, max_size=problem.num_jobs)))
    scaled = arrays(problem, throughputs=problem.throughputs * scale[:, None], steps_remaining=problem.steps_remaining * scale)
    other = gp.solve(gp.AllocationProblem.from_arrays(**scaled), name)
    assert other.objective_value == pytest.approx(gp.solve(problem, name).objective_value, rel=1e-7)


@pytest.mark.parametrize("name", ["max_total_throughput", "max_min_fairness", "min_makespan"])
def test_more_gpus_gain_at_most_their_price(name: str) -> None:
    # Throughputs are chosen so that the equal share of every job is the same whatever the counts: normalisers are frozen.
    def solved(gpus: float) -> gp.Allocation:
        table, steps = [[2.0, 2.0], [3.0, 3.0], [5.0, 5.0]], [100, 200, 300]
        return gp.solve(gp.AllocationProblem.from_arrays(table, [1, gpus], steps_remaining=steps), name)

    before, after = solved(1), solved(1.25)
    assert before.objective_value is not None
    assert after.objective_value is not None
    assert before.shadow_prices is not None
    gain = abs(after.objective_value - before.objective_value)
    assert 0 < gain <= before.shadow_prices[1] * 0.25 * (1 + 1e-9)


@pytest.mark.parametrize("name", ["max_total_throughput", "max_min_fairness", "min_makespan"])
@pytest.mark.parametrize(
    "changes",
    [
        {"weights": [1e-6, 1, 1e6]},
        {"throughputs": [[1e-6, 1e6], [1e6, 1e-6], [1, 1]]},
        {"steps_remaining": [1, 1e12, 1e6]},
        {"capacities": [0, 1e7]},
        {"throughputs": [[1, 1], [1, 1], [1, 1]]},
        {"throughputs": [[1e6, 1e-6], [1, 1e6], [1e-6, 1]], "steps_remaining": [1, 1e12, 1], "weights": [1e-6, 1e6, 1]},
    ],
    ids=str,
)
def test_extreme_numbers_are_solved_and_proven(name: str, changes: dict[str, Any]) -> None:
    values: dict[str, Any] = {"throughputs": [[1, 2], [3, 4], [4, 3]], "capacities": [2, 1], "steps_remaining": [10, 20, 30]}
    allocation = gp.solve(gp.AllocationProblem.from_arrays(**(values | changes)), name)
    assert allocation.objective_value is not None
    assert allocation.objective_value > 0
    assert allocation.objective_bound == pytest.approx(allocation.objective_value, rel=1e-9)


def test_agnostic_fairness_sees_equal_speeds_and_reports_real_ones() -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [1.0, 1.0]], [1, 1])
    allocation = gp.solve(problem, "max_min_fairness", agnostic=True)
    assert allocation.objective_value == pytest.approx(1.0)
    assert allocation.throughputs == pytest.approx((problem.throughputs * allocation.time_fractions).sum(axis=1))


def test_agnostic_makespan_needs_a_reference_that_every_job_runs_on() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[4.0, 0.0], [1.0, 1.0]], [1, 1], accelerator_types=["v100", "k80"], total_steps=[1, 1]
    )
    with pytest.raises(gp.InputError, match=r"field reference: is required with agnostic; one of v100, k80"):
        gp.solve(problem, "min_makespan", agnostic=True)
    with pytest.raises(gp.UnknownNameError, match=r"'v10' is not an accelerator type of this problem; did you mean 'v100'"):
        gp.solve(problem, "min_makespan", agnostic=True, reference="v10")
    with pytest.raises(gp.InputError, match=r"job '0': cannot run on the reference accelerator 'k80'"):
        gp.solve(problem, "min_makespan", agnostic=True, reference="k80")


@pytest.mark.parametrize("name", ["min_makespan", "shortest_job_first"])
def test_a_policy_that_needs_steps_names_the_jobs_without(name: str) -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]], [1], job_ids=["bert"])
    with pytest.raises(gp.InputError, match=rf"job 'bert', field steps_remaining: is unknown, but {name} needs it"):
        gp.solve(problem, name)


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("max_min_fairnes", {}, "there is no policy 'max_min_fairnes'; did you mean 'max_min_fairness'"),
        ("fifo", {"backfil": True}, "policy fifo: there is no option 'backfil'; did you mean 'backfill'"),
        ("fifo", {"backfill": "perhaps"}, "policy fifo, field option backfill: must be true or false, found 'perhaps'"),
        ("shortest_job_first", {"by": "size"}, "must be 'remaining' or 'total', found 'size'"),
    ],
)
def test_unknown_policies_and_options_are_named(policy: str, options: dict[str, Any], message: str) -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]], [1])
    with pytest.raises(gp.InputError, match=message):
        gp.solve(problem, policy, **options)


def test_a_policy_class_instead_of_an_object_is_named() -> None:
    with pytest.raises(gp.InputError, match="call it to create one"):
        gp.solve(gp.AllocationProblem.from_arrays([[1.0]], [1]), gp.SumPolicy)  # type: ignore[arg-type]
