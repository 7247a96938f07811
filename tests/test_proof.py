"""The proof of an allocation: what it finds out, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py import chambers, factor_program, solver
from gavel_py.proof import CheapestMix
from tests.instances import TIGHT, crowds


def three_jobs() -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]], [1, 1], steps_remaining=[240, 60, 60])


@settings(max_examples=100, deadline=None)
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


@pytest.mark.parametrize("policy", [name for name in gp.policy_names() if name != "allox"])  # that one serves no gangs
@settings(max_examples=15, deadline=None)
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
    with pytest.raises(gp.InputError, match="read from a file has no problem to be verified with"):
        allocation.verify()


def test_a_wrong_answer_leads_to_the_next_route(monkeypatch: pytest.MonkeyPatch) -> None:
    right = factor_program.FactorProgram.efficient_times
    calls = []

    def wrong_at_first(self: factor_program.FactorProgram, linear: solver.LinearSolver) -> np.ndarray:
        calls.append(linear.algorithm)
        return right(self, linear) * (0.5 if len(calls) == 1 else 1.0)

    monkeypatch.setattr(factor_program.FactorProgram, "efficient_times", wrong_at_first)
    # `expand` makes up for times that fall short; here it is to hand out just what it is given.
    monkeypatch.setattr(chambers.Chambers, "expand", lambda self, slots, times, needs: times[slots.of])  # noqa: ARG005
    allocation = gp.solve(three_jobs(), "max_min_fairness")
    assert allocation.objective_value == pytest.approx(0.8)
    assert allocation.route is not None
    assert allocation.route.algorithm == "interior point"
    assert len(allocation.route.failed) == 1
    assert allocation.route.failed[0].startswith("classes, simplex: the answer's value 0.4 and the proven bound 0.8")
    assert calls == ["simplex", "interior point"]


def test_when_no_route_closes_the_error_tells_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chambers.Chambers, "expand", lambda self, slots, times, needs: times[slots.of] / 2)  # noqa: ARG005
    with pytest.raises(gp.ProofError) as caught:
        gp.solve(three_jobs(), "max_min_fairness")
    message = str(caught.value)
    assert message.startswith("no way of solving led to a proven answer")
    assert all(route in message for route in ("classes, simplex:", "classes, interior point:", "none, simplex:"))


def test_prices_of_zero_do_not_make_a_bound_when_one_job_bounds_all() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [100], weights=[1, 50])
    allocation = gp.solve(problem, "max_min_fairness")
    assert allocation.objective_value == pytest.approx(0.02)
    assert allocation.objective_bound == pytest.approx(0.02)
    assert allocation.shadow_prices is not None
    assert allocation.shadow_prices.tolist() == [0]
