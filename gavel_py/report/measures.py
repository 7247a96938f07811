"""Numbers and labels as reports show them: means and differences over seeds with intervals, units, headings, reduced series."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.special import stdtr, stdtrit

from gavel_py.io.tabular import Quantity
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import FLOAT_ROUNDING

Value = TypeVar("Value")

CONFIDENCE = 0.95

MIN_SEEDS = 3
"""Fewer seeds have no intervals, and nothing is tested: with one degree of freedom an interval is 13 standard errors wide."""


@dataclass(frozen=True, slots=True)
class SampleMean:
    """A mean over `count` seeds with the confidence interval mean ± half_width, which is None below `MIN_SEEDS` seeds."""

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """Lower end of the interval, or the mean if there is no interval."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval, or the mean if there is no interval."""
        return self.mean + (self.half_width or 0.0)

    def over(self, size: float) -> SampleMean:
        """Return the estimate divided by `size`, to convert units."""
        return SampleMean(self.mean / size, None if self.half_width is None else self.half_width / size, self.count)


def estimate(values: Iterable[float | None]) -> SampleMean | None:
    """Return the mean of one number per seed with its confidence interval, or None without a finite number.

    Student's t: half_width = t_{(1 + c)/2, n − 1} · s / √n with the sample standard deviation s of the n numbers and confidence
    c = `CONFIDENCE`. It assumes roughly normal numbers, which means over many jobs are.

    >>> made = estimate([1.0, 2.0, 3.0])
    >>> made.mean, round(made.half_width, 4), made.count
    (2.0, 2.4841, 3)
    """
    numbers = np.array([value for value in values if value is not None and math.isfinite(value)], dtype=float)
    if not len(numbers):
        return None
    if len(numbers) < MIN_SEEDS:
        return SampleMean(float(numbers.mean()), None, len(numbers))
    quantile = float(stdtrit(len(numbers) - 1, (1 + CONFIDENCE) / 2))
    return SampleMean(float(numbers.mean()), quantile * float(numbers.std(ddof=1)) / math.sqrt(len(numbers)), len(numbers))


@dataclass(frozen=True)
class Paired:
    """The difference of two policies over the seeds that both have run on.

    Attributes:
        other: The policy that is compared with the best one.
        seeds: Number of common seeds; 0 if there are none, and then the means are compared.
        base: Mean of the best policy.
        difference: Mean of other − best.
        half_width: The 95 % interval of the difference is difference ± half_width; None if nothing is tested.
        p_value: Of the hypothesis that the mean difference is 0; None below `MIN_SEEDS` seeds, and if both policies have repeated
            one run, which shows nothing of others.
    """

    other: str
    seeds: int
    base: float
    difference: float
    half_width: float | None = None
    p_value: float | None = None

    @property
    def is_separated(self) -> bool:
        """Whether the seeds show a difference."""
        return self.p_value is not None and self.p_value <= 1 - CONFIDENCE

    @property
    def relative(self) -> float:
        """The difference relative to the best policy; infinite if that one has 0."""
        return self.difference / abs(self.base) if self.base else math.copysign(math.inf, self.difference)


