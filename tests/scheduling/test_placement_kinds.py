"""Placement preferences of gangs: consolidated on the fewest nodes, or spread over more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.placement import largest_free
from gavel_py.scheduling.placement.gangs import Spans
from gavel_py.scheduling.placement.topology import NOTHING, Gpu, Resources
from tests.scheduling.support import demand, nodes, planned
from tests.scheduling.test_placement import LOCALITIES, assert_local, gang, where
from tests.scheduling.test_planning import Scene, assert_nothing_wasted, assert_rules, scenes
from tests.support.examples import examples

Gang = gp.scheduling.Gang
PlacementPreference = gp.scheduling.PlacementPreference
place = gp.scheduling.place


def apart(*arguments: object, **options: object) -> Gang:
    return gang(*arguments, **options)._replace(preference=PlacementPreference.SPREAD)  # type: ignore[arg-type]


def together(*arguments: object, **options: object) -> Gang:
    return gang(*arguments, **options)._replace(preference=PlacementPreference.CONSOLIDATED)  # type: ignore[arg-type]


class TestStarting:
    def test_a_gang_apart_is_on_more_nodes_than_it_needs(self) -> None:
        assert where(nodes(4, 4), apart("a", 2)) == {"a": "n0:0 n1:0"}
        assert where(nodes(4, 4, 4), apart("a", 6)) == {"a": "n0:0,1,2,3 n1:0 n2:0"}

    def test_it_takes_the_smallest_holes_so_that_large_ones_stay(self) -> None:
        running = [gang("x", 3, at="n1:0,1,2"), gang("y", 2, at="n2:0,1")]
        assert where(nodes(4, 4, 4, 8), apart("a", 3), *running)["a"] == "n1:3 n2:2,3"
        assert where(nodes(4, 4, 4, 8), apart("a", 2), *running)["a"] == "n1:3 n2:2"

    def test_it_prefers_one_rack(self) -> None:
        assert where(nodes((4, "r1"), (2, "r2"), (4, "r2")), apart("a", 2)) == {"a": "n1:0 n2:0"}

    def test_it_is_placed_as_others_are_where_that_is_impossible(self) -> None:
        assert where(nodes(4), apart("a", 2)) == {"a": "n0:0,1"}
        assert where(nodes(1, 1, 1), apart("a", 2)) == {"a": "n0:0 n1:0"}
        assert where(nodes(4, 4), apart("a", 2, "node")) == {"a": "n0:0,1"}
        assert where(nodes((4, "r1"), (4, "r2")), apart("a", 2, "rack")) == {"a": "n0:0,1"}
        assert where(nodes(4, 4), apart("a", 1)) == {"a": "n0:0"}

    def test_no_gang_moves_for_a_spread_one(self) -> None:
        running = [gang("x", 2, at="n1:0,1"), gang("y", 1, at="n0:0")]
        assert where(nodes(4, 2), apart("a", 3), *running) == {"a": "n0:1,2,3", "x": "n1:0,1", "y": "n0:0"}

    def test_together_counts_nodes_before_racks(self) -> None:
        """Within the rack r2 it would be on three nodes, where two are enough."""
        cluster = nodes((4, "r1"), (2, "r2"), (2, "r2"), (2, "r2"), (4, "r3"))
        assert where(cluster, gang("a", 6)) == {"a": "n1:0,1 n2:0,1 n3:0,1"}
        assert where(cluster, together("a", 6)) == {"a": "n0:0,1,2,3 n1:0,1"}


class TestRunning:
    def test_a_gang_of_the_wrong_kind_moves_when_gpus_are_free(self) -> None:
        assert where(nodes(2, 2), together("a", 2, at="n0:0 n1:0")) == {"a": "n0:0,1"}
        assert where(nodes(2, 2), apart("a", 2, at="n1:0,1")) == {"a": "n0:0 n1:0"}

    def test_a_gang_of_the_right_kind_stays(self) -> None:
        assert where(nodes(4, 4), together("a", 2, at="n1:1,3")) == {"a": "n1:1,3"}
        assert where(nodes(4, 4), apart("a", 2, at="n1:1 n0:3")) == {"a": "n1:1 n0:3"}

    def test_a_gang_to_which_it_does_not_matter_stays(self) -> None:
        assert where(nodes(2, 2), gang("a", 2, at="n0:0 n1:0")) == {"a": "n0:0 n1:0"}

    def test_it_stays_where_others_would_have_to_move(self) -> None:
        others = [gang("x", 1, at="n0:1"), gang("y", 1, at="n1:1")]
        assert where(nodes(2, 2), together("a", 2, at="n0:0 n1:0"), *others)["a"] == "n0:0 n1:0"

    def test_all_others_are_placed_before(self) -> None:
        running = together("a", 2, at="n0:0 n1:0")
        assert where(nodes(2, 2), running, gang("b", 1)) == {"a": "n1:0,1", "b": "n0:1"}
        assert where(nodes(2, 2), running, gang("b", 2))["a"] == "n0:0 n1:0"

    def test_what_one_gives_up_may_serve_another(self) -> None:
        """Nothing is free in the rack of a before b has left it."""
        running = [apart("a", 2, "rack", at="n0:0,1"), together("b", 2, at="n1:0 n2:0")]
        places = where(nodes((2, "r1"), (1, "r1"), (2, "r2")), *running)
        assert places == {"a": "n1:0 n0:0", "b": "n2:0,1"}


def test_what_is_the_fewest_nodes_is_a_matter_of_the_type() -> None:
    cluster = gp.Cluster([*nodes(8, 4, 4, 2), gp.Node(name="k", accelerator="k80", num_gpus=4)])
    assert [Spans(cluster).min_nodes("v100", size) for size in (1, 8, 9, 12, 13, 18, 40)] == [1, 1, 2, 2, 3, 4, 4]
    assert Spans(cluster).min_nodes("k80", 4) == 1
    assert Spans(cluster).is_spread("v100", ["n1", "n2"])
    assert not Spans(cluster).is_spread("v100", ["n0", "n0"])


class TestRounds:
    JOBS = (gp.Job("a", num_gpus=2), gp.Job("b", num_gpus=2))

    def asked(self, preferences: list[list[int]], running_on: Sequence[int] = (-1, -1)) -> gp.RoundDemand:
        made = demand([[1.0], [1.0]], [8], num_gpus=[2, 2], running_on=running_on)
        return gp.RoundDemand(**{**vars(made), "preferences": np.array(preferences, dtype=np.int8)})

    def test_preferences_are_those_of_the_demand(self) -> None:
        first = planned(self.asked([[2], [1]]), self.JOBS, gp.Cluster(nodes(4, 4)), {})
        spans = Spans(gp.Cluster(nodes(4, 4)))
        assert spans.is_spread("v100", [node for node, _ in first["a"].gpus])
        assert not spans.is_spread("v100", [node for node, _ in first["b"].gpus])
        again = planned(self.asked([[2], [1]], (0, 0)), self.JOBS, gp.Cluster(nodes(4, 4)), first)
        assert again == first
        other = planned(self.asked([[1], [2]], (0, 0)), self.JOBS, gp.Cluster(nodes(4, 4)), first)
        assert not spans.is_spread("v100", [node for node, _ in other["a"].gpus])
        assert spans.is_spread("v100", [node for node, _ in other["b"].gpus])

    def test_least_numbers_of_nodes_may_be_those_of_the_whole_cluster(self) -> None:
        """With the node of 8 down, two nodes are the fewest there are, but spread all the same."""
        jobs, up = [gp.Job("a", num_gpus=6)], nodes(4, 4)
        asked = demand([[1.0]], [8], num_gpus=[6])
        asked = gp.RoundDemand(**{**vars(asked), "preferences": np.array([[2]], dtype=np.int8)})
        whole = gp.Cluster([*nodes(4, 4), gp.Node(name="large", accelerator="v100", num_gpus=8)])
        held = planned(asked, jobs, gp.Cluster(up), {}, spans=Spans(whole))
        assert Spans(whole).is_spread("v100", [node for node, _ in held["a"].gpus])


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[gp.Node], list[Gang]]:
    """Mixed nodes, some with few CPUs, and gangs of all preferences, some of them running and misplaced."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cores = rng.random() < 0.3
    cluster = [
        gp.Node(
            name=f"n{i}",
            accelerator=str(name),
            num_gpus=int(rng.integers(0, 9)),
            rack=[None, "r1", "r2"][rng.integers(3)],
            cpus=float(rng.integers(0, 24)) if cores else None,
        )
        for i, name in enumerate(rng.choice(["v100", "v100", "k80"], size=rng.integers(1, 9)))
    ]

    def gangs(prefix: str) -> list[Gang]:
        return [
            Gang(
                f"{prefix}{i}",
                int(size),
                str(rng.choice(["v100", "k80"])),
                LOCALITIES[rng.choice(3, p=[0.6, 0.25, 0.15])],
                per_gpu=Resources(cpus=float(rng.integers(0, 4))) if cores else NOTHING,
                preference=PlacementPreference(int(rng.integers(3))),
            )
            for i, size in enumerate(rng.choice([1, 2, 2, 3, 4, 6, 10], size=rng.integers(0, 8)))
        ]

    earlier = gangs("old")
    places = place(cluster, earlier)
    running = [g._replace(previous=places[g.job_id]) for g in earlier if g.job_id in places and rng.random() < 0.8]
    # Some are promised another kind of place from now on.
    running = [g._replace(preference=PlacementPreference(int(rng.integers(3)))) if rng.random() < 0.5 else g for g in running]
    batch = [*running, *gangs("new")]
    return cluster, [batch[i] for i in rng.permutation(len(batch))]


