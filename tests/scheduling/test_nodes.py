"""Nodes that fail, are drained and come back, and single GPUs that are lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gavel_py as gp
from tests.scheduling.schedulers import PROFILE, job, line, refused, scheduler, shares
from tests.scheduling.test_scheduler import Recorder
from tests.support.examples import examples


def used(round_: gp.Round) -> set[str]:
    """Return the nodes on which jobs run."""
    return {node for held in round_.assignments.values() for node, _ in held.gpus}


def two_nodes(**options: Any) -> gp.RoundScheduler:
    """Two jobs on a node of one GPU each, a on v100-0 and b on v100-1."""
    made = scheduler("v100:2/1", [job("a"), job("b")], round_seconds=10, **options)
    made.next_round()
    return made


def test_the_gangs_of_a_node_that_is_down_are_preempted_now() -> None:
    made = two_nodes()
    assert made.node_down("v100-0") == ("a",)
    assert list(made.running) == ["b"]
    assert made.node_down("v100-0") == ()
    round_ = made.next_round()
    assert used(round_) == {"v100-1"}
    assert set(round_.preempted) == {"a", "b"} - set(round_.assignments)


def test_a_gang_on_a_node_that_was_down_restarts_even_in_its_place() -> None:
    made = two_nodes()
    made.node_down("v100-0")
    made.node_up("v100-0")
    round_ = made.next_round()
    assert (round_.kept, round_.started, round_.preempted) == (("b",), ("a",), ())


def test_the_round_in_which_a_node_was_lost_is_not_delivered() -> None:
    made = two_nodes()
    made.node_down("v100-0")
    jobs = made.delivery().jobs
    assert (jobs["a"].delivered_seconds, jobs["a"].undelivered_seconds) == (0, 10)
    assert (jobs["b"].delivered_seconds, jobs["b"].undelivered_seconds) == (10, 0)
    recorder = Recorder()
    made.policy = recorder
    made.next_round()
    assert recorder.seen[-1].attained_gpu_seconds.tolist() == [0, 10]


def test_deficits_on_a_type_that_is_down_are_kept() -> None:
    owed: list[list[float]] = []

    def told(demand: gp.scheduling.RoundDemand) -> NDArray[np.int64]:
        owed.append(demand.deficits[:, 0].tolist())
        return gp.scheduling.choose_jobs(demand)

    made = scheduler("v100:1,k80:1", [job("a"), job("b")], round_seconds=10, mechanism=told)
    for change in (lambda _: None, made.node_down, lambda _: None, made.node_up):
        change("v100-0")
        owed.clear()
        made.next_round()
        if made.nodes["v100-0"] is gp.NodeState.DOWN:
            assert owed[0] == [0, 0]
    # Each was promised half of the first round, which was not delivered; nothing was promised while the node was down.
    assert owed[0] == pytest.approx([0.5, 0.5])


def test_a_draining_node_is_empty_after_the_round_and_its_leases_are_not_renewed() -> None:
    made = two_nodes()
    made.drain("v100-0")
    assert set(made.running) == {"a", "b"}
    made.plan_next()
    leases = {job_id: made.lease(job_id) for job_id in ("a", "b")}
    assert leases["a"] is not None
    assert leases["a"].renewed is False
    assert used(made.next_round()) == {"v100-1"}
    assert made.delivery().jobs["a"].delivered_seconds >= 10


def test_a_renewed_lease_on_a_draining_node_holds_for_that_round() -> None:
    made = two_nodes()
    made.plan_next()
    made.drain("v100-0")
    assert used(made.next_round()) == {"v100-0", "v100-1"}
    assert used(made.next_round()) == {"v100-1"}


def test_no_gang_starts_on_a_draining_node() -> None:
    made = scheduler("v100:2/1", [job("a"), job("b")], policy=shares(a=1.0, b=1.0))
    made.plan_next()
    made.drain("v100-0")
    assert used(made.next_round()) == {"v100-1"}


def test_normalisers_stay_those_of_the_whole_cluster() -> None:
    recorder = Recorder()
    made = scheduler("v100:2/1,k80:2/1", [job("a")], policy=recorder)
    made.next_round()
    made.node_down("v100-0")
    made.next_round()
    before, after = recorder.seen
    assert after.capacities.tolist() == [1, 2]
    assert after.equal_share == pytest.approx(before.equal_share)


def test_the_allocation_is_solved_again_only_when_nodes_change() -> None:
    recorder = Recorder()
    made = scheduler("v100:3/1", [job("a")], policy=recorder)
    made.next_round()
    changes = (partial(made.node_down, "v100-0"), partial(made.gpu_lost, "v100-1", 0), partial(made.node_up, "v100-0"))
    for change in (*changes, partial(made.gpu_back, "v100-1", 0)):
        for _ in range(3):
            change()
            made.next_round()
    assert [seen.capacities.tolist() for seen in recorder.seen] == [[3], [2], [1], [2], [3]]


def test_a_job_that_fits_only_where_a_node_is_down_waits_with_the_reason_and_comes_back() -> None:
    cluster = gp.Cluster([gp.Node(name=n, accelerator="v100", num_gpus=g) for n, g in (("big", 4), ("s1", 2), ("s2", 2))])
    made = gp.RoundScheduler(cluster, PROFILE)
    made.submit(job("wide", 4, locality="node"))
    made.submit(job("any", 4))
    assert made.next_round().assignments["wide"].gpus[0][0] == "big"
    made.node_down("big")
    round_ = made.next_round()
    assert list(round_.assignments) == ["any"]
    reason = "node big is down: its gang of 4 GPUs fits nowhere (largest gang that fits: v100: 2)"
    assert round_.excluded == {"wide": reason}
    made.node_up("big")
    assert made.next_round().excluded == {}


def test_a_cluster_that_is_all_down_and_one_that_is_all_back() -> None:
    made = scheduler("v100:2/1", [job("a")])
    made.next_round()
    made.node_down("v100-0")
    made.drain("v100-1")
    round_ = made.next_round()
    assert (round_.assignments, round_.preempted) == ({}, ("a",))
    assert round_.excluded == {"a": "node v100-1 is draining, node v100-0 is down: the cluster has no GPUs"}
    made.node_up("v100-0")
    assert line([made.next_round()]) == ["a"]


def test_a_lost_gpu_takes_its_gang_with_it_and_no_other() -> None:
    made = scheduler("v100:4/4", [job("a", 2), job("b"), job("c")])
    held = made.next_round().assignments
    node, index = held["a"].gpus[0]
    assert made.gpu_lost(node, index) == ("a",)
    assert made.gpu_lost(node, index) == ()
    assert made.lost_gpus == ((node, index),)
    round_ = made.next_round()
    assert (node, index) not in {gpu for each in round_.assignments.values() for gpu in each.gpus}
    made.gpu_back(node, index)
    assert set(made.next_round().assignments) == {"a", "b", "c"}


def test_lost_gpus_stay_lost_when_their_node_is_back() -> None:
    made = scheduler("v100:2/2", [job("a", 2)])
    made.gpu_lost("v100-0", 1)
    made.node_down("v100-0")
    made.node_up("v100-0")
    assert made.next_round().excluded["a"].startswith("GPU 1 of node v100-0 is lost: its gang of 2 GPUs fits nowhere")


def test_what_must_hold_and_cannot_with_the_gpus_left_is_named_and_changes_nothing() -> None:
    fast = [gp.MinThroughput(job=each, rate=3.0) for each in "ab"]
    made = scheduler("v100:2/1", [job("a"), job("b")], policy=gp.resolve_policy("max_min_fairness", constraints=fast))
    made.next_round()
    made.node_down("v100-0")
    running = made.running
    for _ in range(2):
        with pytest.raises(gp.ConflictError, match="the throughput of 3 steps/s for job 'a'"):
            made.next_round()
        assert (made.running, len(made.jobs)) == (running, 2)
    made.node_down("v100-1")
    with pytest.raises(gp.ConflictError, match="job 'a': the job gets no time, nodes v100-0, v100-1 are down"):
        made.next_round()
    made.node_up("v100-0")
    made.node_up("v100-1")
    round_ = made.next_round()
    assert (round_.index, line([round_])) == (1, ["ab"])


def test_the_state_of_all_nodes_can_be_asked_for() -> None:
    made = scheduler("v100:3/1")
    made.node_down("v100-0")
    made.drain("v100-1")
    assert made.nodes == {"v100-0": gp.NodeState.DOWN, "v100-1": gp.NodeState.DRAINING, "v100-2": gp.NodeState.UP}


def test_names_and_numbers_that_there_are_not_are_refused() -> None:
    made = scheduler("v100:2/1")
    for call in (made.node_down, made.drain, made.node_up, partial(made.gpu_lost, index=0), partial(made.gpu_back, index=0)):
        with pytest.raises(gp.UnknownNameError, match=r"field node: 'v100-9' is not in the cluster; did you mean"):
            call("v100-9")
    for index in (-1, 1, True, "0", 0.0):
        assert "node 'v100-0', field index of the GPU: must be a whole number from 0 to 0" in refused(
            made.gpu_lost, "v100-0", index
        )
    assert made.gpu_lost("v100-0", np.int64(0)) == ()
    assert made.nodes["v100-0"] is gp.NodeState.UP


# What other work uses


def with_cpus(cpus: list[float], jobs: list[gp.Job], **options: Any) -> gp.RoundScheduler:
    """Nodes of 4 GPUs each, with these CPUs."""
    cluster = gp.Cluster(gp.Node(name=f"n{i}", accelerator="v100", num_gpus=4, cpus=each) for i, each in enumerate(cpus))
    made = gp.RoundScheduler(cluster, PROFILE, round_seconds=10, **options)
    made.submit_all(jobs)
    return made


def test_gangs_start_only_where_other_work_leaves_their_cpus() -> None:
    jobs = [job(f"j{i}", num_gpus=2, cpus_per_gpu=4.0, total_steps=1e9) for i in range(3)]
    made = with_cpus([16, 16], jobs)
    made.reserve("n0", cpus=9)
    first = made.next_round()
    assert {job_id: {node for node, _ in held.gpus} for job_id, held in first.assignments.items()} == {"j0": {"n1"}, "j1": {"n1"}}
    loaded = gp.RoundScheduler.from_dict(made.to_dict(), PROFILE)
    for each in (made, loaded):
        assert used(each.next_round()) == {"n1"}
        each.reserve("n0", cpus=8)  # 8 are enough for one gang of 2
        assert len(each.next_round().assignments) == 3
        each.reserve("n0")
        assert each.next_round().assignments.keys() == {"j0", "j1", "j2"}
    assert made.next_round() == loaded.next_round()


def test_gangs_start_only_where_other_work_leaves_their_memory() -> None:
    """On nodes that state only their memory: of 64 GB each, a gang needs 32."""
    cluster = gp.Cluster(gp.Node(name=f"n{i}", accelerator="v100", num_gpus=4, memory_gb=64) for i in range(2))
    made = gp.RoundScheduler(cluster, PROFILE, round_seconds=10)
    made.submit_all([job(f"j{i}", num_gpus=2, memory_gb_per_gpu=16.0, total_steps=1e9) for i in range(3)])
    made.reserve("n0", memory_gb=33)
    assert used(made.next_round()) == {"n1"}
    made.reserve("n0", memory_gb=32)
    assert used(made.next_round()) == {"n0", "n1"}


def test_gpus_of_a_node_that_returned_after_the_round_was_planned_count_as_offered_if_jobs_use_them() -> None:
    made = scheduler("v100:2/1", [job(i) for i in "abcd"], round_seconds=10)
    made.node_down("v100-1")
    made.next_round()
    planned = made.plan_next()
    made.node_up("v100-1")
    made.complete(*planned.assignments)
    assert used(made.next_round()) == {"v100-0", "v100-1"}  # the plan is revised, and its allocation is not
    assert made.delivery().offered_by_type == {"v100": 10 + 20}


@settings(max_examples=examples(60))
@given(data=st.data(), cpus=st.lists(st.integers(0, 24), min_size=1, max_size=4))
def test_gangs_and_other_work_never_need_more_than_a_node_has(data: st.DataObject, cpus: list[int]) -> None:
    sizes = data.draw(st.lists(st.tuples(st.sampled_from([1, 1, 2, 4, 6]), st.sampled_from([0.0, 1.0, 3.0, 8.0])), max_size=8))
    jobs = [job(f"j{i}", num_gpus=size, cpus_per_gpu=need, total_steps=1e9) for i, (size, need) in enumerate(sizes)]
    made = with_cpus([float(each) for each in cpus], jobs)
    before = dict.fromkeys((f"n{i}" for i in range(len(cpus))), 0.0)
    for _ in range(4):
        reserved = [data.draw(st.integers(0, each)) for each in cpus]
        for i, each in enumerate(reserved):
            made.reserve(f"n{i}", cpus=each)
        load = dict.fromkeys((f"n{i}" for i in range(len(cpus))), 0.0)
        for job_id, held in made.next_round().assignments.items():
            for node, _ in held.gpus:
                load[node] += sizes[int(job_id[1:])][1]
        for i, limit in enumerate(cpus):
            assert load[f"n{i}"] + reserved[i] <= limit or load[f"n{i}"] <= before[f"n{i}"], "only what has run there stays"
        before = load


def test_what_is_reserved_is_a_finite_amount_on_a_known_node() -> None:
    made = with_cpus([16], [])
    assert "field node: 'n9' is not in the cluster" in refused(lambda: made.reserve("n9", cpus=1))
    for wrong in (-1.0, float("nan"), float("inf"), "2"):
        assert "cpus: must be a finite number of at least 0" in refused(partial(made.reserve, "n0", cpus=wrong))
