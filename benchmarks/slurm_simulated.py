"""The systems of the comparison without Slurm: the driver's rounds by the simulator, and Slurm's own backfill by its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_systems import RESTART_SECONDS, ROUND_SECONDS, Setting
from slurm_workload import GPUS_PER_NODE, NODES_PER_TYPE, Workload, limit_minutes, measured, speeds_of

import gavel_py as gp
from gavel_py.integrations.slurm.monitoring.backfill import BackfilledJob, backfilled
from gavel_py.integrations.slurm.records import LOST_SHARE
from gavel_py.integrations.slurm.turns import MECHANISM

ORDER = ("v100", "p100", "k80")


@dataclass(frozen=True)
class Times:
    """Seconds as measured: from submission to start of jobs that did not wait, in Slurm and under the driver, and of its stops and
    starts together.
    """

    slurm_start: float
    driver_start: float
    restart: float


@dataclass(frozen=True)
class Outcome:
    """jct_seconds, starts: of each job, in the order of their arrival; lost_gpu_seconds: time of GPUs that did no steps."""

    jct_seconds: Sequence[float]
    starts: Sequence[int]
    lost_gpu_seconds: float


def by_slurm(workload: Workload, times: Times, *, is_known: bool) -> Outcome:
    """Play a workload by Slurm's backfill; is_known: as for `work_of`."""
    jobs, loading = workload.trace(), workload.loading_seconds
    requests = []
    for job in jobs:
        nodes, speeds = math.ceil(job.num_gpus / GPUS_PER_NODE), speeds_of(job, is_known=is_known)
        seconds = {name: times.slurm_start + loading + (job.total_steps or 0.0) / speed for name, speed in speeds.items()}
        limit = 60.0 * limit_minutes(job, loading, is_known=is_known)
        requests.append(BackfilledJob(job.arrival_seconds, nodes, int(job.num_gpus) // nodes, limit, seconds))
    ends = backfilled(requests, [(name, GPUS_PER_NODE) for name in ORDER for _ in range(NODES_PER_TYPE)])
    jct = [float(end) - job.arrival_seconds for end, job in zip(ends, jobs, strict=True)]
    return Outcome(jct, [1] * len(jobs), sum(job.num_gpus * loading for job in jobs))


def by_driver(workload: Workload, times: Times, setting: Setting) -> Outcome:
    """Play a workload in rounds, with a start that takes as long as a stop and a start, and loading."""
    cluster = gp.Cluster.from_counts(dict.fromkeys(ORDER, (NODES_PER_TYPE * GPUS_PER_NODE, GPUS_PER_NODE)))
    jobs = [job.model_copy(update={"allowed_accelerators": _fast_enough(job, setting.too_slow)}) for job in workload.trace()]
    simulation = gp.Simulation(
        jobs,
        cluster,
        measured(),
        setting.policy,
        round_seconds=ROUND_SECONDS,
        starts_between_rounds=True,
        restart_seconds=max(times.restart, times.driver_start) + workload.loading_seconds,
        mechanism=MECHANISM,
    )
    scheduler = simulation.scheduler
    turn = (RESTART_SECONDS + workload.loading_seconds) / LOST_SHARE if setting.has_turns else 0.0
    while simulation.step():  # as in `RestartCost.apply`
        scheduler.min_run_seconds = turn if len(scheduler.jobs) > len(scheduler.running) else 0.0
    records = [simulation.records[job.job_id] for job in jobs]
    lost = sum(record.starts * record.num_gpus * workload.loading_seconds for record in records)
    return Outcome([record.jct_seconds or math.nan for record in records], [record.starts for record in records], lost)


def _fast_enough(job: gp.Job, too_slow: float | None) -> tuple[str, ...]:
    speeds = speeds_of(job)
    return tuple(name for name, speed in speeds.items() if too_slow is None or too_slow * speed >= max(speeds.values()))
