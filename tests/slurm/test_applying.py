"""Execution of rounds with slow jobs and changes by users."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.apply import start_line
from tests.slurm.fake_slurm import FakeClock, FakeSlurm
from tests.slurm.support import BERT, KilledError, bound, cluster, cluster_with, driver, dying_at, events


def test_a_slow_stop_delays_only_the_jobs_that_get_its_gpus(tmp_path: Path) -> None:
    slurm = cluster()
    for number in range(1, 5):
        slurm.submit(number, per_job="gpu:4", comment=BERT, more={"features": "v100" if number % 2 else "k80"})
    with driver(slurm, tmp_path) as driven:
        driven.round()
        (slow,) = [number for number, job in slurm.jobs.items() if "v100-0" in job.held]
        slurm.slow = {slow: 60.0}
        for _ in range(2):  # each stays for at most two rounds while another waits
            slurm.clock.seconds += 100
            began = slurm.clock.now()
            decided, applied = driven.round()
            if str(slow) in decided.moves.stop:
                break
    assert sorted(decided.moves.stop) == sorted(applied.stopped)
    assert sorted(applied.started) == sorted(decided.moves.start)
    started = {node: job.start - began for job in slurm.jobs.values() for node in job.held}
    assert started["k80-0"] < 15
    assert 60 <= started["v100-0"] < 70


def test_a_stop_beyond_its_limit_is_reported_and_the_next_job_waits(tmp_path: Path) -> None:
    slurm = cluster()
    for number in (1, 2):
        slurm.submit(number, per_job="gpu:4", comment=BERT, more={"features": "v100"})
    with driver(slurm, tmp_path, stop_seconds=30.0, start_seconds=5.0) as driven:
        driven.round()
        (slow,) = [number for number, job in slurm.jobs.items() if job.held]
        slurm.slow = {slow: 60.0}
        for _ in range(2):
            slurm.clock.seconds += 100
            _, applied = driven.round()
            if applied.stopped:
                break
        assert applied.lingering == [str(slow)]
        assert list(applied.waiting) == [str(3 - slow)]
        assert bound(slurm) == {3 - slow}
        slurm.slow = {}
        slurm.clock.seconds += 100
        driven.round()
    assert [job.held for job in slurm.jobs.values() if job.state == "RUNNING"] == [{"v100-0": 4}]


def test_jobs_that_may_take_too_long_to_stop_are_warned_of_at_the_start(tmp_path: Path) -> None:
    slurm = cluster_with(1, 4)
    slurm.config += "KillWait                = 120 sec\n"
    with driver(slurm, tmp_path, stop_seconds=121.0) as driven, warnings.catch_warnings():
        warnings.simplefilter("error")
        driven.round()
    with driver(slurm, tmp_path, stop_seconds=120.0) as driven:
        with pytest.warns(gp.GavelWarning, match=r"120 s to stop \(KillWait\), but --stop-seconds is 120"):
            driven.round()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            driven.round()


@pytest.mark.parametrize(("release", "warns"), [("24.11.5", False), ("25.05.3", True)])
def test_releases_that_no_recording_covers_are_told_at_the_start(tmp_path: Path, release: str, warns: bool) -> None:
    slurm = cluster_with(2, 4)
    slurm.config += f"SLURM_VERSION           = {release}\n"
    with driver(slurm, tmp_path) as driven, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        driven.round()
    told = [str(each.message) for each in caught if "gavel-py was tested with" in str(each.message)]
    tested = "gavel-py was tested with 22.05, 24.11 and 26.05; compare gavel slurm status with squeue and sinfo"
    assert told == [f"this is Slurm 25.05, but {tested}"] * warns


@pytest.mark.parametrize("now", [{"per_job": "gpu:1"}, {"per_job": "", "per_node": "gpu:v100:1,gpu:k80:1"}])
def test_changes_by_users_between_decision_and_start_are_kept(tmp_path: Path, now: dict[str, str]) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT)
    slurm.submit(2, per_job="gpu:2", comment=BERT)

    def change(command: Sequence[str]) -> None:
        if list(command) == ["scontrol"]:
            vars(slurm.jobs[1]).update(now)

    with driver(slurm, tmp_path) as driven:
        driven.look()
        slurm.submit(3, per_job="gpu:1", comment=BERT, lease="")  # it has to be bound first
        slurm.stuck = {3}
        slurm.fails = change
        _, applied = driven.round()
        slurm.fails, slurm.stuck = None, set()
        assert applied.waiting == {"1": "its user has changed it in the meantime", "3": applied.waiting["3"]}
        assert (bound(slurm), slurm.jobs[2].state) == ({1, 3}, "RUNNING")
        assert {name: getattr(slurm.jobs[1], name) for name in now} == now
        for _ in range(3):
            slurm.clock.seconds += 100
            driven.round()
    if now == {"per_job": "gpu:1"}:
        assert list(slurm.jobs[1].held.values()) == [1]


def test_a_job_whose_user_asks_for_fewer_gpus_after_it_was_given_its_nodes_is_not_let_go(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT)

    def change(command: Sequence[str]) -> None:  # noqa: ARG001
        if slurm.jobs[1].wanted:  # the driver has set its nodes
            slurm.jobs[1].per_job = "gpu:1"

    with driver(slurm, tmp_path) as driven:
        driven.look()
        slurm.fails = change
        _, applied = driven.round()
    assert applied.waiting == {"1": "its user has changed it in the meantime"}
    assert bound(slurm) == {1}


def test_jobs_on_an_unresponsive_node_are_left_alone(tmp_path: Path) -> None:
    """This holds even when it is the turn of other jobs; no job is started there."""
    slurm = cluster_with(4, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        (there,) = [number for number, job in slurm.jobs.items() if "v100-0" in job.held]
        slurm.states["v100-0"] = "MIXED+NOT_RESPONDING"
        for _ in range(6):
            slurm.clock.seconds += 100
            _, applied = driven.round()
            assert slurm.jobs[there].held == {"v100-0": 4}
            assert set(applied.waiting.values()) <= {"node v100-0 does not respond"}
        assert slurm.jobs[there].restarts == 0
        slurm.states["v100-0"] = "MIXED"
        for _ in range(4):
            slurm.clock.seconds += 100
            driven.round()
    assert slurm.jobs[there].restarts > 0


def test_a_job_that_does_not_start_runs_elsewhere_within_seconds(tmp_path: Path) -> None:
    """Slurm does not say why nothing starts on the fast node."""
    slurm = cluster_with(4, 1)
    slurm.blocked = {"v100-0"}
    with driver(slurm, tmp_path, start_seconds=5.0, retry_seconds=5.0) as driven:
        _, applied = driven.round()
        assert sorted(applied.waiting) == ["1", "2", "3", "4"]
        slurm.clock.seconds += 5.0
        filled = driven.fill()
        assert filled is not None
        assert sorted(filled.started) == ["1", "2", "3", "4"]
    assert [job.held for job in slurm.jobs.values()] == [{"k80-0": 1}] * 4


def test_a_job_whose_node_has_just_been_drained_delays_no_other(tmp_path: Path) -> None:
    """Slurm does not start it, and says so after some seconds."""
    slurm = cluster_with(1, 4)
    slurm.blocked = {"v100-0", "k80-0"}

    def drained(_: float) -> None:
        slurm.jobs[1].reason = "Dependency" if slurm.jobs[1].lease else "ReqNodeNotAvail"

    slurm.clock.on_sleep = drained
    with driver(slurm, tmp_path, start_seconds=60.0) as driven:
        began = slurm.clock.now()
        _, applied = driven.round()
        assert slurm.clock.now() - began < 5
        assert applied.waiting == {"1": "Slurm has not started it: ReqNodeNotAvail"}
        assert bound(slurm) == {1}
        slurm.blocked, slurm.clock.on_sleep = set(), None
        slurm.clock.seconds += 10
        driven.fill()
    assert slurm.jobs[1].held


def test_failed_starts_are_tried_later_and_left_to_slurm_after_three(tmp_path: Path) -> None:
    slurm = cluster_with(1, 4)
    slurm.stuck = {1}
    free = []
    with driver(slurm, tmp_path, start_seconds=5.0, retry_seconds=30.0) as driven:
        for _ in range(12):
            driven.round()
            free.append(not bound(slurm))
            assert not slurm.jobs[1].wanted, "Slurm may start it anywhere, also if the driver dies"
            slurm.clock.seconds += 100
        assert free[:3] == [False, False, False]
        assert 0 < sum(free[3:]) < len(free[3:]), "it is tried now and then"
        assert events(tmp_path, "unplanned")[0]["why"].startswith("it did not start on the selected nodes 3 times")
        slurm.stuck = set()
        slurm.run(["squeue"])
        driven.round()
    assert slurm.jobs[1].state == "RUNNING"


def test_a_placement_by_slurm_elsewhere_is_reported_and_accepted(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:2", comment=BERT)
    slurm.elsewhere = {1: {"k80-0": 2}}
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
        assert decided.moves.start == {"1": {"v100-0": 2}}
        assert applied.elsewhere == {"1": {"k80-0": 2}}
        slurm.elsewhere = {}
        slurm.clock.seconds += 100
        decided, _ = driven.round()
    assert decided.moves.stop in ((), ("1",))
    assert slurm.jobs[1].held in ({"k80-0": 2}, {"v100-0": 2})


def test_an_unresponsive_node_gets_no_jobs_and_keeps_its_own(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:2", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.states["v100-0"] = "MIXED+NOT_RESPONDING"
        slurm.submit(2, per_job="gpu:2", comment=BERT)
        slurm.clock.seconds += 100
        decided, _ = driven.round()
    assert "1" in decided.moves.keep
    assert decided.moves.start == {"2": {"k80-0": 2}}


def test_a_job_started_before_it_was_bound_delays_no_other(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT, lease="", reason="Resources")
    slurm.submit(2, per_job="gpu:2", comment=BERT, more={"features": "v100"})
    slurm.stuck = {1}
    began = slurm.clock.now()

    def start(command: Sequence[str]) -> None:
        if list(command) == ["scontrol"] and not slurm.jobs[1].held:
            slurm.jobs[1].state, slurm.jobs[1].held, slurm.jobs[1].start = "RUNNING", {"k80-0": 4}, slurm.clock.now()

    slurm.fails = start
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
    assert decided.moves.start == {"1": {"k80-0": 4}, "2": {"v100-0": 2}}
    assert not applied.lingering
    assert slurm.clock.now() - began < 5
    assert slurm.jobs[2].held == {"v100-0": 2}


def test_cpus_of_a_gang_are_spread_over_its_nodes_as_its_gpus_are(tmp_path: Path) -> None:
    """By default, Slurm allocates 16 CPUs on one of two nodes and 4 on the other."""
    slurm = FakeSlurm(FakeClock(), dict.fromkeys(("v100-0", "v100-1"), ("v100", 4)))
    slurm.submit(1, per_job="gpu:8", comment=BERT, more={"cpus": 20})
    slurm.submit(2, per_job="gpu:4", comment=BERT, more={"cpus": 8, "minimum_cpus_per_node": 6})
    with driver(slurm, tmp_path) as driven:
        for _ in range(6):
            driven.round()
            slurm.clock.seconds += 100
    lines = {number: [line for line in slurm.sent if f"JobId={number} NumNodes=" in line] for number in (1, 2)}
    assert "NumNodes=2-2" in lines[1][0]
    assert "MinCPUsNode=10 " in lines[1][0]
    assert lines[2]
    assert not any("MinCPUsNode" in line for line in lines[2]), "on one node it is what its user asks for"


def test_cpu_requests_that_the_driver_does_not_know_are_kept(tmp_path: Path) -> None:
    slurm = FakeSlurm(FakeClock(), dict.fromkeys(("v100-0", "v100-1"), ("v100", 4)))
    slurm.submit(1, per_job="gpu:8", comment=BERT, more={"cpus": 20, "minimum_cpus_per_node": 6})
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
    tracked = decided.picture.state.tracked["1"]
    assert tracked.min_cpus == 6
    unknown = replace(tracked, min_cpus=None)
    job = replace(applied.jobs["1"], cpus_per_node=6)
    for target in ({"v100-0": 4}, {"v100-0": 4, "v100-1": 4}):
        assert "MinCPUsNode" not in start_line(job, target, unknown)
    assert "MinCPUsNode=10 " in start_line(job, {"v100-0": 4, "v100-1": 4}, tracked)


@pytest.mark.parametrize("at", range(7, 23, 2))
def test_jobs_that_a_killed_driver_was_about_to_start_are_started_at_once(tmp_path: Path, at: int) -> None:
    slurm = cluster_with(2, 4)
    with pytest.raises(KilledError), dying_at(slurm, at), driver(slurm, tmp_path) as driven:
        driven.run()
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert driven.state is not None
        assert driven.state.scheduler.backoffs == {}
    assert [job.state for job in slurm.jobs.values()] == ["RUNNING", "RUNNING"]


@pytest.mark.parametrize(("seconds", "outcome"), [(3.0, "CANCELLED"), (60.0, "CANCELLED"), (3.0, "PENDING")])
def test_a_job_that_ends_just_after_its_start_has_failed_only_if_it_waits_again(
    tmp_path: Path, seconds: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm shows a cancelled job that is completing like one whose start has failed and which it requeues."""
    slurm, schedule = cluster_with(2, 4), FakeSlurm._schedule
    ends: list[float] = []

    def end_job_1(self: FakeSlurm) -> None:
        schedule(self)
        job = self.jobs[1]
        if job.state == "RUNNING" and not ends:
            ends.append(self.clock.now() + seconds)
            job.state, job.stops, job.priority = "COMPLETING", 1e12, 0
        elif ends and job.state == "COMPLETING" and self.clock.now() >= ends[0]:
            job.state, job.held = outcome, {}

    monkeypatch.setattr(FakeSlurm, "_schedule", end_job_1)
    with driver(slurm, tmp_path) as driven:
        _, applied = driven.round()
        assert driven.state is not None
        assert applied.started == ["2"]
        has_failed = outcome == "PENDING"
        assert (applied.left, list(applied.waiting)) == (([], ["1"]) if has_failed else (["1"], []))
        assert bool(driven.state.scheduler.backoffs) is has_failed
    assert applied.start_seconds < 15
