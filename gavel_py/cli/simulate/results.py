"""Results of gavel simulate: the metrics of each policy, and its comparison with `isolated`, as tables, JSON or CSV.

A `Metric` has its name in CSV files, its label in tables and its unit. Finish-time fairness compares each job with its time under
`isolated`, where that is one of the policies.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gavel_py as gp
from gavel_py.cli.output import csv_text, gang_text, number, table_text, unused_text, width
from gavel_py.cli.simulate.options import Request, Scenario, time_text, unit_of
from gavel_py.cli.trace.files import report_text
from gavel_py.errors import InputError

YARDSTICK = "isolated"
"""The policy that finish-time fairness compares with."""


@dataclasses.dataclass(frozen=True)
class Fairness:
    """Finish-time fairness ρ over so many jobs; above_one: the part of them that `isolated` served better."""

    jobs: int
    mean: float
    max: float
    above_one: float


@dataclasses.dataclass(frozen=True)
class PolicyResult:
    """One policy; ended_seconds: simulated time at its end; in_rounds: not by events; complete: whether it was not interrupted.

    recorder: where its run is written down for --run-out.
    """

    policy: gp.Policy
    result: gp.SimulationResult
    ended_seconds: float
    in_rounds: bool
    complete: bool
    fairness: Fairness | None = None
    recorder: gp.RunRecorder | None = None

    @property
    def label(self) -> str:
        """The policy with its options."""
        return self.policy.label

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without its jobs."""
        return {
            "policy": self.policy.name,
            "options": self.policy.changed_options,
            "complete": self.complete,
            "ended_seconds": self.ended_seconds,
            "summary": self.result.summary.to_dict(),
            "finish_time_fairness": None if self.fairness is None else dataclasses.asdict(self.fairness),
            "left_out": reasons(self.result),
        }


def reasons(result: gp.SimulationResult) -> dict[str, str]:
    """Return {job_id: reason} of the jobs that got no GPUs at the end."""
    return {job_id: job.reason for job_id, job in result.jobs.items() if job.reason}


def needs_jobs(policies: Sequence[gp.Policy]) -> bool:
    """Say whether the jobs of these policies are compared one by one."""
    return len(policies) > 1 and any(policy.name == YARDSTICK for policy in policies)


def compared(all_played: Sequence[PolicyResult]) -> list[PolicyResult]:
    """Return them with the finish-time fairness of each but `isolated`, if that is among them."""
    yardstick = next((played.result for played in all_played if played.policy.name == YARDSTICK), None)
    if yardstick is None:
        return list(all_played)
    return [
        played if played.policy.name == YARDSTICK else dataclasses.replace(played, fairness=_fairness_of(played.result, yardstick))
        for played in all_played
    ]


def _fairness_of(result: gp.SimulationResult, isolated: gp.SimulationResult) -> Fairness | None:
    try:
        values = list(result.finish_time_fairness(isolated).values())
    except InputError:
        return None  # no job finished in both, which is nothing to compare and no reason to fail
    above = sum(value > 1 for value in values)
    return Fairness(len(values), sum(values) / len(values), max(values), above / len(values))


Kind = Literal["count", "time", "clock", "share", "money", "number"]

Value = Callable[[PolicyResult], float | None]

PARTS = {"mean": "mean", "median": "median", "p90": "90 %", "p99": "99 %"}

FORMS = {"count": ",.0f", "share": ".1%", "clock": ".2f", "money": ",.2f"}


@dataclass(frozen=True)
class Metric:
    """name: the column in a CSV file; label: the row in a table; kind: "clock" is a time of the computer that simulates;
    optional: left out of tables where it is 0 for all.
    """

    name: str
    label: str
    kind: Kind
    value: Value
    optional: bool = False

    def says_something(self, all_played: Sequence[PolicyResult]) -> bool:
        """Say whether a table needs it."""
        values = [self.value(played) for played in all_played]
        return any(values) or (not self.optional and any(value is not None for value in values))

    def row(self, all_played: Sequence[PolicyResult]) -> list[str]:
        """Return label and values as text, times in the unit that suits the largest of them."""
        values = [self.value(played) for played in all_played]
        if self.kind not in ("time", "clock"):
            return [self.label, *(_text(value, self.kind) for value in values)]
        unit, length = unit_of(values)
        return [f"{self.label} ({unit})", *(_text(None if value is None else value / length, self.kind) for value in values)]


def _text(value: float | None, kind: Kind) -> str:
    if value is None:
        return "-"
    form = FORMS.get(kind)
    return number(value) if form is None else format(value, form)


def metrics_of(all_played: Sequence[PolicyResult]) -> list[Metric]:
    """Return the metrics of these simulations, which are of one trace on one cluster."""
    return [*_jobs(all_played), *_times(), *_usage(all_played), *_fairness_metrics(all_played), *_costs(), *_rounds()]


