"""The state that a simulation keeps from one round to the next, and its snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavel_py.errors import refuse
from gavel_py.simulator.arrivals import Arrivals
from gavel_py.simulator.job_progress import JobProgress
from gavel_py.simulator.measurements import Measuring, TenantUsage, Usage
from gavel_py.simulator.node_events import NodeEvents
from gavel_py.simulator.results import JobRecord, Tally
from gavel_py.simulator.running_gangs import SimulatedGangs

if TYPE_CHECKING:
    from gavel_py.problem.cluster import Cluster
    from gavel_py.problem.job import Job
    from gavel_py.problem.tenants import TenantTree
    from gavel_py.workloads.submission import Submission


@dataclass
class SimulationState:
    """The state that a simulation keeps between rounds.

    Attributes:
        now: The simulated time.
        arrivals, events: Submissions and node events to come.
        usage, tenants, measuring, tally: Measurements.
        active: {job_id: progress} of the jobs in the system.
        running: The jobs with GPUs.
        cancellations: Heap of (seconds, job_id), including jobs that have left.
        departed: Jobs that have left since the last decision.
        reasons: {job_id: reason} of the jobs that this decision excluded.
        ended_badly: Jobs that failed or were cancelled, for jobs that wait for them.
        ended_seconds: When jobs of the latest round ended, and the last of them of each (workflow, tenant), for jobs that arrived
            in this round and wait for them.
        records: Records of jobs that have left, unless the caller receives them.
        wall_seconds: Wall-clock time of the simulation.
    """

    now: float
    arrivals: Arrivals
    events: NodeEvents
    usage: Usage
    running: SimulatedGangs
    tenants: TenantUsage
    measuring: Measuring = field(default_factory=Measuring)
    tally: Tally = field(default_factory=Tally)
    active: dict[str, JobProgress] = field(default_factory=dict)
    cancellations: list[tuple[float, str]] = field(default_factory=list)
    departed: list[str] = field(default_factory=list)
    reasons: Mapping[str, str] = field(default_factory=dict)
    records: dict[str, JobRecord] = field(default_factory=dict)
    wall_seconds: float = 0.0
    ended_badly: set[str] = field(default_factory=set)
    ended_seconds: dict[str | tuple[str, str], float] = field(default_factory=dict)
    interrupted: int = 0
    """Preemptions by nodes that failed within the last round."""

    @property
    def next_cancellation(self) -> float:
        """The time at which the next job in the system is cancelled, infinite if there is none."""
        while self.cancellations and self.cancellations[0][1] not in self.active:
            heappop(self.cancellations)
        return self.cancellations[0][0] if self.cancellations else math.inf

    @property
    def next_change(self) -> float:
        """The time of the next arrival, node event or cancellation, infinite if there is none."""
        return min(self.arrivals.next_seconds, self.events.next_seconds, self.next_cancellation)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data. The trace is not included, only the number of jobs taken from it and their digest."""
        return {
            "now": self.now,
            "taken": self.arrivals.taken,
            "digest": self.arrivals.digest,
            "details": self.arrivals.details,
            "events": self.events.to_dict(),
            "usage": self.usage.to_dict(),
            "tenants": self.tenants.to_dict(),
            "measuring": self.measuring.to_dict(),
            "tally": self.tally.to_dict(),
            "active": [each.to_dict(self.now if name in self.running else None) for name, each in self.active.items()],
            "holds": self.running.ids,
            "held_gpus": list(self.running.gpus),
            "cancellations": [list(each) for each in self.cancellations],
            "departed": list(self.departed),
            "reasons": dict(self.reasons),
            "records": [record.to_dict() for record in self.records.values()],
            "wall_seconds": self.wall_seconds,
            "interrupted": self.interrupted,
            "ended_badly": sorted(self.ended_badly),
            "ended_seconds": [[list(key) if isinstance(key, tuple) else key, end] for key, end in self.ended_seconds.items()],
        }

    @classmethod
    def from_dict(
        cls,
        document: Mapping[str, Any],
        path: str | Path,
        trace: Iterable[Submission | Job],
        cluster: Cluster,
        tree: TenantTree,
    ) -> SimulationState:
        """Restore a state from `to_dict`; tree: tenants of the policy.

        Raises `InputError`, which names `path`, if the trace differs.
        """
        measuring = Measuring.from_dict(document["measuring"])
        arrivals = Arrivals(trace, measuring.window)
        num_types = len(cluster.accelerator_names)
        active, running = _active_from(document, path, arrivals, num_types), SimulatedGangs(num_types)
        for progress in active.values():
            running.enter(progress)
        for job_id in document["holds"]:
            running.add(active[job_id])
        running.gpus = list(document["held_gpus"])  # their sums depend on the order of starts and stops
        records = (JobRecord.from_dict(each) for each in document["records"])
        return cls(
            document["now"],
            arrivals,
            NodeEvents.from_dict(document["events"]),
            Usage.from_dict(cluster, document["usage"]),
            running,
            TenantUsage.from_dict(tree, cluster, document["tenants"]),
            measuring,
            Tally.from_dict(document["tally"]),
            active,
            [(seconds, job_id) for seconds, job_id in document["cancellations"]],
            list(document["departed"]),
            dict(document["reasons"]),
            {record.job_id: record for record in records},
            document["wall_seconds"],
            set(document["ended_badly"]),
            {tuple(key) if isinstance(key, list) else key: end for key, end in document["ended_seconds"]},
            document["interrupted"],
        )


def _active_from(document: Mapping[str, Any], path: str | Path, arrivals: Arrivals, num_types: int) -> dict[str, JobProgress]:
    """Skip the jobs of the trace that had arrived, and return the progress of those in the system."""
    saved = {each["number"]: each for each in document["active"]}
    submissions = {number: each for number, each in enumerate(arrivals.skip(document["taken"])) if number in saved}
    taken, remedy = document["taken"], "; pass the trace that the simulation used"
    is_short = arrivals.taken < taken
    differs = (arrivals.digest, arrivals.details) != (document["digest"], document["details"])
    other = f"was written with another trace: the first {taken} jobs of this one differ from those that had arrived"
    refuse(
        str(path),
        (is_short, "", f"was written when {taken} jobs had arrived, but this trace has only {arrivals.taken}{remedy}"),
        (differs and not is_short, "", other + remedy),
    )
    now = document["now"]
    return {submissions[n].job.job_id: JobProgress.from_dict(each, submissions[n], now, num_types) for n, each in saved.items()}
