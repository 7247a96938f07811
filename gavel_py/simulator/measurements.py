"""Measurements of a simulation.

`Usage` counts GPU-seconds, `TenantUsage` sums over the jobs of each tenant, and `Measuring` tracks which jobs are measured, and
from what time on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from gavel_py.allocation.accounting import TenantShare, TenantTable
from gavel_py.errors import refuse
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tenants import TenantTree
from gavel_py.report.runs.summary import JobWindow, job_window, window_text
from gavel_py.simulator.node_events import NodeEvent


class Usage:
    """GPU-seconds by accelerator type: of all nodes, of gangs (`used`), and of nodes that were down; the remainder was idle.

    start_seconds: when the clock starts; time before it does not count.
    """

    def __init__(self, cluster: Cluster, start_seconds: float = 0.0) -> None:
        self._start_seconds = start_seconds
        self.total, self.used, self.down = (dict.fromkeys(cluster.accelerator_names, 0.0) for _ in range(3))
        self.gpus = dict(zip(cluster.accelerator_names, cluster.capacities.tolist(), strict=True))
        self._nodes = {node.name: (node.accelerator, node.num_gpus) for node in cluster.nodes}
        self._down_since: dict[str, float] = {}
        self._at_round_start: dict[str, dict[str, float]] | None = None

    def begin_round(self) -> None:
        """Keep the current totals, for jobs that are submitted within the new round."""
        self._at_round_start = self.totals()

    @property
    def at_round_start(self) -> dict[str, dict[str, float]]:
        """The totals at the start of the round in progress, or the current totals if there is none."""
        return self.totals() if self._at_round_start is None else self._at_round_start

    def note_node_event(self, event: NodeEvent) -> None:
        """Count the time that a node is down, from its "down" to its "up" event."""
        seconds = max(event.seconds, self._start_seconds)
        if event.change == "down":
            self._down_since[event.node] = seconds
        elif event.change == "up" and event.node in self._down_since:
            self._count_down(event.node, seconds)
            del self._down_since[event.node]

    def advance(self, start: float, end: float) -> None:
        """Count the time from `start` to `end`."""
        self._at_round_start = None
        for name, count in self.gpus.items():
            self.total[name] += count * (end - start)
        for node in self._down_since:
            self._count_down(node, end)
            self._down_since[node] = end

    def totals(self) -> dict[str, dict[str, float]]:
        """Return {accelerator type: {"total", "used", "down": GPU-seconds so far}}."""
        return {name: {"total": self.total[name], "used": self.used[name], "down": self.down[name]} for name in self.total}

    def by_type(self, before: Mapping[str, Mapping[str, float]] | None = None) -> dict[str, dict[str, float]]:
        """Return the usage of each type as plain data, with its utilization: used / (total − down), or 0 if that is undefined.

        before: `totals` at the start of the measured time.
        """
        found = {}
        for name, totals in self.totals().items():
            counted = totals if before is None else {key: seconds - before[name][key] for key, seconds in totals.items()}
            total, used, down = counted["total"], counted["used"], counted["down"]
            utilization = used / (total - down) if total - down > 0 else 0.0
            found[name] = {
                "gpu_seconds": total,
                "used": used,
                "idle": total - used - down,
                "down": down,
                "utilization": utilization,
            }
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        counted = {"total": dict(self.total), "used": dict(self.used), "down": dict(self.down)}
        return counted | {"down_since": dict(self._down_since), "start_seconds": self._start_seconds}

    @classmethod
    def from_dict(cls, cluster: Cluster, document: Mapping[str, Any]) -> Usage:
        """Restore from `to_dict`."""
        made = cls(cluster, document["start_seconds"])
        made.total, made.used, made.down = ({n: document[name][n] for n in made.total} for name in ("total", "used", "down"))
        made._down_since = dict(document["down_since"])
        return made

    def _count_down(self, node: str, until: float) -> None:
        accelerator, gpus = self._nodes[node]
        self.down[accelerator] += gpus * (until - self._down_since[node])


class JobSums(NamedTuple):
    """The amounts by which a measured job changes the sums of its tenant, NaN if unknown."""

    jobs: int
    running: int
    waiting: int
    finished: int
    jct_seconds: float
    work: float
    promised_gpu_seconds: float
    delivered_gpu_seconds: float
    cost: float


SUMS = (*JobSums._fields, "active", "since", "promised_seconds")
"""Columns of `TenantUsage`, followed by the GPU-seconds of each type. active: number of jobs in the system; since: the time from
which there have been any; promised_seconds: the integral of the promised share over time."""

UNCHANGED = (0.0,) * (len(SUMS) - len(JobSums._fields))
"""The amounts by which a job changes the other columns of `SUMS`."""

COUNTS = ("jobs", "running", "waiting", "finished")


class TenantUsage:
    """Promised and received time of the jobs of each tenant: sums over the measured jobs, and promised shares over time.

    tree: tenants with weights, empty for equal ones; start_seconds: when the clock starts.
    """

    def __init__(self, tree: TenantTree, cluster: Cluster, start_seconds: float = 0.0) -> None:
        self._table = TenantTable(tree)
        self._types, self._capacities, self._prices = cluster.accelerator_names, cluster.capacities, cluster.prices_per_hour
        self._sums = np.zeros((0, len(SUMS) + len(self._types)))
        self._now, self._seconds = start_seconds, 0.0
        self._shares: Floats | None = None  # of the tenants, empty if none has jobs; None if they have changed

    def arrive(self, tenant: str, seconds: float) -> None:
        """Count a job that enters the system."""
        row = self._row(tenant)
        if row[_AT["active"]] == 0:
            self.advance(seconds)
            row[_AT["since"]], self._shares = seconds, None
        row[_AT["active"]] += 1

    def leave(self, tenant: str, seconds: float) -> None:
        """Count a job that leaves the system."""
        row = self._row(tenant)
        if row[_AT["active"]] == 1:
            self.advance(seconds)
            self._shares = None
        row[_AT["active"]] -= 1

    def advance(self, seconds: float) -> None:
        """Count the shares that tenants with jobs are promised until this time."""
        elapsed, self._now = seconds - self._now, max(self._now, seconds)
        if elapsed <= 0:
            return
        if self._shares is None:
            active = self._sums[:, _AT["active"]] > 0
            self._shares = self._table.shares(active, self._sums[:, _AT["since"]]) if active.any() else np.zeros(0)
        if len(self._shares):
            self._sums[:, _AT["promised_seconds"]] += elapsed * self._shares
            self._seconds += elapsed

    def restart(self) -> None:
        """Reset the promised shares, since measuring begins."""
        self._sums[:, _AT["promised_seconds"]], self._seconds = 0.0, 0.0

    def add(self, tenant: str, gpu_seconds: Sequence[float], sums: JobSums) -> None:
        """Add a measured job; gpu_seconds: by type."""
        row = self._row(tenant)
        row += (*sums, *UNCHANGED, *gpu_seconds)

    def tenants(self, seconds: float) -> tuple[TenantShare, ...]:
        """Return the promised and received shares of each tenant over this number of seconds; empty if no job names a tenant."""
        if not any(self._table.names) or not seconds > 0:
            return ()
        gpus = self._sums[:, len(SUMS) :] / seconds
        columns: dict[str, Any] = {name: self._sums[:, _AT[name]] for name in SUMS[: _AT["active"]]}
        columns |= {name: columns[name].astype(np.int64) for name in COUNTS}
        if np.isnan(self._prices).all():
            columns["cost"] = np.full(len(gpus), np.nan)
        columns["cost_per_hour"] = columns["cost"] / (seconds / 3600)
        return self._table.records(
            self._types, self._capacities, self._sums[:, _AT["promised_seconds"]] / (self._seconds or 1.0), gpus, columns
        )

    def copy(self) -> TenantUsage:
        """Return an independent copy."""
        return deepcopy(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as plain data, None for NaN."""
        rows = [[None if np.isnan(value) else value for value in row] for row in self._sums.tolist()]
        return {"names": list(self._table.names), "sums": rows, "now": self._now, "seconds": self._seconds}

    @classmethod
    def from_dict(cls, tree: TenantTree, cluster: Cluster, document: Mapping[str, Any]) -> TenantUsage:
        """Restore from `to_dict`."""
        made = cls(tree, cluster, document["now"])
        for name, row in zip(document["names"], document["sums"], strict=True):
            made._row(name)[:] = [np.nan if value is None else value for value in row]
        made._seconds = document["seconds"]
        return made

    def _row(self, tenant: str) -> Floats:
        """Return the row of a tenant, a view into the sums."""
        at = self._table.row(tenant)
        if at >= len(self._sums) or len(self._table) > len(self._sums):
            new = np.zeros((len(self._table) - len(self._sums), self._sums.shape[1]))
            self._sums, self._shares = np.concatenate([self._sums, new]), None
        row: Floats = self._sums[at]
        return row


