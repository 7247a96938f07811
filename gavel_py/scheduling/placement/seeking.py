"""Room for a gang on the fewest nodes of its type, or on more than these."""

from __future__ import annotations

from gavel_py.scheduling.placement.free_room import FreeRoom, gathered
from gavel_py.scheduling.placement.holes import Holes
from gavel_py.scheduling.placement.kinds import Kind
from gavel_py.scheduling.placement.layout import NODE
from gavel_py.scheduling.placement.needs import NOTHING, Needs

__all__ = ["find_kind"]


def find_kind(kind: int, room: FreeRoom, size: int, scope: int, fewest: int, needs: Needs = NOTHING) -> dict[int, int] | None:
    """Return {node: GPUs} within one region of the scope, on no more than the fewest nodes (together) or on more (apart), or None.

    One rack if possible; always the region with the least room.
    """
    if kind == Kind.APART:
        return _apart(room, size, scope, fewest, needs)
    return _together(room, size, scope, fewest, needs)


def _together(room: FreeRoom, size: int, scope: int, fewest: int, needs: Needs) -> dict[int, int] | None:
    """Room where the fullest holes, as many as there are to be nodes, are enough."""
    if fewest == 1:
        return room.fit(size, NODE, needs)
    holes = room.holes(needs)
    regions = room.regions(holes, size, scope)
    among = next((region for region in regions if holes.fullest(fewest, region) >= size), None)
    return None if among is None else gathered(holes, size, among)


def _apart(room: FreeRoom, size: int, scope: int, fewest: int, needs: Needs) -> dict[int, int] | None:
    """Room in the smallest holes, so that large ones stay whole, but no more of each than leaves one for every further node."""
    if size <= fewest:
        return None
    holes = room.holes(needs)
    regions = room.regions(holes, size, scope)
    among = next((region for region in regions if holes.count(region) > fewest), None)
    return None if among is None else _parts(holes, among, size, fewest + 1)


def _parts(holes: Holes, among: int, size: int, least: int) -> dict[int, int]:
    """{node: GPUs} of a gang on these nodes, the smallest holes first, at least on so many of them."""
    parts: dict[int, int] = {}
    for n in holes.least_first(among):
        further = max(0, least - len(parts) - 1)
        parts[n] = min(holes.room.item(n), size - further)
        size -= parts[n]
        if not size:
            break
    return parts