def paired(other: str, best_values: Mapping[str, float], other_values: Mapping[str, float]) -> Paired:
    """Compare the values {seed: value} of a policy with those of the best one by a two-sided paired t-test.

    With the mean d and the sample standard deviation s of the n differences, t = d √n / s has n − 1 degrees of freedom. If all
    differences are equal, there is nothing random about them: p is 0, or 1 for a difference of 0.

    >>> made = paired("fifo", {"0": 1.0, "1": 2.0, "2": 3.0}, {"0": 2.0, "1": 4.0, "2": 4.0, "3": 9.0})
    >>> made.seeds, round(made.difference, 3), round(made.p_value, 3)
    (3, 1.333, 0.057)
    """
    common = sorted(best_values.keys() & other_values.keys())
    if not common:
        means = [float(np.mean(list(values.values()))) for values in (best_values, other_values)]
        return Paired(other, 0, means[0], means[1] - means[0])
    best, others = (np.array([values[seed] for seed in common]) for values in (best_values, other_values))
    gaps = others - best
    size = float(np.maximum(np.abs(best), np.abs(others)).max())
    gaps[np.abs(gaps) <= FLOAT_ROUNDING * size] = 0.0
    made = Paired(other, len(gaps), float(best.mean()), float(gaps.mean()))
    if len(gaps) < MIN_SEEDS:
        return made
    error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    if error <= FLOAT_ROUNDING * size:
        return replace(made, half_width=0.0, p_value=0.0 if made.difference else 1.0)
    freedom = len(gaps) - 1
    half_width = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return replace(made, half_width=half_width, p_value=2 * float(stdtr(freedom, -abs(made.difference) / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's step-down method, in the same order.

    The i-th smallest of m becomes max_{k ≤ i} (m − k + 1) p_(k), at most 1 (Holm 1979).

    >>> holm([0.03, 0.01, 0.04])
    [0.06, 0.03, 0.06]
    """
    values = np.array(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return [float(value) for value in corrected]


UNKNOWN = "–"
"""Shown for a label that a run does not have."""


def clean(text: str) -> str:
    """Return the text with control characters and direction marks replaced by U+FFFD.

    >>> clean("a\\x00b")
    'a\N{REPLACEMENT CHARACTER}b'
    """
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def label_text(value: object) -> str:
    """Return a label as text; whole numbers have no fraction.

    >>> label_text(4.0), label_text("fifo"), label_text(None)
    ('4', 'fifo', '–')
    """
    if value is None or value == "":
        return UNKNOWN
    return f"{value:.10g}" if isinstance(value, float) else clean(str(value))


def shortened(text: str, limit: int) -> str:
    """Return the text, with its middle cut out if it has more than `limit` characters.

    >>> shortened("max_min_fairness", 9)
    'max_…ness'
    """
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}…{text[len(text) - (limit - head - 1) :]}"


TIMES = (("s", 1.0, 300.0), ("min", 60.0, 7200.0), ("h", 3600.0, 72 * 3600.0), ("days", 86400.0, math.inf))
"""(name, seconds, largest value in seconds that is shown in this unit)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of display. name: shown in headings, "" for none; size: in the unit of the metric."""

    name: str
    size: float

    def heading(self, title: str) -> str:
        """Return a title with the unit appended."""
        return f"{title}, {self.name}" if self.name else title

    def difference(self, amount: float) -> str:
        """Return a difference in this unit, with its sign."""
        return f"{'−' if amount < 0 else '+'}{short(abs(amount))}{f' {self.name}' if self.name else ''}"


def unit_of(quantity: Quantity, values: Iterable[float | None]) -> Unit:
    """Return a unit in which the largest of the values is easy to read."""
    if quantity == "share":
        return Unit("%", 0.01)
    if quantity not in ("time", "clock"):
        return Unit("price units" if quantity == "money" else "", 1.0)
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    name, size, _ = next(unit for unit in TIMES if largest <= unit[2])
    return Unit(name, size)


def short(value: float | None) -> str:
    """Return a number with three significant digits, in scientific notation only below 1e-4 and from 1e9 on; "–" for None.

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


def quantiles(values: Floats, limit: int) -> tuple[Floats, Floats]:
    """Return (points, shares) of the empirical distribution function: at most `limit` values, and the share of all values ≤ each.

    >>> quantiles(np.array([3.0, 1.0, 2.0, 4.0]), 2)
    (array([1., 4.]), array([0.25, 1.  ]))
    """
    ordered = np.sort(values)
    count = len(ordered)
    at = np.arange(count) if count <= limit else np.unique(np.linspace(0, count - 1, limit).round().astype(int))
    return ordered[at], (at + 1) / count


def interval_limits(seconds: Floats, limit: int) -> Floats:
    """Return the limits of at most `limit` intervals: `seconds` itself, or an even grid from its first to its last entry."""
    return seconds if len(seconds) - 1 <= limit else np.linspace(seconds[0], seconds[-1], limit + 1)


def interval_means(seconds: Floats, values: Floats, limits: Floats) -> Floats:
    """Return the mean over time of a step function in each interval between `limits`; NaN if it is unknown throughout.

    seconds: (T + 1,) limits of its steps; values: (T,), NaN where unknown, which is left out of the mean.

    >>> interval_means(np.array([0.0, 1.0, 3.0, 4.0]), np.array([6.0, np.nan, 2.0]), np.array([0.0, 2.0, 4.0]))
    array([6., 2.])
    """
    known = np.isfinite(values)
    lengths = np.diff(seconds)
    area: Floats = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0) * lengths)])
    length = np.concatenate([[0.0], np.cumsum(np.where(known, lengths, 0.0))])
    areas, known_seconds = (np.diff(np.interp(limits, seconds, total)) for total in (area, length))
    means: Floats = np.divide(areas, known_seconds, out=np.full(len(areas), np.nan), where=known_seconds > 0)
    return means


