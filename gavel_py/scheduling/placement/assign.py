"""Placing the gangs of one accelerator type in a given order, those that can keep their GPUs first.

`kept_gangs`: the running gangs that can keep their GPUs, found for all of them at once, and one after the other only where they
cannot all. `PlacementDomains`: how close together a gang of some size could be on the GPUs of a type, if none of the gangs to be
placed had any. `PlacementPass`: the places.
"""

from __future__ import annotations

from bisect import insort

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.scheduling.placement.free_gpus import FreeGpus, find_kind
from gavel_py.scheduling.placement.gangs import GangBatch, PlacementPreference
from gavel_py.scheduling.placement.migration import Misplaced, MovableGangs, fewest_to_move, fewest_to_move_evenly, put_right
from gavel_py.scheduling.placement.topology import NODE, NOTHING, RACK, SCOPES, Resources, TypeLayout, room_for


class PlacementDomains:
    """free: (GPUs,) bool, those that the gangs share; cpus, memory_gb: (nodes,) what there is of them."""

    def __init__(
        self, layout: TypeLayout, free: NDArray[np.bool_], cpus: NDArray[np.float64], memory_gb: NDArray[np.float64]
    ) -> None:
        self._layout, self._free, self._cpus, self._memory = layout, free, cpus, memory_gb
        self._largest: dict[Resources, list[int]] = {}

    def narrowest(self, size: int, scope: int, needs: Resources = NOTHING) -> int:
        """Return the narrowest scope, within this one, in which a gang of this size would fit; this one if it fits in none."""
        if needs not in self._largest:
            self._largest[needs] = self._room(needs)
        return next((within for within in range(scope + 1) if self._largest[needs][within] >= size), scope)

    def _room(self, needs: Resources) -> list[int]:
        """The largest room of one region of each scope."""
        counts = np.bincount(self._layout.node_of[self._free], minlength=len(self._layout.sizes))
        room = room_for(needs, counts, self._cpus, self._memory)
        return [int(np.bincount(self._layout.regions[scope], weights=room).max(initial=0)) for scope in range(len(SCOPES))]


