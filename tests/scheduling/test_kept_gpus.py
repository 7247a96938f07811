"""`PlacementCache` gives starting gangs the GPUs of a full placement, event after event."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.event_driven import PlacementCache, batch_of
from gavel_py.scheduling.event_driven.queued_jobs import JobProfile, QueuedJob
from gavel_py.scheduling.mechanism.demand import hysteresis_of
from gavel_py.scheduling.placement import migration, place_on_type
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.topology import ANYWHERE, NODE, Layout
from tests.scheduling.support import nodes
from tests.support.examples import examples

PlacementPreference = gp.scheduling.PlacementPreference

ON_EACH = 4


def queued(number: int, job_id: str, size: int, preference: PlacementPreference, scope: int = ANYWHERE) -> QueuedJob:
    """A job that is to run on the only type."""
    profile = JobProfile(size, True, (0,), 1.0, scope, [preference], [math.ceil(size / ON_EACH)], None)
    each = QueuedJob(number, job_id, profile, math.nan)
    each.column = 0
    return each


def gang(number: int, room: int, chance: Random) -> QueuedJob:
    """A gang that fits what is left, if need be split."""
    shapes = [(1, ANYWHERE), *[(2, ANYWHERE)] * 4, (3, ANYWHERE), (3, ANYWHERE), (4, ANYWHERE), (6, ANYWHERE), (2, NODE)]
    size, scope = chance.choice([shape for shape in shapes if shape[0] <= room])
    preference = (
        PlacementPreference.ANY
        if scope == NODE or size == 1
        else chance.choice([*[PlacementPreference.CONSOLIDATED] * 2, PlacementPreference.SPREAD, PlacementPreference.ANY])
    )
    each = queued(number, f"{chance.randrange(100)}-{number}", size, preference, scope)
    each.restart_seconds = chance.choice([0.0, 0.5, 0.5])
    return each


class Anew:
    """Places all gangs from scratch whenever some start."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.gangs = layout, dict[str, QueuedJob]()
        self.held: dict[str, list[int]] = {}

    def place(self, starters: list[QueuedJob]) -> bool:
        """Return whether all gangs have a place; if not, nothing changes."""
        gangs = [copy(each) for each in (*self.gangs.values(), *starters)]
        new = {each.job_id for each in starters}
        restarts = np.array([each.restart_seconds for each in gangs])
        gains = hysteresis_of(np.ones(len(gangs)), np.array([each.size for each in gangs]), restarts)
        claims = {each.job_id: 0.0 if each.job_id in new else gain for each, gain in zip(gangs, gains, strict=True)}
        for each in gangs:
            each.gpus = self.held.get(each.job_id, [])
        gangs.sort(key=lambda each: (-claims[each.job_id], each.natural))
        settled = place_on_type(FreeResources(self.layout), 0, batch_of(gangs, 0))
        if not settled.placed.all():
            return False
        self.held |= {gangs[i].job_id: gpus for i, gpus in settled.found.items()}
        self.gangs |= {each.job_id: each for each in starters}
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
    anew, number = Anew(Layout(there)), 0
    kept = PlacementCache(anew.layout)
    running: dict[str, QueuedJob] = {}
    for _ in range(40):
        for job_id in [job_id for job_id in running if chance.random() < 0.05]:
            kept.release(running.pop(job_id))
            del anew.held[job_id], anew.gangs[job_id]
        starters: list[QueuedJob] = []
        while chance.random() < 0.7 and (left := ON_EACH * len(there) - anew.used - sum(each.size for each in starters)):
            starters.append(gang(number, left, chance))
            number += 1
        before = {job_id: each.gpus for job_id, each in running.items()}
        changed = kept.place(starters)
        assert (changed is not None) == anew.place(starters)
        if changed is None:
            kept = PlacementCache(anew.layout)
            for job_id, each in running.items():
                kept.hold(each, 0, before[job_id])
        else:
            running |= {each.job_id: each for each in starters}
            assert {each.job_id for each in changed} == {i for i, each in running.items() if each.gpus != before.get(i)}
        assert {i: sorted(each.gpus) for i, each in running.items()} == {i: sorted(gpus) for i, gpus in anew.held.items()}


def test_a_started_gang_is_ranked_as_running_at_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are exchanged at once: `0` cannot while it starts, since it is tried last, but can with `a` at the next event."""
    monkeypatch.setattr(migration, "MAX_EXCHANGED", 2)
    kept = PlacementCache(Layout(nodes(4, 4, 4, 4)), 0.5)
    # Of four nodes with 4 GPUs each.
    split = {"a": [4, 8], "b": [5, 9, 12, 13]}
    gangs = {job_id: queued(0, job_id, len(gpus), PlacementPreference.CONSOLIDATED) for job_id, gpus in split.items()}
    gangs |= {f"c{i}": queued(0, f"c{i}", 2, PlacementPreference.ANY) for i in range(4)}
    for job_id, gpus in (split | {f"c{i}": [4 * i + 2, 4 * i + 3] for i in range(4)}).items():
        kept.hold(gangs[job_id], 0, gpus)
    new = queued(0, "0", 2, PlacementPreference.SPREAD)
    assert kept.place([new]) == {new}
    assert new.gpus == [0, 1]
    assert kept.place([]) == {new, gangs["a"]}
    assert (new.gpus, gangs["a"].gpus) == (split["a"], [0, 1])
    assert kept.place([]) == set()
