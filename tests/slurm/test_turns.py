"""Preemptions: few where nobody waits, and never so many that they cost much of the time of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.records import LOST_SHARE, RestartCost
from tests.slurm.fake_slurm import FakeClock, FakeSlurm
from tests.slurm.support import BERT, driver, events

KINDS = ("v100", "p100", "k80")


def large() -> FakeSlurm:
    return FakeSlurm(FakeClock(), {f"{kind}-{number}": (kind, 4) for kind in KINDS for number in range(9)})


def three_types() -> gp.ThroughputProfile:
    speeds = {"v100": 4.0, "p100": 2.0, "k80": 1.0}
    return gp.ThroughputProfile(
        "three", [gp.Measurement(job_type="bert", num_gpus=1, accelerator=k, steps_per_second=s) for k, s in speeds.items()]
    )


@pytest.mark.parametrize("round_seconds", [10.0, 360.0])
def test_equal_jobs_with_room_for_all_stay(tmp_path: Path, round_seconds: float) -> None:
    """45 jobs on 108 GPUs of which the 36 fastest are in demand: 5 preemptions after round 1 at most."""
    slurm = large()
    for number in range(1, 46):
        slurm.submit(number, per_job="gpu:1", comment=BERT)
    settings = gp.SlurmSettings("gpu")
    options = {"directory": tmp_path, "commands": slurm, "clock": slurm.clock, "round_seconds": round_seconds}
    with gp.SlurmDriver(settings, three_types(), **options) as driven:
        for _ in range(11):
            driven.round()
            slurm.clock.seconds += round_seconds
        assert sum(len(event["stop"]) for event in events(tmp_path, "round")) <= 5
        # Jobs still move up to faster GPUs as soon as these become free.
        gone = [job for job in slurm.jobs.values() if any(node.startswith("v100") for node in job.held)][:9]
        for job in gone:
            slurm.end(job.number)
        for _ in range(2):
            slurm.clock.seconds += round_seconds
            driven.round()
    assert sum(node.startswith("v100") for job in slurm.jobs.values() for node in job.held) == 36


@pytest.mark.deep
def test_waiting_jobs_get_turns_that_cost_two_percent_at_most(tmp_path: Path) -> None:
    """Stops take 4 s, and rounds 30 s: the turns of twelve jobs on eight GPUs are longer than a round."""
    slurm = FakeSlurm(FakeClock(), {"v100-0": ("v100", 4), "k80-0": ("k80", 4)})
    for number in range(1, 13):
        slurm.submit(number, per_job="gpu:1", comment=BERT)
    slurm.slow = dict.fromkeys(slurm.jobs, 4.0)
    ran: set[int] = set()
    with driver(slurm, tmp_path, round_seconds=30.0, measures=True) as driven:
        for _ in range(40):
            driven.round()
            ran |= {job.number for job in slurm.jobs.values() if job.held}
            slurm.clock.seconds += 30.0
        driven.end()
    run = gp.slurm_run(tmp_path / "log.jsonl")
    # The first turns end when the cost has not been measured yet.
    outcomes = zip(events(tmp_path, "round"), events(tmp_path, "applied"), strict=True)
    lost = sum(len(planned["stop"]) * (told["stop_seconds"] + told["start_seconds"]) for planned, told in outcomes)
    assert lost > 0
    assert run.metrics["delivered_gpu_seconds"] is not None
    assert lost <= LOST_SHARE * run.metrics["delivered_gpu_seconds"]
    assert ran == set(range(1, 13))
    last = events(tmp_path, "round")[-1]
    assert last["restart_seconds"] == pytest.approx(4.0, abs=2.0)
    assert last["min_run_seconds"] == pytest.approx(last["restart_seconds"] / LOST_SHARE)


def test_the_cost_of_a_restart_is_the_median_of_what_was_seen() -> None:
    cost = RestartCost()
    assert cost.seconds == 10.0, "until the first stop"
    cost.measure(stop_seconds=None, start_seconds=2.0)
    assert cost.seconds == 12.0
    for seconds in (5.0, 6.0, 120.0):
        cost.measure(stop_seconds=seconds, start_seconds=None)
    assert cost.seconds == 8.0


def test_given_costs_are_kept(tmp_path: Path) -> None:
    slurm = FakeSlurm(FakeClock(), {"v100-0": ("v100", 4)})
    slurm.submit(1, per_job="gpu:1", comment=BERT)
    with driver(slurm, tmp_path, restart_seconds=7.0, min_run_seconds=30.0) as driven:
        for _ in range(2):
            driven.round()
            slurm.clock.seconds += 100
    assert {(event["restart_seconds"], event["min_run_seconds"]) for event in events(tmp_path, "round")} == {(7.0, 30.0)}


def test_turns_follow_the_given_cost_of_a_restart_while_jobs_wait(tmp_path: Path) -> None:
    """A site whose jobs load for long says so once: stops and starts of this cluster take no time."""
    slurm = FakeSlurm(FakeClock(), {"v100-0": ("v100", 4)})
    for number in range(1, 6):
        slurm.submit(number, per_job="gpu:1", comment=BERT)
    with driver(slurm, tmp_path, measures=True, restart_seconds=7.0) as driven:
        for _ in range(2):
            driven.round()
            slurm.clock.seconds += 100
        assert len(events(tmp_path, "round")[-1]["start"]) == 0, "the fifth job waits for the end of a turn"
        slurm.clock.seconds += 7.0 / LOST_SHARE - 200
        driven.round()
    assert [event["min_run_seconds"] for event in events(tmp_path, "round")[1:]] == [pytest.approx(7.0 / LOST_SHARE)] * 2
    assert len(events(tmp_path, "round")[-1]["start"]) == 1
