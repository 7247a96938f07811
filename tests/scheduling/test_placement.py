"""On which GPUs: small clusters, and what must hold for any gangs on any nodes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.placement import largest_free
from tests.scheduling.support import nodes
from tests.support.examples import examples

Gang = gp.scheduling.Gang
place = gp.scheduling.place

LOCALITIES = ("any", "rack", "node")


def gang(job_id: str, size: int, locality: str = "any", at: str = "", accelerator: str = "v100") -> Gang:
    """A gang that has been running on the GPUs named as in "n0:0,1 n1:3"."""
    previous = [(part.split(":")[0], int(i)) for part in at.split() for i in part.split(":")[1].split(",")]
    return Gang(job_id, size, accelerator, locality, tuple(previous))


def where(cluster: Sequence[gp.Node], *gangs: Gang) -> dict[str, str]:
    """The places in the same short form."""
    return {job_id: short(gpus) for job_id, gpus in place(cluster, gangs).items()}


def short(gpus: Sequence[tuple[str, int]]) -> str:
    by_node = itertools.groupby(gpus, key=lambda gpu: gpu[0])
    return " ".join(f"{node}:{','.join(str(index) for _, index in group)}" for node, group in by_node)


def test_a_running_gang_stays_where_it_is() -> None:
    assert where(nodes(4, 4), gang("a", 2, at="n1:1,3"), gang("b", 4)) == {"a": "n1:1,3", "b": "n0:0,1,2,3"}


def test_gpus_are_taken_lowest_index_first() -> None:
    assert where(nodes(4), gang("a", 1, at="n0:1"), gang("b", 2)) == {"a": "n0:1", "b": "n0:0,2"}


def test_the_tightest_hole_is_taken_so_that_large_ones_stay() -> None:
    running = gang("a", 6, at="n1:0,1,2,3,4,5")
    assert where(nodes(8, 8, 4), running, gang("b", 2), gang("c", 4))["b"] == "n1:6,7"
    assert where(nodes(8, 8, 4), running, gang("b", 2), gang("c", 4))["c"] == "n2:0,1,2,3"


def test_large_gangs_are_placed_first() -> None:
    assert where(nodes(4, 2), gang("a", 2), gang("b", 4)) == {"a": "n1:0,1", "b": "n0:0,1,2,3"}


def test_a_gang_larger_than_a_node_takes_the_fewest_nodes() -> None:
    assert where(nodes(2, 4, 2, 8), gang("a", 10)) == {"a": "n3:0,1,2,3,4,5,6,7 n0:0,1"}


def test_a_gang_larger_than_a_node_prefers_one_rack() -> None:
    cluster = nodes((4, "r1"), (2, "r2"), (2, "r2"), (2, "r2"), (4, "r3"))
    assert where(cluster, gang("a", 6)) == {"a": "n1:0,1 n2:0,1 n3:0,1"}


def test_a_rack_gang_never_leaves_its_rack() -> None:
    cluster = nodes((4, "r1"), (4, "r2"), (4, None), (4, None))
    assert where(cluster, gang("a", 6, "rack")) == {}
    assert where([*cluster, *nodes((4, "r2"))[:0]], gang("a", 4, "rack")) == {"a": "n0:0,1,2,3"}
    assert where(nodes((4, "r1"), (4, "r2"), (4, "r2")), gang("a", 6, "rack")) == {"a": "n1:0,1,2,3 n2:0,1"}


def test_a_node_gang_never_leaves_its_node() -> None:
    assert where(nodes(3, 3), gang("a", 4, "node")) == {}
    assert where(nodes(3, 3), gang("a", 4)) == {"a": "n0:0,1,2 n1:0"}


def test_a_gang_stays_on_one_accelerator_type() -> None:
    mixed = [gp.Node(name="a", accelerator="v100", num_gpus=2), gp.Node(name="b", accelerator="k80", num_gpus=4)]
    assert where(mixed, gang("x", 3)) == {}
    assert where(mixed, gang("x", 3, accelerator="k80")) == {"x": "b:0,1,2"}
    assert where(mixed, gang("x", 1, accelerator="t4")) == {}


def test_the_fewest_smaller_gangs_move_to_make_room_for_a_node_gang() -> None:
    """Two GPUs are free on each node; making room on n1 moves one gang, on n0 two."""
    small = [gang("a", 1, at="n0:0"), gang("b", 1, at="n0:1"), gang("c", 2, at="n1:0,1")]
    assert where(nodes(4, 4), gang("d", 4, "node"), *small) == {"a": "n0:0", "b": "n0:1", "c": "n0:2,3", "d": "n1:0,1,2,3"}


def test_a_small_gang_moves_rather_than_that_a_large_one_is_split() -> None:
    small = [gang("a", 1, at="n0:0"), gang("b", 1, at="n1:0"), gang("c", 1, at="n1:1")]
    assert where(nodes(4, 4), gang("d", 4), *small) == {"a": "n1:2", "b": "n1:0", "c": "n1:1", "d": "n0:0,1,2,3"}


def test_a_large_gang_is_split_rather_than_that_an_equal_one_moves() -> None:
    running = [gang("a", 3, at="n0:0,1,2"), gang("b", 3, at="n1:0,1,2")]
    assert where(nodes(4, 4, 1), gang("c", 3), *running)["c"] == "n0:3 n1:3 n2:0"


def test_of_the_gangs_on_a_node_those_with_the_most_gpus_move() -> None:
    """d needs 3 of the 4 GPUs of n0: c and one more have to go, not a, b and c."""
    small = [gang("a", 1, at="n0:0"), gang("b", 1, at="n0:1"), gang("c", 2, at="n0:2,3")]
    others = [gang("x", 4, at="n1:0,1,2,3")]
    places = where(nodes(4, 6, 1), gang("d", 3, "node"), *small, *others)
    assert places == {"a": "n2:0", "b": "n0:1", "c": "n1:4,5", "d": "n0:0,2,3", "x": "n1:0,1,2,3"}


def test_if_moves_do_not_help_the_type_is_packed_from_scratch() -> None:
    """Around a, which runs on n0, b can only have n1, and then c fits nowhere; packed anew, all three fit."""
    running = gang("a", 3, "rack", at="n0:1,2,3")
    places = where(nodes((4, "r"), (5, "r")), running, gang("b", 4, "node"), gang("c", 2, "node"))
    assert places == {"a": "n1:0,1,2", "b": "n0:0,1,2,3", "c": "n1:3,4"}


def test_of_gangs_that_do_not_fit_together_the_first_is_placed() -> None:
    cluster = nodes(4, 3)
    wide = [gang("a", 3, "node", at="n0:0,1,2"), gang("b", 3, "node", at="n1:0,1,2"), gang("c", 4, "node")]
    for order in itertools.permutations(wide):
        assert order[0].job_id in place(cluster, order)
    assert "c" not in place(cluster, wide)
    assert where(cluster, wide[2], *wide[:2]) == {"a": "n1:0,1,2", "c": "n0:0,1,2,3"}


def test_places_on_nodes_that_are_gone_are_given_up() -> None:
    assert where(nodes(2), gang("a", 2, at="n7:0,1")) == {"a": "n0:0,1"}
    assert where(nodes(2), gang("a", 2, at="n0:1,2")) == {"a": "n0:0,1"}


def test_places_that_do_not_suit_the_gang_are_given_up() -> None:
    assert where(nodes(2, 2), gang("a", 2, "node", at="n0:0 n1:0")) == {"a": "n0:0,1"}
    assert where(nodes(2, 2), gang("a", 2, at="n1:1")) == {"a": "n0:0,1"}


def test_taken_gpus_are_left_alone() -> None:
    taken = frozenset({("n0", 0), ("n1", 1)})
    assert place(nodes(2, 2), [gang("a", 2)], taken) == {"a": (("n0", 1), ("n1", 0))}
    assert place(nodes(2, 2), [gang("a", 2, "node")], taken) == {}
    assert largest_free(nodes(2, 2), taken) == {"node": {"v100": 1}, "rack": {"v100": 1}, "any": {"v100": 2}}


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[gp.Node], list[Gang]]:
    """A cluster of mixed nodes, and gangs of which some run where an earlier round has put them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cluster = [
        gp.Node(name=f"n{i}", accelerator=preference, num_gpus=int(rng.integers(0, 9)), rack=[None, "r1", "r2"][rng.integers(3)])
        for i, preference in enumerate(rng.choice(["v100", "k80"], size=rng.integers(1, 8)))
    ]

    def gangs(prefix: str) -> list[Gang]:
        sizes = rng.choice([1, 1, 2, 3, 4, 8, 12], size=rng.integers(0, 9))
        return [
            Gang(f"{prefix}{i}", int(size), str(rng.choice(["v100", "k80"])), LOCALITIES[rng.integers(3)])
            for i, size in enumerate(sizes)
        ]

    earlier = gangs("old")
    places = place(cluster, earlier)
    running = [Gang(g.job_id, g.num_gpus, g.accelerator, g.locality, places[g.job_id]) for g in earlier if g.job_id in places]
    kept = [g for g in running if rng.random() < 0.7]
    batch = [*kept, *gangs("new")]
    return cluster, [batch[i] for i in rng.permutation(len(batch))]


