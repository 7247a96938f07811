"""Durations for traces that tell how many steps jobs have, and not how long these take."""

from __future__ import annotations

from dataclasses import replace

from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads.models import reference_of
from gavel_py.workloads.report import counted
from gavel_py.workloads.submission import Submission
from gavel_py.workloads.trace import Trace

__all__ = ["assume_durations"]


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
