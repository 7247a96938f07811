"""What a simulation knows from one round to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop

from gavel_py.simulator.arrivals import Arrivals
from gavel_py.simulator.events import NodeEvents
from gavel_py.simulator.holds import Holds
from gavel_py.simulator.measuring import Measuring
from gavel_py.simulator.records import JobRecord
from gavel_py.simulator.summary import Tally
from gavel_py.simulator.usage import Usage
from gavel_py.simulator.work import Work

__all__ = ["SimulationState"]


@dataclass
class SimulationState:
    """now: the clock; arrivals, events: what is to come; active: the jobs in the system; holds: those of them with GPUs;
    measuring: which jobs the tally counts; cancellations: a heap of (seconds, job_id), those of jobs that have left since included;
    gone: jobs that have left since the last decision; reasons: why jobs were left out of it; wall_seconds: on the clock of this
    computer.
    """

    now: float
    arrivals: Arrivals
    events: NodeEvents
    usage: Usage
    holds: Holds
    measuring: Measuring = field(default_factory=Measuring)
    tally: Tally = field(default_factory=Tally)
    active: dict[str, Work] = field(default_factory=dict)
    cancellations: list[tuple[float, str]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    reasons: Mapping[str, str] = field(default_factory=dict)
    records: dict[str, JobRecord] = field(default_factory=dict)
    wall_seconds: float = 0.0

    @property
    def next_cancellation(self) -> float:
        """When the next job is cancelled that is still in the system, infinite if none is."""
        while self.cancellations and self.cancellations[0][1] not in self.active:
            heappop(self.cancellations)
        return self.cancellations[0][0] if self.cancellations else math.inf

    @property
    def next_change(self) -> float:
        """When the next thing happens that no job's progress brings about."""
        return min(self.arrivals.next_seconds, self.events.next_seconds, self.next_cancellation)
