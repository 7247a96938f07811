"""Traces drawn at random: the published mix unless said otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.io.random import sequence_of
from gavel_py.io.records import gang_size
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads.arrivals import arrivals
from gavel_py.workloads.durations import PUBLISHED_DURATIONS, Empirical, LogUniform
from gavel_py.workloads.models import Models
from gavel_py.workloads.report import TraceReport
from gavel_py.workloads.submission import Submission
from gavel_py.workloads.trace import Trace

__all__ = ["PUBLISHED_GANGS", "generate_trace"]

PUBLISHED_GANGS: Mapping[float, float] = {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}
"""Parts of the jobs by gang size in Gavel's experiments with several GPUs."""

ASPECTS = ("phase", "gap", "gang", "type", "piece", "duration", "weight")
"""Each has random numbers of its own, so that another gang mix leaves arrivals and durations as they are."""


@dataclass(frozen=True)
class _Draws:
    """(N,) numbers in [0, 1) for each aspect."""

    by_aspect: Mapping[str, NDArray[np.float64]]

    @classmethod
    def of(cls, seed: int, num_jobs: int) -> _Draws:
        streams = zip(ASPECTS, sequence_of(seed).spawn(len(ASPECTS)), strict=True)
        return cls({aspect: np.random.default_rng(stream).random(num_jobs) for aspect, stream in streams})

    def __getitem__(self, aspect: str) -> NDArray[np.float64]:
        return self.by_aspect[aspect]


def generate_trace(
    num_jobs: int,
    profile: ThroughputProfile,
    *,
    jobs_per_hour: float | None,
    burstiness: float = 1.0,
    gang_mix: Mapping[float, float] | None = None,
    durations: LogUniform | Empirical | None = None,
    heavy_share: float = 0.0,
    heavy_weight: float = 5.0,
    reference: str = "v100",
    seed: int = 0,
) -> Trace:
    """Return `num_jobs` jobs drawn at random; the same arguments give the same trace, byte for byte.

    jobs_per_hour: None = all at time 0; burstiness: coefficient of variation of the times between arrivals, 1 = Poisson;
    gang_mix: weights by gang size, fractions of a GPU included, as published unless said;
    durations: on the reference accelerator, as published unless said; total_steps = duration x throughput there, rounded;
    heavy_share of the jobs weigh heavy_weight, the others 1. Job types are all alike likely among those that the profile has for
    the gang size on all of its accelerators.
    Source of the defaults: Narayanan et al., OSDI 2020.
    """
    if num_jobs < 1:
        raise InputError(Fault("generate", "num_jobs", f"must be at least 1, found {num_jobs!r}"))
    if not 0 <= heavy_share <= 1:
        raise InputError(Fault("generate", "heavy_share", f"must be between 0 and 1, found {heavy_share!r}"))
    if reference not in profile.accelerators:
        problem = f"{reference!r} is not in profile {profile.name!r}; known: {', '.join(profile.accelerators)}"
        raise InputError(Fault("generate", "reference", problem))
    models = Models(profile, reference, profile.accelerators)
    gang_mix = _checked(PUBLISHED_GANGS if gang_mix is None else gang_mix, models)
    draws = _Draws.of(seed, num_jobs)
    times = np.zeros(num_jobs)
    if jobs_per_hour is not None:
        times = arrivals(jobs_per_hour, burstiness, draws["phase"], draws["gap"])
    seconds = (durations or PUBLISHED_DURATIONS).draw(draws["piece"], draws["duration"])
    gangs = _chosen(gang_mix, draws["gang"])
    weights = np.where(draws["weight"] < heavy_share, heavy_weight, 1.0)
    columns = zip(times.round(3).tolist(), seconds.tolist(), gangs, draws["type"].tolist(), weights.tolist(), strict=True)
    submissions = [_submission(number, models, *values) for number, values in enumerate(columns)]
    arriving = "all at time 0" if jobs_per_hour is None else f"{jobs_per_hour:g} jobs per hour, burstiness {burstiness:g}"
    said = f"Generated with seed {seed}, profile {profile.name!r}: {arriving}; durations hold on {reference}."
    report = TraceReport("generated", "generated", num_jobs, num_jobs, assumptions=(said,))
    return Trace(submissions, report)


def _checked(gang_mix: Mapping[float, float], models: Models) -> dict[float, float]:
    faults, checked = [], {}
    for given, weight in gang_mix.items():
        try:
            size = gang_size(given)
        except ValueError as error:
            faults.append(Fault("generate", "gang_mix", f"a gang {error}"))
            continue
        checked[size] = weight
        if not 0 < weight < math.inf:
            faults.append(Fault("generate", "gang_mix", f"the weight of gangs of {size} must be above 0, found {weight!r}"))
        elif not models.have(size):
            problem = f"profile {models.profile.name!r} has no job type for gangs of {size} GPUs that runs on {models.reference}"
            faults.append(Fault("generate", "gang_mix", problem))
    if not gang_mix:
        faults.append(Fault("generate", "gang_mix", "must name at least one gang size"))
    InputError.raise_any(faults)
    return checked


def _chosen(gang_mix: Mapping[float, float], places: NDArray[np.float64]) -> Sequence[float]:
    sizes, weights = list(gang_mix), np.array(list(gang_mix.values()))
    chosen = np.searchsorted(np.cumsum(weights[:-1] / weights.sum()), places, side="right")
    return [sizes[index] for index in chosen]


def _submission(
    number: int, models: Models, arrival: float, seconds: float, num_gpus: float, part: float, weight: float
) -> Submission:
    candidates = models.at(num_gpus, models.reference)
    job_type = candidates[int(part * len(candidates))]
    speed = models.profile.throughput(job_type, num_gpus, models.reference)
    steps = max(1.0, float(round(seconds * speed)))
    job = Job(
        str(number), job_type=job_type, num_gpus=num_gpus, weight=weight, total_steps=steps, arrival_seconds=arrival
    )  # fmt: skip
    return Submission(job, run_seconds=steps / speed, accelerator=models.reference)
