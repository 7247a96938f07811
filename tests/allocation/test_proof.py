"""The proof of an allocation: what it finds out, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.optimization.checking.certificates import CheapestMix, StageProof
from gavel_py.optimization.job_classes import separate_jobs
from gavel_py.optimization.solving import highs as solver
from gavel_py.optimization.solving import level_search as factor_program
from gavel_py.optimization.solving import levels as chambers
from gavel_py.optimization.solving.best_responses import descending
from tests.support.examples import examples
from tests.support.instances import TIGHT, crowds


def three_jobs() -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]], [1, 1], steps_remaining=[240, 60, 60])


@settings(max_examples=examples(100))
@given(
    speeds=st.lists(st.one_of(st.just(0.0), st.sampled_from([1.0, 2.0]), st.floats(0.01, 100)), min_size=1, max_size=6),
    prices=st.lists(st.one_of(st.just(0.0), st.floats(0.001, 10)), min_size=6, max_size=6),
    part=st.floats(0, 1),
    gang=st.integers(1, 8),
)
def test_the_cheapest_mix_is_that_of_a_linear_program(speeds: list[float], prices: list[float], part: float, gang: int) -> None:
    row, price = np.array([speeds]), np.array(prices[: len(speeds)])
    need = part * max(speeds)
    mix = CheapestMix(row, row > 0, gang * price[None, :])
    answer = linprog(
        gang * price, [-row[0], np.ones(len(speeds))], [-need, 1], bounds=[(0, 1 if s > 0 else 0) for s in speeds], options=TIGHT
    )
    assert mix.costs(np.array([1]), np.array([need]))[0] == pytest.approx(answer.fun, rel=1e-7, abs=1e-9)


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 300), part=st.floats(0, 1.2))
def test_the_first_in_descending_order_are_those_of_the_whole_order(seed: int, count: int, part: float) -> None:
    chance = np.random.default_rng(seed)
    values, sizes = chance.integers(0, 40, count).astype(float), chance.choice([1.0, 2.0, 8.0], count)
    enough = part * float(sizes.sum())
    found, whole = descending(values, sizes, enough), np.argsort(-values, kind="stable")
    assert found.tolist() == whole[: len(found)].tolist()
    assert len(found) == count or sizes[found].sum() > enough


@pytest.mark.parametrize("policy", [name for name in gp.policy_names() if name != "allox"])  # that one serves no gangs
@settings(max_examples=examples(15))
@given(problem=crowds())
def test_verifying_finds_what_solving_found(policy: str, problem: gp.AllocationProblem) -> None:
    allocation = gp.solve(problem, policy)
    proof = allocation.verify()
    assert proof.violation <= 1e-9
    if allocation.status != "empty":
        assert proof.value == (None if allocation.objective_value is None else pytest.approx(allocation.objective_value, rel=1e-12))
        assert proof.bound == (None if allocation.objective_bound is None else pytest.approx(allocation.objective_bound, rel=1e-9))


def test_a_changed_answer_is_not_verified() -> None:
    allocation = gp.solve(three_jobs(), "max_min_fairness")
    worse, too_much = allocation.time_fractions * 0.9, allocation.time_fractions * 1.1
    with pytest.raises(gp.ProofError, match=r"value 0.72 and the proven bound 0.8 differ by 0.1 of their size"):
        replace(allocation, time_fractions=worse).verify()
    with pytest.raises(gp.ProofError, match="not a valid allocation"):
        replace(allocation, time_fractions=too_much).verify()


def test_time_taken_from_one_of_two_equal_jobs_is_noticed() -> None:
    allocation = gp.solve(gp.AllocationProblem.from_arrays([[2.0], [2.0]], [1]), "max_min_fairness")
    with pytest.raises(gp.ProofError, match="equal to the policy have different time fractions"):
        replace(allocation, time_fractions=np.array([[0.6], [0.4]])).verify()


def test_an_allocation_from_a_file_cannot_be_verified() -> None:
    allocation = gp.Allocation.from_json(gp.solve(three_jobs()).to_json())
    assert allocation.gap is not None
    assert allocation.route is not None
    with pytest.raises(gp.InputError, match="read from a file has no problem to verify it against"):
        allocation.verify()


def test_a_wrong_answer_leads_to_the_next_route(monkeypatch: pytest.MonkeyPatch) -> None:
    right = factor_program.CapacityFactorLP.efficient_times
    calls = []

    def wrong_at_first(self: factor_program.CapacityFactorLP, linear: solver.LinearSolver) -> np.ndarray:
        calls.append(linear.algorithm)
        return right(self, linear) * (0.5 if len(calls) == 1 else 1.0)

    monkeypatch.setattr(factor_program.CapacityFactorLP, "efficient_times", wrong_at_first)
    # `expand` makes up for times that fall short; here it is to hand out just what it is given.
    monkeypatch.setattr(chambers.Chambers, "expand", lambda self, cells, times, needs: times[cells.of])  # noqa: ARG005
    allocation = gp.solve(three_jobs(), "max_min_fairness")
    assert allocation.objective_value == pytest.approx(0.8)
    assert allocation.route is not None
    assert allocation.route.algorithm == "interior point"
    assert len(allocation.route.failed) == 1
    assert allocation.route.failed[0].startswith("classes, simplex: the answer's value 0.4 and the proven bound 0.8")
    assert calls == ["simplex", "interior point"]


def test_an_interior_point_method_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once went round in circles for ever, on a program that no other solver finds hard."""
    algorithms = solver.ALGORITHMS[solver.Algorithm.INTERIOR_POINT]
    assert algorithms["ipm_iteration_limit"] == 500
    monkeypatch.setitem(algorithms, "ipm_iteration_limit", 0)
    linear = solver.LinearSolver(algorithm=solver.Algorithm.INTERIOR_POINT)
    policy = gp.resolve_policy("max_min_fairness")
    with pytest.raises(gp.SolverError, match="HiGHS ended with status 'iterationlimit', not optimal"):
        policy.decide(separate_jobs(three_jobs(), policy.name, policy.reads), linear)


