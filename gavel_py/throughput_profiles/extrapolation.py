"""Estimated throughputs of gang sizes that a profile lacks, extrapolated from the sizes that were measured."""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real

from gavel_py.errors import InputError, wrong_types
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles import Measurement, ThroughputProfile


def extend_profile(profile: ThroughputProfile, gang_sizes: Iterable[float | Job]) -> ThroughputProfile:
    """Return the profile with estimates for the given gang sizes, or those of jobs, where it has no measurement.

    Let S and L be the smallest and largest measured gangs of a job type on an accelerator in one placement, and T the throughput.
    Beyond L, T(s) = T(L) (s/L)^e with e = log(T(L)/T(S)) / log(L/S), clipped to [0, 1]: more GPUs never slow a job down, and the
    speedup is at most linear. Between two measured gangs, T is the power function of s through both. If one of the two is 0, the
    job cannot run and T(s) = 0. There are no estimates for job types measured at a single size, for gangs smaller than S, and for
    fractions of a GPU (which run as fast as a whole GPU unless measured).

    Args:
        profile: The measured profile.
        gang_sizes: GPUs per gang, or jobs: elastic ones for all their numbers of GPUs, of a range its gang sizes in the profile,
            its smallest number doubled again and again, and its largest one.

    Returns:
        A profile of measurements and estimates. The `source` of each estimate names the gangs it is based on; its GPU memory is
        that of the next smaller measured gang. The same profile if there is nothing to estimate.

    Raises:
        InputError: A gang size is not a number.
    """
    asked = [size for each in gang_sizes for size in (gang_sizes_of(each, profile) if isinstance(each, Job) else (each,))]
    InputError.raise_any(wrong_types("", "gang_sizes", asked, Real, "must be numbers of GPUs"))
    sizes = sorted(size for size in set(asked) if size >= 1)
    alone: dict[tuple[str, str, str], dict[float, float]] = defaultdict(dict)  # {gang size: steps/s without a partner}
    for row in profile.rows:
        if row.partner_job_type is None and row.num_gpus >= 1:
            alone[row.job_type, row.accelerator, row.placement][row.num_gpus] = row.steps_per_second
    estimated = [
        Measurement(
            job_type=job_type,
            num_gpus=size,
            accelerator=accelerator,
            steps_per_second=speed,
            source=source,
            gpu_memory_gb=profile.gpu_memory_gb(job_type, base, accelerator),
            **profile.unit_of(job_type)._asdict() | {"placement": placement},
        )
        for (job_type, accelerator, placement), speeds in alone.items()
        for size, speed, source, base in _estimates(speeds, sizes)
    ]
    if not estimated:
        return profile
    name = f"{profile.name}+estimates"
    description = f"{profile.description} Throughputs of gangs of {', '.join(map(str, sizes))} GPUs are estimated.".strip()
    origin = {"licence": profile.licence, "notice": profile.notice, "url": profile.url}
    return ThroughputProfile(name, [*profile.measurements, *estimated], description=description, **origin)


def gang_sizes_of(job: Job, profile: ThroughputProfile) -> set[float]:
    """Return the numbers of GPUs of a job for which `extend_profile` has estimates."""
    sizes = set(profile.sizes_of(job))
    if job.max_gpus is not None:
        allowed = job.allowed_counts
        sizes |= {min(allowed[0] << n, allowed[-1]) for n in range(allowed[-1].bit_length() + 1)} if allowed else set()
    return sizes


def _estimates(speeds: Mapping[float, float], sizes: Iterable[float]) -> Iterator[tuple[float, float, str, float]]:
    """Yield (gang size, steps/s, source, largest smaller measured gang) for each size that can be estimated."""
    measured = sorted(speeds)
    for size in sizes:
        if len(measured) < 2 or size in speeds or size < measured[0]:
            continue
        place = bisect(measured, size)
        if place == len(measured):
            low, high, base = measured[0], measured[-1], measured[-1]
        else:
            low, high, base = measured[place - 1], measured[place], measured[place - 1]
        can_run = speeds[low] > 0 and speeds[high] > 0
        exponent = math.log(speeds[high] / speeds[low]) / math.log(high / low) if can_run else 0.0
        if base == high:
            exponent = min(1.0, max(0.0, exponent))
        speed = speeds[base] * (size / base) ** exponent if can_run else 0.0
        yield size, speed, f"estimated from {low} and {high} GPUs, exponent {exponent:.3f}", base
