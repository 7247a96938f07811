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
from functools import lru_cache
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from gavel_py.io.names import natural_key
from gavel_py.problem.arrays import Floats
from gavel_py.report.charts import DASHES, LIGHT, MARKERS, NUM_STYLES, Axis, Chart, Panel, Point
from gavel_py.report.measures import Estimate, Measure, clean, counted, short, shortened
from gavel_py.report.timeline import IDLE, NO_WORKFLOWS, LaneGroup, RoundGrid, StayLanes, is_dark, spaced, spread

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


def _new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure; sizes are in points."""
    return Figure(figsize=(width / 72, height / 72), layout="constrained", facecolor="none")


def _colour(style: int) -> str:
    return LIGHT[f"tone-{style % NUM_STYLES}"]


def _stroke(style: int) -> dict[str, Any]:
    return {"color": _colour(style), "linestyle": DASHES[style % NUM_STYLES], "marker": MARKERS[style % NUM_STYLES]}


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
    drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{value + 0.0:,.10g}"))
    if axis.low is not None or axis.high is not None:
        getattr(axes, f"set_{which}lim")(axis.low, axis.high)
    getattr(axes, f"set_{which}label")(axis.title)


def limits_of(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Return axis limits that show all means, and the intervals up to about twice the range of the means."""
    means = [each.mean for each in estimates]
    low, high = min(each.low for each in estimates), max(each.high for each in estimates)
    size = max(map(abs, means)) or 1.0
    low, high = max(low, min(0.0, 2 * min(means))), min(high, max(0.0, 2 * max(means)))
    margin = 0.1 * (high - low) or max(0.1 * size, np.finfo(float).tiny)  # a tenth of the smallest numbers rounds to 0
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


def _add_legend(figure: Figure, handles: Mapping[str, Line2D | Patch], least: int = 2) -> None:
    """Add a legend below the axes, by which the figure grows; fewer labels than `least` need none."""
    if len(handles) < least:
        return
    columns = 2 if max(map(len, handles)) <= NARROW_LABEL else 1
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + LINE_HEIGHT * math.ceil(len(handles) / columns) / 72)
    shown = [shortened(label, MAX_LABEL) for label in handles]
    place: dict[str, Any] = {"loc": "outside lower left", "ncols": columns, "handlelength": 3.2, "borderpad": 0.2}
    figure.legend(list(handles.values()), shown, fontsize=SMALL, **place)


BAR_HEIGHT = 34.0
"""Points of a bar with its name."""

MAX_NAME = 40

ROOM_FOR_VALUE = 1.22
"""Right end of the axis, relative to the largest value."""


def bars_figure(bars: Sequence[tuple[str, Estimate, int]], x: Axis) -> Figure:
    """Draw a horizontal bar for each (policy, value, style) from top to bottom, with intervals as whiskers."""
    figure = _new_figure(46 + BAR_HEIGHT * len(bars))
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
    figure = _new_figure(40 + ROW_HEIGHT * len(rows))
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
    figure = _new_figure(panels_height + 24)
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
    _add_legend(figure, {label: Line2D([], [], **_stroke(style)) for label, style in styles.items()})
    return figure


POINTS_HEIGHT = 235.0


def points_figure(points: Sequence[Point], x: Axis, y: Axis) -> Figure:
    """Draw each policy as a point with whiskers, and the Pareto front as a dashed line; smaller is better on both axes."""
    figure = _new_figure(POINTS_HEIGHT)
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
    _add_legend(figure, dict(zip(labels, markers, strict=True)))
    return figure


def _marker(point: Point) -> dict[str, Any]:
    colour = _colour(point.style)
    inside = colour if point.best else LIGHT["page"]
    return {"marker": MARKERS[point.style % NUM_STYLES], "color": colour, "markerfacecolor": inside, "markersize": 8}


STAYS_WIDTH, STAYS_HEIGHT = 960.0, 620.0
STAY_LANE = 18.0
MAX_NODE_NAME = 24


class Box(NamedTuple):
    """A job in a Gantt chart, from `left` to `right` on the time axis and on the lanes top .. bottom − 1."""

    job_id: str
    left: float
    right: float
    top: int
    bottom: int
    colour: str


