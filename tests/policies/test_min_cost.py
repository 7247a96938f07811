"""Least cost: known answers, and the least shortfall and cost of an independent program."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import TIGHT, Floats, crowds, valid_rows
from tests.support.rational import least

NONE = np.nan


def three_jobs(deadlines: list[float], **changes: object) -> gp.AllocationProblem:
    """bert, resnet and lstm, with 240, 60 and 60 steps to do, on a V100 for 3 an hour and a K80 for 1."""
    arrays: dict[str, object] = {
        "job_ids": ["bert", "resnet", "lstm"],
        "accelerator_types": ["v100", "k80"],
        "steps_remaining": [240, 60, 60],
        "prices_per_hour": [3, 1],
        "deadlines_seconds": deadlines,
    }
    return gp.AllocationProblem.from_arrays([[4, 1], [2, 1], [1, 1]], [1, 1], **(arrays | changes))  # type: ignore[arg-type]


def test_a_job_in_no_hurry_runs_where_it_is_cheap() -> None:
    # lstm needs 60/120 = 1/2 step/s: half of the K80 costs 0.5. bert and resnet ask for nothing.
    allocation = gp.solve(three_jobs([NONE, NONE, 120]), "min_cost", min_share=0.0)
    assert allocation.time_fractions.round(6).tolist() == [[0, 0], [0, 0], [0, 0.5]]
    assert allocation.objective_value == pytest.approx(0.5)
    assert allocation.objective_bound == pytest.approx(0.5)
    assert allocation.notes == ()


def test_a_job_in_a_hurry_pays_for_the_fast_type() -> None:
    # bert needs 240/96 = 2.5 steps/s: half of the time on each type, 4/2 + 1/2. The K80 alone is cheaper per step (1 against 3/4)?
    # No: 4 steps for 3 are 0.75 each, so the V100 alone, 2.5/4 of it, costs 1.875.
    allocation = gp.solve(three_jobs([96, NONE, NONE]), "min_cost", min_share=0.0)
    assert allocation.time_fractions[0].round(6).tolist() == [0.625, 0]
    assert allocation.objective_value == pytest.approx(1.875)


def test_jobs_without_a_deadline_have_an_nth_of_the_cluster() -> None:
    # A third of each type: 5/3, 1 and 2/3 steps/s. lstm is cheapest on the K80, the others on what is left.
    allocation = gp.solve(three_jobs([NONE, NONE, NONE]), "min_cost")
    assert (allocation.throughputs >= np.array([5 / 3, 1, 2 / 3]) * (1 - 1e-7)).all()
    assert allocation.objective_value is not None
    assert allocation.objective_value < 4  # the isolated share costs 4


def test_when_not_all_deadlines_can_hold_the_late_jobs_are_named() -> None:
    # bert would need all of the V100, resnet too, so one of them is late.
    allocation = gp.solve(three_jobs([60, 30, NONE]), "min_cost", min_share=0.0)
    assert allocation.stages[0].name == "least shortfall"
    assert allocation.stages[0].value == pytest.approx(0.5)  # resnet on the K80: 1 of 2 steps/s
    assert allocation.notes == ("job 'resnet' is late: it ends 30 s after its deadline",)


def test_deadlines_count_by_weight() -> None:
    heavy = gp.solve(three_jobs([60, 30, NONE], weights=[1, 9, 1]), "min_cost", min_share=0.0)
    assert heavy.notes == ("job 'bert' is late: it ends 180 s after its deadline",)


def test_a_job_with_a_past_deadline_requires_its_full_speed() -> None:
    allocation = gp.solve(three_jobs([-100, NONE, NONE]), "min_cost", min_share=0.0)
    assert allocation.time_fractions[0].round(6).tolist() == [1, 0]
    assert allocation.notes == ("job 'bert' is late: it ends 160 s after its deadline",)


@pytest.mark.parametrize("deadline", [1e-9, 1.0, 59.0, 0.0, -1.0])
def test_a_hopeless_deadline_asks_for_all_that_a_job_can_have(deadline: float) -> None:
    """However near the deadline is, or past: bert and resnet want all of the V100, and share alike what they lack."""
    allocation = gp.solve(three_jobs([deadline, min(deadline, 29.0), NONE], weights=[1, 9, 1]), "min_cost", min_share=0.0)
    assert allocation.time_fractions.round(6).tolist() == [[0, 1], [1, 0], [0, 0]]
    assert allocation.stages[0].value == pytest.approx(3 / 4)
    late = [f"job 'bert' is late: it ends {240 - deadline:.6g} s after its deadline"]
    late += [f"job 'resnet' is late: it ends {30 - min(deadline, 29.0):.6g} s after its deadline"]
    assert list(allocation.notes) == late


def test_a_job_that_gets_no_time_will_miss_its_deadline() -> None:
    # Both need all of the only GPU, and bert is worth more.
    problem = gp.AllocationProblem.from_arrays(
        [[1], [1]], [1], job_ids=["bert", "resnet"], steps_remaining=[60, 60], deadlines_seconds=[60, 60], weights=[2, 1],
        prices_per_hour=[1],
    )  # fmt: skip
    assert gp.solve(problem, "min_cost").notes == ("job 'resnet' gets no time, so it will miss its deadline",)


def test_late_jobs_are_named_in_the_order_of_the_problem() -> None:
    table, late = [[1.0]] * 4, [60, 30, 60, 30]
    problem = gp.AllocationProblem.from_arrays(
        table, [4], job_ids=["d", "c", "b", "a"], steps_remaining=[90] * 4, deadlines_seconds=late, prices_per_hour=[1]
    )
    names = [note.split()[1] for note in gp.solve(problem, "min_cost").notes]
    assert names == ["'d'", "'c'", "'b'", "'a'"]


def test_soft_constraints_and_changes_count_in_the_cost() -> None:
    # lstm needs half a GPU. The K80 is cheaper by 1 an hour for it, and one GPU changes hands.
    def problem() -> gp.AllocationProblem:
        return three_jobs([NONE, NONE, 120], previous_fractions=[[0, 0], [0, 0], [0.5, 0]])

    min_cost = gp.policy_class("min_cost")
    moved = gp.solve(problem(), min_cost(min_share=0.0, constraints=[gp.SwitchCost(0.9)]))
    assert moved.time_fractions[2].tolist() == pytest.approx([0, 0.5])
    assert moved.objective_value == pytest.approx(0.5 + 0.9)
    assert [stage.value for stage in moved.stages] == pytest.approx([0, 1.4], abs=1e-9)
    stays = gp.solve(problem(), min_cost(min_share=0.0, constraints=[gp.SwitchCost(1.1)]))
    assert stays.time_fractions[2].tolist() == pytest.approx([0.5, 0])
    wish = gp.MinThroughput("bert", 4).soft(2)  # a V100 costs 3
    assert gp.solve(problem(), min_cost(min_share=0.0, constraints=[wish])).objective_value == pytest.approx(0.5 + 2)


def test_a_type_without_a_price_and_a_wrong_share_are_named() -> None:
    with pytest.raises(gp.InputError, match=r"accelerator type 'k80', field price_per_hour: is unknown, but min_cost needs it"):
        gp.solve(three_jobs([NONE] * 3, prices_per_hour=[3, NONE]), "min_cost")
    with pytest.raises(gp.InputError, match=r"option min_share: must be a number of at least 0, found -1"):
        gp.solve(three_jobs([NONE] * 3), "min_cost", min_share=-1.0)


@settings(max_examples=examples(60, costly=True))
@given(problem=crowds(max_jobs=8, max_types=4), min_share=st.sampled_from([None, 0.0, 0.3, 2.0]), seed=st.integers(0, 99))
def test_shortfall_and_cost_are_those_of_an_independent_program(
    problem: gp.AllocationProblem, min_share: float | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(problem.runnable.any(axis=1))
    assume(rows.size > 0)
    some = problem.select(rows)
    n = len(rows)
    deadlines = np.where(rng.random(n) < 0.5, rng.choice([-5.0, 10.0, 100.0, 1e4, 1e6], n), NONE)
    prices = rng.choice([0.5, 1.0, 3.0], len(some.capacities))
    problem = gp.AllocationProblem.from_arrays(
        some.throughputs,
        some.capacities,
        num_gpus=some.num_gpus,
        weights=some.weights,
        steps_remaining=some.steps_remaining,
        deadlines_seconds=deadlines,
        prices_per_hour=prices,
    )
    share = problem.isolated_throughput if min_share is None else min_share * problem.equal_share
    needs = np.divide(problem.steps_remaining, deadlines, out=np.where(np.isnan(deadlines), share, np.inf), where=deadlines > 0)
    needs = np.minimum(needs, problem.fastest)
    shortfall, cost = _least(problem, needs)
    allocation = gp.solve(problem, "min_cost", min_share=min_share)
    assert allocation.stages[0].value == pytest.approx(shortfall, rel=1e-6, abs=1e-6)
    assert allocation.objective_value == pytest.approx(cost, rel=1e-5, abs=1e-6)


def _least(problem: gp.AllocationProblem, needs: Floats) -> tuple[float, float]:
    """The least Σ w short, and the least cost with it, by scipy."""
    n, k = problem.throughputs.shape
    rows, limits = valid_rows(problem)
    asking = np.flatnonzero(needs > 0)
    short = np.zeros((len(asking), n * k + n))
    for row, i in enumerate(asking):
        short[row, i * k : (i + 1) * k] = -problem.throughputs[i] / needs[i]
        short[row, n * k + i] = -1
    table = np.vstack([np.hstack([rows, np.zeros((len(rows), n))]), short])
    right = np.concatenate([limits, np.full(len(asking), -1.0)])
    bounds = [(0, 1 if runs else 0) for runs in problem.runnable.ravel()] + [(0, None)] * n
    lack = np.concatenate([np.zeros(n * k), problem.weights])
    first = linprog(lack, table, right, bounds=bounds, options=TIGHT)
    assert first.status == 0
    price = np.concatenate([(problem.num_gpus[:, None] * problem.prices_per_hour).ravel(), np.zeros(n)])
    for slack in (1e-12, 1e-11, 1e-10, 1e-9):  # the least that leaves an answer: where needs are hopeless, it is worth a lot
        room = first.fun + slack * max(1.0, first.fun)
        second = linprog(price, np.vstack([table, lack]), np.append(right, room), bounds=bounds, options=TIGHT)
        if second.status == 0:
            return float(first.fun), float(second.fun)
    raise AssertionError(second.message)


class TestFarApart:
    """Throughputs, steps and deadlines many orders of magnitude apart: some jobs need next to none of their time."""

    def test_a_job_that_needs_a_trillionth_of_its_time(self) -> None:
        """1e-3 steps in 1e4 s are 1e-7 steps/s: 1e-12 of the fast type for 3e-12 an hour, and 4e-12 of the slow one costs more."""
        problem = gp.AllocationProblem.from_arrays(
            [[1e5, 2.5e4], [1, 1]], [1, 1], steps_remaining=[1e-3, 1e3], deadlines_seconds=[1e4, 2e3], prices_per_hour=[3, 1]
        )
        allocation = gp.solve(problem, "min_cost")
        assert allocation.throughputs == pytest.approx([1e-7, 0.5], rel=1e-9)
        assert allocation.time_fractions[0] == pytest.approx([1e-12, 0], rel=1e-9)
        assert allocation.objective_value == pytest.approx(0.5 + 3e-12, rel=1e-10)
        assert allocation.notes == ()
        assert allocation.verify().gap <= 1e-9

    def test_the_cost_of_next_to_nothing(self) -> None:
        """As above without the other job: the cost is proven to its own digits, not to those of a whole GPU."""
        problem = gp.AllocationProblem.from_arrays(
            [[1e5, 2.5e4]], [1, 1], steps_remaining=[1e-3], deadlines_seconds=[1e4], prices_per_hour=[3, 1]
        )
        allocation = gp.solve(problem, "min_cost")
        assert allocation.objective_value == pytest.approx(3e-12, rel=1e-9)
        assert allocation.objective_bound == pytest.approx(3e-12, rel=1e-6)

    def test_another_policy_keeps_it(self) -> None:
        problem = gp.AllocationProblem.from_arrays(
            [[1e5, 2.5e4], [1, 1]], [1, 1], steps_remaining=[1e-3, 1e3], deadlines_seconds=[1e4, 2e3], prices_per_hour=[3, 1]
        )
        policy = gp.Then(gp.policy_class("min_cost")(), gp.policy_class("max_total_throughput")())
        assert gp.solve(problem, policy).throughputs[0] >= 1e-7 * (1 - 1e-9)

    @pytest.mark.deep
    @pytest.mark.parametrize("orders", [12, 16])
    def test_shortfall_and_cost_are_exact(self, orders: int) -> None:
        """On random problems, in fractions. Shortfalls are proven to 1e-9, and what that much less shortfall costs may be saved."""
        rng = np.random.default_rng(orders)
        for number in range(80):
            n, k = int(rng.integers(1, 4)), int(rng.integers(1, 4))
            throughputs, capacities = 10 ** rng.uniform(-orders / 2, orders / 2, (n, k)), rng.integers(1, 4, k)
            gangs = np.minimum(rng.choice([1, 1, 2], n), capacities.max())
            steps = 10 ** rng.uniform(-orders / 4, orders / 4, n)
            fastest = np.where(gangs[:, None] <= capacities, throughputs, 0).max(axis=1)
            far = 10 ** rng.uniform(-orders / 2, orders / 2, n)
            problem = gp.AllocationProblem.from_arrays(
                throughputs,
                capacities,
                num_gpus=gangs,
                steps_remaining=steps,
                deadlines_seconds=far if number % 2 else steps / fastest / 10 ** rng.uniform(-orders, 0.3, n),
                prices_per_hour=10 ** rng.uniform(-0.5, 0.5, k),
            )
            allocation = gp.solve(problem, "min_cost")
            shortfall, cost = allocation.stages
            least_shortfall = _least_in_fractions(problem, None)
            assert shortfall.value == pytest.approx(float(least_shortfall), abs=2e-9)
            high, low = (float(_least_in_fractions(problem, least_shortfall + more)) for more in (Fraction(0), Fraction(2e-9)))
            assert low * (1 - 1e-6) <= cost.value <= high * (1 + 1e-6)
            assert allocation.verify().violation <= 1e-9


def _least_in_fractions(problem: gp.AllocationProblem, shortfall: Fraction | None) -> Fraction:
    """Return the least shortfall, or the least cost under a limit on it; variables: time, then the shortage of each job."""
    n, k = problem.throughputs.shape
    where = [(i, j) for i in range(n) for j in range(k) if problem.runnable[i, j]]
    fastest = [max(Fraction(problem.throughputs[i, j]) for a, j in where if a == i) for i in range(n)]
    needs = [min(Fraction(problem.steps_remaining[i]) / Fraction(problem.deadlines_seconds[i]), fastest[i]) for i in range(n)]
    none = [Fraction(0)] * n
    rows = [[Fraction(a == i) for a, _ in where] + none for i in range(n)]
    rows += [[Fraction(problem.num_gpus[a]) * (b == j) for a, b in where] + none for j in range(k)]
    for i in range(n):
        short = [-Fraction(problem.throughputs[i, b]) / needs[i] * (a == i) for a, b in where]
        rows.append(short + [Fraction(-(other == i)) for other in range(n)])
    limits = [Fraction(1)] * n + [Fraction(gpus) for gpus in problem.capacities] + [Fraction(-1)] * n
    lack = [Fraction(0)] * len(where) + [Fraction(1)] * n
    if shortfall is not None:
        rows, limits = [*rows, lack], [*limits, shortfall]
        lack = [Fraction(problem.prices_per_hour[b]) * Fraction(problem.num_gpus[a]) for a, b in where] + none
    found = least(lack, rows, limits)
    assert found is not None
    return found