def fewest_nodes(cluster: Sequence[gp.Node], g: Gang) -> int:
    sizes = sorted((node.num_gpus for node in cluster if node.accelerator == g.accelerator), reverse=True)
    return next((count for count in range(1, len(sizes) + 1) if sum(sizes[:count]) >= g.num_gpus), len(sizes))


def is_of_its_kind(cluster: Sequence[gp.Node], g: Gang, gpus: Sequence[Gpu]) -> bool:
    spread = len({name for name, _ in gpus}) > fewest_nodes(cluster, g)
    return g.num_gpus == 1 or g.preference is PlacementPreference.ANY or spread == (g.preference is PlacementPreference.SPREAD)


def could_be_of_its_kind(cluster: Sequence[gp.Node], g: Gang, places: dict[str, tuple[Gpu, ...]], gangs: Sequence[Gang]) -> bool:
    """Return whether the GPUs that no other gang holds allow the preferred placement, region by region."""
    room: Counter[str] = Counter()
    for node in cluster:
        if node.accelerator == g.accelerator:
            others = [o for o in gangs if o.job_id != g.job_id for name, _ in places.get(o.job_id, ()) if name == node.name]
            room[node.name] = node.num_gpus - len(others)
            if node.cpus is not None and g.per_gpu.cpus:
                room[node.name] = min(
                    room[node.name], int((node.cpus - sum(o.per_gpu.cpus for o in others)) / g.per_gpu.cpus + 1e-9)
                )
    regions: dict[str, list[int]] = {}
    for node in cluster:
        if room[node.name] > 0:
            near = {"node": node.name, "rack": f"rack {node.rack}" if node.rack else node.name, "any": ""}
            regions.setdefault(near[g.locality], []).append(room[node.name])
    min_nodes = fewest_nodes(cluster, g)
    if g.preference is PlacementPreference.CONSOLIDATED:
        return any(sum(sorted(free)[-min_nodes:]) >= g.num_gpus for free in regions.values())
    return any(len(free) > min_nodes and sum(free) >= g.num_gpus > min_nodes for free in regions.values())


