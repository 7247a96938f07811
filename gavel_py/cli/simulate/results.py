"""Results of gavel simulate: the metrics of each policy as tables, JSON or CSV.

Finish-time fairness compares the completion time of each job with that under `isolated`, if that is one of the policies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import gavel_py as gp
from gavel_py.cli import tables
from gavel_py.cli.accounting import MAX_TENANTS, has_prices, tenants_table
from gavel_py.cli.estimates import count_text, json_entry
from gavel_py.cli.inputs import DECLARED, DEFAULT_MECHANISM, DIRECT
from gavel_py.cli.output import csv_text, gang_text, json_text, metric_row, number, time_text, unit_of, unused_text
from gavel_py.cli.services import held_line, services_entry
from gavel_py.cli.simulate.learning import SimulationCase
from gavel_py.cli.simulate.options import READ_HERE, Scenario, SimulateOptions
from gavel_py.cli.tables import table_text, wrapped
from gavel_py.cli.trace.files import report_text
from gavel_py.errors import InputError

BASELINE = "isolated"
"""The baseline policy of finish-time fairness."""


@dataclasses.dataclass(frozen=True)
class PolicyResult:
    """The result of one policy.

    ended_seconds: simulated time at the end; in_rounds: False in event-driven mode; complete: False after an interrupt; recorder:
    has the run for --run-out; learner: the learner, None with known throughputs; jct_over_known: with --learn, the mean completion
    time relative to that of the same policy with known throughputs.
    """

    policy: gp.Policy
    result: gp.SimulationResult
    ended_seconds: float
    in_rounds: bool
    complete: bool
    fairness: gp.Fairness | None = None
    recorder: gp.RunRecorder | None = None
    learner: gp.ThroughputLearner | None = None
    jct_over_known: float | None = None
    elastic: bool | None = None
    mechanism: str = DEFAULT_MECHANISM

    @property
    def label(self) -> str:
        """As `SimulationCase.label`."""
        return SimulationCase(self.policy, self.learner, self.elastic, self.mechanism).label

    @property
    def measured(self) -> gp.Measured:
        """What its metrics are computed from."""
        return gp.Measured(self.result.summary, self.fairness, self.in_rounds, self.jct_over_known)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, without jobs."""
        return {
            "policy": None if self.mechanism == DIRECT else self.policy.name,
            "options": self.policy.changed_options,
            "complete": self.complete,
            "ended_seconds": self.ended_seconds,
            "summary": self.result.summary.to_dict(),
            "finish_time_fairness": None if self.fairness is None else dataclasses.asdict(self.fairness),
            "left_out": reasons(self.result),
            **({} if self.elastic is None else {"elastic": self.elastic}),
        } | self._learning()

    def _learning(self) -> dict[str, Any]:
        """Return the figures of the comparison with --learn, and of what was learned."""
        found: dict[str, Any] = {} if self.jct_over_known is None else {"jct_over_known": self.jct_over_known}
        if self.learner is not None:
            counts = {"observed": len(self.learner.observations), "contradictions": len(self.learner.contradictions)}
            found["learning"] = {"explore": self.learner.explore, "measured": len(self.learner.measured), **counts}
        return found


def reasons(result: gp.SimulationResult) -> dict[str, str]:
    """Return {job_id: reason} of the jobs without GPUs at the end."""
    return {job_id: job.reason for job_id, job in result.jobs.items() if job.reason}


def needs_jobs(policies: Sequence[gp.Policy]) -> bool:
    """Return whether finish-time fairness is computed, which needs the records of all jobs."""
    return len(policies) > 1 and any(policy.name == BASELINE for policy in policies)


def compared(results: Sequence[PolicyResult]) -> list[PolicyResult]:
    """Return the results with `jct_over_known` and, if `isolated` is among the policies, with fairness for the others."""
    results = _with_jct_over_known(results) if any(each.learner is not None for each in results) else results
    baseline = next((each.result for each in results if each.policy.name == BASELINE), None)
    if baseline is None:
        return list(results)
    return [
        each if each.policy.name == BASELINE else dataclasses.replace(each, fairness=_fairness_of(each.result, baseline))
        for each in results
    ]


def _with_jct_over_known(results: Sequence[PolicyResult]) -> list[PolicyResult]:
    """Return the results with completion times relative to those with known throughputs, which come first in `results`."""
    found: list[PolicyResult] = []
    known: float | None = None
    for each in results:
        mean = None if each.result.summary.jct is None else each.result.summary.jct.mean
        if each.learner is None and not each.policy.is_agnostic:
            known = mean
        found.append(dataclasses.replace(each, jct_over_known=mean / known if mean and known else None))
    return found


def _fairness_of(result: gp.SimulationResult, isolated: gp.SimulationResult) -> gp.Fairness | None:
    try:
        return gp.Fairness.of(result.finish_time_fairness(isolated).values())
    except InputError:
        return None  # no job finished under both policies


