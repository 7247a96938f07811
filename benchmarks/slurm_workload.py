"""Jobs for a comparison on a real Slurm: drawn from the measured profile, with a second for a minute."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import gavel_py as gp
from tests.slurm.loopback.submitting import Work

PROFILE = "gavel-osdi20"
GPUS_PER_NODE, NODES_PER_TYPE = 4, 4
USERS = 6

TOO_SLOW = 2.5
"""Users who know the speeds of their jobs leave out types that are slower by more than this factor."""

LIMIT = 1.2
"""Time limits are this multiple of the duration on the slowest type that a job names."""


@dataclass(frozen=True)
class Length:
    """jobs: how many; seconds: on V100, log-uniform between two limits; loading_seconds: without steps at each start."""

    jobs: int
    shortest_seconds: float
    longest_seconds: float
    loading_seconds: float


LENGTHS = {"short": Length(60, 30.0, 120.0, 3.0), "long": Length(40, 75.0, 300.0, 5.0)}

LOADS = {"calm": 0.5, "full": 1.0, "overloaded": 2.0}
"""The work that arrives in a second, as a multiple of what all GPUs do in a second if each job has the same part of every type."""


@dataclass(frozen=True)
class Workload:
    """A seed of one of these loads and lengths."""

    load: str
    length: str
    seed: int

    @property
    def loading_seconds(self) -> float:
        return LENGTHS[self.length].loading_seconds

    def trace(self) -> list[gp.Job]:
        """Return gangs of the published mix that arrive at random, each of one of the users."""
        length, profile = LENGTHS[self.length], measured()
        durations = gp.LogUniform(((1.0, length.shortest_seconds, length.longest_seconds),))
        drawn = gp.generate_trace(length.jobs, profile, jobs_per_hour=3600.0, durations=durations, seed=self.seed)
        jobs, chance = [each.job for each in drawn], random.Random(self.seed)  # noqa: S311
        needed = sum(job.num_gpus * (job.total_steps or 0.0) / mean_speed(job) for job in jobs)
        scale = needed / (NODES_PER_TYPE * GPUS_PER_NODE * len(profile.accelerators)) / LOADS[self.load] / jobs[-1].arrival_seconds
        return [
            job.model_copy(update={"arrival_seconds": job.arrival_seconds * scale, "tenant": f"user-{chance.randrange(USERS)}"})
            for job in jobs
        ]


@cache
def measured() -> gp.ThroughputProfile:
    return gp.ThroughputProfile.builtin(PROFILE)


def speeds_of(job: gp.Job, *, is_known: bool = False) -> Mapping[str, float]:
    """Return {type: steps/s} of the types that a job names; is_known: as for `work_of`."""
    profile = measured()
    speeds = {name: profile.throughput(job.job_type, job.num_gpus, name) for name in profile.accelerators}
    return {name: speed for name, speed in speeds.items() if speed > (max(speeds.values()) / TOO_SLOW if is_known else 0.0)}


def mean_speed(job: gp.Job) -> float:
    """Return the mean speed over all types, of which there are equally many."""
    return sum(speeds_of(job).values()) / len(measured().accelerators)


def limit_minutes(job: gp.Job, loading_seconds: float, *, is_known: bool = False) -> int:
    """Return the time limit of a job; is_known: as for `work_of`."""
    return math.ceil(LIMIT * (loading_seconds + (job.total_steps or 0) / min(speeds_of(job, is_known=is_known).values())) / 60)


def work_of(job: gp.Job, loading_seconds: float, *, is_known: bool = False) -> Work:
    """Return the job as a user submits it: with its GPU types, a time limit, and its job type.

    is_known: whether users know how fast their jobs are, and leave out types on which they take much longer.
    """
    speeds, nodes = speeds_of(job, is_known=is_known), math.ceil(job.num_gpus / GPUS_PER_NODE)
    return Work(
        name=f"job-{job.job_id}",
        request=(f"--nodes={nodes}", f"--gres=gpu:{job.num_gpus // nodes}"),
        steps=job.total_steps or 0,
        speeds=speeds,
        loading_seconds=loading_seconds,
        options=(
            f"--time={limit_minutes(job, loading_seconds, is_known=is_known)}",
            f"--constraint={'|'.join(speeds)}",
            f'--comment=gavel: type="{job.job_type}" steps={job.total_steps}',
        ),
    )
