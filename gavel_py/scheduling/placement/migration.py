"""Migration: which gangs move to make room for another gang, or to reach their preferred placement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np

from gavel_py.problem.arrays import Indices
from gavel_py.problem.eligibility import even_parts
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeRoom, find_preferred
from gavel_py.scheduling.placement.gangs import CONSOLIDATED, SPREAD
from gavel_py.scheduling.placement.topology import NODE, NOTHING, Resources


class MovableGangs(NamedTuple):
    """GPUs of gangs that may move, gang after gang; of equally good gangs, those that come first move."""

    gpus: Indices  # (H,) GPUs by number
    owners: Indices  # (H,) their gangs
    per_gpu: Sequence[Resources]  # by gang, the CPUs and memory that each GPU needs

    def of(self, gang: int) -> list[int]:
        """Return the GPUs of one gang."""
        gpus: list[int] = self.gpus[self.owners == gang].tolist()
        return gpus


class _EvictionOrder(NamedTuple):
    """Gangs of each region in the order in which they leave it, as (P,) arrays over pairs of a region and a gang."""

    regions: Indices  # the regions
    gangs: Indices  # the gangs
    reached: Indices  # GPUs that are free in the region after the gang and those before it have left
    departed: Indices  # number of gangs that have left by then
    gpus: Indices  # number of GPUs of these gangs in all regions
    starts: Indices  # index of the first pair of the region


def fewest_to_move(free: FreeGpus, size: int, scope: int, per_gpu: Resources, held: MovableGangs) -> list[int]:
    """Return the fewest gangs that must leave one region of the scope to make room; ties go to the fewest GPUs.

    Empty if no region can make room. If CPUs or memory are short as well, the gangs with the most GPUs in the region leave first.
    """
    if not len(held.gpus):
        return []
    evictions = _eviction_order(free, scope, held)
    # By region, the first pair with which GPUs suffice.
    enough = (evictions.reached >= size).nonzero()[0]
    firsts = enough[_runs(evictions.starts[enough])[:-1]]
    if free.room.limits(per_gpu):
        return _fewest_with_requests(free, size, scope, per_gpu, held, evictions, firsts)
    best = firsts[np.lexsort((evictions.gpus[firsts], evictions.departed[firsts]))[:1]]
    return [gang for last in best.tolist() for gang in evictions.gangs[evictions.starts[last] : last + 1].tolist()]


def movers_by_node(free: FreeGpus, size: int, per_gpu: Resources, held: MovableGangs) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (node, GPUs of the fewest gangs that must leave it, these gangs) for each node that can make room for `size` GPUs."""
    if not len(held.gpus):
        return
    evictions = _eviction_order(free, NODE, held)
    room, limited = free.room.index(per_gpu).room, free.room.limits(per_gpu)
    for start, end in pairwise(_runs(evictions.regions).tolist()):
        node, order = int(evictions.regions[start]), evictions.gangs[start:end].tolist()
        least = int(np.searchsorted(evictions.reached[start:end], size)) + 1
        if room[node] >= size or least > len(order):
            continue
        count = _enough(free, size, NODE, per_gpu, node, held, order, least) if limited else least
        if count:
            yield node, int(evictions.gpus[start + count - 1]), order[:count]


def _eviction_order(free: FreeGpus, scope: int, held: MovableGangs) -> _EvictionOrder:
    layout, of_gang = free.layout, _runs(held.owners)
    gangs, sizes = held.owners[of_gang[:-1]], of_gang[1:] - of_gang[:-1]
    pairs = layout.regions[scope][layout.node_of[held.gpus]] * len(gangs) + np.arange(len(gangs)).repeat(sizes)
    pairs.sort()
    of_pair = _runs(pairs)
    regions, gang = np.divmod(pairs[of_pair[:-1]], len(gangs))
    gains = of_pair[1:] - of_pair[:-1]
    # Gangs with the most GPUs in the region leave first, which needs the fewest gangs.
    order = np.lexsort((sizes[gang], -gains, regions))
    gang, gains = gang[order], gains[order]  # the regions are in order
    starts = np.asarray(regions.searchsorted(regions))
    room = _room_in_regions(free, scope)[regions]
    departed = np.arange(1, len(regions) + 1) - starts
    return _EvictionOrder(regions, gangs[gang], room + _summed(gains, starts), departed, _summed(sizes[gang], starts), starts)


def _runs(values: Indices) -> Indices:
    """Return (R + 1,) the indices at which the R runs of equal values begin, and the number of values."""
    begins = np.ones(len(values) + 1, dtype=bool)
    np.not_equal(values[1:], values[:-1], out=begins[1:-1])
    return begins.nonzero()[0]