@settings(max_examples=examples(400))
@given(batch=crowds())
def test_any_placement_keeps_the_rules(batch: tuple[list[gp.Node], list[Gang]]) -> None:
    cluster, gangs = batch
    places = place(cluster, gangs)
    by_name = {node.name: node for node in cluster}
    used = [gpu for gpus in places.values() for gpu in gpus]
    assert len(used) == len(set(used)), "a GPU is used twice"
    for g in gangs:
        gpus = places.get(g.job_id)
        if gpus is not None:
            assert len(gpus) == g.num_gpus
            assert all(by_name[node].accelerator == g.accelerator and 0 <= i < by_name[node].num_gpus for node, i in gpus)
            assert_local(g, [by_name[node] for node, _ in gpus])
    assert places.keys() <= {g.job_id for g in gangs}
    assert list(place(cluster, gangs).items()) == list(places.items())


@settings(max_examples=examples(400))
@given(batch=crowds())
def test_the_first_gang_is_placed_if_it_fits_the_empty_cluster(batch: tuple[list[gp.Node], list[Gang]]) -> None:
    cluster, gangs = batch
    for g in gangs[:1]:
        fits = g.num_gpus <= gp.Cluster(cluster).largest_gang(g.accelerator, g.locality)
        assert (g.job_id in place(cluster, gangs)) == fits


