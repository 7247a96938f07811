"""Rounds continue after the controller has been down."""

from __future__ import annotations

import signal
import time

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import decisions
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import crowd
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
