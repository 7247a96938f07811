"""Which gangs should move so that another one fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gavel_py.jobs import Locality
from gavel_py.rounds.free_gpus import FreeGpus, Gpu
from gavel_py.rounds.needs import Needs

__all__ = ["Held", "fewest_to_move"]


class Held(NamedTuple):
    """The GPUs of a gang, and what each of them needs on its node."""

    gpus: tuple[Gpu, ...]
    needs: Needs


def fewest_to_move(free: FreeGpus, size: int, scope: Locality, needs: Needs, held: Mapping[str, Held]) -> list[str]:
    """Return the fewest gangs (of equals, those with the fewest GPUs) that must leave one region of the scope to make room there.

    Empty if no region would have room. Where CPUs or memory are short too, the gangs with the most GPUs there leave first.
    """
    gains: dict[int, Counter[str]] = {}
    for job_id, gang in held.items():
        for gpu in gang.gpus:
            gains.setdefault(free.region_of(gpu, scope), Counter())[job_id] += 1
    room = free.room_in_regions(scope)
    options = []
    for region, gain in sorted(gains.items()):
        # The largest gains first reach the goal with the fewest gangs.
        order = sorted(gain, key=lambda job_id: (-gain[job_id], len(held[job_id].gpus)))
        reached = np.cumsum([gain[job_id] for job_id in order]) + room[region]
        if reached[-1] >= size:
            least = int(np.searchsorted(reached, size)) + 1
            count = least if not free.limits(needs) else _enough(free, size, scope, needs, region, [held[i] for i in order], least)
            if count:
                moved = order[:count]
                options.append((count, sum(len(held[job_id].gpus) for job_id in moved), region, moved))
    return min(options)[-1] if options else []


def _enough(free: FreeGpus, size: int, scope: Locality, needs: Needs, region: int, order: Sequence[Held], least: int) -> int:
    """How many of these gangs must leave, in this order, until there is room with CPUs and memory; 0 if all are not enough."""
    count = 0
    while count < len(order) and (count < least or free.room_in_regions(scope, needs)[region] < size):
        free.give_back(*order[count])
        count += 1
    fits = free.room_in_regions(scope, needs)[region] >= size
    for gang in order[:count]:
        free.take(*gang)
    return count if fits else 0
