"""One run as reports show it: what was asked, numbers, and what happened over time; whoever ran it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["METRICS", "Labels", "OverTime", "Run", "Stay"]

FloatArray = NDArray[np.float64]
Labels = Mapping[str, str | float | None]

METRICS = {
    "mean_jct_seconds": "mean completion time of the finished jobs, from arrival to end",
    "median_jct_seconds": "their median completion time",
    "p99_jct_seconds": "the completion time that 99 % of them do not exceed",
    "makespan_seconds": "from the first arrival to the end of the last job",
    "mean_queueing_seconds": "mean time in the system without GPUs",
    "finish_time_fairness": "mean of ρ = completion time / that of the same trace under `isolated`",
    "utilization": "used part of the GPU-seconds that were not down, all types",
    "undelivered_share": "part of the promised GPU-seconds that the rounds did not deliver",
    "cost": "of all GPUs held, in the unit of their prices per hour",
    "finished": "number of jobs that finished",
    "unfinished": "number of measured jobs that did not: failed, cancelled, or still in the system",
    "ended_after_arrivals": "number of measured jobs that ended when no job of the trace was still to arrive",
    "late": "number of jobs that missed their deadline",
    "preemptions": "how often a job lost its GPUs before it was done",
    "solver_seconds": "time spent on allocations",
    "wall_seconds": "time that the run took",
    "cpu_seconds": "processor time that its process took meanwhile",
    "objective": "of a static solve: the value of the policy's objective, as proven",
    "gap": "of a static solve: bound less value, relative",
}
"""The numbers of a run by name, and what they are; a run may lack any of them, and have others."""


@dataclass(frozen=True, eq=False)
class OverTime:
    """What happened in each of T stretches of time.

    seconds: (T + 1,) their limits, on the clock of the trace; used: {type: (T,)} the share of its GPUs in use, in [0, 1];
    prices: {type: (T,)} what one more GPU would have added to the policy's objective, relative to the objective, NaN where unknown;
    active_jobs: (T,) jobs in the system; promised_gpu_seconds, delivered_gpu_seconds: (T,) by the allocation and the rounds.
    """

    seconds: FloatArray
    used: Mapping[str, FloatArray]
    prices: Mapping[str, FloatArray]
    active_jobs: FloatArray
    promised_gpu_seconds: FloatArray
    delivered_gpu_seconds: FloatArray


@dataclass(frozen=True, slots=True)
class Stay:
    """A gang on GPUs of one node from one moment to another, in seconds on the clock of the trace."""

    job_id: str
    job_type: str
    node: str
    accelerator: str
    gpus: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, eq=False)
class Run:
    """One run.

    labels: what was asked ("policy", "trace", "load" in jobs per hour, "cluster", "seed", "round_seconds", ...), None where it
    does not apply; metrics: numbers by name (`METRICS`), None where there is none; jct_seconds: of each finished job, ascending;
    fairness: ρ of each job, ascending, empty where it is not known; over_time: None for a static solve; stays: for one run, where
    each gang was, empty where that was not kept; shares: {job type: {accelerator type: mean share of the time of its jobs}}.
    """

    labels: Labels
    metrics: Mapping[str, float | None]
    jct_seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    fairness: FloatArray = field(default_factory=lambda: np.zeros(0))
    over_time: OverTime | None = None
    stays: Sequence[Stay] = ()
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
