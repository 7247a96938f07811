"""Preempted jobs resume later, and only lose the work since their last checkpoint."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Settings
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_accounting, needs_slurm
from tests.slurm.loopback.scenes import comment, crowd
from tests.slurm.loopback.submitting import SPEEDS, Stay, stays, steps_done
from tests.slurm.loopback.test_rights import timestamp
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]


def test_gangs_take_turns_until_all_are_done(cluster: LoopbackCluster) -> None:
    """36 gangs that need 25 s on the fastest type share a cluster with room for 27."""
    jobs = crowd(cluster, steps=60)
    # In shorter rounds, the starts of jobs would dominate measured throughputs.
    with driving(cluster, "--round", "8") as driver:
        driver.until(lambda: all(each.is_over for each in cluster.jobs().values()), "all jobs to end", within=150)
    assert {each.state for each in cluster.jobs().values()} == {"COMPLETED"}
    assert [steps_done(cluster, job) for job in jobs] == [60] * len(jobs)
    runs = {job: stays(cluster, job) for job in jobs}
    assert all(_ends_once(mine) for mine in runs.values()), runs
    assert all(_follow_each_other(mine) for mine in runs.values())
    assert any(len(mine) > 1 for mine in runs.values()), "nobody was preempted"
    assert any(len({_type(stay) for stay in mine}) > 1 for mine in runs.values()), "nobody changed the GPU type"
    assert_measured_speeds_are_true(cluster)


def assert_measured_speeds_are_true(cluster: LoopbackCluster) -> None:
    """Steps and times are those of whole stays, including some seconds of start."""
    measured = [speed for event in events(log_of(cluster), "measured") for speed in event["speeds"]]
    assert {name for _, _, name, _ in measured} == set(SPEEDS)
    assert all(0.4 < speed / SPEEDS[name] < 1.1 for _, _, name, speed in measured), measured


def _ends_once(mine: list[Stay]) -> bool:
    """A job stopped while it was ending, before Slurm knew, starts once more and has nothing left to do."""
    done = [stay.done for stay in mine]
    after = mine[done.index(True) + 1 :]
    return done[-1] and len(after) <= 1 and all(stay.end is not None and stay.left <= 0 for stay in after)


def _follow_each_other(mine: list[Stay]) -> bool:
    return all(before.end is not None and before.end <= after.begin for before, after in pairwise(mine))


def _type(stay: Stay) -> str:
    return next(iter(stay.placement)).partition("-")[0]


@needs_accounting
def test_at_most_2_percent_of_gpu_time_is_lost_to_preemption(settings: Settings) -> None:
    """45 equal jobs on 108 GPUs in 10 rounds, with the defaults for turns, by the accounts of Slurm."""
    words = ["--parsable", "--partition=gavel", "--gpus=2", "--nodes=1", "--output=/dev/null", "--chdir=/", comment(1e7)]
    with booted(replace(settings, accounting=True)) as cluster:
        jobs = [cluster.tell("sbatch", *words, "--wrap=exec sleep 900").strip() for _ in range(45)]
        with driving(cluster, "--round", "10", without=("--restart-seconds", "--min-run-seconds")) as driver:
            driver.rounds(1)
            driver.until(lambda: len(cluster.running()) == 45, "all jobs to run")
            driver.rounds(10)
            until(lambda: len(cluster.running()) == 45, "all jobs to run at the end")
            assert driver.end() == 0, driver.output()
        lines = cluster.tell("sacct", "-DXnP", f"-j{','.join(jobs)}", "--format=JobIDRaw,Start,End").split()
        now = time.time()
    runs: dict[str, list[tuple[float, float]]] = {job: [] for job in jobs}
    for job, start, end in (line.split("|") for line in lines):
        if start not in {"Unknown", "None"}:
            runs[job].append((timestamp(start, now), timestamp(end, now)))
    total = sum(now - min(mine)[0] for mine in runs.values())
    lost = sum(max(0.0, after[0] - before[1]) for mine in runs.values() for before, after in pairwise(sorted(mine)))
    preemptions = sum(len(mine) - 1 for mine in runs.values())
    assert total > 45 * 80
    assert lost <= 0.02 * total, f"{preemptions} preemptions, {lost:.0f} of {total:.0f} s"
