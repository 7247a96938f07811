"""Charts of numbers that a run comes to: mean completion time against load, bars of one number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gavel_py.report.cast import Cast
from gavel_py.report.charts import Axis, Bar, Bars, Chart, Curve, Lines, Panel, Table
from gavel_py.report.estimates import Estimate
from gavel_py.report.measures import Unit, measure_of, short
from gavel_py.report.wording import at_load, interval_text, of_count

__all__ = ["load_charts"]

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
