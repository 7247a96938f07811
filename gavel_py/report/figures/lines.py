"""Curves: over time, over load, and how many are no longer than x."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gavel_py.report.charts import Curve, Lines, Panel
from gavel_py.report.figures.frame import LINE_OF_TEXT as LINE
from gavel_py.report.figures.frame import legend_rows, new_figure, put_legend, set_axis, stroke, tone
from gavel_py.report.tones import LIGHT

__all__ = ["lines_figure"]

ALONE, STACKED = 205.0, 118.0
"""Points that a frame takes by itself, and among others."""

MARKERS_APART = 0.17
"""Of the length of the frame's diagonal."""


def lines_figure(lines: Lines) -> Figure:
    """Draw frames one below the other, with one legend for all."""
    styles = {curve.label: curve.style for panel in lines.panels for curve in panel.curves}
    count = len(lines.panels)
    frames = ALONE if count == 1 else STACKED * count
    figure = new_figure(frames + 24 + LINE * legend_rows(list(styles)))
    all_axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, lines.panels, strict=True):
        _draw_panel(axes, panel, lines)
    xs = np.concatenate([curve.x for panel in lines.panels for curve in panel.curves])
    set_axis(all_axes[-1], "x", lines.x, xs)
    handles = [Line2D([], [], **stroke(style)) for style in styles.values()]
    put_legend(figure, handles, list(styles))
    return figure


def _draw_panel(axes: Axes, panel: Panel, lines: Lines) -> None:
    for curve in panel.curves:
        _draw_curve(axes, curve, lines)
    if panel.mark is not None:
        axes.axvline(panel.mark, color=LIGHT["muted"], linewidth=1, linestyle="dotted")
    if panel.title:
        axes.set_title(panel.title)
    set_axis(axes, "y", panel.y, np.concatenate([curve.y for curve in panel.curves]))


def _draw_curve(axes: Axes, curve: Curve, lines: Lines) -> None:
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, color=tone(curve.style), alpha=0.16, linewidth=0)
    often = None if lines.dots else (0.02 * (curve.style + 1), MARKERS_APART)  # where curves meet, their markers do not
    drawstyle = "steps-post" if lines.steps else "default"
    axes.plot(curve.x, curve.y, **stroke(curve.style), markevery=often, drawstyle=drawstyle)
