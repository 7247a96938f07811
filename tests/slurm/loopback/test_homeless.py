"""The driver as a daemon: run by SlurmUser or another account without home directory, and with failing stores."""

from __future__ import annotations

import pwd
import stat
from collections.abc import Iterator

import pytest

import gavel_py as gp
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel, log_of, plugin
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_root, needs_slurm
from tests.slurm.loopback.scenes import gang

pytestmark = [needs_slurm, needs_root, pytest.mark.deep]


def slurm_user() -> str:
    """The account of Debian's packages for Slurm, with home /nonexistent, or else another one without rights."""
    names = {account.pw_name for account in pwd.getpwall()}
    return "slurm" if "slurm" in names else "nobody"


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    user = slurm_user()
    with booted(Settings((Nodes("v100", 3),), plugin(user), slurm_user=user)) as made:
        yield made


def test_slurm_user_without_home_can_run_and_restart_the_driver(cluster: LoopbackCluster) -> None:
    """A minute of work on one type suffices to measure its throughput, which the next driver also has."""
    user = slurm_user()
    short_jobs(cluster)
    with driving(cluster, "--round", "4", user=user) as driver:
        driver.until(lambda: events(log_of(cluster), "measured"), "a speed to be measured", within=120)
        driver.rounds(1)
        assert driver.end() == 0, driver.output()
    store = log_of(cluster).with_name("profiles.sqlite")
    (row,) = gp.ThroughputStore(store).load("slurm").measurements
    assert (row.job_type, row.num_gpus, row.accelerator) == ("steady", 1, "v100")
    assert 0.4 < row.steps_per_second / 4 < 1.1
    assert {path.owner() for path in log_of(cluster).parent.iterdir()} == {user}
    late = gang(cluster, "--nodes=1", "--gres=gpu:1", steps=8)
    with driving(cluster, "--round", "4", "--profile", "slurm", user=user) as driver:
        driver.until(lambda: cluster.jobs()[late].is_over, "a late job to be done", within=90)
        driver.rounds(1)
        assert driver.end() == 0, driver.output()
    assert not events(log_of(cluster), "not_stored", "not_saved", "undecided")


def test_failing_store_and_log_do_not_stop_the_driver(cluster: LoopbackCluster) -> None:
    nowhere = ("--store", "/nonexistent/profiles.sqlite")
    jobs = short_jobs(cluster)
    with driving(cluster, "--round", "4", *nowhere, user=slurm_user()) as driver:
        driver.until(lambda: events(log_of(cluster), "not_stored"), "a speed that cannot be stored", within=120)
        driver.until(lambda: all(cluster.jobs()[job].is_over for job in jobs), "all jobs to be done", within=120)
        driver.rounds(1)
        assert driver.end() == 0, driver.output()
    assert "measured speeds were not stored: profile store /nonexistent/profiles.sqlite" in driver.output()
    assert "Traceback" not in driver.output()
    late = gang(cluster, "--nodes=1", "--gres=gpu:1")
    log_of(cluster).chmod(stat.S_IRUSR)
    done = gavel(cluster, "run", "--round", "4", "--once", *nowhere, user=slurm_user())
    assert done.returncode == 0, done.stderr
    assert "log.jsonl cannot be written; the driver continues without it: Permission denied" in done.stderr
    assert cluster.jobs()[late].placement


def test_a_missing_state_directory_is_an_error_with_a_remedy(cluster: LoopbackCluster) -> None:
    done = gavel(cluster, "run", "--once", "--state", "/nonexistent/state", user=slurm_user())
    assert done.returncode == 2
    assert "/nonexistent/state/lock: cannot be written" in done.stderr
    assert "--state" in done.stderr


def short_jobs(cluster: LoopbackCluster) -> list[int]:
    """Submit a job of about eight seconds for each GPU."""
    return [gang(cluster, "--nodes=1", "--gres=gpu:1", steps=32) for _ in range(12)]
