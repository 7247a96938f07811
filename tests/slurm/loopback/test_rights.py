"""The minimum rights of a driver in a Slurm with accounts, and the errors without them."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from datetime import datetime

import pytest

import gavel_py as gp
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel, log_of, plugin
from tests.slurm.loopback.logbook import decisions, events
from tests.slurm.loopback.meddling import Meddler
from tests.slurm.loopback.presence import needs_accounting, needs_root, needs_slurm
from tests.slurm.loopback.scenes import sleeper
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, needs_accounting, needs_root, pytest.mark.deep]

OPERATOR, STRANGER = "daemon", "games"
"""Accounts of every Linux without a writable home directory."""

SOMEBODY = 65_534
NODES = (Nodes("v100", 2), Nodes("k80", 1))


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    """A cluster of twelve GPUs with accounts and a plugin that knows the account of the driver."""
    with booted(Settings(NODES, plugin(OPERATOR), accounting=True)) as made:
        yield made


def test_operator_rights_suffice_for_the_driver(cluster: LoopbackCluster) -> None:
    jobs = [sleeper(cluster, SOMEBODY, gpus=4) for _ in range(5)]
    comments = {job: (each.comment, each.admin_comment) for job, each in cluster.jobs().items()}
    cluster.tell("sacctmgr", "-i", "add", "user", OPERATOR, "account=root", "adminlevel=operator")
    known_as(cluster, OPERATOR, "Operator")
    with driving(cluster, "--round", "3", user=OPERATOR) as driver:
        driver.until(lambda: sum(each.restarts for each in cluster.jobs().values()) >= 3, "jobs to take turns", within=120)
        assert driver.end() == 0, driver.output()
    played = [decision.applied for decision in decisions(log_of(cluster)) if decision.applied]
    assert [line["errors"] for line in played] == [[]] * len(played)
    assert [line["waiting"] for line in played] == [{}] * len(played)
    seen = cluster.jobs()
    assert {job: each.placement for job, each in seen.items() if each.placement} == decisions(log_of(cluster))[-1].targets
    assert {job: (each.comment, each.admin_comment) for job, each in seen.items()} == comments, "it writes where it may"
    assert set(seen) == set(jobs)
    others_release_nothing(cluster)
    holds_by_root_are_kept(cluster, next(job for job, each in seen.items() if each.bound))


def others_release_nothing(cluster: LoopbackCluster) -> None:
    """An account without rights is told what Slurm has refused."""
    before = cluster.jobs()
    done = gavel(cluster, "release", user=STRANGER, timeout_only=True)
    words = " ".join(done.stderr.split())
    assert (done.returncode, done.stdout) == (1, ""), words
    assert "the driver's lease, could not be cancelled" in words
    assert "Access/permission denied; cancel it as SlurmUser, root or an operator" in words
    assert cluster.jobs() == before
    assert cluster.tell("squeue", "--noheader", "--name=gavel-driver"), "the lease is still there"


def holds_by_root_are_kept(cluster: LoopbackCluster, job: int) -> None:
    """The job may wait for its turn or have it; that root holds it is noted, and lasts until root releases it."""

    def is_held_by_root() -> bool:
        cluster.run("scontrol", "requeuehold", str(job))  # an error if it waits, as `hold` is an error if it runs
        return cluster.run("scontrol", "hold", str(job)).returncode == 0

    with driving(cluster, "--round", "2", user=OPERATOR) as driver:
        driver.rounds(1)
        driver.until(is_held_by_root, "root to hold the job")
        others = [each for each, seen in cluster.jobs().items() if each != job and seen.placement]
        cluster.tell("scancel", *map(str, others))
        driver.rounds(2)
        assert cluster.jobs()[job].held
        cluster.tell("scontrol", "release", str(job))
        driver.until(lambda: cluster.jobs()[job].placement, "the job that root has released")


def test_delivered_time_agrees_with_the_accounts_of_slurm(cluster: LoopbackCluster) -> None:
    """In log, report and picture, within 2 %; each job has 4 GPUs."""
    for _ in range(5):
        sleeper(cluster, SOMEBODY, gpus=4)
    with driving(cluster, "--round", "15", "--rounds", "5") as driver:
        assert driver.wait(within=120) == 0, driver.output()
    (end,) = events(log_of(cluster), "ended")
    run = gp.slurm_run(log_of(cluster))
    lines = cluster.tell("sacct", "-DXnP", "--allusers", "--format=Start,End").split()
    times = [[timestamp(word, end["seconds"]) for word in line.split("|")] for line in lines if "Unknown|" not in line]
    accounted = 4 * sum(min(to, end["seconds"]) - since for since, to in times)
    assert accounted > 600
    assert run.over_time is not None
    drawn = run.over_time.delivered_gpu_seconds.sum()
    for seconds in (end["delivered_gpu_seconds"], run.metrics["delivered_gpu_seconds"], drawn):
        assert seconds == pytest.approx(accounted, rel=0.02)


def timestamp(word: str, otherwise: float) -> float:
    return otherwise if word == "Unknown" else datetime.fromisoformat(word).timestamp()


def test_missing_rights_are_reported_at_the_start_with_a_remedy(cluster: LoopbackCluster) -> None:
    job = sleeper(cluster, SOMEBODY, gpus=4)
    before = cluster.jobs()[job]
    assert refusal(cluster) == "sacctmgr -i add user daemon account=root adminlevel=operator"
    cluster.tell("sacctmgr", "-i", "add", "user", OPERATOR, "account=root")
    cluster.tell("sacctmgr", "-i", "add", "coordinator", "account=root", f"names={OPERATOR}")
    until(lambda: f"{OPERATOR}(" in cluster.tell("scontrol", "show", "assoc_mgr", "flags=users"), "the controller to know of it")
    cure = refusal(cluster)
    assert cure == "sacctmgr -i modify user where name=daemon set adminlevel=operator"
    assert cluster.jobs()[job] == before, "nothing has been changed"
    cluster.tell(*shlex.split(cure))
    known_as(cluster, OPERATOR, "Operator")
    done = gavel(cluster, "run", "--round", "3", "--once", user=OPERATOR)
    assert (done.returncode, done.stderr.count("rror")) == (0, 0), done.stderr
    assert cluster.jobs()[job].placement
    second = gavel(cluster, "run", "--once", "--state", str(cluster.folder / "other"))
    assert second.returncode == 2
    assert "another driver manages it" in " ".join(second.stderr.split()), "an operator's lease counts"


def test_an_operator_that_the_plugin_does_not_know_is_told_of_it(cluster: LoopbackCluster) -> None:
    """Its lease is none for the plugin, so that new jobs would not wait for it."""
    cluster.tell("sacctmgr", "-i", "add", "user", STRANGER, "account=root", "adminlevel=operator")
    known_as(cluster, STRANGER, "Operator")
    job = sleeper(cluster, SOMEBODY, gpus=4)
    done = gavel(cluster, "run", "--round", "3", "--once", user=STRANGER)
    assert f"gavel slurm install --partition gavel --user {STRANGER}" in " ".join(done.stderr.split())
    assert done.returncode == 2
    assert cluster.jobs()[job].bound


@pytest.mark.parametrize("moment", ["before-change-2", "after-change-3"])
def test_without_state_an_operator_continues_what_it_has_begun(cluster: LoopbackCluster, moment: str) -> None:
    cluster.tell("sacctmgr", "-i", "add", "user", OPERATOR, "account=root", "adminlevel=operator")
    known_as(cluster, OPERATOR, "Operator")
    jobs = {sleeper(cluster, SOMEBODY, gpus=4) for _ in range(5)}
    with driving(cluster, "--round", "3", user=OPERATOR) as driver:
        driver.rounds(1)
        assert driver.end() == 0, driver.output()
    meddler = Meddler(cluster)
    meddler.kill(moment)
    with driving(cluster, "--round", "3", tools=meddler.folder, user=OPERATOR) as driver:
        assert driver.wait(within=60) == -signal.SIGKILL
    log_of(cluster).with_name("state.json").unlink()
    with driving(cluster, "--round", "3", user=OPERATOR) as driver:
        ran: set[int] = set()

        def all_have_run() -> bool:
            nonlocal ran
            ran |= {job for job, each in cluster.jobs().items() if each.placement}
            return ran == jobs

        driver.until(all_have_run, "each job to have its turn", within=120)
        assert driver.end() == 0, driver.output()
    assert not events(log_of(cluster), "unplanned")
    assert all(not each.is_over for each in cluster.jobs().values())


def known_as(cluster: LoopbackCluster, name: str, level: str) -> None:
    """Wait until the controller knows an account from slurmdbd."""

    def is_known() -> bool:
        shown = cluster.tell("scontrol", "show", "assoc_mgr", f"users={name}", "flags=users")
        return f"UserName={name}(" in shown and f"AdminLevel={level}" in shown

    until(is_known, f"the controller to know {name} as {level}")


def refusal(cluster: LoopbackCluster) -> str:
    """Return the remedy in the error of a driver without rights."""
    done = gavel(cluster, "run", "--round", "3", "--once", user=OPERATOR)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "daemon (uid 1) may not manage the jobs of other users" in done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split()).partition("can grant this with: ")[2]
