"""Runs of jobs by Slurm's own records: allocations in the log of the controller, and ended runs in its file of completed jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.seen import names_in

__all__ = ["Ended", "allocations", "ended", "lifetimes"]

# Allocated by the main scheduler or by backfill.
STARTED = re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+)|sched/backfill: _start_job: Started JobId=(\d+) in \S+ on (\S+)")


def allocations(cluster: LoopbackCluster, job_id: int) -> list[set[str]]:
    """Return the nodes of each allocation of a job."""
    text = (cluster.folder / "log" / "slurmctld.log").read_text()
    found = ((int(a or b), nodes or others) for a, nodes, b, others in STARTED.findall(text))
    return [set(names_in(nodes)) for job, nodes in found if job == job_id]


@dataclass(frozen=True)
class Ended:
    """A run that has ended, in whole seconds. state: PENDING after a run that was stopped."""

    job: int
    state: str
    begin: float
    end: float
    nodes: tuple[str, ...]

    def overlaps(self, other: Ended) -> bool:
        """Return whether both ran at the same time."""
        return self.begin < other.end and other.begin < self.end


def ended(cluster: LoopbackCluster) -> list[Ended]:
    """Return all runs that have ended, including those of jobs that were stopped and started again later."""
    return [
        Ended(int(f["JobId"]), f["JobState"], _seconds(f["StartTime"]), _seconds(f["EndTime"]), tuple(names_in(f["NodeList"])))
        for f in _records(cluster)
        if f["StartTime"] != "Unknown" and f["NodeList"] != "(null)"
    ]


def lifetimes(cluster: LoopbackCluster, name: str) -> list[tuple[float, float]]:
    """Return submission and end of the jobs with a name that have ended."""
    return [(_seconds(f["SubmitTime"]), _seconds(f["EndTime"])) for f in _records(cluster) if f["Name"] == name]


def _records(cluster: LoopbackCluster) -> list[dict[str, str]]:
    lines = (cluster.folder / "state" / "ended").read_text().splitlines()
    return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
