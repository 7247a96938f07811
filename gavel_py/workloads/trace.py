"""The trace: submitted jobs in the order of their arrival, what was recorded of them, and how they were read.

Parts of traces (`sampled`, `cut_window`), and traces with another load (`scaled`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import overload

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io.random import sequence_of
from gavel_py.problem.job import JobSet
from gavel_py.workloads.submission import Submission, TraceReport

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


class Trace(Sequence[Submission]):
    """Submissions by arrival; those that arrive together stay in the order given. Immutable.

    `report` says what was read, skipped and assumed, and grows by a sentence with each change. Raises `InputError` when a job id
    stands twice.

    >>> from gavel_py import Job
    >>> Trace([Submission(Job("late", arrival_seconds=9)), Submission(Job("early"))]).jobs[0].job_id
    'early'
    """

    def __init__(self, submissions: Iterable[Submission], report: TraceReport | None = None) -> None:
        given = list(submissions)
        strange = [Fault("trace", "", f"must hold Submission objects, found {s!r}") for s in given if not isinstance(s, Submission)]
        InputError.raise_any(strange)
        self.submissions: tuple[Submission, ...] = tuple(sorted(given, key=lambda s: s.job.arrival_seconds))
        self.report = TraceReport() if report is None else report
        times = Counter(submission.job.job_id for submission in self.submissions)
        twice = [job_id for job_id, number in times.items() if number > 1] if len(times) < len(self.submissions) else []
        InputError.raise_any([Fault(f"job {job_id!r}", "job_id", "stands twice; job ids must be unique") for job_id in twice])

    @overload
    def __getitem__(self, index: int) -> Submission: ...
    @overload
    def __getitem__(self, index: slice) -> Trace: ...
    def __getitem__(self, index: int | slice) -> Submission | Trace:
        return Trace(self.submissions[index], self.report) if isinstance(index, slice) else self.submissions[index]

    def __len__(self) -> int:
        return len(self.submissions)

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same submissions; how they were read does not matter."""
        return self.submissions == other.submissions if isinstance(other, Trace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.submissions)

    def __repr__(self) -> str:
        return f"Trace({len(self)} jobs)"

    @cached_property
    def jobs(self) -> JobSet:
        """The jobs alone, which is all that a policy sees."""
        return JobSet(submission.job for submission in self.submissions)

    def changed(self, submissions: Iterable[Submission], *assumptions: str) -> Trace:
        """Return a trace of other submissions, with what was assumed of them added to the report."""
        return Trace(submissions, self.report.assuming(*assumptions))

    def sample(self, jobs: int | float, seed: int = 0) -> Trace:
        """Return so many of the jobs, or for a number below 1 such a part of them, drawn without regard to anything; times stay."""
        kept = sampled(self.submissions, jobs, seed)
        return self.changed(kept, f"Jobs drawn, all alike likely (seed {seed}): {len(kept):,} of {len(self):,}.")

    def scale(self, load: float) -> Trace:
        """Return the same jobs arriving `load` times as fast: times since the first arrival are divided by `load`."""
        moved = scaled(self.submissions, load)
        return self.changed(moved, f"Jobs arrive {load:g} times as fast: times since the first arrival are divided by {load:g}.")

    def window(
        self,
        start: float | None = None,
        end: float | None = None,
        *,
        first: int | None = None,
        last: int | None = None,
        keep_clock: bool = False,
    ) -> Trace:
        """Return the jobs that arrive from `start` on and before `end`, s, and whose numbers by arrival are in [first, last).

        The clock then starts anew at `start`, or at the first arrival where no start is given, unless `keep_clock`.
        """
        kept = cut_window(self.submissions, start, end, first, last)
        said = f"Jobs in the window: {len(kept):,} of {len(self):,}."
        if keep_clock or not kept:
            return self.changed(kept, said)
        zero = kept[0].job.arrival_seconds if start is None else start
        moved = [submission.moved(submission.job.arrival_seconds - zero) for submission in kept]
        return self.changed(moved, said, f"The clock starts at what was {zero:,.12g} s.")

    def map_accelerators(self, names: Mapping[str, str]) -> Trace:
        """Return the trace with other names of accelerators, in what jobs may run on and in what they ran on."""
        return self.changed(_renamed(submission, names) for submission in self.submissions) if names else self

    def on_any_accelerator(self) -> Trace:
        """Return the trace with jobs that may run on every type of GPU, whatever they asked for."""
        limited = sum(submission.job.allowed_accelerators is not None for submission in self.submissions)
        if not limited:
            return self
        free = (replace(s, job=s.job.model_copy(update={"allowed_accelerators": None})) for s in self.submissions)
        return self.changed(free, f"Jobs that asked for certain types of GPU may run on all of them: {limited:,}.")

    def on_whole_gpus(self) -> Trace:
        """Return the trace with a GPU of its own for each job that asked for a part of one; it needs no more CPUs and memory."""
        parts = sum(submission.job.num_gpus < 1 for submission in self.submissions)
        if not parts:
            return self
        said = f"Jobs that asked for a part of a GPU have a whole one: {parts:,}."
        return self.changed(map(_on_a_whole_gpu, self.submissions), said)


def _on_a_whole_gpu(submission: Submission) -> Submission:
    job = submission.job
    if job.num_gpus >= 1:
        return submission
    needs = {name: getattr(job, name) * job.num_gpus for name in ("cpus_per_gpu", "memory_gb_per_gpu")}
    return replace(submission, job=job.model_copy(update={"num_gpus": 1, **needs}))


def _renamed(submission: Submission, names: Mapping[str, str]) -> Submission:
    job, kind = submission.job, submission.accelerator
    if job.allowed_accelerators is not None:
        allowed = tuple(dict.fromkeys(names.get(name, name) for name in job.allowed_accelerators))
        job = job.model_copy(update={"allowed_accelerators": allowed})
    return replace(submission, job=job, accelerator=names.get(kind, kind))
