"""Two drivers would undo each other's actions, so the second one does not start."""

from __future__ import annotations

import signal

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import driving, gavel, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import gang

pytestmark = [needs_slurm, pytest.mark.slow]


def test_the_second_driver_is_refused_with_a_reason(cluster: LoopbackCluster) -> None:
    gang(cluster, "--nodes=1", "--gres=gpu:1")
    with driving(cluster, "--round", "5") as driver:
        driver.rounds(1)
        before = len(events(log_of(cluster), "begun"))
        second = gavel(cluster, "run", "--round", "5", "--once")
        assert second.returncode != 0
        assert "another driver" in second.stderr
        assert str(driver.process.pid) in second.stderr
        assert "Traceback" not in second.stderr
        assert len(events(log_of(cluster), "begun")) == before
        assert driver.process.poll() is None
        assert driver.end(signal.SIGINT) == 0
    third = gavel(cluster, "run", "--round", "5", "--once")
    assert third.returncode == 0, third.stderr