@settings(max_examples=examples(400))
@given(batch=crowds())
def test_any_placement_keeps_the_rules_and_the_preferences_that_it_can(batch: tuple[list[gp.Node], list[Gang]]) -> None:
    cluster, gangs = batch
    places = place(cluster, gangs)
    by_name = {node.name: node for node in cluster}
    used = [gpu for gpus in places.values() for gpu in gpus]
    assert len(used) == len(set(used)), "a GPU is used twice"
    cores: Counter[str] = Counter()
    for g in gangs:
        gpus = places.get(g.job_id, ())
        assert len(gpus) in (0, g.num_gpus)
        assert all(by_name[name].accelerator == g.accelerator and 0 <= i < by_name[name].num_gpus for name, i in gpus)
        if gpus:
            assert_local(g, [by_name[name] for name, _ in gpus])
            assert is_of_its_kind(cluster, g, gpus) or not could_be_of_its_kind(cluster, g, places, gangs)
        for name, _ in gpus:
            cores[name] += g.per_gpu.cpus
    assert all(node.cpus is None or cores[node.name] <= node.cpus for node in cluster)


@settings(max_examples=examples(200))
@given(batch=crowds())
def test_only_gangs_of_the_wrong_kind_move_for_it(batch: tuple[list[gp.Node], list[Gang]]) -> None:
    cluster, gangs = batch
    running = [g for g in gangs if g.previous]
    places = place(cluster, running)
    for g in running:
        assert places[g.job_id] == g.previous or not is_of_its_kind(cluster, g, g.previous)
    settled = [g._replace(previous=places[g.job_id]) for g in running]
    assert place(cluster, settled) == places, "who has moved once would move again"


