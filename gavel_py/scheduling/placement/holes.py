"""The nodes of a type by how many GPUs each has for a gang, so that the node that fits best is found in a few steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALL_NODES", "Holes", "mask_of"]

Indices = NDArray[np.int64]

ALL_NODES = -1
"""The mask in which each node is."""


def mask_of(nodes: NDArray[np.bool_]) -> int:
    """Return the number whose bit n says whether node n is one of these."""
    return int.from_bytes(np.packbits(nodes, bitorder="little").tobytes(), "little")


class Holes:
    """room: (nodes,) the GPUs that each node has, at most `most`, not to be changed but by `change`; total: of all nodes; among: a
    mask of nodes.

    Nodes with equal room are kept as one number, a bit for each: the first of equals is its lowest bit, and a copy to try
    something on is made of few numbers.
    """

    __slots__ = ("_masks", "room", "total")

    def __init__(self, room: Indices, most: int) -> None:
        self.room, self.total = room, int(room.sum())
        self._masks = [0] * (most + 1)
        counts = np.flatnonzero(np.bincount(room))
        bits = np.packbits(room == counts[:, None], axis=1, bitorder="little")  # a row for each number of GPUs, all at once
        for count, row in zip(counts.tolist(), bits, strict=True):
            self._masks[count] = int.from_bytes(row.tobytes(), "little")

    def copy(self) -> Holes:
        """Return the same, to be changed by itself."""
        made = object.__new__(Holes)
        made.room, made._masks, made.total = self.room.copy(), self._masks.copy(), self.total
        return made

    def change(self, gpus: Mapping[int, int], sign: int) -> None:
        """Note that nodes have so many GPUs more, or less where `sign` is -1."""
        room, masks = self.room, self._masks
        for node, count in gpus.items():
            before, bit = room.item(node), 1 << node
            after = before + sign * count
            room[node] = after
            self.total += after - before
            masks[before] ^= bit
            masks[after] ^= bit

    def tightest(self, size: int, among: int = ALL_NODES, below: int | None = None) -> int | None:
        """Return the node with the least room of at least `size`, the first of equals; below: only nodes with less room."""
        for mask in self._masks[size:below]:
            here = mask & among
            if here:
                return (here & -here).bit_length() - 1
        return None

    def count(self, among: int = ALL_NODES) -> int:
        """Return how many of these nodes have any room."""
        return sum((mask & among).bit_count() for mask in self._masks[1:] if mask)

    def fullest(self, nodes: int, among: int = ALL_NODES) -> int:
        """Return the room of so many of these nodes, those with the most."""
        room = 0
        for count in range(len(self._masks) - 1, 0, -1):
            here = min(nodes, (self._masks[count] & among).bit_count())
            room, nodes = room + here * count, nodes - here
            if not nodes:
                break
        return room

    def least_first(self, among: int = ALL_NODES) -> Iterator[int]:
        """Yield these nodes, those with the least room first, the first of equals first; not those without any."""
        for mask in self._masks[1:]:
            yield from _nodes_in(mask & among)

    def most_first(self, among: int = ALL_NODES) -> Iterator[int]:
        """Yield these nodes, those with the most room first, the first of equals first; not those without any."""
        for mask in self._masks[:0:-1]:
            yield from _nodes_in(mask & among)


def _nodes_in(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