def metrics_of(results: Sequence[PolicyResult]) -> Iterator[tuple[gp.Metric, list[float | None]]]:
    """Yield the metrics of these simulations of one trace on one cluster, with a value for each."""
    runs = [each.measured for each in results]
    for metric in gp.METRICS.values():
        if not any(map(metric.applies_to, runs)):
            continue
        if metric.kind != "total":
            yield metric, [metric.of(run) for run in runs]
            continue
        for name in runs[0].summary.usage:
            of_type = dataclasses.replace(metric, name=f"{name}_{metric.name}", title=f"{name} used")
            yield of_type, [run.summary.usage[name][metric.name] for run in runs]


MAX_JOBS = 5
"""Maximum number of jobs listed that have no GPUs at the end; the JSON output has all of them."""


def text_of(scenario: Scenario, results: Sequence[PolicyResult], not_run: Sequence[SimulationCase]) -> str:
    """Return the report on the trace, the tables, and notes."""
    parts = [report_text(scenario.trace.report) + "\n"]
    if results:
        rows = _rows(results, _deadline_count(scenario.trace, results))
        table = tables.comparison_text("Simulation", _columns(results), rows)
        parts += [table + unused_text(scenario.cluster.left_out), *_gangs(results), *_tenants(scenario, results)]
    notes = [*filter(None, [held_line(scenario.services)]), *(note for each in results for note in _notes(each))]
    if not_run:
        notes.append(f"Not simulated: {', '.join(policy.label for policy in not_run)}.")
    estimated = count_text(scenario.estimates())
    return "\n".join([*parts, *(part for part in (estimated, wrapped(notes) if notes else "") if part)])


def _columns(results: Sequence[PolicyResult]) -> list[str]:
    """Return the headings of the columns; short ones if one policy is compared with its versions without known throughputs."""
    known = [each for each in results if each.learner is None and not each.policy.is_agnostic]
    if len(known) != 1 or all(each.learner is None for each in results):
        return [each.label for each in results]
    return [each.label if each in known else "agnostic" if each.learner is None else "learning" for each in results]


IN_DEADLINES = ("with_deadline", "late")
"""Metrics that tables show as one row, the deadlines met."""


def _rows(results: Sequence[PolicyResult], due: int) -> Iterator[tables.ComparisonRow]:
    """Yield the rows of the table; due: the number of measured jobs with a deadline."""
    metrics = list(metrics_of(results))
    # Times are comparable only if the same number of jobs has finished under each policy.
    are_fair = len({each.result.summary.outcomes["finished"] for each in results}) == 1
    for metric, values in metrics:
        if metric.name == "with_deadline" and due:
            met = [each.result.summary.with_deadline - each.result.summary.late for each in results]
            yield tables.ComparisonRow("deadlines met", met, lambda value: f"{value:,.0f} of {due:,}", "most")
        elif metric.name not in IN_DEADLINES and (any(values) or not (metric.optional or values.count(None) == len(values))):
            family = [found for each, found in metrics if (each.family, each.quantity) == (metric.family, metric.quantity)]
            is_marked = are_fair or metric.quantity != "time"
            yield metric_row(metric, values, chain.from_iterable(family), is_marked=is_marked)


def _deadline_count(trace: gp.Trace, results: Sequence[PolicyResult]) -> int:
    jobs = [submission.job for submission in trace]
    first, end = results[0].result.summary.measure_jobs or (0, len(jobs))
    return sum(job.has_deadline for job in jobs[first:end])


ELASTIC = "elastic"


def _delays(result: PolicyResult) -> dict[float | str, gp.Distribution]:
    """Return the queueing delays by size of gangs, and of elastic jobs if there are any."""
    summary = result.result.summary
    found: dict[float | str, gp.Distribution] = dict(summary.queueing_by_gpus.items())
    return found | ({ELASTIC: summary.queueing_elastic} if summary.queueing_elastic.count else {})


def _sizes(by_gpus: Sequence[Mapping[float | str, gp.Distribution]]) -> list[float | str]:
    """Return the sizes of gangs in ascending order, then `ELASTIC`."""
    return sorted({size for each in by_gpus for size in each}, key=lambda size: math.inf if isinstance(size, str) else size)


def _gangs(results: Sequence[PolicyResult]) -> Iterator[str]:
    """Yield a table of queueing delays if there are several gang sizes: the distribution for one policy, means for several."""
    by_gpus = [_delays(each) for each in results]
    sizes = _sizes(by_gpus)
    if len(sizes) < 2:
        return
    names = [size if isinstance(size, str) else gang_text(size) for size in sizes]
    first: list[list[str]] = [[name] for name in names]
    values: list[list[float | None]]
    if len(results) == 1:
        title, columns = "Queueing delay by gang", ["GPUs", "jobs finished", "mean", "median", "90 %", "99 %"]
        found = [by_gpus[0][size] for size in sizes]
        first = [[name, f"{each.count:,}"] for name, each in zip(names, found, strict=True)]
        values = [[each.mean, each.median, each.p90, each.p99] for each in found]
    else:
        title, columns = "Queueing delay by gang, mean", ["GPUs", *(each.label for each in results)]
        values = [[each[size].mean if size in each else None for each in by_gpus] for size in sizes]
    unit, length = unit_of(value for row in values for value in row)
    rows = [[*start, *(number(_per(value, length)) for value in row)] for start, row in zip(first, values, strict=True)]
    yield table_text(f"{title} ({unit})", columns, rows, text_columns=0)


