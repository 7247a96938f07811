"""What all charts have in common: a size that a telephone can show, letters, axes, legends."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from gavel_py.report.charts import Axis
from gavel_py.report.measures import Estimate, short, shortened
from gavel_py.report.theme import DASHES, LIGHT, MARKERS, MOST_STYLES

__all__ = [
    "LINE_OF_TEXT",
    "SMALL",
    "STYLE",
    "TEXT",
    "WIDTH",
    "legend_rows",
    "limits_of",
    "new_figure",
    "put_legend",
    "put_title",
    "set_axis",
    "stroke",
    "tone",
]

WIDTH = 300.0
"""Points, of which a telephone shows as many pixels: letters stay readable there."""

TEXT, SMALL = 11.0, 10.0
LINE_OF_TEXT = 15.0
LONGEST_LABEL = 36
NARROW_LABEL = 16
"""Labels no longer than this stand in two columns."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "gavel-py",  # ids in an SVG are random without it
    "svg.fonttype": "none",  # text that can be searched and read aloud
    "text.parse_math": False,  # a policy may be called "a$b$c"
    "font.size": SMALL,
    "axes.labelsize": TEXT,
    "axes.titlesize": TEXT,
    "axes.titlelocation": "left",
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.7,
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.labelcolor": LIGHT["ink"],
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure, its size in points."""
    return Figure(figsize=(width / 72, height / 72), layout="constrained", facecolor="none")


def put_title(figure: Figure, title: str) -> None:
    """Put a title above everything else, and make room for it."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    lines = textwrap.wrap(title, int(width / (0.62 * TEXT)))
    figure.set_size_inches(width / 72, (height + LINE_OF_TEXT * len(lines)) / 72)
    figure.suptitle("\n".join(lines), x=0.01, ha="left", size=TEXT, weight="bold")


def tone(style: int) -> str:
    """Return the colour of a style."""
    return LIGHT[f"tone-{style % MOST_STYLES}"]


def stroke(style: int) -> dict[str, Any]:
    """Return colour, dash and marker of a style, in the words of matplotlib."""
    return {"color": tone(style), "linestyle": DASHES[style % MOST_STYLES], "marker": MARKERS[style % MOST_STYLES]}


def set_axis(axes: Axes, which: str, axis: Axis, values: NDArray[np.float64]) -> None:
    """Give an axis its title, scale, limits and ticks; values: all that is drawn along it."""
    finite = values[np.isfinite(values)]
    if axis.log and len(finite) and finite.min() > 0:
        getattr(axes, f"set_{which}scale")("log")
        decades = math.log10(finite.max() / finite.min())
        getattr(axes, f"{which}axis").set_major_locator(LogLocator(10, subs=(1, 2, 5) if decades < 1.5 else (1,), numticks=8))
        getattr(axes, f"{which}axis").set_minor_formatter(NullFormatter())
        getattr(axes, f"{which}axis").set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    else:
        getattr(axes, f"{which}axis").set_major_locator(MaxNLocator(6 if which == "x" else 5, steps=[1, 2, 2.5, 5, 10]))
        _tell_steps(getattr(axes, f"{which}axis"))
    if axis.low is not None or axis.high is not None:
        getattr(axes, f"set_{which}lim")(axis.low, axis.high)
    getattr(axes, f"set_{which}label")(axis.title)


def _tell_steps(axis: Any) -> None:
    """Let ticks at even steps have as many digits as it takes to tell them apart."""

    def text(value: float, _: int | None) -> str:
        ticks = axis.get_majorticklocs()
        step = abs(float(ticks[1] - ticks[0])) if len(ticks) > 1 else 0.0
        if not 1e-6 <= step < 1e9:
            return short(value)
        places = next(places for places in range(9) if abs(round(step, places) - step) < 1e-3 * step)
        return f"{value + 0.0:,.{places}f}"

    axis.set_major_formatter(FuncFormatter(text))


def limits_of(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Return where an axis begins and ends that shows these means, and their intervals as far as they leave room for the means."""
    means = [each.mean for each in estimates]
    low, high = min(each.low for each in estimates), max(each.high for each in estimates)
    size = max(map(abs, means)) or 1.0
    low, high = max(low, min(0.0, 2 * min(means))), min(high, max(0.0, 2 * max(means)))
    margin = 0.1 * (high - low) or 0.1 * size
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


def legend_rows(labels: Sequence[str]) -> int:
    """Return how many lines a legend of these labels takes, none for one label or none."""
    return 0 if len(labels) < 2 else math.ceil(len(labels) / _columns(labels))


def put_legend(figure: Figure, handles: Sequence[Line2D], labels: Sequence[str]) -> None:
    """Put a legend below everything else."""
    if legend_rows(labels):
        shown = [shortened(label, LONGEST_LABEL) for label in labels]
        figure.legend(
            handles, shown, loc="outside lower left", ncols=_columns(labels), fontsize=SMALL, handlelength=3.2, borderpad=0.2
        )


def _columns(labels: Sequence[str]) -> int:
    return 2 if max(map(len, labels)) <= NARROW_LABEL else 1
