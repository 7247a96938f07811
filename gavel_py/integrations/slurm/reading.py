"""Reading a cluster: two commands, and nothing is changed."""

from __future__ import annotations

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.commands import Commands, document_of
from gavel_py.integrations.slurm.job_reading import jobs_from
from gavel_py.integrations.slurm.node_reading import nodes_from
from gavel_py.integrations.slurm.records import SlurmJob, Snapshot

__all__ = ["read_cluster", "read_jobs"]


def read_cluster(commands: Commands, now_seconds: float) -> Snapshot:
    """Return nodes and jobs as they are now. Raises `SlurmError` where Slurm does not answer."""
    nodes = nodes_from(document_of(commands, "sinfo", "--all", "--json"))
    if not nodes:
        raise SlurmError("sinfo --all --json names no nodes; this needs Slurm 21.08 or later, and a cluster that is configured")
    jobs, unread = jobs_from(document_of(commands, "squeue", "--all", "--json"))
    return Snapshot(now_seconds, nodes, jobs, unread)


def read_jobs(commands: Commands) -> dict[str, SlurmJob]:
    """Return the jobs alone, as they are now."""
    return jobs_from(document_of(commands, "squeue", "--all", "--json"))[0]
