"""The driver is killed before, after and within each of its commands; the next one continues."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import replace
from itertools import count, pairwise

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel, log_of, round_once
from tests.slurm.loopback.logbook import decisions, events
from tests.slurm.loopback.meddling import Meddler
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import crowd, faster_are_ahead, finish, gang
from tests.slurm.loopback.submitting import stays
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

SHORT_FIRST = ("--policy", "shortest_job_first")


@pytest.mark.parametrize("way", ["before", "after", "halfway"])
def test_at_every_change(cluster: LoopbackCluster, way: str) -> None:
    """Each round starts shorter jobs than the one before and stops others; each driver is killed at a later change."""
    jobs = crowd(cluster, 27)
    round_once(cluster, *SHORT_FIRST)
    for number in count(1):
        jobs += crowd(cluster, 3, steps=1e6 / number)
        code = gavel(cluster, "run", "--round", "3", "--once", *SHORT_FIRST, tools=killing(cluster, way, number).folder).returncode
        assert {job: each.is_over for job, each in cluster.jobs().items()} == dict.fromkeys(jobs, False)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert number > 3, "a round that stops and starts jobs has three changes or more"
    goes_on(cluster, jobs)


def test_at_any_time(cluster: LoopbackCluster) -> None:
    draws = random.Random(7)  # noqa: S311
    jobs = crowd(cluster)
    for number in range(1, 6):
        with driving(cluster, "--round", "1", *SHORT_FIRST) as driver:
            driver.until(lambda: len(events(log_of(cluster), "begun")) == number, "the driver to begin")  # noqa: B023
            time.sleep(draws.uniform(0.0, 4.0))
            assert driver.process.poll() is None, driver.output()
            driver.process.kill()
        jobs += crowd(cluster, 2, steps=1e6 / number)
        assert {job: each.is_over for job, each in cluster.jobs().items()} == dict.fromkeys(jobs, False)
    goes_on(cluster, jobs)


def test_without_the_plugin_and_with_its_state_lost(settings: Settings) -> None:
    """Jobs that wait for the killed driver are annotated in Slurm."""
    with booted(replace(settings, submit_plugin="")) as cluster:
        jobs = crowd(cluster, 27)
        until(lambda: len([job for job, each in cluster.jobs().items() if each.placement]) == 27, "Slurm to start the jobs")
        until(lambda: faster_are_ahead(cluster), "the jobs on faster GPUs to have done more than all others")
        jobs += crowd(cluster, 9, steps=1e5)
        tools = killing(cluster, "after", 1).folder
        assert gavel(cluster, "run", "--round", "3", "--once", *SHORT_FIRST, tools=tools).returncode == -signal.SIGKILL
        (log_of(cluster).parent / "state.json").unlink()
        until(lambda: not any(each.placement for each in cluster.jobs().values()), "the jobs to stop")
        goes_on(cluster, jobs)


@pytest.mark.parametrize("moment", ["before-lease-1", "after-lease-1", "before-lease-2", "after-lease-2"])
def test_while_it_takes_its_lease(settings: Settings, moment: str) -> None:
    """The next driver takes over what there is of it, and one lease is left."""
    with booted(replace(settings, nodes=(Nodes("v100", 1),), leased=False)) as cluster:
        meddler = Meddler(cluster)
        meddler.kill(moment)
        assert gavel(cluster, "run", "--round", "3", "--once", tools=meddler.folder).returncode == -signal.SIGKILL
        round_once(cluster)
        jobs = {gang(cluster, "--gpus=4") for _ in range(2)}
        round_once(cluster)
        seen = cluster.jobs()
        assert len([job for job in jobs if seen[job].placement]) == 1
        assert len([job for job in jobs if seen[job].bound]) == 1
        assert [each.state for each in cluster.leases().values()] == ["PENDING"]


def killing(cluster: LoopbackCluster, way: str, number: int) -> Meddler:
    meddler = Meddler(cluster, f"tools-{number}")
    if way == "halfway":
        meddler.cut(f"change-{number}")
    else:
        meddler.kill(f"{way}-change-{number}")
    return meddler


def goes_on(cluster: LoopbackCluster, jobs: list[int]) -> None:
    """Assert that the next round is as planned and leaves no node empty, and that all jobs end once without overlap."""
    round_once(cluster, *SHORT_FIRST)
    seen = {job: each.placement for job, each in cluster.jobs().items() if each.placement}
    assert seen == decisions(log_of(cluster))[-1].targets
    assert len(seen) == 27
    while running := [job for job, each in cluster.jobs().items() if each.placement]:
        finish(cluster, *running)
        until(lambda: all(cluster.jobs()[job].is_over for job in running), "the jobs to end")
        round_once(cluster, *SHORT_FIRST)
    assert {each.state for each in cluster.jobs().values()} == {"COMPLETED"}
    for job in jobs:
        mine = stays(cluster, job)
        assert [stay.done for stay in mine] == [False] * (len(mine) - 1) + [True], mine
        assert all(before.end is not None and before.end <= after.begin for before, after in pairwise(mine)), mine