@settings(max_examples=examples(200))
@given(batch=crowds())
def test_a_running_gang_that_fits_beside_the_others_stays(batch: tuple[list[gp.Node], list[Gang]]) -> None:
    cluster, gangs = batch
    running = [g for g in gangs if g.previous]
    places = place(cluster, running)
    assert places == {g.job_id: g.previous for g in running}
    singles = [g for g in gangs if g.num_gpus == 1 and not g.previous]
    together = place(cluster, [*singles, *running])
    if len(together) == len(singles) + len(running):
        assert all(together[g.job_id] == g.previous for g in running)


@settings(max_examples=examples(400))
@given(batch=crowds())
def test_a_gang_that_stays_on_its_nodes_keeps_its_gpus(batch: tuple[list[gp.Node], list[Gang]]) -> None:
    """It would restart for nothing, although it had to make room at first."""
    cluster, gangs = batch
    places = place(cluster, gangs)
    for g in gangs:
        if g.previous and g.job_id in places and Counter(n for n, _ in places[g.job_id]) == Counter(n for n, _ in g.previous):
            assert places[g.job_id] == g.previous


@settings(max_examples=examples(200))
@given(batch=crowds())
def test_no_hole_is_left_that_would_hold_a_gang_left_out(batch: tuple[list[gp.Node], list[Gang]]) -> None:
    cluster, gangs = batch
    places = place(cluster, gangs)
    index = largest_free(cluster, {gpu for gpus in places.values() for gpu in gpus})
    for g in gangs:
        if g.job_id not in places:
            assert g.num_gpus > index[g.locality].get(g.accelerator, 0)


def assert_local(g: Gang, on: Sequence[gp.Node]) -> None:
    if g.locality == "node":
        assert len({node.name for node in on}) == 1
    if g.locality == "rack":
        assert len({node.rack or f"node {node.name}" for node in on}) == 1


@pytest.mark.parametrize("size", [3, 5, 16])
def test_a_gang_as_large_as_the_cluster(size: int) -> None:
    assert len(place(nodes(size), [gang("a", size)])["a"]) == size
    assert place(nodes(size), [gang("a", size + 1)]) == {}