MAX_WORKFLOWS = 12
"""Workflows in the legend of a Gantt chart."""


def stays_figure(
    lanes: StayLanes, grid: RoundGrid, colours: Sequence[str], image_step: int, workflows: Mapping[str, str] = NO_WORKFLOWS
) -> Figure:
    """Draw a Gantt chart of one run: GPUs from top to bottom, time from left to right, job ids in bars with room for them.

    grid: the job on each GPU at the middle of even intervals; colours: of each job of the grid; image_step: if not 0, every
    `image_step`-th row of the grid is drawn as an image, instead of the blocks of the lanes; workflows: {job_id: workflow}, which
    a legend names.
    """
    height = min(STAY_LANE * lanes.count, STAYS_HEIGHT)
    lane = height / lanes.count
    figure = _new_figure(height + 56, STAYS_WIDTH)
    axes = figure.subplots()
    axes.grid(visible=False)
    start, seconds = lanes.start_seconds, lanes.end_seconds - lanes.start_seconds
    unit = Measure("time", "time").unit([seconds])
    if image_step:
        jobs = grid.jobs[::image_step]
        palette = np.array([to_rgba(colour) for colour in colours] + [(0.0, 0.0, 0.0, 0.0)])  # transparent where GPUs are idle
        image = (palette[np.where(jobs == IDLE, len(colours), jobs)] * 255).round().astype(np.uint8)
        axes.imshow(image, extent=(0, seconds / unit.size, lanes.count, 0), aspect="auto", interpolation="none")
    else:
        colour_of = dict(zip(grid.job_ids, colours, strict=True))
        boxes = []
        for stay, first, end in ((block.stay, block.first, block.end) for block in lanes.blocks):
            left, right = ((moment - start) / unit.size for moment in (stay.start_seconds, stay.end_seconds))
            boxes.append(Box(stay.job_id, left, right, first, end, colour_of[stay.job_id]))
        add_boxes(axes, boxes, lane, edgecolors=LIGHT["page"], linewidths=min(0.7, lane / 10))
        add_job_ids(axes, boxes, 0.85 * STAYS_WIDTH * unit.size / seconds, lane, (SMALL - 2, SMALL))
    add_lane_names(axes, lanes.nodes, lanes.types, lane, SMALL)
    axes.set_xlim(0, seconds / unit.size)
    axes.set_ylim(lanes.count, 0)
    axes.set_xlabel(unit.heading("time since the first start"))
    _add_legend(figure, _workflow_handles(dict(zip(grid.job_ids, colours, strict=True)), workflows), least=1)
    return figure


def _workflow_handles(colour_of: Mapping[str, str], workflows: Mapping[str, str]) -> dict[str, Line2D | Patch]:
    """Return the entries of a legend by label; colour_of: of jobs."""
    colours = {workflows[job_id]: colour for job_id, colour in colour_of.items() if job_id in workflows}
    names = sorted(colours, key=natural_key)
    first = names[:MAX_WORKFLOWS]
    handles: dict[str, Line2D | Patch] = {f"workflow {clean(name)}": Patch(fc=colours[name], linewidth=0) for name in first}
    if len(names) > MAX_WORKFLOWS:
        handles[f"{len(names) - MAX_WORKFLOWS:,} others"] = Line2D([], [], linestyle="none")
    return handles


def add_boxes(axes: Axes, boxes: Sequence[Box], lane: float, **style: Any) -> None:
    """Draw the jobs as filled boxes, with a gap between lanes that are high enough."""
    inset = 0.06 if lane > 4 else 0.0
    sides = [(box.left, box.right, box.top + inset, box.bottom - inset) for box in boxes]
    corners = [[(left, top), (right, top), (right, bottom), (left, bottom)] for left, right, top, bottom in sides]
    axes.add_collection(PolyCollection(corners, facecolors=[box.colour for box in boxes], **style), autolim=False)


@lru_cache(maxsize=10_000)
def _width_per_point(text: str) -> float:
    """Return the width of a text in the default font, divided by its font size."""
    width, *_ = text_to_path.get_text_width_height_descent(text, FontProperties(size=SMALL), ismath=False)
    return max(0.1, float(width) / SMALL)


