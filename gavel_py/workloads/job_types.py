"""Completion of traces: job types and steps for traces with durations only, and durations for traces with steps only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io.records import without_collection
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.throughput_profiles.extrapolation import extend_profile
from gavel_py.workloads.generator import JobTypes, known_accelerators, reference_of
from gavel_py.workloads.submission import Submission, counted
from gavel_py.workloads.trace import Trace, seed_sequence

MIN_SECONDS = 1.0
"""Minimum duration in seconds from which steps are computed: some records have 0, but a job needs some work."""


def assign_job_types(
    trace: Trace,
    profile: ThroughputProfile,
    *,
    seed: int = 0,
    reference: str | None = None,
    accelerators: Sequence[str] | None = None,
    extrapolate: bool = False,
) -> tuple[Trace, ThroughputProfile]:
    """Assign a job type to each job without one, and total_steps to each job for which only the duration is known.

    Types are drawn in order of arrival with equal probability from those that have throughputs for the gang size on all
    `accelerators` and run on the reference. total_steps = run_seconds x throughput on the reference. The reference of a job is the
    accelerator on which it ran if the profile has it, otherwise `reference`.

    Args:
        trace: The trace.
        profile: Source of job types and throughputs.
        seed: Seed of the random types.
        reference: Accelerator to which durations refer; by default v100 if the profile has it, else its first one.
        accelerators: Accelerators on which a type must be known; by default all of the profile.
        extrapolate: Whether to add gang sizes of such jobs that the profile lacks (`extend_profile`).

    Returns:
        The trace, with the assumptions in its report, and the profile, extended if `extrapolate`.

    Raises:
        InputError: The profile lacks a gang size, or an accelerator is unknown.
    """
    types = JobTypes(profile, reference_of(profile, reference), known_accelerators(profile, accelerators))
    if extrapolate:
        jobs = [submission.job for submission in trace if lacks_type(submission)]
        lacking = {size for size in {_size(job, profile) for job in jobs} if not types.candidates(size, types.reference)}
        extended = extend_profile(profile, [*lacking, *(job for job in jobs if job.is_elastic)])
        if estimated := sorted({row.num_gpus for row in extended.rows[len(profile.rows) :]}):
            profile, types = extended, JobTypes(extended, types.reference, types.accelerators)
            trace = trace.changed(trace, _extrapolated(estimated))
    InputError.raise_any(_lacking(trace, types))
    drawn = np.random.default_rng(seed_sequence(seed)).random(len(trace)).tolist()
    with without_collection():
        typed = [_typed(submission, types, part) for submission, part in zip(trace, drawn, strict=True)]
        return trace.changed(typed, *_assumptions(trace, typed, types, seed)), profile


def lacks_type(submission: Submission) -> bool:
    """Return whether a job lacks a type, or both steps and duration, so that these are drawn at random."""
    job = submission.job
    return not job.job_type or (job.total_steps is None and job.duration_seconds is None)


def _size(job: Job, profile: ThroughputProfile) -> float:
    """Return the gang size by which a type is drawn for a job, of an elastic job the smallest one in the profile."""
    return min(profile.sizes_of(job), default=job.num_gpus)


def _typed(submission: Submission, types: JobTypes, part: float) -> Submission:
    job = submission.job
    changes: dict[str, object] = {}
    reference = types.reference_of(submission.accelerator)
    if not job.job_type:
        candidates = types.candidates(_size(job, types.profile), reference)
        changes["job_type"] = candidates[int(part * len(candidates))]
    if job.total_steps is None and job.duration_seconds is None and submission.run_seconds is not None:
        job_type = str(changes.get("job_type", job.job_type))
        speed = types.profile.throughput(job_type, _size(job, types.profile), reference)
        if speed > 0:
            changes["total_steps"] = max(submission.run_seconds, MIN_SECONDS) * speed
    return replace(submission, job=job.model_copy(update=changes)) if changes else submission


def _lacking(trace: Trace, types: JobTypes) -> list[Fault]:
    """Return a fault for each gang size without a job type, with the number of its jobs."""
    required = Counter(
        (_size(submission.job, types.profile), types.reference_of(submission.accelerator))
        for submission in trace
        if lacks_type(submission)
    )
    lacking = {(size, on): number for (size, on), number in sorted(required.items()) if not types.candidates(size, on)}
    if not lacking:
        return []
    where = f"throughput profile {types.profile.name!r}"
    head = Fault(
        where,
        "num_gpus",
        f"has no job type for the gangs of {sum(lacking.values()):,} of {len(trace):,} jobs on all of "
        f"{', '.join(types.accelerators)}; estimate them (--extrapolate), or restrict the accelerators (--accelerators)",
    )
    return [head, *(Fault(where, "", f"gangs of {size} GPUs on {on}: {counted(number)}") for (size, on), number in lacking.items())]


def _extrapolated(sizes: Sequence[float]) -> str:
    listed = ", ".join(map(str, sizes))
    return (
        f"Throughputs of gangs of {listed} GPUs are estimated from measured ones: T(s) = T(L) (s/L)^e beyond the largest "
        "measured gang L, e = log(T(L)/T(S)) / log(L/S) with the smallest one S, but at least 0 and at most 1; "
        "between two measured gangs the power of s through both; 0 where one of them is 0."
    )


def _assumptions(trace: Trace, typed: Sequence[Submission], types: JobTypes, seed: int) -> list[str]:
    drawn = sum(not submission.job.job_type for submission in trace)
    pairs = list(zip(trace, typed, strict=True))
    worked = sum(old.job.total_steps != new.job.total_steps for old, new in pairs)
    short = sum(old.run_seconds is not None and old.run_seconds < MIN_SECONDS and new.job is not old.job for old, new in pairs)
    elsewhere = sum(types.reference_of(new.accelerator) != types.reference and new.job is not old.job for old, new in pairs)
    named = Counter(name for old in trace for name in old.job.allowed_accelerators or ())
    unknown = Counter({n: count for n, count in named.items() if same_accelerator(n, types.profile.accelerators) is None})
    listed = ", ".join(f"{name} ({counted(count)})" for name, count in sorted(unknown.items()))
    without = sum(new.job.total_steps is None and new.job.duration_seconds is None for new in typed)
    there = f"; for {elsewhere:,} of them, on the accelerator where they ran" if elsewhere else ""
    facts = (
        (
            drawn,
            f"Job types are drawn with equal probability from those of profile {types.profile.name!r} for the gang size on "
            f"{', '.join(types.accelerators)} (seed {seed}): {counted(drawn)}.",
        ),
        (worked, f"Total steps are duration x throughput on {types.reference}: {counted(worked)}{there}."),
        (short, f"Jobs that ran for less than a second get the work of one second: {counted(short)}."),
        (
            unknown.total(),
            f"Jobs name accelerators that the profile does not have: {listed}. Unless the cluster has them, rename them "
            "(--map-accelerator), or allow jobs to run on all (--any-accelerator).",
        ),
        (without, f"Total steps stay unknown for jobs of unknown duration: {counted(without)}."),
    )
    return [sentence for count, sentence in facts if count]


def assume_durations(trace: Trace, profile: ThroughputProfile, reference: str | None = None) -> Trace:
    """Set run_seconds = total_steps / throughput on the reference, consolidated, where it is not recorded.

    Args:
        trace: The trace.
        profile: Source of the throughputs.
        reference: The accelerator; by default v100 if the profile has it, else its first one.

    Returns:
        The trace. A job without steps or without a positive throughput on the reference still has no duration.
    """
    on, timed, count = reference_of(profile, reference), [], 0
    for submission in trace:
        job, speed = submission.job, 0.0
        if submission.run_seconds is None and job.total_steps and profile.has(job.job_type, job.num_gpus, on):
            speed = profile.job_throughput(job, on)
        timed.append(replace(submission, run_seconds=job.total_steps / speed) if speed > 0 and job.total_steps else submission)
        count += speed > 0
    if not count:
        return trace
    assumption = f"Durations that are not recorded are steps / throughput on {on} in profile {profile.name!r}: {counted(count)}."
    return trace.changed(timed, assumption)
