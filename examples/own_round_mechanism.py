"""Write a round mechanism of your own: the rule that turns fractions of time into rounds.

A mechanism takes the demand of a round, and returns for each job the column of the GPU type to run on, or -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import gavel_py as gp


def greedy(demand: gp.RoundDemand) -> NDArray[np.int64]:
    """Start the job with the largest claim first, whatever a restart costs."""
    free = demand.capacities.copy()
    selected = np.full(len(demand.num_gpus), -1, dtype=np.int64)
    claims = np.where(demand.possible, demand.claims, 0.0)  # rounds by which each job is behind, the next one included
    for pair in np.argsort(-claims, axis=None, kind="stable"):
        job, column = np.unravel_index(pair, claims.shape)
        if claims[job, column] > 0 and selected[job] < 0 and demand.num_gpus[job] <= free[column]:
            selected[job] = column
            free[column] -= demand.num_gpus[job]
    return selected


def main() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace = gp.generate_trace(15, profile, jobs_per_hour=12, durations=gp.LogUniform(((1, 600, 14_400),)), seed=3)
    cluster = gp.Cluster.from_inline("v100:8/4,k80:8/4")
    mechanisms: dict[str, Any] = {"deficit, the default": "deficit", "greedy": greedy}
    for name, mechanism in mechanisms.items():
        summary = gp.simulate(trace, cluster, profile, mechanism=mechanism, restart_seconds=120).summary
        hours = (summary.jct.mean or 0.0) / 3600
        print(f"{name}: mean completion time {hours:.2f} h, {summary.starts} starts, {summary.preemptions} preemptions")


if __name__ == "__main__":
    main()
