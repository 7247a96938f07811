"""A solve that its time limit ends: a valid allocation, a bound that holds, and a status that cannot be taken for optimal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.optimization import job_classes
from gavel_py.optimization.formulation import program
from gavel_py.optimization.formulation.matrices import AllocationLP
from gavel_py.optimization.solving import highs, price_decomposition
from gavel_py.optimization.solving.best_responses import BestResponses
from gavel_py.optimization.solving.cutting_planes import PriceBox, minimum
from tests.end_to_end.test_cli import Gavel, gavel
from tests.support.constraint_strategies import constraints, tenanted
from tests.support.examples import examples
from tests.support.instances import crowds, problems

__all__ = ["gavel"]

STOPPED = gp.AllocationStatus.TIME_LIMIT
DEMANDS = ["max_min_fairness", "min_makespan", "finish_time_fairness", "min_lateness"]
SUMS = ["max_total_throughput", "max_progress_rate", "throughput_per_dollar", "min_cost", "nash_welfare"]
FILLING = ["water_filling", gp.resolve_policy("hierarchical", tenants={"red": {"weight": 1}, "blue": {"weight": 2}})]
COMPOSED = [gp.Then(gp.resolve_policy("max_min_fairness"), gp.resolve_policy("max_total_throughput"))]
POLICIES = [*DEMANDS, *SUMS, *FILLING, *COMPOSED]
MINIMISED = {"min_makespan", "finish_time_fairness", "min_lateness", "min_cost"}


@contextmanager
def ending_after(looks: int) -> Iterator[None]:
    """Let all time have passed once the clock has been looked at so often after the start of a solve."""
    count = 0

    def monotonic() -> float:
        nonlocal count
        count += 1
        return 0.0 if count <= looks + 1 else 1e9

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(highs, "time", SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter))
        yield


def stopped_after(looks: int, problem: gp.AllocationProblem, policy: str | gp.Policy, **options: object) -> gp.Allocation:
    with ending_after(looks):
        return gp.solve(problem, policy, time_limit_seconds=60, **options)


def check(found: gp.Allocation, best: gp.Allocation) -> None:
    """`found` is valid, and what it says of its value and bound holds for `best`, the optimum."""
    assert found.verify().violation <= 1e-9
    assert found.shadow_prices is None or found.status is not STOPPED
    assert gp.Allocation.from_json(found.to_json()).status is found.status
    if found.status is not STOPPED:
        assert found.gap is None or found.gap <= (2.1e-6 if found.policy == "then" else 1e-6)  # Then gives up as much again
        assert found.objective_value == pytest.approx(best.objective_value, rel=1e-6, abs=1e-6)
        return
    assert "the time limit of 60 s was reached" in found.notes[0]
    if found.objective_value is None or found.objective_bound is None or best.objective_value is None:
        return
    sign = -1 if best.policy in MINIMISED else 1
    assert best.objective_bound is not None
    size = 1e-6 * max(abs(found.objective_bound), abs(best.objective_value), 1e-3)
    assert sign * found.objective_bound >= sign * best.objective_value - size, "the bound cuts the optimum off"
    if best.policy != "min_cost":  # whose cost is small where jobs are short
        assert sign * found.objective_value <= sign * best.objective_bound + size
    assert found.gap is not None
    assert found.gap <= 1 or sign * found.objective_value < 0 or best.policy in {"nash_welfare", "min_lateness"}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: getattr(policy, "label", policy))
@settings(max_examples=examples(40, costly=True))
@given(problem=crowds(max_jobs=12, max_types=4), looks=st.integers(0, 30))
def test_a_stopped_solve_is_valid_and_its_bound_holds(policy: str | gp.Policy, problem: gp.AllocationProblem, looks: int) -> None:
    try:
        best = gp.solve(problem, policy)
    except gp.GavelError:
        return  # wrong for this policy whether there is a limit or not
    check(stopped_after(looks, problem, policy), best)


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
@pytest.mark.parametrize("policy", ["max_min_fairness", "min_makespan", "max_total_throughput", "min_cost", "water_filling"])
@settings(max_examples=examples(60, costly=True))
@given(data=st.data(), problem=tenanted(), looks=st.integers(0, 40))
def test_constraints_hold_also_in_a_stopped_solve(
    policy: str, data: st.DataObject, problem: gp.AllocationProblem, looks: int
) -> None:
    asked = data.draw(constraints(problem, soft=policy != "water_filling"))
    try:
        best = gp.solve(problem, policy, constraints=asked)
    except gp.GavelError:
        return
    try:
        found = stopped_after(looks, problem, policy, constraints=asked)
    except gp.SolverError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert "before an allocation that satisfies all constraints was found" in message
        return
    check(found, best)
    hard = [outcome for outcome in found.constraints if outcome.penalty is None]
    assert all(outcome.kept for outcome in hard)


@settings(max_examples=examples(40))
@given(problem=problems(max_jobs=8), looks=st.integers(0, 20), agnostic=st.booleans(), tolerance=st.sampled_from([0.0, 0.3]))
def test_merged_jobs_and_agnostic_policies_are_stopped_too(
    problem: gp.AllocationProblem, looks: int, agnostic: bool, tolerance: float
) -> None:
    best = gp.solve(problem, "max_min_fairness", agnostic=agnostic)
    found = stopped_after(looks, problem, "max_min_fairness", agnostic=agnostic, merge_tolerance=tolerance)
    if found.status is STOPPED:
        check(found, best)


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "min_makespan"])
@pytest.mark.parametrize("looks", range(0, 24, 3))
def test_jobs_that_share_gpus_are_stopped_too(policy: str, looks: int) -> None:
    kinds, chance = [0, 0, 1, 1, 2, 2], np.random.default_rng(3)
    speeds = chance.uniform(1, 4, (3, 2))
    pairs = {(a, b): (0.7 * speeds[a], 0.6 * speeds[b]) for a in range(3) for b in range(a, 3)}
    table = np.zeros((3, 3, 2))
    for (a, b), (one, other) in pairs.items():
        table[a, b], table[b, a] = one, other
    problem = gp.AllocationProblem.from_arrays(
        speeds[kinds], [2, 1], pair_kinds=kinds, pair_throughputs=table, steps_remaining=[100.0] * 6
    )
    check(stopped_after(looks, problem, policy), gp.solve(problem, policy))


@settings(max_examples=examples(60, costly=True))
@given(data=st.data(), looks=st.integers(0, 8), policy=st.sampled_from(["max_min_fairness", "min_makespan", "water_filling"]))
def test_few_jobs_that_share_are_never_their_own_partners(data: st.DataObject, looks: int, policy: str) -> None:
    count = data.draw(st.integers(2, 4))
    kinds = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    speeds = data.draw(st.lists(st.sampled_from([0.6, 0.9, 1.0]), min_size=4, max_size=4))
    weights = data.draw(st.lists(st.sampled_from([1.0, 3.0]), min_size=count, max_size=count))
    problem = gp.AllocationProblem.from_arrays(
        np.ones((count, 1)),
        [1],
        pair_kinds=kinds,
        pair_throughputs=np.reshape(speeds, (2, 2, 1)),
        weights=weights,
        steps_remaining=[100.0] * count,
    )
    check(stopped_after(looks, problem, policy), gp.solve(problem, policy))


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "min_makespan", "nash_welfare"])
@pytest.mark.parametrize("looks", range(4))
def test_a_stopped_solve_promises_no_time_that_whole_gangs_cannot_use(looks: int, policy: str) -> None:
    cluster = gp.Cluster.from_counts({"v100": (3, 3)})
    profile = gp.ThroughputProfile.from_matrix([[1.0]] * 2, accelerators=["v100"], job_ids=["a", "b"])
    jobs = [gp.Job(name, num_gpus=2, total_steps=100) for name in "ab"]
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile)
    found, best = stopped_after(looks, problem, policy), gp.solve(problem, policy)
    check(found, best)
    assert found.time_fractions.sum() <= 1 + 1e-9, "only one gang of 2 fits on 3 GPUs"


@pytest.mark.parametrize("looks", range(12))
def test_what_whole_gangs_cannot_use_is_promised_no_more_than_before(looks: int) -> None:
    cluster = gp.Cluster.from_counts({"v100": (12, 4), "k80": (8, 4)})
    profile = gp.ThroughputProfile.from_matrix([[4.0, 1.0]] * 6, accelerators=["v100", "k80"], job_ids=[f"j{i}" for i in range(6)])
    jobs = [gp.Job(f"j{i}", num_gpus=size, locality="node") for i, size in enumerate([3, 3, 3, 2, 4, 3])]
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile)
    check(stopped_after(looks, problem, "max_min_fairness"), gp.solve(problem, "max_min_fairness"))


class OwnVariable(gp.SumPolicy):
    """The least throughput by a variable of its own."""

    def objective(self, program: gp.Program) -> cp.Expression:
        floor = cp.Variable()
        return program.total(program.throughput) + 10 * (floor - 5 * program.total(cp.pos(floor - program.throughput)))


@pytest.mark.parametrize("looks", range(4))
def test_an_objective_with_kinks_and_variables_of_its_own_is_bounded(looks: int) -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 3.0], [1.0, 1.0]], [1, 1])
    found = stopped_after(looks, problem, OwnVariable())
    assert found.objective_bound is not None
    check(found, gp.solve(problem, OwnVariable()))


def test_a_policy_that_solves_by_itself_gets_a_valid_allocation_without_a_value() -> None:
    class Own(gp.Policy):
        def decide(self, jobs: gp.JobClasses, solver: object) -> gp.policies.Decision:
            inner = gp.resolve_policy("max_total_throughput")
            return gp.policies.Decision(inner.decide(jobs, solver).time_fractions)  # type: ignore[arg-type]

    found = stopped_after(0, gp.AllocationProblem.from_arrays([[4.0], [1.0]], [1]), Own())
    assert found.status is STOPPED
    assert found.objective_value is None
    assert found.time_fractions.tolist() == [[0.5], [0.5]]


def test_the_discount_of_strategy_proof_is_said_to_be_missing() -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 3.0], [1.0, 1.0]], [1, 1])
    stopped = [stopped_after(looks, problem, "nash_welfare", strategy_proof=True) for looks in range(0, 16, 5)]
    assert stopped[0].status is STOPPED
    assert all("the discount of strategy_proof" in each.notes[1] for each in stopped if each.status is STOPPED)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", "x"])
def test_a_wrong_limit_of_a_solve_is_refused(value: object) -> None:
    with pytest.raises(gp.InputError, match=f"field time_limit_seconds: must be a finite number greater than 0, found {value!r}"):
        gp.Solver(time_limit_seconds=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (0, "must be greater than 0"),
        (-1, "must be greater than 0"),
        (float("nan"), "must be a finite number"),
        (float("inf"), "must be a finite number"),
        (True, "must be a number"),
        ("x", "must be a number"),
        ("5", "must be a number"),
    ],
)
def test_a_wrong_limit_of_a_scheduler_is_refused(value: object, rule: str) -> None:
    with pytest.raises(gp.InputError, match=f"field time_limit_seconds: {rule}, found {value!r}"):
        gp.RoundScheduler(*one_gpu(), time_limit_seconds=value)  # type: ignore[arg-type]


def test_without_expiry_the_answer_is_that_without_a_limit() -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 3.0], [1.0, 1.0]], [1, 1])
    for policy in ("max_min_fairness", "nash_welfare", "fifo"):
        limited, free = gp.solve(problem, policy, time_limit_seconds=600), gp.solve(problem, policy)
        assert np.array_equal(limited.time_fractions, free.time_fractions)
        assert limited.status is free.status


def test_a_linear_sum_is_stopped_without_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(0)
    speeds, gangs = chance.lognormal(size=(50, 3)), chance.choice([1, 2, 4], 50)
    prices_per_hour, steps = [1.0, 2.0, 3.0], chance.uniform(1e3, 1e5, 50)
    problem = gp.AllocationProblem.from_arrays(
        speeds, [10, 5, 3], num_gpus=gangs, prices_per_hour=prices_per_hour, steps_remaining=steps
    )
    monkeypatch.setattr(program, "Program", None)  # expressions of very many rows take longer than the solve
    for policy in ("max_total_throughput", "max_progress_rate", "throughput_per_dollar"):
        found, best = stopped_after(0, problem, policy), gp.solve(problem, policy)
        assert found.status is STOPPED
        check(found, best)


def test_prices_look_at_the_clock_before_each_pass() -> None:
    gains = np.random.default_rng(0).random((3, 40))
    box = PriceBox(np.zeros(3), np.ones(3), np.full(3, 0.5))
    dual = price_decomposition.DualFunction(BestResponses(gains, np.ones(40)), np.ones(3), highs.TimeLimit(0.0))
    with pytest.raises(highs.TimeLimitReached):
        dual.fix(box)
    with pytest.raises(highs.TimeLimitReached):
        minimum(dual.at, box)


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["max_total_throughput", "max_min_fairness", "min_makespan"])
def test_prices_of_a_sample_give_a_good_allocation_when_the_time_is_up(policy: str) -> None:
    chance = np.random.default_rng(0)
    steps = chance.uniform(1e5, 2e5, 9_000)
    problem = gp.AllocationProblem.from_arrays(chance.lognormal(size=(9_000, 4)), [700] * 4, steps_remaining=steps)
    best, at_once = gp.solve(problem, policy), stopped_after(0, problem, policy)
    later = next(found for looks in range(400, 0, -50) if (found := stopped_after(looks, problem, policy)).status is STOPPED)
    for found in (at_once, later):
        check(found, best)
    assert at_once.gap is not None
    assert later.gap is not None
    assert later.gap < 0.3 * at_once.gap


@pytest.mark.deep
@pytest.mark.parametrize("rows_for_prices", [10**9, job_classes.PRICED_ROWS])
def test_the_clock_ends_a_large_solve_and_the_next_one_is_sound(rows_for_prices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is a fraction of what this machine takes, which differs by more than any fixed limit allows for.

    What the first solve of a process imports, and the time that other processes take, are no part of it.
    """
    monkeypatch.setattr(job_classes, "PRICED_ROWS", rows_for_prices)
    chance = np.random.default_rng(0)
    gp.solve(gp.AllocationProblem.from_arrays(chance.lognormal(size=(5_000, 4)), [300] * 4), "max_min_fairness")
    large = gp.AllocationProblem.from_arrays(chance.lognormal(size=(12_000, 4)), [700] * 4)
    started = time.process_time()
    gp.solve(large, "max_min_fairness")
    solver = gp.Solver("max_min_fairness", time_limit_seconds=0.2 * (time.process_time() - started))
    found = solver.solve(large)
    assert found.status is STOPPED
    assert found.gap is not None
    assert 1e-6 < found.gap < 1
    found.verify()
    small = gp.AllocationProblem.from_arrays(chance.lognormal(size=(30, 4)), [3] * 4)
    solver.time_limit_seconds = 60  # a busy machine may well take 0.07 s for this one too
    assert solver.solve(small).objective_value == pytest.approx(gp.solve(small, "max_min_fairness").objective_value, rel=1e-9)


