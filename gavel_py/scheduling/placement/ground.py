"""What rounds have in common as long as neither jobs nor nodes change, so that it need not be found anew for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

from gavel_py.problem.cluster import Cluster, Node
from gavel_py.problem.job import Job
from gavel_py.scheduling.placement.asks import Asks
from gavel_py.scheduling.placement.layout import Layout
from gavel_py.scheduling.placement.spans import Spans

__all__ = ["Ground"]


class Ground:
    """jobs, nodes: of the rounds; layout, asks: the same as arrays; spans: the fewest nodes of gangs, by default on these."""

    def __init__(self, jobs: Sequence[Job], nodes: Sequence[Node], spans: Spans | None = None) -> None:
        self.jobs, self.nodes = jobs, nodes
        self.layout = Layout(nodes)
        self.asks = Asks(jobs, self.layout)
        self._spans = spans

    @cached_property
    def spans(self) -> Spans:
        """On how many nodes gangs must be."""
        return Spans(Cluster(self.nodes)) if self._spans is None else self._spans

    def holds_for(self, jobs: Sequence[Job], nodes: Sequence[Node]) -> bool:
        """Say whether it is that of these jobs, the very same sequence, and of these nodes."""
        return jobs is self.jobs and nodes == self.nodes

    def asking(self, asks: Asks) -> Ground:
        """Return the same ground for jobs that ask for something else."""
        made = copy(self)
        made.asks = asks
        return made
