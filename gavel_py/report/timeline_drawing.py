"""Gantt charts: which job holds which GPU, and when, in the rounds of a scheduler or in a recorded run.

Lanes get thinner the more there are; names, marks and edges are drawn where they have room. Lengths are in points (1/72 inch),
positions along the axes in units of time and in lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from gavel_py.io.names import natural_key
from gavel_py.problem.arrays import Floats
from gavel_py.report.charts import LIGHT
from gavel_py.report.figures import BLACK, SMALL, WHITE, add_legend, new_figure, tick_text
from gavel_py.report.measures import clean, counted, shortened, unit_of
from gavel_py.report.timeline import Bar, Gantt, Lanes, is_dark, spaced, spread

WIDTH, MAX_LANE = 960.0, 18.0
PAGE_HEIGHT, FILE_HEIGHT = 620.0, 1150.0
"""Maximum height of all lanes together, in a page and in a file of its own."""

MIN_MARKED = 4.0
"""Lanes and bars below this size have no gaps and no marks."""

MAX_SHAPES = 2000
"""Bars that an SVG holds as shapes; more become an image in it."""

MAX_GROUPS = 12
"""Workflows or tenants in the legend."""

MAX_NODE_NAME = 24
LOST = "#cc0000"


def gantt_figure(
    gantt: Gantt, colours: Mapping[str, str], groups: Mapping[str, str], height: float = PAGE_HEIGHT, smallest: float = SMALL - 2
) -> Figure:
    """Draw a Gantt chart: GPUs from top to bottom, time from left to right, job ids in bars with room for them.

    colours: of each job; groups: {job_id: text in the legend}; height: maximum height of all lanes together; smallest: font size of
    job ids.
    """
    lane = min(MAX_LANE, height / gantt.lanes.count)
    figure = new_figure(lane * gantt.lanes.count + 56, WIDTH)
    axes = figure.subplots()
    axes.grid(visible=False)
    axes.set_ylim(gantt.lanes.count, 0)
    origin, title = (0.0, "time") if gantt.round_starts else (gantt.start_seconds, "time since the first start")
    unit = unit_of("time", [gantt.end_seconds - gantt.start_seconds])
    limits = [(seconds - origin) / unit.size for seconds in (gantt.start_seconds, gantt.end_seconds)]
    axes.set_xlim(*limits)
    axes.set_xlabel(unit.heading(title))
    axes.xaxis.set_major_formatter(tick_text)
    _name_lanes(axes, gantt.lanes, lane)
    boxes = []
    for bar in gantt.bars:
        begin, end = ((seconds - origin) / unit.size for seconds in (bar.start_seconds, bar.end_seconds))
        boxes.append(Box(bar, begin, end, colours[bar.job_id]))
    per_unit = 0.85 * WIDTH / (limits[1] - limits[0])
    _draw_bars(axes, boxes, per_unit, lane)
    _write_job_ids(axes, boxes, per_unit, lane, smallest)
    handles: dict[str, Line2D | Patch] = {}
    if gantt.round_starts:
        edges = (np.array([*gantt.round_starts, gantt.end_seconds]) - origin) / unit.size
        _number_rounds(axes, edges, gantt.first_round)
        for text, colour, size in (("starts here", LIGHT["ink"], 5), ("is preempted", LOST, 10)):
            handles[text] = Line2D([], [], color=colour, linestyle="none", marker="|", markeredgewidth=1.8, markersize=size)
    hatched: dict[str, Any] = {"facecolor": "none", "edgecolor": LIGHT["muted"], "hatch": "////", "linewidth": 0}
    for node in gantt.lanes.nodes:
        if node.name in gantt.down:
            axes.axhspan(node.first, node.end, **hatched, zorder=1)
            handles["node that is down"] = Patch(**hatched)
    colour_of = {groups[job_id]: colour for job_id, colour in colours.items() if job_id in groups}
    names = sorted(colour_of, key=natural_key)
    handles |= {name: Patch(fc=colour_of[name], linewidth=0) for name in names[:MAX_GROUPS]}
    if len(names) > MAX_GROUPS:
        handles[f"{len(names) - MAX_GROUPS:,} others"] = Line2D([], [], linestyle="none")
    add_legend(figure, handles, least=1, columns=3)
    return figure


def rounds_figure(gantt: Gantt, colours: Mapping[str, str], groups: Mapping[str, str], subtitle: str) -> Figure:
    """Draw the Gantt chart of rounds for a file of its own."""
    figure = gantt_figure(gantt, colours, groups, FILE_HEIGHT, smallest=4.2)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 50 / 72)  # room for the subtitle and the numbers of rounds
    figure.axes[0].set_title(subtitle, size=SMALL, color=LIGHT["muted"])
    return figure


def _number_rounds(axes: Axes, edges: Floats, first: int) -> None:
    """Label the upper edge with the numbers of rounds, from `first` on, at their starts."""
    numbers = first + np.arange(len(edges), dtype=float)
    both = (lambda time: np.interp(time, edges, numbers)), (lambda number: np.interp(number, numbers, edges))
    above = axes.secondary_xaxis("top", functions=both)
    above.xaxis.set_major_locator(MaxNLocator(integer=True, prune="upper"))
    above.set_xlabel("round")


class Box(NamedTuple):
    """A bar from `left` to `right` on the time axis."""

    bar: Bar
    left: float
    right: float
    colour: str


def _draw_bars(axes: Axes, boxes: Sequence[Box], per_unit: float, lane: float) -> None:
    """Draw bars, their starts as ticks over the upper half of the first lane, and preemptions as lines along their ends.

    per_unit, lane: points per unit of the time axis and per lane.
    """
    inset = 0.06 if lane > MIN_MARKED else 0.0
    aside = 1.2 / per_unit
    corners, widths, starts, ends = [], [], [], []
    for bar, left, right, _ in boxes:
        top, bottom, width = bar.first_lane + inset, bar.end_lane - inset, per_unit * (right - left)
        corners.append([(left, top), (right, top), (right, bottom), (left, bottom)])
        widths.append(min(0.7, lane / 10, 0.12 * width))
        if bar.started and min(lane, width) >= MIN_MARKED:
            starts.append([(left + aside, top), (left + aside, bar.first_lane + 0.5)])
        if bar.preempted and min(lane, width) >= MIN_MARKED:
            ends.append([(right - aside, top), (right - aside, bottom)])
    colours = [box.colour for box in boxes]
    bars = PolyCollection(corners, facecolors=colours, edgecolors=LIGHT["page"], linewidths=widths, zorder=2)
    bars.set_rasterized(len(boxes) > MAX_SHAPES)
    axes.add_collection(bars, autolim=False)
    for lines, colour in ((starts, LIGHT["ink"]), (ends, LOST)):
        for ink, thickness, order in ((WHITE, 3.4, 6), (colour, 1.8, 7)):  # a white outline, for dark bars
            marks = LineCollection(lines, colors=ink, linewidths=thickness, capstyle="butt", zorder=order)
            axes.add_collection(marks, autolim=False)


@lru_cache(maxsize=10_000)
def _width_per_point(text: str) -> float:
    """Return the width of a text in the default font, divided by its font size."""
    width, *_ = text_to_path.get_text_width_height_descent(text, FontProperties(size=SMALL), ismath=False)
    return max(0.1, float(width) / SMALL)


def _write_job_ids(axes: Axes, boxes: Sequence[Box], per_unit: float, lane: float, smallest: float) -> None:
    """Write the job id into every box with enough room, rotated if that allows a readable size."""
    for bar, left, right, fill in boxes:
        high, wide = lane * (bar.end_lane - bar.first_lane), per_unit * (right - left) - 5  # without marks at the ends
        if min(0.75 * high, wide) < smallest:
            continue
        job_id = clean(bar.job_id)
        length = _width_per_point(job_id)
        across, upright = min(SMALL, 0.75 * high, wide / length), min(SMALL, 0.75 * wide, (high - 3) / length)
        size, angle = (upright, 90) if upright > max(across, smallest) and across < max(5.0, smallest) else (across, 0)
        if size >= smallest:
            middle = (left + right) / 2, (bar.first_lane + bar.end_lane) / 2
            colour = WHITE if is_dark(fill) else BLACK
            axes.text(*middle, job_id, size=size, rotation=angle, color=colour, ha="center", va="center", zorder=5)


def _name_lanes(axes: Axes, lanes: Lanes, lane: float) -> None:
    """Write GPUs and nodes at the left and types at the right, as far as there is room, and draw lines between them."""
    nodes, types = lanes.nodes, lanes.types
    named = spaced(nodes, (SMALL + 2) / lane)
    axes.set_yticks([node.middle for node in named], [shortened(clean(node.name), MAX_NODE_NAME) for node in named])
    axes.tick_params(axis="y", which="both", length=0)
    if lanes.gpus and lane >= SMALL:
        numbers = [str(index) for _, index in lanes.gpus]
        axes.set_yticks(np.arange(lanes.count) + 0.5, numbers, minor=True, size=SMALL - 2)
        axes.tick_params(axis="y", pad=10 + 5 * max(map(len, numbers)))
    beside = axes.get_yaxis_transform()
    if len(named) == len(nodes):
        axes.hlines([node.end for node in nodes[:-1]], 0, 1, LIGHT["muted"], linewidth=0.4, transform=beside, zorder=4)
    places = spread([group.middle for group in types], 2.7 * SMALL / lane, types[-1].end) if types else []
    for group, place in zip(types, places, strict=True):
        text = f"{shortened(clean(group.name), MAX_NODE_NAME)}\n{counted(group.size, 'GPU')}"
        axes.text(1.005, place, text, transform=beside, va="center", weight="bold")
        if group.first:
            axes.axhline(group.first, color=LIGHT["ink"], linewidth=1.4, zorder=4)
