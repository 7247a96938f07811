"""The summary of a setting: every policy at every load with its numbers, the best of each marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gavel_py.report.estimates import Estimate
from gavel_py.report.measures import Measure, Unit, measure_of, short
from gavel_py.report.settings import Group, Setting

__all__ = ["Cell", "Column", "Row", "Summary", "summary_of"]

NOTHING = 1e-12
"""Of a mean: less is rounding."""


@dataclass(frozen=True)
class Column:
    """metric: its name; heading: with its unit."""

    metric: str
    heading: str


@dataclass(frozen=True)
class Cell:
    """value: "–" for none; interval: "± ..." or ""; difference: from the best, in %, "" for the best and where there is none."""

    value: str = "–"
    interval: str = ""
    difference: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A policy at one load. seeds: how many of them the means are over."""

    policy: str
    seeds: int
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Summary:
    """blocks: (heading, rows) for each load, heading "" where there is one load that nobody told."""

    columns: Sequence[Column]
    blocks: Sequence[tuple[str, Sequence[Row]]]


def summary_of(setting: Setting) -> Summary:
    """Return the summary of a setting; the best is marked among the policies of one load, where there are several."""
    units = {metric: _unit(setting, metric) for metric in setting.metrics}
    columns = [Column(metric, unit.heading(measure_of(metric).title)) for metric, unit in units.items()]
    blocks = []
    for load in setting.loads:
        groups = setting.at(load)
        by_metric = [list(_cells(groups, metric, unit)) for metric, unit in units.items()]
        rows = [Row(group.policy, len(group.seeds), [cells[place] for cells in by_metric]) for place, group in enumerate(groups)]
        blocks.append(("" if load is None else f"load {short(load)} jobs/h", rows))
    return Summary(columns, blocks)


def _unit(setting: Setting, metric: str) -> Unit:
    found = (group.estimate(metric) for group in setting.groups)
    return measure_of(metric).unit(value.mean for value in found if value is not None)


def _cells(groups: Sequence[Group], metric: str, unit: Unit) -> Iterator[Cell]:
    found = [group.estimate(metric) for group in groups]
    best = _best(found, measure_of(metric))
    for value in found:
        if value is None:
            yield Cell()
            continue
        interval = "" if value.half_width is None else f"± {short(_half_width(value) / unit.size)}"
        is_best = best is not None and value.mean == best
        yield Cell(short(value.mean / unit.size), interval, _difference(value.mean, best), is_best)


def _half_width(value: Estimate) -> float:
    """The half width, 0 where it is rounding."""
    half_width = value.half_width or 0.0
    return half_width if half_width > NOTHING * abs(value.mean) else 0.0


def _best(found: Sequence[Estimate | None], measure: Measure) -> float | None:
    """The best of several means, None where there is nothing to be best among, or all are equal."""
    means = [value.mean for value in found if value is not None]
    if measure.better is None or len(set(means)) < 2:
        return None
    return min(means) if measure.better == "less" else max(means)


def _difference(mean: float, best: float | None) -> str:
    """How far from the best, in % of it.

    >>> _difference(1.5, 1.0), _difference(0.8, 1.0), _difference(1.0, 1.0), _difference(1.0, 0.0)
    ('+50 %', '−20 %', '', '')
    """
    if not best or mean == best:
        return ""
    percent = 100 * (mean - best) / abs(best)
    text = f"{abs(percent):,.0f}" if abs(percent) >= 10 else f"{abs(percent):.2g}"
    return f"{'+' if percent > 0 else '−'}{text} %"
