"""Random traces, by default with the distributions of Gavel's experiments.

`arrivals` draws a Poisson process or bursts with pauses. `LogUniform` and `Empirical` are distributions of durations. `JobTypes`
finds the job types of a profile that jobs of a gang size can have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Annotated, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SkipValidation

from gavel_py.errors import Fault, InputError, faults_among, refuse, relocated_faults
from gavel_py.io.records import (
    Count,
    Finite,
    Flag,
    Natural,
    Options,
    Part,
    Positive,
    Text,
    check,
    command_option,
    faults_of,
    gang_size,
)
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.arrays import Floats
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads.submission import Submission, TraceReport
from gavel_py.workloads.trace import Trace, seed_sequence

if TYPE_CHECKING:
    from gavel_py.workloads.keywords import TraceKeywords


def arrivals(jobs_per_hour: float, burstiness: float, phases: Floats, places: Floats) -> Floats:
    """Return N arrival times in seconds from two (N,) arrays of uniform numbers in [0, 1); the first job arrives after a gap.

    Gaps have the mean 1 / jobs_per_hour and the coefficient of variation c = burstiness. For c = 1 they are exponential, a Poisson
    process. For c > 1 they are hyperexponential with balanced means: a gap has rate 2 p r with probability p, otherwise rate
    2 (1 - p) r, where r is the arrival rate and p = (1 + sqrt((c^2 - 1) / (c^2 + 1))) / 2.
    """
    check("arrivals", jobs_per_hour=(jobs_per_hour, Positive), burstiness=(burstiness, Finite))
    problem = f"must be at least 1 (1 = Poisson, more = burstier), found {burstiness!r}"
    refuse("arrivals", (burstiness < 1, "burstiness", problem))
    squared = burstiness**2
    part = (1 + math.sqrt((squared - 1) / (squared + 1))) / 2
    rates = np.where(phases < part, 2 * part, 2 * (1 - part)) * jobs_per_hour / 3600.0
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        times: Floats = np.cumsum(-np.log1p(-places) / rates)
    refuse(
        "arrivals",
        (
            not np.isfinite(times).all(),
            "jobs_per_hour",
            f"is so small that arrivals are later than the largest number, found {jobs_per_hour!r}",
        ),
    )
    return times


def _weighted_choice(weights: Iterable[float], places: Floats) -> NDArray[np.intp]:
    """Return N indices drawn in proportion to the weights, from N uniform numbers in [0, 1)."""
    weights = np.array(list(weights))
    return np.searchsorted(np.cumsum(weights[:-1] / weights.sum()), places, side="right")


@dataclass(frozen=True)
class LogUniform:
    """Distribution of durations that is piecewise log-uniform.

    Args:
        pieces: (weight, shortest, longest) of each piece, in seconds; weights need not sum to 1.

    Raises:
        InputError: There are no pieces, or bounds or weights are not valid.

    >>> LogUniform(((1.0, 60.0, 3600.0),)).mean_seconds
    864.6...
    """

    pieces: tuple[tuple[float, float, float], ...]

    def __post_init__(self) -> None:
        refuse(
            "durations",
            (not self.pieces, "pieces", "must name at least one piece, (weight, shortest, longest)"),
            *(
                (
                    not (0 < weight < math.inf and 0 < shortest <= longest < math.inf),
                    "pieces",
                    f"must have a weight above 0 and 0 < shortest <= longest seconds, found {(weight, shortest, longest)!r}",
                )
                for weight, shortest, longest in self.pieces
            ),
        )

    @property
    def mean_seconds(self) -> float:
        """Expected duration in seconds; (b - a) / log(b/a) for a piece from a to b."""
        means = [(b - a) / math.log(b / a) if b > a else a for _, a, b in self.pieces]
        weights = [weight for weight, _, _ in self.pieces]
        return sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)

    def draw(self, pieces: Floats, places: Floats) -> Floats:
        """Return N durations in seconds.

        Args:
            pieces: (N,) uniform numbers in [0, 1) that choose the piece.
            places: (N,) uniform numbers in [0, 1) that choose the place within the piece.
        """
        chosen = _weighted_choice((weight for weight, _, _ in self.pieces), pieces)
        low = np.log([a for _, a, _ in self.pieces])[chosen]
        high = np.log([b for _, _, b in self.pieces])[chosen]
        return np.exp(low + (high - low) * places)


@dataclass(frozen=True, init=False)
class Empirical:
    """Distribution of durations that draws from recorded ones with equal probability.

    Args:
        seconds: The recorded durations.

    Raises:
        InputError: There are no durations, or some are not finite and positive.
    """

    seconds: tuple[float, ...]

    def __init__(self, seconds: Iterable[float]) -> None:
        object.__setattr__(self, "seconds", tuple(float(value) for value in seconds))
        refuse(
            "durations",
            (
                not self.seconds or not all(0 < value < math.inf for value in self.seconds),
                "seconds",
                "must be at least one number, all finite and greater than 0",
            ),
        )

    @property
    def mean_seconds(self) -> float:
        """Mean of the recorded durations in seconds."""
        return math.fsum(self.seconds) / len(self.seconds)

    def draw(self, pieces: Floats, places: Floats) -> Floats:  # noqa: ARG002
        """Return N durations in seconds from (N,) uniform numbers `places` in [0, 1); `pieces` is ignored."""
        return np.array(self.seconds)[(places * len(self.seconds)).astype(np.intp)]


PUBLISHED_DURATIONS = LogUniform(((0.8, 60 * 10**1.5, 60 * 10**3), (0.2, 60 * 10**3, 60 * 10**4)))
"""Durations of Gavel's experiments: 60 * 10^U(1.5, 3) s with probability 0.8, otherwise 60 * 10^U(3, 4) s."""


