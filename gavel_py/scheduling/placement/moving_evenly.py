"""Which gangs should move so that another one fits that is to have as many GPUs on each of its nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gavel_py.problem.eligibility import even_parts
from gavel_py.scheduling.placement.free_gpus import FreeGpus
from gavel_py.scheduling.placement.moving import Held, movers_by_node
from gavel_py.scheduling.placement.needs import Needs

__all__ = ["fewest_to_move_evenly"]


class _Cleared(NamedTuple):
    """What a node costs: how many gangs must leave it, the GPUs that they have in all, which node it is, and the gangs."""

    moves: int
    gpus: int
    node: int
    gangs: list[int]


def fewest_to_move_evenly(free: FreeGpus, size: int, scope: int, needs: Needs, held: Held) -> list[int]:
    """Return gangs that must leave one region of the scope to make room there for an even split, on as few nodes as can be.

    Of each region, the nodes that the fewest gangs must leave; a gang on two of them counts twice. Empty if none would have room.
    """
    regions = free.layout.regions[scope]
    for count, part in even_parts(size):
        room = free.room.holes(needs).room
        costs = [_Cleared(0, 0, n, []) for n in np.flatnonzero(room >= part).tolist()]
        costs += [_Cleared(len(gangs), gpus, n, gangs) for n, gpus, gangs in movers_by_node(free, part, needs, held)]
        by_region: dict[int, list[_Cleared]] = {}
        for cost in sorted(costs):
            by_region.setdefault(int(regions[cost.node]), []).append(cost)
        ways = [each[:count] for each in by_region.values() if len(each) >= count]
        if ways:
            best = min(ways, key=lambda way: (sum(cost.moves for cost in way), sum(cost.gpus for cost in way)))
            return list(dict.fromkeys(gang for cost in best for gang in cost.gangs))
    return []
