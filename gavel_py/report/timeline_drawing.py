"""A Gantt chart of rounds: which job holds which GPU, and when.

The chart grows with rounds and GPUs up to a limit, above which both are drawn thinner. Lengths are in points (1/72 inch), positions
along the axes in rounds and lanes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D, blended_transform_factory

from gavel_py.report.figures import DPI, image_bytes
from gavel_py.report.measures import clean, counted, shortened
from gavel_py.report.timeline import (
    LaneGroup,
    Lanes,
    RoundGrid,
    bars_of,
    blocks_of,
    colours_of,
    is_dark,
    spaced,
)
from gavel_py.scheduling.round import Round

PIXEL = 72 / DPI

MAX_LANE, MAX_ROUND = 22.0, 64.0

MAX_HEIGHT, MAX_WIDTH = 1150.0, 1000.0
"""Limits of all lanes and of all rounds together."""

MIN_WIDTH = 400.0
"""Least width of all rounds together, so that the title has room."""

TEXT, SMALL = 8.0, 7.0

MIN_MARKED = 4.0
"""Below this height of a lane or width of a round, a strip of counts replaces the marks of starts and preemptions."""

STRIP = 54.0

MAX_NAME = 28

MIN_LABEL, READABLE, MAX_LABEL = 4.2, 5.0, 8.0
"""Font sizes of job ids in bars; an id is only rotated if it would be smaller than `READABLE` otherwise."""

MAX_SHAPES = 3000
"""Bars that an SVG holds as shapes; more become an image in it."""

INK, MUTED, LOST = "#222222", "#666666", "#CC0000"

STYLE: dict[str, Any] = {"axes.edgecolor": MUTED, "text.color": INK, "font.size": TEXT}


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in the default font."""
    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


@lru_cache(maxsize=10_000)
def _width_per_point(text: str) -> float:
    """Return the width of a text divided by its font size."""
    return max(0.1, text_width(text, TEXT) / TEXT)


def _name(group: LaneGroup) -> str:
    return shortened(clean(group.name), MAX_NAME)


def _type_lines(group: LaneGroup) -> list[str]:
    return [_name(group), counted(group.size, "GPU")]