def sampled_rows(rows: Sequence[Sequence[str]], limit: int) -> list[Sequence[str]]:
    """Return at most `limit` rows at even steps, including the first and the last."""
    return list(rows) if len(rows) <= limit else [rows[round(at)] for at in np.linspace(0, len(rows) - 1, limit)]


def at_load(load: float | None) -> str:
    """Return the suffix of a title for charts of one load.

    >>> at_load(4.0), at_load(None)
    (', load 4 jobs/h', '')
    """
    return "" if load is None else f", load {short(load)} jobs/h"


def at_loads(loads: Sequence[float | None], all_loads: Sequence[float | None]) -> str:
    """Return " at ..." for some of all loads, both ascending, with three or more neighbours as a range; "" if there is only one.

    >>> at_loads([1.0, 2.0, 4.0, 16.0], [1.0, 2.0, 4.0, 8.0, 16.0]), at_loads([1.0, 2.0], [1.0, 2.0]), at_loads([1.0], [1.0])
    (' at 1 to 4 and 16 jobs/h', ' at every load (1 and 2 jobs/h)', '')
    """
    if len(all_loads) < 2:
        return ""
    runs: list[list[float]] = []
    numbers = [load for load in all_loads if load is not None]
    for at, load in enumerate(numbers):
        if load in loads and at and numbers[at - 1] in loads:
            runs[-1].append(load)
        elif load in loads:
            runs.append([load])
    texts = [text for run in runs for text in ([f"{short(run[0])} to {short(run[-1])}"] if len(run) > 2 else map(short, run))]
    text = joined([*([f"{joined(texts)} jobs/h"] if texts else []), *(["an unknown load"] if None in loads else [])])
    return f" at every load ({text})" if len(loads) == len(all_loads) else f" at {text}"


def joined(texts: Sequence[str]) -> str:
    """Return texts as a list in a sentence.

    >>> joined(["a"]), joined(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def ends_of(values: Sequence[Value]) -> list[Value]:
    """Return the first and the last of some values, or the only one."""
    return [values[0], values[-1]] if len(values) > 1 else list(values)


def relative_text(part: float) -> str:
    """Return a relative difference as text: in percent, or from ten times the base on as a multiple of it.

    >>> relative_text(0.5), relative_text(-0.2), relative_text(11.0), relative_text(0.00001), relative_text(0.0)
    ('+50 %', '−20 %', '12 ×', '+<0.01 %', '±0 %')
    """
    if part >= 9:
        return f"{short(1 + part)} ×"
    size = 100 * abs(part)
    text = "<0.01" if 0 < size < 0.01 else f"{size:.0f}" if size >= 10 else f"{size:.2g}"
    return f"{'+' if part > 0 else '−' if part < 0 else '±'}{text} %"


def interval_text(value: SampleMean, size: float = 1.0) -> str:
    """Return a confidence interval in units of `size`, or "–" if there is none."""
    return "–" if value.half_width is None else f"{short(value.low / size)} to {short(value.high / size)}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun in singular or plural.

    >>> counted(1, "round"), counted(2000, "round"), counted(2, "policy", "policies")
    ('1 round', '2,000 rounds', '2 policies')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