class JobTypes:
    """The job types of a profile that have a throughput, alone and consolidated, on each of `accelerators`."""

    def __init__(self, profile: ThroughputProfile, reference: str, accelerators: tuple[str, ...]) -> None:
        self.profile, self.reference, self.accelerators = profile, reference, accelerators
        self.candidates, self.reference_of = cache(self._candidates), cache(self._reference_of)

    def _reference_of(self, accelerator: str) -> str:
        """Return the accelerator on which the durations of jobs that ran on `accelerator` are converted to steps."""
        return same_accelerator(accelerator, self.profile.accelerators) or self.reference

    def _candidates(self, num_gpus: float, reference: str) -> tuple[str, ...]:
        """Return the job types that run on the reference and have a known throughput, possibly 0, on the other accelerators."""
        profile = self.profile
        return tuple(
            job_type
            for job_type in profile.job_types
            if all(profile.has(job_type, num_gpus, accelerator) for accelerator in {*self.accelerators, reference})
            and profile.throughput(job_type, num_gpus, reference) > 0
        )


def reference_of(profile: ThroughputProfile, reference: str | None) -> str:
    """Return the accelerator to which durations refer: the given one, else v100, else the first one of the profile."""
    if reference is None:
        return "v100" if "v100" in profile.accelerators else profile.accelerators[0]
    return known_accelerators(profile, [reference])[0]


def known_accelerators(profile: ThroughputProfile, accelerators: Sequence[str] | None) -> tuple[str, ...]:
    """Return the profile's names of accelerators, or of all measured ones for None. Raises `InputError` for unknown ones."""
    measured: ThroughputProfile = getattr(profile, "measured", profile)  # estimates also cover accelerators with specifications
    chosen = measured.accelerators if accelerators is None else tuple(accelerators)
    where, known = f"throughput profile {profile.name!r}", ", ".join(profile.accelerators)
    names = {name: same_accelerator(name, profile.accelerators) for name in chosen}
    unknown = [name for name, found in names.items() if found is None]
    InputError.raise_any([Fault(where, "accelerator", f"{name!r} is not in this profile; known: {known}") for name in unknown])
    return tuple(dict.fromkeys(name for name in names.values() if name is not None))