def _room_in_regions(free: FreeGpus, scope: int, per_gpu: Resources = NOTHING) -> Indices:
    """Return the room of each region for a gang."""
    return np.bincount(free.layout.regions[scope], weights=free.room.index(per_gpu).room).astype(np.int64)


def _summed(values: Indices, starts: Indices) -> Indices:
    """Return the sum of the values of each region up to each pair."""
    sums = np.cumsum(values)
    return sums - (sums - values)[starts]


def _fewest_with_requests(
    free: FreeGpus, size: int, scope: int, per_gpu: Resources, held: MovableGangs, evictions: _EvictionOrder, firsts: Indices
) -> list[int]:
    """Return the result of `fewest_to_move` if CPUs or memory are limited; firsts: by region, the first pair with enough GPUs."""
    ends = np.searchsorted(evictions.regions, evictions.regions, side="right")
    options: list[tuple[int, int, int, list[int]]] = []
    for first in firsts[np.argsort(evictions.departed[firsts], kind="stable")].tolist():
        start, least = int(evictions.starts[first]), int(evictions.departed[first])
        if options and least > min(options)[0]:
            break
        order = evictions.gangs[start : int(ends[first])].tolist()
        count = _enough(free, size, scope, per_gpu, int(evictions.regions[first]), held, order, least)
        if count:
            options.append((count, int(evictions.gpus[start + count - 1]), start, order[:count]))
    return min(options)[-1] if options else []


def _enough(
    free: FreeGpus, size: int, scope: int, per_gpu: Resources, region: int, held: MovableGangs, order: Sequence[int], at_least: int
) -> int:
    """Return how many of these gangs must leave, in order, until GPUs, CPUs and memory suffice; 0 if they never do."""
    count = 0
    while count < len(order) and (count < at_least or _room_in_regions(free, scope, per_gpu)[region] < size):
        free.give_back(held.of(order[count]), held.per_gpu[order[count]])
        count += 1
    fits = _room_in_regions(free, scope, per_gpu)[region] >= size
    for gang in order[:count]:
        free.take(held.of(gang), held.per_gpu[gang])
    return count if fits else 0


class _NodeCost(NamedTuple):
    """Cost of clearing a node: number of gangs that leave, their GPUs, the node, and the gangs."""

    moves: int
    gpus: int
    node: int
    gangs: list[int]


def fewest_to_move_evenly(
    free: FreeGpus, size: int, scope: int, per_gpu: Resources, held: MovableGangs, *, split: int
) -> list[int]:
    """Return gangs that must leave one region of the scope to make room for an even split, on as few nodes as possible.

    In each region, the nodes that the fewest gangs must leave are used; a gang on two of them counts twice. Empty if no region can
    make room.
    """
    regions = free.layout.regions[scope]
    for count, part in even_parts(size, split):
        room = free.room.index(per_gpu).room
        costs = [_NodeCost(0, 0, n, []) for n in np.flatnonzero(room >= part).tolist()]
        costs += [_NodeCost(len(gangs), gpus, n, gangs) for n, gpus, gangs in movers_by_node(free, part, per_gpu, held)]
        by_region: dict[int, list[_NodeCost]] = {}
        for cost in sorted(costs):
            by_region.setdefault(int(regions[cost.node]), []).append(cost)
        ways = [each[:count] for each in by_region.values() if len(each) >= count]
        if ways:
            best = min(ways, key=lambda way: (sum(cost.moves for cost in way), sum(cost.gpus for cost in way)))
            return list(dict.fromkeys(gang for cost in best for gang in cost.gangs))
    return []


MAX_EXCHANGED = 32
"""Maximum number of gangs that are exchanged at once. Each trial places all of them, and drops those for which it fails."""


class MisplacedGang(NamedTuple):
    """A gang outside its preferred placement: its GPUs, {node: number of GPUs}, and the rest as in `GangBatch`."""

    gpus: list[int]
    parts: Mapping[int, int]
    preference: int
    size: int
    scope: int
    min_nodes: int
    per_gpu: Resources = NOTHING

    def fills(self, full: int) -> bool:
        """Return whether the gang must have all GPUs of its nodes; full: GPUs of the largest node."""
        return self.preference == CONSOLIDATED and self.size == self.min_nodes * full

    def may_fit(self, most: Sequence[int]) -> bool:
        """Return whether nodes with this room, most first, could hold it in its preferred placement."""
        if self.preference == CONSOLIDATED:
            return sum(most[: self.min_nodes]) >= self.size
        return len(most) > self.min_nodes and most[self.min_nodes] > 0

    def gpus_off_clear_nodes(self, room: Sequence[int], full: int) -> int:
        """Return the number of GPUs of the gang on nodes with less than full room."""
        return sum([count for node, count in self.parts.items() if room[node] < full])


