"""Placing the gangs of one accelerator type in a given order."""

from __future__ import annotations

from bisect import insort

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.placement.crowd import Crowd
from gavel_py.scheduling.placement.free_gpus import FreeGpus
from gavel_py.scheduling.placement.kinds import Kind
from gavel_py.scheduling.placement.moving import Held, fewest_to_move
from gavel_py.scheduling.placement.moving_evenly import fewest_to_move_evenly
from gavel_py.scheduling.placement.reach import Reach
from gavel_py.scheduling.placement.righting import Misplaced, put_right
from gavel_py.scheduling.placement.seeking import find_kind

__all__ = ["Settlement"]

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Settlement:
    """Who has which GPUs of one type: stays: (M,) bool, gangs that keep theirs; found: those of the others that have a place.

    free: what the gangs that stay have left; reach: how near together gangs could be.
    """

    def __init__(self, free: FreeGpus, crowd: Crowd, stays: Mask, reach: Reach) -> None:
        self.free, self.crowd, self.stays = free, crowd, stays.copy()
        self.found: dict[int, list[int]] = {}
        self._reach = reach
        self._rank = np.zeros(len(crowd), dtype=np.int64)

    def settle(self, order: Indices) -> None:
        """Place the gangs in this order; those that stay hold their GPUs until one that comes before needs them."""
        crowd, free, limits = self.crowd, self.free, self.free.layout.limited
        self._rank[order] = np.arange(len(order))
        waiting: list[int] = order[~self.stays[order]].tolist()
        sizes, apart = crowd.sizes.tolist(), (crowd.kinds == Kind.APART).tolist()
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
        wanted = crowd.kinds != Kind.ANY
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
        wrong: list[int] = np.flatnonzero(wanted & (nodes > 0) & (is_apart != (crowd.kinds == Kind.APART))).tolist()
        return wrong

    def _sought(self, gang: int, waiting: list[int], step: int) -> list[int] | None:
        """GPUs for one gang, moving gangs that come later: smaller ones to keep it together, any at all to place it."""
        crowd, free = self.crowd, self.free
        size, scope, needs = int(crowd.sizes[gang]), int(crowd.scopes[gang]), crowd.needs[gang]
        gpus = self._of_kind(gang, size, scope) if crowd.kinds[gang] != Kind.ANY else None
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

    def _held(self, movable: Mask) -> Held:
        crowd = self.crowd
        which = np.flatnonzero(movable[crowd.owners])
        which = which[np.argsort(self._rank[crowd.owners[which]], kind="stable")]
        return Held(crowd.held[which], crowd.owners[which], crowd.needs)