class RoundsFigure:
    """The figure of some rounds, laid out when it is made and drawn by `draw`."""

    def __init__(
        self, rounds: Sequence[Round], lanes: Lanes, grid: RoundGrid, round_seconds: float, title: str, subtitle: str
    ) -> None:
        self.rounds, self.lanes, self.grid, self.round_seconds = rounds, lanes, grid, round_seconds
        self.blocks, self.colours = blocks_of(bars_of(grid, rounds), lanes), colours_of(grid)
        self.num_lanes, self.num_rounds = grid.jobs.shape
        lane = min(MAX_LANE, MAX_HEIGHT / self.num_lanes)
        # Thin lanes are whole pixels high, so that they look equal.
        self.lane = lane if lane >= MIN_MARKED or lane < PIXEL else int(lane / PIXEL) * PIXEL
        self.round = max(MIN_WIDTH / self.num_rounds, min(MAX_ROUND, MAX_WIDTH / self.num_rounds))
        self.width, self.height = self.round * self.num_rounds, self.lane * self.num_lanes
        self.has_marks = min(self.lane, self.round) >= MIN_MARKED
        self.has_gpu_numbers = self.lane >= SMALL + 1
        self.named_nodes = spaced(lanes.nodes, (SMALL + 1) / self.lane)
        # Right ends of the columns of type names, node names and GPU numbers; the bars begin at `left`.
        self.types_end = 8 + max(text_width(line, TEXT, bold=True) for group in lanes.types for line in _type_lines(group))
        self.nodes_end = self.types_end + 12 + max(text_width(_name(node), SMALL) for node in self.named_nodes)
        numbers = max(text_width(str(index), SMALL) for _, index in lanes.gpus) + 6 if self.has_gpu_numbers else 0.0
        self.left = self.nodes_end + numbers + 6
        self.title_lines = textwrap.wrap(clean(title), int((self.left + self.width) / (0.62 * 10)))
        self.subtitle_lines = textwrap.wrap(subtitle, int((self.left + self.width) / (0.55 * TEXT)))
        bottom = 54 + (0 if self.has_marks else STRIP)
        top = 36 + 14 * len(self.title_lines) + 11 * len(self.subtitle_lines)
        width, self.total_height = self.left + self.width + 20, top + self.height + bottom
        self.figure = Figure(figsize=(width / 72, self.total_height / 72), dpi=DPI, facecolor="white")
        self.axes = self._add_axes(bottom, self.height)
        self.points = Affine2D().scale(1 / 72) + self.figure.dpi_scale_trans
        """From points to pixels, with the origin at the lower left corner of the figure."""

    def _add_axes(self, bottom: float, height: float) -> Any:
        width, total = 72 * self.figure.get_figwidth(), self.total_height
        return self.figure.add_axes((self.left / width, bottom / total, self.width / width, height / total))

    def draw(self) -> Figure:
        """Draw everything and return the figure."""
        self.axes.set_xlim(0, self.num_rounds)
        self.axes.set_ylim(self.num_lanes, 0)
        self._draw_bars()
        self._draw_lines()
        self._draw_job_ids()
        self._draw_left_side()
        self._draw_times()
        self._draw_title()
        if self.has_marks:
            self._draw_marks()
            self._draw_legend()
        else:
            self._draw_strip()
        return self.figure

    def _draw_bars(self) -> None:
        is_tall = self.lane >= MIN_MARKED  # thinner lanes have no room for edges
        inset = 0.06 if is_tall else 0.0
        corners = []
        for b in self.blocks:
            top, bottom = b.first_lane + inset, b.end_lane - inset
            corners.append([(b.first, top), (b.end, top), (b.end, bottom), (b.first, bottom)])
        bars = PolyCollection(
            corners,
            facecolors=[self.colours[block.job] for block in self.blocks],
            edgecolors="white" if is_tall else "none",
            linewidths=min(0.8, 0.12 * self.round),
            antialiaseds=is_tall,
            zorder=2,
            rasterized=len(self.blocks) > MAX_SHAPES,
        )
        self.axes.add_collection(bars, autolim=False)

    def _draw_lines(self) -> None:
        """Separate GPUs, nodes, types and rounds by lines, as far as there is room."""
        lanes, across = self.lanes, self.num_rounds
        types = [group.first for group in lanes.types[1:]]
        nodes = [node.first for node in lanes.nodes[1:] if node.first not in set(types)]
        if self.lane >= MIN_MARKED:
            starts = {node.first for node in lanes.nodes}
            gpus = [lane for lane in range(self.num_lanes) if lane not in starts]
            self.axes.hlines(gpus, 0, across, colors="#00000016", linewidths=0.4, zorder=3)
        if self.round >= MIN_MARKED:
            self.axes.vlines(range(1, across), 0, self.num_lanes, colors="#0000001C", linewidths=0.4, zorder=1)
        if nodes and self.height / len(lanes.nodes) >= MIN_MARKED:
            self.axes.hlines(nodes, 0, across, colors=MUTED, linewidths=0.5, zorder=4)
        self.axes.hlines(types, 0, across, colors=INK, linewidths=1.6, zorder=4)

    def _draw_job_ids(self) -> None:
        """Write the job id into every bar with enough room, rotated if that allows a readable size."""
        for block in self.blocks:
            high = self.lane * (block.end_lane - block.first_lane)
            wide = self.round * (block.end - block.first) - 8  # without the marks at the ends
            if min(0.75 * high, wide) < MIN_LABEL:
                continue
            job_id = clean(self.grid.job_ids[block.job])
            length = _width_per_point(job_id)
            across, upright = min(MAX_LABEL, 0.75 * high, wide / length), min(MAX_LABEL, 0.75 * wide, (high - 3) / length)
            size, angle = (upright, 90) if upright > max(across, MIN_LABEL) and across < READABLE else (across, 0)
            if size >= MIN_LABEL:
                middle = (block.first + block.end) / 2, (block.first_lane + block.end_lane) / 2
                colour = "white" if is_dark(self.colours[block.job]) else INK
                self.axes.text(*middle, job_id, size=size, rotation=angle, color=colour, ha="center", va="center", zorder=5)

    def _draw_left_side(self) -> None:
        """Write types, nodes and GPU numbers, and continue the lines between types."""
        self.axes.set_yticks([])
        beside = blended_transform_factory(self.points, self.axes.transData)

        def write(x: float, lane: float, text: str, **style: Any) -> None:
            self.axes.text(x, lane, text, transform=beside, va="center", clip_on=False, **style)

        def line(x: float, lane: float, width: float) -> None:
            ends = [x, self.left], [lane, lane]
            self.axes.plot(*ends, transform=beside, color=INK, linewidth=width, clip_on=False, zorder=4)

        for node in self.named_nodes:
            write(self.nodes_end, node.middle, _name(node), ha="right", size=SMALL, color=MUTED)
        if self.has_gpu_numbers:
            for lane, (_, index) in enumerate(self.lanes.gpus):
                write(self.left - 4, lane + 0.5, str(index), ha="right", size=SMALL, color=MUTED)
        else:
            for node in self.named_nodes:
                line(self.left - 4, node.middle, 0.5)
        types = self.lanes.types
        middles = _spread([group.middle for group in types], 2.5 * TEXT / self.lane, self.num_lanes)
        for group, middle in zip(types, middles, strict=True):
            write(6, middle, "\n".join(_type_lines(group)), ha="left", size=TEXT, weight="bold")
            if group.first:
                line(self.types_end + 4, group.first, 1.6)

    def _draw_times(self) -> None:
        """Label the upper edge with round numbers and the lower edge with times."""
        above = self.axes.secondary_xaxis("top")
        numbers = round_ticks(self.rounds, self.width / 28)
        above.set_xticks([place for place, _ in numbers], [label for _, label in numbers])
        above.tick_params(length=0 if self.round >= MIN_MARKED * 3 else 3, labelsize=SMALL, color=MUTED)
        above.set_xlabel("round", fontsize=SMALL, color=MUTED)
        unit, times = time_ticks(self.rounds, self.round_seconds, self.width / 40)
        self.axes.set_xticks([place for place, _ in times], [label for _, label in times])
        self.axes.tick_params(length=3, labelsize=SMALL, color=MUTED)
        self.axes.set_xlabel(f"time, {unit}", fontsize=SMALL, color=MUTED)

    def _draw_title(self) -> None:
        y = self.total_height - 8
        for line in self.title_lines:
            self._write(6, y, line, size=10.0, weight="bold", color=INK, va="top")
            y -= 14
        for line in self.subtitle_lines:
            self._write(6, y, line, size=TEXT, color=MUTED, va="top")
            y -= 11

    def _write(self, x: float, y: float, text: str, **style: Any) -> None:
        self.figure.text(x, y, text, transform=self.points, **style)

    def _draw_marks(self) -> None:
        """Mark starts by a tick over the upper half of the first lane, and preemptions by a line along the end of the bar."""
        aside, inset = 1.2 / self.round, 0.06
        starts, ends = [], []
        for b in self.blocks:
            if b.started:
                starts.append([(b.first + aside, b.first_lane + inset), (b.first + aside, b.first_lane + 0.5)])
            if b.preempted:
                ends.append([(b.end - aside, b.first_lane + inset), (b.end - aside, b.end_lane - inset)])
        for lines, colour in ((starts, INK), (ends, LOST)):
            for ink, width, order in (("white", 3.4, 6), (colour, 1.8, 7)):  # a white outline, for dark bars
                marks = LineCollection(lines, colors=ink, linewidths=width, capstyle="butt", zorder=order)
                self.axes.add_collection(marks, autolim=False)

    def _draw_legend(self) -> None:
        """Explain the marks below the chart."""
        x, y = self.left, 10.0
        for text, colour, at, share in (("starts here", INK, 1.2, 0.5), ("is preempted", LOST, 20.8, 1.0)):
            self.figure.add_artist(Rectangle((x, y), 22, 9, transform=self.points, color="#CCCCCC", linewidth=0))
            ends = [x + at, x + at], [y + 9, y + 9 * (1 - share)]
            mark = Line2D(*ends, transform=self.points, color=colour, linewidth=1.8, solid_capstyle="butt")
            self.figure.add_artist(mark)
            self._write(x + 27, y + 4, text, size=SMALL, color=MUTED, va="center")
            x += 27 + text_width(text, SMALL) + 18
        self._write(x, y + 4, "white: idle", size=SMALL, color=MUTED, va="center")

    def _draw_strip(self) -> None:
        """Plot the numbers of starts and preemptions by round below the chart, where bars are too thin for marks."""
        starts = np.array([len(each.started) for each in self.rounds])
        ends = np.array([len(each.preempted) for each in self.rounds])
        axes = self._add_axes(10.0, STRIP)
        edges = np.arange(len(starts) + 1)
        axes.stairs(starts, edges, fill=True, color=MUTED)
        axes.stairs(-ends, edges, fill=True, color=LOST)
        limit = max(1, int(starts[1:].max(initial=0)), int(ends.max(initial=0)))  # all jobs start in the first round
        if starts[0] > limit:
            note = f"{starts[0]:,} gangs start in round {self.rounds[0].index}"
            axes.text(len(starts), 1.2 * limit, note, size=SMALL, color=MUTED, ha="right", va="bottom")
        axes.set_xlim(0, len(starts))
        axes.set_ylim(-1.1 * limit, 1.1 * limit)
        axes.axhline(0, color=MUTED, linewidth=0.5)
        axes.set_xticks([])
        axes.set_yticks([-limit, 0, limit], [f"{limit:,}", "0", f"{limit:,}"])
        axes.tick_params(length=3, labelsize=SMALL, color=MUTED)
        self._write(6, 10 + 0.75 * STRIP, "gangs that start", size=SMALL, color=INK, va="center")
        self._write(6, 10 + 0.25 * STRIP, "that are preempted", size=SMALL, color=LOST, va="center")


