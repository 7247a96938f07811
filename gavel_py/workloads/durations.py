"""What finished runs show: durations of similar jobs (`DurationPredictor`) and their accuracy, and relative speeds of accelerators.

Jobs are similar if they have equal values in columns that the user names. Only runs that ended before a job arrives count for it.
"""

from __future__ import annotations

import statistics
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.errors import GavelWarning, check_known, refuse
from gavel_py.io.records import NotNegative, Part, check
from gavel_py.problem.arrays import Floats
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles import Measurement, ThroughputProfile
from gavel_py.workloads.submission import Submission

if TYPE_CHECKING:
    from gavel_py.workloads.trace import Trace

MIN_SECONDS = 1.0
"""Minimum duration in seconds: some records have 0, but errors are ratios."""

NOT_BEFORE = {
    *("job_id", "arrival_seconds", "total_steps", "steps_done", "duration_seconds", "duration_accelerator"),
    "gpu_memory_gb",
}
"""Fields of `Job` that identify a job, or that traces may take from its run."""

COLUMNS = (*(name for name in Job.model_fields if name not in NOT_BEFORE), "estimate_seconds")
"""Columns of every trace by which jobs can be grouped; `Submission.labels` adds those of a particular trace."""

ALSO_CALLED = {"virtual_cluster": "tenant", "account": "tenant"}
"""{name of a column in other systems: our name}."""

DEFAULT_GROUP: tuple[str, ...] = ("tenant", "num_gpus")

JOB_NAME = "job_name"

SAME_WORK = 2.0
"""Ratio of the longest to the shortest run on the same GPUs above which runs of one name are probably not the same work."""


def column_of(job: Job | Submission | Mapping[str, Any], name: str) -> Any:
    """Return the value of a column, None or "" if the job has none."""
    if isinstance(job, Mapping):
        return job.get(name)
    if isinstance(job, Submission):
        labels = dict(job.labels)
        if name in labels:
            return labels[name]
        if name == "estimate_seconds":
            return job.estimate_seconds
        job = job.job
    return getattr(job, ALSO_CALLED.get(name, name), "")


@dataclass(frozen=True)
class DurationPrediction:
    """The durations of the last finished runs of similar jobs.

    Attributes:
        group: The columns in which these jobs equal the predicted one; empty if it is compared with all jobs.
        run_seconds: Their durations, ascending.
    """

    group: tuple[str, ...]
    run_seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        """The median; for an even number of runs, the geometric mean of the two middle ones."""
        return self.quantile(0.5)

    def quantile(self, level: float) -> float:
        """Return the duration that the next run does not exceed with this probability, if the runs are exchangeable.

        Of n runs, the k-th shortest has the level k / (n + 1). Between two runs, logarithms are interpolated. Levels below the
        first or above the last give the shortest or the longest run.

        Args:
            level: Between 0 and 1.

        Raises:
            InputError: The level is not between 0 and 1.
        """
        check("duration prediction", level=(level, Part))
        place = min(max(level * (len(self.run_seconds) + 1) - 1, 0.0), len(self.run_seconds) - 1.0)
        below, part = int(place), place - int(place)
        low = self.run_seconds[below]
        return low if not part else low * (self.run_seconds[below + 1] / low) ** part


