"""A trace from its beginning to its end, in one call."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gavel_py.policies import Policy
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.simulator.engine import Simulation
from gavel_py.simulator.result import SimulationResult
from gavel_py.workloads import Submission

__all__ = ["simulate"]


def simulate(
    trace: Iterable[Submission | Job],
    cluster: Cluster,
    profile: Profile,
    policy: str | Policy = "max_min_fairness",
    *,
    until_seconds: float = math.inf,
    **settings: Any,
) -> SimulationResult:
    """Play a trace to its end, or until this time, and return what came of it; settings: those of `Simulation`.

    >>> import gavel_py as gp
    >>> speeds = gp.ThroughputProfile.from_matrix([[2.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    >>> trace = [gp.Job("a", total_steps=1440), gp.Job("b", total_steps=360, arrival_seconds=100)]
    >>> result = gp.simulate(trace, gp.Cluster.from_counts({"v100": 1}), speeds, "fifo")
    >>> {job_id: job.jct_seconds for job_id, job in result.jobs.items()}
    {'a': 720.0, 'b': 980.0}
    """
    return Simulation(trace, cluster, profile, policy, **settings).run(until_seconds)
