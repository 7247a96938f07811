"""Rounds planned ahead: leases that are renewed hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import gavel_py as gp
from tests.scheduling.schedulers import job, line, refused, scheduler, shares


def running(**options: object) -> gp.RoundScheduler:
    """a, b and c on three GPUs, in their first round."""
    made = scheduler("v100:3/3", [job(i) for i in "abc"], policy=shares(a=1.0, b=1.0, c=1.0), round_seconds=10, **options)
    made.next_round()
    return made


def test_a_lease_is_renewed_or_not_once_the_next_round_is_planned() -> None:
    made = running()
    before = made.lease("a")
    assert before == gp.Lease(made.running["a"], 10.0)
    made.policy = shares(a=1.0, b=1.0, d=1.0)
    made.submit(job("d"))
    coming = made.plan_next()
    assert coming.kept == ("a", "b")
    assert made.lease("a") == gp.Lease(made.running["a"], 20.0, renewed=True)
    assert made.lease("c") == gp.Lease(made.running["c"], 10.0, renewed=False)
    assert made.lease("d") is None
    assert made.next_round() == coming


def test_planning_again_changes_nothing() -> None:
    made = running()
    first = made.plan_next()
    assert made.plan_next() == made.plan_next(15) == first
    assert made.next_round() == first
    assert first.index == 1
    assert made.plan_next().index == 2


def test_what_happens_after_the_plan_counts_for_the_round_after() -> None:
    made = running()
    coming = made.plan_next()
    made.policy = shares(d=1.0)
    made.submit(job("d", 3))
    made.update("a", weight=5.0)
    made.report("b", steps_done=5)
    assert made.plan_next() == coming
    assert line([made.next_round(), made.next_round()]) == ["abc", "d"]


def test_rounds_planned_ahead_are_the_rounds_that_are_not() -> None:
    jobs = [job("a", 2), job("b"), job("c"), job("d", 3)]
    plain, ahead = (scheduler("v100:4/2,k80:2/2", jobs, round_seconds=10) for _ in range(2))
    for _ in range(12):
        expected = plain.next_round()
        assert ahead.plan_next() == expected
        assert ahead.next_round() == expected
    assert plain.delivery() == ahead.delivery()


def test_a_round_that_starts_late_is_the_one_that_was_planned() -> None:
    made = running()
    coming = made.plan_next()
    late = made.next_round(12.5)
    assert late.assignments == coming.assignments
    assert (coming.start_seconds, late.start_seconds, late.end_seconds) == (10, 12.5, 22.5)
    assert "not before the previous round" in refused(made.plan_next, 12)


def test_a_node_that_fails_after_the_plan_breaks_the_leases_there_and_no_others() -> None:
    made = scheduler("v100:2/1", [job("a"), job("b")], policy=shares(a=1.0, b=1.0))
    made.next_round()
    made.plan_next()
    made.node_down("v100-0")
    assert made.lease("a") is None
    assert made.plan_next().kept == ("b",)
    round_ = made.next_round()
    assert (round_.kept, round_.started, round_.preempted) == (("b",), (), ("a",))


def test_gpus_that_become_free_after_the_plan_are_offered_when_the_round_starts() -> None:
    made = scheduler("v100:2/1", [job("a"), job("b"), job("c")], policy=shares(a=1.0, b=1.0))
    made.next_round()
    assert made.plan_next().kept == ("a", "b")
    made.complete("a")
    round_ = made.next_round()
    assert (round_.kept, round_.started) == (("b",), ("c",))


def test_offering_freed_gpus_moves_no_planned_gang() -> None:
    made = scheduler("v100:2/1", [job(i) for i in "abcd"], policy=shares(a=1.0, b=1.0))
    made.next_round()
    assert made.plan_next().kept == ("a", "b")

    def last_first(demand: gp.scheduling.RoundDemand) -> NDArray[np.int64]:
        rows = np.flatnonzero(demand.runnable[:, 0])[-int(demand.capacities[0]) :]
        return np.where(np.isin(np.arange(len(demand.num_gpus)), rows), 0, -1)

    made.mechanism = last_first
    made.cancel("a")
    assert made.next_round().assignments.keys() == {"b", "d"}
    assert made.next_round().assignments.keys() == {"c", "d"}


def test_a_job_that_finishes_after_the_plan_does_not_run() -> None:
    made = scheduler("v100:2/1", [job("a", total_steps=10), job("b")])
    made.next_round()
    made.plan_next()
    made.report("a", steps_done=10)
    round_ = made.next_round()
    assert (line([round_]), round_.preempted) == (["b"], ())
    assert set(made.next_round().excluded) == {"a"}


def test_a_job_that_fails_after_the_plan_restarts_in_its_place() -> None:
    made = running()
    made.plan_next()
    made.job_failed("a")
    round_ = made.next_round()
    assert (round_.started, round_.kept) == (("a",), ("b", "c"))


def test_a_gang_that_changes_its_size_after_the_plan_waits_for_the_round_after() -> None:
    made = running()
    made.plan_next()
    made.update("a", num_gpus=2)
    round_ = made.next_round()
    assert (round_.kept, round_.preempted) == (("b", "c"), ("a",))
    made.complete("b")
    assert len(made.next_round().assignments["a"].gpus) == 2


def test_what_was_planned_for_a_job_that_left_is_not_promised_to_it() -> None:
    made = running()
    made.plan_next()
    made.cancel("a")
    made.next_round()
    account = made.delivery().jobs["a"]
    assert (account.promised_seconds, account.delivered_seconds) == (10, 10)
