"""Hierarchical fair queueing in a tree of tenants: the service of jobs as a function of virtual time at the root, and its inverse.

`service_tree` builds a `ServiceTree` from the tree of tenants. `ServiceTree.rise` returns the services as a function of the level,
which is the virtual time of the root. `Queues` and `VirtualTimes` compute the service of many nodes at once, as piecewise linear
functions of virtual time. `Segments` are consecutive parts of one array, with vectorised running sums and binary search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
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
    """A partition of an array: segment m has the places starts[m] to stops[m] - 1.

    Results in a segment depend on its values alone, not on its position nor, by rounding, on the values of other segments.
    """

    starts: Indices
    stops: Indices

    @classmethod
    def of(cls, lengths: Indices) -> Segments:
        """Return consecutive segments of these lengths."""
        stops = np.cumsum(lengths)
        return cls(stops - lengths, stops)

    def sums(self, values: Floats) -> Floats:
        """Return the running sums of nonnegative values in each segment; they never decrease.

        Each pass doubles the length of the summed spans, so a sum of n terms has log2(n) roundings. Differences of one running sum
        over the whole array would lose small values.
        """
        return self.ascending(_doubled(np.add, values, self._before()))

    def sums_back(self, values: Floats) -> Floats:
        """Return the sum of each segment from each place to its end."""
        stops = np.repeat(self.stops, self.stops - self.starts)
        return _doubled(np.add, values[::-1], (stops - 1 - np.arange(len(values)))[::-1])[::-1]

    def ascending(self, values: Floats) -> Floats:
        """Return the running maximum of nonnegative values in each segment."""
        return _doubled(np.maximum, values, self._before())

    def _before(self) -> Indices:
        """Return the number of places before each place in its segment."""
        starts = np.repeat(self.starts, self.stops - self.starts)
        return np.arange(len(starts)) - starts

    def last_up_to(self, table: Floats, which: Indices, values: Floats) -> Indices:
        """Return for each value the last place in segment which[i] where the table is at most the value, by binary search.

        The table ascends in each segment. If all entries are larger, the first place of the segment.
        """
        last = self.stops[which] - 1
        found = self.starts[which]
        step = 1 << int((last - found).max(initial=0)).bit_length()
        while step := step >> 1:
            further = found + step
            is_there = table.take(further, mode="clip") <= values
            is_there &= further <= last
            found = found + is_there * np.int64(step)  # twice as fast as np.where
        return found


def _doubled(ufunc: np.ufunc, values: Floats, before: Indices) -> Floats:
    """Reduce each value with the `before` values in front of it, doubling the span in each pass."""
    found, step = values.copy(), 1
    longest = int(before.max(initial=0))
    while step <= longest:
        ufunc(found[step:], np.where(before[step:] >= step, found[:-step], 0.0), out=found[step:])
        step *= 2
    return found


LATEST = 1e300
"""Upper limit on virtual times, so that a job with a tiny weight ends in finite time."""


@dataclass(frozen=True)
class Queues:
    """T nodes and their E members, which are served in the virtual time of their node.

    A fair node serves all members at once, each with `speed` units per unit of time. A fifo node serves the member with room left
    and the smallest rank, at speed 1. holder: (E,) the node of each member; fifo: (T,); speed, rank: (E,); count: (E,) the number
    of equal members in each entry, 1 in fifo nodes.
    """

    holder: Indices
    fifo: Mask
    speed: Floats
    rank: Floats
    count: Floats

    def times(self, room: Floats) -> VirtualTimes:
        """Return the service of nodes as a function of virtual time. room: (E,) the service that each member can still take."""
        fifo = self.fifo[self.holder]
        with np.errstate(over="ignore"):
            done = np.minimum(room / self.speed, LATEST)
        order = self._order(np.where(fifo, self.rank, done), room)
        # The corners of each node are (0, 0) and one for each member, at the time when the member is done.
        corners = Segments.of(np.bincount(self.holder, minlength=len(self.fifo)) + 1)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) + self.holder[order] + 1

        completed = corners.sums(self._put(place, self.count * room))
        speeds = corners.sums_back(self._put(place - 1, self.count * self.speed))
        is_fifo = np.repeat(self.fifo, corners.stops - corners.starts)
        times = np.where(is_fifo, completed, self._put(place, done))
        served = np.where(is_fifo, completed, completed + times * speeds)
        speeds[is_fifo] = 1.0
        speeds[corners.stops - 1] = 1.0  # arbitrary, since nothing is served after the last corner
        return VirtualTimes(
            corners,
            times,
            corners.ascending(served),  # despite rounding errors
            speeds,
            begin=np.where(fifo, completed[place - 1], 0.0),
            end=np.where(fifo, completed[place], done),
        )

    def _order(self, key: Floats, room: Floats) -> Indices:
        """Return the members by node and key, ties by all other values, so that sums do not depend on the order of entries."""
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
    """The service of each node as a piecewise linear function of its virtual time.

    corners: the breakpoints of each node; times, served: virtual time and service at each corner; speeds: service per unit of time
    after it, above 0; begin, end: (E,) the virtual time of the node between which each member is served.
    """

    corners: Segments
    times: Floats
    served: Floats
    speeds: Floats
    begin: Floats
    end: Floats

    @property
    def total(self) -> Floats:
        """(T,) the total service of each node."""
        return self.served[self.corners.stops - 1]

    @property
    def last(self) -> Floats:
        """(T,) the virtual time at which each node has served all of its room."""
        return self.times[self.corners.stops - 1]

    def served_at(self, nodes: Indices, times: Floats) -> Floats:
        """Return the service of each of `nodes` by the corresponding virtual time."""
        at, after = self._around(self.times, nodes, times)
        served = self.served[at] + (times - self.times[at]) * self.speeds[at]
        return np.minimum(served, self.served[after])

    def times_at(self, nodes: Indices, served: Floats) -> Floats:
        """Return the latest virtual time by which each of `nodes` has served at most `served`; infinite if that is its total."""
        at, after = self._around(self.served, nodes, served)
        with np.errstate(over="ignore"):
            times = self.times[at] + (served - self.served[at]) / self.speeds[at]
        return np.where(after > at, np.minimum(times, self.times[after]), np.inf)

    def _around(self, table: Floats, nodes: Indices, values: Floats) -> tuple[Indices, Indices]:
        """Return the corners before and after each value; after the last corner, that corner twice."""
        at = self.corners.last_up_to(table, nodes, values)
        return at, np.minimum(at + 1, self.corners.stops[nodes] - 1)


class ServiceTree:
    """A tree of M nodes with G rows of equal jobs as leaves; each node divides its service among its members, jobs or nodes.

    A fair node serves its members in proportion to their weights; a node with `is_fifo` serves them one after the other, by rank.
    Members without room left, and nodes with only such members below, are skipped. Source: generalised processor sharing (Parekh
    and Gallager, IEEE/ACM Transactions on Networking, 1993) at each node of a hierarchy (Bennett and Zhang, SIGCOMM 1996).

    counts, weights, ranks: (G,) number of jobs in each row, and the weight, above 0, and rank of each job; leaves: (G,) the node of
    each row; parents: (M,) the parent of each node, -1 for the root; node_weights, node_ranks, is_fifo: (M,); by default one fair
    node.
    Members of a fifo node have different ranks, and each of its rows is one job.

    Attributes:
        held: (H,) the service that each job of the last H rows still takes. They have it whatever the level is: they count in the
            shares of their nodes, and are in no result.
    """

    def __init__(
        self,
        *,
        counts: ArrayLike,
        weights: ArrayLike,
        ranks: ArrayLike,
        leaves: ArrayLike,
        parents: ArrayLike = (-1,),
        node_weights: ArrayLike = (1.0,),
        node_ranks: ArrayLike = (0.0,),
        is_fifo: ArrayLike = (False,),
    ) -> None:
        self.held: Floats = np.zeros(0)
        self.leaves: Indices = np.array(leaves, dtype=np.int64)
        self.parents: Indices = np.array(parents, dtype=np.int64)
        # Members are numbered: first the G rows, then the M nodes.
        self.above = np.concatenate([self.leaves, self.parents])
        self.weights: Floats = np.array(node_weights, dtype=float)
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

    @property
    def tops(self) -> tuple[Indices, Floats]:
        """(G + H,) the member of the root above each row, numbered from 0, and (M,) the weights of these members."""
        top = _ancestors(self.leaves, self.parents, _depths(self.parents), 1)
        members, of = np.unique(top, return_inverse=True)
        return of, self.weights[members]

    def risen(self, rise: ServiceRise, level: float) -> ServiceTree:
        """Return the tree after the jobs have risen to a level: what is held still takes less."""
        if not len(self.held):
            return self
        tree = copy(self)
        tree.held = self.held - rise.all_services(level)[-len(self.held) :]
        return tree

    def rise(self, rooms: ArrayLike) -> ServiceRise:
        """Return the services as a function of the level. rooms: (G,) the service that each job can still take, at least 0."""
        size = len(self.leaves)
        room = _joined(_joined(rooms, self.held), np.zeros(len(self.parents)))
        begin, end = np.zeros_like(room), np.zeros_like(room)
        times = []
        for tier in reversed(self.tiers):  # the room of a node is the total of its members
            found = tier.queues.times(room[tier.members])
            begin[tier.members], end[tier.members] = found.begin, found.end
            room[size + tier.nodes] = found.total
            times.append(found)
        return ServiceRise(self, room, begin, end, tuple(reversed(times)))


@dataclass(frozen=True)
class _Tier:
    """The nodes of one depth that have members. rows: the job rows below them; over: the index of the node above each of these."""

    members: Indices
    nodes: Indices
    queues: Queues
    rows: Indices
    over: Indices


@dataclass(frozen=True, eq=False, repr=False)
class ServiceRise:
    """The services of jobs as a function of the level: the virtual time of the root, in which weight w gets w units per unit.

    For a fifo root, the level is its service. Both directions are accurate to rounding errors of the level, for any weights and
    rooms.
    """

    tree: ServiceTree
    room: Floats
    begin: Floats
    end: Floats
    times: tuple[VirtualTimes, ...]

    @property
    def most(self) -> float:
        """The level at which no job has room left; 0 if none has room at the start."""
        return float(self.times[0].last.max(initial=0.0))

    def services(self, level: float) -> Floats:
        """Return (G,) the service of one job of each row at this level."""
        return self.all_services(level)[: len(self.tree.leaves) - len(self.tree.held)]

    def all_services(self, level: float) -> Floats:
        """Return (G + H,) the service of one job of each row at this level."""
        tree, size = self.tree, len(self.tree.leaves)
        times = np.full(len(tree.parents), max(0.0, float(level)))
        for tier, found in zip(tree.tiers[1:], self.times[1:], strict=True):
            served = self._served(size + tier.nodes, times[tree.parents[tier.nodes]])
            times[tier.nodes] = found.times_at(np.arange(len(tier.nodes)), served)
        return self._served(slice(size), times[tree.leaves])

    def levels(self, services: ArrayLike) -> Floats:
        """Return (G,) the highest level at which the service of a job of each row is at most this; `most` for jobs without room."""
        tree, size = self.tree, len(self.tree.leaves)
        served, jobs = _joined(services, tree.held), size - len(tree.held)
        times = self._time(slice(size), served)
        for tier, found in zip(tree.tiers[:0:-1], self.times[:0:-1], strict=True):
            by_node = found.served_at(tier.over, times[tier.rows])
            times[tier.rows] = self._time(size + tier.nodes[tier.over], by_node)
        return np.where(served < self.room[:size], np.minimum(times, self.most), self.most)[:jobs]

    def _served(self, members: Indices | slice, times: Floats) -> Floats:
        """Return the service of members by virtual times of their parent nodes."""
        begin, end, room = self.begin[members], self.end[members], self.room[members]
        since = np.clip(times, begin, end) - begin
        return np.where(times >= end, room, np.minimum(since * self.tree.speed[members], room))

    def _time(self, members: Indices | slice, served: Floats) -> Floats:
        """Return the virtual times of the parent nodes at which members have this service."""
        begin, end = self.begin[members], self.end[members]
        with np.errstate(over="ignore"):
            return np.minimum(begin + served / self.tree.speed[members], end)


def _joined(rows: ArrayLike, nodes: ArrayLike) -> Floats:
    return np.concatenate([np.asarray(rows, dtype=float), np.asarray(nodes, dtype=float)])


def _depths(parents: Indices) -> Indices:
    """Return (M,) the depth of each node; the root has 0."""
    depths = np.where(parents < 0, 0, -1)
    while (unknown := depths < 0).any():
        depths[unknown] = np.where(depths[parents[unknown]] < 0, -1, depths[parents[unknown]] + 1)
    return depths


def _ancestors(nodes: Indices, parents: Indices, depths: Indices, depth: int) -> Indices:
    """Return the ancestor of each node at this depth, or the node itself if it is not deeper."""
    while (deeper := depths[nodes] > depth).any():
        nodes = np.where(deeper, parents[nodes], nodes)
    return nodes


MAX_SHOWN = 3
"""Number of names that a message lists for the same fault."""


NOTHING_HELD: Mapping[str, Sequence[float]] = {}

FIRST = 1e9
"""Weight of what is held, so that a tenant has it before its jobs rise."""


def service_tree(
    tree: TenantTree,
    tenants: Sequence[str],
    *,
    job_ids: Sequence[str],
    counts: Indices,
    weights: Floats,
    arrivals: Floats,
    held: Mapping[str, Sequence[float]] = NOTHING_HELD,
) -> ServiceTree:
    """Return the service tree of G rows of equal jobs below their tenants.

    tenants, job_ids: (G,) the tenant of each row, and the id of one of its jobs; counts, weights, arrivals: (G,) number of
    jobs, and weight and arrival, s, of each. A fifo tenant serves jobs by arrival, then id, and tenants by first arrival, then
    name; each of its rows is one job (`TenantTree.orders_jobs`). held: {tenant: services that it has before those of its jobs}.
    Raises `InputError` if the tenant of a job is not a leaf of the tree.
    """
    more = [(tenant, service) for tenant, services in held.items() for service in services]
    tenants, job_ids = [*tenants, *(tenant for tenant, _ in more)], [*job_ids, *(f"held {n}" for n in range(len(more)))]
    counts, weights = np.append(counts, np.ones(len(more), dtype=int)), np.append(weights, np.full(len(more), FIRST))
    arrivals = np.append(arrivals, np.full(len(more), -np.inf))
    InputError.raise_any(_faults(tree, tenants, job_ids, counts))
    names = [tenant.name for tenant in tree.tenants] or sorted(set(tenants), key=natural_key)
    number = {name: i for i, name in enumerate(names, 1)}  # the root is 0
    known: dict[str, Tenant] = {tenant.name: tenant for tenant in tree.tenants}
    parents = np.array([-1, *(number.get(known[name].parent or "", 0) if name in known else 0 for name in names)])
    is_fifo = np.array([tree.policy == "fifo", *(name in known and known[name].policy == "fifo" for name in names)])
    leaves = np.array([number[name] for name in tenants], dtype=np.int64)
    found = ServiceTree(
        counts=counts,
        weights=weights,
        ranks=_ranks(arrivals, job_ids, is_fifo[leaves]),
        leaves=leaves,
        parents=parents,
        node_weights=[1.0, *(known[name].weight if name in known else 1.0 for name in names)],
        node_ranks=_ranks(_first_arrivals(parents, leaves, arrivals), ["", *names], np.ones(len(parents), dtype=bool)),
        is_fifo=is_fifo,
    )
    found.held = np.array([service for _, service in more])
    return found


def _faults(tree: TenantTree, tenants: Sequence[str], job_ids: Sequence[str], counts: Indices) -> list[Fault]:
    """Return a fault for each tenant of jobs that is not a leaf of the tree."""
    names = [tenant.name for tenant in tree.tenants if tenant.name not in tree.parents]
    known = set(names)
    wrong: dict[str, list[int]] = {}
    for row, name in enumerate(tenants if names else ()):
        if name not in known:
            wrong.setdefault(name, []).append(row)
    if len(wrong) > 1 and not known.intersection(tenants) and not tree.parents.intersection(tenants):
        theirs = ", ".join(map(repr, _first(wrong))) + (", ..." if len(wrong) > MAX_SHOWN else "")
        return [Fault("jobs", "tenant", f"no job names a tenant in the tree; they name {theirs}{nearest('', names)}")]
    # Rows are in the arbitrary order of classes, so faults are sorted by job id.
    first = {name: _first(job_ids[row] for row in rows) for name, rows in wrong.items()}
    faults = []
    for name in sorted(wrong, key=lambda name: natural_key(first[name][0])):
        others = int(counts[wrong[name]].sum()) - len(first[name])
        jobs = ", ".join(map(repr, first[name])) + (f" and {others} more" if others else "")
        problem = f"{name!r} is not in the tenant tree{nearest(name, names)}" if name else f"is empty{nearest('', names)}"
        if name in tree.parents:
            below = ", ".join(repr(tenant.name) for tenant in tree.tenants if tenant.parent == name)
            problem = f"{name!r} has tenants below it, so it cannot have jobs; use {below}, or add a tenant for these jobs"
        faults.append(Fault(f"job{'s' * (len(first[name]) > 1)} {jobs}", "tenant", problem))
    return faults


def _first(names: Iterable[str]) -> list[str]:
    return nsmallest(MAX_SHOWN, names, key=natural_key)


def _first_arrivals(parents: Indices, leaves: Indices, arrivals: Floats) -> Floats:
    """Return (M,) the first arrival of a job at or below each node, infinite if there is none."""
    first = np.full(len(parents), np.inf)
    np.minimum.at(first, leaves, arrivals)
    before = np.zeros_like(first)
    while not np.array_equal(first, before):
        before = first.copy()
        np.minimum.at(first, parents[1:], before[1:])
    return first


def _ranks(arrivals: Floats, names: Sequence[str], which: Mask) -> Floats:
    """Return ranks 0, 1, ... by arrival, then name, of the entries in a mask; 0 for the others."""
    ranks = np.zeros(len(arrivals))
    rows = np.flatnonzero(which)
    if len(np.unique(arrivals[rows])) < len(rows):  # comparing names is slow, so only ties are
        rows = np.array(sorted(rows.tolist(), key=lambda row: natural_key(names[row])), dtype=np.int64)
    ranks[rows[np.argsort(arrivals[rows], kind="stable")]] = np.arange(len(rows))
    return ranks
