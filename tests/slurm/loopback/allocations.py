"""What Slurm itself says it started where, from the controller's log: every start, in order."""

from __future__ import annotations

import re

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.seen import names_in

__all__ = ["allocations"]

# By the scheduler proper, and by backfill.
STARTED = re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+)|sched/backfill: _start_job: Started JobId=(\d+) in \S+ on (\S+)")


def allocations(cluster: LoopbackCluster, job_id: int) -> list[set[str]]:
    """The nodes that a job was given, each time that it was given some."""
    text = (cluster.folder / "log" / "slurmctld.log").read_text()
    found = ((int(a or b), nodes or others) for a, nodes, b, others in STARTED.findall(text))
    return [set(names_in(nodes)) for job, nodes in found if job == job_id]
