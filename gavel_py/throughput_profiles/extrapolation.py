"""Throughputs of gangs that were never measured, by a stated rule, for those who ask for it."""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from gavel_py.throughput_profiles import Measurement, ThroughputProfile

Series = dict[tuple[str, str, str], dict[float, float]]
"""By job type, accelerator and placement: steps/s by gang size, running alone."""


def extend_profile(profile: ThroughputProfile, gang_sizes: Iterable[float]) -> ThroughputProfile:
    """Return the profile with estimated throughputs of these gang sizes, where it has none.

    With the smallest and largest measured gangs S and L of a job type on an accelerator, in one placement, and its throughput T:
    T(s) = T(L) (s/L)^e beyond L, with e = log(T(L)/T(S)) / log(L/S), but at least 0 and at most 1: more GPUs never make it slower,
    and never do more than their part. Between two measured gangs, T follows the power of s through both. Where one of them is 0,
    the job cannot run, and T(s) = 0. Types measured at one size only, gangs below the smallest, and fractions of a GPU, which are
    as fast as one GPU where they were not measured, are not estimated. Each estimate has a source that says so. What it takes of
    the memory of each GPU is what the next smaller gang takes.
    """
    sizes = sorted(size for size in set(gang_sizes) if size >= 1)
    estimated = [
        Measurement(
            job_type=job_type,
            num_gpus=size,
            accelerator=accelerator,
            placement=placement,
            steps_per_second=speed,
            source=source,
            gpu_memory_gb=profile.gpu_memory_gb(job_type, base, accelerator),
        )
        for (job_type, accelerator, placement), speeds in _alone(profile).items()
        for size, speed, source, base in _estimates(speeds, sizes)
    ]
    if not estimated:
        return profile
    name = f"{profile.name}+estimates"
    description = f"{profile.description} Throughputs of gangs of {', '.join(map(str, sizes))} GPUs are estimated.".strip()
    return ThroughputProfile(
        name,
        [*profile.measurements, *estimated],
        description=description,
        licence=profile.licence,
        notice=profile.notice,
        url=profile.url,
    )


def _alone(profile: ThroughputProfile) -> Series:
    series: Series = defaultdict(dict)
    for row in profile.rows:
        if row.partner_job_type is None and row.num_gpus >= 1:
            series[row.job_type, row.accelerator, row.placement][row.num_gpus] = row.steps_per_second
    return series


def _estimates(speeds: Mapping[float, float], sizes: Iterable[float]) -> Iterator[tuple[float, float, str, float]]:
    """Gang size, steps/s, source, and the largest measured gang below."""
    measured = sorted(speeds)
    for size in sizes:
        if len(measured) < 2 or size in speeds or size < measured[0]:
            continue
        place = bisect(measured, size)
        if place == len(measured):
            low, high, base = measured[0], measured[-1], measured[-1]
        else:
            low, high, base = measured[place - 1], measured[place], measured[place - 1]
        exponent = _exponent(speeds, low, high)
        if base == high:
            exponent = min(1.0, max(0.0, exponent))
        can_run = speeds[low] > 0 and speeds[high] > 0
        speed = speeds[base] * (size / base) ** exponent if can_run else 0.0
        yield size, speed, f"estimated from {low} and {high} GPUs, exponent {exponent:.3f}", base


def _exponent(speeds: Mapping[float, float], low: float, high: float) -> float:
    if not (speeds[low] > 0 and speeds[high] > 0):
        return 0.0
    return math.log(speeds[high] / speeds[low]) / math.log(high / low)
