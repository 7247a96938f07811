"""Charts drawn with matplotlib, which comes with `gavel-py[plot]`, as the bytes of an SVG or PNG file (`figure_bytes`).

What all have in common: a size that a telephone can show, fonts, axes, legends, and the same bytes for the same chart under one
version of matplotlib. The kinds:

    bars    horizontal, each with its name above and its value at the end
    heat    how much time each job type has on each accelerator type, as colours with the numbers in them
    lines   curves: over time, over load, and how many are no longer than x
    points  policies by two numbers: those that no other one beats in both are filled and joined
    stays   GPUs and time: which job was on which GPU, and when; as shapes where these are few, as an image where they are many
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from gavel_py.report.charts import (
    DASHES,
    LIGHT,
    MARKERS,
    NUM_STYLES,
    Axis,
    Bars,
    Chart,
    Curve,
    Heat,
    Lines,
    Panel,
    Point,
    Points,
    StayGantt,
)
from gavel_py.report.measures import Estimate, Measure, clean, counted, short, shortened
from gavel_py.report.timeline import IDLE, Block, Group, is_dark

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
    return LIGHT[f"tone-{style % NUM_STYLES}"]


def stroke(style: int) -> dict[str, Any]:
    """Return colour, dash and marker of a style, in the words of matplotlib."""
    return {"color": tone(style), "linestyle": DASHES[style % NUM_STYLES], "marker": MARKERS[style % NUM_STYLES]}


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


ROW = 19.0

LONGEST_ROW, LONGEST_COLUMN = 26, 12

BLACK, WHITE = "#000000", "#fefefe"
"""Letters on colours that are the same on a light page and on a dark one."""


def heat_figure(heat: Heat) -> Figure:
    """Draw the cells; the colours go from dark to light, which tells more from less without any hue."""
    figure = new_figure(40 + ROW * len(heat.rows))
    axes = figure.subplots()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    for spine in axes.spines.values():
        spine.set_visible(False)
    colours = mpl.colormaps["cividis"]
    for row, column in np.argwhere(np.isfinite(heat.values)).tolist():
        share = float(heat.values[row, column])
        colour = to_hex(colours(min(1.0, max(0.0, share))))
        axes.fill([column, column + 1, column + 1, column], [row, row, row + 1, row + 1], color=colour, linewidth=0)
        ink = WHITE if is_dark(colour) else BLACK
        axes.text(column + 0.5, row + 0.5, f"{share:.0%}", color=ink, ha="center", va="center", size=SMALL)
    axes.set_xlim(0, len(heat.columns))
    axes.set_ylim(len(heat.rows), 0)
    slanted = 0 if len(heat.columns) <= 4 else 40
    names = [shortened(name, LONGEST_COLUMN) for name in heat.columns]
    axes.set_xticks(np.arange(len(names)) + 0.5, names, rotation=slanted, ha="left" if slanted else "center")
    axes.set_yticks(np.arange(len(heat.rows)) + 0.5, [shortened(name, LONGEST_ROW) for name in heat.rows])
    return figure


ALONE, STACKED = 205.0, 118.0
"""Points that a frame takes by itself, and among others."""

MARKERS_APART = 0.17
"""Of the length of the frame's diagonal."""


def lines_figure(lines: Lines) -> Figure:
    """Draw frames one below the other, with one legend for all."""
    styles = {curve.label: curve.style for panel in lines.panels for curve in panel.curves}
    count = len(lines.panels)
    frames = ALONE if count == 1 else STACKED * count
    figure = new_figure(frames + 24 + LINE_OF_TEXT * legend_rows(list(styles)))
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


HEIGHT = 235.0


def points_figure(points: Points) -> Figure:
    """Draw each policy as a point with whiskers for its intervals."""
    labels = [f"{point.label}{'' if point.best else ' (beaten)'}" for point in points.points]
    figure = new_figure(HEIGHT + LINE_OF_TEXT * legend_rows(labels))
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
    return {"marker": MARKERS[point.style % NUM_STYLES], "color": colour, "markerfacecolor": inside, "markersize": 8}


WIDE = 960.0

STAY_LANE, HIGHEST = 18.0, 620.0

LONGEST_NODE_NAME = 20

LETTER = 5.6
"""Points that a letter takes in a bar, about."""


def stays_figure(picture: StayGantt) -> Figure:
    """Draw lanes by node and type, with a job's name in each bar that has room for it."""
    lanes = picture.lanes
    high = min(STAY_LANE * lanes.count, HIGHEST)
    figure = new_figure(high + 56, WIDE)
    axes = figure.subplots()
    axes.grid(visible=False)
    unit = Measure("time", "time").unit([lanes.end_seconds - lanes.start_seconds])
    if picture.is_image:
        _draw_image(axes, picture, unit.size)
    else:
        _draw_shapes(axes, picture, unit.size, high / lanes.count)
    _draw_names(axes, picture, high / lanes.count)
    axes.set_xlim(0, (lanes.end_seconds - lanes.start_seconds) / unit.size)
    axes.set_ylim(lanes.count, 0)
    axes.set_xlabel(unit.heading("time since the first start"))
    return figure


