"""What traces leave out of jobs: job types and steps where they tell only how long jobs ran, and durations where only steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io.random import sequence_of
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.throughput_profiles.extrapolation import extend_profile
from gavel_py.workloads.generator import Models, known_accelerators, reference_of
from gavel_py.workloads.intake import without_collection
from gavel_py.workloads.submission import Submission, counted
from gavel_py.workloads.trace import Trace

SHORTEST = 1.0
"""Seconds of work that a job has at least; some records say 0, and a job without work is none."""


def assign_job_types(
    trace: Trace,
    profile: ThroughputProfile,
    *,
    seed: int = 0,
    reference: str | None = None,
    accelerators: Sequence[str] | None = None,
    extrapolate: bool = False,
) -> tuple[Trace, ThroughputProfile]:
    """Give each job a type of the profile if it has none, and its steps if only its duration is known; return trace and profile.

    A type is drawn in order of arrival, all alike likely among those that the profile has for the job's gang size on all of
    `accelerators` (by default all that it knows) and that run on the reference. total_steps = run_seconds x throughput on the
    reference: the accelerator that the job really ran on if the profile knows it, or else `reference` (v100 if known, or the first
    of the profile). Gangs that the profile lacks are an `InputError`, or with `extrapolate` added to it (`extend_profile`).
    """
    models = Models(profile, reference_of(profile, reference), known_accelerators(profile, accelerators))
    sizes = {submission.job.num_gpus for submission in trace if _needs_profile(submission)}
    lacking = sorted(size for size in sizes if not models.have(size))
    if lacking and extrapolate:
        profile = extend_profile(profile, lacking)
        models = Models(profile, models.reference, models.accelerators)
        trace = trace.changed(trace, _extrapolated(lacking))
    InputError.raise_any(_lacking(trace, models))
    drawn = np.random.default_rng(sequence_of(seed)).random(len(trace)).tolist()
    with without_collection():
        typed = [_typed(submission, models, part) for submission, part in zip(trace, drawn, strict=True)]
        return trace.changed(typed, *_said(trace, typed, models, seed)), profile


def _needs_profile(submission: Submission) -> bool:
    job = submission.job
    return not job.job_type or (job.total_steps is None and job.duration_seconds is None)


def _typed(submission: Submission, models: Models, part: float) -> Submission:
    job = submission.job
    changes: dict[str, object] = {}
    reference = models.reference_of(submission.accelerator)
    if not job.job_type:
        candidates = models.at(job.num_gpus, reference)
        changes["job_type"] = candidates[int(part * len(candidates))]
    if job.total_steps is None and job.duration_seconds is None and submission.run_seconds is not None:
        job_type = str(changes.get("job_type", job.job_type))
        speed = models.profile.throughput(job_type, job.num_gpus, reference)
        if speed > 0:
            changes["total_steps"] = max(submission.run_seconds, SHORTEST) * speed
    return replace(submission, job=job.model_copy(update=changes)) if changes else submission


def _lacking(trace: Trace, models: Models) -> list[Fault]:
    """A fault for each gang size without a type, with the number of jobs that it concerns."""
    asked = Counter(
        (submission.job.num_gpus, models.reference_of(submission.accelerator)) for submission in trace if _needs_profile(submission)
    )
    lacking = {(size, on): number for (size, on), number in sorted(asked.items()) if not models.at(size, on)}
    if not lacking:
        return []
    where = f"throughput profile {models.profile.name!r}"
    head = Fault(
        where,
        "num_gpus",
        f"has no job type for the gangs of {sum(lacking.values()):,} of {len(trace):,} jobs on all of "
        f"{', '.join(models.accelerators)}; estimate them (--extrapolate), or name the accelerators that count (--accelerators)",
    )
    return [head, *(Fault(where, "", f"gangs of {size} GPUs on {on}: {counted(number)}") for (size, on), number in lacking.items())]


def _extrapolated(sizes: Sequence[float]) -> str:
    listed = ", ".join(map(str, sizes))
    return (
        f"Throughputs of gangs of {listed} GPUs are estimated from those measured: T(s) = T(L) (s/L)^e beyond the largest "
        "measured gang L, e = log(T(L)/T(S)) / log(L/S) with the smallest one S, but at least 0 and at most 1; "
        "between two measured gangs by the power of s that goes through both; 0 where one of them is 0."
    )


def _said(trace: Trace, typed: Sequence[Submission], models: Models, seed: int) -> list[str]:
    drawn = sum(not submission.job.job_type for submission in trace)
    pairs = list(zip(trace, typed, strict=True))
    worked = sum(old.job.total_steps != new.job.total_steps for old, new in pairs)
    short = sum(old.run_seconds is not None and old.run_seconds < SHORTEST and new.job is not old.job for old, new in pairs)
    elsewhere = sum(models.reference_of(new.accelerator) != models.reference and new.job is not old.job for old, new in pairs)
    unknown = Counter(
        name for old in trace for name in old.job.allowed_accelerators or () if name not in models.profile.accelerators
    )
    without = sum(new.job.total_steps is None and new.job.duration_seconds is None for new in typed)
    there = f", of these {elsewhere:,} by the accelerator that they ran on" if elsewhere else ""
    facts = (
        (
            drawn,
            f"Job types are drawn, all alike likely among those that profile {models.profile.name!r} knows for the gang size on "
            f"{', '.join(models.accelerators)} (seed {seed}): {counted(drawn)}.",
        ),
        (worked, f"Total steps are duration x throughput on {models.reference}: {counted(worked)}{there}."),
        (short, f"Jobs that ran for less than a second have the work of one second: {counted(short)}."),
        (
            unknown.total(),
            f"Jobs name accelerators that the profile does not know: {_listed(unknown)}. Unless the cluster has them, rename them "
            "(--map-accelerator), or let jobs run on all (--any-accelerator).",
        ),
        (without, f"Total steps stay unknown where the duration is: {counted(without)}."),
    )
    return [sentence for count, sentence in facts if count]


def _listed(names: Counter[str]) -> str:
    return ", ".join(f"{name} ({counted(count)})" for name, count in sorted(names.items()))


def assume_durations(trace: Trace, profile: ThroughputProfile, reference: str | None = None) -> Trace:
    """Return the trace with run_seconds = total_steps / throughput on the reference, consolidated, where it has none.

    reference: v100, or else the first accelerator of the profile, unless said. Jobs without steps, without a throughput in the
    profile, or that cannot run on the reference, stay without a duration.
    """
    on = reference_of(profile, reference)
    timed = [_timed(submission, profile, on) for submission in trace]
    count = sum(old is not new for old, new in zip(trace, timed, strict=True))
    if not count:
        return trace
    said = f"Durations that are not recorded are steps / throughput on {on} in profile {profile.name!r}: {counted(count)}."
    return trace.changed(timed, said)


def _timed(submission: Submission, profile: ThroughputProfile, reference: str) -> Submission:
    job = submission.job
    if submission.run_seconds is not None or job.total_steps is None or not profile.has(job.job_type, job.num_gpus, reference):
        return submission
    speed = profile.job_throughput(job, reference)
    return replace(submission, run_seconds=job.total_steps / speed) if speed > 0 else submission