def _tenants(scenario: Scenario, results: Sequence[PolicyResult]) -> Iterator[str]:
    """Yield a table of tenants: all figures for one policy, completion times and GPUs for several."""
    first = results[0].result.summary.tenants
    if len(results) == 1:
        if first:
            title, priced = "Tenants (means over the simulated time)", has_prices(scenario.cluster)
            yield tenants_table(title, first, has_prices=priced, most=MAX_TENANTS)
        return
    found = [{each.tenant: each for each in result.result.summary.tenants} for result in results]
    shown = [each.tenant for each in first if all(each.tenant in tenants for tenants in found)][:MAX_TENANTS]
    if not shown:
        return
    unit, length = unit_of(tenants[name].mean_jct_seconds for tenants in found for name in shown)
    # Each policy has shares of its own, since they are those of the time in which a tenant has jobs.
    rows = [
        [
            name or "(none)",
            *(f"{number(_per(each[name].mean_jct_seconds, length))}, {each[name].gpu_share:.1%}" for each in found),
        ]
        for name in shown
    ]
    columns = [tables.Column("tenant", "name"), *(tables.Column(each.label) for each in results)]
    yield table_text(f"Mean completion time of tenants ({unit}), and their part of the GPUs", columns, rows)


def _per(value: float | None, length: float) -> float | None:
    return None if value is None else value / length


def _notes(result: PolicyResult) -> Iterator[str]:
    if not result.complete:
        yield f"{result.label}: interrupted after {time_text(result.ended_seconds)} of simulated time."
    if result.learner is not None:
        measured, observed = len(result.learner.measured), len(result.learner.observations)
        yield f"{result.label}: {measured:,} speeds were known at first, {observed:,} were observed."
    if text := result.result.summary.fallback_text:
        yield text
    yield from (f"{result.label}: {note}" for note in result.result.summary.exceeded_notes)
    left_out = reasons(result.result)
    for job_id, reason in list(left_out.items())[:MAX_JOBS]:
        yield f"{result.label}: job {job_id!r} has no GPUs at the end: {reason}"
    if len(left_out) > MAX_JOBS:
        yield f"{result.label}: ... and {len(left_out) - MAX_JOBS:,} more jobs"


def json_of(
    request: SimulateOptions, scenario: Scenario, results: Sequence[PolicyResult], not_run: Sequence[SimulationCase]
) -> str:
    """Return a JSON document with the report on the trace, the settings, and the result of each policy."""
    document: dict[str, Any] = {
        "trace": scenario.trace.report.to_dict(),
        "profile": scenario.profile.name,
        "settings": settings_of(request),
        "complete": not not_run and all(each.complete for each in results),
        "policies": [each.to_dict() for each in results],
    }
    if unused := {name: count for name, count in scenario.cluster.left_out.items() if count}:
        document["unused_gpus"] = unused
    return json_text(document | services_entry(scenario.services) | json_entry(scenario.estimates()))


def settings_of(request: SimulateOptions) -> dict[str, Any]:
    """Return the settings of the simulation as plain data."""
    return {
        **{name: getattr(request.rounds, name) for name in DECLARED["simulate"]},
        "round_seconds": None if request.events else request.rounds.round_seconds,
        **dict.fromkeys(request.rounds.of_sharing.keys() - request.rounds.model_fields_set),
        **{name: getattr(request.simulation, name) for name in (*DECLARED["simulation"], *READ_HERE)},
        **{name: getattr(request, name) for name in ("until_seconds", "extrapolate")},
        **(
            {}
            if request.services is None
            else {
                "services": str(request.services),
                "floors": [*request.floor],
                "above_floors": request.above_floors,
                "rates": request.rates,
            }
        ),
        "node_mtbf_hours": request.node_mtbf,
        "node_repair_hours": request.node_repair,
        "maintenance": list(request.maintenance),
        "measure_jobs": None if request.measure_jobs is None else list(request.measure_jobs),
    } | ({} if request.learn is None else {"learn": request.learn, "known": request.known})


def csv_of(results: Sequence[PolicyResult]) -> str:
    """Return a CSV table with a row for each policy and a column for each metric; times in seconds, shares as fractions of 1."""
    if not results:
        return csv_text(["policy", "complete"], [])
    metrics = list(metrics_of(results))
    sizes = _sizes([_delays(each) for each in results])
    names = [f"mean_queueing_{size}{'' if size == ELASTIC else '_gpus'}_seconds" for size in sizes]
    header = ["policy", "complete", *(metric.name for metric, _ in metrics), *names]
    rows = []
    for i, each in enumerate(results):
        by_gpus = _delays(each)
        queueing = [by_gpus[size].mean if size in by_gpus else None for size in sizes]
        rows.append([each.label, str(each.complete).lower(), *(values[i] for _, values in metrics), *queueing])
    return csv_text(header, rows)
