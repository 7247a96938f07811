"""Fair queueing in a tree of tenants: what jobs have been served when the root has served for some virtual time, and the inverse.

`service_tree` builds the tree in which jobs are served from the tree of their tenants. In a `ServiceTree`, virtual time goes down
from the root to the jobs, and up again from what a job has been served. `Queues` and `VirtualTimes` are many nodes side by side:
how much each has served by a virtual time, and the inverse. `Segments` are consecutive parts of one array, with running totals and
sorted search in all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np
from numpy.typing import ArrayLike

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.io.names import natural_key
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tenants import Tenant, TenantTree


@dataclass(frozen=True)
class Segments:
    """Segment m holds the places starts[m] to stops[m] - 1 of an array; every place is in one segment.

    What is done in a segment depends on what it holds alone: not on where it stands, and not on the size of numbers in others.
    """

    starts: Indices
    stops: Indices

    @classmethod
    def of(cls, lengths: Indices) -> Segments:
        """Return segments of these lengths."""
        stops = np.cumsum(lengths)
        return cls(stops - lengths, stops)

    def sums(self, values: Floats) -> Floats:
        """Return at each place the sum of its segment up to there, where no value is negative; the sums never descend.

        Each round joins spans of twice the length, so a sum of n terms is right to log2(n) roundings, whatever their sizes.
        Differences of one sum over everything would lose what is small.
        """
        return self.ascending(_doubled(np.add, values, self._before()))

    def sums_back(self, values: Floats) -> Floats:
        """Return at each place the sum of its segment from there on."""
        stops = np.repeat(self.stops, self.stops - self.starts)
        return _doubled(np.add, values[::-1], (stops - 1 - np.arange(len(values)))[::-1])[::-1]

    def ascending(self, values: Floats) -> Floats:
        """Return at each place the largest value of its segment up to there, where none is negative."""
        return _doubled(np.maximum, values, self._before())

    def _before(self) -> Indices:
        """How many places of its segment stand before each place."""
        starts = np.repeat(self.starts, self.stops - self.starts)
        return np.arange(len(starts)) - starts

    def last_up_to(self, table: Floats, which: Indices, values: Floats) -> Indices:
        """Return for each value the last place in segment which[i] of a table, ascending in each, that is not above it.

        The first place, if all are above it.
        """
        last = self.stops[which] - 1
        found = self.starts[which]
        step = 1 << int((last - found).max(initial=0)).bit_length()
        while step := step >> 1:
            further = found + step
            is_there = table.take(further, mode="clip") <= values
            is_there &= further <= last
            found = found + is_there * np.int64(step)  # twice as fast as to choose
        return found


def _doubled(ufunc: np.ufunc, values: Floats, before: Indices) -> Floats:
    """Join each value with the `before` ones of its segment that stand before it."""
    found, step = values.copy(), 1
    longest = int(before.max(initial=0))
    while step <= longest:
        ufunc(found[step:], np.where(before[step:] >= step, found[:-step], 0.0), out=found[step:])
        step *= 2
    return found


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
    fifo: Mask
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


MOST_SHOWN = 3
"""Names told of those that have the same fault."""


def service_tree(
    tree: TenantTree, tenants: Sequence[str], *, job_ids: Sequence[str], counts: Indices, weights: Floats, arrivals: Floats
) -> ServiceTree:
    """Return the tree in which G rows of equal jobs are served below their tenants; tenants without jobs take no part.

    tenants, job_ids: (G,) whose they are, and the id of one of them; counts, weights, arrivals: (G,) how many they are, and the
    weight and arrival, s, of each. A fifo tenant serves its jobs by arrival, then id, and tenants by the arrival of their first
    job, then name; its rows are of one job (`TenantTree.orders_jobs`).
    Raises `InputError` for jobs whose tenant is not in the tree, or has others below it.
    """
    InputError.raise_any(_faults(tree, tenants, job_ids, counts))
    names = [tenant.name for tenant in tree.tenants] or sorted(set(tenants), key=natural_key)
    number = {name: i for i, name in enumerate(names, 1)}  # the root is 0
    known: dict[str, Tenant] = {tenant.name: tenant for tenant in tree.tenants}
    parents = np.array([-1, *(number.get(known[name].parent or "", 0) if name in known else 0 for name in names)])
    is_fifo = np.array([tree.policy == "fifo", *(name in known and known[name].policy == "fifo" for name in names)])
    leaves = np.array([number[name] for name in tenants], dtype=np.int64)
    return ServiceTree(
        counts=counts,
        weights=weights,
        ranks=_ranks(arrivals, job_ids, is_fifo[leaves]),
        leaves=leaves,
        parents=parents,
        node_weights=[1.0, *(known[name].weight if name in known else 1.0 for name in names)],
        node_ranks=_ranks(_first_arrivals(parents, leaves, arrivals), ["", *names], np.ones(len(parents), dtype=bool)),
        is_fifo=is_fifo,
    )


def _faults(tree: TenantTree, tenants: Sequence[str], job_ids: Sequence[str], counts: Indices) -> list[Fault]:
    names = [tenant.name for tenant in tree.tenants if tenant.name not in tree.parents]
    right = set(names)
    wrong: dict[str, list[int]] = {}
    for row, name in enumerate(tenants if names else ()):
        if name not in right:
            wrong.setdefault(name, []).append(row)
    # Rows come in the order of classes, which says nothing to a person.
    if len(wrong) > 1 and not right.intersection(tenants) and not tree.parents.intersection(tenants):
        theirs = ", ".join(map(repr, _first(wrong))) + (", ..." if len(wrong) > MOST_SHOWN else "")
        return [Fault("jobs", "tenant", f"no job is of a tenant in the tree: theirs are {theirs}{nearest('', names)}")]
    ordered = sorted(wrong, key=lambda name: natural_key(_first(job_ids[row] for row in wrong[name])[0]))
    return [Fault(_who(wrong[name], job_ids, counts), "tenant", _problem(tree, name, names)) for name in ordered]


def _first(names: Iterable[str]) -> list[str]:
    return nsmallest(MOST_SHOWN, names, key=natural_key)


def _who(rows: list[int], job_ids: Sequence[str], counts: Indices) -> str:
    first = _first(job_ids[row] for row in rows)
    others = int(counts[rows].sum()) - len(first)
    return ("job " if len(first) == 1 else "jobs ") + ", ".join(map(repr, first)) + (f" and {others} more" if others else "")


def _problem(tree: TenantTree, name: str, names: list[str]) -> str:
    if name in tree.parents:
        below = ", ".join(repr(tenant.name) for tenant in tree.tenants if tenant.parent == name)
        return f"{name!r} has tenants below it, and only those can have jobs: {below}, or another one for these jobs"
    return f"{name!r} is not in the tenant tree{nearest(name, names)}" if name else f"is empty{nearest('', names)}"


def _first_arrivals(parents: Indices, leaves: Indices, arrivals: Floats) -> Floats:
    """(M,) when the first job at or below each node came, infinite if there is none."""
    first = np.full(len(parents), np.inf)
    np.minimum.at(first, leaves, arrivals)
    before = np.zeros_like(first)
    while not np.array_equal(first, before):
        before = first.copy()
        np.minimum.at(first, parents[1:], before[1:])
    return first


def _ranks(arrivals: Floats, names: Sequence[str], which: Mask) -> Floats:
    """A number for each of those where the mask holds: 0, 1, ... by arrival, then name."""
    ranks = np.zeros(len(arrivals))
    rows = np.flatnonzero(which)
    if len(np.unique(arrivals[rows])) < len(rows):  # names take long to compare
        rows = np.array(sorted(rows.tolist(), key=lambda row: natural_key(names[row])), dtype=np.int64)
    ranks[rows[np.argsort(arrivals[rows], kind="stable")]] = np.arange(len(rows))
    return ranks