def test_a_better_level_does_not_hide_that_the_rest_is_unfinished() -> None:
    """The level is optimal, and the most throughput with it has not been found."""
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 3.0], [1.0, 1.0], [5.0, 1.0]], [2, 1])
    found = [stopped_after(looks, problem, "max_min_fairness") for looks in range(30)]
    half = [each for each in found if each.status is STOPPED and each.gap is not None and each.gap <= 1e-6]
    assert half
    assert "the objective is optimal, but secondary objectives" in half[0].notes[0]
    assert found[-1].status is gp.AllocationStatus.OPTIMAL


def one_gpu() -> tuple[gp.Cluster, gp.ThroughputProfile]:
    profile = gp.ThroughputProfile.from_matrix([[2.0], [3.0], [4.0]], job_ids=["a", "b", "c"], accelerators=["v100"])
    return gp.Cluster.from_counts({"v100": 1}), profile


def test_a_scheduler_keeps_the_allocation_in_force_and_says_so(tmp_path: Path) -> None:
    cluster, profile = one_gpu()
    scheduler = gp.RoundScheduler(cluster, profile, time_limit_seconds=60)
    scheduler.submit(gp.Job("a"))
    scheduler.submit(gp.Job("b", weight=3.0))
    first = scheduler.next_round()
    assert first.notes == ()
    kept = scheduler.allocation
    scheduler.submit(gp.Job("c"))
    with ending_after(0):
        second = scheduler.next_round()
    assert second.notes == ("the time limit of 60 s was reached: the allocation solved at 0 s remains in use",)
    assert scheduler.allocation is kept
    scheduler.save(tmp_path / "state")
    loaded = gp.RoundScheduler.load(tmp_path / "state", profile)
    assert loaded.time_limit_seconds == 60
    for each in (scheduler, loaded):  # with time, the next round is about all jobs
        third = each.next_round()
        assert third.notes == ()
        assert each.allocation is not None
        assert each.allocation.status is gp.AllocationStatus.OPTIMAL
        assert len(each.allocation.job_ids) == 3