class PlacementPass:
    """Who has which GPUs of one type: stays: (M,) bool, gangs that keep theirs; found: those of the others that have a place.

    free: what the gangs that stay have left; reach: how near together gangs could be.
    """

    def __init__(self, free: FreeGpus, crowd: GangBatch, stays: Mask, reach: PlacementDomains) -> None:
        self.free, self.crowd, self.stays = free, crowd, stays.copy()
        self.found: dict[int, list[int]] = {}
        self._reach = reach
        self._rank = np.zeros(len(crowd), dtype=np.int64)

    def settle(self, order: Indices) -> None:
        """Place the gangs in this order; those that stay hold their GPUs until one that comes before needs them."""
        crowd, free, limits = self.crowd, self.free, self.free.layout.limited
        self._rank[order] = np.arange(len(order))
        waiting: list[int] = order[~self.stays[order]].tolist()
        sizes, apart = crowd.sizes.tolist(), (crowd.kinds == PlacementPreference.APART).tolist()
        for step, gang in enumerate(waiting):  # which grows while gangs are moved
            # On one node with the least left over is best for nearly all.
            gpus = None if limits or apart[gang] else free.take_tightest(sizes[gang])
            if gpus is None:
                gpus = self._sought(gang, waiting, step)
                if gpus is None:
                    continue
                free.take(gpus, crowd.needs[gang])
            self.found[gang] = gpus

    @property
    def placed(self) -> Mask:
        """(M,) bool, the gangs that have a place."""
        placed = self.stays.copy()
        placed[list(self.found)] = True
        return placed

    def _held_by(self, gang: int) -> list[int]:
        """Return the GPUs of a gang that has a place."""
        if gang in self.found:
            return self.found[gang]
        start, stop = np.searchsorted(self.crowd.owners, [gang, gang + 1]).tolist()
        gpus: list[int] = self.crowd.held[start:stop].tolist()
        return gpus

    def put_right(self) -> None:
        """Move gangs that have a place of the wrong kind, if all have places."""
        crowd, wrong = self.crowd, self._wrong()
        held = [self._held_by(gang) for gang in wrong]
        kinds, sizes, scopes, fewest = (each[wrong].tolist() for each in (crowd.kinds, crowd.sizes, crowd.scopes, crowd.fewest))
        needs = [crowd.needs[gang] for gang in wrong]
        rows = zip(held, map(self.free.layout.parts_of, held), kinds, sizes, scopes, fewest, needs, strict=True)
        moved = put_right(self.free, [Misplaced(*row) for row in rows])
        for place, gpus in moved.items():
            self.found[wrong[place]], self.stays[wrong[place]] = gpus, False

    def _wrong(self) -> list[int]:
        """The gangs that have a place of the wrong kind."""
        crowd, layout = self.crowd, self.free.layout
        wanted = crowd.kinds != PlacementPreference.ANY
        if not wanted.any():
            return []
        stay = (wanted & self.stays)[crowd.owners]
        found = [(gang, gpu) for gang, gpus in self.found.items() if wanted[gang] for gpu in gpus]
        owners, gpus = np.concatenate(
            [(crowd.owners[stay], crowd.held[stay]), np.array(found, dtype=np.int64).reshape(-1, 2).T], axis=1
        )
        pairs = np.unique(owners * len(layout.sizes) + layout.node_of[gpus])
        nodes = np.bincount(pairs // len(layout.sizes), minlength=len(crowd))
        is_apart = nodes > crowd.fewest
        wrong: list[int] = np.flatnonzero(wanted & (nodes > 0) & (is_apart != (crowd.kinds == PlacementPreference.APART))).tolist()
        return wrong

    def _sought(self, gang: int, waiting: list[int], step: int) -> list[int] | None:
        """GPUs for one gang, moving gangs that come later: smaller ones to keep it together, any at all to place it."""
        crowd, free = self.crowd, self.free
        size, scope, needs = int(crowd.sizes[gang]), int(crowd.scopes[gang]), crowd.needs[gang]
        gpus = self._of_kind(gang, size, scope) if crowd.kinds[gang] != PlacementPreference.ANY else None
        if gpus is None:
            together = self._reach.narrowest(size, scope, needs)
            gpus = free.find(size, together, needs, even=bool(crowd.evens[gang]))
            if gpus is None:
                later = self.stays & (self._rank > self._rank[gang])
                gpus = self._cleared(gang, together, later & (crowd.sizes < size), waiting, step)
                gpus = gpus or self._cleared(gang, scope, later, waiting, step)
        return gpus

    def _of_kind(self, gang: int, size: int, scope: int) -> list[int] | None:
        """Free GPUs for a gang that are of its kind."""
        crowd = self.crowd
        parts = find_kind(int(crowd.kinds[gang]), self.free.room, size, scope, int(crowd.fewest[gang]), crowd.needs[gang])
        return None if parts is None else self.free.lowest(parts)

    def _cleared(self, gang: int, scope: int, movable: Mask, waiting: list[int], step: int) -> list[int] | None:
        """Free GPUs in one region of the scope, if need be after the fewest movable gangs have given up theirs."""
        crowd, free = self.crowd, self.free
        size, needs, even = int(crowd.sizes[gang]), crowd.needs[gang], bool(crowd.evens[gang])
        gpus = free.find(size, scope, needs, even=even)
        if gpus is None:
            held = self._held(movable)
            for other in (fewest_to_move_evenly if even else fewest_to_move)(free, size, scope, needs, held):
                free.give_back(held.of(other), crowd.needs[other])
                self.stays[other] = False
                insort(waiting, other, lo=step + 1, key=self._rank.__getitem__)
            gpus = free.find(size, scope, needs, even=even)
        return gpus

    def _held(self, movable: Mask) -> MovableGangs:
        crowd = self.crowd
        which = np.flatnonzero(movable[crowd.owners])
        which = which[np.argsort(self._rank[crowd.owners[which]], kind="stable")]
        return MovableGangs(crowd.held[which], crowd.owners[which], crowd.needs)


def kept_gangs(crowd: GangBatch, layout: TypeLayout, free: Mask, cpus: Floats, memory_gb: Floats, order: Indices) -> Mask:
    """Return (M,) bool, the gangs on one type that hold as many GPUs as they need, all there, free, and within their locality.

    free: (GPUs,); cpus, memory_gb: (nodes,) what is left; order: who comes first where two gangs hold one GPU, or a node has not
    enough CPUs or memory for all that hold GPUs there.
    """
    count = len(crowd)
    there = (crowd.held >= 0) & (crowd.held < len(free))
    there[there] = free[crowd.held[there]]
    held = np.bincount(crowd.owners[there], minlength=count)
    stays: Mask = (held == crowd.sizes) & (np.bincount(crowd.owners, minlength=count) == crowd.sizes)
    stays &= _local(crowd, layout, stays)
    gpus = crowd.held[stays[crowd.owners]]
    twice = gpus.size > 0 and int(np.bincount(gpus).max()) > 1
    if twice or (layout.limited and _overloaded(crowd, layout, stays, cpus, memory_gb)):
        return _one_by_one(crowd, layout, stays, free, cpus, memory_gb, order)
    return stays


def loads_of(crowd: GangBatch, gpus: Mask, layout: TypeLayout) -> tuple[Floats, Floats]:
    """Return (nodes,) the CPUs and (nodes,) the memory that gangs need for those GPUs that they held; gpus: (H,) bool."""
    nodes, owners = layout.node_of[crowd.held[gpus]], crowd.owners[gpus]
    needs = np.array(crowd.needs, dtype=float).reshape(-1, 2)[owners]
    used = np.zeros((2, len(layout.sizes)))
    for column in range(2):
        used[column] = np.bincount(nodes, weights=needs[:, column], minlength=len(layout.sizes))
    return used[0], used[1]


def _local(crowd: GangBatch, layout: TypeLayout, stays: Mask) -> Mask:
    """(M,) bool, those of the gangs that may stay so far which are in one region of their locality."""
    local = np.ones(len(crowd), dtype=bool)
    for scope in (NODE, RACK):
        bound = stays & (crowd.scopes == scope) & (crowd.sizes > 1)
        if bound.any():
            gpus = bound[crowd.owners]
            owners, regions = crowd.owners[gpus], layout.regions[scope][layout.node_of[crowd.held[gpus]]]
            # Each against the first of its gang: owners rise.
            firsts = regions[np.searchsorted(owners, owners)]
            local[owners[regions != firsts]] = False
    return local


def _overloaded(crowd: GangBatch, layout: TypeLayout, stays: Mask, cpus: Floats, memory_gb: Floats) -> bool:
    """Say whether these gangs together need more CPUs or memory of any node than it has left."""
    used = loads_of(crowd, stays[crowd.owners], layout)
    return bool((used[0] > cpus).any() or (used[1] > memory_gb).any())


def _one_by_one(
    crowd: GangBatch, layout: TypeLayout, stays: Mask, free: Mask, cpus: Floats, memory_gb: Floats, order: Indices
) -> Mask:
    """The same as asking one gang after the other whether it can stay beside those that were asked before."""
    free, cpus, memory_gb, kept = free.copy(), cpus.copy(), memory_gb.copy(), np.zeros(len(crowd), dtype=bool)
    starts = np.searchsorted(crowd.owners, np.arange(len(crowd) + 1))
    for gang in order[stays[order]].tolist():
        gpus, needs = crowd.held[starts[gang] : starts[gang + 1]], crowd.needs[gang]
        nodes, counts = np.unique(layout.node_of[gpus], return_counts=True)
        if len(np.unique(gpus)) < len(gpus) or not free[gpus].all():
            continue
        if layout.limited and needs != NOTHING and (counts > room_for(needs, counts, cpus[nodes], memory_gb[nodes])).any():
            continue
        kept[gang], free[gpus] = True, False
        cpus[nodes] -= counts * needs.cpus
        memory_gb[nodes] -= counts * needs.memory_gb
    return kept
