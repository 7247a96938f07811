"""Parts of traces, and traces with another load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io.random import sequence_of
from gavel_py.workloads.submission import Submission

__all__ = ["cut_window", "sampled", "scaled"]

Submissions = Sequence[Submission]


def sampled(submissions: Submissions, jobs: int | float, seed: int) -> list[Submission]:
    """Return so many (a whole number), or such a part (below 1), in their order."""
    number = round(jobs * len(submissions)) if 0 < jobs < 1 else jobs
    if not (0 < number <= len(submissions) and number == int(number)):
        problem = f"must be a part below 1 or a whole number up to the {len(submissions):,} jobs of the trace, found {jobs!r}"
        raise InputError(Fault("sample", "jobs", problem))
    drawn = np.random.default_rng(sequence_of(seed)).random(len(submissions))
    # The jobs with the smallest numbers: a larger sample of the same seed holds every smaller one.
    return [submissions[index] for index in sorted(np.argsort(drawn, kind="stable")[: int(number)].tolist())]


def scaled(submissions: Submissions, load: float) -> list[Submission]:
    """Return the jobs with their times since the first arrival divided by `load`."""
    if not 0 < load < math.inf:
        raise InputError(Fault("scale", "load", f"must be a finite number above 0, found {load!r}"))
    if not submissions:
        return []
    zero = submissions[0].job.arrival_seconds
    return [submission.moved(zero + (submission.job.arrival_seconds - zero) / load) for submission in submissions]


def cut_window(
    submissions: Submissions, start: float | None, end: float | None, first: int | None, last: int | None
) -> list[Submission]:
    """Return the jobs that arrive in [start, end) and whose numbers by arrival, from 0, are in [first, last)."""
    if start is not None and end is not None and not start < end:
        raise InputError(Fault("window", "end", f"must be after the start, {start:,.12g} s, found {end:,.12g} s"))
    if first is not None and last is not None and not first < last:
        raise InputError(Fault("window", "last", f"must be above the first, {first}, found {last}"))
    for name, number in (("first", first), ("last", last)):
        if number is not None and number < 0:
            raise InputError(Fault("window", name, f"must be at least 0, found {number}"))
    since, until = -math.inf if start is None else start, math.inf if end is None else end
    return [submission for submission in submissions[first:last] if since <= submission.job.arrival_seconds < until]
