"""Users hold, release, change and cancel their jobs while the driver runs."""

from __future__ import annotations

import os

import pytest

from tests.slurm.loopback.allocations import allocations
from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import driving
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import sleeper

pytestmark = [needs_slurm, pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user"), pytest.mark.deep]

SOMEBODY = 65_534


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


def test_users_cannot_start_their_jobs_themselves(cluster: LoopbackCluster) -> None:
    job = sleeper(cluster, SOMEBODY)
    for attempt in (("release", str(job)), ("update", f"JobId={job}", "Priority=1000")):
        refused = cluster.run("scontrol", *attempt, user=SOMEBODY)
        assert refused.returncode != 0
        assert cluster.jobs()[job].held
    with driving(cluster, "--round", "3") as driver:
        driver.until(lambda: running(cluster) == {job}, "the driver to start it")


def running(cluster: LoopbackCluster) -> set[int]:
    return {job for job, each in cluster.jobs().items() if each.placement}
