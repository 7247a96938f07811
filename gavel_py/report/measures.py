"""What is shown of each metric: its heading, its unit, and whether less or more of it is better."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gavel_py.report.safe_text import clean

__all__ = ["MEASURES", "Measure", "Unit", "measure_of", "short"]

Kind = Literal["time", "share", "number"]
Better = Literal["less", "more"]

TIMES = (("s", 1.0, 300.0), ("min", 60.0, 7200.0), ("h", 3600.0, 72 * 3600.0), ("days", 86400.0, math.inf))
"""Name, length in seconds, and the times that are told in it, up to this many seconds."""


@dataclass(frozen=True, slots=True)
class Unit:
    """name: as it stands in headings, "" for none; size: what one of it is in the metric's own unit."""

    name: str
    size: float

    def heading(self, title: str) -> str:
        """Return the title with the unit."""
        return f"{title}, {self.name}" if self.name else title


@dataclass(frozen=True, slots=True)
class Measure:
    """title: in a few words; better: None where numbers of different policies cannot be compared."""

    title: str
    kind: Kind = "number"
    better: Better | None = "less"

    def unit(self, values: Iterable[float | None]) -> Unit:
        """Return the unit in which the largest of these values is easy to read."""
        if self.kind == "share":
            return Unit("%", 0.01)
        if self.kind == "number":
            return Unit("", 1.0)
        largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
        name, size, _ = next(unit for unit in TIMES if largest <= unit[2])
        return Unit(name, size)


MEASURES = {
    "mean_jct_seconds": Measure("mean completion time", "time"),
    "median_jct_seconds": Measure("median completion time", "time"),
    "p99_jct_seconds": Measure("99 % completion time", "time"),
    "makespan_seconds": Measure("makespan", "time"),
    "mean_queueing_seconds": Measure("mean queueing", "time"),
    "finish_time_fairness": Measure("finish-time fairness ρ"),
    "utilization": Measure("used GPU time", "share", "more"),
    "undelivered_share": Measure("promised, not delivered", "share"),
    "cost": Measure("cost"),
    "finished": Measure("finished jobs", better="more"),
    "unfinished": Measure("measured jobs not finished"),
    "ended_after_arrivals": Measure("ended after the last arrival", better=None),
    "failed": Measure("failed jobs"),
    "cancelled": Measure("cancelled jobs"),
    "active": Measure("jobs left at the end"),
    "late": Measure("late jobs"),
    "preemptions": Measure("preemptions"),
    "starts": Measure("starts"),
    "rounds": Measure("rounds", better=None),
    "solver_seconds": Measure("time for allocations", "time"),
    "wall_seconds": Measure("time of the run", "time"),
    "cpu_seconds": Measure("processor time", "time"),
    "objective": Measure("objective", better=None),
    "gap": Measure("gap"),
    "total_normalized_throughput": Measure("total v", better="more"),
    "least_normalized_throughput": Measure("least v", better="more"),
    "excluded": Measure("jobs left out"),
}


def measure_of(name: str) -> Measure:
    """Return how a metric is shown; of one that is not known nobody can say what is better."""
    return MEASURES.get(name) or Measure(clean(name.replace("_", " ")), better=None)


def short(value: float | None) -> str:
    """Return a number in three digits or more, without powers of ten where it can be told without; "–" for none.

    >>> short(1234.5), short(0.01234), short(12.0), short(2e-9), short(None)
    ('1,234', '0.0123', '12', '2e-09', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    places = 2 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
