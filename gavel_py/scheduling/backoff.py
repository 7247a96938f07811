"""Back-off of jobs that failed: how long each waits before it is tried again, and which nodes it avoids then.

`Backoffs` is part of the state of a scheduler, and has an entry only for jobs that have failed and not succeeded since;
`place_elsewhere` places the gangs of a round so that jobs avoid nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gavel_py.problem.arrays import Mask
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.placement.gangs import HeldGpus

MAX_BACKOFF_SECONDS = 3600.0
"""Longest back-off, unless the first one is longer."""

AVOIDED_ROUNDS = 2
"""Nodes are avoided after a back-off for as long again, and at least for this number of rounds: a job whose back-off ends within a
round is tried again at the start of the next one."""


@dataclass(frozen=True)
class Backoff:
    """The back-off of a job.

    Attributes:
        failures: Failures since the job last succeeded.
        until_seconds: The time before which it is not started.
        nodes: {node: time until which the job avoids it}, of nodes on which it failed.
    """

    failures: int
    until_seconds: float
    nodes: Mapping[str, float] = field(default_factory=dict)

    def avoided(self, now: float) -> frozenset[str]:
        """Return the nodes that the job avoids at this time."""
        return frozenset(node for node, until in self.nodes.items() if now < until)


class Backoffs:
    """{job_id: Backoff} of jobs that have failed."""

    def __init__(self, entries: Mapping[str, Backoff] | None = None) -> None:
        self.by_job: dict[str, Backoff] = dict(entries or {})

    def __len__(self) -> int:
        return len(self.by_job)

    def fail(self, job_id: str, nodes: Iterable[str], now: float, retry_seconds: float, round_seconds: float = 0.0) -> None:
        """Begin a back-off, twice as long as the last one, of a job that failed on these nodes; round_seconds: 0 without rounds."""
        before = self.by_job.get(job_id)
        failures = 1 if before is None else before.failures + 1
        longest = max(MAX_BACKOFF_SECONDS, retry_seconds)
        # The exponent is bounded, since floats are.
        seconds = min(longest, retry_seconds * 2.0 ** min(failures - 1, 60))
        avoided = {} if before is None else {node: end for node, end in before.nodes.items() if now < end}
        avoided |= dict.fromkeys(nodes, now + seconds + max(seconds, AVOIDED_ROUNDS * round_seconds))
        self.by_job[job_id] = Backoff(failures, now + seconds, avoided)

    def drop(self, job_ids: Iterable[str]) -> None:
        """End the back-offs of jobs that have succeeded or left."""
        for job_id in job_ids:
            self.by_job.pop(job_id, None)

    def waiting(self, now: float) -> list[str]:
        """Return the jobs that are not started at this time."""
        return [job_id for job_id, each in self.by_job.items() if now < each.until_seconds]

    def avoiding(self, now: float) -> dict[str, frozenset[str]]:
        """Return {job_id: nodes that it avoids at this time}."""
        return {job_id: nodes for job_id, each in self.by_job.items() if (nodes := each.avoided(now))}

    def to_dict(self) -> dict[str, Any]:
        """Return the back-offs as plain data."""
        return {job_id: [each.failures, each.until_seconds, dict(each.nodes)] for job_id, each in self.by_job.items()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Backoffs:
        """Restore back-offs from `to_dict`."""
        made = {job_id: Backoff(int(n), float(until), dict(nodes)) for job_id, (n, until, nodes) in document.items()}
        return cls(made)


def place_elsewhere(
    place: Callable[..., HeldGpus], demand: RoundDemand, fixed: HeldGpus, previous: HeldGpus, avoided: Mapping[int, Mask]
) -> HeldGpus:
    """Return (N,) the GPUs of the jobs that run, none of them on GPUs that it avoids if others could hold it.

    A gang that is placed on such GPUs is placed again on those that are left, or else waits, and its GPUs are offered to others.

    Args:
        place: Returns the GPUs for a demand, with `fixed` and `previous`, without using some `closed` GPUs.
        demand: Demand of N jobs.
        fixed: (N,) GPUs that jobs must keep.
        previous: (N,) GPUs that jobs get if they can.
        avoided: {job: (GPUs,) those that it avoids}, of jobs that do not run.
    """
    held, jobs, none = place(demand, fixed, previous), np.arange(len(demand.num_gpus)), HeldGpus.none(len(demand.num_gpus))
    waits = np.zeros(len(jobs), dtype=bool)
    for job, gpus in avoided.items():
        if not gpus[held.list_of(job)].any():
            continue
        alone = replace(demand, runnable=demand.runnable & (jobs == job)[:, None])
        if place(replace(alone, locked=none.runs), none, none, closed=gpus).runs[job]:
            others = held.where(jobs != job)
            held = place(replace(alone, locked=others.runs), others, none, closed=gpus)
            waits[job] = not held.runs[job]
    if not waits.any():
        return held
    return place(replace(demand, runnable=demand.runnable & ~waits[:, None], locked=held.runs), held, previous)
