"""The summary table of a setting: every policy at every load, with the best values marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gavel_py.report.measures import Unit, measure_of, short
from gavel_py.report.settings import Group, Setting

ROUNDING = 1e-12
"""Relative to the mean; smaller half widths are rounding errors."""


@dataclass(frozen=True)
class Column:
    """A metric and its heading with the unit."""

    metric: str
    heading: str


@dataclass(frozen=True)
class Cell:
    """Texts of a value. interval: "± ..." or ""; difference: from the best in %, "" for the best and if there is no best."""

    value: str = "–"
    interval: str = ""
    difference: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A policy at one load. seeds: number of seeds behind the means."""

    policy: str
    seeds: int
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Summary:
    """The table of a setting. blocks: (heading, rows) of each load; the heading of an unknown load is ""."""

    columns: Sequence[Column]
    blocks: Sequence[tuple[str, Sequence[Row]]]


def summary_of(setting: Setting) -> Summary:
    """Return the summary of a setting; the best value of a metric is marked among the policies of each load."""
    units = {}
    for metric in setting.metrics:
        estimates = [group.estimate(metric) for group in setting.groups]
        units[metric] = measure_of(metric).unit(value.mean for value in estimates if value is not None)
    columns = [Column(metric, unit.heading(measure_of(metric).title)) for metric, unit in units.items()]
    blocks = []
    for load in setting.loads:
        groups = setting.at(load)
        by_metric = [list(_cells(groups, metric, unit)) for metric, unit in units.items()]
        rows = [Row(group.policy, len(group.seeds), [cells[row] for cells in by_metric]) for row, group in enumerate(groups)]
        blocks.append(("" if load is None else f"load {short(load)} jobs/h", rows))
    return Summary(columns, blocks)


def _cells(groups: Sequence[Group], metric: str, unit: Unit) -> Iterator[Cell]:
    estimates = [group.estimate(metric) for group in groups]
    means, better = [value.mean for value in estimates if value is not None], measure_of(metric).better
    is_ranked = better is not None and len(set(means)) > 1
    best = (min(means) if better == "less" else max(means)) if is_ranked else None
    for value in estimates:
        if value is None:
            yield Cell()
            continue
        half_width = value.half_width or 0.0
        half_width = half_width if half_width > ROUNDING * abs(value.mean) else 0.0
        interval = "" if value.half_width is None else f"± {short(half_width / unit.size)}"
        yield Cell(short(value.mean / unit.size), interval, _difference(value.mean, best), value.mean == best)


def _difference(mean: float, best: float | None) -> str:
    """Return the difference from the best mean in percent of it.

    >>> _difference(1.5, 1.0), _difference(0.8, 1.0), _difference(1.0, 1.0), _difference(1.0, 0.0)
    ('+50 %', '−20 %', '', '')
    """
    if not best or mean == best:
        return ""
    percent = 100 * (mean - best) / abs(best)
    text = f"{abs(percent):,.0f}" if abs(percent) >= 10 else f"{abs(percent):.2g}"
    return f"{'+' if percent > 0 else '−'}{text} %"
