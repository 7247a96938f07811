"""Rounds continue after the controller has been down."""

from __future__ import annotations

import signal
import time

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import decisions
from tests.slurm.loopback.presence import needs_accounting, needs_slurm
from tests.slurm.loopback.scenes import crowd, gang
from tests.slurm.loopback.submitting import stays
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["restarted", "killed"])
def test_rounds_continue_when_the_controller_is_back(cluster: LoopbackCluster, how: signal.Signals) -> None:
    jobs = crowd(cluster)
    with driving(cluster, "--round", "4") as driver:
        driver.rounds(1)
        # Slurm loses what it has not yet saved, including jobs that were just submitted.
        now = time.time()
        until(lambda: (cluster.folder / "state" / "job_state").stat().st_mtime > now, "Slurm to save its jobs")
        cluster.end_controller(how)
        time.sleep(6)  # it is away when the next round is due
        assert driver.process.poll() is None, driver.output()
        cluster.start_controller()
        driver.rounds(3)
        assert driver.end() == 0, driver.output()
    seen = {job: each.placement for job, each in cluster.jobs().items() if each.placement}
    assert seen == decisions(log_of(cluster))[-1].targets
    assert set(cluster.jobs()) == set(jobs)
    assert all(stay.done is False for job in jobs for stay in stays(cluster, job))


@needs_accounting
@pytest.mark.every_release
def test_jobs_wait_for_the_driver_from_the_moment_the_controller_is_back(submit_plugin: str) -> None:
    """With slurmdbd, Slurm then shows no jobs to the plugin at first, also none that is a lease."""
    settings = Settings((Nodes("v100", 2),), submit_plugin, accounting=True)
    with booted(settings) as cluster, driving(cluster, "--round", "600") as driver:
        driver.rounds(1)
        driver.process.send_signal(signal.SIGSTOP)
        cluster.end_controller()
        cluster.start_controller()
        jobs = {gang(cluster, "--gpus=1") for _ in range(3)}
        time.sleep(4)  # Slurm starts jobs every second
        assert cluster.running() == set()
        driver.process.send_signal(signal.SIGCONT)
        driver.until(lambda: cluster.running() == jobs, "the driver to start them")
