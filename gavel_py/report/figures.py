"""Charts drawn with matplotlib (`gavel-py[plot]`), as the bytes of SVG or PNG files.

Figures fit the screen of a phone, and the same chart gives the same bytes with the same version of matplotlib.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from gavel_py.problem.arrays import Floats
from gavel_py.report.charts import DASHES, LIGHT, MARKERS, NUM_STYLES, Axis, Panel, PlottedPoint
from gavel_py.report.measures import SampleMean, short, shortened
from gavel_py.report.timeline import is_dark

WIDTH = 300.0
"""Points; about the width of a phone in CSS pixels, so that text stays readable there."""

TEXT, SMALL = 11.0, 10.0
LINE_HEIGHT = 15.0
MAX_LABEL = 36

NARROW_LABEL = 16
"""A legend has two columns if no label is longer than this."""

STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), LIGHT["ink"]),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), LIGHT["muted"]),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **dict.fromkeys(("axes.labelsize", "axes.titlesize"), TEXT),
    "font.size": SMALL,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure; sizes are in points."""
    return Figure(figsize=(width / 72, height / 72), layout="constrained", facecolor="none")


def _colour(style: int) -> str:
    return LIGHT[f"tone-{style % NUM_STYLES}"]


def _stroke(style: int) -> dict[str, Any]:
    return {"color": _colour(style), "linestyle": DASHES[style % NUM_STYLES], "marker": MARKERS[style % NUM_STYLES]}


def tick_text(value: float, _: object = None) -> str:
    """Return the text of a tick of an axis."""
    return f"{value + 0.0:,.10g}"


def _set_axis(axes: Axes, which: str, axis: Axis, values: Floats) -> None:
    """Set title, scale, limits and ticks of the x or y axis; values: all data along it."""
    finite = values[np.isfinite(values)]
    drawn = getattr(axes, f"{which}axis")
    if axis.log and len(finite) and finite.min() > 0:
        getattr(axes, f"set_{which}scale")("log")
        decades = math.log10(finite.max() / finite.min())
        drawn.set_major_locator(LogLocator(10, subs=(1, 2, 5) if decades < 1.5 else (1,), numticks=8))
        drawn.set_minor_formatter(NullFormatter())
    else:
        drawn.set_major_locator(MaxNLocator(6 if which == "x" else 5, steps=[1, 2, 2.5, 5, 10]))
    drawn.set_major_formatter(tick_text)
    if axis.low is not None or axis.high is not None:
        getattr(axes, f"set_{which}lim")(axis.low, axis.high)
    getattr(axes, f"set_{which}label")(axis.title)


def limits_of(estimates: Sequence[SampleMean]) -> tuple[float, float]:
    """Return axis limits that show all means, and the intervals up to about twice the range of the means."""
    means = [each.mean for each in estimates]
    low, high = min(each.low for each in estimates), max(each.high for each in estimates)
    size = max(map(abs, means)) or 1.0
    low, high = max(low, min(0.0, 2 * min(means))), min(high, max(0.0, 2 * max(means)))
    margin = 0.1 * (high - low) or max(0.1 * size, np.finfo(float).tiny)  # a tenth of the smallest numbers rounds to 0
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


def add_legend(figure: Figure, handles: Mapping[str, Line2D | Patch], least: int = 2, columns: int | None = None) -> None:
    """Add a legend below the axes, by which the figure grows; fewer labels than `least` need none.

    columns: by default as many as a phone has room for, and then labels are cut.
    """
    if len(handles) < least:
        return
    shown = list(handles) if columns else [shortened(label, MAX_LABEL) for label in handles]
    columns = columns or (2 if max(map(len, handles)) <= NARROW_LABEL else 1)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + LINE_HEIGHT * math.ceil(len(handles) / columns) / 72)
    place: dict[str, Any] = {"loc": "outside lower left", "ncols": columns, "handlelength": 3.2, "borderpad": 0.2}
    figure.legend(list(handles.values()), shown, fontsize=SMALL, **place)


BAR_HEIGHT = 34.0
"""Points of a bar with its name."""

