"""Future reservations of nodes: which jobs may still start on these nodes, and which must leave before a reservation begins.

Slurm does not start a job on a node if its time limit would extend into a reservation of that node. A job without a time limit
cannot start on any node with a future reservation. Once a reservation has begun, the state of its nodes shows it.
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
    """The effect of future reservations on the nodes of a partition.

    Attributes:
        closed: Nodes on which no more jobs may start.
        to_leave: Nodes whose jobs must move away now.
    """

    closed: frozenset[str] = frozenset()
    to_leave: frozenset[str] = frozenset()


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
    """Add reservations to a reading, none if scontrol cannot list them. Raises `SlurmError` if Slurm does not answer."""
    result = commands.run(["scontrol", "show", "reservation", "--oneliner"])
    return replace(snapshot, reservations=reservations_in(result.out)) if result.code == 0 else snapshot


def beginnings(reservations: Iterable[Reservation], now_seconds: float) -> dict[str, Reservation]:
    """Return {node: its earliest reservation that has not ended}."""
    ahead = sorted((each for each in reservations if each.end_seconds > now_seconds), key=lambda each: -each.start_seconds)
    return {node: each for each in ahead for node in each.nodes}


def end_of(job: SlurmJob, tracked: Tracked | None, now_seconds: float, *, counts_all: bool) -> float:
    """Return the latest time at which a job can end, if it runs or starts now.

    counts_all: whether its time limit covers all of its starts together.
    """
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
    """Set aside waiting jobs that Slurm would not start, since their time limits reach into reservations of all nodes."""
    if not ahead or not nodes or not ahead.keys() >= set(nodes):
        return {}
    last = max((ahead[node] for node in nodes), key=lambda each: each.start_seconds)
    why = f"its time limit reaches into reservation {last.name} of its nodes"
    waiting = [job.job_id for job in jobs if job.phase is Phase.WAITING]
    return {job_id: Eligibility(Role.ASIDE, why) for job_id in waiting if ends[job_id] > last.start_seconds}


def nodes_ahead(
    jobs: Iterable[SlurmJob], ends: Mapping[str, float], ahead: Mapping[str, Reservation], now_seconds: float, notice_seconds: float
) -> NodesAhead:
    """Return the nodes that are closed to starts, and those that jobs must leave.

    A node is closed if the time limit of any job reaches into its reservation, since a round cannot plan a node for some jobs only.
    Jobs that would still be running when the reservation begins leave `notice_seconds` earlier.

    Args:
        jobs: The jobs that the scheduler plans.
        ends: {job: the latest time at which it can end}.
        ahead: {node: its next reservation}.
        now_seconds: The current time.
        notice_seconds: How long before a reservation its nodes are emptied.
    """
    jobs = list(jobs)
    latest = max((ends[job.job_id] for job in jobs), default=-math.inf)
    closed = frozenset(node for node, each in ahead.items() if latest > each.start_seconds)
    staying = {node: max(ends[job.job_id] for job in jobs if node in job.held) for job in jobs for node in job.held}
    soon = {node for node, each in ahead.items() if each.start_seconds <= now_seconds + notice_seconds}
    return NodesAhead(closed, frozenset(node for node in soon if staying.get(node, -math.inf) > ahead[node].start_seconds))
