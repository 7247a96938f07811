"""A job with a range of nodes on a real Slurm: it has all of them while it is alone, and gives them to others.

The short play is part of every run of the tests. The long ones follow a job to the end, and compare delivered time with sacct.
"""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest

import gavel_py as gp
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_accounting, needs_slurm
from tests.slurm.loopback.submitting import Work, stays, submit
from tests.slurm.loopback.test_rights import timestamp
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

PROFILE = "job_type,num_gpus,accelerator,steps_per_second\n" + "".join(
    f"elastic,{gpus},v100,{speed}\n" for gpus, speed in ((4, 4.0), (8, 7.0), (16, 12.0))
)


def test_two_jobs_share_what_one_had(submit_plugin: str) -> None:
    with booted(Settings((Nodes("v100", 2),), submit_plugin)) as cluster:
        (cluster.folder / "speeds.csv").write_text(PROFILE)
        first = elastic(cluster, "--nodes=1-2")
        with driving(cluster, "--round", "1", "--profile", str(cluster.folder / "speeds.csv")) as driver:
            driver.within_rounds(lambda: held(cluster) == {first: 8}, 15, "the job to have both nodes")
            second = elastic(cluster, "--nodes=1-2")
            driver.within_rounds(lambda: held(cluster) == {first: 4, second: 4}, 30, "each to have one")
            driver.end()


def test_numbers_in_the_comment_change_the_cpus_of_the_only_task(submit_plugin: str) -> None:
    """Slurm starts no job that has more CPUs than its tasks need by CPUs/Task."""
    with booted(Settings((Nodes("v100", 1),), submit_plugin)) as cluster:
        (cluster.folder / "speeds.csv").write_text(PROFILE + "elastic,1,v100,1.7\nelastic,2,v100,3.0\n")
        options = ("--comment=gavel: type=elastic gpus=1,2,4",)
        job = submit(cluster, Work("elastic", ("--nodes=1", "--gres=gpu:1"), options=options))
        with driving(cluster, "--round", "1", "--profile", str(cluster.folder / "speeds.csv")) as driver:
            driver.within_rounds(lambda: held(cluster) == {job: 4}, 15, "the job to have the whole node")
            assert (shown(cluster, job, "NumCPUs"), shown(cluster, job, "CPUs/Task")) == ("4", "4")
            other = submit(cluster, Work("elastic", ("--nodes=1", "--gres=gpu:1"), options=options))
            driver.within_rounds(lambda: held(cluster) == {job: 2, other: 2}, 30, "each to have a half")
            driver.end()


@needs_accounting
def test_delivered_time_agrees_with_sacct_while_sizes_change(submit_plugin: str) -> None:
    """In log, report and picture, within 2 %; a job that has had more GPUs has no larger part of its time."""
    settings = Settings((Nodes("v100", 4),), submit_plugin, options={"AccountingStorageTRES": "gres/gpu"}, accounting=True)
    with booted(settings) as cluster:
        (cluster.folder / "speeds.csv").write_text(PROFILE)
        job = elastic(cluster, "--nodes=1-4")
        with driving(cluster, "--round", "12", "--profile", str(cluster.folder / "speeds.csv")) as driver:
            driver.rounds(2)
            others = [elastic(cluster, "--nodes=1") for _ in range(2)]
            driver.within_rounds(lambda: held(cluster).keys() == {job, *others}, 4, "all to run")
            driver.rounds(2)
            cluster.tell("scancel", *map(str, others))
            driver.within_rounds(lambda: held(cluster) == {job: 16}, 4, "the job to have all GPUs again")
            driver.rounds(1)
            assert driver.end() == 0, driver.output()
        (end,) = events(log_of(cluster), "ended")
        run = gp.slurm_run(log_of(cluster))
        starts = len(stays(cluster, job))  # the accounts learn of the latest one with some delay
        until(lambda: [each[0] for each in accounted(cluster, math.inf)].count(job) == starts, "the accounts of all starts")
        stays_there = accounted(cluster, end["seconds"])
    assert {gpus for number, gpus, _ in stays_there if number == job} > {16}, "it has had several sizes"
    total = sum(gpus * seconds for _, gpus, seconds in stays_there)
    assert total > 600
    assert run.over_time is not None
    drawn = run.over_time.delivered_gpu_seconds.sum()
    for seconds in (end["delivered_gpu_seconds"], run.metrics["delivered_gpu_seconds"], drawn):
        assert seconds == pytest.approx(total, rel=0.02)
    (shares,) = run.shares.values()
    assert 0.5 < shares["v100"] <= 1.0, "parts of wall time, whichever number of GPUs"


def accounted(cluster: LoopbackCluster, end: float) -> list[tuple[int, int, float]]:
    """Return (job, GPUs, seconds) of each stay in the accounts of Slurm."""
    lines = cluster.tell("sacct", "-DXnP", "--allusers", "--format=JobID,AllocTRES,Start,End").split()
    found = []
    for number, resources, since, to in (line.split("|") for line in lines):
        gpus = re.search(r"gres/gpu=(\d+)", resources)
        if gpus is not None and since != "Unknown":
            found.append((int(number), int(gpus[1]), min(timestamp(to, end), end) - timestamp(since, end)))
    return found


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
        # While it is still ending, a release by hand would be undone at its end.
        until(lambda: cluster.jobs()[job].held and cluster.jobs()[job].state == "PENDING", "the job to wait")
        assert gavel(cluster, "release", timeout_only=True).returncode == 0
        assert cluster.jobs()[job].held, "by an administrator"
        cluster.tell("scontrol", "release", str(job))
        until(lambda: held(cluster).get(job), "Slurm to start the job by itself")
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
