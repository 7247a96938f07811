"""Events of nodes: windows that overlap or are close together, and failures in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.simulator.node_events import NodeEvents
from tests.support.fakes import refusal

Windows = list[tuple[int, int]]


def changes(windows: Windows, notice: float, failures: gp.NodeFailures | None = None, seed: int = 0) -> list[tuple[float, str]]:
    made = [gp.NodeWindow("n", start, end) for start, end in windows]
    events = NodeEvents(["n"], failures, made, notice, np.random.default_rng(seed))
    return [(round(event.seconds, 6), event.change) for event in events.until(20_000)]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([(720, 1440)], [(360, "drain"), (720, "down"), (1440, "up")]),
        # The node is drained for the second window during the first one.
        ([(720, 1440), (1500, 2000)], [(360, "drain"), (720, "down"), (1440, "up"), (1440, "drain"), (1500, "down"), (2000, "up")]),
        ([(720, 1440), (1000, 2000)], [(360, "drain"), (720, "down"), (2000, "up")]),
        ([(720, 2000), (1000, 1440)], [(360, "drain"), (720, "down"), (2000, "up")]),
        ([(720, 1440), (1440, 2000)], [(360, "drain"), (720, "down"), (2000, "up")]),
        ([(720, 1440), (800, 1440)], [(360, "drain"), (720, "down"), (1440, "up")]),
        ([(720, 730), (740, 750)], [(360, "drain"), (720, "down"), (730, "up"), (730, "drain"), (740, "down"), (750, "up")]),
    ],
)
def test_windows_of_one_node(windows: Windows, expected: list[tuple[float, str]]) -> None:
    assert changes(windows, 360) == expected
    assert changes(windows[::-1], 360) == expected


@given(
    windows=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 30)).map(lambda w: (w[0] * 100, (w[0] + w[1]) * 100)), max_size=6
    ),
    notice=st.sampled_from([0, 50, 360]),
    failures=st.sampled_from([None, gp.NodeFailures(1500, 300)]),
)
def test_a_node_is_up_outside_of_windows_and_failures_and_drained_before_windows(
    windows: Windows, notice: int, failures: gp.NodeFailures | None
) -> None:
    told = changes(windows, notice, failures)
    failed = changes([], 0, failures)
    state, at = "up", 0.0
    for seconds, change in [*told, (20_000.0, "end")]:
        if seconds > at:  # the state between two changes
            middle = (at + seconds) / 2
            down = any(start <= middle < end for start, end in windows) or _is_down(failed, middle)
            noticed = any(start - notice <= middle < start for start, _ in windows)
            assert state == ("down" if down else "drain" if noticed else "up")
        assert change != state
        state, at = change, seconds


def _is_down(told: list[tuple[float, str]], seconds: float) -> bool:
    before = [change for at, change in told if at <= seconds]
    return bool(before) and before[-1] == "down"


def play(jobs: list[gp.Job | gp.Submission], gpus: str = "v100:1", **options: Any) -> gp.SimulationResult:
    """Throughputs of one step per second."""
    ids = [(each.job if isinstance(each, gp.Submission) else each).job_id for each in jobs]
    profile = gp.ThroughputProfile.from_matrix([[1.0]] * len(ids), job_ids=ids, accelerators=["v100"])
    return gp.simulate(jobs, gp.Cluster.from_inline(gpus), profile, "fifo", **options)


def test_no_gang_starts_between_windows_closer_than_a_round() -> None:
    windows = [gp.NodeWindow("v100-0", 720, 1440), gp.NodeWindow("v100-0", 1500, 2000)]
    job = play([gp.Job("a", total_steps=1000)], maintenance=windows).jobs["a"]
    assert (job.starts, job.lost_gpu_seconds, job.jct_seconds) == (2, 0, 2160 + 1000 - 720)  # a round begins at 2,160 s


@pytest.mark.parametrize("length", [360, 360.3, 0.7])
@pytest.mark.parametrize("between", [False, True])
def test_events_at_the_boundary_of_rounds_cost_no_further_round(length: float, between: bool) -> None:
    # Starts of rounds are sums of lengths, which differ from their multiples by rounding.
    windows = [gp.NodeWindow("v100-0", 8 * length, 17 * length)]
    jobs = [gp.Job("a", total_steps=20 * length), gp.Job("b", total_steps=length, arrival_seconds=29 * length)]
    result = play(jobs, maintenance=windows, round_seconds=length, starts_between_rounds=between)
    a, b = result.jobs["a"], result.jobs["b"]
    assert (a.starts, a.lost_gpu_seconds, a.preemptions) == (2, 0, 1)
    assert a.end_seconds == pytest.approx(29 * length)
    assert (b.first_start_seconds, b.end_seconds) == pytest.approx((29 * length, 30 * length))


def test_a_window_within_a_round_leaves_that_round_to_other_nodes() -> None:
    job = play([gp.Job("a", total_steps=1000)], maintenance=[gp.NodeWindow("v100-0", 719, 730)]).jobs["a"]
    assert (job.starts, job.lost_gpu_seconds, job.jct_seconds) == (2, 0, 1080 + 1000 - 360)


def test_a_job_that_ends_at_its_deadline_to_rounding_is_not_late() -> None:
    def late(by: float) -> int:
        jobs = [gp.Job(f"a{i}", total_steps=0.3, deadline_seconds=0.3 * (i + 1) - by) for i in range(10)]
        return play(jobs, round_seconds=0.3).summary.late

    assert (late(0.0), late(1e-6)) == (0, 10)


def test_time_down_before_the_clock_starts_does_not_count() -> None:
    windows = [gp.NodeWindow("v100-0", 0, 3600)]
    usage = play([gp.Job("a", total_steps=100, arrival_seconds=1000)], maintenance=windows).summary.usage["v100"]
    assert usage == {
        "gpu_seconds": 2980, "used": 100, "idle": 280, "down": 2600, "utilization": 100 / 380
    }  # fmt: skip


def test_failures_start_with_the_clock() -> None:
    late = play([gp.Job("a", total_steps=5000, arrival_seconds=1e9)], node_failures=gp.NodeFailures(1000, 50), seed=3)
    soon = play([gp.Job("a", total_steps=5000)], node_failures=gp.NodeFailures(1000, 50), seed=3)
    assert late.jobs["a"].starts == soon.jobs["a"].starts
    assert late.jobs["a"].jct_seconds == pytest.approx(soon.jobs["a"].jct_seconds, abs=1e-3)


class TestCheckpoints:
    """A node that goes down for 10 s at 1,000 s, under a job of 5,000 s that runs from 0 s on."""

    DOWN = (gp.NodeWindow("v100-0", 1000, 1010),)

    def lost(self, restart: float = 0.0, **options: Any) -> float:
        result = play([gp.Job("a", total_steps=5000)], maintenance=self.DOWN, restart_seconds=restart, **options)
        job = result.jobs["a"]
        assert job.steps_done == 5000
        assert job.running_seconds == pytest.approx(5000 + job.lost_gpu_seconds)
        return job.lost_gpu_seconds

    def test_in_event_mode_there_is_a_checkpoint_every_six_minutes(self) -> None:
        assert self.lost(round_seconds=None) == 1000 - 2 * 360
        assert self.lost(round_seconds=None, checkpoint_seconds=300) == 100
        assert self.lost(round_seconds=None, checkpoint_seconds=3600) == 1000
        assert self.lost(round_seconds=None, checkpoint_seconds=1000) == 0

    def test_other_events_make_no_checkpoint(self) -> None:
        jobs = [gp.Job("a", total_steps=5000), *(gp.Job(f"b{i}", total_steps=1, arrival_seconds=100 * i) for i in range(1, 10))]
        assert play(jobs, "v100:2/1", round_seconds=None, maintenance=self.DOWN).jobs["a"].lost_gpu_seconds in (0, 1000 - 2 * 360)

    def test_checkpoint_intervals_count_work_and_not_starts(self) -> None:
        # The job works from 150 s on, and again from 1,160 s on; the time of both starts is lost too.
        assert self.lost(150, round_seconds=None, checkpoint_seconds=400) == pytest.approx(2 * 150 + 50)

    def test_a_failure_of_the_job_loses_no_more(self) -> None:
        failing = [gp.Submission(gp.Job("a", total_steps=1e5), failed_attempts=3)]
        for options in ({"round_seconds": None}, {"round_seconds": 360.0, "checkpoint_seconds": 360.0}):
            job = play(failing, job_failures="recorded", **options).jobs["a"]
            assert (job.failures, job.steps_done) == (3, 1e5)
            assert 0 < job.lost_gpu_seconds <= 3 * 360

    def test_with_rounds_a_node_fails_within_the_round(self) -> None:
        failures = gp.NodeFailures(20_000, 50)
        job = gp.Job("a", total_steps=40_000)
        by_round, hourly, often = (
            play([job], node_failures=failures, seed=1, checkpoint_seconds=every).jobs["a"] for every in (None, 3600.0, 10.0)
        )
        assert often.lost_gpu_seconds < by_round.lost_gpu_seconds < hourly.lost_gpu_seconds
        assert hourly.running_seconds == pytest.approx(40_000 + hourly.lost_gpu_seconds)

    @pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), "often", True])
    def test_invalid_checkpoint_seconds_are_refused(self, value: object) -> None:
        said = refusal(play, [gp.Job("a", total_steps=1)], checkpoint_seconds=value)
        assert said.startswith("simulation, field checkpoint_seconds: must be ")


def test_a_gang_that_loses_its_node_is_preempted_once() -> None:
    job = play([gp.Job("a", total_steps=5000)], node_failures=gp.NodeFailures(4000, 1000), seed=5).jobs["a"]
    assert job.preemptions == job.starts - 1 > 0


def test_a_gang_that_fails_is_not_preempted() -> None:
    jobs = [gp.Submission(gp.Job("a", total_steps=1000), failed_attempts=2), gp.Job("b", total_steps=9000, arrival_seconds=10)]
    assert play(jobs, job_failures="recorded").jobs["a"].preemptions == 0


@pytest.mark.parametrize("steps", [350, 361])
@pytest.mark.parametrize("between", [False, True])
def test_a_round_ends_when_its_last_gang_loses_its_node(steps: int, between: bool) -> None:
    speeds = gp.ThroughputProfile.from_matrix([[1.0]], job_ids=["a"], accelerators=["v100"])
    starts: list[float] = []
    gp.simulate(
        [gp.Job("a", total_steps=steps)],
        gp.Cluster.from_inline("v100:2/1"),
        speeds,
        "fifo",
        node_failures=gp.NodeFailures(3000, 1e5),
        seed=33,
        starts_between_rounds=between,
        on_round=lambda each: starts.append(each.start_seconds),
        on_starts=lambda seconds, _: starts.append(seconds),
    )
    assert starts[:2] == [0.0, pytest.approx(62.57, abs=0.01)], "when the node fails"
