"""Telling the scheduler of nodes: which are up, and how many of their GPUs others have."""

from __future__ import annotations

from collections.abc import Mapping

from gavel_py.integrations.slurm.cluster_picture import closed_nodes, state_of
from gavel_py.integrations.slurm.records import SlurmNode
from gavel_py.scheduling import NodeState, RoundScheduler

__all__ = ["sync_lost", "sync_nodes"]


def sync_nodes(scheduler: RoundScheduler, nodes: Mapping[str, SlurmNode]) -> dict[str, NodeState]:
    """Tell the scheduler the state of each node; return what has changed."""
    changed = {}
    for name, before in scheduler.nodes.items():
        state = state_of(nodes.get(name))
        if state is before:
            continue
        changed[name] = state
        if state is NodeState.DOWN:
            scheduler.node_down(name)
        elif state is NodeState.DRAINING:
            scheduler.drain(name)
        else:
            scheduler.node_up(name)
    return changed


def sync_lost(
    scheduler: RoundScheduler, nodes: Mapping[str, SlurmNode], used: Mapping[str, int], used_cpus: Mapping[str, float]
) -> None:
    """Take away from the scheduler the GPUs that others use, and the free ones that nobody can start on.

    Those are all of a node that does not respond, and those for which others leave not one CPU. Gangs of its own keep what they
    have; Slurm gives no GPU twice. Which of a node's GPUs are meant is no matter.

    Args:
        scheduler: whose GPUs they are.
        nodes: as Slurm has them now.
        used: {node: GPUs} of the jobs that the scheduler does not know.
        used_cpus: {node: CPUs} of the same jobs.
    """
    held = {gpu for assignment in scheduler.running.values() for gpu in assignment.gpus}
    lost = set(scheduler.lost_gpus)
    closed = closed_nodes(nodes)
    for node in scheduler.cluster.nodes:
        gpus = [(node.name, index) for index in range(node.num_gpus)]
        gone = [gpu for gpu in gpus if gpu in lost]
        free = [gpu for gpu in gpus if gpu not in held and gpu not in lost]
        there = sum(nodes[node.name].gpus.values()) if node.name in nodes else node.num_gpus
        wanted = node.num_gpus if node.name in closed else used.get(node.name, 0) + max(0, node.num_gpus - there)
        if node.cpus is not None and node.name in used_cpus:
            wanted = max(wanted, node.num_gpus - int(max(0.0, node.cpus - used_cpus[node.name])))
        for name, index in reversed(free[len(free) - max(0, min(len(free), wanted - len(gone))) :]):
            scheduler.gpu_lost(name, index)
        for name, index in gone[: max(0, len(gone) - wanted)]:
            scheduler.gpu_back(name, index)