_AT = {name: column for column, name in enumerate(SUMS)}


def check_enough(jobs: int, window: JobWindow | None) -> None:
    """Raise `InputError` if a trace of this number of jobs ends before the window does."""
    if window is not None:
        text = f"must end within the trace, which has {jobs:,} jobs, found {window_text(window)}"
        refuse("simulation", (jobs < window[1], "measure_jobs", text))


class Measuring:
    """The jobs that the metrics of a simulation cover, and the time from which the use of GPUs is measured.

    GPUs are measured from the round in which the first job of the window is submitted. The simulation ends with the round in which
    the last one leaves, so that no later event changes the result.

    Attributes:
        window: The measured jobs; None for all jobs, from the beginning.
        ended: Number of measured jobs that have left.
        ended_after_arrivals: Number of jobs of the window that left after the last arrival of the trace.
    """

    def __init__(self, window: JobWindow | None = None) -> None:
        self.window = window
        self._first, self._end = (0, sys.maxsize) if window is None else window
        self._usage_before: Mapping[str, Mapping[str, float]] | None = None
        self.ended = self.ended_after_arrivals = 0

    @property
    def is_measuring(self) -> bool:
        """Whether the use of GPUs is being measured."""
        return self.window is None or self._usage_before is not None

    @property
    def is_complete(self) -> bool:
        """Whether all measured jobs have left."""
        return self.window is not None and self.ended == self._end - self._first

    def includes(self, number: int) -> bool:
        """Return whether a job is measured. number: its number in the trace, from 0."""
        return self._first <= number < self._end

    def note_submission(self, number: int, usage: Usage) -> bool:
        """Start measuring if this is the first job of the window, and return whether it is."""
        is_first = self.window is not None and number == self._first
        if is_first:
            self._usage_before = usage.at_round_start
        return is_first

    def note_departure(self, *, arrivals_are_over: bool) -> None:
        """Count a measured job that has left; arrivals_are_over: whether all jobs of the trace have arrived."""
        self.ended += 1
        self.ended_after_arrivals += arrivals_are_over and self.window is not None

    def measured_usage(self, usage: Usage) -> dict[str, dict[str, float]]:
        """Return the usage of each type since measuring began."""
        before = self._usage_before
        return usage.by_type(before if before is not None or self.window is None else usage.totals())

    def to_dict(self) -> dict[str, Any]:
        """Return the window and the counts as plain data."""
        return {
            "window": self.window,
            "usage_before": self._usage_before,
            "ended": self.ended,
            "ended_after_arrivals": self.ended_after_arrivals,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Measuring:
        """Restore from `to_dict`."""
        made = cls(job_window(document["window"]))
        made._usage_before = document["usage_before"]
        made.ended, made.ended_after_arrivals = document["ended"], document["ended_after_arrivals"]
        return made
