"""Jobs for a comparison on a real Slurm: drawn from the measured profile, a second here standing for a minute."""

from __future__ import annotations

import math
from functools import cache

import gavel_py as gp
from tests.slurm.loopback.submitting import Work

JOBS, ARRIVING_SECONDS = 200, 60
SHORTEST_SECONDS, LONGEST_SECONDS = 8.0, 40.0
PROFILE = "gavel-osdi20"
GPUS_PER_NODE = 4


@cache
def measured() -> gp.ThroughputProfile:
    return gp.ThroughputProfile.builtin(PROFILE)


def workload(seed: int) -> gp.Trace:
    """Gangs of the published mix; how long they run on a V100 is log-uniform; they arrive at random in a minute."""
    durations = gp.LogUniform(((1.0, SHORTEST_SECONDS, LONGEST_SECONDS),))
    profile = measured()
    return gp.generate_trace(JOBS, profile, jobs_per_hour=3600 * JOBS / ARRIVING_SECONDS, durations=durations, seed=seed)


def work_of(job: gp.Job) -> Work:
    """The job as its user would submit it: any type of GPU, a fifth more time than the slowest type needs, and what it is."""
    profile = measured()
    speeds = {name: profile.throughput(job.job_type, job.num_gpus, name) for name in profile.accelerators}
    able = {name: speed for name, speed in speeds.items() if speed}
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
