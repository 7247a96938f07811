"""The ground of rounds, kept from one round to the next as far as jobs and nodes are the same."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from gavel_py.problem.cluster import Node
from gavel_py.problem.job import Job
from gavel_py.scheduling.placement.asks import Asks
from gavel_py.scheduling.placement.ground import Ground
from gavel_py.scheduling.placement.spans import Spans

__all__ = ["Grounds"]


class Grounds:
    """The ground that was asked for last."""

    def __init__(self) -> None:
        self._last: Ground | None = None

    def of(self, jobs: Sequence[Job], nodes: Sequence[Node], spans: Spans) -> Ground:
        """Return the ground of these jobs and nodes; spans: the fewest nodes of gangs."""
        last = self._last
        if last is None or not (nodes is last.nodes or nodes == last.nodes):
            self._last = Ground(jobs, nodes, spans)
        elif jobs is not last.jobs:
            self._last = copy(last)
            self._last.jobs, self._last.asks = jobs, Asks(jobs, last.layout)
        assert self._last is not None  # noqa: S101
        return self._last
