"""The trace: submitted jobs by arrival time, with their recorded history and the report on how they were read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import overload

import numpy as np
from numpy.random import SeedSequence

from gavel_py.errors import InputError, refuse, wrong_types
from gavel_py.io.records import Finite, Natural, Positive, check
from gavel_py.problem.accelerators import entry_of
from gavel_py.problem.dependencies import Condition, dependency_of
from gavel_py.problem.job import Job
from gavel_py.problem.job_set import JobSet, check_unique
from gavel_py.problem.workflows import WorkflowGraph, has_dependencies
from gavel_py.workloads.durations import DEFAULT_GROUP, DurationPredictor, check_group, predictions
from gavel_py.workloads.submission import Submission, TraceReport, counted


class Trace(Sequence[Submission]):
    """An immutable sequence of submissions sorted by arrival time (stable).

    Of jobs that arrive together, parents come before the jobs that wait for them.

    Args:
        submissions: The submissions.
        report: How they were read. Methods that change a trace append an assumption to it.

    Raises:
        InputError: A job id is not unique, or jobs wait for each other in a cycle.

    >>> from gavel_py import Job
    >>> Trace([Submission(Job("late", arrival_seconds=9)), Submission(Job("early"))]).jobs[0].job_id
    'early'
    """

    def __init__(self, submissions: Iterable[Submission], report: TraceReport | None = None) -> None:
        given = list(submissions)
        InputError.raise_any(wrong_types("trace", "", given, Submission, "must hold Submission objects"))
        ordered = sorted(given, key=lambda s: s.job.arrival_seconds)
        check_unique(submission.job.job_id for submission in ordered)
        self.submissions: tuple[Submission, ...] = tuple(_parents_first(ordered))
        self.report = TraceReport() if report is None else report

    @overload
    def __getitem__(self, index: int) -> Submission: ...
    @overload
    def __getitem__(self, index: slice) -> Trace: ...
    def __getitem__(self, index: int | slice) -> Submission | Trace:
        return Trace(self.submissions[index], self.report) if isinstance(index, slice) else self.submissions[index]

    def __len__(self) -> int:
        return len(self.submissions)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same submissions; reports are not compared."""
        return self.submissions == other.submissions if isinstance(other, Trace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.submissions)

    def __repr__(self) -> str:
        return f"Trace({len(self)} jobs)"

    @cached_property
    def jobs(self) -> JobSet:
        """The jobs without their recorded history."""
        return JobSet(submission.job for submission in self.submissions)

    def changed(self, submissions: Iterable[Submission], *assumptions: str) -> Trace:
        """Return a trace of these submissions, with the report of this trace and further assumptions."""
        return Trace(submissions, self.report.assuming(*assumptions)).complete()

    def complete(self) -> Trace:
        """Return the trace in which jobs wait only for jobs of the trace; others, left out by a sample, count as ended."""
        ids = {each.job.job_id for each in self.submissions} if has_dependencies(each.job for each in self.submissions) else set()
        left, count = [], 0
        for submission in self.submissions if ids else ():
            kept = tuple(text for text in submission.job.depends_on if _is_among(ids, text))
            changed = len(kept) < len(submission.job.depends_on)
            count += changed
            left.append(replace(submission, job=submission.job.model_copy(update={"depends_on": kept})) if changed else submission)
        if not count:
            return self
        sentence = f"Jobs that wait for jobs which the trace lacks; those count as ended: {count:,}."
        return Trace(left, self.report.assuming(sentence))

    def sample(self, jobs: int | float, seed: int = 0) -> Trace:
        """Return a random sample of the jobs, with their arrival times.

        Args:
            jobs: Number of jobs, or below 1 their share of the trace.
            seed: Seed; a larger sample of the same seed contains every smaller one.

        Raises:
            InputError: `jobs` is neither a share nor a whole number up to the length of the trace.
        """
        number = round(jobs * len(self)) if 0 < jobs < 1 else jobs
        problem = f"must be a fraction below 1 or a whole number up to {len(self):,}, the jobs of the trace, found {jobs!r}"
        if 0 < jobs < 1:
            problem += f", which is less than one of {counted(len(self))}"
        refuse("sample", (not (0 < number <= len(self) and number == int(number)), "jobs", problem))
        drawn = np.random.default_rng(seed_sequence(seed)).random(len(self))
        # The jobs with the smallest random numbers, so that samples of one seed are nested.
        kept = [self.submissions[index] for index in sorted(np.argsort(drawn, kind="stable")[: int(number)].tolist())]
        return self.changed(kept, f"Jobs drawn with equal probability (seed {seed}): {len(kept):,} of {len(self):,}.")

    def scale(self, load: float) -> Trace:
        """Return the trace with the times since the first arrival divided by `load`.

        Raises:
            InputError: `load` is not finite and positive.
        """
        check("scale", load=(load, Positive))
        zero = self.submissions[0].job.arrival_seconds if self.submissions else 0.0
        moved = [each.moved(zero + (each.job.arrival_seconds - zero) / load) for each in self.submissions]
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
        """Return the jobs that arrive in [start, end) and have an index by arrival in [first, last).

        Args:
            start: Start of the window in seconds.
            end: End of the window in seconds, exclusive.
            first: First index, from 0.
            last: Last index, exclusive.
            keep_clock: Whether to keep arrival times. By default time 0 moves to `start`, or to the first arrival without a start.

        Raises:
            InputError: The window is empty, an index is negative, or a time is not a number.
        """
        start, end = None if start == -math.inf else start, None if end == math.inf else end
        since, until = -math.inf if start is None else start, math.inf if end is None else end
        check(
            "window",
            start=(start, Finite | None),
            end=(end, Finite | None),
            first=(first, Natural | None),
            last=(last, Natural | None),
        )
        refuse(
            "window",
            (not since < until, "end", f"must be after the start, {since:,.12g} s, found {until:,.12g} s"),
            (
                first is not None and last is not None and not first < last,
                "last",
                f"must be above the first, {first}, found {last}",
            ),
        )
        kept = [each for each in self.submissions[first:last] if since <= each.job.arrival_seconds < until]
        assumption = f"Jobs in the window: {len(kept):,} of {len(self):,}."
        if keep_clock or not kept:
            return self.changed(kept, assumption)
        zero = kept[0].job.arrival_seconds if start is None else start
        moved = [submission.moved(submission.job.arrival_seconds - zero) for submission in kept]
        return self.changed(moved, assumption, f"The clock starts at the former time {zero:,.12g} s.")

    def map_accelerators(self, names: Mapping[str, str]) -> Trace:
        """Return the trace with accelerators renamed, both those allowed and those recorded.

        Args:
            names: {old name: new name}; an old name stands for all names of the same accelerator.
        """
        if not names:
            return self
        renamed, new = [], cache(lambda name: entry_of(name, names, name))
        for submission in self.submissions:
            job, accelerator = submission.job, new(submission.accelerator)
            renamed.append(replace(submission, job=job.on_renamed(new), accelerator=accelerator))
        return self.changed(renamed)

    def with_predicted_durations(
        self, group: Sequence[str] = DEFAULT_GROUP, *, last: int = 20, enough: int = 3, quantile: float = 0.5
    ) -> Trace:
        """Return the trace with `estimate_seconds` predicted by the runs that ended before each job arrived (`DurationPredictor`).

        A job for which too few runs had ended keeps its recorded estimate.

        Args:
            group: Columns by which jobs are grouped: fields of `Job`, labels of the trace, or estimate_seconds.
            last: Number of the last runs of a group that count.
            enough: Number of runs that a group needs.
            quantile: Level of the prediction, 0.5 for the median.

        Raises:
            UnknownNameError: The trace has no such column.
            InputError: A column is named twice, the quantile is not between 0 and 1, or not 1 <= enough <= last.
        """
        check_group(self.submissions, group)
        found = list(predictions(self.submissions, DurationPredictor(group, last=last, enough=enough)))
        changed = [
            submission if prediction is None else replace(submission, estimate_seconds=prediction.quantile(quantile))
            for submission, prediction in zip(self.submissions, found, strict=True)
        ]
        number, level = len(found) - found.count(None), "median" if quantile == 0.5 else f"{quantile:g} quantile"
        similar = f"jobs with the same {', '.join(group)}" if group else "all jobs"
        sentence = f"The estimated duration is the {level} of the last {last} finished runs of {similar}"
        return self.changed(changed, f"{sentence}: {number:,} of {len(self):,} jobs.")

    def on_any_accelerator(self) -> Trace:
        """Return the trace without restrictions of jobs to accelerator types."""
        free = [replace(submission, job=submission.job.allowing(None)) for submission in self.submissions]
        limited = sum(new.job is not old.job for new, old in zip(free, self.submissions, strict=True))
        if not limited:
            return self
        return self.changed(free, f"Jobs that requested certain GPU types may run on all types: {limited:,}.")

    def with_elastic_jobs(self, max_gpus: int) -> Trace:
        """Return the trace in which jobs may run on any number of GPUs with known throughput; elastic jobs are not changed.

        Args:
            max_gpus: Largest number of GPUs.
        """
        fixed = [submission.job for submission in self.submissions if not submission.job.is_elastic]
        if not fixed:
            return self
        fields = {"num_gpus": 1, "max_gpus": Job("any", max_gpus=max_gpus).max_gpus}
        changed = (s if s.job.is_elastic else replace(s, job=s.job.model_copy(update=fields)) for s in self.submissions)
        return self.changed(changed, f"Jobs may run on any number of GPUs from 1 to {max_gpus}: {len(fixed):,}.")

    def with_fixed_gangs(self) -> Trace:
        """Return the trace in which elastic jobs become gangs of their smallest number of GPUs."""
        elastic = sum(submission.job.is_elastic for submission in self.submissions)
        if not elastic:
            return self
        changed = (replace(s, job=s.job.with_gpus(s.job.gpu_range[0])) for s in self.submissions)
        return self.changed(changed, f"Elastic jobs are gangs of their smallest number of GPUs: {elastic:,}.")

    def on_whole_gpus(self) -> Trace:
        """Return the trace in which each job that requested a fraction of a GPU gets a whole one, with the same CPUs and memory."""
        parts = sum(submission.job.num_gpus < 1 for submission in self.submissions)
        if not parts:
            return self
        changed = []
        for submission in self.submissions:
            job = submission.job
            if job.num_gpus < 1:
                requests = {name: value * job.num_gpus for name, value in job.host_requests.items()}
                submission = replace(submission, job=job.model_copy(update={"num_gpus": 1, **requests}))
            changed.append(submission)
        return self.changed(changed, f"Jobs that requested a fraction of a GPU get a whole one: {parts:,}.")


def _is_among(ids: set[str], text: str) -> bool:
    dependency = dependency_of(text)
    return dependency.condition is Condition.SINGLETON or dependency.job_id in ids


def _parents_first(submissions: list[Submission]) -> list[Submission]:
    """Return submissions sorted by arrival, reordered so that no job waits for a later one that arrives at the same time."""
    jobs = [submission.job for submission in submissions]
    if not has_dependencies(jobs):
        return submissions
    graph = WorkflowGraph(jobs)
    if all(parent < row for row, parents in enumerate(graph.parents) for parent in parents):
        return submissions
    depths = [0] * len(jobs)
    for row in graph.order:
        depths[row] = max((depths[parent] + 1 for parent in graph.parents[row]), default=0)
    order = sorted(range(len(jobs)), key=lambda row: (jobs[row].arrival_seconds, depths[row]))
    return [submissions[row] for row in order]


def seed_sequence(seed: int) -> SeedSequence:
    """Return the seed sequence of a seed; raises `InputError` unless the seed is a whole number of at least 0."""
    check("random numbers", seed=(seed, Natural))
    return SeedSequence(int(seed))
