"""Jobs that wait for the driver, and jobs that their users, administrators or other drivers let wait."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.job_roles import Role
from tests.slurm.fake_slurm import FIRST, FakeSlurm
from tests.slurm.support import BERT, LSTM, KilledError, bound, cluster, cluster_with, driver, dying_at, events

both_shapes = pytest.mark.parametrize("new", [False, True], ids=["22.05", "24.05"])

HELD = (Role.ASIDE, "its user or an administrator holds it")


def lease_of_another(slurm: FakeSlurm) -> str:
    """Let a driver of partition free on another host take a lease, and return its job."""
    slurm.leases["70"] = ["gavel:driver=far:1:abc lease=600 of=free gpus=4", slurm.clock.now() + 600]
    return "70"


@pytest.mark.parametrize("mark", ["gavel:submit=1700000000;shared", "gavel:submit=1700000000;place=any"])
def test_jobs_that_wait_for_another_partitions_driver_stay(tmp_path: Path, mark: str) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:2", partition="free", admin_comment=mark, lease=lease_of_another(slurm))
    slurm.submit(2, per_job="gpu:2", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert gp.slurm_release("gpu", commands=slurm) == []
    assert (bound(slurm), slurm.jobs[2].state) == ({1}, "RUNNING")
    assert not events(tmp_path, "let_go")
    assert not any("JobId=1 " in line for line in slurm.sent)


def test_a_job_moved_to_another_partition_is_released(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        (waiting,) = [job for job in slurm.jobs.values() if not job.held]
        assert bound(slurm) == {waiting.number}
        waiting.partition = "free"
        driven.round()
    assert bound(slurm) == set()
    assert [list(event["jobs"]) for event in events(tmp_path, "let_go")] == [[str(waiting.number)]]


def test_at_the_end_only_jobs_that_wait_for_the_driver_are_released(tmp_path: Path) -> None:
    slurm = cluster_with(4, 4)
    slurm.submit(5, per_job="gpu:4", comment=BERT, dependency="afterok:1")
    slurm.submit(6, per_job="gpu:4", partition="free", admin_comment="gavel:submit=1;shared", lease=lease_of_another(slurm))
    slurm.submit(7, per_job="gpu:4", priority=0)
    with driver(slurm, tmp_path, on_exit="release") as driven:
        driven.round()
        waiting = {number for number in (1, 2, 3, 4) if not slurm.jobs[number].held}
        slurm.submit(8, per_job="gpu:4", comment=BERT)
        assert bound(slurm) == {*waiting, 5, 6, 7, 8}
        driven.end()
    assert bound(slurm) == {6}
    assert (slurm.jobs[5].dependency, slurm.jobs[7].priority) == ("afterok:1", 0)
    (released,) = events(tmp_path, "released")
    assert (set(map(int, released["jobs"])), released["problem"]) == ({*waiting, 5, 7, 8}, "")
    for number in {1, 2, 3, 4} - waiting:
        slurm.end(number)
    slurm.run(["squeue"])
    assert {number for number, job in slurm.jobs.items() if job.held} == waiting, "Slurm starts them"


def submit_without_plugin(slurm: FakeSlurm, number: int) -> None:
    fields = {"admin_comment": "", "lease": "", "reason": "Resources", "eligible": slurm.clock.now()}
    slurm.submit(number, per_job="gpu:4", comment=BERT, **fields)


@pytest.mark.parametrize("at", range(1, 26))
def test_jobs_are_known_without_plugin_and_state(tmp_path: Path, at: int) -> None:
    """The driver is killed before or after any command; jobs ran or waited before its first start."""
    slurm = cluster()
    for number, node in ((1, "v100-0"), (2, "k80-0")):
        submit_without_plugin(slurm, number)
        slurm.jobs[number].state, slurm.jobs[number].held, slurm.jobs[number].start = "RUNNING", {node: 4}, slurm.clock.now()
    for number in (3, 4):
        submit_without_plugin(slurm, number)
    with pytest.raises(KilledError), dying_at(slurm, at), driver(slurm, tmp_path) as driven:
        driven.run()
    (tmp_path / "state.json").unlink(missing_ok=True)
    ran: set[int] = set()
    with driver(slurm, tmp_path) as driven:
        for _ in range(6):
            driven.round()
            assert all(job.held or job.number in bound(slurm) for job in slurm.jobs.values())
            ran |= {number for number, job in slurm.jobs.items() if job.state == "RUNNING"}
            slurm.clock.seconds += 100
    assert ran == {1, 2, 3, 4}


def no_annotations(line: str) -> str:
    """What Slurm answers an operator."""
    return "Access/permission denied" if "AdminComment" in line else ""


@pytest.mark.deep
@pytest.mark.parametrize("slow", [30.0, 150.0])
def test_jobs_that_stop_for_long_wait_for_the_next_driver_although_drivers_die(tmp_path: Path, slow: float) -> None:
    """Jobs are not annotated, and drivers die after any command; their successors bind what is free."""
    slurm = cluster()
    slurm.refuses = no_annotations
    for number in range(1, 6):
        submit_without_plugin(slurm, number)
        slurm.slow[number] = slow
    free = Counter[int]()
    for at in range(40):
        with suppress(KilledError), dying_at(slurm, 20 + 7 * at % 37), driver(slurm, tmp_path, stop_seconds=20.0) as driven:
            driven.run()
        slurm.clock.seconds += 30
        # Jobs with a place have been told to start there, as soon as the job that stops there has ended.
        waiting = {number for number, job in slurm.jobs.items() if job.state == "PENDING" and not job.wanted}
        free = Counter({number: free[number] + 1 for number in waiting - bound(slurm)})
        assert max(free.values(), default=0) < 2
        assert all(slurm.free(name) >= 0 for name in slurm.nodes)
    assert all(job.restarts for job in slurm.jobs.values())


def test_jobs_that_slurm_does_not_let_the_driver_bind_are_bound_later(tmp_path: Path) -> None:
    slurm = cluster()
    for number in (1, 2, 3):
        submit_without_plugin(slurm, number)
    slurm.refuses = no_annotations
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.refuses = lambda line: "Access/permission denied" if line.startswith("update") else ""
        slurm.clock.seconds += 100
        with suppress(gp.GavelError):
            driven.round()
        slurm.refuses = no_annotations
        ran: set[int] = set()
        for _ in range(6):
            driven.round()
            assert all(job.held or job.number in bound(slurm) for job in slurm.jobs.values())
            ran |= {number for number, job in slurm.jobs.items() if job.state == "RUNNING"}
            slurm.clock.seconds += 100
    assert ran == {1, 2, 3}


def test_unmanageable_jobs_that_the_plugin_lets_wait_are_released(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:2", wanted=["k80-0"], lease=FIRST)
    slurm.submit(2, per_job="gpu:2", wanted=["k80-0"], lease=FIRST, priority=0)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        driven.round()
    assert slurm.jobs[1].state == "RUNNING"
    assert (slurm.jobs[2].state, slurm.jobs[2].priority) == ("PENDING", 0), "its user holds it"
    why = "it asks for certain nodes (--nodelist)"
    assert [event["jobs"] for event in events(tmp_path, "let_go")] == [{"1": why, "2": why}]


@pytest.mark.parametrize(("on_exit", "waits"), [("leave", True), ("release", False)])
def test_waiting_jobs_at_the_end(tmp_path: Path, on_exit: str, waits: bool) -> None:
    slurm = cluster_with(4, 4)
    slurm.submit(5, per_job="gpu:4", priority=0)
    slurm.clock.stops_at = slurm.clock.now() + 250
    with driver(slurm, tmp_path, on_exit=on_exit) as driven:
        driven.run()
    waiting = {number for number, job in slurm.jobs.items() if job.state == "PENDING"}
    assert len(waiting) == 3
    assert bound(slurm) == (waiting if waits else set())
    slurm.clock.seconds += 600
    slurm.run(["squeue"])
    assert bound(slurm) == set(), "the lease has ended"
    assert slurm.jobs[5].priority == 0
    assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 2


def test_stray_jobs_are_bound_before_others_are_placed(tmp_path: Path) -> None:
    slurm = cluster()
    for number in (1, 2, 3):
        submit_without_plugin(slurm, number)
    slurm.stuck = {1, 2, 3}
    with driver(slurm, tmp_path, start_seconds=5.0) as driven:
        driven.round()
    assert all(line.startswith(f"update JobId={n} AdminComment=gavel:submit=") for n, line in enumerate(sorted(slurm.sent[:3]), 1))
    assert slurm.sent[3:6] == [f"update JobId={number} Dependency=afterany:{FIRST}" for number in (1, 2, 3)]


def hold_by_requeue(slurm: FakeSlurm, number: int, state: str) -> None:
    """Do what `scontrol requeuehold` of the user does; Slurm does not ask the plugin."""
    job = slurm.jobs[number]
    job.state, job.priority, job.reason, job.held, job.restarts = state, 0, "JobHeldUser", {}, job.restarts + 1
    job.description = "job requeued in held state"


def test_users_cancel_hold_release_and_change_their_jobs(tmp_path: Path) -> None:
    slurm = cluster_with(3, 2)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.end(1, "CANCELLED")
        hold_by_requeue(slurm, 2, "PENDING")
        slurm.clock.seconds += 100
        driven.round()
        assert slurm.jobs[2].state == "PENDING"
        slurm.clock.seconds += 100
        slurm.jobs[2].comment = LSTM
        slurm.run(["scontrol"], "release 2\nquit")
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
        hold_by_requeue(slurm, 1, "SPECIAL_EXIT")
        slurm.submit(3, per_job="gpu:4", comment=BERT)
        slurm.clock.seconds += 100
        decided, applied = driven.round()
        assert decided.picture.standing_of("1") == HELD
        assert (applied.lingering, applied.started) == ([], ["3"])
        assert applied.stop_seconds < 10
        assert slurm.jobs[2].restarts == 0
        assert (slurm.jobs[1].state, slurm.jobs[1].priority) == ("SPECIAL_EXIT", 0)


@pytest.mark.parametrize("comment", [BERT, "", 'gavel: type="bert"; my thesis'])
@pytest.mark.parametrize("state", ["PENDING", "SPECIAL_EXIT"])
def test_users_hold_their_jobs_by_a_requeue_until_they_release_them(tmp_path: Path, state: str, comment: str) -> None:
    """Once released, the job waits for its turn, since the driver has bound it meanwhile."""
    slurm = cluster()
    for number in (1, 2, 3):
        slurm.submit(number, per_job="gpu:4", comment=comment)
    with driver(slurm, tmp_path, default_type="bert") as driven:
        driven.round()
        slurm.clock.seconds += 100
        (number, *_) = [job.number for job in slurm.jobs.values() if job.held]
        hold_by_requeue(slurm, number, state)
        job = slurm.jobs[number]
        for _ in range(4):
            decided, _ = driven.round()
            assert decided.picture.standing_of(str(number)) == HELD
            assert (job.state, job.priority, job.lease, job.comment) == (state, 0, FIRST, comment)
            slurm.clock.seconds += 100
        slurm.run(["scontrol"], f"release {number}\nquit")
        slurm.run(["squeue"])
        assert job.state == "PENDING"
        decided, _ = driven.round()
        assert decided.picture.standing_of(str(number)).role is Role.MANAGED
        for other in slurm.jobs.keys() - {number}:
            slurm.end(other)
        slurm.clock.seconds += 100
        driven.round()
        assert job.state == "RUNNING"


def test_a_release_keeps_holds_by_a_requeue(tmp_path: Path) -> None:
    slurm = cluster_with(2, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        hold_by_requeue(slurm, 1, "PENDING")
        driven.fill()
    assert gp.slurm_release("gpu", commands=slurm) == ["1"]
    slurm.run(["squeue"])
    assert (slurm.jobs[1].state, slurm.jobs[1].priority, slurm.jobs[1].wanted) == ("PENDING", 0, [])
