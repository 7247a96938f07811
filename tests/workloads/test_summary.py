"""Summaries of traces, compared with independent computations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel_py import Job, Submission, Trace, describe_trace
from tests.support.fakes import refusal

jobs = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 8), st.none() | st.integers(0, 40)), max_size=20)


def trace_of(rows: list[tuple[int, int, int | None]]) -> Trace:
    return Trace(
        Submission(Job(str(n), arrival_seconds=at, num_gpus=gpus), run_seconds=run) for n, (at, gpus, run) in enumerate(rows)
    )


@given(rows=jobs, periods=st.integers(1, 5))
def test_the_load_equals_a_count_second_by_second(rows: list[tuple[int, int, int | None]], periods: int) -> None:
    summary = describe_trace(trace_of(rows), periods)
    assert sum(gang.num_jobs for gang in summary.gangs) == summary.num_jobs == len(rows)
    first, last = min((at for at, *_ in rows), default=0), max((at for at, *_ in rows), default=0)
    assert (len(summary.periods), sum(period.num_jobs for period in summary.periods)) == (
        (periods, len(rows)) if first < last else (0, 0)
    )
    if rows and all(run is None for *_, run in rows):
        assert (summary.gpu_hours, summary.mean_gpus, summary.peak_gpus, summary.durations) == (None, None, None, None)
        assert {(p.gpu_hours, p.mean_gpus_held, p.most_gpus_held) for p in summary.periods} <= {(None, None, None)}
        return
    held = [sum(gpus for at, gpus, run in rows if run and at <= t < at + run) for t in range(100)]
    assert summary.peak_gpus == max(held)
    assert summary.gpu_hours == pytest.approx(sum(gpus * (run or 0) for _, gpus, run in rows) / 3600)
    if first == last:
        return
    assert math.fsum(period.gpu_hours or 0 for period in summary.periods) == pytest.approx(summary.gpu_hours)
    until_last = math.fsum((p.mean_gpus_held or 0) * (p.end_seconds - p.start_seconds) for p in summary.periods)
    assert until_last == pytest.approx(sum(held[first:last]))
    assert max(period.most_gpus_held or 0 for period in summary.periods) <= summary.peak_gpus


def test_counts_and_quantiles() -> None:
    trace = Trace(
        [
            Submission(Job("a", tenant="x", job_type="t"), run_seconds=100, status="passed"),
            Submission(Job("b", tenant="y", num_gpus=4, arrival_seconds=3600), run_seconds=300, status="failed"),
            Submission(Job("c", tenant="x", num_gpus=4, arrival_seconds=7200), status="passed"),
        ]
    )
    summary = describe_trace(trace)
    assert (summary.jobs_per_hour, summary.first_arrival, summary.last_arrival) == (1, 0, 7200)
    assert summary.statuses == {"passed": 2, "failed": 1}
    assert summary.tenants == {"x": 2, "y": 1}
    assert summary.job_types == {"": 2, "t": 1}
    assert [(g.num_gpus, g.num_jobs, g.durations and g.durations.num_jobs) for g in summary.gangs] == [(1, 1, 1), (4, 2, 1)]
    assert summary.durations is not None
    assert (summary.durations.mean, summary.durations.median, summary.durations.longest) == (200, 200, 300)
    assert summary.to_dict()["gangs"][1]["gpu_hours"] == pytest.approx(1 / 3)


def test_a_job_that_arrives_at_the_very_end_counts_in_the_last_period() -> None:
    *_, last = describe_trace(trace_of([(0, 1, 5), (10, 8, 3600)]), 2).periods
    assert (last.num_jobs, last.gpu_hours, last.most_gpus_held) == (1, 8, 8)


def test_a_trace_without_jobs() -> None:
    summary = describe_trace(Trace([]))
    assert (summary.num_jobs, summary.first_arrival, summary.durations, summary.gangs, summary.periods) == (0, None, None, (), ())


def test_the_number_of_periods_must_be_positive() -> None:
    assert refusal(describe_trace, Trace([]), 0) == "describe, field periods: must be a whole number of at least 1, found 0"