MAX_NAME = 40

ROOM_FOR_VALUE = 1.22
"""Right end of the axis, relative to the largest value."""


def bars_figure(bars: Sequence[tuple[str, SampleMean, int]], x: Axis) -> Figure:
    """Draw a horizontal bar for each (policy, value, style) from top to bottom, with intervals as whiskers."""
    figure = new_figure(46 + BAR_HEIGHT * len(bars))
    axes = figure.subplots()
    low, high = limits_of([value for _, value, _ in bars])
    for row, (policy, value, style) in enumerate(bars):
        axes.barh(row, value.mean, height=0.42, color=_colour(style), linewidth=0)
        if value.half_width is not None:
            cut = max(0.0, value.high - high)  # beyond the frame; the table has the whole interval
            whiskers = [[value.half_width], [value.half_width - cut]]
            axes.errorbar(value.mean, row, xerr=whiskers, color=LIGHT["ink"], linewidth=1.2, capsize=0 if cut else 3)
        axes.text(0, row - 0.3, shortened(policy, MAX_NAME), size=SMALL, va="bottom")
        axes.text(min(value.high, high) + 0.015 * high, row, short(value.mean), size=SMALL, va="center")
    axes.set_ylim(len(bars) - 0.6, -0.9)
    axes.set_yticks([])
    _set_axis(axes, "x", x, np.array([value.mean for _, value, _ in bars]))
    axes.set_xlim(min(0.0, low), ROOM_FOR_VALUE * high)
    return figure


ROW_HEIGHT = 19.0
MAX_ROW_NAME, MAX_COLUMN_NAME = 26, 12

BLACK, WHITE = "#000000", "#fefefe"
"""Text on fills; unlike the colours of `LIGHT`, they are the same on the dark page."""


def heat_figure(rows: Sequence[str], columns: Sequence[str], values: Floats) -> Figure:
    """Draw a heat map in a colour scale whose lightness increases with the value.

    values: (rows, columns) in [0, 1]; NaN leaves a cell empty.
    """
    figure = new_figure(40 + ROW_HEIGHT * len(rows))
    axes = figure.subplots()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    for spine in axes.spines.values():
        spine.set_visible(False)
    colours = mpl.colormaps["cividis"]
    for row, column in np.argwhere(np.isfinite(values)).tolist():
        share = float(values[row, column])
        colour = to_hex(colours(min(1.0, max(0.0, share))))
        axes.fill([column, column + 1, column + 1, column], [row, row, row + 1, row + 1], color=colour, linewidth=0)
        ink = WHITE if is_dark(colour) else BLACK
        axes.text(column + 0.5, row + 0.5, f"{share:.0%}", color=ink, ha="center", va="center", size=SMALL)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    angle = 0 if len(columns) <= 4 else 40
    names = [shortened(name, MAX_COLUMN_NAME) for name in columns]
    axes.set_xticks(np.arange(len(names)) + 0.5, names, rotation=angle, ha="left" if angle else "center")
    axes.set_yticks(np.arange(len(rows)) + 0.5, [shortened(name, MAX_ROW_NAME) for name in rows])
    return figure


SINGLE_PANEL, STACKED_PANEL = 205.0, 118.0
"""Height of a panel, in points."""

MARKER_DISTANCE = 0.17
"""Relative to the diagonal of the panel."""