PUBLISHED_GANGS: Mapping[float, float] = {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}
"""Shares of the gang sizes in Gavel's experiments with several GPUs."""


class MixOptions(Options):
    """What a generated trace and the traces that a sweep generates have in common."""

    label: ClassVar[str] = "generate"

    burstiness: Finite = command_option(
        1.0,
        "Burstiness of arrivals: 1 = Poisson; more: bursts and pauses. The coefficient of variation of the times between them.",
        metavar="C",
    )
    heavy_share: Part = command_option(0.0, "Fraction of jobs with weight 5. That is `heavy_weight`; the others have weight 1.")
    heavy_weight: Positive = Field(5.0, description="Weight of the heavy jobs.")
    reference: Text = command_option("v100", "Accelerator of the durations.", metavar="TYPE")


class TraceOptions(MixOptions):
    """The options of `generate_trace`. Every field is also a keyword argument of it.

    Raises:
        InputError: A value is out of range, or an option is not known.
    """

    gang_mix: Annotated[Mapping[float, float] | None, SkipValidation] = Field(
        None, description="{gang size in GPUs, or a fraction of one: weight}. None for the published mix."
    )
    durations: Annotated[LogUniform | Empirical | None, SkipValidation] = Field(
        None,
        description="Distribution of durations on the reference accelerator. None for the published one; total_steps is "
        "the rounded product of duration and throughput there.",
    )
    workflows: Flag = command_option(
        False,
        "Jobs belong to workflows of about 10, and wait for some of the jobs before them. A workflow has 2 jobs plus a geometric "
        "number, 10.3 on average; they arrive at the same time, and wait for jobs in the previous layer.",
    )
    seed: Natural = command_option(0, "Seed of all random choices.", metavar="N")

    def changed(self, **changes: Unpack[TraceKeywords]) -> Self:
        """Return the options with other values for some fields, checked."""
        return self._with(changes)


DEFAULTS = TraceOptions()

ASPECTS = ("phase", "gap", "gang", "type", "piece", "duration", "weight", "workflow")
"""Each aspect has a separate stream of random numbers: a different gang mix does not change arrivals and durations."""


def generate_trace(
    num_jobs: int,
    profile: ThroughputProfile,
    *,
    jobs_per_hour: float | None,
    options: TraceOptions = DEFAULTS,
    **changes: Unpack[TraceKeywords],
) -> Trace:
    """Return a random trace; the same arguments give the same trace, byte for byte.

    Job types are drawn with equal probability from those that the profile has for the gang size on all of its accelerators.
    Source of the defaults: Narayanan et al., OSDI 2020.

    Args:
        num_jobs: Number of jobs.
        profile: Source of the job types and throughputs.
        jobs_per_hour: Arrival rate; None lets all jobs arrive at time 0.
        options: How jobs are drawn.
        **changes: Fields of `TraceOptions` that replace those of `options`, such as `gang_mix`, `durations` and `seed`.

    Raises:
        InputError: An argument is out of range, or the profile has no job type for a gang size.
    """
    options = options.changed(**changes)
    check("generate", num_jobs=(num_jobs, Count))
    with relocated_faults(lambda fault: Fault("generate", "reference", fault.problem)):
        (known,) = known_accelerators(profile, [options.reference])
    types = JobTypes(profile, known, known_accelerators(profile, None))
    gang_mix = _checked(PUBLISHED_GANGS if options.gang_mix is None else options.gang_mix, types)
    streams = dict(zip(ASPECTS, seed_sequence(options.seed).spawn(len(ASPECTS)), strict=True))
    draws = {aspect: np.random.default_rng(stream).random(num_jobs) for aspect, stream in streams.items()}
    times = np.zeros(num_jobs)
    if jobs_per_hour is not None:
        times = arrivals(jobs_per_hour, options.burstiness, draws["phase"], draws["gap"])
    seconds = (options.durations or PUBLISHED_DURATIONS).draw(draws["piece"], draws["duration"])
    sizes = list(gang_mix)
    gangs = [sizes[index] for index in _weighted_choice(gang_mix.values(), draws["gang"])]
    weights = np.where(draws["weight"] < options.heavy_share, options.heavy_weight, 1.0)
    columns = zip(times.round(3).tolist(), seconds.tolist(), gangs, draws["type"].tolist(), weights.tolist(), strict=True)
    submissions = [_submission(number, types, *values) for number, values in enumerate(columns)]
    if options.workflows:
        submissions = list(_as_workflows(submissions, np.random.default_rng(streams["workflow"])))
    arriving = "all at time 0" if jobs_per_hour is None else f"{jobs_per_hour:g} jobs per hour, burstiness {options.burstiness:g}"
    arriving += ", in workflows" if options.workflows else ""
    assumption = (
        f"Generated with seed {options.seed}, profile {profile.name!r}: {arriving}; durations are those on {options.reference}."
    )
    return Trace(submissions, TraceReport("generated", "generated", num_jobs, num_jobs, assumptions=(assumption,)))


