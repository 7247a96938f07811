"""Virtual time of many nodes side by side: how much each of them has served by then, and the inverse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.policies.segments import Segments

__all__ = ["Queues", "VirtualTimes"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

LATEST = 1e300
"""Later virtual times count as this one, so that a job of almost no weight is done in finite time."""


@dataclass(frozen=True)
class Queues:
    """T nodes and their E members, who are served in the virtual time of their node.

    A fair node serves all its members at once, each by `speed` per unit of time. A fifo node serves the one of the smallest rank
    that has room left, at speed 1. holder: (E,) the node of each member; fifo: (T,); speed, rank: (E,); count: (E,) how many equal
    members each entry stands for, 1 in fifo nodes.
    """

    holder: Indices
    fifo: NDArray[np.bool_]
    speed: Floats
    rank: Floats
    count: Floats

    def times(self, room: Floats) -> VirtualTimes:
        """Return how nodes serve members that have (E,) room left."""
        fifo = self.fifo[self.holder]
        with np.errstate(over="ignore"):
            done = np.minimum(room / self.speed, LATEST)
        order = self._order(np.where(fifo, self.rank, done), room)
        # Each node's corners: (0, 0), then one for each member, where that is done.
        corners = Segments.of(np.bincount(self.holder, minlength=len(self.fifo)) + 1)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) + self.holder[order] + 1

        gone = corners.sums(self._put(place, self.count * room))
        speeds = corners.sums_back(self._put(place - 1, self.count * self.speed))
        in_turn = np.repeat(self.fifo, corners.stops - corners.starts)
        times = np.where(in_turn, gone, self._put(place, done))
        served = np.where(in_turn, gone, gone + times * speeds)
        speeds[in_turn] = 1.0
        speeds[corners.stops - 1] = 1.0  # any number will do after the last corner
        return VirtualTimes(
            corners,
            times,
            corners.ascending(served),  # ascending to the last digit
            speeds,
            begin=np.where(fifo, gone[place - 1], 0.0),
            end=np.where(fifo, gone[place], done),
        )

    def _order(self, key: Floats, room: Floats) -> Indices:
        """The members by node, then key; ties by all else that counts, so that no sum depends on the order of the entries."""
        order = np.lexsort((key, self.holder))
        holder, key = self.holder[order], key[order]
        new = np.concatenate([[True], (holder[1:] != holder[:-1]) | (key[1:] != key[:-1])])
        tied = np.flatnonzero(~(new & np.append(new[1:], True)))
        one = order[tied]
        order[tied] = one[np.lexsort((self.count[one] * self.speed[one], self.count[one] * room[one], np.cumsum(new)[tied]))]
        return order

    def _put(self, place: Indices, values: Floats) -> Floats:
        corners = np.zeros(len(self.holder) + len(self.fifo))
        corners[place] = values
        return corners


@dataclass(frozen=True)
class VirtualTimes:
    """How much nodes have served by a virtual time: for each a function that is linear between its corners.

    corners: those of each node; times, served: virtual time and service at each; speeds: service per unit of time from
    there on, above 0. begin, end: (E,) when each member is served, in the virtual time of its node.
    """

    corners: Segments
    times: Floats
    served: Floats
    speeds: Floats
    begin: Floats
    end: Floats

    @property
    def total(self) -> Floats:
        """(T,) what each node serves in all."""
        return self.served[self.corners.stops - 1]

    @property
    def last(self) -> Floats:
        """(T,) the virtual time at which each node is done."""
        return self.times[self.corners.stops - 1]

    def served_at(self, nodes: Indices, times: Floats) -> Floats:
        """Return what nodes have served by these virtual times, one for each."""
        at, after = self._around(self.times, nodes, times)
        served = self.served[at] + (times - self.times[at]) * self.speeds[at]
        return np.minimum(served, self.served[after])

    def times_at(self, nodes: Indices, served: Floats) -> Floats:
        """Return the latest virtual times by which nodes have served no more than this: no end where that is all there is."""
        at, after = self._around(self.served, nodes, served)
        with np.errstate(over="ignore"):
            times = self.times[at] + (served - self.served[at]) / self.speeds[at]
        return np.where(after > at, np.minimum(times, self.times[after]), np.inf)

    def _around(self, table: Floats, nodes: Indices, values: Floats) -> tuple[Indices, Indices]:
        """The corners before and after each value; the last one twice."""
        at = self.corners.last_up_to(table, nodes, values)
        return at, np.minimum(at + 1, self.corners.stops[nodes] - 1)