def _of_summary(name: str) -> Value:
    return lambda played: getattr(played.result.summary, name)


def _measured(played: PolicyResult) -> float:
    first, end = played.result.summary.measure_jobs or (0, 0)
    return end - first


def _outcome(name: str) -> Value:
    return lambda played: played.result.summary.outcomes[name]


def _jobs(all_played: Sequence[PolicyResult]) -> Iterator[Metric]:
    windows = [played.result.summary.measure_jobs for played in all_played]
    if any(windows):
        yield Metric("measured", "jobs measured", "count", _measured)
    yield Metric("finished", "jobs finished", "count", _outcome("finished"))
    yield Metric("failed", "jobs failed", "count", _outcome("failed"), optional=True)
    yield Metric("cancelled", "jobs cancelled", "count", _outcome("cancelled"), optional=True)
    yield Metric("active", "jobs still in the system", "count", _outcome("active"), optional=True)
    if any(windows):
        yield Metric("unfinished", "measured jobs not finished", "count", _of_summary("unfinished"))
        yield Metric(
            "ended_after_arrivals", "ended after the last arrival", "count", _of_summary("ended_after_arrivals"), optional=True
        )


def _distribution(field: str, name: str, label: str) -> Iterator[Metric]:
    def part_of(part: str) -> Value:
        return lambda played: getattr(getattr(played.result.summary, field), part)

    for part, words in PARTS.items():
        yield Metric(f"{name}_{part}_seconds", f"{label}, {words}", "time", part_of(part))


def _times() -> Iterator[Metric]:
    yield from _distribution("jct", "jct", "completion time")
    yield Metric("makespan_seconds", "makespan", "time", _of_summary("makespan_seconds"))
    yield from _distribution("queueing", "queueing", "queueing delay")


def _usage(all_played: Sequence[PolicyResult]) -> Iterator[Metric]:
    def used(name: str) -> Value:
        return lambda played: played.result.summary.usage[name]["utilization"]

    for name in all_played[0].result.summary.usage:
        yield Metric(f"{name}_utilization", f"{name} used", "share", used(name))


def _fairness_metrics(all_played: Sequence[PolicyResult]) -> Iterator[Metric]:
    if all(played.fairness is None for played in all_played):
        return

    def rho(part: str) -> Value:
        return lambda played: None if played.fairness is None else getattr(played.fairness, part)

    yield Metric("rho_mean", "ρ (against isolated), mean", "number", rho("mean"))
    yield Metric("rho_max", "ρ, largest", "number", rho("max"))
    yield Metric("rho_above_one", "ρ, jobs above 1", "share", rho("above_one"))


def _costs() -> Iterator[Metric]:
    def late(played: PolicyResult) -> Any:
        return played.result.summary.late if played.result.summary.with_deadline else None

    yield Metric("with_deadline", "finished jobs with a deadline", "count", _of_summary("with_deadline"), optional=True)
    yield Metric("late", "of these, late", "count", late, optional=True)
    yield Metric("cost", "cost of the GPUs held", "money", _of_summary("cost"), optional=True)
    yield Metric("starts", "starts", "count", _of_summary("starts"))
    yield Metric("preemptions", "preemptions", "count", _of_summary("preemptions"))
    yield Metric("failures", "failures of jobs", "count", _of_summary("failures"), optional=True)


def _rounds() -> Iterator[Metric]:
    def consolidated(played: PolicyResult) -> float | None:
        summary = played.result.summary
        return 1 - summary.spread_job_rounds / summary.job_rounds if summary.job_rounds else None

    def undelivered(played: PolicyResult) -> float | None:
        # Without rounds, an ordered policy promises nothing for a stated time.
        return played.result.summary.undelivered_share if played.in_rounds else None

    yield Metric("consolidated_share", "gangs on as few nodes as can be", "share", consolidated)
    yield Metric("undelivered_share", "undelivered of what was promised", "share", undelivered)
    yield Metric("rounds", "rounds", "count", _of_summary("rounds"))
    yield Metric("solver_seconds", "time of allocations", "clock", _of_summary("solver_seconds"))
    yield Metric("wall_seconds", "time in all", "clock", _of_summary("wall_seconds"))


MOST_SHOWN = 5
"""Jobs listed of those that got no GPUs; the JSON has them all."""


def text_of(scenario: Scenario, all_played: Sequence[PolicyResult], not_played: Sequence[gp.Policy]) -> str:
    """Return the tables, and what has to be said besides."""
    parts = [report_text(scenario.trace.report) + "\n"]
    if all_played:
        parts += [_summary_table(all_played) + unused_text(scenario.cluster.left_out), *_gangs(all_played)]
    return "\n".join([*parts, *_notes(all_played, not_played)])


def _summary_table(all_played: Sequence[PolicyResult]) -> str:
    shown = [metric.row(all_played) for metric in metrics_of(all_played) if metric.says_something(all_played)]
    return table_text("Simulation", ["metric", *(played.label for played in all_played)], shown)


