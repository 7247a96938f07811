"""Exchanges of GPUs between misplaced gangs, against trials of all groups."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.placement import migration
from gavel_py.scheduling.placement.free_gpus import FreeGpus
from gavel_py.scheduling.placement.migration import MisplacedGang, migrate_misplaced
from gavel_py.scheduling.placement.topology import ANYWHERE, Layout

PlacementPreference = gp.scheduling.PlacementPreference


@st.composite
def misplaced_gangs(draw: st.DrawFn) -> tuple[Layout, list[int], list[MisplacedGang]]:
    """Nodes, the GPUs that are free, and gangs outside their preferred placement; the other GPUs are held by gangs that stay."""
    sizes = draw(st.lists(st.sampled_from([2, 4, 4]), min_size=2, max_size=6))
    layout = Layout([gp.Node(name=f"n{i}", accelerator="v100", num_gpus=size) for i, size in enumerate(sizes)])
    gpus, descending = draw(st.permutations(range(sum(sizes)))), sorted(sizes, reverse=True)
    gangs: list[MisplacedGang] = []
    while gpus and draw(st.integers(0, 8)):
        size = draw(st.sampled_from([2, 2, 3, 4, 4, 6, 8]))
        held, min_nodes = sorted(gpus[:size]), next((n for n in range(1, len(sizes)) if sum(descending[:n]) >= size), len(sizes))
        parts = layout.parts[0].parts_of(held)
        if len(held) < size:
            break
        preference = PlacementPreference.SPREAD if len(parts) <= min_nodes else PlacementPreference.CONSOLIDATED
        if size > min_nodes < len(sizes):
            gangs.append(MisplacedGang(held, parts, preference, size, ANYWHERE, min_nodes))
        gpus = gpus[size:]
    return layout, gpus[: draw(st.integers(0, 3))], gangs


def migrated(layout: Layout, free: list[int], gangs: list[MisplacedGang]) -> dict[int, list[int]]:
    there = np.zeros(layout.num_gpus, dtype=bool)
    there[free] = True
    return migrate_misplaced(FreeGpus(layout.parts[0], there, layout.cpus, layout.memory_gb), gangs)


@given(misplaced_gangs())
def test_no_exchange_that_a_trial_finds_is_left_out(state: tuple[Layout, list[int], list[MisplacedGang]]) -> None:
    layout, free, gangs = state
    found = migrated(layout, free, gangs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration._Migration, "_may_exchange", lambda *_: True)
        assert migrated(layout, free, gangs) == found
    before = Counter(gpu for i in found for gpu in gangs[i].gpus)
    after = Counter(gpu for gpus in found.values() for gpu in gpus)
    assert after <= before + Counter(free)
    for i, gpus in found.items():
        nodes, wanted = len(layout.parts[0].parts_of(gpus)), gangs[i]
        assert len(gpus) == wanted.size
        assert (nodes > wanted.min_nodes) == (wanted.preference == PlacementPreference.SPREAD)


def test_gangs_exchange_gpus_to_fill_nodes() -> None:
    layout = Layout([gp.Node(name=f"n{i}", accelerator="v100", num_gpus=4) for i in range(3)])
    halves = [[0, 1, 4, 5], [2, 3, 6, 7]]
    part, wanted = layout.parts[0], PlacementPreference.CONSOLIDATED
    gangs = [MisplacedGang(gpus, part.parts_of(gpus), wanted, 4, ANYWHERE, 1) for gpus in halves]
    assert migrated(layout, [], gangs) == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}
    other = [2, 3, 8, 9]  # the first node and the third are shared with gangs that stay
    gangs[1] = MisplacedGang(other, part.parts_of(other), wanted, 4, ANYWHERE, 1)
    assert migrated(layout, [], gangs) == {}
    assert migrated(layout, [6, 7], gangs) == {0: [4, 5, 6, 7], 1: [0, 1, 2, 3]}
