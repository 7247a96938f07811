"""The jobs of the published runs, drawn again from their seeds, or jobs of the same mix from our generator."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import gavel_py as gp

__all__ = ["PROFILE", "generated_jobs", "published_jobs"]

PROFILE = "gavel-osdi20"

# The published list of models in its order: those measured with several GPUs, and those that run on one only.
SIZES = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "ResNet-50": (16, 32, 64, 128),
    "Transformer": (16, 32, 64, 128, 256),
    "LM": (5, 10, 20, 40, 80),
}
SEVERAL = [f"{model} (batch size {size})" for model, sizes in SIZES.items() for size in sizes]
MODELS = [*SEVERAL, *(f"Recommendation (batch size {size})" for size in (512, 1024, 2048, 4096, 8192)), "A3C", "CycleGAN"]


def published_jobs(count: int, jobs_per_hour: float | None, gangs: bool, seed: int) -> list[gp.Submission]:
    """Return the first jobs of a published run: the numbers of Python's generator in the published order, jobs from seed + 2.

    Each job consumes one random number for its gang, even if all have one GPU, two for its duration, and one for each model tried
    until one fits its gang. Times between arrivals are exponential, from seed + 3; the first job arrives at 0.
    """
    profile = gp.ThroughputProfile.builtin(PROFILE)
    arrivals = _arrivals(jobs_per_hour, seed)
    chance = random.Random(seed + 2)  # noqa: S311
    return [_job(number, next(arrivals), chance, gangs, profile) for number in range(count)]


def generated_jobs(count: int, jobs_per_hour: float | None, gangs: bool, seed: int) -> gp.Trace:
    """Return jobs of the same mix from `gp.generate_trace`."""
    profile = gp.ThroughputProfile.builtin(PROFILE)
    return gp.generate_trace(count, profile, jobs_per_hour=jobs_per_hour, gang_mix=None if gangs else {1: 1.0}, seed=seed)


def _arrivals(jobs_per_hour: float | None, seed: int) -> Iterator[float]:
    chance, now = random.Random(seed + 3), 0.0  # noqa: S311
    while True:
        yield now
        if jobs_per_hour is not None:
            now -= math.log(1.0 - chance.random()) * 3600 / jobs_per_hour


def _job(number: int, arrival: float, chance: random.Random, gangs: bool, profile: gp.ThroughputProfile) -> gp.Submission:
    place = chance.uniform(0, 1)
    size = 1 if place < 0.7 or not gangs else 2 if place <= 0.8 else 4 if place <= 0.95 else 8
    minutes = 10 ** (chance.uniform(3, 4) if chance.random() >= 0.8 else chance.uniform(1.5, 3))
    model = chance.choice(MODELS)
    while size > 1 and model not in SEVERAL:
        model = chance.choice(MODELS)
    steps = 60 * minutes * profile.throughput(model, size, "v100")
    job = gp.Job(str(number), job_type=model, num_gpus=size, total_steps=steps, arrival_seconds=arrival)
    return gp.Submission(job, run_seconds=60 * minutes, accelerator="v100")
