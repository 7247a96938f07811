"""A Gantt chart of rounds: which job holds which GPU, and when.

The chart grows with rounds and GPUs up to a limit, above which both are drawn thinner. The figure is the frame of the bars; names,
titles and the legend are outside it, and files are as large as all of them need. Lengths are in points (1/72 inch), positions along
the axes in rounds and lanes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gavel_py.report.charts import LIGHT
from gavel_py.report.figures import DPI, Box, add_boxes, add_job_ids, add_lane_names, image_bytes
from gavel_py.report.measures import clean
from gavel_py.report.timeline import Lanes, RoundGrid, bars_of, colours_of
from gavel_py.scheduling.delivery import DeliveryReport, TenantDelivery
from gavel_py.scheduling.round import Round

PIXEL = 72 / DPI
MAX_LANE, MAX_ROUND = 22.0, 64.0

MAX_HEIGHT, MAX_WIDTH = 1150.0, 1000.0
"""Limits of all lanes and of all rounds together."""

MIN_WIDTH = 400.0
"""Minimum width of all rounds together, so that the title has room."""

TITLE, TEXT, SMALL = 10.0, 8.0, 7.0

MIN_MARKED = 4.0
"""Below this height of a lane or width of a round, a strip of counts replaces the marks of starts and preemptions."""

STRIP = 54.0

ID_SIZES = (4.2, 8.0)
"""Smallest and largest font size of job ids in bars."""

MAX_GROUPS = 9
"""Workflows or tenants in the legend."""

MAX_SHAPES = 3000
"""Bars that an SVG holds as shapes; more become an image in it."""

INK, MUTED, LOST = LIGHT["ink"], LIGHT["muted"], "#CC0000"
STYLE: dict[str, Any] = {"axes.edgecolor": MUTED, "text.color": INK, "font.size": SMALL, "savefig.bbox": "tight"}


class Coloured:
    """A grid with the colours of its jobs, and {text of the legend: colour} of their groups: workflows or, without any, tenants.

    workflows, tenants: {job_id: name}; delivery: has the GPU time of tenants.
    """

    def __init__(
        self, grid: RoundGrid, workflows: Mapping[str, str], tenants: Mapping[str, str], delivery: DeliveryReport | None
    ) -> None:
        of_tenants = {job_id: tenants.get(job_id, "") for job_id in grid.job_ids}
        groups = workflows if workflows or not 2 <= len(set(of_tenants.values())) <= MAX_GROUPS else of_tenants
        known = {} if delivery is None else delivery.tenants
        self.grid, self.legend = grid, dict[str, str]()
        self.of_jobs = dict(zip(grid.job_ids, colours_of(grid, groups), strict=True))
        for name, colour in self.of_jobs.items():
            if name in groups:
                text = _tenant_text(groups[name], known) if groups is of_tenants else f"workflow {clean(groups[name])}"
                self.legend[text] = colour


def _tenant_text(name: str, known: Mapping[str, TenantDelivery]) -> str:
    """Return the text of the legend for a tenant, "" for the jobs of none."""
    if name not in known:
        return f"tenant {clean(name)}" if name else "no tenant"
    promised, received = known[name].promised_gpu_seconds / 3600, known[name].received_gpu_seconds / 3600
    return f"tenant {clean(name)}: {promised:.4g} GPU-h promised, {received:.4g} received"


class RoundsFigure:
    """The figure of some rounds, drawn by `draw`."""

    def __init__(self, rounds: Sequence[Round], lanes: Lanes, coloured: Coloured, round_seconds: float) -> None:
        self.rounds, self.lanes, self.round_seconds = rounds, lanes, round_seconds
        self.bars, self.legend = bars_of(rounds, lanes), coloured.legend
        grid, colours = coloured.grid, coloured.of_jobs
        self.boxes = [Box(b.job_id, b.first, b.end, b.first_lane, b.end_lane, colours[b.job_id]) for b in self.bars]
        self.num_lanes, self.num_rounds = grid.jobs.shape
        lane = min(MAX_LANE, MAX_HEIGHT / self.num_lanes)
        # Thin lanes are whole pixels high, so that they look equal.
        self.lane = lane if lane >= MIN_MARKED or lane < PIXEL else int(lane / PIXEL) * PIXEL
        self.round = max(MIN_WIDTH / self.num_rounds, min(MAX_ROUND, MAX_WIDTH / self.num_rounds))
        self.width, self.height = self.round * self.num_rounds, self.lane * self.num_lanes
        self.figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=DPI, facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, self.num_rounds), ylim=(self.num_lanes, 0))

    def draw(self, title: str, subtitle: str) -> Figure:
        """Draw everything and return the figure."""
        is_tall = self.lane >= MIN_MARKED  # thinner lanes have no room for edges
        style = {"edgecolors": "white" if is_tall else "none", "antialiaseds": is_tall, "rasterized": len(self.boxes) > MAX_SHAPES}
        add_boxes(self.axes, self.boxes, self.lane, **style, linewidths=min(0.8, 0.12 * self.round), zorder=2)
        add_job_ids(self.axes, self.boxes, self.round, self.lane, ID_SIZES)
        self._draw_lanes()
        self._draw_times()
        self._draw_titles(title, subtitle)
        if min(self.lane, self.round) >= MIN_MARKED:
            self._draw_marks()
        else:
            self._draw_strip()
        return self.figure

    def _draw_lanes(self) -> None:
        """Name types, nodes and GPUs, and separate GPUs and rounds by lines, as far as there is room."""
        add_lane_names(self.axes, self.lanes.nodes, self.lanes.types, self.lane, SMALL)
        self.axes.tick_params(axis="y", labelcolor=MUTED)
        if self.lane >= SMALL + 1:
            numbers = [str(index) for _, index in self.lanes.gpus]
            self.axes.set_yticks(np.arange(self.num_lanes) + 0.5, numbers, minor=True, size=SMALL, color=MUTED)
            self.axes.tick_params(axis="y", which="minor", length=0)
            self.axes.tick_params(axis="y", pad=12 + 4.5 * max(map(len, numbers)))
        if self.lane >= MIN_MARKED:
            starts = {node.first for node in self.lanes.nodes}
            gpus = [lane for lane in range(self.num_lanes) if lane not in starts]
            self.axes.hlines(gpus, 0, self.num_rounds, colors="#00000016", linewidths=0.4, zorder=3)
        if self.round >= MIN_MARKED:
            self.axes.vlines(range(1, self.num_rounds), 0, self.num_lanes, colors="#0000001C", linewidths=0.4, zorder=1)

    def _draw_times(self) -> None:
        """Label the upper edge with round numbers and the lower edge with times."""
        numbers = round_ticks(self.rounds, self.width / 28)
        unit, times = time_ticks(self.rounds, self.round_seconds, self.width / 40)
        above = self.axes.secondary_xaxis("top")
        for axes, ticks, label in ((above, numbers, "round"), (self.axes, times, f"time, {unit}")):
            axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
            axes.tick_params(axis="x", length=3, labelsize=SMALL, color=MUTED)
            axes.set_xlabel(label, fontsize=SMALL, color=MUTED)

    def _draw_titles(self, title: str, subtitle: str) -> None:
        room = self.width + 80  # with the names beside the bars
        lines = textwrap.wrap(subtitle, int(room / (0.55 * TEXT)))
        heading = textwrap.wrap(clean(title), int(room / (0.62 * TITLE)))
        above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
        self.axes.annotate("\n".join(lines), (0, 1), (0, 34), **above, size=TEXT, color=MUTED)
        self.axes.annotate("\n".join(heading), (0, 1), (0, 38 + 11 * len(lines)), **above, size=TITLE, weight="bold")

    def _draw_marks(self) -> None:
        """Mark starts by a tick over the upper half of the first lane, and preemptions by a line along the end of the bar."""
        aside, inset = 1.2 / self.round, 0.06
        starts, ends = [], []
        for b in self.bars:
            if b.started:
                starts.append([(b.first + aside, b.first_lane + inset), (b.first + aside, b.first_lane + 0.5)])
            if b.preempted:
                ends.append([(b.end - aside, b.first_lane + inset), (b.end - aside, b.end_lane - inset)])
        for lines, colour in ((starts, INK), (ends, LOST)):
            for ink, width, order in (("white", 3.4, 6), (colour, 1.8, 7)):  # a white outline, for dark bars
                marks = LineCollection(lines, colors=ink, linewidths=width, capstyle="butt", zorder=order)
                self.axes.add_collection(marks, autolim=False)
        mark: dict[str, Any] = {"linestyle": "none", "marker": "|", "markeredgewidth": 1.8}
        handles = [
            Line2D([], [], color=INK, markersize=5, label="starts here", **mark),
            Line2D([], [], color=LOST, markersize=10, label="is preempted", **mark),
            Patch(facecolor="white", edgecolor=MUTED, linewidth=0.5, label="idle"),
        ]
        named = list(self.legend.items())[:MAX_GROUPS]
        handles += [Patch(facecolor=colour, label=text) for text, colour in named]
        if len(self.legend) > len(named):
            handles.append(Line2D([], [], linestyle="none", label=f"{len(self.legend) - len(named)} more workflows"))
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 0), "borderaxespad": 4.5, "ncols": 3}
        self.axes.legend(handles=handles, **place, frameon=False, borderpad=0, labelcolor=MUTED)

    def _draw_strip(self) -> None:
        """Plot the numbers of starts and preemptions by round below the chart, where bars are too thin for marks."""
        starts = np.array([len(each.started) for each in self.rounds])
        ends = np.array([len(each.preempted) for each in self.rounds])
        axes = self.figure.add_axes((0, -(STRIP + 44) / self.height, 1, STRIP / self.height))
        edges = np.arange(len(starts) + 1)
        axes.stairs(starts, edges, fill=True, color=MUTED)
        axes.stairs(-ends, edges, fill=True, color=LOST)
        limit = max(1, int(starts[1:].max(initial=0)), int(ends.max(initial=0)))  # all jobs start in the first round
        if starts[0] > limit:
            note = f"{starts[0]:,} gangs start in round {self.rounds[0].index}"
            axes.text(len(starts), 1.2 * limit, note, size=SMALL, color=MUTED, ha="right", va="bottom")
        axes.set(xlim=(0, len(starts)), ylim=(-1.1 * limit, 1.1 * limit))
        axes.axhline(0, color=MUTED, linewidth=0.5)
        axes.set_xticks([])
        axes.set_yticks([-limit, 0, limit], [f"{limit:,}", "0", f"{limit:,}"])
        axes.tick_params(length=3, labelsize=SMALL, color=MUTED)
        for place, text, colour in ((0.75, "gangs that start", INK), (0.25, "that are preempted", LOST)):
            axes.annotate(text, (1, place), (6, 0), "axes fraction", "offset points", va="center", color=colour)


def rounds_image(
    rounds: Sequence[Round], lanes: Lanes, coloured: Coloured, round_seconds: float, title: str, subtitle: str, form: str
) -> bytes:
    """Return the figure of some rounds as the bytes of an SVG or PNG file."""
    return image_bytes(
        lambda: RoundsFigure(rounds, lanes, coloured, round_seconds).draw(title, subtitle), STYLE, form, ground="white"
    )


DECADES = [factor * 10.0**power for power in range(-9, 16) for factor in (1, 2, 5)]

UNITS = (
    ("seconds", 1, 120, (1, 2, 5, 10, 15, 30, 60)),
    ("minutes", 60, 2 * 3600, (1, 2, 5, 10, 15, 30, 60)),
    ("hours", 3600, 72 * 3600, (0.5, 1, 2, 3, 6, 12, 24)),
    ("days", 86400, math.inf, (0.5, 1, 2, 7, 14, 28)),
)
"""(name, seconds, longest time span in seconds that is shown in this unit, steps between ticks); longer steps, and fractions of
seconds, are from `DECADES`."""

Tick = tuple[float, str]


def round_ticks(rounds: Sequence[Round], limit: float) -> list[Tick]:
    """Return at most about `limit` ticks (position, label) at the middles of rounds."""
    step = next(step for step in DECADES if step >= 1 and len(rounds) <= step * limit)
    return [(position + 0.5, str(each.index)) for position, each in enumerate(rounds) if each.index % step == 0]


def time_ticks(rounds: Sequence[Round], round_seconds: float, limit: float) -> tuple[str, list[Tick]]:
    """Return a unit and at most about `limit` ticks (position, label) at multiples of a step.

    Positions are interpolated between the starts of rounds.
    """
    starts = np.maximum.accumulate([each.start_seconds for each in rounds])
    edges = np.append(starts, starts[-1] + round_seconds)
    name, length, _, usual = next(unit for unit in UNITS if edges[-1] - edges[0] <= unit[2])
    fractions = [step for step in DECADES if step < 1] if name == "seconds" else []
    steps = [*fractions, *usual, *(step for step in DECADES if step > usual[-1])]
    step = next(step for step in steps if edges[-1] - edges[0] <= step * length * limit)
    first, last = math.ceil(edges[0] / length / step - 1e-9), math.floor(edges[-1] / length / step + 1e-9)
    times = [step * number for number in range(first, last + 1)]
    places = np.interp([time * length for time in times], edges, np.arange(len(edges))).tolist()
    return name, [(place, f"{time:.10g}") for place, time in zip(places, times, strict=True)]
