"""A driver that is dead holds nothing: its lease ends by itself, Slurm starts what waits, and the plugin lets new jobs pass."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel
from tests.slurm.loopback.presence import needs_root, needs_slurm
from tests.slurm.loopback.scenes import gang
from tests.slurm.loopback.submitting import Work, submit
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

SOMEBODY = 65_534


@pytest.fixture
def small(settings: Settings) -> Settings:
    """Two nodes; no driver has run yet."""
    return replace(settings, nodes=(Nodes("v100", 1), Nodes("k80", 1)), leased=False)


def lease_in(cluster: LoopbackCluster) -> int | None:
    """Return the job of the only lease that has not ended; None if there is none."""
    found = [job for job, each in cluster.leases().items() if not each.is_over]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.every_release
def test_slurm_starts_the_jobs_of_a_dead_driver_and_the_next_one_binds_them_again(small: Settings) -> None:
    """Nobody has to come, neither on this host nor on another: nothing of the driver is left but its lease."""
    with booted(small) as cluster:
        early = gang(cluster, "--gpus=4")
        assert not cluster.bound(), "no driver has run yet"
        until(lambda: early in cluster.running(), "Slurm to start it")
        interactive = cluster.run("srun", "--partition=gavel", "--gpus=1", "--nodes=1", "true")
        assert interactive.returncode == 0, interactive.stderr
        words = ("--round", "5", "--lease", "15", "--min-run-seconds", "300")
        with driving(cluster, *words) as driver:
            driver.rounds(1)
            jobs = {early, *(gang(cluster, "--gpus=4") for _ in range(4))}
            refused = gavel(cluster, "run", "--once", "--state", str(cluster.folder / "other"))
            assert refused.returncode == 2
            assert f"another driver manages it (process {driver.process.pid} on" in " ".join(refused.stderr.split())
            driver.until(lambda: len(cluster.running()) == 2, "two jobs to run")
            driver.rounds(4)  # longer than the lease, which is renewed
            assert cluster.bound() == jobs - cluster.running()
            assert [each.state for each in cluster.leases().values()] == ["PENDING"]
            driver.end(signal.SIGKILL)
            assert driver.process.returncode == -signal.SIGKILL
        waiting, late = cluster.bound(), gang(cluster, "--gpus=4")
        assert len(waiting) == 3
        assert cluster.bound() == {*waiting, late}, "until the lease has ended"
        until(lambda: not cluster.bound(), "the lease to end")
        cluster.tell("scancel", *map(str, cluster.running()))
        until(lambda: len(cluster.running()) == 2, "Slurm to start two others")
        assert cluster.running() <= waiting
        assert lease_in(cluster) is None
        new = gang(cluster, "--gpus=4")
        assert not cluster.bound()
        with driving(cluster, *words) as driver:
            driver.within_rounds(lambda: cluster.bound() == {*waiting, late, new} - cluster.running(), 2, "the others to wait")
            assert len(cluster.bound()) == 3
            ready = next(iter(cluster.running()))
            cluster.tell("scancel", str(ready))
            driver.until(lambda: len(cluster.running()) == 2, "the driver to start one of them")
            assert driver.end() == 0, driver.output()


def test_jobs_of_a_driver_on_a_dead_host_are_released_by_hand_at_once(small: Settings) -> None:
    with booted(small) as cluster:
        with driving(cluster, "--round", "5") as driver:
            driver.rounds(1)
            first = gang(cluster, "--gpus=4", "--constraint=v100")
            others = {gang(cluster, "--gpus=4", "--constraint=v100") for _ in range(2)}
            driver.until(lambda: cluster.jobs()[first].placement, "the first job")
            driver.rounds(1)
            driver.process.kill()
        assert cluster.bound() == {first, *others} - cluster.running()
        assert len(cluster.bound()) == 2
        done = gavel(cluster, "release", timeout_only=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "2 jobs released.\n", "")
        until(lambda: not cluster.bound(), "Slurm to notice it")
        assert gavel(cluster, "release", timeout_only=True).stdout == "0 jobs released.\n"
        gang(cluster, "--gpus=4")
        assert not cluster.bound()
        with driving(cluster, "--round", "5", "--on-exit", "release") as driver:
            driver.within_rounds(lambda: len(cluster.bound()) == 2, 2, "the jobs to wait again")
            assert driver.end() == 0, driver.output()
        until(lambda: not cluster.bound(), "no trace to be left")
        assert lease_in(cluster) is None


@pytest.mark.every_release
def test_an_administrator_may_cancel_the_lease_of_a_driver(small: Settings) -> None:
    """Slurm starts what has room; the driver, which lives, takes another lease, and binds the others to it."""
    with booted(small) as cluster, driving(cluster, "--round", "5", "--lease", "20", "--min-run-seconds", "300") as driver:
        driver.rounds(1)
        jobs = {gang(cluster, "--gpus=4") for _ in range(5)}
        driver.until(lambda: len(cluster.running()) == 2, "two jobs to run")
        first = lease_in(cluster)
        cluster.tell("scancel", str(first))
        driver.until(lambda: lease_in(cluster) not in {None, first}, "another lease")
        driver.within_rounds(lambda: cluster.bound() == jobs - cluster.running(), 2, "the others to wait for it")
        assert len(cluster.bound()) == 3
        driver.rounds(2)  # the plugin sees jobs as they were a second ago
        new = gang(cluster, "--gpus=4")
        assert new in cluster.bound()
        assert driver.end() == 0, driver.output()


@pytest.mark.every_release
def test_the_lease_ends_first_when_a_full_partition_gets_room(small: Settings) -> None:
    """All CPUs are in use when it should end, and other jobs wait for them, too."""
    whole = ("--nodes=1", "--gres=gpu:4", "--ntasks=16")
    with booted(small) as cluster:
        with driving(cluster, "--round", "5", "--lease", "10", "--min-run-seconds", "300") as driver:
            driver.rounds(1)
            users = {gang(cluster, *whole) for _ in range(2)}
            driver.until(lambda: cluster.running() == users, "all CPUs to be in use")
            waiting, rival = gang(cluster, *whole), submit(cluster, Work("rival", whole), "plain")
            driver.rounds(1)
            driver.process.kill()
        lease = lease_in(cluster)
        assert lease is not None
        until(lambda: cluster.leases()[lease].reason == "Resources", "the lease to wait for a CPU")
        assert cluster.jobs()[waiting].bound
        cluster.tell("scancel", str(users.pop()))
        until(lambda: not cluster.jobs()[waiting].bound, "the lease to end")
        assert cluster.leases()[lease].state == "COMPLETED"
        until(lambda: len(cluster.running()) == 2, "the node to be in use again")
        cluster.tell("scancel", str(users.pop()))
        until(lambda: cluster.running() == {waiting, rival}, "both to run")


@needs_root
def test_slurm_user_writes_reasons_and_leaves_nothing_in_released_jobs(small: Settings) -> None:
    """A user sees in Slurm why a job waits; after a release, no note, dependency or priority of the driver is left."""
    with booted(small) as cluster:
        words = ["--parsable", "--partition=gavel", "--nodes=1", "--gres=gpu:4", "--output=/dev/null", "--chdir=/"]
        with driving(cluster, "--round", "5", "--min-run-seconds", "300", "--on-exit", "release") as driver:
            driver.rounds(1)
            jobs = [int(cluster.tell("sbatch", *words, "--wrap=exec sleep 600", user=SOMEBODY)) for _ in range(3)]
            driver.until(lambda: len(cluster.running()) == 2, "two jobs to run")
            (waiting,) = set(jobs) - cluster.running()
            driver.until(lambda: ";gavel-why=" in cluster.jobs()[waiting].admin_comment, "the reason")
            assert not any("gavel-why" in cluster.jobs()[job].admin_comment for job in cluster.running())
            cluster.tell("scontrol", "hold", str(waiting), user=SOMEBODY)
            driver.until(lambda: "gavel-why=its_user_or" in cluster.jobs()[waiting].admin_comment, "the hold as the reason")
            cluster.tell("scontrol", "release", str(waiting), user=SOMEBODY)
            driver.rounds(2)
            assert (cluster.jobs()[waiting].held, cluster.jobs()[waiting].bound) == (False, True)
            assert driver.end() == 0, driver.output()
        until(lambda: not cluster.bound(), "Slurm to notice it")
        assert cluster.tell("squeue", "--noheader", f"--job={waiting}", "--format=%E|%n") == "(null)|\n"
        assert len(cluster.running()) == 2, "a release of their priority does not touch them"
        assert "4294967293" not in cluster.tell("squeue", "--noheader", "--states=PENDING", "--format=%Q")
        assert lease_in(cluster) is None
        cluster.tell("scancel", str(next(iter(cluster.running()))))
        until(lambda: waiting in cluster.running(), "Slurm to start it")
