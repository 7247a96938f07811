"""Service in a tree: virtual time goes down from the root to the jobs, and from what a job has been served up again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.policies.virtual_time import Queues, VirtualTimes

__all__ = ["ServiceRise", "ServiceTree"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class ServiceTree:
    """Jobs below the nodes of a tree; each node shares out what it is served among its members, which are jobs or nodes.

    A fair node serves its members in proportion to their weights; one with `is_fifo` serves one after the other, by rank. Who has
    no room left takes no part; nor does a node below which nobody has. Source: generalised processor sharing (Parekh and Gallager,
    IEEE/ACM Transactions on Networking, 1993) at each node, one inside the other (Bennett and Zhang, SIGCOMM 1996).

    G rows of equal jobs and M nodes. counts, weights, ranks: (G,) jobs of each row, and the weight, above 0, and rank of each job;
    leaves: (G,) the node of each row; parents: (M,), -1 for the root; node_weights, node_ranks, is_fifo: (M,).
    Members of a fifo node have different ranks, the smallest is first, and each of its rows is one job.
    """

    def __init__(
        self,
        *,
        counts: ArrayLike,
        weights: ArrayLike,
        ranks: ArrayLike,
        leaves: ArrayLike,
        parents: ArrayLike,
        node_weights: ArrayLike,
        node_ranks: ArrayLike,
        is_fifo: ArrayLike,
    ) -> None:
        self.leaves: Indices = np.array(leaves, dtype=np.int64)
        self.parents: Indices = np.array(parents, dtype=np.int64)
        # Who stands below a node is a member of it: first come the G rows, then the M nodes.
        self.above = np.concatenate([self.leaves, self.parents])
        fifo = np.array(is_fifo, dtype=bool)
        self.speed = np.where(fifo[self.above], 1.0, _joined(weights, node_weights))
        rank, count = _joined(ranks, node_ranks), _joined(counts, np.ones(len(fifo)))
        depths = _depths(self.parents)
        self.tiers: list[_Tier] = []
        for depth in range(int(depths.max()) + 1):
            members = np.flatnonzero((self.above >= 0) & (depths[self.above] == depth))
            nodes, holder = np.unique(self.above[members], return_inverse=True)
            queues = Queues(holder, fifo[nodes], self.speed[members], rank[members], count[members])
            rows = np.flatnonzero(depths[self.leaves] >= depth)
            over = _ancestors(self.leaves[rows], self.parents, depths, depth)
            self.tiers.append(_Tier(members, nodes, queues, rows, np.searchsorted(nodes, over)))

    def __repr__(self) -> str:
        return f"ServiceTree({len(self.leaves)} rows of jobs, {len(self.parents)} nodes)"

    def rise(self, rooms: ArrayLike) -> ServiceRise:
        """Return how jobs are served that have (G,) room left: what each can still be served, at least 0."""
        size = len(self.leaves)
        room = _joined(rooms, np.zeros(len(self.parents)))
        begin, end = np.zeros_like(room), np.zeros_like(room)
        times = []
        for tier in reversed(self.tiers):  # what a node has room for is known once all below it is
            found = tier.queues.times(room[tier.members])
            begin[tier.members], end[tier.members] = found.begin, found.end
            room[size + tier.nodes] = found.total
            times.append(found)
        return ServiceRise(self, room, begin, end, tuple(reversed(times)))


@dataclass(frozen=True)
class _Tier:
    """The nodes of one depth that have members. rows: the jobs somewhere below them; over: which of these nodes is above each."""

    members: Indices
    nodes: Indices
    queues: Queues
    rows: Indices
    over: Indices


@dataclass(frozen=True, eq=False, repr=False)
class ServiceRise:
    """What jobs are served as the level rises: the virtual time of the root, which serves a member of weight w by w per unit.

    For a root that is fifo the level is what it has served. Services are those at a level that differs from the given one in its
    last digits, and the other way round, whatever the weights and rooms.
    """

    tree: ServiceTree
    room: Floats
    begin: Floats
    end: Floats
    times: tuple[VirtualTimes, ...]

    def __repr__(self) -> str:
        return f"ServiceRise(most={self.most:.6g} of {self.tree!r})"

    @property
    def most(self) -> float:
        """The level at which every job has all that it has room for; 0 if none has room."""
        return float(self.times[0].last.max(initial=0.0))

    def services(self, level: float) -> Floats:
        """Return (G,) what a job of each row has been served at this level."""
        tree, size = self.tree, len(self.tree.leaves)
        times = np.full(len(tree.parents), max(0.0, float(level)))
        for tier, found in zip(tree.tiers[1:], self.times[1:], strict=True):
            served = self._served(size + tier.nodes, times[tree.parents[tier.nodes]])
            times[tier.nodes] = found.times_at(np.arange(len(tier.nodes)), served)
        return self._served(slice(size), times[tree.leaves])

    def levels(self, services: ArrayLike) -> Floats:
        """Return (G,) the highest level at which a job of each row has been served no more than this.

        `most` for jobs that have all that they have room for.
        """
        tree, size = self.tree, len(self.tree.leaves)
        served = np.array(services, dtype=float)
        times = self._time(slice(size), served)
        for tier, found in zip(tree.tiers[:0:-1], self.times[:0:-1], strict=True):
            by_node = found.served_at(tier.over, times[tier.rows])
            times[tier.rows] = self._time(size + tier.nodes[tier.over], by_node)
        return np.where(served < self.room[:size], np.minimum(times, self.most), self.most)

    def _served(self, members: Indices | slice, times: Floats) -> Floats:
        """What members have been served by these virtual times of the nodes above them."""
        begin, end, room = self.begin[members], self.end[members], self.room[members]
        since = np.clip(times, begin, end) - begin
        return np.where(times >= end, room, np.minimum(since * self.tree.speed[members], room))

    def _time(self, members: Indices | slice, served: Floats) -> Floats:
        """The virtual times of the nodes above members by which these have been served so much."""
        begin, end = self.begin[members], self.end[members]
        with np.errstate(over="ignore"):
            return np.minimum(begin + served / self.tree.speed[members], end)


def _joined(rows: ArrayLike, nodes: ArrayLike) -> Floats:
    return np.concatenate([np.asarray(rows, dtype=float), np.asarray(nodes, dtype=float)])


def _depths(parents: Indices) -> Indices:
    """(M,) how far below the root each node is."""
    depths = np.where(parents < 0, 0, -1)
    while (unknown := depths < 0).any():
        depths[unknown] = np.where(depths[parents[unknown]] < 0, -1, depths[parents[unknown]] + 1)
    return depths


def _ancestors(nodes: Indices, parents: Indices, depths: Indices, depth: int) -> Indices:
    """The node at this depth above each node, or the node itself."""
    while (deeper := depths[nodes] > depth).any():
        nodes = np.where(deeper, parents[nodes], nodes)
    return nodes
