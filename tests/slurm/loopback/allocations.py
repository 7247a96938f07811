"""Allocations from the log of the controller, in order."""

from __future__ import annotations

import re

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.seen import names_in

__all__ = ["allocations"]

# Allocated by the main scheduler or by backfill.
STARTED = re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+)|sched/backfill: _start_job: Started JobId=(\d+) in \S+ on (\S+)")


def allocations(cluster: LoopbackCluster, job_id: int) -> list[set[str]]:
    """Return the nodes of each allocation of a job."""
    text = (cluster.folder / "log" / "slurmctld.log").read_text()
    found = ((int(a or b), nodes or others) for a, nodes, b, others in STARTED.findall(text))
    return [set(names_in(nodes)) for job, nodes in found if job == job_id]
