"""Preempted jobs resume later, and only lose the work since their last checkpoint."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import crowd
from tests.slurm.loopback.submitting import SPEEDS, Stay, stays, steps_done

pytestmark = [needs_slurm, pytest.mark.deep, pytest.mark.slow]


def test_gangs_take_turns_until_all_are_done(cluster: LoopbackCluster) -> None:
    """36 gangs that need 25 s on the fastest type share a cluster with room for 27."""
    jobs = crowd(cluster, steps=60)
    # In shorter rounds, the starts of jobs would dominate measured throughputs.
    with driving(cluster, "--round", "8") as driver:
        driver.until(lambda: all(each.is_over for each in cluster.jobs().values()), 150, "all jobs to end")
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
    return done[-1] and len(after) <= 1 and all(stay.end is not None and stay.end - stay.begin < 1 for stay in after)


def _follow_each_other(mine: list[Stay]) -> bool:
    return all(before.end is not None and before.end <= after.begin for before, after in pairwise(mine))


def _type(stay: Stay) -> str:
    return next(iter(stay.placement)).partition("-")[0]
