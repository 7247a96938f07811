"""Numbers and texts as a report shows them: means over seeds with their confidence intervals, units, headings, labels.

`estimate`: a mean and how far it can be trusted; `measure_of`: heading, unit, and whether less or more of a metric is better;
`clean`: text from outside (names of policies, traces and jobs), which may hold anything; `quantiles`, `interval_means`, `every`: long rows
of numbers made short, so that a report stays small however long its runs are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

FloatArray = NDArray[np.float64]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """mean: over `count` seeds; half_width: the confidence interval is mean ± half_width, None where there is one seed."""

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """The lower end of the interval, the mean where there is none."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval, the mean where there is none."""
        return self.mean + (self.half_width or 0.0)

    def over(self, size: float) -> Estimate:
        """Return the same in units of this size."""
        return Estimate(self.mean / size, None if self.half_width is None else self.half_width / size, self.count)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return mean and confidence interval of one number per seed; None where there is no finite number.

    Student's t: half_width = t_{(1 + c)/2, n − 1} · s / √n, with s the standard deviation of the n numbers (n − 1 below) and c the
    `CONFIDENCE`. It holds for means of numbers that are about normal, which means over many jobs are.

    >>> made = estimate([1.0, 2.0, 3.0])
    >>> made.mean, round(made.half_width, 4), made.count
    (2.0, 2.4841, 3)
    """
    numbers = np.array([value for value in values if value is not None and math.isfinite(value)], dtype=float)
    if not len(numbers):
        return None
    if len(numbers) == 1:
        return Estimate(float(numbers[0]), None, 1)
    quantile = float(stdtrit(len(numbers) - 1, (1 + CONFIDENCE) / 2))
    return Estimate(float(numbers.mean()), quantile * float(numbers.std(ddof=1)) / math.sqrt(len(numbers)), len(numbers))


UNKNOWN = "–"
"""What stands for a label that a run does not have."""


def clean(text: str) -> str:
    """Return the text with a sign for each character that cannot be shown: control characters, and those that turn the line round.

    >>> clean("a\\x00b")
    'a\N{REPLACEMENT CHARACTER}b'
    """
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def label_text(value: object) -> str:
    """Return a label as it is shown; whole numbers without a fraction.

    >>> label_text(4.0), label_text("fifo"), label_text(None)
    ('4', 'fifo', '–')
    """
    if value is None or value == "":
        return UNKNOWN
    return f"{value:.10g}" if isinstance(value, float) else clean(str(value))


def shortened(text: str, most: int) -> str:
    """Return a text without its middle, if it is longer than `most` characters.

    >>> shortened("max_min_fairness", 9)
    'max_…ness'
    """
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


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


def quantiles(values: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
    """Return values and the part of all that is no larger than each: all of them, or `most` with the smallest and the largest.

    >>> quantiles(np.array([3.0, 1.0, 2.0, 4.0]), 2)
    (array([1., 4.]), array([0.25, 1.  ]))
    """
    ordered = np.sort(values)
    count = len(ordered)
    at = np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round().astype(int))
    return ordered[at], (at + 1) / count


def interval_limits(seconds: FloatArray, most: int) -> FloatArray:
    """Return the limits of at most so many interval_limits: those given, or even ones from the first to the last."""
    return seconds if len(seconds) - 1 <= most else np.linspace(seconds[0], seconds[-1], most + 1)


def interval_means(seconds: FloatArray, values: FloatArray, limits: FloatArray) -> FloatArray:
    """Return the mean over time of a step function in each stretch between `limits`, NaN where it is not known at any time.

    seconds: (T + 1,) where its steps begin and end; values: (T,), NaN where nothing is known, which then does not count.

    >>> interval_means(np.array([0.0, 1.0, 3.0, 4.0]), np.array([6.0, np.nan, 2.0]), np.array([0.0, 2.0, 4.0]))
    array([6., 2.])
    """
    known = np.isfinite(values)
    lengths = np.diff(seconds)
    area: FloatArray = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0) * lengths)])
    length = np.concatenate([[0.0], np.cumsum(np.where(known, lengths, 0.0))])
    areas, there = (np.diff(np.interp(limits, seconds, total)) for total in (area, length))
    means: FloatArray = np.divide(areas, there, out=np.full(len(there), np.nan), where=there > 0)
    return means


def every(rows: Sequence[Sequence[str]], most: int) -> list[Sequence[str]]:
    """Return all rows, or so many of them at even steps, the first and the last among them."""
    return list(rows) if len(rows) <= most else [rows[round(at)] for at in np.linspace(0, len(rows) - 1, most)]


def at_load(load: float | None) -> str:
    """Return the words that tell a load, after a title.

    >>> at_load(4.0), at_load(None)
    (', load 4 jobs/h', '')
    """
    return "" if load is None else f", load {short(load)} jobs/h"


def interval_text(value: Estimate, size: float = 1.0) -> str:
    """Return a confidence interval, in units of this size; "–" where there is one seed."""
    return "–" if value.half_width is None else f"{short(value.low / size)} to {short(value.high / size)}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number of things, of which more than one have an "s", unless `many` says how they are called.

    >>> counted(1, "round"), counted(2000, "round"), counted(2, "policy", "policies")
    ('1 round', '2,000 rounds', '2 policies')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
