"""Simulations in which waiting jobs start within rounds: known schedules to the second, and the same jobs in event mode."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.simulator.test_engine import jcts, play
from tests.support.examples import examples
from tests.support.fakes import refusal


def between(jobs: list[Any], gpus: str = "v100:1", **options: Any) -> gp.SimulationResult:
    """Simulate under `fifo` with `backfill`, which makes no difference to jobs of one GPU but that they may fill idle ones."""
    return play(jobs, gpus, gp.resolve_policy("fifo", backfill=True), starts_between_rounds=True, **options)  # type: ignore[arg-type]


def test_a_job_starts_when_it_arrives_or_when_a_gpu_becomes_free() -> None:
    jobs = [gp.Job("a", total_steps=500), gp.Job("b", total_steps=1000), gp.Job("c", total_steps=100)]
    assert jcts(play(jobs, "v100:2")) == [500, 1000, 820]
    result = between(jobs, "v100:2")
    assert jcts(result) == [500, 1000, 600]
    assert result.summary.usage["v100"]["used"] == 1600
    late = [gp.Job("a", total_steps=1000), gp.Job("b", total_steps=100, arrival_seconds=10)]
    assert jcts(play(late, "v100:2")) == [1000, 450]
    assert jcts(between(late, "v100:2")) == [1000, 100]


def test_a_policy_that_does_not_fill_idle_gpus_starts_only_what_is_due() -> None:
    jobs = [gp.Job("a", total_steps=500), gp.Job("b", total_steps=1000), gp.Job("c", total_steps=100)]
    assert jcts(play(jobs, "v100:2", "fifo", starts_between_rounds=True)) == [500, 1000, 820]


def test_a_start_costs_the_same_within_a_round() -> None:
    jobs = [gp.Job("a", total_steps=1000), gp.Job("b", total_steps=500, arrival_seconds=100, restart_seconds=30)]
    result = between(jobs, "v100:2")
    assert result.jobs["b"].jct_seconds == 530
    assert (result.jobs["b"].starts, result.jobs["b"].lost_gpu_seconds) == (1, 30)
    assert result.summary.preemptions == 0


def test_a_job_is_cancelled_within_the_round_in_which_it_arrived() -> None:
    jobs = [
        gp.Submission(gp.Job("a", total_steps=1000)),
        gp.Submission(gp.Job("b", total_steps=500, arrival_seconds=100), cancelled_seconds=150),
        gp.Submission(gp.Job("c", total_steps=50, arrival_seconds=120)),
    ]
    result = between(jobs, "v100:2")
    assert result.jobs["b"].running_seconds == 50
    assert (result.jobs["c"].first_start_seconds, result.jobs["c"].end_seconds) == (150, 200)


@pytest.mark.parametrize("checkpoint", [None, 30.0])
def test_a_gang_that_started_within_the_round_loses_its_work_since_then(checkpoint: float | None) -> None:
    """b starts at 100 s, fails, and starts again at once, since its GPU is free."""
    jobs = [
        gp.Submission(gp.Job("a", total_steps=1000)),
        gp.Submission(gp.Job("b", total_steps=200, arrival_seconds=100), failed_attempts=1),
    ]
    result = between(jobs, "v100:2", job_failures="recorded", seed=4, checkpoint_seconds=checkpoint)
    b = result.jobs["b"]
    assert (b.starts, b.failures, b.preemptions) == (2, 1, 0)
    assert b.queueing_seconds == 0
    assert b.running_seconds == b.jct_seconds == pytest.approx(200 + b.lost_gpu_seconds)
    assert 0 < b.lost_gpu_seconds < (200 if checkpoint is None else 30)
    # The round counts as delivered once, although the job started twice within it.
    assert b.promised_seconds <= 720


@settings(max_examples=examples(40))
@given(
    arrivals=st.lists(st.integers(0, 400), min_size=1, max_size=14),
    durations=st.lists(st.integers(1, 900), min_size=14, max_size=14),
    gpus=st.integers(1, 3),
    round_seconds=st.sampled_from([100.0, 360.0, 5000.0]),
)
def test_fifo_gives_the_same_times_as_in_event_mode(
    arrivals: list[int], durations: list[int], gpus: int, round_seconds: float
) -> None:
    """Jobs of one GPU are never preempted under fifo, so each starts as soon as a GPU is free, whatever the rounds."""
    jobs = [
        gp.Job(f"{i:02}", total_steps=duration, arrival_seconds=arrival)
        for i, (arrival, duration) in enumerate(zip(sorted(arrivals), durations, strict=False))
    ]
    events = play(jobs, f"v100:{gpus}", round_seconds=None)
    assert jcts(between(jobs, f"v100:{gpus}", round_seconds=round_seconds)) == pytest.approx(jcts(events))


def test_it_does_not_go_with_event_mode() -> None:
    job = gp.Job("a", total_steps=1)
    assert "field starts_between_rounds: must be False in event-driven mode" in refusal(between, [job], round_seconds=None)
    assert "must be true or false, found 'yes'" in refusal(play, [job], starts_between_rounds="yes")


@pytest.mark.parametrize(
    ("options", "queueing"),
    [
        ({}, 360.0),  # the back-off of 300 s ends within a round, which began with the failure since no other job runs
        ({"starts_between_rounds": True}, 300.0),
        ({"round_seconds": None}, 300.0),
    ],
)
def test_a_job_that_failed_is_tried_again_when_its_back_off_ends(options: dict[str, Any], queueing: float) -> None:
    job = gp.Submission(gp.Job("a", total_steps=1000), failed_attempts=1)
    result = play([job], "v100:1", "fifo", job_failures="recorded", retry_seconds=300.0, **options)
    a = result.jobs["a"]
    assert (a.failures, a.starts) == (1, 2)
    assert a.queueing_seconds == pytest.approx(queueing)
    assert a.end_seconds == pytest.approx(1000 + a.lost_gpu_seconds + queueing)
