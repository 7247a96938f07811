"""Migration: which gangs should move so that another one fits, or so that more of them have the placement that they should have.

`fewest_to_move`, and `fewest_to_move_evenly` for a gang that is to have as many GPUs on each of its nodes; `put_right` moves gangs
that are not in the placement that they should have, when all gangs have their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gavel_py.problem.arrays import Indices
from gavel_py.problem.eligibility import even_parts
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeRoom, find_kind
from gavel_py.scheduling.placement.gangs import PlacementPreference
from gavel_py.scheduling.placement.topology import NODE, NOTHING, Resources


class MovableGangs(NamedTuple):
    """The GPUs of gangs that may move.

    gpus: (H,) by number; owners: (H,) whose they are, the gangs in the order in which they are to be kept rather than others that
    are as good; needs: by gang, what each of its GPUs needs on its node.
    """

    gpus: Indices
    owners: Indices
    needs: Sequence[Resources]

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


def fewest_to_move(free: FreeGpus, size: int, scope: int, needs: Resources, held: MovableGangs) -> list[int]:
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


def movers_by_node(free: FreeGpus, size: int, needs: Resources, held: MovableGangs) -> Iterator[tuple[int, int, list[int]]]:
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


def _leavers(free: FreeGpus, scope: int, held: MovableGangs) -> _Leavers:
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


def _room_in_regions(free: FreeGpus, scope: int, needs: Resources = NOTHING) -> Indices:
    """The room of each region for a gang."""
    return np.bincount(free.layout.regions[scope], weights=free.room.holes(needs).room).astype(np.int64)


def _summed(values: Indices, starts: Indices) -> Indices:
    """The sum of each region up to here."""
    sums = np.cumsum(values)
    result: Indices = sums - (sums - values)[starts]
    return result


def _fewest_with_needs(
    free: FreeGpus, size: int, scope: int, needs: Resources, held: MovableGangs, leavers: _Leavers, firsts: Indices
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


def _enough(
    free: FreeGpus, size: int, scope: int, needs: Resources, region: int, held: MovableGangs, order: Sequence[int], least: int
) -> int:
    """How many of these gangs must leave, in this order, until there is room with CPUs and memory; 0 if all are not enough."""
    count = 0
    while count < len(order) and (count < least or _room_in_regions(free, scope, needs)[region] < size):
        free.give_back(held.of(order[count]), held.needs[order[count]])
        count += 1
    fits = _room_in_regions(free, scope, needs)[region] >= size
    for gang in order[:count]:
        free.take(held.of(gang), held.needs[gang])
    return count if fits else 0


class _Cleared(NamedTuple):
    """What a node costs: how many gangs must leave it, the GPUs that they have in all, which node it is, and the gangs."""

    moves: int
    gpus: int
    node: int
    gangs: list[int]


def fewest_to_move_evenly(free: FreeGpus, size: int, scope: int, needs: Resources, held: MovableGangs) -> list[int]:
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


MOST_EXCHANGED = 32
"""Gangs that are tried at once: each try takes all of them anew, and leaves out those for which it has failed."""


class Misplaced(NamedTuple):
    """A gang that is not of its kind on the GPUs that it has, `parts` of them on each node; the rest as in `GangBatch`."""

    gpus: list[int]
    parts: Mapping[int, int]
    kind: int
    size: int
    scope: int
    fewest: int
    needs: Resources = NOTHING


def put_right(free: FreeGpus, gangs: Sequence[Misplaced]) -> dict[int, list[int]]:
    """Move gangs to free GPUs, their own included, or on each other's; return those that move, by place, and their GPUs.

    Those that matter most come first. Who moves is of its kind then; the others stay where they are.
    """
    righting = _Migration(free, gangs)
    wrong = list(range(len(gangs)))
    while wrong:
        before = len(righting.found)
        righting.move(wrong)
        if len(righting.found) == before:
            righting.exchange(wrong)
        wrong = [gang for gang in wrong if gang not in righting.found] if len(righting.found) > before else []
    return righting.found


class _Migration:
    """Gangs by their places; found: those that have moved, and where to."""

    def __init__(self, free: FreeGpus, gangs: Sequence[Misplaced]) -> None:
        self._free, self._gangs = free, gangs
        self.found: dict[int, list[int]] = {}

    def move(self, wrong: Sequence[int]) -> None:
        """Move each gang for which free GPUs and its own are enough."""
        for gang in wrong:
            if self._free.room.any_left:
                self._change(self._placed(self._without([gang]), [gang]))

    def exchange(self, wrong: Sequence[int]) -> None:
        """Let gangs change places all at once: those that cannot be of their kind then are left out, and it is tried anew."""
        groups = [wrong[start : start + MOST_EXCHANGED] for start in range(0, len(wrong), MOST_EXCHANGED)]
        for group in groups:
            gangs = sorted(group, key=lambda i: (self._gangs[i].kind == PlacementPreference.APART, -self._gangs[i].size))
            room = self._without(gangs)
            while len(gangs) > 1:
                after = self._placed(room.copy(), gangs)
                if len(after) == len(gangs):
                    self._change(after)
                    break
                for gang in gangs:
                    if gang not in after:
                        room.take(self._gangs[gang].parts, self._gangs[gang].needs)
                gangs = list(after)

    def _without(self, gangs: Sequence[int]) -> FreeRoom:
        """What would be free if these gangs had nothing."""
        room = self._free.room.copy()
        for gang in gangs:
            room.give_back(self._gangs[gang].parts, self._gangs[gang].needs)
        return room

    def _placed(self, room: FreeRoom, gangs: Sequence[int]) -> dict[int, dict[int, int]]:
        """Place gangs in this room, one after the other; return {node: GPUs} of those that are of their kind there."""
        found: dict[int, dict[int, int]] = {}
        for gang in gangs:
            each = self._gangs[gang]
            parts = find_kind(each.kind, room, each.size, each.scope, each.fewest, each.needs)
            if parts is not None:
                room.take(parts, each.needs)
                found[gang] = parts
        return found

    def _change(self, after: Mapping[int, Mapping[int, int]]) -> None:
        """Let gangs give back their GPUs, and then take others."""
        for gang in after:
            self._free.give_back(self._gangs[gang].gpus, self._gangs[gang].needs)
        for gang, parts in after.items():
            self.found[gang] = self._free.lowest(parts)
            self._free.take(self.found[gang], self._gangs[gang].needs)
