"""Gangs that need equally many GPUs on each of their nodes: placement, moves of other gangs, and exclusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py import AllocationProblem, Cluster, Job, Measurement, RoundScheduler, ThroughputProfile
from gavel_py.problem.eligibility import ANY_SPLIT, EVEN_SPLIT, even_nodes
from gavel_py.scheduling.placement.topology import Gpu, Resources
from tests.scheduling.support import nodes
from tests.support.examples import examples

Gang = gp.scheduling.Gang
place = gp.scheduling.place

CPUS = Resources(2.0, 0.0)


def even(job_id: str, size: int, locality: str = "any") -> Gang:
    return Gang(job_id, size, "v100", locality, split=EVEN_SPLIT)


def single(job_id: str, at: Gpu, locality: str = "any") -> Gang:
    return Gang(job_id, 1, "v100", locality, previous=(at,), per_gpu=CPUS)


def split(gpus: Sequence[Gpu]) -> list[int]:
    """How many GPUs a gang has on each of its nodes."""
    return sorted(Counter(node for node, _ in gpus).values())


def test_an_even_gang_has_as_many_gpus_on_each_node() -> None:
    assert split(place(nodes(4, 3, 3), [even("a", 6)])["a"]) == [3, 3]
    assert split(place(nodes(4, 3, 3), [Gang("a", 6, "v100")])["a"]) == [2, 4]


def test_a_gang_may_name_the_gpus_on_each_of_its_nodes() -> None:
    assert split(place(nodes(8, 4, 4), [Gang("a", 8, "v100", split=4)])["a"]) == [4, 4]
    assert split(place(nodes(8, 2, 2, 1), [Gang("a", 6, "v100", split=2)])["a"]) == [2, 2, 2]
    assert place(nodes(8, 3, 3), [Gang("a", 8, "v100", split=4)]) == {}, "on one node only"
    assert place(nodes(8, 8), [Gang("a", 8, "v100", "node", split=4)]) == {}


def test_others_move_for_it() -> None:
    running = [single("r", ("n1", 0))._replace(per_gpu=Resources()), single("s", ("n2", 1))._replace(per_gpu=Resources())]
    found = place(nodes(4, 4, 5), [Gang("a", 8, "v100", split=4), *running])
    assert split(found["a"]) == [4, 4]
    assert found.keys() == {"a", "r", "s"}
    assert found["s"] == (("n2", 1),), "it need not move"


def test_one_node_is_best_and_then_the_fewest() -> None:
    assert split(place(nodes(2, 2, 2, 2, 8), [even("a", 8)])["a"]) == [8]
    assert split(place(nodes(2, 2, 2, 2, 4, 4), [even("a", 8)])["a"]) == [4, 4]
    assert split(place(nodes(2, 2, 2, 2, 4, 3), [even("a", 8)])["a"]) == [2, 2, 2, 2]


def test_where_only_an_uneven_split_is_there_it_has_no_place() -> None:
    assert place(nodes(4, 3, 1), [even("a", 8)]) == {}
    assert place(nodes(2, 3), [even("a", 5)]) == {}


def test_an_even_gang_stays_in_its_rack() -> None:
    cluster = nodes((4, "r1"), (3, "r2"), (3, "r2"))
    assert {node for node, _ in place(cluster, [even("a", 6, "rack")])["a"]} == {"n1", "n2"}
    assert place(cluster, [even("a", 8, "rack")]) == {}


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("locality", ["any", "node"])
def test_the_fewest_gangs_move_for_it(limited: bool, locality: str) -> None:
    cluster = nodes(4, 4, 4, 4)
    if limited:
        cluster = [node.model_copy(update={"cpus": 8.0}) for node in cluster]
    at = [("n0", 0), ("n0", 1), ("n1", 0), ("n2", 0), ("n2", 2), ("n3", 0), ("n3", 1), ("n3", 2)]
    running = [single(f"r{i}", gpu, locality) for i, gpu in enumerate(at)]
    found = place(cluster, [even("a", 8)._replace(per_gpu=CPUS), *running])
    assert split(found["a"]) == [2, 2, 2, 2] or split(found["a"]) == [4, 4]
    assert sum(found[f"r{i}"] != (gpu,) for i, gpu in enumerate(at)) == 3, "n1, and n0 or n2, are cleared"
    assert len(found) == 9
    assert {gpu for gpus in found.values() for gpu in gpus} == {(node.name, i) for node in cluster for i in range(4)}


def test_a_running_gang_with_an_uneven_split_stays() -> None:
    at = (("n0", 0), ("n0", 1), ("n0", 2), ("n1", 0))
    assert place(nodes(4, 4), [even("a", 4)._replace(previous=at)]) == {"a": at}


gangs_drawn = st.lists(st.tuples(st.integers(1, 9), st.integers(-1, 3), st.sampled_from(["any", "rack"])), min_size=1, max_size=6)
nodes_drawn = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["r1", "r2", None])), min_size=1, max_size=6)


@given(nodes_drawn, gangs_drawn, st.data())
def test_whatever_the_gangs_even_ones_are_split_evenly_and_the_first_is_placed(
    sizes: list[tuple[int, str | None]], asked: list[tuple[int, int, str]], data: st.DataObject
) -> None:
    cluster = nodes(*sizes)
    gangs = [
        Gang(f"g{i}", size, "v100", locality, split=EVEN_SPLIT if is_even else ANY_SPLIT)
        for i, (size, is_even, locality) in enumerate(asked)
    ]
    gpus = data.draw(st.permutations([(node.name, i) for node in cluster for i in range(node.num_gpus)]))
    running = [Gang(f"s{i}", 1, "v100", previous=(gpu,)) for i, gpu in enumerate(gpus[: data.draw(st.integers(0, 6))])]
    found = place(cluster, [*gangs, *running])
    assert max(Counter(gpu for held in found.values() for gpu in held).values(), default=1) == 1
    for gang in gangs:
        if gang.split and gang.job_id in found:
            assert len(set(split(found[gang.job_id]))) == 1
            assert gang.split < 0 or set(split(found[gang.job_id])) == {gang.split}
            assert len(found[gang.job_id]) == gang.num_gpus
    assert ("g0" in found) == fits(gangs[0], cluster)


def fits(gang: Gang, cluster: Sequence[gp.Node]) -> bool:
    """Whether an empty cluster holds it."""
    racks: dict[str, list[int]] = {}
    for node in cluster:
        racks.setdefault("" if gang.locality == "any" else Cluster.region_of(node, gang.locality), []).append(node.num_gpus)
    if not gang.split:
        return any(sum(room) >= gang.num_gpus for room in racks.values())
    parts = [(count, gang.num_gpus // count) for count in range(1, gang.num_gpus + 1) if gang.num_gpus % count == 0]
    parts = [(count, part) for count, part in parts if gang.split in (-1, part)]
    return any(sum(size >= part for size in room) >= count for room in racks.values() for count, part in parts)


def test_even_nodes_of_the_region_with_the_least_room() -> None:
    found = even_nodes(4, np.array([4, 2, 2, 2]), np.array([0, 0, 1, 1]))
    assert found is not None
    assert (found[0].tolist(), found[1]) == ([0], 4)
    found = even_nodes(4, np.array([3, 3, 2, 2]), np.array([0, 0, 1, 1]))
    assert found is not None
    assert (found[0].tolist(), found[1]) == ([2, 3], 2)


def profile(*sizes: int) -> ThroughputProfile:
    """Gangs of any of these sizes do one step per second and GPU on a v100."""
    rows = [Measurement(job_type="a", num_gpus=size, accelerator="v100", steps_per_second=float(size)) for size in sizes]
    return ThroughputProfile("even", rows)


def job(job_id: str, size: int, *, even_split: bool = True) -> Job:
    return Job(job_id, job_type="a", num_gpus=size, total_steps=1e6, even_split=even_split)


def test_a_job_that_cannot_be_split_evenly_is_excluded_with_the_reason() -> None:
    cluster = Cluster(nodes(4, 3))
    problem = AllocationProblem.from_jobs([job("a", 7), job("b", 7, even_split=False)], cluster, profile(7))
    assert problem.excluded.keys() == {"a"}
    assert "v100: 6" in problem.excluded["a"]
    assert not AllocationProblem.from_jobs([job("a", 6)], cluster, profile(6)).excluded


def test_in_rounds_even_gangs_get_their_time_and_what_they_cannot_use_goes_to_others() -> None:
    cluster, sizes = Cluster(nodes(4, 4, 4)), {"a": 8, "b": 6, "c": 3, "d": 3, "e": 1, "f": 1}
    scheduler = RoundScheduler(cluster, profile(1, 3, 6, 8), round_seconds=100)
    for job_id, size in sizes.items():
        scheduler.submit(job(job_id, size))
    for _ in range(40):
        now = scheduler.next_round()
        assert all(len(set(split(held.gpus))) == 1 for held in now.assignments.values())
        assert sum(len(held.gpus) for held in now.assignments.values()) >= 10
    delivery = scheduler.delivery()
    assert delivery.undelivered_share < 0.05


def test_a_running_gang_that_becomes_even_restarts() -> None:
    scheduler = RoundScheduler(Cluster(nodes(3, 1, 2, 2)), profile(4), round_seconds=100)
    scheduler.submit(job("a", 4, even_split=False))
    assert split(scheduler.next_round().assignments["a"].gpus) == [1, 3]
    scheduler.update("a", even_split=True)
    assert split(scheduler.next_round().assignments["a"].gpus) == [2, 2]


def test_in_rounds_a_job_has_the_gpus_on_each_node_that_it_asks_for() -> None:
    scheduler = RoundScheduler(Cluster(nodes(8, 8, 3)), profile(8, 12))
    scheduler.submit(Job("a", job_type="a", num_gpus=8, gpus_per_node=4))
    scheduler.submit(Job("b", job_type="a", num_gpus=12, gpus_per_node=4))
    assert split(scheduler.next_round().assignments["a"].gpus) == [4, 4]
    assert "b" in scheduler.next_round().excluded, "there are two nodes with four GPUs"


@settings(max_examples=examples(12))
@given(st.sampled_from([EVEN_SPLIT, 2, 4]), st.lists(st.integers(0, 3), min_size=2, max_size=6), st.integers(0, 9))
def test_an_elastic_gang_keeps_its_split_at_every_number(division: int, arrivals: list[int], seed: int) -> None:
    sizes = (4, 8, 12, 16)
    scheduler = RoundScheduler(Cluster(nodes(4, 8, 4, 5, 4)), profile(1, *sizes), round_seconds=100, mechanism="direct")
    fields = {"even_split": True} if division < 0 else {"gpus_per_node": division}
    scheduler.submit(Job("e", job_type="a", gpu_counts=sizes, **fields))
    random, others, count = np.random.default_rng(seed), list[str](), 0
    for arrived in arrivals:
        for _ in range(arrived):
            count += 1
            others.append(f"j{count}")
            scheduler.submit(Job(others[-1], job_type="a"))
        if others and random.random() < 0.5:
            scheduler.cancel(others.pop(int(random.integers(len(others)))))
        now = scheduler.next_round().assignments
        if "e" in now:
            held = split(now["e"].gpus)
            assert sum(held) in sizes
            assert len(set(held)) == 1
            assert division < 0 or set(held) == {division}


@pytest.mark.parametrize(("size", "room", "places"), [(4, [8, 2, 4], [2]), (8, [6, 5, 4], [2, 1]), (6, [8, 2, 2, 2], [0])])
def test_an_even_split_leaves_the_most_room_free(size: int, room: list[int], places: list[int]) -> None:
    """Of nodes of different sizes, as few as possible, and among those the ones with the least room."""
    found = even_nodes(size, np.array(room), np.zeros(len(room), dtype=np.int64))
    assert found is not None
    assert (found[0].tolist(), found[1] * len(places)) == (places, size)
