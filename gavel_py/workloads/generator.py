"""Traces drawn at random: the published mix unless said otherwise.

`arrivals`: when jobs arrive, as a Poisson process, or in bursts with pauses between them; `LogUniform`, `Empirical`: how long they
run, log-uniform in pieces, or drawn from what was seen; `Models`: which job types of a profile a job may have, by the size of its
gang.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.io.random import sequence_of
from gavel_py.io.records import gang_size
from gavel_py.problem.arrays import Floats
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads.submission import Submission, TraceReport
from gavel_py.workloads.trace import Trace

SECONDS_PER_HOUR = 3600.0


def arrivals(jobs_per_hour: float, burstiness: float, phases: Floats, places: Floats) -> Floats:
    """Return N arrival times, s, from 2 N numbers in [0, 1); the first job arrives after the first gap.

    Gaps have the mean 1 / jobs_per_hour and the coefficient of variation c = burstiness. For c = 1 they are exponential, a Poisson
    process. For c > 1 a gap is exponential with rate 2 p r with probability p, otherwise with rate 2 (1 - p) r, where r is the rate
    of arrivals and p = (1 + sqrt((c^2 - 1) / (c^2 + 1))) / 2: many short gaps, and as much time in few long ones.
    """
    if not 0 < jobs_per_hour < math.inf:
        raise InputError(Fault("arrivals", "jobs_per_hour", f"must be a finite number above 0, found {jobs_per_hour!r}"))
    if not 1 <= burstiness < math.inf:
        problem = f"must be at least 1 (1 = Poisson, more = burstier), found {burstiness!r}"
        raise InputError(Fault("arrivals", "burstiness", problem))
    squared = burstiness**2
    part = (1 + math.sqrt((squared - 1) / (squared + 1))) / 2
    rates = np.where(phases < part, 2 * part, 2 * (1 - part)) * jobs_per_hour / SECONDS_PER_HOUR
    return np.cumsum(-np.log1p(-places) / rates)


@dataclass(frozen=True)
class LogUniform:
    """Durations whose logarithm is uniform between two bounds, one of several pieces with a probability each.

    pieces: (weight, shortest, longest) in seconds; weights need not sum to 1.

    >>> LogUniform(((1.0, 60.0, 3600.0),)).mean_seconds
    864.6...
    """

    pieces: tuple[tuple[float, float, float], ...]

    def __post_init__(self) -> None:
        if not self.pieces:
            raise InputError(Fault("durations", "pieces", "must name at least one piece, (weight, shortest, longest)"))
        for weight, shortest, longest in self.pieces:
            if not (0 < weight < math.inf and 0 < shortest <= longest < math.inf):
                problem = f"must have a weight above 0 and 0 < shortest <= longest, seconds, found {(weight, shortest, longest)!r}"
                raise InputError(Fault("durations", "pieces", problem))

    @property
    def mean_seconds(self) -> float:
        """The expected duration: (b - a) / log(b/a) for a piece from a to b."""
        means = [(b - a) / math.log(b / a) if b > a else a for _, a, b in self.pieces]
        weights = [weight for weight, _, _ in self.pieces]
        return sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)

    def draw(self, pieces: Floats, places: Floats) -> Floats:
        """Return N durations from 2 N numbers in [0, 1): the first choose pieces, the second the places in them."""
        weights = np.array([weight for weight, _, _ in self.pieces])
        chosen = np.searchsorted(np.cumsum(weights[:-1] / weights.sum()), pieces, side="right")
        low = np.log([a for _, a, _ in self.pieces])[chosen]
        high = np.log([b for _, _, b in self.pieces])[chosen]
        return np.exp(low + (high - low) * places)


@dataclass(frozen=True, init=False)
class Empirical:
    """Durations drawn from those given, all alike likely."""

    seconds: tuple[float, ...]

    def __init__(self, seconds: Iterable[float]) -> None:
        object.__setattr__(self, "seconds", tuple(float(value) for value in seconds))
        if not self.seconds or not all(0 < value < math.inf for value in self.seconds):
            raise InputError(Fault("durations", "seconds", "must be finite numbers above 0, and at least one of them"))

    @property
    def mean_seconds(self) -> float:
        """The mean of the durations given."""
        return math.fsum(self.seconds) / len(self.seconds)

    def draw(self, pieces: Floats, places: Floats) -> Floats:  # noqa: ARG002
        """Return N durations from N numbers in [0, 1)."""
        return np.array(self.seconds)[(places * len(self.seconds)).astype(np.intp)]


PUBLISHED_DURATIONS = LogUniform(((0.8, 60 * 10**1.5, 60 * 10**3), (0.2, 60 * 10**3, 60 * 10**4)))
"""Those of Gavel's experiments: 60 * 10^U(1.5, 3) s with probability 0.8, otherwise 60 * 10^U(3, 4) s."""


class Models:
    """The job types of a profile that are known, running alone and consolidated, on all of some accelerators."""

    def __init__(self, profile: ThroughputProfile, reference: str, accelerators: tuple[str, ...]) -> None:
        self.profile, self.reference, self.accelerators = profile, reference, accelerators
        self.at = cache(self._at)

    def reference_of(self, accelerator: str) -> str:
        """Return the accelerator on which steps are counted for a job that ran there."""
        return accelerator if accelerator in self.profile.accelerators else self.reference

    def have(self, num_gpus: float) -> bool:
        """Say whether any type is known for this gang."""
        return bool(self.at(num_gpus, self.reference))

    def _at(self, num_gpus: float, reference: str) -> tuple[str, ...]:
        """The types of this gang size that run on the reference; a type must be known, be it as 0, on every other accelerator."""
        profile = self.profile
        return tuple(
            job_type
            for job_type in profile.job_types
            if all(profile.has(job_type, num_gpus, accelerator) for accelerator in {*self.accelerators, reference})
            and profile.throughput(job_type, num_gpus, reference) > 0
        )


def reference_of(profile: ThroughputProfile, reference: str | None) -> str:
    """Return the accelerator on which durations hold: the one named, or else v100, or else the first of the profile."""
    if reference is None:
        return "v100" if "v100" in profile.accelerators else profile.accelerators[0]
    return known_accelerators(profile, [reference])[0]


def known_accelerators(profile: ThroughputProfile, accelerators: Sequence[str] | None) -> tuple[str, ...]:
    """Return these accelerators, all of the profile for None; raises `InputError` for one that it does not know."""
    chosen = profile.accelerators if accelerators is None else tuple(accelerators)
    known = ", ".join(profile.accelerators)
    strange = [
        Fault(f"throughput profile {profile.name!r}", "accelerator", f"{name!r} is not in it; known: {known}")
        for name in chosen
        if name not in profile.accelerators
    ]
    InputError.raise_any(strange)
    return chosen


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
