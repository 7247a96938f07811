"""An exact program for placement: as many gangs as possible on the fewest nodes that can hold them, with all gangs placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from round_exact import silence
from scipy.optimize import Bounds, LinearConstraint, milp

import gavel_py as gp
from gavel_py.scheduling.placement import Gang, place

NODES = (8, 8, 4, 4, 2, 2, 1, 3, 6)
"""Mixed sizes of nodes: those of openb, and odd ones."""


class Counted(NamedTuple):
    """The number of gangs, and of those on the fewest nodes by the exact program and by `place`."""

    gangs: int
    exactly: int
    placed: int


def compared(seed: int, *, odd: bool) -> Counted:
    """Place gangs that fill a random part of a few empty nodes; odd: gangs and nodes of any size."""
    chance = np.random.default_rng(seed)
    nodes = chance.choice(NODES if odd else (8, 4, 2, 1), int(chance.integers(2, 7))).tolist()
    sizes = _gangs(chance, int(sum(nodes) * chance.uniform(0.5, 1.0)), (1, 2, 3, 4, 5, 6, 8, 12) if odd else (1, 2, 4, 8, 16))
    if not sizes:
        return Counted(0, 0, 0)
    cluster = [gp.Node(name=f"n{v}", accelerator="v100", num_gpus=held) for v, held in enumerate(nodes)]
    places = place(cluster, [Gang(f"j{i}", size, "v100") for i, size in enumerate(sizes)])
    assert len(places) == len(sizes), "a gang without a place, though there are GPUs for all"
    least = [fewest(nodes, size) for size in sizes]
    placed = sum(len({name for name, _ in places[f"j{i}"]}) == count for i, count in enumerate(least))
    return Counted(len(sizes), most_together(nodes, sizes), placed)


def fewest(nodes: Sequence[int], size: int) -> int:
    """Return the minimum number of nodes of a gang."""
    return int(np.searchsorted(np.cumsum(sorted(nodes, reverse=True)), size)) + 1


def most_together(nodes: Sequence[int], sizes: Sequence[int]) -> int:
    """max Σ_g c_g: x_gv GPUs of gang g on node v, z_gv = 1 where there are any, c_g = 1 for Σ_v z_gv at its least."""
    gangs, count = len(sizes), len(nodes)
    cells, least = gangs * count, np.array([fewest(nodes, size) for size in sizes], dtype=float)
    x, z, c = np.arange(cells), cells + np.arange(cells), 2 * cells + np.arange(gangs)
    of_gang, of_node = np.divmod(np.arange(cells), count)
    total = 2 * cells + gangs
    whole, room, link, few = (np.zeros((rows, total)) for rows in (gangs, count, cells, gangs))
    whole[of_gang, x] = 1
    room[of_node, x] = 1
    most = np.minimum(np.array(sizes)[of_gang], np.array(nodes)[of_node])
    link[np.arange(cells), x], link[np.arange(cells), z] = 1, -most
    few[of_gang, z] = 1
    few[np.arange(gangs), c] = count - least  # Σ_v z_gv <= least where c_g = 1, <= all nodes where not
    with silence():
        found = milp(
            np.concatenate([np.zeros(2 * cells), -np.ones(gangs)]),
            integrality=np.ones(total),
            bounds=Bounds(0, np.concatenate([most, np.ones(cells + gangs)])),
            constraints=[
                LinearConstraint(whole, sizes, sizes),
                LinearConstraint(room, ub=nodes),
                LinearConstraint(link, ub=0),
                LinearConstraint(few, ub=count),
            ],
        )
    assert found.x is not None, found.message
    return round(-float(found.fun))


def _gangs(chance: np.random.Generator, gpus: int, sizes: Sequence[int]) -> list[int]:
    """Return random gang sizes that fit a number of GPUs together."""
    chosen: list[int] = []
    for size in chance.choice(sizes, 12).tolist():
        if sum(chosen) + size <= gpus:
            chosen.append(size)
    return chosen