class DurationPredictor:
    """Predicts durations by the last finished runs of the finest group of jobs that has enough of them.

    The finest group has the same values in all columns, the next coarser one in all but the last column, and so on; the coarsest
    one has all jobs. The order of columns is therefore from the most to the least informative one.

    Args:
        group: Columns by which jobs are grouped: fields of `Job`, labels of `Submission`, or keys of mappings.
        last: Number of the last runs of a group that count.
        enough: Number of runs that a group needs.

    Raises:
        InputError: A column is named twice, or not 1 <= enough <= last.

    >>> predictor = DurationPredictor(["user", "num_gpus"])
    >>> for seconds in (50, 60, 90):
    ...     predictor.observe({"user": "ann", "num_gpus": 4}, seconds)
    >>> predictor.predict({"user": "ann", "num_gpus": 4}).median_seconds
    60.0
    >>> predictor.predict({"user": "bob", "num_gpus": 4}).group
    ()
    """

    def __init__(self, group: Sequence[str] = DEFAULT_GROUP, *, last: int = 20, enough: int = 3) -> None:
        self.group, self.last, self.enough = tuple(group), last, enough
        refuse(
            "duration predictor",
            (len(set(self.group)) < len(self.group), "group", f"names a column twice: {', '.join(self.group)}"),
            (not 1 <= enough <= last, "enough", f"must be from 1 to last, {last!r}, found {enough!r}"),
        )
        self._runs: dict[tuple[Any, ...], deque[float]] = {}

    def observe(self, job: Job | Submission | Mapping[str, Any], run_seconds: float) -> None:
        """Add a run that has ended.

        Args:
            job: The job, or the values of its columns.
            run_seconds: How long it ran; less than one second counts as one.

        Raises:
            InputError: The duration is not a finite number of at least 0.
        """
        check("duration predictor", run_seconds=(run_seconds, NotNegative))
        for key in self._keys(job):
            self._runs.setdefault(key, deque(maxlen=self.last)).append(max(float(run_seconds), MIN_SECONDS))

    def predict(self, job: Job | Submission | Mapping[str, Any]) -> DurationPrediction | None:
        """Return the prediction for a job; None if fewer than `enough` runs have ended in total.

        Args:
            job: The job, or the values of its columns.
        """
        for key in self._keys(job):
            runs = self._runs.get(key, ())
            if len(runs) >= self.enough:
                return DurationPrediction(self.group[: len(key)], tuple(sorted(runs)))
        return None

    def _keys(self, job: Job | Submission | Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the groups of a job, finest first, as the values of their columns."""
        values = tuple(column_of(job, name) for name in self.group)
        return (values[:count] for count in range(len(values), -1, -1))


def check_group(submissions: Sequence[Submission], group: Sequence[str]) -> None:
    """Raise `UnknownNameError` for columns that the submissions do not have, or that are known only after a run."""
    labels = {name for submission in submissions for name, _ in submission.labels}
    known = sorted({*COLUMNS, *ALSO_CALLED, *labels})
    check_known("trace", "group", group, known, "is not a column by which jobs can be grouped")


def predictions(submissions: Sequence[Submission], predictor: DurationPredictor) -> Iterator[DurationPrediction | None]:
    """Yield the prediction for each submission at its arrival, from the runs that have ended before.

    A run ends `run_seconds` after its arrival plus recorded wait, or at its cancellation if that is later. Without a recorded wait,
    it is assumed to have started on arrival.
    """
    running: list[tuple[float, int]] = []
    for index, submission in enumerate(submissions):
        while running and running[0][0] < submission.job.arrival_seconds:
            ended = submissions[heappop(running)[1]]
            predictor.observe(ended, ended.run_seconds or 0.0)
        yield predictor.predict(submission)
        if submission.run_seconds is not None:
            end = submission.job.arrival_seconds + (submission.wait_seconds or 0.0) + submission.run_seconds
            heappush(running, (max(end, submission.cancelled_seconds or end), index))


LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Predictability:
    """How well history predicts the durations of a trace, tested on the second half of its jobs in order of arrival.

    Attributes:
        group: The columns by which jobs are grouped.
        num_groups: Number of groups of jobs with equal values in all columns.
        num_tested: Number of jobs tested, those with a recorded duration.
        num_predicted: Number of tested jobs with a prediction. All other figures refer to these; None if there are none.
        within_25_percent: Share whose duration the median misses by less than 25 %.
        within_factor_2: Share whose duration is more than half and less than twice the median.
        median_error: Median of |median / duration − 1|.
        rank_correlation: Spearman's correlation between medians and durations; None if either is constant.
        quantile_coverage: {level: share whose duration does not exceed the quantile of this level}.
    """

    group: tuple[str, ...]
    num_groups: int
    num_tested: int
    num_predicted: int
    within_25_percent: float | None
    within_factor_2: float | None
    median_error: float | None
    rank_correlation: float | None
    quantile_coverage: dict[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, for JSON."""
        return asdict(self)


def describe_predictability(
    trace: Sequence[Submission], group: Sequence[str] = DEFAULT_GROUP, *, last: int = 20, enough: int = 3
) -> Predictability:
    """Return how well the durations of a trace are predicted as its jobs arrive (`DurationPredictor`).

    Args:
        trace: The trace.
        group: Columns by which jobs are grouped: fields of `Job`, labels of the trace, or estimate_seconds.
        last: Number of the last runs of a group that count.
        enough: Number of runs that a group needs.

    Raises:
        UnknownNameError: The trace has no such column.
        InputError: A column is named twice, or not 1 <= enough <= last.
    """
    check_group(trace, group)
    predictor = DurationPredictor(group, last=last, enough=enough)
    known = [(s, p) for s, p in zip(trace, predictions(trace, predictor), strict=True) if s.run_seconds is not None]
    groups = {tuple(column_of(submission, name) for name in predictor.group) for submission, _ in known}
    tested = known[len(known) // 2 :]
    pairs = [(max(s.run_seconds or 0.0, MIN_SECONDS), p) for s, p in tested if p is not None]
    counts = (predictor.group, len(groups), len(tested), len(pairs))
    if not pairs:
        return Predictability(*counts, None, None, None, None, None)
    ran = np.array([seconds for seconds, _ in pairs])
    below = {level: np.array([p.quantile(level) for _, p in pairs]) for level in LEVELS}
    ratio = below[0.5] / ran
    return Predictability(
        *counts,
        within_25_percent=float(np.mean(np.abs(ratio - 1) < 0.25)),
        within_factor_2=float(np.mean((ratio > 0.5) & (ratio < 2))),
        median_error=float(np.median(np.abs(ratio - 1))),
        rank_correlation=_rank_correlation(below[0.5], ran),
        quantile_coverage={level: float(np.mean(ran <= quantiles)) for level, quantiles in below.items()},
    )


def _rank_correlation(predicted: Floats, ran: Floats) -> float | None:
    from scipy.stats import rankdata

    first, second = rankdata(predicted), rankdata(ran)
    return float(np.corrcoef(first, second)[0, 1]) if np.ptp(first) and np.ptp(second) else None


def relative_speeds(trace: Trace, name: str = "sacct", *, label: str = JOB_NAME) -> ThroughputProfile:
    """Return a profile of the jobs that ran under the same name on several accelerator types, in runs per minute.

    Runs of one name are assumed to do the same work, so that the ratio of two throughputs is the inverse ratio of the run times. A
    throughput is 1 divided by the median run time, in minutes, of the finished runs of a name with the same number of GPUs on the
    same type. Names that ran on only one type are left out, since they have no ratio.

    Args:
        trace: A trace with running times and accelerators, such as one from `sacct` with the column JobName.
        name: Name of the profile.
        label: The label of jobs that names their work.

    Raises:
        InputError: No name ran on two types.

    Warns:
        GavelWarning: Runs of a name on the same GPUs differ by more than a factor of 2, so they may not be the same work.
    """
    runs: dict[str, dict[tuple[str, float], list[float]]] = {}
    for submission in trace:
        work, seconds = dict(submission.labels).get(label), submission.run_seconds
        if work and seconds and submission.accelerator and submission.status == "passed":
            gang = submission.accelerator, submission.job.num_gpus
            runs.setdefault(work, {}).setdefault(gang, []).append(seconds)
    compared = {work: by_gang for work, by_gang in runs.items() if len({accelerator for accelerator, _ in by_gang}) > 1}
    problem = f"has no two finished jobs of the same {label} on different accelerator types"
    needed = "the output of sacct needs the columns JobName, State, Elapsed, and AllocTRES with types of GPUs"
    refuse(trace.report.source or "trace", (not compared, "", f"{problem}; {needed}"))
    _warn_of_variation(compared)
    measurements = [
        Measurement(
            job_type=work,
            num_gpus=num_gpus,
            accelerator=accelerator,
            steps_per_second=60 / statistics.median(seconds),
            source=f"median of {len(seconds)} finished runs" if len(seconds) > 1 else "1 finished run",
            unit="1/min",
        )
        for work, by_gang in sorted(compared.items())
        for (accelerator, num_gpus), seconds in sorted(by_gang.items())
    ]
    return ThroughputProfile(name, measurements, description="Relative speeds from running times of jobs with the same name")


def _warn_of_variation(runs: Mapping[str, Mapping[tuple[str, float], list[float]]]) -> None:
    varied = [work for work, gangs in runs.items() if any(max(each) > SAME_WORK * min(each) for each in gangs.values())]
    if varied:
        names = ", ".join(repr(work) for work in varied[:5]) + (f" and {len(varied) - 5} more" if len(varied) > 5 else "")
        text = f"runs on the same GPUs differ by more than a factor of {SAME_WORK:g}, so they may not be the same work: {names}"
        warnings.warn(text, GavelWarning, stacklevel=3)
