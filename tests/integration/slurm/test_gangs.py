"""Gangs over several nodes are split as it was decided, however their users asked for GPUs."""

from __future__ import annotations

import pytest

from tests.integration.slurm.cluster import LoopbackCluster
from tests.integration.slurm.driving import gavel, log_of
from tests.integration.slurm.logbook import decisions
from tests.integration.slurm.presence import needs_slurm
from tests.integration.slurm.scenes import gang

pytestmark = needs_slurm

REQUESTS = {
    "two and two": ("--nodes=2", "--gres=gpu:2"),
    "four and four": ("--nodes=2", "--gres=gpu:4"),
    "two nodes with six": ("--nodes=2", "--gpus=6"),
    "eight": ("--gpus=8",),
    "six": ("--gpus=6",),
    "four on one": ("--nodes=1", "--gpus=4"),
}


def test_every_split_is_as_decided(cluster: LoopbackCluster) -> None:
    jobs = {name: gang(cluster, *request) for name, request in REQUESTS.items()}
    crowd_of_ones = [gang(cluster, "--nodes=1", "--gres=gpu:1") for _ in range(70)]
    done = gavel(cluster, "run", "--round", "5", "--once")
    assert done.returncode == 0, done.stderr
    (decision,) = decisions(log_of(cluster))
    seen = {job: each.placement for job, each in cluster.jobs().items() if each.placement}
    assert seen == decision.targets
    assert set(jobs.values()) | set(crowd_of_ones) == set(seen), "there is room for all: 34 GPUs and 70"
    sizes = {name: sum(seen[job].values()) for name, job in jobs.items()}
    assert sizes == {"two and two": 4, "four and four": 8, "two nodes with six": 6, "eight": 8, "six": 6, "four on one": 4}
    assert len(seen[jobs["four on one"]]) == 1
    assert sorted(seen[jobs["eight"]].values()) == [4, 4]


@pytest.mark.parametrize("request_", [("--nodes=2", "--gres=gpu:2"), ("--gpus=4",)], ids=["by node", "by job"])
def test_a_gang_over_two_nodes_gets_two_and_two_where_only_that_is_free(
    cluster: LoopbackCluster, request_: tuple[str, ...]
) -> None:
    """Every node has two GPUs that others use, so a gang of four is on two nodes."""
    for node in cluster.settings.node_names:
        cluster.tell("sbatch", "--partition=plain", "--gres=gpu:2", f"--nodelist={node}", "--output=/dev/null", "--wrap=sleep 600")
    job = gang(cluster, *request_)
    done = gavel(cluster, "run", "--round", "5", "--once")
    assert done.returncode == 0, done.stderr
    assert sorted(cluster.jobs()[job].placement.values()) == [2, 2]
    assert cluster.jobs()[job].placement == decisions(log_of(cluster))[0].targets[job]
