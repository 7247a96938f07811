"""Nodes by their room, against looking at each node."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.placement.free_gpus import FreeGpuIndex, FreeGpus, FreeResources, mask_of
from gavel_py.scheduling.placement.topology import Layout

MOST = 8

rooms = st.lists(st.integers(0, MOST), min_size=1, max_size=80)


@given(rooms, st.data())
def test_what_is_found_is_what_looking_at_each_node_finds(room: list[int], data: st.DataObject) -> None:
    index = FreeGpuIndex(np.array(room), MOST)
    for _ in range(data.draw(st.integers(0, 5))):
        node = data.draw(st.integers(0, len(room) - 1))
        after = data.draw(st.integers(0, MOST))
        index.change({node: abs(after - room[node])}, 1 if after > room[node] else -1)
        room[node] = after
    here = data.draw(st.lists(st.booleans(), min_size=len(room), max_size=len(room)))
    size, below = data.draw(st.integers(1, MOST)), data.draw(st.none() | st.integers(1, MOST))
    mask, nodes = mask_of(np.array(here)), [n for n, among in enumerate(here) if among and room[n]]
    fitting = [n for n in nodes if size <= room[n] and (below is None or room[n] < below)]
    assert index.room.tolist() == room
    assert index.total == sum(room)
    assert index.tightest(size, mask, below) == min(fitting, key=lambda n: (room[n], n), default=None)
    assert index.fullest(size, mask) == sum(sorted((room[n] for n in nodes), reverse=True)[:size])
    assert list(index.least_first(mask)) == sorted(nodes, key=lambda n: (room[n], n))
    assert list(index.most_first(mask)) == sorted(nodes, key=lambda n: (-room[n], n))


def test_a_copy_is_changed_by_itself() -> None:
    index = FreeGpuIndex(np.array([3, 1, 3]), 4)
    other = index.copy()
    other.change({1: 2}, 1)
    assert (index.tightest(1), index.total, index.room.tolist()) == (1, 7, [3, 1, 3])
    assert (other.tightest(1), other.total, other.room.tolist()) == (0, 9, [3, 3, 3])


@given(st.lists(st.booleans(), min_size=20, max_size=20), st.integers(1, 5), st.integers(1, 12))
def test_equal_gangs_get_together_what_they_get_one_after_the_other(taken: list[bool], size: int, count: int) -> None:
    """On nodes of 4 GPUs, gangs of `size` GPUs."""
    pool = FreeResources(Layout(gp.Cluster.from_inline("v100:20/4").nodes))
    pool.free &= ~np.array(taken)
    together, alone = (FreeGpus(pool.layout.parts[0], pool.free, pool.cpus, pool.memory_gb) for _ in range(2))
    expected = [gpu for _ in range(count) for gpu in alone.take_tightest(size)]
    assert together.take_tightest(size, count) == expected
    assert together.room.index().on == alone.room.index().on
    assert together.take_lowest({n: left for n, left in enumerate(alone.room.index().on) if left}) == [
        gpu for gpu in np.flatnonzero(pool.free).tolist() if gpu not in expected
    ]
