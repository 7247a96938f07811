"""Reservations of nodes that have yet to begin: which jobs may still start there, and which have to leave in time.

Slurm starts no job on a node whose time limit reaches into a reservation of the node, and jobs without a limit on none that will be
reserved. Once a reservation has begun, the state of its nodes tells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from gavel_py.integrations.slurm.actions import time_left
from gavel_py.integrations.slurm.client.commands import SlurmCommands
from gavel_py.integrations.slurm.client.notation import expand, printable
from gavel_py.integrations.slurm.client.records import Phase, Reservation, SlurmJob, Snapshot
from gavel_py.integrations.slurm.job_roles import Eligibility, Role
from gavel_py.integrations.slurm.state import Tracked

LINE = re.compile(r"^ReservationName=(\S+) StartTime=(\S+) EndTime=(\S+) .*?\bNodes=(\S+)", re.MULTILINE)


class NodesAhead(NamedTuple):
    """What reservations mean for the nodes of a partition.

    closed: nodes on which no job starts any more; to_leave: nodes whose jobs move away now.
    """

    closed: frozenset[str] = frozenset()
    to_leave: frozenset[str] = frozenset()


def reservations_in(text: str) -> tuple[Reservation, ...]:
    """Return the reservations of nodes in what `scontrol show reservation --oneliner` prints; those of licences have no nodes."""
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
    """Return a reading with the reservations, none if Slurm does not say. Raises `SlurmError` if it does not answer."""
    result = commands.run(["scontrol", "show", "reservation", "--oneliner"])
    return replace(snapshot, reservations=reservations_in(result.out)) if result.code == 0 else snapshot


def beginnings(reservations: Iterable[Reservation], now_seconds: float) -> dict[str, Reservation]:
    """Return {node: its next reservation} of those that have not ended."""
    ahead = sorted((each for each in reservations if each.end_seconds > now_seconds), key=lambda each: -each.start_seconds)
    return {node: each for each in ahead for node in each.nodes}


def end_of(job: SlurmJob, tracked: Tracked | None, now_seconds: float, *, counts_all: bool) -> float:
    """Return when a job ends at the latest, if it starts now or from where it runs; counts_all: whether its limit counts in all."""
    limit = job.time_limit_seconds
    if limit is None:
        return math.inf
    if job.phase is Phase.RUNNING:
        return (now_seconds if job.start_seconds is None else job.start_seconds) + limit
    left = time_left(job, tracked) if tracked is not None and counts_all else None
    return now_seconds + (limit if left is None else 60.0 * left)


def without_room(
    jobs: Iterable[SlurmJob], ends: Mapping[str, float], ahead: Mapping[str, Reservation], nodes: Collection[str]
) -> dict[str, Eligibility]:
    """Set aside the waiting jobs that Slurm would start on none of the nodes, since their limits reach into reservations of all."""
    if not ahead or not nodes or not ahead.keys() >= set(nodes):
        return {}
    last = max((ahead[node] for node in nodes), key=lambda each: each.start_seconds)
    why = f"its time limit reaches into reservation {last.name} of its nodes"
    waiting = [job.job_id for job in jobs if job.phase is Phase.WAITING]
    return {job_id: Eligibility(Role.ASIDE, why) for job_id in waiting if ends[job_id] > last.start_seconds}


def nodes_ahead(
    jobs: Iterable[SlurmJob], ends: Mapping[str, float], ahead: Mapping[str, Reservation], now_seconds: float, notice_seconds: float
) -> NodesAhead:
    """Return the nodes that are closed to starts, and those to leave.

    A node is closed if the limit of any job reaches into its reservation, since no round can plan a node for some jobs only.
    Jobs leave that would still run when it begins, `notice_seconds` before.

    jobs: those that the scheduler plans; ends: {job: its end at the latest}.
    """
    jobs = list(jobs)
    latest = max((ends[job.job_id] for job in jobs), default=-math.inf)
    closed = frozenset(node for node, each in ahead.items() if latest > each.start_seconds)
    staying = {node: max(ends[job.job_id] for job in jobs if node in job.held) for job in jobs for node in job.held}
    soon = {node for node, each in ahead.items() if each.start_seconds <= now_seconds + notice_seconds}
    return NodesAhead(closed, frozenset(node for node in soon if staying.get(node, -math.inf) > ahead[node].start_seconds))
