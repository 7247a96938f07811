"""Ordered policies on instances small enough to serve by hand."""

from __future__ import annotations

from typing import Any

import pytest

import gavel_py as gp


def fractions(policy: str, throughputs: list[list[float]], capacities: list[float], **arrays: Any) -> list[list[float]]:
    options = {name: arrays.pop(name) for name in ("backfill", "fractional", "preemptive", "by", "agnostic") if name in arrays}
    problem = gp.AllocationProblem.from_arrays(throughputs, capacities, **arrays)
    result: list[list[float]] = gp.solve(problem, policy, **options).time_fractions.tolist()
    return result


def test_fifo_serves_by_arrival_each_on_its_fastest_free_type() -> None:
    assert fractions("fifo", [[2, 1], [2, 1], [2, 1]], [1, 1], arrival_seconds=[2, 1, 3]) == [[0, 1], [1, 0], [0, 0]]


def test_equal_arrivals_are_served_by_id() -> None:
    assert fractions("fifo", [[1], [1]], [1], job_ids=["b", "a"]) == [[0], [1]]


def test_ids_are_ordered_as_a_person_reads_them() -> None:
    served = fractions("fifo", [[1.0]] * 12, [10])
    assert [row[0] for row in served] == [1] * 10 + [0] * 2


def test_fifo_lets_nobody_pass_a_gang_that_does_not_fit_now() -> None:
    throughputs, gangs = [[1.0], [1.0], [1.0]], [3, 4, 1]
    assert fractions("fifo", throughputs, [4], num_gpus=gangs) == [[1], [0], [0]]
    assert fractions("fifo", throughputs, [4], num_gpus=gangs, backfill=True) == [[1], [0], [1]]


def test_a_gang_that_fits_nowhere_is_excluded_and_blocks_nobody() -> None:
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
