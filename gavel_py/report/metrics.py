"""The metrics of a run, each declared once.

Records and tables of simulations, sweeps, reports with their verdicts, and replays of Slurm's logs follow from `METRICS`. A new
metric is one more entry there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gavel_py.io.tabular import Quantity
from gavel_py.problem.arrays import Floats
from gavel_py.report.measures import Unit, clean, unit_of
from gavel_py.report.runs.summary import Distribution, Summary


@dataclass(frozen=True)
class Fairness:
    """Finish-time fairness ρ of a number of jobs; above_one: share of the jobs that finish earlier under `isolated`."""

    jobs: int
    mean: float
    max: float
    above_one: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Fairness | None:
        """Return the figures of one number per job, None without jobs."""
        found = np.sort(np.fromiter(values, dtype=float))
        return cls(len(found), float(found.mean()), float(found[-1]), float((found > 1).mean())) if len(found) else None


@dataclass(frozen=True)
class Measured:
    """What the metrics of a simulation are computed from.

    in_rounds: False in event-driven mode; jct_over_known: mean completion time relative to that of the same policy with known
    throughputs.
    """

    summary: Summary
    fairness: Fairness | None = None
    in_rounds: bool = True
    jct_over_known: float | None = None

    @property
    def num_measured(self) -> float:
        """Number of jobs in the measured window."""
        first, end = self.summary.measure_jobs or (0, 0)
        return end - first

    @property
    def makespan(self) -> float | None:
        """That of the summary, None if no job has ended."""
        return self.summary.makespan_seconds or None

    @property
    def utilization(self) -> float:
        """Used part of the GPU-seconds that were not down."""
        usage = self.summary.usage.values()
        available = sum(each["gpu_seconds"] - each["down"] for each in usage)
        return sum(each["used"] for each in usage) / available if available > 0 else 0.0

    @property
    def late(self) -> int | None:
        """That of the summary, None if no job with a deadline has finished."""
        return self.summary.late if self.summary.with_deadline else None

    @property
    def consolidated_share(self) -> float | None:
        """Part of the running jobs, over all rounds, on as few nodes as possible."""
        return 1 - self.summary.spread_job_rounds / self.summary.job_rounds if self.summary.job_rounds else None

    @property
    def undelivered_share(self) -> float | None:
        """That of the summary; None in event-driven mode, in which an ordered policy promises no time."""
        return self.summary.undelivered_share if self.in_rounds else None

    @property
    def fallback_rounds(self) -> float:
        """Number of rounds without a proven answer."""
        return sum(sum(kinds.values()) for kinds in self.summary.fallback_rounds.values())

    @property
    def exceeded_rounds(self) -> float:
        """Number of rounds above limits, summed over the limits."""
        return sum(each["exceeded"] for each in self.summary.limit_rounds.values())


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run.

    Attributes:
        name: Its key in `Run.metrics`, and its column in CSV files.
        title: Its name in sentences and headings.
        quantity: What it measures.
        best: Which value is preferable, None if runs cannot be compared by it.
        path: Of a simulation, the attribute of `Measured`; "" if it is measured elsewhere or belongs to static solves.
        meaning: What it is, for legends.
        kind: "verdict": reports compare policies by it in sentences; "main": it is in their first table; "total": the same, and
            `gavel simulate` has it by accelerator type; "detail": only `gavel simulate` has it.
        needs: The attribute that one of several simulations must have for their table to have the metric, "" for none.
        label: Its name in such a table, by default the title.
        family: Metrics whose times have the same unit there.
        is_marked: Whether the best value is marked there.
        optional: Whether a row of zeros is left out there.
        short: Its heading in the table of a sweep, "" if it is not there.
    """

    name: str
    title: str
    quantity: Quantity = "number"
    best: Literal["least", "most"] | None = None
    path: str = ""
    meaning: str = ""
    kind: Literal["", "verdict", "main", "total", "detail"] = ""
    needs: str = ""
    label: str = ""
    family: str = ""
    is_marked: bool = True
    optional: bool = False
    short: str = ""

    def of(self, run: Measured) -> float | None:
        """Return its value for a simulation."""
        value: float | None = _looked_up(self.path, run)
        return value

    def applies_to(self, run: Measured) -> bool:
        """Return whether a simulation has it."""
        return bool(self.path and _looked_up(self.needs, run))

    def unit(self, values: Iterable[float | None]) -> Unit:
        """Return a unit in which the largest of the values is easy to read."""
        return unit_of(self.quantity, values)


