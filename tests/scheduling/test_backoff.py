"""Jobs that failed wait before they are tried again, avoid the nodes where they failed, and begin anew once they have succeeded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.scheduling.jobs.waiting import MAX_BACKOFF_SECONDS, Backoffs
from tests.scheduling.schedulers import PROFILE, job, refused, scheduler, shares

SECONDS = 10.0
RETRY = 15.0


def failing(cluster: str = "v100:2/1", ids: str = "a", **options: Any) -> gp.RoundScheduler:
    """Return a scheduler in its first round, with back-offs of 15 s and rounds of 10 s."""
    options = {"round_seconds": SECONDS, "retry_seconds": RETRY} | options
    made = scheduler(cluster, [job(i, max_retries=99) for i in ids], **options)
    made.next_round()
    return made


def nodes_of(made: gp.RoundScheduler, job_id: str) -> set[str]:
    return {node for node, _ in made.running[job_id].gpus}


def test_a_back_off_doubles_up_to_an_hour() -> None:
    backoffs = Backoffs()
    lengths = []
    for _ in range(70):
        backoffs.fail("a", [], 100.0, RETRY)
        lengths.append(backoffs.by_job["a"].until_seconds - 100.0)
    assert lengths[:9] == [15, 30, 60, 120, 240, 480, 960, 1920, MAX_BACKOFF_SECONDS]
    assert set(lengths[8:]) == {MAX_BACKOFF_SECONDS}
    backoffs.fail("b", [], 0.0, 7200.0)
    assert backoffs.by_job["b"].until_seconds == 7200.0


@pytest.mark.parametrize("call", ["job_failed", "interrupted"])
def test_a_job_waits_and_starts_on_another_node(call: str) -> None:
    made = failing()
    (node,) = nodes_of(made, "a")
    getattr(made, call)("a", now_seconds=4.0)
    assert made.backoffs["a"] == gp.Backoff(1, 19.0, {node: 19.0 + 2 * SECONDS})
    assert made.start_waiting(5.0) == {}
    assert list(made.next_round(10.0).assignments) == []
    account = made.delivery_of("a")
    assert account is not None
    assert account.waits[gp.Wait.BACKOFF] == 1
    assert account.undelivered_by_reason[gp.Wait.BACKOFF] == SECONDS
    assert made.start_waiting(18.0) == {}
    started = made.start_waiting(19.0)
    assert nodes_of(made, "a") == {"v100-0", "v100-1"} - {node}
    assert list(started) == ["a"]


def test_without_the_option_a_job_is_tried_again_at_once() -> None:
    made = failing(retry_seconds=0.0)
    before = made.running
    made.job_failed("a")
    assert made.backoffs == {}
    assert made.next_round().assignments == before


def test_a_job_that_is_interrupted_without_a_failure_is_tried_again_at_once() -> None:
    made = failing()
    before = made.running
    made.interrupted("a", is_failure=False)
    assert "a" not in made.running
    assert made.backoffs == {}
    assert made.next_round().assignments == before


def test_the_time_of_a_failure_is_that_of_the_round_if_none_is_given() -> None:
    made = failing()
    made.next_round(30.0)
    made.job_failed("a")
    assert made.backoffs["a"].until_seconds == 45.0
    assert "not before the previous round" in refused(made.job_failed, "a", now_seconds=29.0)
    assert made.backoffs["a"].failures == 1


def test_a_node_is_used_again_if_no_other_can_hold_the_job() -> None:
    made = failing("v100:1,k80:1")
    made.update("a", allowed_accelerators=("v100",))
    made.next_round()
    made.interrupted("a", now_seconds=10.0)
    assert list(made.next_round(25.0).assignments) == ["a"]


def test_a_job_waits_for_another_node_while_others_take_those_that_it_avoids() -> None:
    """The other node is busy, so the job waits, and a job of less right starts on the node that it avoids."""
    made = failing("v100:2/1", "ab", policy=shares(a=1.0, b=1.0))
    (node,) = nodes_of(made, "a")
    made.interrupted("a", now_seconds=0.0)
    made.submit(job("c"))
    second = made.next_round(20.0)
    assert list(second.assignments) == ["b", "c"]
    assert nodes_of(made, "c") == {node}
    made.complete("b")
    assert list(made.start_waiting(21.0)) == ["a"]


def test_a_gang_avoids_all_nodes_on_which_it_failed() -> None:
    made = scheduler("v100:6/2", [job("a", 4, max_retries=9)], round_seconds=SECONDS, retry_seconds=RETRY)
    made.next_round()
    (other,) = {"v100-0", "v100-1", "v100-2"} - nodes_of(made, "a")
    made.job_failed("a")
    assert list(made.next_round(20.0).assignments) == ["a"], "one node cannot hold it"
    made.job_failed("a")
    made.update("a", num_gpus=2)
    assert nodes_of(made, "a") == {other} if made.next_round(60.0).assignments else False


@pytest.mark.parametrize("how", ["progress", "round"])
def test_a_success_ends_the_back_off(how: str) -> None:
    made = failing()
    made.job_failed("a")
    made.report("a", steps_done=1.0)
    assert made.backoffs["a"].failures == 1, "a late report of a job that does not run"
    made.next_round(20.0)
    assert made.running.keys() == {"a"}
    made.report("a", steps_done=1.0)
    assert made.backoffs["a"].failures == 1, "no progress since then"
    if how == "progress":
        made.report("a", steps_done=2.0)
    else:
        made.next_round(30.0)
    assert made.backoffs == {}


def test_a_job_that_leaves_has_no_back_off() -> None:
    made = failing("v100:4/1", "abc")
    for job_id in "abc":
        made.interrupted(job_id)
    made.update("c", max_retries=0)
    made.complete("a")
    made.cancel("b")
    assert not made.job_failed("c")
    assert made.backoffs == {}
    made.forget("a", "b", "c") if made.next_round() else None
    made.submit(job("a"))
    assert list(made.next_round().assignments) == ["a"]


def test_a_planned_gang_that_fails_drops_out_of_the_plan() -> None:
    made = failing("v100:2/1", "ab", policy=shares(a=1.0, b=1.0))
    assert made.plan_next().kept == ("a", "b")
    made.job_failed("a", now_seconds=4.0)
    lease = made.lease("b")
    assert lease is not None
    assert lease.renewed
    assert list(made.next_round().assignments) == ["b"]
    assert list(made.plan_next(20.0).assignments) == ["b"], "a avoids its node, and the other one is busy"
    made.next_round()
    assert list(made.next_round(40.0).assignments) == ["a", "b"], "until 19 s + 2 rounds"


def test_no_back_off_without_gpus_for_an_interrupted_job_or_faults_of_nodes() -> None:
    made = failing()
    made.node_down(nodes_of(made, "a").pop())
    made.interrupted("a")
    assert made.backoffs == {}


def test_saved_and_copied(tmp_path: Path) -> None:
    made = failing()
    (node,) = nodes_of(made, "a")
    made.job_failed("a", now_seconds=3.0)
    made.save(tmp_path / "state.json")
    for again in (gp.RoundScheduler.load(tmp_path / "state.json", PROFILE), copy.deepcopy(made)):
        assert again.retry_seconds == RETRY
        assert again.backoffs == made.backoffs
        assert again.next_round(10.0).assignments == {}
        again.next_round(20.0)
        assert nodes_of(again, "a").isdisjoint({node})


@pytest.mark.parametrize("policy", ["fifo", "shortest_job_first"])
def test_event_mode_decides_in_full_while_a_job_waits_and_by_changes_after_that(policy: str) -> None:
    jobs = [job(i, total_steps=1000, max_retries=9) for i in "abcd"]
    made = scheduler("v100:3/1", jobs, policy=policy, by_events=True, retry_seconds=RETRY)
    made.next_round(0.0)
    assert sorted(made.running) == ["a", "b", "c"]
    (node,) = nodes_of(made, "a")
    made.job_failed("a", now_seconds=1.0)
    assert "a" not in made.next_round(1.0).assignments
    made.complete("b")
    made.next_round(5.0)
    assert "a" not in made.running
    made.next_round(16.0)
    assert node not in nodes_of(made, "a")
    made.next_round(16.0 + RETRY)
    assert made.backoffs == {}
    made.complete("a")
    assert sorted(made.next_round(40.0).assignments) in (["c", "d"], ["c"])


def test_jobs_that_share_gpus() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    jobs = [gp.Job(i, job_type="ResNet-18 (batch size 16)", max_retries=9) for i in "abcd"]
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:2/1"), profile, round_seconds=SECONDS, sharing=True, retry_seconds=RETRY)
    made.submit_all(jobs)
    made.next_round()
    (node,) = nodes_of(made, "a")
    made.job_failed("a", now_seconds=0.0)
    assert "a" not in made.next_round().assignments
    for i in range(2, 8):
        round_ = made.next_round(10.0 * i)
        held = round_.assignments.get("a")
        assert held is None or i >= 4 or {name for name, _ in held.gpus} == {"v100-0", "v100-1"} - {node}
        for each, assignment in round_.assignments.items():
            for other in assignment.shared_with:
                assert each in round_.assignments[other].shared_with
    assert "a" not in made.backoffs, "it has run again"


def test_a_round_is_planned_as_it_begins_if_no_other_node_can_hold_the_job() -> None:
    made = scheduler("v100:1", retry_seconds=60.0)
    made.submit(job("a"))
    made.next_round(0.0)
    made.job_failed("a", now_seconds=10.0)
    planned = made.plan_next(360.0)
    assert list(planned.assignments) == ["a"]
    assert planned == made.plan_next() == made.next_round(360.0)
