"""Gangs run on the planned number of nodes with equal splits, for every form of request."""

from __future__ import annotations

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import log_of, round_once
from tests.slurm.loopback.logbook import decisions
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import gang
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

# {how users ask: the GPUs that their gang has on each of its nodes, where all nodes are free}
REQUESTS = {
    ("--nodes=1", "--gpus=4"): [4],
    ("--nodes=1", "--gres=gpu:3"): [3],
    ("--nodes=2", "--gres=gpu:2"): [4],
    ("--gpus=8",): [4, 4],
    ("--nodes=2", "--gres=gpu:4"): [4, 4],
    ("--nodes=3", "--gres=gpu:4"): [4, 4, 4],
}


def test_gangs_are_split_as_decided(cluster: LoopbackCluster) -> None:
    jobs = {request: gang(cluster, *request) for request in REQUESTS}
    others = [gang(cluster, "--nodes=1", "--gres=gpu:1") for _ in range(60)]
    round_once(cluster)
    seen = {job: each.placement for job, each in cluster.jobs().items() if each.placement}
    assert seen == decisions(log_of(cluster))[0].targets
    assert set(seen) == {*jobs.values(), *others}, "there is room for all"
    assert {request: sorted(seen[job].values()) for request, job in jobs.items()} == REQUESTS


def test_spread_gangs_get_two_gpus_per_node_if_no_more_are_free(cluster: LoopbackCluster) -> None:
    """Other jobs use two GPUs of every node; by default, Slurm would split gangs unevenly."""
    for node in cluster.settings.node_names:
        cluster.tell("sbatch", "--partition=plain", "--gres=gpu:2", f"--nodelist={node}", "--output=/dev/null", "--wrap=sleep 600")
    until(lambda: all(each.placement for each in cluster.jobs().values()), "the jobs of others to start")
    jobs = [gang(cluster, *request) for request in (("--gpus=8",), ("--nodes=2", "--gres=gpu:4"), ("--gpus=8",))]
    round_once(cluster)
    seen = cluster.jobs()
    assert [sorted(seen[job].placement.values()) for job in jobs] == [[2, 2, 2, 2]] * 3
    assert {job: seen[job].placement for job in jobs} == decisions(log_of(cluster))[0].targets
