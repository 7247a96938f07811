"""Holds: the driver releases all of its own, and none of users or other drivers."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.job_roles import Role
from tests.slurm.fake_slurm import FakeSlurm
from tests.slurm.support import BERT, LSTM, KilledError, cluster, cluster_with, driver, dying_at, events

both_shapes = pytest.mark.parametrize("new", [False, True], ids=["22.05", "24.05"])


@pytest.mark.parametrize("mark", ["gavel:submit=1700000000;plugin", "gavel:submit=1700000000;place=any"])
def test_holds_of_another_partitions_driver_stay(tmp_path: Path, mark: str) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:2", partition="free", admin_comment=mark, reason="JobHeldAdmin")
    slurm.submit(2, per_job="gpu:2", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert (slurm.jobs[1].priority, slurm.jobs[2].state) == (0, "RUNNING")
    assert not events(tmp_path, "let_go")


def test_a_job_moved_to_another_partition_is_released(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        (waiting,) = [job for job in slurm.jobs.values() if not job.held]
        waiting.partition = "free"
        driven.round()
    assert waiting.priority > 0
    assert [list(event["jobs"]) for event in events(tmp_path, "let_go")] == [[str(waiting.number)]]


def test_at_the_end_only_jobs_on_its_own_hold_are_released(tmp_path: Path) -> None:
    slurm = cluster_with(4, 4)
    slurm.submit(5, per_job="gpu:4", comment=BERT, more={"dependency": "afterok:1(unfulfilled)"})
    slurm.submit(6, per_node="gpu:a100:3", comment=BERT)
    slurm.submit(7, per_job="gpu:4", partition="free", admin_comment="gavel:submit=1;plugin")
    slurm.submit(8, per_job="gpu:4", comment="gavel-hold")
    with driver(slurm, tmp_path, on_exit="release") as driven:
        driven.round()
        waiting = [number for number in (1, 2, 3, 4) if not slurm.jobs[number].held]
        slurm.jobs[waiting[0]].comment += " gavel-hold"
        slurm.submit(9, per_job="gpu:4", comment=BERT)
        driven.end()
    released = {number for number, job in slurm.jobs.items() if job.priority and not job.held}
    assert released == {waiting[1], 5, 6, 9}


@pytest.mark.parametrize("at", range(1, 26))
def test_holds_are_known_without_plugin_and_state(tmp_path: Path, at: int) -> None:
    """The driver is killed before or after any command; jobs ran or waited before its first start."""
    slurm = cluster()
    for number, node in ((1, "v100-0"), (2, "k80-0")):
        slurm.submit(
            number, per_job="gpu:4", admin_comment="", state="RUNNING", held={node: 4}, priority=5, start=slurm.clock.now()
        )
    for number in (3, 4):
        slurm.submit(number, per_job="gpu:4", admin_comment="", priority=7, reason="Resources", eligible=slurm.clock.now())
    with pytest.raises(KilledError), dying_at(slurm, at), driver(slurm, tmp_path) as driven:
        driven.run()
    (tmp_path / "state.json").unlink(missing_ok=True)
    ran: set[int] = set()
    with driver(slurm, tmp_path) as driven:
        for _ in range(6):
            driven.round()
            ran |= {number for number, job in slurm.jobs.items() if job.state == "RUNNING"}
            slurm.clock.seconds += 100
    assert ran == {1, 2, 3, 4}


def submit_without_plugin(slurm: FakeSlurm, number: int) -> None:
    slurm.submit(
        number, per_job="gpu:4", comment=BERT, admin_comment="", priority=7, reason="Resources", eligible=slurm.clock.now()
    )


def no_annotations(line: str) -> str:
    """What Slurm answers an operator."""
    return "Access/permission denied" if "AdminComment" in line else ""


@pytest.mark.deep
@pytest.mark.parametrize("slow", [30.0, 150.0])
def test_jobs_that_stop_for_long_are_known_although_drivers_die(tmp_path: Path, slow: float) -> None:
    """Jobs are not annotated, so only the saved state tells that a hold of a job that was stopped is the driver's."""
    slurm = cluster()
    slurm.refuses = no_annotations
    for number in range(1, 6):
        submit_without_plugin(slurm, number)
        slurm.slow[number] = slow
    taken_for_users = Counter[int]()
    for at in range(40):
        with suppress(KilledError), dying_at(slurm, 20 + 7 * at % 37), driver(slurm, tmp_path, stop_seconds=20.0) as driven:
            driven.run()
        slurm.clock.seconds += 30
        of_users = {number for number, job in slurm.jobs.items() if job.reason == "JobHeldUser"}
        taken_for_users = Counter({number: taken_for_users[number] + 1 for number in of_users})
        assert max(taken_for_users.values(), default=0) < 4, "the next round makes it an administrator's hold"
    assert all(job.restarts for job in slurm.jobs.values())