def lines_figure(panels: Sequence[Panel], x: Axis, *, steps: bool = False, dots: bool = False) -> Figure:
    """Draw stacked panels with a common x axis and legend.

    steps: y is constant from each x to the next; dots: every point has a marker.
    """
    styles = {curve.label: curve.style for panel in panels for curve in panel.curves}
    count = len(panels)
    panels_height = SINGLE_PANEL if count == 1 else STACKED_PANEL * count
    figure = new_figure(panels_height + 24)
    all_axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        for curve in panel.curves:
            if curve.low is not None and curve.high is not None:
                axes.fill_between(curve.x, curve.low, curve.high, color=_colour(curve.style), alpha=0.16, linewidth=0)
            # The offset keeps markers of equal curves apart.
            spacing = None if dots else (0.02 * (curve.style + 1), MARKER_DISTANCE)
            drawstyle = "steps-post" if steps else "default"
            axes.plot(curve.x, curve.y, **_stroke(curve.style), markevery=spacing, drawstyle=drawstyle)
        if panel.mark is not None:
            axes.axvline(panel.mark, color=LIGHT["muted"], linewidth=1, linestyle="dotted")
        if panel.title:
            axes.set_title(panel.title)
        _set_axis(axes, "y", panel.y, np.concatenate([curve.y for curve in panel.curves]))
    xs = np.concatenate([curve.x for panel in panels for curve in panel.curves])
    _set_axis(all_axes[-1], "x", x, xs)
    add_legend(figure, {label: Line2D([], [], **_stroke(style)) for label, style in styles.items()})
    return figure


POINTS_HEIGHT = 235.0


def points_figure(points: Sequence[PlottedPoint], x: Axis, y: Axis) -> Figure:
    """Draw each policy as a point with whiskers, and the Pareto front as a dashed line; smaller is better on both axes."""
    figure = new_figure(POINTS_HEIGHT)
    axes = figure.subplots()
    front = sorted((point for point in points if point.best), key=lambda point: (point.x.mean, -point.y.mean))
    xs, ys = [point.x.mean for point in front], [point.y.mean for point in front]
    axes.plot(xs, ys, drawstyle="steps-post", color=LIGHT["muted"], linewidth=1, linestyle="dashed")
    for point in points:
        whiskers: dict[str, Any] = {"ecolor": _colour(point.style), "elinewidth": 0.9, "alpha": 0.7, "fmt": "none"}
        axes.errorbar(point.x.mean, point.y.mean, xerr=point.x.half_width, yerr=point.y.half_width, **whiskers)
        axes.plot(point.x.mean, point.y.mean, linestyle="none", **_marker(point))
    for which, axis, values in (("x", x, [p.x for p in points]), ("y", y, [p.y for p in points])):
        low, high = limits_of(values)
        _set_axis(axes, which, replace(axis, low=low, high=high), np.array([each.mean for each in values]))
    labels = [f"{point.label}{'' if point.best else ' (beaten)'}" for point in points]
    markers = (Line2D([], [], linestyle="none", **_marker(point)) for point in points)
    add_legend(figure, dict(zip(labels, markers, strict=True)))
    return figure


def _marker(point: PlottedPoint) -> dict[str, Any]:
    colour = _colour(point.style)
    inside = colour if point.best else LIGHT["page"]
    return {"marker": MARKERS[point.style % NUM_STYLES], "color": colour, "markerfacecolor": inside, "markersize": 8}


DPI = 150


def figure_bytes(draw: Callable[[], Figure], name: str, form: str, title: str = "") -> bytes:
    """Return a chart as the bytes of an SVG or PNG file in the colours of the light page, whatever the user's matplotlib settings.

    name: makes the ids of an SVG reproducible, and different from those of other SVGs in one page; title: "" for a chart in a page,
    which provides title and background.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        # Characters missing from the font appear as boxes in a PNG, and in the font of the viewer in an SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        # Text stays text, for search and screen readers; names such as "a$b$c" are not formulas.
        fixed = {"svg.hashsalt": f"gavel-py {name}", "svg.fonttype": "none", "text.parse_math": False}
        mpl.rcParams.update(fixed | STYLE)  # type: ignore[arg-type]
        figure = draw()
        if title:
            # The figure grows by a title above its contents.
            width, height = (72 * inches for inches in figure.get_size_inches())
            lines = textwrap.wrap(title, int(width / (0.62 * TEXT)))
            figure.set_size_inches(width / 72, (height + LINE_HEIGHT * len(lines)) / 72)
            figure.suptitle("\n".join(lines), x=0.01, ha="left", size=TEXT, weight="bold")
        content = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        figure.savefig(content, format=form, dpi=DPI, metadata=metadata, facecolor="white" if title else "none")
        return content.getvalue()
