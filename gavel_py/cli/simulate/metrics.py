"""What is told of a simulation: one metric after the other, with its name in files, its words in tables, and its unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gavel_py.cli.output import number
from gavel_py.cli.simulate.played import Played
from gavel_py.cli.simulate.times import unit_of

__all__ = ["Metric", "metrics_of"]

Kind = Literal["count", "time", "clock", "share", "money", "number"]
Value = Callable[[Played], float | None]
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

    def says_something(self, all_played: Sequence[Played]) -> bool:
        """Say whether a table needs it."""
        values = [self.value(played) for played in all_played]
        return any(values) or (not self.optional and any(value is not None for value in values))

    def row(self, all_played: Sequence[Played]) -> list[str]:
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


def metrics_of(all_played: Sequence[Played]) -> list[Metric]:
    """Return the metrics of these simulations, which are of one trace on one cluster."""
    return [*_jobs(all_played), *_times(), *_usage(all_played), *_fairness(all_played), *_costs(), *_rounds()]


def _summary(name: str) -> Value:
    return lambda played: getattr(played.result.summary, name)


def _measured(played: Played) -> float:
    first, end = played.result.summary.measure_jobs or (0, 0)
    return end - first


def _outcome(name: str) -> Value:
    return lambda played: played.result.summary.outcomes[name]


def _jobs(all_played: Sequence[Played]) -> Iterator[Metric]:
    windows = [played.result.summary.measure_jobs for played in all_played]
    if any(windows):
        yield Metric("measured", "jobs measured", "count", _measured)
    yield Metric("finished", "jobs finished", "count", _outcome("finished"))
    yield Metric("failed", "jobs failed", "count", _outcome("failed"), optional=True)
    yield Metric("cancelled", "jobs cancelled", "count", _outcome("cancelled"), optional=True)
    yield Metric("active", "jobs still in the system", "count", _outcome("active"), optional=True)
    if any(windows):
        yield Metric("unfinished", "measured jobs not finished", "count", _summary("unfinished"))
        yield Metric(
            "ended_after_arrivals", "ended after the last arrival", "count", _summary("ended_after_arrivals"), optional=True
        )


def _distribution(field: str, name: str, label: str) -> Iterator[Metric]:
    def part_of(part: str) -> Value:
        return lambda played: getattr(getattr(played.result.summary, field), part)

    for part, words in PARTS.items():
        yield Metric(f"{name}_{part}_seconds", f"{label}, {words}", "time", part_of(part))


def _times() -> Iterator[Metric]:
    yield from _distribution("jct", "jct", "completion time")
    yield Metric("makespan_seconds", "makespan", "time", _summary("makespan_seconds"))
    yield from _distribution("queueing", "queueing", "queueing delay")


def _usage(all_played: Sequence[Played]) -> Iterator[Metric]:
    def used(name: str) -> Value:
        return lambda played: played.result.summary.usage[name]["utilization"]

    for name in all_played[0].result.summary.usage:
        yield Metric(f"{name}_utilization", f"{name} used", "share", used(name))


def _fairness(all_played: Sequence[Played]) -> Iterator[Metric]:
    if all(played.fairness is None for played in all_played):
        return

    def rho(part: str) -> Value:
        return lambda played: None if played.fairness is None else getattr(played.fairness, part)

    yield Metric("rho_mean", "ρ (against isolated), mean", "number", rho("mean"))
    yield Metric("rho_max", "ρ, largest", "number", rho("max"))
    yield Metric("rho_above_one", "ρ, jobs above 1", "share", rho("above_one"))


def _costs() -> Iterator[Metric]:
    def late(played: Played) -> Any:
        return played.result.summary.late if played.result.summary.with_deadline else None

    yield Metric("with_deadline", "finished jobs with a deadline", "count", _summary("with_deadline"), optional=True)
    yield Metric("late", "of these, late", "count", late, optional=True)
    yield Metric("cost", "cost of the GPUs held", "money", _summary("cost"), optional=True)
    yield Metric("starts", "starts", "count", _summary("starts"))
    yield Metric("preemptions", "preemptions", "count", _summary("preemptions"))
    yield Metric("failures", "failures of jobs", "count", _summary("failures"), optional=True)


def _rounds() -> Iterator[Metric]:
    def consolidated(played: Played) -> float | None:
        summary = played.result.summary
        return 1 - summary.spread_job_rounds / summary.job_rounds if summary.job_rounds else None

    def undelivered(played: Played) -> float | None:
        # Without rounds, an ordered policy promises nothing for a stated time.
        return played.result.summary.undelivered_share if played.in_rounds else None

    yield Metric("consolidated_share", "gangs on as few nodes as can be", "share", consolidated)
    yield Metric("undelivered_share", "undelivered of what was promised", "share", undelivered)
    yield Metric("rounds", "rounds", "count", _summary("rounds"))
    yield Metric("solver_seconds", "time of allocations", "clock", _summary("solver_seconds"))
    yield Metric("wall_seconds", "time in all", "clock", _summary("wall_seconds"))
