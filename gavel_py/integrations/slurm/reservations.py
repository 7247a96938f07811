"""Future reservations of nodes: which jobs may still start on these nodes, and which must leave before a reservation begins.

Slurm does not start a job on a node if its time limit would extend into a reservation of that node. A job without a time limit
cannot start on any node with a future reservation. So nodes on which a reservation lets only some jobs start form a separate
accelerator (`divided`), like the nodes of a partition. Once a reservation has begun, the state of its nodes shows it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from gavel_py.integrations.slurm.actions import time_left
from gavel_py.integrations.slurm.client.commands import SlurmCommands
from gavel_py.integrations.slurm.client.notation import expand, printable
from gavel_py.integrations.slurm.client.records import Phase, Reservation, SlurmJob, Snapshot
from gavel_py.integrations.slurm.job_roles import Eligibility, Role
from gavel_py.integrations.slurm.records import RestartCost, Tracked
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.state import DriverState

LINE = re.compile(r"^ReservationName=(\S+) StartTime=(\S+) EndTime=(\S+) .*?\bNodes=(\S+)", re.MULTILINE)

MAX_GROUPS = 8
"""Maximum number of groups into which reservations divide the nodes of a kind. If the reservations of many nodes begin one after
another, as when a cluster is updated node by node, jobs cannot use some nodes on which they would just end in time."""


class NodesAhead(NamedTuple):
    """The effect of future reservations on the nodes of a partition.

    Attributes:
        closed: Nodes on which no more jobs may start.
        to_leave: Nodes whose jobs must move away now.
    """

    closed: frozenset[str] = frozenset()
    to_leave: frozenset[str] = frozenset()

    def leaving(self, jobs: Iterable[Tracked]) -> set[str]:
        """Return the jobs among these that must leave their nodes."""
        return {tracked.job_id for tracked in jobs if not self.to_leave.isdisjoint(tracked.held)}


def reservations_in(text: str) -> tuple[Reservation, ...]:
    """Parse the output of `scontrol show reservation --oneliner`; reservations without nodes, such as of licences, are skipped."""
    found = []
    for name, start, end, nodes in LINE.findall(text):
        try:
            begins, ends = (datetime.fromisoformat(each).timestamp() for each in (start, end))
            names = frozenset(expand("" if nodes == "(null)" else nodes))
        except ValueError:
            continue
        if names:
            found.append(Reservation(printable(name), names, begins, ends))
    return tuple(found)


def with_reservations(snapshot: Snapshot, commands: SlurmCommands) -> Snapshot:
    """Add reservations to a snapshot, none if scontrol cannot list them. Raises `SlurmError` if Slurm does not answer."""
    result = commands.run(["scontrol", "show", "reservation", "--oneliner"])
    return replace(snapshot, reservations=reservations_in(result.out)) if result.code == 0 else snapshot


def beginnings(reservations: Iterable[Reservation], now_seconds: float) -> dict[str, Reservation]:
    """Return {node: its earliest reservation that has not ended}."""
    ahead = sorted((each for each in reservations if each.end_seconds > now_seconds), key=lambda each: -each.start_seconds)
    return {node: each for each in ahead for node in each.nodes}


def divided(
    kinds: Mapping[str, Hashable], ahead: Mapping[str, Reservation], ends: Iterable[float], gangs: Iterable[Collection[str]] = ()
) -> dict[str, Reservation]:
    """Divide nodes into groups on which the same jobs can start before reservations begin.

    Nodes of one kind are in the same group if the same number of jobs would end there in time. There are at most `MAX_GROUPS` of a
    kind.

    Args:
        kinds: {node: kind}; a group has nodes of only one kind.
        ahead: {node: its next reservation}.
        ends: The times at which jobs would end if they started now.
        gangs: Sets of nodes that must be in the same group, since a gang runs on them.

    Returns:
        {node: the first reservation of its group}, without nodes on which all jobs can start.
    """
    ordered, first, gangs = sorted(ends), {node: each for node, each in ahead.items() if node in kinds}, list(gangs)
    before: dict[str, Reservation] = {}
    while gangs and first != before:
        before = dict(first)
        for nodes in gangs:
            there = [first[node] for node in nodes if node in first]
            first |= dict.fromkeys(nodes, min(there, key=_order)) if there else {}
    in_time = {node: bisect_right(ordered, each.start_seconds) for node, each in first.items()}
    counts: dict[Hashable, set[int]] = {}
    for node, count in in_time.items():
        counts.setdefault(kinds[node], set()).add(count)
    groups = {kind: _few(sorted({*found, len(ordered)})) for kind, found in counts.items()}
    earliest: dict[tuple[Hashable, int], Reservation] = {}
    for node in sorted(first, key=lambda node: _order(first[node]), reverse=True):
        earliest[kinds[node], groups[kinds[node]][in_time[node]]] = first[node]
    group_of = {node: groups[kinds[node]][count] for node, count in in_time.items()}
    return {node: earliest[kinds[node], count] for node, count in group_of.items() if count < len(ordered)}


def _order(reservation: Reservation) -> tuple[float, str]:
    return reservation.start_seconds, reservation.name


def _few(counts: list[int]) -> dict[int, int]:
    """Return {number of jobs: number of its group}. Numbers that differ least are merged into the smaller one."""
    kept = list(counts)
    while len(kept) > MAX_GROUPS:
        del kept[min(range(1, len(kept) - 1), key=lambda i: kept[i] - kept[i - 1])]
    return {count: kept[bisect_right(kept, count) - 1] for count in counts}


def groups_ahead(snapshot: Snapshot, state: DriverState | None, settings: SlurmSettings) -> dict[str, Reservation]:
    """Return {node: reservation before which its jobs must end} of the nodes that are planned in separate groups (`divided`)."""
    outlook, partitions = ReservationEffects.of(snapshot, state, settings), settings.partitions
    ahead = {node: each for node, each in outlook.ahead.items() if each.start_seconds > snapshot.seconds}
    if not ahead:
        return {}
    jobs = [job for job in snapshot.jobs.values() if job.num_gpus and not job.phase.is_over and job.is_in(partitions)]
    kinds = {node.name: (frozenset(node.gpus), node.partitions.intersection(partitions)) for node in snapshot.nodes.values()}
    return divided(kinds, ahead, map(outlook.end_if_started, jobs), [job.held for job in jobs if len(job.held) > 1])


@dataclass(frozen=True)
class ReservationEffects:
    """The effect of reservations on the jobs of a snapshot.

    Attributes:
        ahead: {node: its next reservation}.
        groups: {accelerator: reservation before which its jobs must end}.
        group_of: {node: its accelerator}.
        known: {job: its record}.
        now_seconds: Time of the snapshot.
        margin_seconds: Time that a stop and a start take.
        counts_all: Whether a time limit covers all starts of a job together.
    """

    ahead: Mapping[str, Reservation] = field(default_factory=dict)
    groups: Mapping[str, Reservation] = field(default_factory=dict)
    group_of: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Tracked] = field(default_factory=dict)
    now_seconds: float = 0.0
    margin_seconds: float = 0.0
    counts_all: bool = True

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        state: DriverState | None,
        settings: SlurmSettings,
        groups: Mapping[str, Reservation] | None = None,
        group_of: Mapping[str, str] | None = None,
    ) -> ReservationEffects:
        """Return the outlook of a snapshot; state: None if there is none yet."""
        known: Mapping[str, Tracked] = {} if state is None else ChainMap(state.tracked, state.aside)
        margin = (RestartCost() if state is None else state.restart_cost).seconds
        ahead = beginnings(snapshot.reservations, snapshot.seconds)
        return cls(ahead, groups or {}, group_of or {}, known, snapshot.seconds, margin, settings.wall_limit == "total")

    def end_if_started(self, job: SlurmJob) -> float:
        """Return the latest time at which a job can end if it starts now, including the time for its start."""
        limit, tracked = job.time_limit_seconds, self.known.get(job.job_id)
        left = time_left(job, tracked) if tracked is not None and self.counts_all else None
        duration = math.inf if limit is None else limit if left is None else 60.0 * left
        return self.now_seconds + self.margin_seconds + duration

    def barred(self, job: SlurmJob, to_leave: Collection[str] = ()) -> list[str]:
        """Return the accelerators on which a job cannot start, since it may not end before their reservations.

        A running job may stay on its own, unless it is on a node that jobs have to leave.
        """
        if not self.groups:
            return []
        here = {self.group_of.get(node) for node in job.held} if set(job.held).isdisjoint(to_leave) else set()
        end = self.end_if_started(job)
        return [name for name, each in self.groups.items() if end > each.start_seconds and name not in here]

    def without_room(self, jobs: Iterable[SlurmJob], places: Callable[[SlurmJob], Sequence[str]]) -> dict[str, Eligibility]:
        """Set aside waiting jobs that reservations bar from all accelerators on which they could run, which `places` returns."""
        aside = {}
        for job in jobs:
            barred = self.barred(job) if job.phase is Phase.WAITING else []
            names = places(job) if barred else ()
            if names and set(names) <= set(barred):
                last = max((self.groups[name] for name in names), key=_order)
                aside[job.job_id] = Eligibility(Role.ASIDE, f"its time limit reaches into reservation {last.name} of its nodes")
        return aside

    def nodes(self, jobs: Iterable[SlurmJob], notice_seconds: float) -> NodesAhead:
        """Return the nodes that are closed to starts, and those that jobs must leave.

        A node is closed if a waiting job that may use its group cannot use the node, for example after a reservation was made
        within a round. Jobs that would still be running when the reservation begins leave `notice_seconds` earlier.

        jobs: the jobs that are planned.
        """
        if not self.ahead:
            return NodesAhead()
        jobs = list(jobs)
        ends = [self.end_if_started(job) for job in jobs if job.phase is Phase.WAITING]
        closed = set()
        for node, each in self.ahead.items():
            group = self.groups.get(self.group_of.get(node, ""))
            latest = max((end for end in ends if group is None or end <= group.start_seconds), default=-math.inf)
            if latest > each.start_seconds:
                closed.add(node)
        soon = {node: each for node, each in self.ahead.items() if each.start_seconds <= self.now_seconds + notice_seconds}
        leave = {node for job in jobs for node in job.held if node in soon and self._end_of(job) > soon[node].start_seconds}
        return NodesAhead(frozenset(closed), frozenset(leave))

    def _end_of(self, job: SlurmJob) -> float:
        """Return the latest time at which a job can end where it runs."""
        if job.time_limit_seconds is None or job.start_seconds is None:
            return self.end_if_started(job)
        return job.start_seconds + job.time_limit_seconds
