"""Which policies no other one beats in two numbers at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gavel_py.report.cast import Cast
from gavel_py.report.charts import Axis, Chart, Point, Points, Table
from gavel_py.report.measures import measure_of, short
from gavel_py.report.wording import at_load

__all__ = ["not_beaten", "tradeoff_charts"]

AGAINST = ("makespan_seconds", "cost", "finish_time_fairness")
"""What is drawn against the mean completion time; less of each is better."""


def tradeoff_charts(cast: Cast) -> Iterator[Chart]:
    """Yield the mean completion time against each other number that at least two policies have."""
    for metric in AGAINST:
        yield from _chart(cast, "mean_jct_seconds", metric)


def not_beaten(values: Sequence[tuple[float, float]]) -> list[bool]:
    """Say of each whether no other is at least as good in both numbers and better in one; less is better.

    >>> not_beaten([(1, 4), (2, 2), (3, 2), (4, 1)])
    [True, True, False, True]
    """
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in values) for a, b in values]


def _chart(cast: Cast, across: str, up: str) -> Iterator[Chart]:
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
