"""Samples, windows and scaled traces."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py import Job, Submission, Trace, describe_trace
from tests.support.fakes import refusal

times = st.lists(st.floats(0, 1e6), min_size=1, max_size=30)


def trace_of(arrivals: list[float], **recorded: float) -> Trace:
    return Trace(Submission(Job(str(n), arrival_seconds=at, deadline_seconds=at + 7), **recorded) for n, at in enumerate(arrivals))  # type: ignore[arg-type]


def ids(trace: Trace) -> list[str]:
    return [submission.job.job_id for submission in trace]


class TestSample:
    @given(arrivals=times, seed=st.integers(0, 9), data=st.data())
    def test_samples_of_one_seed_are_nested(self, arrivals: list[float], seed: int, data: st.DataObject) -> None:
        trace = trace_of(arrivals)
        large = data.draw(st.integers(1, len(trace)))
        small = data.draw(st.integers(1, large))
        assert len(trace.sample(small, seed)) == small
        assert set(trace.sample(small, seed)) <= set(trace.sample(large, seed)) <= set(trace)
        assert trace.sample(large, seed) == trace.sample(large, seed)

    def test_a_share_of_the_jobs_and_other_seeds(self) -> None:
        trace = trace_of([float(n) for n in range(1000)])
        assert len(trace.sample(0.25)) == 250
        assert trace.sample(0.25, 1) != trace.sample(0.25, 2)
        assert trace.sample(0.25, 1).report.assumptions == ("Jobs drawn with equal probability (seed 1): 250 of 1,000.",)

    @pytest.mark.parametrize("jobs", [0, -1, 4, 1.5, float("nan"), 0.01])
    def test_invalid_arguments_are_refused(self, jobs: float) -> None:
        assert refusal(trace_of([1, 2, 3]).sample, jobs).startswith(
            "sample, field jobs: must be a fraction below 1 or a whole number"
        )


class TestScale:
    @given(arrivals=times, load=st.floats(0.01, 100))
    def test_scaling_divides_times_since_the_first_arrival(self, arrivals: list[float], load: float) -> None:
        trace = trace_of(arrivals, run_seconds=60.0)
        scaled = trace.scale(load)
        assert ids(scaled) == ids(trace)
        first, last = trace[0].job.arrival_seconds, trace[-1].job.arrival_seconds
        assert scaled[0].job.arrival_seconds == first
        assert scaled[-1].job.arrival_seconds - first == pytest.approx((last - first) / load)
        assert describe_trace(scaled).gpu_hours == describe_trace(trace).gpu_hours
        for submission in scaled:
            assert submission.job.deadline_seconds == pytest.approx(submission.job.arrival_seconds + 7)

    @pytest.mark.parametrize("load", [0, -2, float("nan"), float("inf")])
    def test_a_load_must_be_positive(self, load: float) -> None:
        assert refusal(trace_of([1]).scale, load).startswith("scale, field load: must be a finite number greater than 0")


class TestWindow:
    @given(arrivals=times, cut=st.floats(0, 1e6))
    def test_adjacent_windows_partition_the_jobs(self, arrivals: list[float], cut: float) -> None:
        trace = trace_of(arrivals)
        before, after = trace.window(end=cut, keep_clock=True), trace.window(cut, keep_clock=True)
        assert sorted(ids(before) + ids(after)) == sorted(ids(trace))
        assert all(submission.job.arrival_seconds < cut for submission in before)

    def test_the_clock_starts_with_the_window(self) -> None:
        trace = trace_of([10, 20, 30, 40], cancelled_seconds=50.0)
        moved = trace.window(15, 35)
        assert [(s.job.arrival_seconds, s.job.deadline_seconds, s.cancelled_seconds) for s in moved] == [(5, 12, 35), (15, 22, 35)]
        assert ids(trace.window(first=1, last=3)) == ["1", "2"]
        assert trace.window(first=1, last=3)[0].job.arrival_seconds == 0
        assert trace.window(first=1, last=3, keep_clock=True)[0] == trace[1]
        assert ids(trace.window(15, first=2)) == ["2", "3"]
        assert trace.window(100).submissions == ()
        assert trace.window(-math.inf, math.inf).submissions == trace.window().submissions

    @pytest.mark.parametrize(
        ("options", "field"),
        [({"start": 5, "end": 5}, "end"), ({"first": 3, "last": 3}, "last"), ({"first": -1}, "first"), ({"last": -1}, "last")],
    )
    def test_empty_ranges_are_refused(self, options: dict[str, int], field: str) -> None:
        assert refusal(trace_of([1, 2]).window, **options).startswith(f"window, field {field}: must be")


def test_a_trace_is_a_sequence() -> None:
    trace = trace_of([3, 1, 2])
    assert ids(trace) == ["1", "2", "0"]
    assert ids(trace[1:]) == ["2", "0"]
    assert trace[0] in trace
    assert hash(trace) == hash(trace_of([3, 1, 2]))
    assert (trace == 3, repr(trace)) == (False, "Trace(3 jobs)")
    assert [job.job_id for job in trace.jobs] == ids(trace)


@pytest.mark.parametrize(("run_seconds", "gpu_seconds"), [(100.0, 400.0), (None, None)])
def test_gpu_seconds_are_those_of_all_gpus_of_the_gang(run_seconds: float | None, gpu_seconds: float | None) -> None:
    assert gp.Submission(gp.Job("a", num_gpus=4), run_seconds=run_seconds).gpu_seconds == gpu_seconds
