"""Where the time of all GPUs goes: used, idle or down; nothing is counted twice, and nothing is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gavel_py.problem.cluster import Cluster
from gavel_py.simulator.node_events import NodeEvent

__all__ = ["Usage"]


class Usage:
    """GPU-seconds by accelerator type: all there were, those that gangs held, and those of nodes that were down.

    start_seconds: when the clock starts; what a node was down before does not count.
    """

    def __init__(self, cluster: Cluster, start_seconds: float = 0.0) -> None:
        self._start_seconds = start_seconds
        self.total, self.used, self.down = (dict.fromkeys(cluster.accelerator_names, 0.0) for _ in range(3))
        self._gpus = dict(zip(cluster.accelerator_names, cluster.capacities.tolist(), strict=True))
        self._nodes = {node.name: (node.accelerator, node.num_gpus) for node in cluster.nodes}
        self._down_since: dict[str, float] = {}

    def change_node(self, event: NodeEvent) -> None:
        """Note that a node goes down or comes up."""
        if event.change == "down":
            self._down_since[event.node] = max(event.seconds, self._start_seconds)
        elif event.change == "up":
            self._count_down(event.node, max(event.seconds, self._start_seconds))
            self._down_since.pop(event.node, None)

    def passed(self, start: float, end: float) -> None:
        """Note that this time has passed."""
        for name, count in self._gpus.items():
            self.total[name] += count * (end - start)
        for node in self._down_since:
            self._count_down(node, end)
            self._down_since[node] = end

    def totals(self) -> dict[str, dict[str, float]]:
        """Return by type the GPU-seconds so far: all, used, and down."""
        return {name: {"total": self.total[name], "used": self.used[name], "down": self.down[name]} for name in self.total}

    def to_dict(self, before: Mapping[str, Mapping[str, float]] | None = None) -> dict[str, dict[str, float]]:
        """Return the usage of each type as plain data; before: `totals` of the time that does not count."""
        return {name: _usage(each, {} if before is None else before[name]) for name, each in self.totals().items()}

    def state(self) -> dict[str, Any]:
        """Return all that was counted as plain data."""
        counted = {"total": dict(self.total), "used": dict(self.used), "down": dict(self.down)}
        return counted | {"down_since": dict(self._down_since), "start_seconds": self._start_seconds}

    @classmethod
    def from_state(cls, cluster: Cluster, document: Mapping[str, Any]) -> Usage:
        """Return what `state` described."""
        made = cls(cluster, document["start_seconds"])
        made.total, made.used, made.down = ({n: document[part][n] for n in made.total} for part in ("total", "used", "down"))
        made._down_since = dict(document["down_since"])
        return made

    def _count_down(self, node: str, until: float) -> None:
        if node in self._down_since:
            accelerator, gpus = self._nodes[node]
            self.down[accelerator] += gpus * (until - self._down_since[node])


def _usage(totals: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """GPU-seconds of one type; its utilization is the used part of those that were not down, 0 if there were none."""
    total, used, down = (totals[name] - before.get(name, 0.0) for name in ("total", "used", "down"))
    there = total - down
    return {
        "gpu_seconds": total,
        "used": used,
        "idle": total - used - down,
        "down": down,
        "utilization": used / there if there > 0 else 0.0,
    }