def _looked_up(path: str, found: Any) -> Any:
    """Return an attribute such as "summary.jct.mean", with entries of mappings such as "outcomes.failed"; None below None."""
    for name in path.split(".") if path else ():
        found = found[name] if isinstance(found, Mapping) else None if found is None else getattr(found, name)
    return found


PARTS = {"mean": "mean", "median": "median", "p90": "90 %", "p99": "99 %"}


def _times(name: str, family: str, meanings: Mapping[str, str] | None = None, short: str = "", needs: str = "") -> Iterator[Metric]:
    """Yield the metrics of a distribution. meanings: of the parts that are no details; short: of the mean, for the verdict."""
    for part, text in PARTS.items():
        meaning = (meanings or {}).get(part, "")
        heading = short if part == "mean" else ""
        yield Metric(
            f"{part}_{name}_seconds",
            f"{text} {family}",
            "time",
            "least",
            f"summary.{name}.{part}",
            meaning,
            kind="verdict" if heading else "" if meaning else "detail",
            needs=needs,
            label=f"{family}, {text}",
            family=family,
            short=heading,
        )


JCT = {
    "mean": "mean completion time of the finished jobs, from arrival to end",
    "median": "their median completion time",
    "p99": "the completion time that 99 % of them do not exceed",
}
_METRICS = (
    Metric("measured", "jobs measured", "count", None, "num_measured", kind="detail", needs="summary.measure_jobs"),
    Metric("finished", "jobs finished", "count", "most", "summary.outcomes.finished", "number of jobs that finished"),
    Metric("failed", "jobs failed", "count", "least", "summary.outcomes.failed", is_marked=False, optional=True),
    Metric("cancelled", "jobs cancelled", "count", "least", "summary.outcomes.cancelled", is_marked=False, optional=True),
    Metric("active", "jobs still in the system", "count", "least", "summary.outcomes.active", is_marked=False, optional=True),
    Metric(
        "unfinished",
        "measured jobs not finished",
        "count",
        "least",
        "summary.unfinished",
        "number of measured jobs that did not: failed, cancelled, or still in the system",
        needs="summary.measure_jobs",
        short="unfinished",
    ),
    Metric(
        "ended_after_arrivals",
        "ended after the last arrival",
        "count",
        None,
        "summary.ended_after_arrivals",
        "number of measured jobs that ended when no job of the trace was still to arrive",
        needs="summary.measure_jobs",
        optional=True,
    ),
    *_times("jct", "completion time", JCT, "completion time"),
    Metric(
        "jct_over_known",
        "completion time relative to known speeds",
        "share",
        None,
        "jct_over_known",
        kind="detail",
        needs="jct_over_known",
    ),
    Metric(
        "makespan_seconds",
        "makespan",
        "time",
        "least",
        "makespan",
        "from the first arrival to the end of the last job",
        kind="verdict",
        family="completion time",
        short="makespan",
    ),
    *_times("workflow_jct", "workflows from arrival to end", needs="summary.workflow_jct.count"),
    Metric(
        "blocked_seconds",
        "time for which jobs waited for others",
        "time",
        None,
        "summary.blocked_seconds",
        kind="detail",
        optional=True,
    ),
    *_times("queueing", "queueing delay", {"mean": "mean time in the system without GPUs"}),
    Metric(
        "p95_queueing_seconds",
        "95 % queueing delay",
        "time",
        "least",
        "summary.queueing.p95",
        "the time in the system without GPUs that 95 % of the finished jobs do not exceed",
        label="queueing delay, 95 %",
        family="queueing delay",
    ),
    Metric(
        "utilization",
        "used GPU time",
        "share",
        "most",
        "utilization",
        "used part of the GPU-seconds that were not down, all types",
        kind="total",
        is_marked=False,
        short="GPUs used",
    ),
    Metric(
        "finish_time_fairness",
        "finish-time fairness ρ",
        "number",
        "least",
        "fairness.mean",
        "mean of ρ = completion time / that of the same trace under `isolated`",
        kind="verdict",
        needs="fairness",
        label="finish time vs. isolated (ρ), mean",
        short="ρ",
    ),
    Metric(
        "max_finish_time_fairness",
        "finish time vs. isolated (ρ), largest",
        "number",
        "least",
        "fairness.max",
        kind="detail",
        needs="fairness",
    ),
    Metric(
        "finish_time_fairness_above_one",
        "finish time vs. isolated (ρ), jobs above 1",
        "share",
        "least",
        "fairness.above_one",
        kind="detail",
        needs="fairness",
    ),
    Metric("with_deadline", "jobs with a deadline", "count", None, "summary.with_deadline", "of finished jobs", kind="detail"),
    Metric("late", "late jobs", "count", "least", "late", "number of finished jobs that missed their deadline", kind="main"),
    Metric(
        "cost",
        "cost",
        "money",
        "least",
        "summary.cost",
        "of all GPUs held, in the unit of their prices per hour",
        kind="verdict",
        label="cost of the GPUs held",
        is_marked=False,
        optional=True,
    ),
    Metric("starts", "starts", "count", "least", "summary.starts", is_marked=False),
    Metric(
        "preemptions",
        "preemptions",
        "count",
        "least",
        "summary.preemptions",
        "how often a job lost its GPUs before it was done",
        is_marked=False,
    ),
    Metric("failures", "failures of jobs", "count", None, "summary.failures", kind="detail", optional=True),
    Metric("consolidated_share", "gangs on as few nodes as possible", "share", None, "consolidated_share", kind="detail"),
    Metric(
        "undelivered_share",
        "promised time not delivered",
        "share",
        "least",
        "undelivered_share",
        "part of the promised GPU-seconds that the rounds did not deliver",
    ),
    Metric("rounds", "rounds", "count", None, "summary.rounds"),
    Metric(
        "fallback_rounds",
        "rounds without a proven answer",
        "count",
        "least",
        "fallback_rounds",
        kind="detail",
        needs="fallback_rounds",
    ),
    Metric(
        "exceeded_rounds",
        "rounds above limits on average",
        "count",
        "least",
        "exceeded_rounds",
        kind="detail",
        needs="summary.limit_rounds",
    ),
    Metric(
        "solver_seconds", "time to solve", "clock", "least", "summary.solver_seconds", "time spent on allocations", is_marked=False
    ),
    Metric("wall_seconds", "total run time", "clock", "least", "summary.wall_seconds", "time that the run took", is_marked=False),
    Metric("cpu_seconds", "processor time", "clock", "least", "", "processor time that its process took meanwhile"),
    Metric(
        "objective",
        "objective",
        "number",
        None,
        "",
        "of a static solve: the value of the policy's objective, as proven",
        kind="main",
        label="objective, in its own unit",
        short="objective",
    ),
    Metric(
        "total_normalized_throughput",
        "total speed",
        "number",
        "most",
        kind="verdict",
        label="total speed of all jobs",
        short="total speed",
    ),
    Metric("least_normalized_throughput", "least speed", "number", "most", kind="verdict", short="least speed"),
    Metric(
        "cost_per_hour",
        "cost per hour",
        "number",
        None,
        "",
        "of a static solve: of the GPUs in use, in the unit of their prices; none if a price is unknown",
    ),
    Metric("gap", "gap", "number", None, "", "of a static solve: bound less value, relative"),
    Metric("excluded", "jobs left out", "count", "least"),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _METRICS}
"""The metrics of runs by name, in the order of tables. A run may lack some of them and may have others."""

VERDICT = [metric for metric in _METRICS if metric.kind == "verdict"]


def metric_of(name: str) -> Metric:
    """Return a metric; runs are never compared by unknown ones."""
    return METRICS.get(name) or Metric(name, clean(name.replace("_", " ")))


def completions_of(jcts: Floats, makespan: float | None, queueing: Floats) -> dict[str, float | None]:
    """Return the metrics of times, from `mean_jct_seconds` to the mean of queueing, for a run that is no simulation."""
    found = Distribution.of(jcts)
    return {f"{part}_jct_seconds": getattr(found, part) for part in JCT} | {
        "makespan_seconds": makespan,
        "mean_queueing_seconds": Distribution.of(queueing).mean,
    }


def metrics_of(run: Measured) -> dict[str, float | None]:
    """Return the metrics that a record of a simulation has; it always has those of the verdict."""
    return {
        metric.name: metric.of(run)
        for metric in _METRICS
        if metric.path and metric.kind != "detail" and (metric.kind or metric.applies_to(run))
    }