def migrate_misplaced(free: FreeGpus, gangs: Sequence[MisplacedGang]) -> dict[int, list[int]]:
    """Move gangs to free GPUs or their own, or let them exchange GPUs; return {index: new GPUs} of the gangs that move.

    Gangs come in order of importance. Those that move get their preferred placement; all others stay.
    """
    migration_pass = _Migration(free, gangs)
    wrong = list(range(len(gangs)))
    while wrong:
        before = len(migration_pass.found)
        migration_pass.move(wrong)
        if len(migration_pass.found) == before:
            migration_pass.exchange(wrong)
        wrong = [gang for gang in wrong if gang not in migration_pass.found] if len(migration_pass.found) > before else []
    return migration_pass.found


class _Migration:
    """Moves of gangs by index; found: {gang: new GPUs}."""

    def __init__(self, free: FreeGpus, gangs: Sequence[MisplacedGang]) -> None:
        self._free, self._gangs = free, gangs
        self.found: dict[int, list[int]] = {}

    def move(self, wrong: Sequence[int]) -> None:
        """Move each gang for which free GPUs and its own allow its preferred placement."""
        for gang in wrong:
            if self._free.room.any_left:
                self._change(self._placed(self._without([gang]), [gang]))

    def exchange(self, wrong: Sequence[int]) -> None:
        """Place all gangs of a group again; drop those that miss their preferred placement, and try again with the rest."""
        groups = [wrong[start : start + MAX_EXCHANGED] for start in range(0, len(wrong), MAX_EXCHANGED)]
        for group in filter(self._may_exchange, groups):
            gangs = sorted(group, key=lambda i: (self._gangs[i].preference == SPREAD, -self._gangs[i].size))
            room = self._without(gangs)
            while len(gangs) > 1:
                after = self._placed(room.copy(), gangs)
                if len(after) == len(gangs):
                    self._change(after)
                    break
                for gang in gangs:
                    if gang not in after:
                        room.take(self._gangs[gang].parts, self._gangs[gang].per_gpu)
                gangs = list(after)

    def _may_exchange(self, group: Sequence[int]) -> bool:
        """Return whether at least two of these gangs could get their preferred placement at once, which few groups can.

        A node is clear if all of its GPUs are free or held by the group. Gangs that fill nodes can only move to clear nodes. They
        leave GPUs on other nodes only to the rest of the group, in exchange for `spare` GPUs on clear nodes, which the rest holds
        or which are free. So a gang with more than `spare` GPUs on other nodes stays, and the nodes on which it holds GPUs are not
        clear.
        """
        free, full = self._free.room.index(), self._free.room.max_room
        room, gangs = free.on.copy(), [(each, each.fills(full)) for each in map(self._gangs.__getitem__, group)]
        for each, _ in gangs:
            for node, count in each.parts.items():
                room[node] += count
        while len(gangs) > 1:
            spare = sum(compress(free.on, map(full.__eq__, room))) if free.total else 0
            spare += sum(count for each, fills in gangs if not fills for node, count in each.parts.items() if room[node] == full)
            most = sorted(room, reverse=True)
            moves = [each.gpus_off_clear_nodes(room, full) <= spare if fills else each.may_fit(most) for each, fills in gangs]
            if all(moves):
                return True
            left = list(compress(gangs, moves))
            if len(left) > 1:
                for (each, _), may_move in zip(gangs, moves, strict=True):
                    for node, count in each.parts.items() if not may_move else ():
                        room[node] -= count
            gangs = left
        return False

    def _without(self, gangs: Sequence[int]) -> FreeRoom:
        """Return the room if these gangs leave."""
        room = self._free.room.copy()
        for gang in gangs:
            room.give_back(self._gangs[gang].parts, self._gangs[gang].per_gpu)
        return room

    def _placed(self, room: FreeRoom, gangs: Sequence[int]) -> dict[int, dict[int, int]]:
        """Return {gang: {node: GPUs}} of the gangs that get their preferred placement in this room, placed in order."""
        found: dict[int, dict[int, int]] = {}
        failed = set[tuple[object, ...]]()  # requests without room; equal ones fail too, since room only shrinks
        for gang in gangs:
            _, _, preference, size, scope, min_nodes, per_gpu = self._gangs[gang]
            request = preference, size, scope, min_nodes, per_gpu
            if request in failed:
                continue
            parts = find_preferred(preference, room, size, scope, min_nodes, per_gpu)
            if parts is None:
                failed.add(request)
            else:
                room.take(parts, per_gpu)
                found[gang] = parts
        return found

    def _change(self, after: Mapping[int, Mapping[int, int]]) -> None:
        """Let gangs give back their GPUs, and then take new ones."""
        for gang in after:
            self._free.give_back(self._gangs[gang].gpus, self._gangs[gang].per_gpu)
        for gang, parts in after.items():
            self.found[gang] = self._free.take_lowest(parts, self._gangs[gang].per_gpu)