def _draw_shapes(axes: Axes, picture: StayGantt, unit: float, lane: float) -> None:
    colour_of = dict(zip(picture.grid.job_ids, picture.colours, strict=True))
    inset = 0.06 if lane > 4 else 0.0
    corners = []
    span = picture.lanes.end_seconds - picture.lanes.start_seconds
    for block in picture.lanes.blocks:
        left, right = ((s - picture.lanes.start_seconds) / unit for s in (block.stay.start_seconds, block.stay.end_seconds))
        top, bottom = block.first + inset, block.end - inset
        corners.append([(left, top), (right, top), (right, bottom), (left, bottom)])
        wide = (right - left) * unit / span * WIDE * 0.85
        _name_bar(axes, block, ((left + right) / 2, (top + bottom) / 2), (wide, lane), colour_of[block.stay.job_id])
    faces = [colour_of[block.stay.job_id] for block in picture.lanes.blocks]
    bars = PolyCollection(corners, facecolors=faces, edgecolors=LIGHT["page"], linewidths=min(0.7, lane / 10))
    axes.add_collection(bars, autolim=False)


def _name_bar(axes: Axes, block: Block, middle: tuple[float, float], room: tuple[float, float], colour: str) -> None:
    name = clean(block.stay.job_id)
    if len(name) * LETTER <= room[0] and room[1] * (block.end - block.first) >= SMALL + 1:
        axes.text(*middle, name, size=SMALL, color=WHITE if is_dark(colour) else BLACK, ha="center", va="center")


def _draw_image(axes: Axes, picture: StayGantt, unit: float) -> None:
    """An image with nothing where no job is, so that the page shows through."""
    jobs = picture.grid.jobs[:: picture.every]
    palette = np.array([to_rgba(colour) for colour in picture.colours] + [(0.0, 0.0, 0.0, 0.0)])
    image = (palette[np.where(jobs == IDLE, len(picture.colours), jobs)] * 255).round().astype(np.uint8)
    right = (picture.lanes.end_seconds - picture.lanes.start_seconds) / unit
    axes.imshow(image, extent=(0, right, picture.lanes.count, 0), aspect="auto", interpolation="none")


def _draw_names(axes: Axes, picture: StayGantt, lane: float) -> None:
    """Nodes and types at the left, as many as there is room for; a line between types."""
    apart = (SMALL + 2) / lane
    nodes: list[Group] = []
    for node in picture.lanes.nodes:
        if not nodes or node.middle - nodes[-1].middle >= apart:
            nodes.append(node)
    axes.set_yticks([node.middle for node in nodes], [shortened(clean(node.name), LONGEST_NODE_NAME) for node in nodes], size=SMALL)
    axes.tick_params(axis="y", length=0)
    if len(nodes) == len(picture.lanes.nodes):
        axes.hlines([node.end for node in nodes[:-1]], 0, 1, LIGHT["muted"], linewidth=0.4, transform=axes.get_yaxis_transform())
    place = -np.inf
    for kind in picture.lanes.types:
        if kind.first:
            axes.axhline(kind.first, color=LIGHT["ink"], linewidth=1.2, zorder=4)
        place = max(kind.middle, place + apart)
        text = f"{shortened(clean(kind.name), LONGEST_NODE_NAME)}: {counted(kind.end - kind.first, 'GPU')}"
        axes.text(1.005, place, text, transform=axes.get_yaxis_transform(), va="center", size=SMALL)


DPI = 150


def figure_bytes(chart: Chart, form: str, *, alone: bool = False) -> bytes:
    """Return the chart as the bytes of an SVG or PNG file (form: "svg", "png"), in the colours of the light page.

    alone: with its title and a white ground, for a file that stands by itself; otherwise a page has these.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        # Letters that the font does not have are drawn as boxes in a PNG, and by the viewer's font in an SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()  # the same chart, whatever the user's settings
        mpl.rcParams.update(STYLE)
        content = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        figure = _figure(chart)
        if alone:
            put_title(figure, chart.title)
        figure.savefig(content, format=form, dpi=DPI, metadata=metadata, facecolor="white" if alone else "none")
        return content.getvalue()


def _figure(chart: Chart) -> Figure:
    drawing = chart.drawing
    if isinstance(drawing, Lines):
        return lines_figure(drawing)
    if isinstance(drawing, Bars):
        return bars_figure(drawing)
    if isinstance(drawing, Points):
        return points_figure(drawing)
    return heat_figure(drawing) if isinstance(drawing, Heat) else stays_figure(drawing)