def test_a_hold_that_slurm_refuses_is_still_known_as_the_drivers(tmp_path: Path) -> None:
    slurm = cluster()
    for number in (1, 2, 3):
        submit_without_plugin(slurm, number)
    slurm.refuses = no_annotations
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.refuses = lambda line: "Access/permission denied" if line.startswith(("hold", "update")) else ""
        slurm.clock.seconds += 100
        with suppress(gp.GavelError):
            driven.round()
        slurm.refuses = no_annotations
        ran: set[int] = set()
        for _ in range(6):
            driven.round()
            ran |= {number for number, job in slurm.jobs.items() if job.state == "RUNNING"}
            slurm.clock.seconds += 100
    assert ran == {1, 2, 3}


def test_unmanageable_jobs_held_by_the_plugin_are_released(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:2", wanted=["k80-0"])
    slurm.submit(2, per_job="gpu:2", wanted=["k80-0"], comment="gavel-hold")
    with driver(slurm, tmp_path) as driven:
        driven.round()
        driven.round()
    assert slurm.jobs[1].state == "RUNNING"
    assert (slurm.jobs[2].state, slurm.jobs[2].priority) == ("PENDING", 0)
    assert [event["jobs"] for event in events(tmp_path, "let_go")] == [{"1": "it asks for certain nodes (--nodelist)"}]


@pytest.mark.parametrize(("on_exit", "held"), [("leave", True), ("release", False)])
def test_waiting_jobs_at_the_end(tmp_path: Path, on_exit: str, held: bool) -> None:
    slurm = cluster_with(4, 4)
    slurm.submit(5, per_job="gpu:4", comment="gavel-hold")
    slurm.clock.stops_at = slurm.clock.now() + 250
    with driver(slurm, tmp_path, on_exit=on_exit) as driven:
        driven.run()
    waiting = [job for job in slurm.jobs.values() if job.state == "PENDING" and job.number != 5]
    assert len(waiting) == 2
    assert all((job.priority == 0) is held for job in waiting)
    assert slurm.jobs[5].priority == 0
    assert [sum(job.state == "RUNNING" for job in slurm.jobs.values())] == [2]


def test_stray_jobs_are_held_before_slurm_places_them(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT, admin_comment="", priority=7, reason="Resources", eligible=slurm.clock.now())
    slurm.stuck = {1}
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert "AdminComment=gavel:submit=" in slurm.sent[0]
    assert slurm.sent[1] == "hold 1"


def test_users_cancel_hold_release_and_change_their_jobs(tmp_path: Path) -> None:
    slurm = cluster_with(3, 2)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.end(1, "CANCELLED")
        slurm.jobs[2].comment += " gavel-hold"
        slurm.run(["scontrol"], "requeuehold Incomplete 2\nquit")
        slurm.clock.seconds += 100
        driven.round()
        assert slurm.jobs[2].state == "PENDING"
        slurm.clock.seconds += 100
        slurm.jobs[2].comment = LSTM
        for _ in range(2):
            driven.round()
            slurm.clock.seconds += 100
        assert slurm.jobs[2].state == "RUNNING"
        assert driven.state is not None
        assert driven.state.tracked["2"].job_type == "lstm"
    assert [event["outcome"] for event in events(tmp_path, "left")] == ["cancelled"]


@both_shapes
def test_a_requeue_in_special_exit_is_a_hold_by_the_user(tmp_path: Path, new: bool) -> None:
    """The job has no GPUs, so nothing waits for it, and no other job is stopped for it."""
    slurm = cluster(new=new)
    for number in (1, 2):
        slurm.submit(number, per_job="gpu:4", comment=BERT)
    with driver(slurm, tmp_path, stop_seconds=60.0) as driven:
        driven.round()
        job = slurm.jobs[1]
        job.state, job.priority, job.reason, job.held, job.restarts = "SPECIAL_EXIT", 0, "JobHeldUser", {}, 1
        slurm.submit(3, per_job="gpu:4", comment=BERT)
        slurm.clock.seconds += 100
        decided, applied = driven.round()
        assert decided.picture.standing_of("1") == (Role.ASIDE, "its user or an administrator holds it")
        assert (applied.lingering, applied.started) == ([], ["3"])
        assert applied.stop_seconds < 10
        assert slurm.jobs[2].restarts == 0
        assert (job.state, job.priority) == ("SPECIAL_EXIT", 0)


def hold_by_requeue(slurm: FakeSlurm, number: int, state: str) -> None:
    """Do what `scontrol requeuehold` of the user does; Slurm does not ask the plugin."""
    job = slurm.jobs[number]
    job.state, job.priority, job.reason, job.held, job.restarts = state, 0, "JobHeldUser", {}, job.restarts + 1
    job.description = "job requeued in held state"


@pytest.mark.parametrize("comment", [BERT, "", 'gavel: type="bert"; my thesis'])
@pytest.mark.parametrize("state", ["PENDING", "SPECIAL_EXIT"])
def test_users_hold_their_jobs_by_a_requeue_until_they_release_them(tmp_path: Path, state: str, comment: str) -> None:
    """The driver marks the hold for the plugin, which lets users release only marked jobs, and keeps the driver's hold."""
    slurm = cluster()
    for number in (1, 2, 3):
        slurm.submit(number, per_job="gpu:4", comment=comment)
    with driver(slurm, tmp_path, default_type="bert") as driven:
        driven.round()
        slurm.clock.seconds += 100
        (number, *_) = [job.number for job in slurm.jobs.values() if job.held]
        hold_by_requeue(slurm, number, state)
        (decided, _), job = driven.round(), slurm.jobs[number]
        assert decided.picture.standing_of(str(number)) == (Role.ASIDE, "its user or an administrator holds it")
        assert job.comment == f"{comment} gavel-hold".strip()
        for _ in range(3):
            slurm.clock.seconds += 100
            decided, _ = driven.round()
            assert decided.picture.standing_of(str(number)) == (Role.ASIDE, "its user holds it")
            assert (job.state, job.priority) == (state, 0)
        assert [event["jobs"] for event in events(tmp_path, "held_by_users")] == [[str(number)]]
        job.comment = job.comment.removesuffix("gavel-hold").strip()  # as the plugin does for `scontrol release`
        slurm.clock.seconds += 100
        decided, _ = driven.round()
        assert decided.picture.standing_of(str(number)).role is Role.MANAGED
        for other in slurm.jobs.keys() - {number}:
            slurm.end(other)
        slurm.clock.seconds += 100
        driven.round()
        assert job.state == "RUNNING"
        assert len(events(tmp_path, "held_by_users")) == 1


def test_a_release_keeps_holds_by_a_requeue(tmp_path: Path) -> None:
    """Without its state, only the mark tells them from holds of the driver."""
    slurm = cluster_with(2, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        hold_by_requeue(slurm, 1, "PENDING")
        driven.fill()
    assert gp.slurm_release("gpu", commands=slurm) == []
    assert slurm.jobs[1].priority == 0


def test_a_requeue_on_hold_by_an_earlier_driver_is_not_taken_for_a_users(tmp_path: Path) -> None:
    """It was killed while it stopped the job, and its state is lost."""
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT)
    hold_by_requeue(slurm, 1, "PENDING")
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert (slurm.jobs[1].state, slurm.jobs[1].comment) == ("RUNNING", BERT)
