"""Reasons for waiting: for each round, per job and in total."""

from __future__ import annotations

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.scheduling.commit import waits_of
from gavel_py.scheduling.delivery import WAITS


def scheduler(jobs: list[gp.Job], *nodes: int, rack: str | None = None) -> gp.RoundScheduler:
    cluster = gp.Cluster([gp.Node(name=f"n{i}", accelerator="v100", num_gpus=n, rack=rack) for i, n in enumerate(nodes)])
    ids = [job.job_id for job in jobs]
    made = gp.RoundScheduler(cluster, gp.ThroughputProfile.from_matrix([[1.0]] * len(ids), job_ids=ids, accelerators=["v100"]))
    for job in jobs:
        made.submit(job)
    return made


def test_the_first_reason_that_holds_counts() -> None:
    claims = np.array([[0.5, 0.0], [0.5, 0.5], [0.5, 0.0], [0.5, 0.0], [0.0, 0.5], [-1.0, 0.0], [0.5, 0.0]])
    ran = np.array([False] * 6 + [True])
    open_types = np.array([[True, True]] * 4 + [[True, False]] + [[True, True]] * 2)
    sizes = np.array([1, 4, 4, 2, 1, 1, 1])
    new = np.array([True] + [False] * 6)
    told = waits_of(claims, ran, open_types, np.array([2.0, 0.0]), sizes, new)
    assert [WAITS[code] if code >= 0 else None for code in told.tolist()] == [
        gp.Wait.NEW, gp.Wait.GANG, gp.Wait.GANG, gp.Wait.PLACE, gp.Wait.NODE, None, None
    ]  # fmt: skip
    assert WAITS[int(waits_of(claims, ran, open_types, np.zeros(2), sizes, new)[1])] is gp.Wait.TURN


def test_two_jobs_on_one_gpu_wait_for_their_turns() -> None:
    made = scheduler([gp.Job("a"), gp.Job("b")], 1)
    for _ in range(6):
        made.next_round()
    waits = [job.waits for job in made.delivery().jobs.values()]
    assert sum(each.get(gp.Wait.NEW, 0) for each in waits) == 1
    assert sum(each.get(gp.Wait.TURN, 0) for each in waits) >= 2


def test_a_gang_waits_for_enough_gpus() -> None:
    """Two gangs of 2 on 3 GPUs take turns, and one GPU is always free."""
    jobs = [gp.Job("a", num_gpus=2), gp.Job("b", num_gpus=2)]
    made = scheduler(jobs, 3)
    for _ in range(5):
        made.next_round()
    report = made.delivery()
    assert sum(job.waits.get(gp.Wait.GANG, 0) for job in report.jobs.values()) >= 1
    assert sum(report.undelivered_by_reason.values()) == pytest.approx(report.undelivered_gpu_seconds, abs=1e-6)


def test_what_cannot_be_delivered_may_be_promised_as_published() -> None:
    jobs = [gp.Job("a", num_gpus=2), gp.Job("b", num_gpus=2)]
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 3}), speeds, whole_gangs=False)
    for job in jobs:
        made.submit(job)
    for _ in range(20):
        made.next_round()
    report = made.delivery()
    assert report.undelivered_share == pytest.approx(1 / 3, abs=0.01)
    assert max(report.undelivered_by_reason, key=lambda reason: report.undelivered_by_reason[reason]) is gp.Wait.GANG


def test_a_node_that_is_down_is_named() -> None:
    made = scheduler([gp.Job("a", num_gpus=2)], 2)
    made.next_round()
    made.node_down("n0")
    for _ in range(3):
        made.next_round()
    account = made.delivery().jobs["a"]
    assert account.why is gp.Wait.NODE
    assert account.to_dict()["waits"] == {"node": account.waits[gp.Wait.NODE]}


def test_the_reason_of_the_latest_round_is_that_of_now_and_not_the_most_frequent() -> None:
    made = scheduler([gp.Job("a"), gp.Job("b")], 1, 1)
    assert made.wait_of("a") is None
    made.next_round()
    assert [made.wait_of(job_id) for job_id in ("a", "b", "unknown")] == [None, None, None]
    made.node_down("n1")
    waits = []
    for _ in range(7):  # turns on the GPU that is left
        (held,) = made.next_round().assignments
        assert made.wait_of(held) is None
        waits.append(made.wait_of("b" if held == "a" else "a"))
    assert set(waits) == {None, gp.Wait.TURN}  # a job that is ahead of its promise is owed nothing
    made.node_down("n0")
    made.next_round()
    assert [made.wait_of(job_id) for job_id in ("a", "b")] == [gp.Wait.NODE, gp.Wait.NODE]
    account = made.delivery_of("a")
    assert account is not None
    assert account.waits[gp.Wait.TURN] > account.waits[gp.Wait.NODE]
    made.cancel("b")
    assert made.wait_of("b") is None
    made.node_up("n0")
    made.node_up("n1")
    made.next_round()
    assert made.wait_of("a") is None


def test_a_job_that_starts_between_rounds_waits_no_longer() -> None:
    made = scheduler([gp.Job("a"), gp.Job("b")], 1)
    (held,) = made.next_round().assignments
    (other,) = {"a", "b"} - {held}
    assert made.wait_of(other) is gp.Wait.NEW
    made.complete(held)
    assert list(made.start_waiting(60.0)) == [other]
    assert made.wait_of(other) is None


def test_a_job_that_can_run_nowhere_does_not_wait() -> None:
    made = scheduler([gp.Job("a"), gp.Job("b")], 1)
    (held,) = made.next_round().assignments
    (other,) = {"a", "b"} - {held}
    assert made.wait_of(other) is gp.Wait.NEW
    made.update(other, num_gpus=2)
    assert other in made.next_round().excluded
    assert made.wait_of(other) is None