def rounds_image(
    rounds: Sequence[Round], lanes: Lanes, grid: RoundGrid, round_seconds: float, title: str, subtitle: str, form: str
) -> bytes:
    """Return the figure of some rounds as the bytes of an SVG or PNG file."""
    return image_bytes(
        lambda: RoundsFigure(rounds, lanes, grid, round_seconds, title, subtitle).draw(), STYLE, form, ground="white"
    )


def _spread(places: Sequence[float], distance: float, end: float) -> list[float]:
    """Move places down to be at least `distance` apart, then up from the end as far as there is room."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + distance) if found else place)
    latest = max(end - distance / 2, found[0] + distance * (len(found) - 1))
    for n in reversed(range(len(found))):
        found[n] = min(found[n], latest)
        latest = found[n] - distance
    return found


UNITS = (("seconds", 1, 120), ("minutes", 60, 2 * 3600), ("hours", 3600, 72 * 3600), ("days", 86400, math.inf))
"""(name, seconds, longest time span in seconds that is shown in this unit)."""

DECADES = [factor * 10.0**power for power in range(-9, 16) for factor in (1, 2, 5)]

STEPS = {
    "seconds": (1, 2, 5, 10, 15, 30, 60),
    "minutes": (1, 2, 5, 10, 15, 30, 60),
    "hours": (0.5, 1, 2, 3, 6, 12, 24),
    "days": (0.5, 1, 2, 7, 14, 28),
}
"""Steps between the ticks of a time axis; longer ones, and fractions of seconds, are from `DECADES`."""

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
    name, length, _ = next(unit for unit in UNITS if edges[-1] - edges[0] <= unit[2])
    span = (edges[-1] - edges[0]) / length
    fractions = [step for step in DECADES if step < 1] if name == "seconds" else []
    steps = [*fractions, *STEPS[name], *(step for step in DECADES if step > STEPS[name][-1])]
    step = next(step for step in steps if span <= step * limit)
    first, last = math.ceil(edges[0] / length / step - 1e-9), math.floor(edges[-1] / length / step + 1e-9)
    times = [step * number for number in range(first, last + 1)]
    places = np.interp([time * length for time in times], edges, np.arange(len(edges))).tolist()
    return name, [(place, f"{time:.10g}") for place, time in zip(places, times, strict=True)]
