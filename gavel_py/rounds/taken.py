"""What of the nodes is taken while a round is being planned: GPUs, and the CPUs and memory that go with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gavel_py.cluster import Node
from gavel_py.jobs import Job
from gavel_py.rounds.free_gpus import Gpu
from gavel_py.rounds.needs import NOTHING, Needs

__all__ = ["Taken", "needs_of"]


class Taken:
    """gpus: those that nobody else may have; loads: by node, what the gangs there need of its CPUs and memory."""

    def __init__(self, gpus: Iterable[Gpu] = ()) -> None:
        self.gpus: set[Gpu] = set(gpus)
        self.loads: dict[str, Needs] = {}

    def add(self, gpus: Iterable[Gpu], needs: Needs) -> None:
        """Take the GPUs of a gang, each of which needs so much."""
        held = list(gpus)
        self.gpus.update(held)
        if needs != NOTHING:
            for name, _ in held:
                there = self.loads.get(name, NOTHING)
                self.loads[name] = Needs(there.cpus + needs.cpus, there.memory_gb + needs.memory_gb)


def needs_of(jobs: Sequence[Job], nodes: Iterable[Node]) -> list[Needs]:
    """Return what each GPU of each job needs, nothing where no node says what it has."""
    if all(node.cpus is None and node.memory_gb is None for node in nodes):
        return [NOTHING] * len(jobs)
    return [Needs(job.cpus_per_gpu, job.memory_gb_per_gpu) for job in jobs]