def test_when_no_route_closes_the_error_tells_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chambers.Chambers, "expand", lambda self, cells, times, needs: times[cells.of] / 2)  # noqa: ARG005
    with pytest.raises(gp.ProofError) as caught:
        gp.solve(three_jobs(), "max_min_fairness")
    message = str(caught.value)
    assert message.startswith("no solution route led to a proven answer")
    assert all(route in message for route in ("classes, simplex:", "classes, interior point:", "none, simplex:"))


def test_prices_of_zero_do_not_make_a_bound_when_one_job_bounds_all() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [100], weights=[1, 50])
    allocation = gp.solve(problem, "max_min_fairness")
    assert allocation.objective_value == pytest.approx(0.02)
    assert allocation.objective_bound == pytest.approx(0.02)
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == [0]


SOLVED: dict[str, Callable[[], gp.Allocation]] = {}
"""Allocations of all kinds by name, each with one call that solves it."""


def past() -> gp.AllocationProblem:
    """Four jobs with tenants, deadlines and a past, of which one runs nowhere."""
    return gp.AllocationProblem.from_arrays(
        [[4, 1], [2, 1], [1, 1], [0, 0]],
        [1, 1],
        steps_remaining=[240, 60, 60, 30],
        total_steps=[240, 60, 60, 30],
        deadlines_seconds=[100, 40, np.nan, -5],
        prices_per_hour=[3, 1],
        tenants=["a", "a", "b", "b"],
        weights=[1, 2, 1, 1],
        elapsed_seconds=[10] * 4,
        previous_fractions=[[0, 1], [1, 0], [0, 0], [0, 0]],
    )


def noisy() -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays([[4.02, 1], [3.99, 1.01], [2, 1]], [2, 1])


def shared(gains: float = 1.5) -> gp.AllocationProblem:
    together = [[[0.0], [gains]], [[2 * gains], [0.0]]]
    return gp.AllocationProblem.from_arrays(
        [[2.0], [4.0], [2.0]], [1], pair_kinds=[0, 1, 0], pair_throughputs=together, steps_remaining=[1, 2, 3]
    )