def _gangs(all_played: Sequence[PolicyResult]) -> Iterator[str]:
    """Queueing delays by gang size, if there are several: one policy in detail, or the means of several."""
    by_gpus = [played.result.summary.queueing_by_gpus for played in all_played]
    sizes = sorted({size for each in by_gpus for size in each})
    if len(sizes) < 2:
        return
    if len(all_played) == 1:
        unit, length = unit_of(each.p99 for each in by_gpus[0].values())
        columns = ["GPUs", "jobs finished", "mean", "median", "90 %", "99 %"]
        rows = [
            [
                gang_text(size),
                f"{each.count:,}",
                *(number(_per(part, length)) for part in (each.mean, each.median, each.p90, each.p99)),
            ]
            for size, each in by_gpus[0].items()
        ]
        yield table_text(textwrap.fill(f"Queueing delay by gang ({unit})", width()), columns, rows, text_columns=0)
        return
    means = {size: [each[size].mean if size in each else None for each in by_gpus] for size in sizes}
    unit, length = unit_of(value for row in means.values() for value in row)
    rows = [[gang_text(size), *(number(_per(value, length)) for value in row)] for size, row in means.items()]
    title = textwrap.fill(f"Queueing delay by gang, mean ({unit})", width())
    yield table_text(title, ["GPUs", *(played.label for played in all_played)], rows, text_columns=0)


def _per(value: float | None, length: float) -> float | None:
    return None if value is None else value / length


def _notes(all_played: Sequence[PolicyResult], not_played: Sequence[gp.Policy]) -> Iterator[str]:
    lines = [line for played in all_played for line in _said(played)]
    if not_played:
        lines.append(f"Not simulated: {', '.join(policy.label for policy in not_played)}.")
    yield from ("".join(textwrap.fill(line, width(), subsequent_indent="    ") + "\n" for line in lines),) if lines else ()


def _said(played: PolicyResult) -> Iterator[str]:
    if not played.complete:
        yield f"{played.label}: interrupted after {time_text(played.ended_seconds)} of simulated time."
    left_out = reasons(played.result)
    for job_id, reason in list(left_out.items())[:MOST_SHOWN]:
        yield f"{played.label}: job {job_id!r} has no GPUs at the end: {reason}"
    if len(left_out) > MOST_SHOWN:
        yield f"{played.label}: ... and {len(left_out) - MOST_SHOWN:,} jobs more"


def json_of(request: Request, scenario: Scenario, all_played: Sequence[PolicyResult], not_played: Sequence[gp.Policy]) -> str:
    """Return one document: what was read and assumed, what was set, and what came of each policy."""
    document: dict[str, Any] = {
        "trace": scenario.trace.report.to_dict(),
        "profile": scenario.profile.name,
        "settings": settings_of(request),
        "complete": not not_played and all(played.complete for played in all_played),
        "policies": [played.to_dict() for played in all_played],
    }
    if unused := {name: count for name, count in scenario.cluster.left_out.items() if count}:
        document["unused_gpus"] = unused
    return json.dumps(document, indent=2, allow_nan=False)


def settings_of(request: Request) -> dict[str, Any]:
    """Return what was set, as plain data."""
    return {
        "round_seconds": None if request.events else request.round_seconds,
        "restart_seconds": request.restart_seconds,
        "min_run_seconds": request.min_run_seconds,
        "solve_seconds": request.solve_seconds,
        "mechanism": request.mechanism,
        "sharing": request.sharing,
        "min_gain": request.min_gain,
        "interference": request.interference,
        "node_mtbf_hours": request.node_mtbf,
        "node_repair_hours": request.node_repair,
        "maintenance": list(request.maintenance),
        "job_failures": request.job_failures,
        "checkpoint_seconds": request.checkpoint_seconds,
        "estimates": request.estimates,
        "until_seconds": request.until_seconds,
        "measure_jobs": None if request.measure_jobs is None else list(request.measure_jobs),
        "extrapolate": request.extrapolate,
        "seed": request.seed,
    }


def csv_of(all_played: Sequence[PolicyResult]) -> str:
    """Return one line for each policy, one column for each metric; times in seconds, shares in parts of 1."""
    if not all_played:
        return csv_text(["policy", "complete"], [])
    metrics = metrics_of(all_played)
    sizes = sorted({size for played in all_played for size in played.result.summary.queueing_by_gpus})
    header = ["policy", "complete", *(metric.name for metric in metrics), *(f"queueing_{size}_gpus_mean_seconds" for size in sizes)]
    rows = []
    for played in all_played:
        by_gpus = played.result.summary.queueing_by_gpus
        queueing = [by_gpus[size].mean if size in by_gpus else None for size in sizes]
        complete = str(played.complete).lower()
        rows.append([played.label, complete, *(metric.value(played) for metric in metrics), *queueing])
    return csv_text(header, rows)
