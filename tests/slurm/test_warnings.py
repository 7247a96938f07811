"""Signals before stops: jobs get their time, others do not wait for it, and no job is lost; and time limits over all starts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.actions import time_left
from tests.slurm.fake_slurm import FakeSlurm
from tests.slurm.support import BERT, LSTM, KilledError, cluster, cluster_with, driver, dying_at, events
from tests.slurm.test_accounts import a_job

GRACE = 30.0


def recorded(slurm: FakeSlurm) -> dict[int, list[tuple[str, float]]]:
    """Return {job: (what, when)} of the signals and stops of jobs, which is filled while the clock goes on."""
    seen: dict[int, list[tuple[str, float]]] = {number: [] for number in slurm.jobs}
    restarts = dict.fromkeys(slurm.jobs, 0)

    def look(seconds: float) -> None:
        assert all(slurm.free(node) >= 0 for node in slurm.nodes), "no GPU has two jobs"
        for number, job in slurm.jobs.items():
            if job.restarts > restarts.get(number, 0):
                restarts[number] = job.restarts
                seen.setdefault(number, []).append(("stop", seconds))

    slurm.clock.on_sleep = look
    slurm.on_signal = lambda number: seen.setdefault(number, []).append(("signal", slurm.clock.now()))
    return seen


def test_jobs_have_their_time_and_rounds_go_on(tmp_path: Path) -> None:
    """Three gangs take turns on two nodes; a fourth job comes while one of them has been warned."""
    slurm = cluster_with(3, 4)
    slurm.nodes["k80-1"], slurm.states["k80-1"] = ("k80", 1), "IDLE"
    seen = recorded(slurm)
    arrived = 0.0

    def arrive(number: int) -> None:
        nonlocal arrived
        seen.setdefault(number, []).append(("signal", slurm.clock.now()))
        if not arrived:
            arrived = slurm.clock.now()
            slurm.submit(9, per_job="gpu:1", comment=BERT)

    slurm.on_signal = arrive
    slurm.clock.stops_at = slurm.clock.now() + 900
    with driver(slurm, tmp_path, warn_signal="USR1", warn_seconds=GRACE) as driven:
        driven.run()
    rounds = [event["seconds"] for event in events(tmp_path, "round")]
    assert [later - before for before, later in pairwise(rounds)] == pytest.approx([100.0] * (len(rounds) - 1), abs=3)
    first = next(event["seconds"] for event in events(tmp_path, "started") if event["job"] == "9")
    assert 0 <= first - arrived <= 10, "it does not wait for the time of others"
    stops = [(kind, when) for number in (1, 2, 3, 9) for kind, when in seen[number]]
    pairs = list(zip(stops[::2], stops[1::2], strict=False))
    assert len(pairs) >= 3
    for (first, warned), (then, stopped) in pairs:
        assert (first, then) == ("signal", "stop")
        assert GRACE <= stopped - warned <= GRACE + 10
    assert {name for _, name, _ in slurm.signalled} == {"USR1"}
    assert all(any(number == sent for sent, _, _ in slurm.signalled) for number in (1, 2, 3)), "each has had its turn"


def finishes(slurm: FakeSlurm, number: int) -> None:
    slurm.end(number)


def fails(slurm: FakeSlurm, number: int) -> None:
    slurm.end(number, "FAILED")


def requeues_itself(slurm: FakeSlurm, number: int) -> None:
    job = slurm.jobs[number]
    job.state, job.held, job.restarts = "PENDING", {}, job.restarts + 1
    job.priority, job.eligible, job.reason = 1, slurm.clock.now() + 120, "BeginTime"


@pytest.mark.parametrize("reacts", [finishes, fails, requeues_itself])
def test_who_reacts_at_once_leaves_the_gpus_at_once(tmp_path: Path, reacts: Callable[[FakeSlurm, int], None]) -> None:
    slurm = cluster_with(3, 4)
    seen = recorded(slurm)
    left: list[tuple[int, float]] = []

    def react(number: int) -> None:
        left.append((number, slurm.clock.now()))
        reacts(slurm, number)

    slurm.on_signal = react
    slurm.clock.stops_at = slurm.clock.now() + 400
    with driver(slurm, tmp_path, warn_signal="USR1", warn_seconds=GRACE) as driven:
        driven.run()
    assert left
    number, when = left[0]
    others = [job.start - when for job in slurm.jobs.values() if job.number != number and job.start > when]
    assert min(others) <= 10, "the next job does not wait for the end of the time"
    over = {job.number for job in slurm.jobs.values() if job.state not in ("PENDING", "RUNNING")}
    assert over == ({number for number, _ in left} if reacts is finishes else set())
    assert len(seen) == 3
    if reacts is not finishes:
        assert slurm.jobs[number].start > when, "it has run again"


@pytest.mark.deep
def test_jobs_choose_their_signal(tmp_path: Path) -> None:
    slurm = cluster()
    comments = ["warn=B:USR2@20", "warn=no", "warn=HUP@9999", ""]
    for number, words in enumerate(comments, 1):
        slurm.submit(number, per_job="gpu:4", comment=f"{BERT} {words}")
    with driver(slurm, tmp_path, warn_signal="URG", warn_seconds=GRACE) as driven:
        for _ in range(24):
            decided, _ = driven.round()
            assert decided.moves.warn.keys() <= set(decided.moves.keep)
            assert decided.waiting.keys().isdisjoint(set(decided.moves.keep) - decided.moves.deferred.keys())
            assert decided.moves.deferred.items() <= decided.waiting.items()
            slurm.clock.sleep(5.0)
            driven.fill()
            slurm.clock.sleep(35.0)
    assert set(slurm.signalled) == {(1, "USR2", True), (3, "HUP", False), (4, "URG", False)}
    assert slurm.jobs[2].restarts, "it is stopped without a signal"
    until = {
        (job, entry["signal"]): entry["until"] - event["seconds"]
        for event in events(tmp_path, "warned")
        for job, entry in event["jobs"].items()
    }
    assert until == pytest.approx({("1", "USR2"): 20.0, ("3", "HUP"): GRACE, ("4", "URG"): GRACE}, abs=0.01)


@pytest.mark.parametrize("command", range(1, 24, 2))
def test_a_kill_at_any_command_loses_nothing(tmp_path: Path, command: int) -> None:
    """The jobs that are warned fail by the signal; the driver dies in the round or in the time after it, and another continues."""
    slurm = cluster_with(3, 4)
    slurm.on_signal = lambda number: slurm.end(number, "FAILED")
    options = {"warn_signal": "USR1", "warn_seconds": GRACE}
    with driver(slurm, tmp_path, **options) as driven:
        driven.round()
    slurm.clock.sleep(100.0)
    try:
        with driver(slurm, tmp_path, **options) as driven, dying_at(slurm, command):
            driven.round()
            slurm.clock.sleep(5.0)
            driven.fill()
            slurm.clock.sleep(GRACE)
            driven.fill()
    except KilledError:
        pass
    slurm.on_signal = lambda _: None
    ran: set[int] = set()
    with driver(slurm, tmp_path, **options) as driven:
        for _ in range(6):
            driven.round()
            ran |= {job.number for job in slurm.jobs.values() if job.held}
            slurm.clock.sleep(GRACE + 5.0)
            driven.fill()
            ran |= {job.number for job in slurm.jobs.values() if job.held}
            assert all(slurm.free(node) >= 0 for node in slurm.nodes)
            slurm.clock.sleep(100.0)
    assert {job.state for job in slurm.jobs.values()} <= {"PENDING", "RUNNING"}
    assert ran == {1, 2, 3}


def limited(slurm: FakeSlurm, minutes: int) -> None:
    for number in range(1, 4):
        slurm.submit(number, per_job="gpu:4", comment=LSTM, more={"time_limit": minutes})


def test_time_limits_count_over_all_starts(tmp_path: Path) -> None:
    """By the clock here: each start has what is left of 60 min, and of 50 min once the user of job 1 has lowered it by 10."""
    slurm = cluster()
    limited(slurm, 60)
    whole, ran = dict.fromkeys(slurm.jobs, 60), dict.fromkeys(slurm.jobs, 0.0)
    starts = 0
    with driver(slurm, tmp_path, round_seconds=150.0) as driven:
        for _ in range(14):
            begun = slurm.clock.now()
            driven.round()
            for number, job in slurm.jobs.items():
                if job.held and job.start >= begun:
                    assert job.more["time_limit"] == whole[number] - ran[number] // 60
                    starts += ran[number] > 0
            if slurm.jobs[1].held and slurm.jobs[1].restarts and whole[1] == 60:
                slurm.jobs[1].more["time_limit"] -= 10
                whole[1] = 50
            slurm.clock.seconds = begun + 150.0
            for number, job in slurm.jobs.items():
                ran[number] += slurm.clock.now() - max(job.start, begun) if job.held else 0.0
    assert starts >= 6
    assert whole[1] == 50


def test_time_limits_may_count_for_each_start_as_in_slurm(tmp_path: Path) -> None:
    slurm = cluster()
    limited(slurm, 10)
    with driver(slurm, tmp_path, wall_limit="start", round_seconds=150.0) as driven:
        for _ in range(6):
            driven.round()
            slurm.clock.sleep(150.0)
    assert {job.more["time_limit"] for job in slurm.jobs.values()} == {10}
    assert sum(job.restarts for job in slurm.jobs.values()) >= 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"warn_signal": "KILL"}, "'KILL' is not a signal such as USR1"),
        ({"warn_seconds": -1.0}, "at least 0"),
        ({"wall_limit": "all"}, "'all'"),
    ],
)
def test_settings_of_warnings_are_checked(options: dict[str, object], text: str) -> None:
    with pytest.raises(gp.InputError, match=text):
        gp.SlurmSettings("gpu", **options)  # type: ignore[arg-type]


def test_a_time_limit_that_is_used_up_leaves_a_minute() -> None:
    """Slurm takes whole minutes, and 0 for no limit: of 10 min, after less than one, one, nine, and ten and more."""
    job = a_job("1", time_limit_seconds=600.0)
    used = [SimpleNamespace(running_seconds=60.0 + seconds, limit_counted_seconds=60.0) for seconds in (59, 60, 540, 600, 6000)]
    assert [time_left(job, each) for each in used] == [None, 9, 1, 1, 1]  # type: ignore[arg-type]