def of_profile(gangs: list[int], *, sharing: bool) -> gp.AllocationProblem:
    """Jobs of published speeds on nodes of 4 GPUs, where gangs are faster together or apart."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    kinds = [name for name in profile.job_types if profile.has(name, 8, "v100") and profile.has(name, 8, "k80")]
    jobs = [
        gp.Job(f"j{i}", job_type=kinds[i % 5], num_gpus=size, total_steps=1000, deadline_seconds=1e5)
        for i, size in enumerate(gangs)
    ]
    nodes = [gp.Node(name=f"{t}{i}", accelerator=t, num_gpus=4) for t in ("v100", "k80") for i in range(2)]
    return replace(
        gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes), profile, sharing=sharing), prices_per_hour=np.array([3.0, 1.0])
    )


def two_placements() -> gp.AllocationProblem:
    """Each of two nodes has room for one of three gangs; the third is spread over what they have left, at half the speed."""
    kind: dict[str, Any] = {"job_type": "bert", "num_gpus": 2, "accelerator": "v100"}
    rows = [gp.Measurement(**kind, placement="consolidated", steps_per_second=1.0)]
    rows += [gp.Measurement(**kind, placement="spread", steps_per_second=0.5)]
    nodes = gp.Cluster([gp.Node(name=name, accelerator="v100", num_gpus=3) for name in ("n0", "n1")])
    jobs = [gp.Job(name, job_type="bert", num_gpus=2) for name in "abc"]
    return gp.AllocationProblem.from_jobs(jobs, nodes, gp.ThroughputProfile("measured", rows))


def named(name: str, problem: Callable[[], gp.AllocationProblem], policy: str | gp.Policy, **options: Any) -> None:
    SOLVED[name] = lambda: gp.solve(problem(), policy, **options)


HARD = [gp.CostBudget(3.5), gp.Quota("b", 0.1), gp.Forbid("1", "type-1")]
SOFT = [gp.CostBudget(2), gp.Deadline().soft(0.3), gp.SwitchCost(0.1), gp.MaxGpus(1.5).soft(0.2)]
OBJECTIVES = [name for name in gp.policy_names() if gp.resolve_policy(name).empty_objective is not None]
CHARGED = [name for name in OBJECTIVES if name not in ("water_filling", "hierarchical")]
for each in gp.policy_names():
    named(each, past, each)
    named(f"empty {each}", lambda: gp.AllocationProblem.from_arrays([[0.0]], [1]), each)
    if each not in ("allox", "gandiva"):
        named(f"two placements {each}", two_placements, each) if each in (
            "max_min_fairness",
            "max_total_throughput",
            "fifo",
        ) else None
for each in OBJECTIVES:
    named(f"constrained {each}", past, each, constraints=HARD)
    named(f"published speeds {each}", lambda: of_profile([1, 2, 4, 8, 1, 2, 2, 4, 1, 8], sharing=False), each)
for each in CHARGED:
    named(f"charged {each}", past, each, constraints=SOFT)
for each in ("max_min_fairness", "max_total_throughput", "min_makespan", "gandiva"):
    named(f"shared {each}", shared, each)
    named(f"shared in vain {each}", lambda: shared(0.1), each)
    named(f"shared speeds {each}", lambda: of_profile([1, 1, 1, 2, 1, 1, 1, 2], sharing=True), each)
for each in ("max_min_fairness", "max_total_throughput", "fifo"):
    named(f"two placements {each}", two_placements, each)
for each in ("max_min_fairness", "max_total_throughput", "nash_welfare"):
    named(f"merged {each}", noisy, each, merge_tolerance=0.05)
named("in turn", past, gp.Then(gp.policy_class("max_min_fairness")(), gp.policy_class("max_total_throughput")()))


def figures_with(part: Any, change: Callable[[float], float]) -> Iterator[tuple[str, Any]]:
    """Copies of a part of an allocation in each of which one number is changed, with the name of the number."""
    if isinstance(part, float):
        yield "", change(part)
    elif isinstance(part, np.ndarray) and part.dtype == float:
        for place in np.ndindex(part.shape):
            copy = part.copy()
            copy[place] = change(copy[place])
            yield str(list(place)), copy
    elif isinstance(part, tuple):
        for place, value in enumerate(part):
            for name, changed in figures_with(value, change):
                yield f"[{place}]{name}", (*part[:place], changed, *part[place + 1 :])
    else:
        yield from named_figures_with(part, change)


def named_figures_with(part: Any, change: Callable[[float], float]) -> Iterator[tuple[str, Any]]:
    """The same for what has parts with names."""
    if isinstance(part, dict):
        for key, value in part.items():
            for name, changed in figures_with(value, change):
                yield f"[{key}]{name}", part | {key: changed}
    elif isinstance(part, StageProof | gp.ConstraintOutcome | gp.Pairs | gp.Allocation):
        for field in fields(part):
            if field.name not in ("options", "seconds", "route", "evidence", "scale"):
                for name, changed in figures_with(getattr(part, field.name), change):
                    yield f".{field.name}{name}", replace(part, **{field.name: changed})


@pytest.mark.parametrize("name", SOLVED)
def test_every_figure_that_is_stated_is_proven(name: str) -> None:
    allocation = SOLVED[name]()
    allocation.verify()
    numbers = 0
    for part in (1e-7, -1e-7, 1.0, np.nan):
        for place, changed in figures_with(allocation, lambda value, part=part: value + part * max(1.0, abs(value))):  # type: ignore[misc]
            numbers += 1
            try:
                changed.verify()
            except gp.ProofError:
                continue
            pytest.fail(f"{place} is changed by {part} and proven")
    assert numbers >= 4 * (allocation.time_fractions.size + 2 * len(allocation.throughputs))


@pytest.mark.parametrize(
    "changes",
    [
        {"objective_value": 5.0, "objective_bound": 5.0},
        {"objective_value": None},
        {"objective_bound": 0.7},
        {"gap": None},
        {"shadow_prices": None},
        {"stages": (StageProof("another", 1.0, 1.0, 0.0),)},
        {"constraints": (gp.ConstraintOutcome("another"),)},
        {"pairs": gp.Pairs.nobody()},
        {"spread_fractions": np.zeros((3, 2))},
        {"excluded": {"0": "so"}},
        {"time_fractions": np.zeros((3, 1))},
        {"throughputs": np.zeros(2)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_figures_that_are_made_up_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(gp.ProofError):
        replace(gp.solve(three_jobs(), "max_min_fairness"), **changes).verify()


def test_the_error_says_which_figure_is_wrong() -> None:
    allocation = gp.solve(three_jobs(), "max_min_fairness")
    with pytest.raises(gp.ProofError, match=r"^the objective: is 0\.8, but 5 is stated$"):
        replace(allocation, objective_value=5.0, objective_bound=5.0).verify()
    with pytest.raises(gp.ProofError, match=r"^the bound: is 0\.8, but 0\.7 is stated$"):
        replace(allocation, objective_bound=0.7).verify()
    with pytest.raises(gp.ProofError, match=r"^throughputs\[1\]: is 1\.2, but 3 is stated$"):
        replace(allocation, throughputs=np.array([2.0, 3.0, 0.8])).verify()
    ordered = gp.solve(three_jobs(), "fifo")
    with pytest.raises(gp.ProofError, match=r"^the objective: there is none, but 1\.0 is stated$"):
        replace(ordered, objective_value=1.0).verify()


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "min_cost", "fifo"])
@settings(max_examples=examples(25, costly=True))
@given(gangs=st.lists(st.sampled_from([1, 1, 2, 4, 8]), min_size=1, max_size=12), sharing=st.booleans())
def test_what_is_solved_with_placements_and_pairs_is_verified(policy: str, gangs: list[int], sharing: bool) -> None:
    gp.solve(of_profile(gangs, sharing=sharing and policy != "fifo"), policy).verify()
