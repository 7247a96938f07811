"""Bars that lie, each with its name above and its value at the end."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from gavel_py.report.charts import Bars
from gavel_py.report.figures.frame import SMALL, limits_of, new_figure, set_axis, tone
from gavel_py.report.measures import short
from gavel_py.report.safe_text import shortened
from gavel_py.report.tones import LIGHT

__all__ = ["bars_figure"]

LANE = 34.0
"""Points for a bar and its name."""

LONGEST_NAME = 40
ROOM_FOR_VALUE = 1.22


def bars_figure(bars: Bars) -> Figure:
    """Draw the bars from the top down, with the interval of each as a whisker."""
    figure = new_figure(46 + LANE * len(bars.bars))
    axes = figure.subplots()
    least, most = limits_of([bar.value for bar in bars.bars])
    for row, bar in enumerate(bars.bars):
        axes.barh(row, bar.value.mean, height=0.42, color=tone(bar.style), linewidth=0)
        if bar.value.half_width is not None:
            cut = max(0.0, bar.value.high - most)  # it goes on beyond the frame, and ends in the table
            axes.errorbar(
                bar.value.mean,
                row,
                xerr=[[bar.value.half_width], [bar.value.half_width - cut]],
                color=LIGHT["ink"],
                linewidth=1.2,
                capsize=0 if cut else 3,
            )
        axes.text(0, row - 0.3, shortened(bar.label, LONGEST_NAME), size=SMALL, va="bottom")
        axes.text(min(bar.value.high, most) + 0.015 * most, row, short(bar.value.mean), size=SMALL, va="center")
    axes.set_ylim(len(bars.bars) - 0.6, -0.9)
    axes.set_yticks([])
    set_axis(axes, "x", bars.x, np.array([bar.value.mean for bar in bars.bars]))
    axes.set_xlim(min(0.0, least), ROOM_FOR_VALUE * most)
    return figure
