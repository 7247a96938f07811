"""On how many nodes gangs are, and on how many they must be."""

from __future__ import annotations

from gavel_py.problem.cluster import Cluster
from gavel_py.problem.placement_throughputs import fewest_nodes
from gavel_py.scheduling.assignment import Assignment

__all__ = ["Spans"]


class Spans:
    """On how many nodes of a cluster a gang must be at least; on more, it is spread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._fewest: dict[tuple[str, int], int] = {}

    def fewest(self, accelerator: str, size: int) -> int:
        """Return on how many nodes of a type a gang must be at least."""
        key = accelerator, size
        if key not in self._fewest:
            self._fewest[key] = fewest_nodes(self._cluster, accelerator, size)
        return self._fewest[key]

    def is_spread(self, held: Assignment) -> bool:
        """Say whether a gang is on more nodes than it had to be."""
        if len(held.gpus) == 1:
            return False
        return held.num_nodes > self.fewest(held.accelerator, len(held.gpus))
