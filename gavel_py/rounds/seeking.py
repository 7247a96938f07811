"""Free GPUs for a gang on the fewest nodes of its type, or on more than these."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gavel_py.rounds.free_gpus import FreeGpus, best_fit
from gavel_py.rounds.kinds import Kind
from gavel_py.rounds.layout import NODE, RACK
from gavel_py.rounds.needs import NOTHING, Needs

__all__ = ["find_kind"]

Indices = NDArray[np.int64]


def find_kind(kind: int, free: FreeGpus, size: int, scope: int, fewest: int, needs: Needs = NOTHING) -> list[int] | None:
    """Return free GPUs within one region of the scope, on no more than the fewest nodes (together) or on more (apart), or None.

    One rack if possible; always the region with the least room.
    """
    if kind == Kind.APART:
        return _apart(free, size, scope, fewest, needs)
    return _together(free, size, scope, fewest, needs)


def _together(free: FreeGpus, size: int, scope: int, fewest: int, needs: Needs) -> list[int] | None:
    """GPUs where the fullest holes, as many as there are to be nodes, are enough."""
    if fewest == 1:
        return free.find(size, NODE, needs)
    room = free.room(needs)
    holes = np.flatnonzero(room)
    for regions in _regions(free, scope, holes):
        order = np.lexsort((-room[holes], regions))
        rank = np.arange(len(order)) - np.searchsorted(regions[order], regions[order])
        fullest = order[rank < fewest]
        enough = np.bincount(regions[fullest], weights=room[holes[fullest]]) >= size
        region = best_fit(np.where(enough, np.bincount(regions, weights=room[holes]), -1.0), size)
        if region is not None:
            return free.gathered(holes[regions == region], room, size)
    return None


def _apart(free: FreeGpus, size: int, scope: int, fewest: int, needs: Needs) -> list[int] | None:
    """GPUs of the smallest holes, so that large ones stay whole, but no more of each than leaves one for every further node."""
    room = free.room(needs)
    holes = np.flatnonzero(room)
    if size <= fewest or len(holes) <= fewest:
        return None
    for regions in _regions(free, scope, holes):
        enough = np.bincount(regions) > fewest
        region = best_fit(np.where(enough, np.bincount(regions, weights=room[holes]), -1.0), size)
        if region is not None:
            here = holes[regions == region]
            return free.lowest(_parts(here[np.argsort(room[here], kind="stable")], room, size, fewest + 1))
    return None


def _regions(free: FreeGpus, scope: int, nodes: Indices) -> Iterator[Indices]:
    """The regions of nodes within which a gang on several may be: racks first, if there are any."""
    for within in range(RACK, scope + 1):
        if within != RACK or free.layout.racked:
            yield free.layout.regions[within][nodes]


def _parts(nodes: Indices, room: Indices, size: int, least: int) -> dict[int, int]:
    """{node: GPUs} of a gang on these nodes, in this order, at least on so many of them."""
    parts: dict[int, int] = {}
    for n in nodes.tolist():
        further = max(0, least - len(parts) - 1)
        parts[n] = min(int(room[n]), size - further)
        size -= parts[n]
        if not size:
            break
    return parts
