"""`PlacementCache` gives starting gangs the GPUs of a full placement, event after event."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel_py.io.names import natural_key
from gavel_py.scheduling.event_driven import PlacementCache, PlacementRequest, batch_of
from gavel_py.scheduling.placement import migration, place_on_type
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import PlacementPreference
from gavel_py.scheduling.placement.topology import ANYWHERE, NODE, Layout
from tests.scheduling.support import nodes
from tests.support.examples import examples

ON_EACH = 4


def gang(number: int, room: int, chance: Random) -> PlacementRequest:
    """A gang that fits what is left, if need be split."""
    shapes = [(1, ANYWHERE), *[(2, ANYWHERE)] * 4, (3, ANYWHERE), (3, ANYWHERE), (4, ANYWHERE), (6, ANYWHERE), (2, NODE)]
    size, scope = chance.choice([shape for shape in shapes if shape[0] <= room])
    preference = (
        PlacementPreference.ANY
        if scope == NODE or size == 1
        else chance.choice(
            [
                PlacementPreference.CONSOLIDATED,
                PlacementPreference.CONSOLIDATED,
                PlacementPreference.SPREAD,
                PlacementPreference.ANY,
            ]
        )
    )
    hysteresis, job_id = chance.choice([0.0, 0.5, 0.5]), f"{chance.randrange(100)}-{number}"
    return PlacementRequest(job_id, 0, size, scope, preference, math.ceil(size / ON_EACH), natural_key(job_id), hysteresis)


class Anew:
    """Places all gangs from scratch whenever some start."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.gangs = layout, dict[str, PlacementRequest]()
        self.held: dict[str, list[int]] = {}

    def place(self, starters: list[PlacementRequest]) -> bool:
        """Return whether all gangs have a place; if not, nothing changes."""
        ranks = [(gang.rank_if_running, gang) for gang in self.gangs.values()] + [(gang.rank_if_new, gang) for gang in starters]
        ordered = [gang for _, gang in sorted(ranks)]
        batch = batch_of(ordered, [self.held.get(gang.job_id, []) for gang in ordered])
        settled = place_on_type(FreeResources(self.layout), 0, batch)
        if not settled.placed.all():
            return False
        self.held |= {ordered[i].job_id: gpus for i, gpus in settled.found.items()}
        self.gangs |= {gang.job_id: gang for gang in starters}
        return True

    @property
    def used(self) -> int:
        return sum(map(len, self.held.values()))


@pytest.fixture(scope="module", params=[2, 32])
def exchanged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where few gangs are exchanged at once, it matters as among many in which order they come."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migration, "MAX_EXCHANGED", request.param)
        yield


@pytest.mark.usefixtures("exchanged")
@settings(max_examples=examples(100, costly=True))
@given(seed=st.integers(0, 2**32 - 1))
def test_incremental_placement_equals_a_full_one(seed: int) -> None:
    chance = Random(seed)  # noqa: S311
    there = nodes(*[ON_EACH] * chance.randint(2, 9))
    known: dict[str, PlacementRequest] = {}
    anew = Anew(Layout(there))
    kept = PlacementCache(anew.layout, lambda job_id, _: known[job_id])
    running: dict[str, tuple[int, list[int]]] = {}
    for _ in range(40):
        for job_id in [job_id for job_id in running if chance.random() < 0.05]:
            kept.release(job_id)
            del running[job_id], anew.held[job_id], anew.gangs[job_id]
        starters: list[PlacementRequest] = []
        while chance.random() < 0.7 and (left := ON_EACH * len(there) - anew.used - sum(each.size for each in starters)):
            starters.append(gang(len(known), left, chance))
            known[starters[-1].job_id] = starters[-1]
        found = kept.place(starters)
        assert (found is not None) == anew.place(starters)
        if found is None:
            kept = PlacementCache(anew.layout, lambda job_id, _: known[job_id])
            kept.update(running, running, set())
        running |= found or {}
        assert {i: sorted(gpus) for i, (_, gpus) in running.items()} == {i: sorted(gpus) for i, gpus in anew.held.items()}


def test_a_started_gang_is_ranked_as_running_at_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are exchanged at once: `0` cannot while it starts, since it is tried last, but can with `a` at the next event."""
    monkeypatch.setattr(migration, "MAX_EXCHANGED", 2)
    known = {
        job_id: PlacementRequest(job_id, 0, size, ANYWHERE, preference, 1, natural_key(job_id), 0.5)
        for job_id, size, preference in [
            ("a", 2, PlacementPreference.CONSOLIDATED),
            ("b", 4, PlacementPreference.CONSOLIDATED),
            ("0", 2, PlacementPreference.SPREAD),
        ]
        + [(f"c{i}", 2, PlacementPreference.ANY) for i in range(4)]
    }
    # Of four nodes with 4 GPUs each.
    split = {"a": [4, 8], "b": [5, 9, 12, 13]}
    running = {job_id: (0, gpus) for job_id, gpus in split.items()} | {f"c{i}": (0, [4 * i + 2, 4 * i + 3]) for i in range(4)}
    kept = PlacementCache(Layout(nodes(4, 4, 4, 4)), lambda job_id, _: known[job_id])
    kept.update(running, running, set())
    first, second = kept.place([known["0"]]), kept.place([])
    assert first == {"0": (0, [0, 1])}
    assert second == {"0": (0, split["a"]), "a": (0, [0, 1])}
    assert kept.place([]) == {}
