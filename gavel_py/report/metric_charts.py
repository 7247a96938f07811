"""How completion times and fairness are spread over jobs: the part of all jobs that stays below each value.

Charts of numbers that a run comes to: mean completion time against load, bars of one number.

Which policies no other one beats in two numbers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.report.charts import Axis, Bar, Bars, Cast, Chart, Curve, Lines, Panel, Point, Points, Table
from gavel_py.report.measures import Estimate, Measure, Unit, at_load, interval_text, measure_of, of_count, quantiles, short
from gavel_py.report.runs import Run
from gavel_py.report.settings import Group

__all__ = ["distribution_charts", "load_charts", "not_beaten", "tradeoff_charts"]

POINTS = 150

PARTS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

"""Of all jobs, in the table."""

WIDE = 20.0

"""Values that differ by more than this factor are drawn on an axis of powers of ten."""


def distribution_charts(cast: Cast) -> Iterator[Chart]:
    """Yield one chart of completion times and one of finish-time fairness, where there are any."""
    yield from _distribution_chart(
        cast, "completion-times", "Completion times", Measure("completion time", "time"), lambda run: run.jct_seconds, None
    )
    yield from _distribution_chart(
        cast,
        "finish-time-fairness",
        "Finish-time fairness ρ",
        Measure("ρ, completion time over that under isolated"),
        lambda run: run.fairness,
        1.0,
    )


def _distribution_chart(
    cast: Cast, name: str, title: str, measure: Measure, of_run: Callable[[Run], NDArray[np.float64]], mark: float | None
) -> Iterator[Chart]:
    found = {group.policy: values for group in cast.groups if len(values := _together(group, of_run))}
    if not found:
        return
    medians_high = [float(np.quantile(values, 0.9)) for values in found.values()]
    unit = measure.unit(medians_high)
    curves = [
        Curve(policy, points / unit.size, parts, cast.styles[policy])
        for policy, values in found.items()
        for points, parts in [quantiles(values, POINTS)]
    ]
    heading = unit.heading(measure.title)
    every = np.concatenate(list(found.values()))
    is_wide = bool(every.min() > 0 and every.max() / every.min() > WIDE)
    rows = [[f"{part:.0%}", *(short(float(np.quantile(values, part)) / unit.size) for values in found.values())] for part in PARTS]
    note = f"{heading}; of {', '.join(f'{len(values):,} jobs ({policy})' for policy, values in found.items())}."
    told = f"The part of all jobs{', those of all seeds together,' if _has_seeds(cast) else ''} whose value is no larger than x."
    if mark is not None:
        told += " At the dotted line a job is as well off as with its own part of the cluster; left of it, better."
    y = Axis("part of the jobs", low=0.0, high=1.02)
    drawing = Lines([Panel(curves, y, mark=mark)], Axis(heading, log=is_wide), steps=True)
    yield Chart(
        name, title + at_load(cast.shown_load), told, drawing, Table(["part of the jobs", *found], rows, note, text_columns=0)
    )


def _has_seeds(cast: Cast) -> bool:
    return any(len(group.runs) > 1 for group in cast.groups)


def _together(group: Group, of_run: Callable[[Run], NDArray[np.float64]]) -> NDArray[np.float64]:
    """The finite values of all runs of a group."""
    values: NDArray[np.float64] = np.concatenate([np.asarray(of_run(run), dtype=float) for run in group.runs])
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    return finite


BY_BARS = ("mean_jct_seconds", "makespan_seconds")

CUT = " What leaves the frame is in the numbers."


def load_charts(cast: Cast) -> Iterator[Chart]:
    """Yield the mean completion time against the load, or bars of it where there is one load; and bars of other numbers."""
    loads = [load for load in cast.setting.loads if load is not None]
    if len(loads) > 1:
        yield from _against_load(cast, "mean_jct_seconds")
    for metric in BY_BARS[1 if len(loads) > 1 else 0 :]:
        yield from _bars(cast, metric)


def _against_load(cast: Cast, metric: str) -> Iterator[Chart]:
    found: dict[str, list[tuple[float, Estimate]]] = {}
    for group in cast.setting.groups:
        value = group.estimate(metric)
        if group.load is not None and value is not None and group.policy in cast.styles:
            found.setdefault(group.policy, []).append((group.load, value))
    values = [value for points in found.values() for _, value in points]
    if not values:
        return
    measure = measure_of(metric)
    unit = measure.unit(value.mean for value in values)
    curves = [_curve(policy, points, unit, cast.styles[policy]) for policy, points in found.items()]
    title = f"{measure.title.capitalize()} against load"
    most = max(value.mean for value in values)
    y = Axis(unit.heading(measure.title), low=0.0, high=1.05 * min(2 * most, max(value.high for value in values)) / unit.size)
    rows = [
        [policy, short(load), short(value.mean / unit.size), interval_text(value, unit.size), str(value.count)]
        for policy, points in found.items()
        for load, value in points
    ]
    columns = ["policy", "load, jobs/h", y.title, "95 % interval", "seeds"]
    told = (
        f"One curve for each of {of_count(len(curves), 'policy', 'policies')}, the band around it is the interval over seeds.{CUT}"
    )
    drawing = Lines([Panel(curves, y)], Axis("load, jobs per hour"), dots=True)
    yield Chart("completion-time-against-load", title, told, drawing, Table(columns, rows))


def _curve(policy: str, points: Sequence[tuple[float, Estimate]], unit: Unit, style: int) -> Curve:
    x, y, low, high = np.array([(load, value.mean, value.low, value.high) for load, value in points]).T
    return Curve(policy, x, y / unit.size, style, low / unit.size, high / unit.size)


def _bars(cast: Cast, metric: str) -> Iterator[Chart]:
    found = [(group.policy, value) for group in cast.groups if (value := group.estimate(metric)) is not None]
    if not found:
        return
    measure = measure_of(metric)
    unit = measure.unit(value.mean for _, value in found)
    scaled = [(policy, value.over(unit.size)) for policy, value in found]
    heading = unit.heading(measure.title)
    rows = [[policy, short(value.mean), interval_text(value), str(value.count)] for policy, value in scaled]
    whiskers = (
        f" The whiskers are 95 % intervals over seeds.{CUT}" if any(value.half_width is not None for _, value in scaled) else ""
    )
    yield Chart(
        name=metric.removesuffix("_seconds").replace("_", "-"),
        title=measure.title.capitalize() + at_load(cast.shown_load),
        told=f"One bar for each of {of_count(len(rows), 'policy', 'policies')}.{whiskers}",
        drawing=Bars([Bar(policy, value, cast.styles[policy]) for policy, value in scaled], Axis(heading)),
        table=Table(["policy", heading, "95 % interval", "seeds"], rows),
    )


AGAINST = ("makespan_seconds", "cost", "finish_time_fairness")

"""What is drawn against the mean completion time; less of each is better."""


def tradeoff_charts(cast: Cast) -> Iterator[Chart]:
    """Yield the mean completion time against each other number that at least two policies have."""
    for metric in AGAINST:
        yield from _tradeoff_chart(cast, "mean_jct_seconds", metric)


def not_beaten(values: Sequence[tuple[float, float]]) -> list[bool]:
    """Say of each whether no other is at least as good in both numbers and better in one; less is better.

    >>> not_beaten([(1, 4), (2, 2), (3, 2), (4, 1)])
    [True, True, False, True]
    """
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in values) for a, b in values]


def _tradeoff_chart(cast: Cast, across: str, up: str) -> Iterator[Chart]:
    found = [
        (group.policy, x, y)
        for group in cast.groups
        if (x := group.estimate(across)) is not None and (y := group.estimate(up)) is not None
    ]
    if len(found) < 2:
        return
    best = not_beaten([(x.mean, y.mean) for _, x, y in found])
    measures = [measure_of(metric) for metric in (across, up)]
    units = [measures[0].unit(x.mean for _, x, _ in found), measures[1].unit(y.mean for _, _, y in found)]
    headings = [unit.heading(measure.title) for unit, measure in zip(units, measures, strict=True)]
    points = [
        Point(policy, x.over(units[0].size), y.over(units[1].size), is_best, cast.styles[policy])
        for (policy, x, y), is_best in zip(found, best, strict=True)
    ]
    rows = [[p.label, short(p.x.mean), short(p.y.mean), "not beaten" if p.best else "beaten"] for p in points]
    told = (
        "Left and down is better. Filled and joined: no other policy drawn is as good in both and better in one. "
        "The means are compared, whatever their intervals, which the whiskers show as far as they fit."
    )
    name = f"completion-time-and-{up.removesuffix('_seconds').replace('_', '-')}"
    title = f"{measures[0].title.capitalize()} and {measures[1].title}{at_load(cast.shown_load)}"
    drawing = Points(points, Axis(headings[0]), Axis(headings[1]))
    yield Chart(name, title, told, drawing, Table(["policy", *headings, ""], rows))