def add_job_ids(axes: Axes, boxes: Sequence[Box], unit: float, lane: float, sizes: tuple[float, float]) -> None:
    """Write the job id into every box with enough room, rotated if that allows a readable size.

    unit, lane: points per unit of the time axis and per lane; sizes: smallest and largest font size.
    """
    smallest, largest = sizes
    for box in boxes:
        high, wide = lane * (box.bottom - box.top), unit * (box.right - box.left) - 8  # without marks at the ends
        if min(0.75 * high, wide) < smallest:
            continue
        job_id = clean(box.job_id)
        length = _width_per_point(job_id)
        across, upright = min(largest, 0.75 * high, wide / length), min(largest, 0.75 * wide, (high - 3) / length)
        size, angle = (upright, 90) if upright > max(across, smallest) and across < max(5.0, smallest) else (across, 0)
        if size >= smallest:
            middle = (box.left + box.right) / 2, (box.top + box.bottom) / 2
            colour = WHITE if is_dark(box.colour) else BLACK
            axes.text(*middle, job_id, size=size, rotation=angle, color=colour, ha="center", va="center", zorder=5)


def add_lane_names(axes: Axes, nodes: Sequence[LaneGroup], types: Sequence[LaneGroup], lane: float, size: float) -> None:
    """Write nodes at the left and types, if there are any, at the right, as far as there is room, and draw lines between them."""
    named = spaced(nodes, (size + 2) / lane)
    axes.set_yticks([node.middle for node in named], [shortened(clean(node.name), MAX_NODE_NAME) for node in named], size=size)
    axes.tick_params(axis="y", length=0)
    beside = axes.get_yaxis_transform()
    if len(named) == len(nodes):
        axes.hlines([node.end for node in nodes[:-1]], 0, 1, LIGHT["muted"], linewidth=0.4, transform=beside, zorder=4)
    places = spread([group.middle for group in types], 2.7 * size / lane, types[-1].end) if types else []
    for group, place in zip(types, places, strict=True):
        text = f"{shortened(clean(group.name), MAX_NODE_NAME)}\n{counted(group.size, 'GPU')}"
        axes.text(1.005, place, text, transform=beside, va="center", size=size, weight="bold")
        if group.first:
            axes.axhline(group.first, color=LIGHT["ink"], linewidth=1.4, zorder=4)


DPI = 150


def image_bytes(
    make_figure: Callable[[], Figure], style: Mapping[str, Any], form: str, ground: str, *, salt: str = "gavel-py"
) -> bytes:
    """Return a figure, made with the style in effect, as an SVG or PNG file (`form`), whatever the user's matplotlib settings.

    ground: colour of the background; salt: makes the ids of an SVG reproducible; SVGs within one page need different ones.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        # Characters missing from the font appear as boxes in a PNG, and in the font of the viewer in an SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        # Text stays text, for search and screen readers; names such as "a$b$c" are not formulas.
        fixed = {"svg.hashsalt": salt, "svg.fonttype": "none", "text.parse_math": False}
        mpl.rcParams.update(fixed | dict(style))  # type: ignore[arg-type]
        content = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        make_figure().savefig(content, format=form, dpi=DPI, metadata=metadata, facecolor=ground)
        return content.getvalue()


def figure_bytes(chart: Chart, form: str, *, standalone: bool = False) -> bytes:
    """Return a chart as the bytes of an SVG or PNG file in the colours of the light page.

    A standalone file has the title and a white background; otherwise the page provides them.
    """

    def make_figure() -> Figure:
        figure = chart.draw()
        if standalone:
            # The figure grows by a title above its contents.
            width, height = (72 * inches for inches in figure.get_size_inches())
            lines = textwrap.wrap(chart.title, int(width / (0.62 * TEXT)))
            figure.set_size_inches(width / 72, (height + LINE_HEIGHT * len(lines)) / 72)
            figure.suptitle("\n".join(lines), x=0.01, ha="left", size=TEXT, weight="bold")
        return figure

    return image_bytes(make_figure, STYLE, form, "white" if standalone else "none", salt=f"gavel-py {chart.name}")
