"""Changes of jobs and nodes between a reading of the driver and its actions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import driving, log_of, round_once
from tests.slurm.loopback.logbook import Decision, decisions
from tests.slurm.loopback.meddling import Meddler
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import crowd, faster_are_ahead, finish
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

SHORT_FIRST = ("--policy", "shortest_job_first")


def jobs_leave_and_change(cluster: LoopbackCluster, decision: Decision) -> set[int]:
    """Of the jobs to preempt, one ends and one is cancelled; one to move ends; of those to start, one is cancelled, one changed."""
    preempted, moved, new = preferences_of(decision)
    finish(cluster, preempted[0], moved[0])
    cluster.tell("scancel", str(preempted[1]), str(new[0]))
    cluster.tell("scontrol", "update", f"JobId={new[1]}", "Gres=gpu:1")
    until(lambda: over(cluster) == {preempted[0], moved[0], preempted[1], new[0]}, "the jobs to end")
    return over(cluster) | {new[1]}


def nodes_drain_and_fail(cluster: LoopbackCluster, decision: Decision) -> set[int]:
    """The target node of a start drains; the target node of a move fails together with its current job."""
    _, moved, new = preferences_of(decision)
    (drained,), (failed,) = decision.start[new[0]], decision.start[moved[0]]
    there = {job for job, each in cluster.jobs().items() if failed in each.placement}
    cluster.tell("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
    cluster.tell("scontrol", "update", f"NodeName={failed}", "State=DOWN", "Reason=test")
    return {new[0], moved[0]} | there


def preferences_of(decision: Decision) -> tuple[list[int], list[int], list[int]]:
    """Return the jobs to preempt, to move, and to start."""
    stop, start = decision.stop, decision.start.keys()
    return sorted(stop - start), sorted(stop & start), sorted(start - stop)


@pytest.mark.parametrize("happen", [jobs_leave_and_change, nodes_drain_and_fail])
def test_only_the_affected_jobs_differ_from_the_plan(
    cluster: LoopbackCluster, happen: Callable[[LoopbackCluster, Decision], set[int]]
) -> None:
    jobs = crowd(cluster, 27)
    round_once(cluster, *SHORT_FIRST)
    until(lambda: faster_are_ahead(cluster), "the jobs on faster GPUs to have done more than all others")
    jobs += crowd(cluster, 9, steps=1e5)
    meddler = Meddler(cluster)
    meddler.pause("before-change-1")
    with driving(cluster, "--round", "3", "--once", *SHORT_FIRST, tools=meddler.folder) as driver:
        meddler.wait_for_pause()
        decision = decisions(log_of(cluster))[-1]
        assert [len(kind) for kind in preferences_of(decision)] == [9, 18, 9]
        touched, ended = happen(cluster, decision), over(cluster)
        meddler.go_on()
        assert driver.wait(within=120) == 0, driver.output()
    seen = cluster.jobs()
    assert set(seen) == set(jobs)
    assert {job: seen[job].placement for job in jobs if job not in touched} == {
        job: decision.targets.get(job, {}) for job in jobs if job not in touched
    }
    round_once(cluster, *SHORT_FIRST)
    all_as_decided(cluster)
    assert over(cluster) == ended, "what is over stays over"


def over(cluster: LoopbackCluster) -> set[int]:
    return {job for job, each in cluster.jobs().items() if each.is_over}


def all_as_decided(cluster: LoopbackCluster) -> None:
    """Assert that exactly the planned jobs run, and that no usable node and no job is left out."""
    decision, seen = decisions(log_of(cluster))[-1], cluster.jobs()
    running = {job: each.placement for job, each in seen.items() if each.placement}
    assert running == decision.targets
    up = [node for node, state in cluster.node_states().items() if state in {"alloc", "mix", "idle"}]
    alive = [job for job, each in seen.items() if not each.is_over]
    assert len(running) >= min(len(up), len(alive)), (cluster.node_states(), seen)
