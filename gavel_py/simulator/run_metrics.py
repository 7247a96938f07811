"""The numbers of a simulation under the names that runs have for them."""

from __future__ import annotations

from gavel_py.simulator.records import Outcome
from gavel_py.simulator.summary import Summary

__all__ = ["summary_metrics"]


def summary_metrics(summary: Summary) -> dict[str, float | None]:
    """Return the numbers of a summary under the names that runs have for them (`METRICS`)."""
    used = sum(each["used"] for each in summary.usage.values())
    measured = {"unfinished": summary.unfinished, "ended_after_arrivals": summary.ended_after_arrivals}
    there = sum(each["gpu_seconds"] - each["down"] for each in summary.usage.values())
    return {
        "mean_jct_seconds": summary.jct.mean,
        "median_jct_seconds": summary.jct.median,
        "p99_jct_seconds": summary.jct.p99,
        "makespan_seconds": summary.makespan_seconds,
        "mean_queueing_seconds": summary.queueing.mean,
        "utilization": used / there if there > 0 else 0.0,
        "undelivered_share": summary.undelivered_share,
        "cost": summary.cost,
        **{outcome.value: summary.outcomes[outcome.value] for outcome in Outcome},
        **(measured if summary.measure_jobs is not None else {}),
        "late": summary.late,
        "preemptions": summary.preemptions,
        "starts": summary.starts,
        "rounds": summary.rounds,
        "solver_seconds": summary.solver_seconds,
        "wall_seconds": summary.wall_seconds,
    }