def test_the_first_round_has_an_allocation_whatever_the_time(tmp_path: Path) -> None:
    cluster, profile = one_gpu()
    scheduler = gp.RoundScheduler(cluster, profile, time_limit_seconds=60)
    for job_id in "abc":
        scheduler.submit(gp.Job(job_id))
    with ending_after(0):
        first = scheduler.next_round()
    assert len(first.assignments) == 1
    assert "the time limit of 60 s was reached" in first.notes[0]
    assert gp.Round.from_dict(first.to_dict()) == first
    scheduler.save(tmp_path / "state")
    loaded = gp.RoundScheduler.load(tmp_path / "state", profile)
    with ending_after(0):  # it is no better, so that none moves for it
        assert "the allocation solved at 0 s remains in use" in loaded.next_round().notes[0]
    assert loaded.next_round().notes == ()  # asked again although nothing has changed
    assert loaded.allocation is not None
    assert loaded.allocation.status is gp.AllocationStatus.OPTIMAL


def test_lost_nodes_are_never_planned_with() -> None:
    """What is in force was solved for GPUs that are gone, so it is not kept."""
    profile = gp.ThroughputProfile.from_matrix([[2.0], [3.0]], job_ids=["a", "b"], accelerators=["v100"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": (2, 1)}), profile, time_limit_seconds=60)
    scheduler.submit(gp.Job("a"))
    scheduler.submit(gp.Job("b"))
    scheduler.next_round()
    scheduler.node_down("v100-0")
    with ending_after(0):
        after = scheduler.next_round()
    assert scheduler.allocation is not None
    assert scheduler.allocation.time_fractions.sum() <= 1 + 1e-9
    assert "the time limit" in after.notes[0]


def test_the_command_returns_what_is_known(tmp_path: Path, gavel: Gavel) -> None:
    kinds = ["LM (batch size 80)", "ResNet-18 (batch size 64)", "LM (batch size 80)"]
    rows = "".join(f"{job_id},{kind}\n" for job_id, kind in zip("abc", kinds, strict=True))
    (tmp_path / "jobs.csv").write_text("job_id,job_type\n" + rows)
    command = ["solve", str(tmp_path / "jobs.csv"), "-c", "v100:1,k80:1"]
    text = gavel(*command, "--time-limit", "1e-9")
    assert (text.code, text.err) == (0, "")
    assert "the time limit of 1e-09 s was reached; value and proven bound differ by" in text.out
    document = json.loads(gavel(*command, "--time-limit", "1e-9", "--json").out)
    assert document["status"] == "time_limit"
    assert document["objective"]["gap"] > 1e-6
    assert gavel(*command, "--time-limit", "0").code == 2


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput"])
def test_a_limit_that_ends_the_program_of_undecided_jobs_leaves_an_allocation_of_all(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that program has found is the time of some jobs only."""
    solve = AllocationLP.solve

    def stopped(self: AllocationLP, *arguments: Any) -> Any:
        if len(self.jobs) < 4_000:
            raise highs.TimeLimitReached(None, (np.zeros((len(self.jobs), 4)),))
        return solve(self, *arguments)

    monkeypatch.setattr(AllocationLP, "solve", stopped)
    chance = np.random.default_rng(0)
    large = gp.AllocationProblem.from_arrays(chance.lognormal(size=(4_000, 4)), [250] * 4)
    found = gp.solve(large, policy, time_limit_seconds=1e6)
    assert found.status is STOPPED
    assert found.time_fractions.shape == (4_000, 4)
    found.verify()
