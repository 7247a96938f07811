"""Policies by two numbers: those that no other one beats in both are filled and joined."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gavel_py.report.charts import Point, Points
from gavel_py.report.figures.frame import LINE_OF_TEXT as LINE
from gavel_py.report.figures.frame import legend_rows, limits_of, new_figure, put_legend, set_axis, tone
from gavel_py.report.tones import LIGHT, MARKERS, MOST_STYLES

__all__ = ["points_figure"]

HEIGHT = 235.0


def points_figure(points: Points) -> Figure:
    """Draw each policy as a point with whiskers for its intervals."""
    labels = [f"{point.label}{'' if point.best else ' (beaten)'}" for point in points.points]
    figure = new_figure(HEIGHT + LINE * legend_rows(labels))
    axes = figure.subplots()
    front = sorted((point for point in points.points if point.best), key=lambda point: (point.x.mean, -point.y.mean))
    xs, ys = [point.x.mean for point in front], [point.y.mean for point in front]
    axes.plot(xs, ys, drawstyle="steps-post", color=LIGHT["muted"], linewidth=1, linestyle="dashed")
    for point in points.points:
        _draw_point(axes, point)
    for which, axis, values in (("x", points.x, [p.x for p in points.points]), ("y", points.y, [p.y for p in points.points])):
        low, high = limits_of(values)
        set_axis(axes, which, replace(axis, low=low, high=high), np.array([each.mean for each in values]))
    put_legend(figure, [Line2D([], [], linestyle="none", **_marker(point)) for point in points.points], labels)
    return figure


def _draw_point(axes: Axes, point: Point) -> None:
    whiskers: dict[str, Any] = {"color": tone(point.style), "linewidth": 0.9, "alpha": 0.7}
    if point.x.half_width is not None:
        axes.plot([point.x.low, point.x.high], [point.y.mean] * 2, **whiskers)
    if point.y.half_width is not None:
        axes.plot([point.x.mean] * 2, [point.y.low, point.y.high], **whiskers)
    axes.plot(point.x.mean, point.y.mean, linestyle="none", **_marker(point))


def _marker(point: Point) -> dict[str, Any]:
    colour = tone(point.style)
    inside = colour if point.best else LIGHT["page"]
    return {"marker": MARKERS[point.style % MOST_STYLES], "color": colour, "markerfacecolor": inside, "markersize": 8}
