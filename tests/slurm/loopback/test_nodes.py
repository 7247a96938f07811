"""Nodes with running jobs drain or fail, and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Settings
from tests.slurm.loopback.driving import driving
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import crowd
from tests.slurm.loopback.submitting import stays

pytestmark = [needs_slurm, pytest.mark.deep]


def test_a_draining_node_is_emptied_and_used_again_afterwards(cluster: LoopbackCluster) -> None:
    crowd(cluster)
    with driving(cluster, "--round", "4") as driver:
        driver.rounds(1)
        (job,) = on(cluster, "v100-3")
        driver.until(lambda: stays(cluster, job), "the job to begin")
        cluster.tell("scontrol", "update", "NodeName=v100-3", "State=DRAIN", "Reason=test")
        driver.until(lambda: cluster.node_states()["v100-3"] == "drain", "the node to be empty")
        driver.rounds(1)
        assert not on(cluster, "v100-3")
        assert stays(cluster, job)[0].placement == {"v100-3": 4}
        cluster.tell("scontrol", "update", "NodeName=v100-3", "State=RESUME")
        driver.until(lambda: on(cluster, "v100-3"), "a job on the node")
        assert not cluster.jobs()[job].is_over


@pytest.fixture
def impatient(settings: Settings) -> Settings:
    """Slurm declares a node down after minutes without an answer; here it does so at once."""
    return replace(settings, options={"SlurmdTimeout": "10"})


def test_a_job_whose_node_dies_runs_again_elsewhere(impatient: Settings) -> None:
    with booted(impatient) as cluster:
        crowd(cluster)
        # Long enough for Slurm to declare the node down within a round. It loses count of the GPUs of jobs stopped before.
        with driving(cluster, "--round", "60") as driver:
            driver.rounds(1)
            (job,) = on(cluster, "v100-3")
            driver.until(lambda: stays(cluster, job), "the job to begin")
            cluster.lose_node("v100-3")
            driver.until(lambda: cluster.node_states()["v100-3"].startswith("down"), "Slurm to give the node up")
            driver.until(lambda: cluster.jobs()[job].placement, "the job to run again", within=120)
            assert "v100-3" not in cluster.jobs()[job].placement
            assert stays(cluster, job)[0].placement == {"v100-3": 4}
            others = set(cluster.settings.node_names) - {"v100-3"}
            driver.within_rounds(lambda: in_use(cluster) == others, 3, "a job on each of the other nodes")
            assert driver.end(within=90) == 0


def on(cluster: LoopbackCluster, node: str) -> list[int]:
    """Return the jobs that run on a node."""
    return [job for job, each in cluster.jobs().items() if node in each.placement]


def in_use(cluster: LoopbackCluster) -> set[str]:
    """Return the nodes with running jobs."""
    return {node for each in cluster.jobs().values() for node in each.placement}
