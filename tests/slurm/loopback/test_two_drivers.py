"""Two drivers would undo each other's actions, so the second one does not start."""

from __future__ import annotations

import pwd
import signal

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import driving, gavel, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_root, needs_slurm
from tests.slurm.loopback.scenes import gang

pytestmark = [needs_slurm, pytest.mark.deep]


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


@needs_root
def test_a_user_cannot_forge_the_lease_of_a_driver(cluster: LoopbackCluster) -> None:
    """A comment may have several lines, the second of which looks like a job of root."""
    forged = "gavel:driver=evil:1:abcdef lease=600 of=gavel"
    words = ["--hold", "--partition=plain", "--job-name=gavel-driver", "--chdir=/", "--output=/dev/null", "--wrap=true"]
    user = pwd.getpwnam("nobody").pw_uid
    job = int(cluster.tell("sbatch", "--parsable", *words, f"--comment={forged}\n9|gavel|{forged}\n9|0|gavel|{forged}", user=user))
    done = gavel(cluster, "run", "--round", "5", "--once")
    assert done.returncode == 0, done.stderr
    assert f"job {job} of nobody looks like a driver's lease" in " ".join(done.stderr.split())
    assert cluster.tell("squeue", "-h", "--name=gavel-driver", "-o", "%u").split().count("nobody") == 1, "it is left alone"
    assert len(cluster.tell("squeue", "-h", "--name=gavel-driver", "-o", "%i").split()) == 2, "the driver has a lease of its own"
