"""Users hold, release, change and cancel their jobs while the driver runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.slurm.loopback.allocations import allocations
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import sleeper
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user"), pytest.mark.deep]

SOMEBODY = 65_534


@pytest.fixture
def small(settings: Settings) -> Iterator[LoopbackCluster]:
    """Four nodes with eight GPUs each."""
    with booted(replace(settings, nodes=(Nodes("v100", 4, gpus=8),))) as made:
        yield made


def test_users_hold_release_change_and_cancel_their_jobs(cluster: LoopbackCluster) -> None:
    """There is room for all jobs, so a job waits only if its user wants it to."""
    held, changed, cancelled = (sleeper(cluster, SOMEBODY) for _ in range(3))
    cluster.tell("scontrol", "hold", str(held), user=SOMEBODY)
    with driving(cluster, "--round", "3") as driver:
        driver.until(lambda: {changed, cancelled} <= running(cluster), "the jobs that nobody holds")
        cluster.tell("scancel", str(cancelled), user=SOMEBODY)
        cluster.tell("scontrol", "update", f"JobId={changed}", "JobName=renamed", user=SOMEBODY)
        cluster.tell("scontrol", "update", f"JobId={held}", "Gres=gpu:2", user=SOMEBODY)
        driver.rounds(2)
        assert running(cluster) == {changed}
        assert allocations(cluster, held) == []
        cluster.tell("scontrol", "release", str(held), user=SOMEBODY)
        driver.until(lambda: running(cluster) == {changed, held}, "the job that its user has released")
    seen = cluster.jobs()
    assert seen[cancelled].state == "CANCELLED"
    assert sum(seen[held].placement.values()) == 2, "it asks for two GPUs now"
    assert len(allocations(cluster, changed)) == 1, "another name is no reason to stop it"


@pytest.mark.every_release
def test_users_cannot_start_their_jobs_themselves(small: LoopbackCluster) -> None:
    """There is room for all of them, and no driver runs, so that only Slurm could start them."""
    over, runs = (sleeper(small, SOMEBODY, partition="plain") for _ in range(2))
    until(lambda: small.running() == {over, runs}, "both to run")
    small.tell("scancel", str(over))
    until(lambda: small.jobs()[over].is_over, "the first to end")
    submitted = {
        job: words
        for words in (
            (),
            ("--begin=now",),
            ("--dependency=singleton", "--job-name=alone"),
            (f"--dependency=afterany:{over}",),
            (f"--dependency=afterany:{over}?afterok:{runs}",),
            (f"--dependency=afterany:{runs}?afterany:{over}", "--begin=now+1"),
            (f"--dependency=singleton?afterany:{runs}",),
            (f"--dependency=afterany:{runs}",),
            ("--array=0-2%2",),
            ("--hold",),
        )
        for job in [sleeper(small, SOMEBODY, words=words)]
    }
    changed = {
        job: words
        for words in (
            [("update", "Dependency=")],
            [("update", "JobName=only"), ("update", "Dependency=singleton")],
            [("update", f"Dependency=afterany:{over}")],
            [("update", f"Dependency=afterany:{over}?singleton")],
            [("update", "Dependency="), ("update", f"Dependency=afterok:{runs}"), ("update", "Dependency=")],
            [("update", "StartTime=now")],
            [("update", "StartTime=now+1hour"), ("update", "StartTime=now")],
            [("update", "Dependency=", "StartTime=now", "Priority=1000")],
            [("update", "Priority=1000")],
            [("update", "Nice=-100")],
            [("update", "Partition=gavel")],
            [("release",)],
            [("hold",), ("release",)],
            [("uhold",), ("update", "Dependency="), ("release",)],
            [("requeue",)],
            [("requeuehold",), ("release",)],
        )
        for job in [sleeper(small, SOMEBODY)]
    }
    for job, words in submitted.items():
        if any("?" in word for word in words):
            changed[job] = [("update", "StartTime=now"), ("update", "StartTime=now", "Dependency=")]
        if "--hold" in words:
            changed[job] = [("release",)]
        if any("array" in word for word in words):
            changed[job] = [("update", "ArrayTaskThrottle=3"), ("update", "Dependency=")]
    for job, attempts in changed.items():
        for verb, *fields in attempts:
            whom = f"JobId={job}" if verb == "update" else str(job)
            small.run("scontrol", verb, whom, *fields, user=SOMEBODY)
    small.tell("scancel", str(runs))
    marker = sleeper(small, SOMEBODY, partition="plain")
    until(lambda: marker in small.running(), "Slurm to start a job that does not wait")
    time.sleep(5)  # two turns of Slurm's schedulers
    seen = small.jobs()
    assert {job for job, each in seen.items() if each.placement} == {marker}
    assert {job: changed[job] for job in changed if not seen[job].bound and job not in submitted} == {}
    with driving(small, "--round", "3") as driver:
        single = {job for job in changed.keys() | submitted.keys() if not any("array" in word for word in submitted.get(job, ()))}
        driver.until(lambda: running(small) >= single, "the driver to start them")


@pytest.mark.every_release
def test_users_cannot_start_jobs_by_a_detour_to_another_partition(small: LoopbackCluster) -> None:
    """A job that is moved into the partition, or asks for its first GPU there, waits like one that is submitted."""
    later = ("--begin=now+1hour",)
    moved, there_and_back = sleeper(small, SOMEBODY, partition="plain", words=later), sleeper(small, SOMEBODY, words=later)
    words = ["--parsable", "--partition=gavel", *later, "--chdir=/", "--output=/dev/null", "--wrap=sleep 600"]
    without = int(small.tell("sbatch", *words, user=SOMEBODY))
    for job, changes in {
        moved: [["Partition=gavel"], ["StartTime=now"]],
        there_and_back: [["Partition=plain"], ["Dependency="], ["Partition=gavel"], ["StartTime=now"]],
        without: [["Gres=gpu:1"], ["StartTime=now"]],
    }.items():
        for fields in changes:
            done = small.run("scontrol", "update", f"JobId={job}", *fields, user=SOMEBODY)
            if "Resource temporarily unavailable" in done.stderr:  # some releases refuse moves to other partitions
                pytest.skip(f"Slurm {small.settings.release.version} refuses to move a job")
            assert done.returncode == 0, done.stderr
    time.sleep(5)  # two turns of Slurm's schedulers
    assert small.running() == set()
    with driving(small, "--round", "3") as driver:
        driver.until(lambda: running(small) == {moved, there_and_back, without}, "the driver to start them")


@pytest.mark.every_release
def test_users_may_let_their_jobs_wait_longer(small: LoopbackCluster) -> None:
    """Hold, begin and dependencies of users mean what they mean without a driver, although there is room for all jobs."""
    first, second = (sleeper(small, SOMEBODY, partition="plain") for _ in range(2))
    failing = sleeper(small, SOMEBODY, partition="plain", command="exit 3")
    until(lambda: small.jobs()[failing].is_over, "a job to fail")
    late = {
        "hold": sleeper(small, SOMEBODY, words=("--hold",)),
        "held": sleeper(small, SOMEBODY),
        "begin": sleeper(small, SOMEBODY, words=("--begin=now+1hour",)),
        "begun": sleeper(small, SOMEBODY),
        "after": sleeper(small, SOMEBODY, words=(f"--dependency=afterany:{first}",)),
        "all": sleeper(small, SOMEBODY, words=(f"--dependency=afterany:{first},afternotok:{second}",)),
        "any": sleeper(small, SOMEBODY, words=(f"--dependency=afterok:{first}?afterany:{second}",)),
        "any, later": sleeper(small, SOMEBODY, words=(f"--dependency=afterany:{failing}?afterok:{first}", "--begin=now+1hour")),
        "changed": sleeper(small, SOMEBODY),
        "never": sleeper(small, SOMEBODY, words=(f"--dependency=afterok:{failing}",)),
    }
    small.tell("scontrol", "hold", str(late["held"]), user=SOMEBODY)
    small.tell("scontrol", "update", f"JobId={late['begun']}", "StartTime=now+1hour", user=SOMEBODY)
    small.tell("scontrol", "update", f"JobId={late['changed']}", f"Dependency=afterany:{second}", user=SOMEBODY)
    free = sleeper(small, SOMEBODY)
    started = {first, second, free}
    with driving(small, "--round", "3", "--lease", "8") as driver:

        def starts(*names: str) -> None:
            nonlocal started
            started |= {late[name] for name in names}
            driver.until(lambda: running(small) == started, f"{names} to start")
            driver.rounds(2)
            assert running(small) == started

        driver.until(lambda: running(small) == started, "the job that is to wait for nothing else")
        driver.rounds(4)  # longer than the lease, which is renewed
        assert running(small) == started
        small.tell("scancel", str(first))
        started.remove(first)
        starts("after")
        small.tell("scancel", str(second))
        started.remove(second)
        starts("all", "any", "changed")
        small.tell("scontrol", "release", str(late["hold"]), str(late["held"]), user=SOMEBODY)
        starts("hold", "held")
        for name in ("begin", "begun", "any, later"):
            small.tell("scontrol", "update", f"JobId={late[name]}", "StartTime=now", user=SOMEBODY)
        starts("begin", "begun", "any, later")
        driver.process.kill()
    until(lambda: [each.state for each in small.leases().values()][-1] == "COMPLETED", "the lease to end")
    time.sleep(5)  # two turns of Slurm's schedulers
    assert running(small) == started
    assert small.jobs()[late["never"]].state == "PENDING", "the end of the lease is not what it waits for"


@pytest.mark.every_release
def test_jobs_that_run_again_wait_for_the_driver_again(small: LoopbackCluster) -> None:
    """Their users requeue them, or their node fails, while others wait; none is free for more than a moment."""
    with driving(small, "--round", "4", "--min-run-seconds", "300") as driver:
        jobs = {sleeper(small, SOMEBODY, gpus=8) for _ in range(6)}
        driver.until(lambda: len(running(small)) == 4, "four jobs to run")
        driver.rounds(1)
        again, held, lost, _ = sorted(running(small))
        small.tell("scontrol", "requeue", str(again), user=SOMEBODY)
        small.tell("scontrol", "requeuehold", str(held), user=SOMEBODY)
        (node,) = small.jobs()[lost].placement
        small.lose_node(node)
        small.tell("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        driver.until(lambda: len(running(small)) == 3, "three jobs to run on the nodes that are left", within=180)
        # On a node that died, a job may take long to end, and waits only then.
        driver.until(lambda: small.jobs()[lost].restarts == 1, "the job on the lost node to wait again", within=180)
        driver.rounds(2)
        seen = small.jobs()
        assert {job for job in jobs if seen[job].bound} == {job for job in jobs if not seen[job].placement}
        assert {each.restarts for job, each in seen.items() if job in {again, held, lost}} == {1}
        assert not running(small) & {held, lost}
        small.tell("scontrol", "release", str(held), user=SOMEBODY)
        driver.rounds(2)
        assert small.jobs()[held].bound, "it waits for its turn"
        small.start_node(node)
        small.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        driver.until(lambda: len(running(small)) == 4, "four jobs to run again")
        assert driver.end() == 0, driver.output()
    assert not events(log_of(small), "undecided", "no_answer")


@pytest.mark.every_release
def test_a_limit_of_tasks_at_once_is_kept(small: LoopbackCluster) -> None:
    """By the driver, and by Slurm when a driver is dead."""
    array = sleeper(small, SOMEBODY, words=("--array=0-5%2",))

    def tasks() -> set[str]:
        return set(small.tell("squeue", "--noheader", "--states=RUNNING", f"--jobs={array}", "--array", "--format=%i").split())

    with driving(small, "--round", "3", "--lease", "10") as driver:
        driver.until(lambda: len(tasks()) == 2, "two tasks to run")
        driver.rounds(3)
        first, second = sorted(tasks())
        small.tell("scancel", second)
        driver.until(lambda: len(tasks()) == 2 and second not in tasks(), "another one")
        driver.rounds(2)
        assert len(tasks()) == 2
        assert first in tasks()
        driver.process.kill()
    until(lambda: not small.bound(), "the lease to end")
    before = tasks()
    small.tell("scancel", *before)
    until(lambda: len(tasks() - before) == 2, "Slurm to start two others")
    time.sleep(5)  # two turns of Slurm's schedulers
    assert len(tasks()) == 2


def running(cluster: LoopbackCluster) -> set[int]:
    return {job for job, each in cluster.jobs().items() if each.placement}