MORE_JOBS, MORE_PARENTS = 0.12, 0.6
"""Of workflows: the parameter of the geometric number of jobs beyond 2, and the mean of the Poisson number of parents beyond 1."""


def _as_workflows(submissions: Sequence[Submission], chance: np.random.Generator) -> Iterator[Submission]:
    """Yield the submissions as the jobs of layered workflows, with chains, fans and joins as in batch traces."""
    first = 0
    for number in count():
        size = 2 + int(chance.geometric(MORE_JOBS))
        layers = np.sort(chance.integers(0, max(2, int(np.sqrt(size) * 1.5)), size))
        jobs = submissions[first : first + size]
        for place, submission in enumerate(jobs):
            before = np.flatnonzero(layers[:place] < layers[place])
            last = before[layers[before] == layers[before].max(initial=-1)]
            parents: list[int] = []
            if len(last):
                parents = chance.choice(last, min(len(last), 1 + int(chance.poisson(MORE_PARENTS))), replace=False).tolist()
            ids = tuple(jobs[parent].job.job_id for parent in sorted(parents))
            changes = {"arrival_seconds": jobs[0].job.arrival_seconds, "workflow": f"w{number}", "depends_on": ids}
            yield replace(submission, job=submission.job.model_copy(update=changes))
        first += size
        if first >= len(submissions):
            return


def _checked(gang_mix: Mapping[float, float], types: JobTypes) -> dict[float, float]:
    """Return the mix with normalised gang sizes. Raises `InputError` with all faults."""
    faults, checked = [], {}
    for given, weight in gang_mix.items():
        try:
            size = gang_size(given)
        except ValueError as error:
            faults.append(Fault("generate", "gang_mix", f"a gang {error}"))
            continue
        checked[size] = weight
        faults += faults_of("generate", **{f"gang_mix[{size}]": (weight, Positive)})
        problem = f"profile {types.profile.name!r} has no job type for gangs of {size} GPUs that runs on {types.reference}"
        faults += faults_among("generate", (not types.candidates(size, types.reference), "gang_mix", problem))
    InputError.raise_any(faults + faults_among("generate", (not gang_mix, "gang_mix", "must name at least one gang size")))
    return checked


def _submission(
    number: int, types: JobTypes, arrival: float, seconds: float, num_gpus: float, part: float, weight: float
) -> Submission:
    candidates = types.candidates(num_gpus, types.reference)
    job_type = candidates[int(part * len(candidates))]
    speed = types.profile.throughput(job_type, num_gpus, types.reference)
    steps = max(1.0, float(round(seconds * speed)))
    job = Job(str(number), job_type=job_type, num_gpus=num_gpus, weight=weight, total_steps=steps, arrival_seconds=arrival)
    return Submission(job, run_seconds=steps / speed, accelerator=types.reference)
