"""Which gangs should move so that another one fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.placement.free_gpus import FreeGpus
from gavel_py.scheduling.placement.layout import NODE
from gavel_py.scheduling.placement.needs import NOTHING, Needs

__all__ = ["Held", "fewest_to_move", "movers_by_node"]

Indices = NDArray[np.int64]


class Held(NamedTuple):
    """The GPUs of gangs that may move.

    gpus: (H,) by number; owners: (H,) whose they are, the gangs in the order in which they are to be kept rather than others that
    are as good; needs: by gang, what each of its GPUs needs on its node.
    """

    gpus: Indices
    owners: Indices
    needs: Sequence[Needs]

    def of(self, gang: int) -> list[int]:
        """Return the GPUs of one gang."""
        gpus: list[int] = self.gpus[self.owners == gang].tolist()
        return gpus


class _Leavers(NamedTuple):
    """The gangs of each region, in the order in which they would leave it; all are arrays over pairs of a region and a gang.

    reached: the GPUs that are free there when the gang and those before it have left; left, gpus: how many have left then, and how
    many GPUs they had in all; starts: where the region begins.
    """

    regions: Indices
    gangs: Indices
    reached: Indices
    left: Indices
    gpus: Indices
    starts: Indices


def fewest_to_move(free: FreeGpus, size: int, scope: int, needs: Needs, held: Held) -> list[int]:
    """Return the fewest gangs (of equals, those with the fewest GPUs) that must leave one region of the scope to make room there.

    Empty if no region would have room. Where CPUs or memory are short too, the gangs with the most GPUs there leave first.
    """
    if not len(held.gpus):
        return []
    leavers = _leavers(free, scope, held)
    # The first of each region with which there are enough.
    enough = np.flatnonzero(leavers.reached >= size)
    firsts = enough[np.unique(leavers.starts[enough], return_index=True)[1]]
    if free.room.limits(needs):
        return _fewest_with_needs(free, size, scope, needs, held, leavers, firsts)
    best = firsts[np.lexsort((leavers.gpus[firsts], leavers.left[firsts]))[:1]]
    return [gang for last in best.tolist() for gang in leavers.gangs[leavers.starts[last] : last + 1].tolist()]


def movers_by_node(free: FreeGpus, size: int, needs: Needs, held: Held) -> Iterator[tuple[int, int, list[int]]]:
    """The nodes that get room for so many GPUs when gangs leave: each with the GPUs of the fewest of these, and who they are."""
    if not len(held.gpus):
        return
    leavers = _leavers(free, NODE, held)
    room, limited = free.room.holes(needs).room, free.room.limits(needs)
    starts = np.flatnonzero(np.diff(leavers.regions, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(leavers.regions)], strict=True):
        node, order = int(leavers.regions[start]), leavers.gangs[start:end].tolist()
        least = int(np.searchsorted(leavers.reached[start:end], size)) + 1
        if room[node] >= size or least > len(order):
            continue
        count = _enough(free, size, NODE, needs, node, held, order, least) if limited else least
        if count:
            yield node, int(leavers.gpus[start + count - 1]), order[:count]


def _leavers(free: FreeGpus, scope: int, held: Held) -> _Leavers:
    layout = free.layout
    gangs, first, sizes = np.unique(held.owners, return_index=True, return_counts=True)
    gang = np.searchsorted(gangs, held.owners)
    pairs, gains = np.unique(layout.regions[scope][layout.node_of[held.gpus]] * len(gangs) + gang, return_counts=True)
    regions, gang = np.divmod(pairs, len(gangs))
    # The largest gains first reach the goal with the fewest gangs.
    order = np.lexsort((first[gang], sizes[gang], -gains, regions))
    regions, gang, gains = regions[order], gang[order], gains[order]
    starts = np.asarray(np.searchsorted(regions, regions))
    room = _room_in_regions(free, scope)[regions]
    left = np.arange(len(regions)) - starts + 1
    return _Leavers(regions, gangs[gang], room + _summed(gains, starts), left, _summed(sizes[gang], starts), starts)


def _room_in_regions(free: FreeGpus, scope: int, needs: Needs = NOTHING) -> Indices:
    """The room of each region for a gang."""
    return np.bincount(free.layout.regions[scope], weights=free.room.holes(needs).room).astype(np.int64)


def _summed(values: Indices, starts: Indices) -> Indices:
    """The sum of each region up to here."""
    sums = np.cumsum(values)
    result: Indices = sums - (sums - values)[starts]
    return result


def _fewest_with_needs(
    free: FreeGpus, size: int, scope: int, needs: Needs, held: Held, leavers: _Leavers, firsts: Indices
) -> list[int]:
    """The same where more gangs than their GPUs tell may have to leave; firsts: by region, the first with which GPUs suffice."""
    ends = np.searchsorted(leavers.regions, leavers.regions, side="right")
    options: list[tuple[int, int, int, list[int]]] = []
    for first in firsts[np.argsort(leavers.left[firsts], kind="stable")].tolist():
        start, least = int(leavers.starts[first]), int(leavers.left[first])
        if options and least > min(options)[0]:
            break
        order = leavers.gangs[start : int(ends[first])].tolist()
        count = _enough(free, size, scope, needs, int(leavers.regions[first]), held, order, least)
        if count:
            options.append((count, int(leavers.gpus[start + count - 1]), start, order[:count]))
    return min(options)[-1] if options else []


def _enough(free: FreeGpus, size: int, scope: int, needs: Needs, region: int, held: Held, order: Sequence[int], least: int) -> int:
    """How many of these gangs must leave, in this order, until there is room with CPUs and memory; 0 if all are not enough."""
    count = 0
    while count < len(order) and (count < least or _room_in_regions(free, scope, needs)[region] < size):
        free.give_back(held.of(order[count]), held.needs[order[count]])
        count += 1
    fits = _room_in_regions(free, scope, needs)[region] >= size
    for gang in order[:count]:
        free.take(held.of(gang), held.needs[gang])
    return count if fits else 0