@settings(max_examples=examples(200))
@given(batch=crowds())
def test_the_first_gang_is_placed_whatever_its_preference(batch: tuple[list[gp.Node], list[Gang]]) -> None:
    cluster, gangs = batch
    for g in gangs[:1]:
        index = largest_free(cluster, per_gpu=g.per_gpu)
        assert (g.job_id in place(cluster, gangs)) == (g.num_gpus <= index[g.locality].get(g.accelerator, 0))


@pytest.mark.parametrize("preference", list(PlacementPreference))
def test_a_single_gpu_is_never_moved(preference: PlacementPreference) -> None:
    assert where(nodes(2, 2), gang("a", 1, at="n1:1")._replace(preference=preference)) == {"a": "n1:1"}


class TestExchange:
    def test_gangs_change_places_where_no_gpus_are_free(self) -> None:
        running = [apart("a", 2, at="n0:0,1"), together("b", 2, at="n0:2 n1:2"), gang("c", 2, at="n1:0,1")]
        assert where(nodes(3, 3), *running) == {"a": "n0:2 n1:2", "b": "n0:0,1", "c": "n1:0,1"}

    def test_two_that_are_spread_over_the_same_nodes_come_together(self) -> None:
        running = [together("a", 2, at="n0:0 n1:0"), together("b", 2, at="n0:1 n1:1")]
        assert where(nodes(2, 2), *running) == {"a": "n0:0,1", "b": "n1:0,1"}

    def test_a_gang_that_would_not_gain_takes_no_part(self) -> None:
        """Two of the three could be together, but then the third would still be spread: it stays."""
        running = [together(name, 2, at=f"n0:{i} n1:{i}") for i, name in enumerate("abc")]
        places = where(nodes(3, 3), *running)
        assert sum(len(place.split()) == 1 for place in places.values()) == 2
        assert places["c"] == "n0:2 n1:2"


@settings(max_examples=examples(100, costly=True))
@given(scene=scenes(), seed=st.integers(0, 2**32 - 1))
def test_any_round_with_preferences_keeps_the_rules(scene: Scene, seed: int) -> None:
    """Preferences change between rounds."""
    rng = np.random.default_rng(seed)
    types = list(scene.cluster.accelerator_names)
    held: Mapping[str, gp.Assignment] = {}
    for _ in range(4):
        running = [types.index(held[job.job_id].accelerator) if job.job_id in held else -1 for job in scene.jobs]
        fits = [[job.num_gpus <= scene.cluster.largest_gang(name, job.locality) for name in types] for job in scene.jobs]
        made = demand(
            scene.fractions,
            [int(count) for count in scene.cluster.capacities],
            deficits=rng.normal(size=scene.fractions.shape),
            num_gpus=[job.num_gpus for job in scene.jobs],
            throughputs=np.reshape(fits, scene.fractions.shape),
            running_on=running,
            backfill=scene.backfill,
        )
        asked = gp.RoundDemand(**{**vars(made), "preferences": rng.integers(0, 3, made.fractions.shape).astype(np.int8)})
        now = planned(asked, scene.jobs, scene.cluster, held)
        assert now == planned(asked, scene.jobs, scene.cluster, held)
        assert_rules(scene, now)
        if scene.backfill:
            assert_nothing_wasted(scene, now)
        held = now
