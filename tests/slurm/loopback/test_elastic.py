"""A job with a range of nodes on a real Slurm: it has all of them while it is alone, and gives them to others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.submitting import Work, stays, submit
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.slow, pytest.mark.deep]

PROFILE = "job_type,num_gpus,accelerator,steps_per_second\n" + "".join(
    f"elastic,{gpus},v100,{speed}\n" for gpus, speed in ((4, 4.0), (8, 7.0), (16, 12.0))
)


def test_a_job_grows_and_shrinks_and_gets_its_range_back(submit_plugin: str) -> None:
    with booted(Settings((Nodes("v100", 4),), submit_plugin)) as cluster:
        (cluster.folder / "speeds.csv").write_text(PROFILE)
        job = elastic(cluster, "--nodes=1-4", "--ntasks-per-node=2")
        with driving(cluster, "--round", "2", "--profile", str(cluster.folder / "speeds.csv")) as driver:
            driver.within_rounds(lambda: held(cluster).get(job) == 16, 15, "the job to have all GPUs")
            assert shown(cluster, job, "NumTasks") == "8"
            others = [elastic(cluster, "--nodes=1") for _ in range(2)]
            driver.within_rounds(lambda: set(others) <= held(cluster).keys(), 25, "the others to run")
            driver.within_rounds(lambda: 0 < held(cluster).get(job, 0) < 16, 25, "the job to run on fewer nodes")
            cluster.tell("scancel", *map(str, others))
            driver.within_rounds(lambda: held(cluster).get(job) == 16, 25, "the job to have all GPUs again")
            driver.end()
        assert all(set(stay.placement.values()) == {4} for stay in stays(cluster, job))
        assert {len(stay.placement) for stay in stays(cluster, job)} > {4}, "it has run on fewer nodes, too"
        cluster.tell("scontrol", "requeuehold", str(job))
        until(lambda: cluster.jobs()[job].held, 30, "the job to wait")
        assert gavel(cluster, "release", timeout_only=True).returncode == 0
        until(lambda: held(cluster).get(job), 60, "Slurm to start the job by itself")
        assert shown(cluster, job, "ReqNodeList") == "(null)"
        assert (shown(cluster, job, "NumNodes"), shown(cluster, job, "NumTasks")) == ("1", "2")


def elastic(cluster: LoopbackCluster, *request: str) -> int:
    return submit(cluster, Work("elastic", (*request, "--gres=gpu:4"), options=("--comment=gavel: type=elastic",)))


def held(cluster: LoopbackCluster) -> dict[int, int]:
    """Return the GPUs of each running job; no GPU has two jobs."""
    places = {number: each.placement for number, each in cluster.jobs().items() if each.placement}
    used = Counter[str]()
    for placement in places.values():
        used.update(placement)
    assert max(used.values(), default=0) <= 4
    return {number: sum(placement.values()) for number, placement in places.items()}


def shown(cluster: LoopbackCluster, job: int, name: str) -> str:
    """Return a field of a job as scontrol shows it."""
    words = cluster.tell("scontrol", "--oneliner", "show", "job", str(job)).split()
    return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))
