"""Ordered policies on instances small enough to serve by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import crowds


def fractions(policy: str, throughputs: list[list[float]], capacities: list[float], **arrays: Any) -> list[list[float]]:
    known = ("backfill", "fractional", "preemptive", "by", "agnostic", "constraints")
    options = {name: arrays.pop(name) for name in known if name in arrays}
    problem = gp.AllocationProblem.from_arrays(throughputs, capacities, **arrays)
    result: list[list[float]] = gp.solve(problem, gp.policy_class(policy)(**options)).time_fractions.tolist()
    return result


def test_fifo_serves_by_arrival_each_on_its_fastest_free_type() -> None:
    assert fractions("fifo", [[2, 1], [2, 1], [2, 1]], [1, 1], arrival_seconds=[2, 1, 3]) == [[0, 1], [1, 0], [0, 0]]


def test_equal_arrivals_are_served_by_id() -> None:
    assert fractions("fifo", [[1], [1]], [1], job_ids=["b", "a"]) == [[0], [1]]


def test_ids_are_ordered_as_a_person_reads_them() -> None:
    served = fractions("fifo", [[1.0]] * 12, [10])
    assert [row[0] for row in served] == [1] * 10 + [0] * 2


def test_no_job_passes_a_blocked_gang_under_fifo() -> None:
    throughputs, gangs = [[1.0], [1.0], [1.0]], [3, 4, 1]
    assert fractions("fifo", throughputs, [4], num_gpus=gangs) == [[1], [0], [0]]
    assert fractions("fifo", throughputs, [4], num_gpus=gangs, backfill=True) == [[1], [0], [1]]


def test_a_gang_that_fits_nowhere_is_excluded_and_blocks_no_job() -> None:
    assert fractions("fifo", [[1.0], [1.0]], [4], num_gpus=[8, 1]) == [[0], [1]]


def test_fractional_service_takes_what_is_left_of_each_type() -> None:
    assert fractions("fifo", [[3, 1], [3, 1]], [1.5, 1], fractional=True) == [[1, 0], [0.5, 0.5]]


def test_shortest_job_first_orders_by_best_case_remaining_time() -> None:
    throughputs, steps = [[1.0, 4.0], [1.0, 1.0]], [8, 3]
    assert fractions("shortest_job_first", throughputs, [0, 1], steps_remaining=steps) == [[0, 1], [0, 0]]


def test_by_total_ignores_progress() -> None:
    sizes: dict[str, Any] = {"total_steps": [10, 5], "steps_remaining": [1, 5]}
    assert fractions("shortest_job_first", [[1.0], [1.0]], [1], **sizes) == [[1], [0]]
    assert fractions("shortest_job_first", [[1.0], [1.0]], [1], by="total", **sizes) == [[0], [1]]


@pytest.mark.parametrize("running_on", [[None, "type-0"], [-1, 0]])
def test_without_preemption_running_jobs_keep_their_type(running_on: list[Any]) -> None:
    assert fractions("fifo", [[1.0], [1.0]], [1], running_on=running_on, preemptive=False) == [[0], [1]]
    assert fractions("fifo", [[1.0], [1.0]], [1], running_on=running_on) == [[1], [0]]


def test_agnostic_service_takes_types_in_the_order_of_the_cluster() -> None:
    assert fractions("fifo", [[1, 9], [1, 9]], [1, 1]) == [[0, 1], [1, 0]]
    assert fractions("fifo", [[1, 9], [1, 9]], [1, 1], agnostic=True) == [[1, 0], [0, 1]]


class TestConstraints:
    def test_a_job_gets_no_more_than_limits_leave(self) -> None:
        jobs, one_each = [[2.0, 1.0]] * 4, [[1, 0], [0, 1], [0, 1], [0, 0]]
        assert fractions("fifo", jobs, [2, 2], constraints=[gp.MaxGpus(1, accelerator="type-0")]) == one_each
        budget: dict[str, Any] = {"constraints": [gp.CostBudget(5)], "prices_per_hour": [3, 1]}
        assert fractions("fifo", jobs, [2, 2], **budget) == one_each
        parts = fractions("fifo", jobs, [2, 2], fractional=True, **budget)  # 3 for the first, and 2 of 3 for the next
        assert np.array(parts) == pytest.approx(np.array([[1, 0], [2 / 3, 0], [0, 0], [0, 0]]))

    def test_jobs_outside_a_limit_may_pass(self) -> None:
        quota = gp.Quota("red", gpus=1, guaranteed=False, borrowable=False)
        tenants = {"tenants": ["red", "red", "blue"], "constraints": [quota]}
        assert fractions("fifo", [[1.0]] * 3, [3], backfill=True, **tenants) == [[1], [0], [1]]
        assert fractions("fifo", [[1.0]] * 3, [3], **tenants) == [[1], [0], [0]]

    @pytest.mark.parametrize("most", range(1, 60))
    def test_a_limit_is_used_to_the_last_gpu(self, most: int) -> None:
        served = fractions("fifo", [[1.0]] * 64, [64], constraints=[gp.MaxGpus(most)])
        assert [row[0] for row in served] == [1] * most + [0] * (64 - most)
        budget = {"constraints": [gp.CostBudget(0.7 * most)], "prices_per_hour": [0.7]}
        assert [row[0] for row in fractions("fifo", [[1.0]] * 64, [64], **budget)] == [1] * most + [0] * (64 - most)

    @pytest.mark.parametrize(
        "promise",
        [gp.MinThroughput("late", 2.0), gp.Quota("blue", gpus=1), gp.KeepRunning("late"), gp.Deadline("late", 5)],
        ids=lambda promise: promise.kind,
    )
    def test_jobs_with_promises_come_first(self, promise: gp.Constraint) -> None:
        arrays = {"job_ids": ["first", "second", "late"], "tenants": ["red", "red", "blue"], "steps_remaining": [10, 10, 10]}
        served = fractions("fifo", [[2.0, 1.0]] * 3, [1, 1], running_on=[-1, -1, 0], constraints=[promise], **arrays)
        assert served == [[0, 1], [0, 0], [1, 0]]

    def test_only_as_many_come_first_as_the_promise_takes(self) -> None:
        arrays = {"tenants": ["red", "red", "blue", "blue", "blue"], "constraints": [gp.Quota("blue", gpus=1)]}
        assert fractions("fifo", [[1.0]] * 5, [2], **arrays) == [[1], [0], [1], [0], [0]]
        assert fractions("fifo", [[1.0]] * 5, [4], **arrays) == [[1], [1], [1], [1], [0]]
        gangs = arrays | {"num_gpus": [1, 1, 4, 2, 1], "backfill": True}  # blue's first gang does not fit, and the next one serves
        assert fractions("fifo", [[1.0]] * 5, [3], **gangs) == [[1], [0], [0], [1], [0]]

    def test_running_jobs_come_before_promises_where_nothing_is_preempted(self) -> None:
        arrays: dict[str, Any] = {"job_ids": ["runs", "late"], "running_on": [0, -1], "preemptive": False}
        promise = [gp.MinThroughput("late", 1.0)]
        assert fractions("fifo", [[2.0, 1.0]] * 2, [1, 1], constraints=promise, **arrays) == [[1, 0], [0, 1]]

    def test_a_promise_that_the_pass_breaks_is_named(self) -> None:
        # Both are promised something: a goes first and takes the fast type, where b would have to be.
        promises = [gp.MinThroughput("a", 1.0), gp.MinThroughput("b", 2.0)]
        expected = (
            "constraint the throughput of 2 steps/s for job 'b': is violated by fifo, which does not search for another allocation"
        )
        with pytest.raises(gp.InputError, match=expected):
            fractions("fifo", [[2.0, 1.0]] * 2, [1, 1], job_ids=["a", "b"], constraints=promises)
        problem = gp.AllocationProblem.from_arrays([[2.0, 1.0]] * 2, [1, 1], job_ids=["a", "b"])
        kept = gp.solve(problem, gp.policy_class("max_total_throughput")(constraints=promises))
        assert kept.throughputs.tolist() == pytest.approx([1, 2])

    @pytest.mark.parametrize("name", ["fifo", "least_attained_service"])
    @settings(max_examples=examples(60))
    @given(problem=crowds(max_jobs=16, max_types=4), fractional=st.booleans(), part=st.floats(0.05, 1.0))
    def test_limits_are_kept_and_no_job_could_have_more(
        self, name: str, problem: gp.AllocationProblem, fractional: bool, part: float
    ) -> None:
        """A waiting job lacks a GPU, or a part of a limit, on each of its types."""
        assume(problem.runnable.any())
        most, theirs = part * float(problem.capacities.sum()), np.array(problem.tenants) == "red"
        limits = [gp.MaxGpus(most), *([gp.MaxGpus(most / 2, tenant="red")] if theirs.any() else [])]
        policy = gp.policy_class(name)(backfill=True, fractional=fractional, constraints=limits)
        x = gp.solve(problem, policy).time_fractions
        used = problem.num_gpus[:, None] * x
        assert used.sum() <= most * (1 + 1e-9)
        assert used[theirs].sum() <= most / 2 * (1 + 1e-9)
        for i in np.flatnonzero(x.sum(axis=1) < 1 - 1e-9).tolist():
            room = np.minimum(problem.capacities - used.sum(axis=0), most - used.sum())
            room = np.minimum(room, most / 2 - used[theirs].sum()) if theirs[i] else room
            part_left = np.where(problem.runnable[i], room / problem.num_gpus[i], 0.0)
            assert part_left.max() <= 1e-9 if fractional else part_left.max() < 1
