"""Jobs for a comparison on a real Slurm: drawn from the measured profile, with about a second for a minute."""

from __future__ import annotations

import math
from functools import cache

import gavel_py as gp
from tests.slurm.loopback.submitting import Work

JOBS, ARRIVING_SECONDS = 120, 60
SHORTEST_SECONDS, LONGEST_SECONDS = 32.0, 128.0
"""On V100. The median is 64 s, more than 20 times what a stop and a start takes here; at real sites, it is more still."""

PROFILE = "gavel-osdi20"
GPUS_PER_NODE = 4

TOO_SLOW = 2.5
"""Users who know the speeds of their jobs leave out types that are slower by more than this factor."""


@cache
def measured() -> gp.ThroughputProfile:
    return gp.ThroughputProfile.builtin(PROFILE)


def workload(seed: int) -> gp.Trace:
    """Return gangs of the published mix, with log-uniform durations on V100 and random arrivals within a minute."""
    durations = gp.LogUniform(((1.0, SHORTEST_SECONDS, LONGEST_SECONDS),))
    profile = measured()
    return gp.generate_trace(JOBS, profile, jobs_per_hour=3600 * JOBS / ARRIVING_SECONDS, durations=durations, seed=seed)


def work_of(job: gp.Job, *, is_known: bool = False) -> Work:
    """Return the job as a user submits it: any GPU type, 1.2 times the duration on the slowest type as limit, and its job type.

    is_known: whether users know how fast their jobs are, and leave out types on which they take much longer.
    """
    profile = measured()
    speeds = {name: profile.throughput(job.job_type, job.num_gpus, name) for name in profile.accelerators}
    able = {name: speed for name, speed in speeds.items() if speed > (max(speeds.values()) / TOO_SLOW if is_known else 0.0)}
    nodes = math.ceil(job.num_gpus / GPUS_PER_NODE)
    minutes = math.ceil(1.2 * (job.total_steps or 0) / min(able.values()) / 60)
    return Work(
        name=f"job-{job.job_id}",
        request=(f"--nodes={nodes}", f"--gres=gpu:{job.num_gpus // nodes}"),
        steps=job.total_steps or 0,
        speeds=able,
        options=(
            f"--time={minutes}",
            f"--constraint={'|'.join(able)}",
            f'--comment=gavel: type="{job.job_type}" steps={job.total_steps}',
        ),
    )
