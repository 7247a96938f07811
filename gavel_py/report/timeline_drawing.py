"""A picture of rounds, which job has which GPU, and when, drawn with matplotlib, which comes with `gavel-py[plot]`.

`timeline_layout` says where things stand.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from gavel_py.errors import Fault, InputError
from gavel_py.io.writing import FORMATS, check_plot, write_whole
from gavel_py.problem.cluster import Cluster
from gavel_py.report.measures import clean, counted
from gavel_py.report.timeline import RoundGrid, bars_of, blocks_of, colours_of, grid_of, is_dark, lanes_of
from gavel_py.report.timeline_layout import (
    DPI,
    LEAST_MARKED,
    SMALL,
    STRIP,
    TEXT,
    Layout,
    Scene,
    duration,
    name_of,
    round_marks,
    text_width,
    time_marks,
    type_label,
)
from gavel_py.scheduling.delivery import DeliveryReport
from gavel_py.scheduling.round import Round

LEAST_LABEL, READABLE, LARGEST_LABEL = 4.2, 5.0, 8.0
"""Sizes of the job ids in bars; they stand upright only where they would be smaller than the second."""

MOST_SHAPES = 3000
"""Bars that an SVG holds as shapes; more become an image in it."""

INK, MUTED = "#222222", "#666666"

LOST = "#CC0000"

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "gavel-py",  # ids in an SVG are random without it
    "svg.fonttype": "none",  # text that can be searched
    "text.parse_math": False,  # a job may be called "a$b$c"
    "axes.edgecolor": MUTED,
    "text.color": INK,
    "font.size": TEXT,
}


def drawn(scene: Scene, form: str) -> bytes:
    """Return the picture as the bytes of an SVG or PNG file."""
    with mpl.rc_context(), warnings.catch_warnings():
        # Letters that the font does not have are drawn as boxes in a PNG, and by the viewer's font in an SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()  # the same picture, whatever the user's settings
        mpl.rcParams.update(STYLE)
        layout = Layout(scene)
        width, height = layout.figure
        figure = Figure(figsize=(width / 72, height / 72), dpi=DPI, facecolor="white")
        left, (across, down) = layout.left_of[2], layout.size
        axes = figure.add_axes((left / width, layout.bottom / height, across / width, down / height))
        axes.set_xlim(0, len(scene.rounds))
        axes.set_ylim(len(scene.lanes.gpus), 0)
        _bars(axes, layout, as_image=form == "svg" and len(scene.blocks) > MOST_SHAPES)
        _lines(axes, layout)
        _labels(axes, layout)
        _left_side(axes, layout)
        _times(axes, layout)
        _head(figure, layout)
        if layout.is_marked:
            _marks(axes, layout)
            _key(figure, layout)
        else:
            _strip(figure, layout)
        content = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(content, format=form, dpi=DPI, metadata=metadata)
        return content.getvalue()


def _label_size(text: str, along: float, aside: float) -> float:
    """The size at which a text fits into so much room along and aside its line."""
    return min(LARGEST_LABEL, 0.75 * aside, along / _width_per_point(text))


@lru_cache(maxsize=10_000)
def _width_per_point(text: str) -> float:
    """By how much a point of size makes a text wider."""
    return max(0.1, text_width(text, TEXT) / TEXT)


def _bars(axes: Axes, layout: Layout, *, as_image: bool) -> None:
    scene = layout.scene
    is_tall = layout.lane >= LEAST_MARKED  # what is thinner has no room for edges: colours tell neighbours apart
    inset = 0.06 if is_tall else 0.0
    corners = [
        [(b.first, b.first_lane + inset), (b.end, b.first_lane + inset), (b.end, b.end_lane - inset), (b.first, b.end_lane - inset)]
        for b in scene.blocks
    ]
    bars = PolyCollection(
        corners,
        facecolors=[scene.colours[block.job] for block in scene.blocks],
        edgecolors="white" if is_tall else "none",
        linewidths=min(0.8, 0.12 * layout.round),
        antialiaseds=is_tall,
        zorder=2,
        rasterized=as_image,
    )
    axes.add_collection(bars, autolim=False)


def _lines(axes: Axes, layout: Layout) -> None:
    """Lines between GPUs, nodes and types, and between rounds, each where there is room for them."""
    lanes = layout.scene.lanes
    types = [kind.first for kind in lanes.types[1:]]
    nodes = [node.first for node in lanes.nodes[1:] if node.first not in set(types)]
    across = len(layout.scene.rounds)
    if layout.lane >= LEAST_MARKED:
        starts = {node.first for node in lanes.nodes}
        gpus = [lane for lane in range(len(lanes.gpus)) if lane not in starts]
        axes.hlines(gpus, 0, across, colors="#00000016", linewidths=0.4, zorder=3)
    if layout.round >= LEAST_MARKED:
        axes.vlines(range(1, across), 0, len(lanes.gpus), colors="#0000001C", linewidths=0.4, zorder=1)
    if nodes and layout.size[1] / len(lanes.nodes) >= LEAST_MARKED:
        axes.hlines(nodes, 0, across, colors=MUTED, linewidths=0.5, zorder=4)
    axes.hlines(types, 0, across, colors=INK, linewidths=1.6, zorder=4)


def _labels(axes: Axes, layout: Layout) -> None:
    """The job's id in every bar that has room for it, upright where that is the better way."""
    scene = layout.scene
    for block in scene.blocks:
        high = layout.lane * (block.end_lane - block.first_lane)
        wide = layout.round * (block.end - block.first) - 8  # so that no mark is covered
        if min(0.75 * high, wide) < LEAST_LABEL:
            continue
        job_id = clean(scene.job_ids[block.job])
        across, upright = _label_size(job_id, wide, high), _label_size(job_id, high - 3, wide)
        size, angle = (upright, 90) if upright > max(across, LEAST_LABEL) and across < READABLE else (across, 0)
        if size >= LEAST_LABEL:
            middle = (block.first + block.end) / 2, (block.first_lane + block.end_lane) / 2
            colour = "white" if is_dark(scene.colours[block.job]) else INK
            axes.text(*middle, job_id, size=size, rotation=angle, color=colour, ha="center", va="center", zorder=5)


def _left_side(axes: Axes, layout: Layout) -> None:
    """Types, nodes and GPU numbers; lines between types go on to the left."""
    lanes = layout.scene.lanes
    types, nodes, left = layout.left_of
    axes.set_yticks([])

    def write(x: float, lane: float, text: str, **style: object) -> None:
        place = (x - left) / layout.size[0]
        axes.text(place, lane, text, transform=axes.get_yaxis_transform(), va="center", clip_on=False, **style)  # type: ignore[arg-type]

    def line(x: float, lane: float, width: float) -> None:
        ends = [(x - left) / layout.size[0], 0]
        axes.plot(ends, [lane, lane], transform=axes.get_yaxis_transform(), color=INK, linewidth=width, clip_on=False, zorder=4)

    for node in layout.node_names:
        write(nodes, node.middle, name_of(node), ha="right", size=SMALL, color=MUTED)
    if layout.numbers_gpus:
        for lane, (_, index) in enumerate(lanes.gpus):
            write(left - 4, lane + 0.5, str(index), ha="right", size=SMALL, color=MUTED)
    else:
        for node in layout.node_names:
            line(left - 4, node.middle, 0.5)
    height = 2.5 * TEXT / layout.lane
    for kind, middle in zip(lanes.types, _spread([kind.middle for kind in lanes.types], height, len(lanes.gpus)), strict=True):
        write(6, middle, "\n".join(type_label(kind)), ha="left", size=TEXT, weight="bold")
        if kind.first:
            line(types + 4, kind.first, 1.6)


def _spread(places: Sequence[float], least: float, end: float) -> list[float]:
    """Move places apart, so that each is at least `least` below the one above, and none below the end while there is room."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + least) if found else place)
    latest = max(end - least / 2, found[0] + least * (len(found) - 1))
    for n in reversed(range(len(found))):
        found[n] = min(found[n], latest)
        latest = found[n] - least
    return found


def _times(axes: Axes, layout: Layout) -> None:
    """Round numbers above, times below."""
    scene = layout.scene
    above = axes.secondary_xaxis("top")
    numbers = round_marks(scene.rounds, layout.size[0] / 28)
    above.set_xticks([place for place, _ in numbers], [label for _, label in numbers])
    above.tick_params(length=0 if layout.round >= LEAST_MARKED * 3 else 3, labelsize=SMALL, color=MUTED)
    above.set_xlabel("round", fontsize=SMALL, color=MUTED)
    unit, times = time_marks(scene.rounds, scene.round_seconds, layout.size[0] / 40)
    axes.set_xticks([place for place, _ in times], [label for _, label in times])
    axes.tick_params(length=3, labelsize=SMALL, color=MUTED)
    axes.set_xlabel(f"time, {unit}", fontsize=SMALL, color=MUTED)


def _head(figure: Figure, layout: Layout) -> None:
    width, height = layout.figure
    y = height - 8
    for lines, size, step, colour in ((layout.title_lines, 10.0, 14, INK), (layout.subtitle_lines, TEXT, 11, MUTED)):
        for line in lines:
            weight = "bold" if size > TEXT else "normal"
            figure.text(6 / width, y / height, line, size=size, weight=weight, color=colour, va="top")
            y -= step


def _marks(axes: Axes, layout: Layout) -> None:
    """A tick where a gang started, from the top of its bar half down; a line at the end of a bar that was preempted."""
    aside, inset = 1.2 / layout.round, 0.06
    starts = [
        [(block.first + aside, block.first_lane + inset), (block.first + aside, block.first_lane + 0.5)]
        for block in layout.scene.blocks
        if block.started
    ]
    ends = [
        [(block.end - aside, block.first_lane + inset), (block.end - aside, block.end_lane - inset)]
        for block in layout.scene.blocks
        if block.preempted
    ]
    for lines, colour in ((starts, INK), (ends, LOST)):
        for ink, width, order in (("white", 3.4, 6), (colour, 1.8, 7)):  # white around it, for dark bars
            marks = LineCollection(lines, colors=ink, linewidths=width, capstyle="butt", zorder=order)
            axes.add_collection(marks, autolim=False)


def _key(figure: Figure, layout: Layout) -> None:
    """What the marks mean, at the foot of the picture."""
    width, height = layout.figure
    x, y = layout.left_of[2], 10.0
    for text, colour, at, share in (("starts here", INK, 1.2, 0.5), ("is preempted", LOST, 20.8, 1.0)):
        figure.add_artist(Rectangle((x / width, y / height), 22 / width, 9 / height, color="#CCCCCC", linewidth=0))
        ends = [(y + 9) / height, (y + 9 * (1 - share)) / height]
        place = (x + at) / width
        figure.add_artist(Line2D([place, place], ends, color=colour, linewidth=1.8, solid_capstyle="butt"))
        figure.text((x + 27) / width, (y + 4) / height, text, size=SMALL, color=MUTED, va="center")
        x += 27 + text_width(text, SMALL) + 18
    figure.text(x / width, (y + 4) / height, "white: idle", size=SMALL, color=MUTED, va="center")


def _strip(figure: Figure, layout: Layout) -> None:
    """How many gangs start and are preempted in each round, where the bars are too thin for marks."""
    width, height = layout.figure
    starts = np.array([len(each.started) for each in layout.scene.rounds])
    ends = np.array([len(each.preempted) for each in layout.scene.rounds])
    bottom, left = 10.0, layout.left_of[2]
    axes = figure.add_axes((left / width, bottom / height, layout.size[0] / width, STRIP / height))
    edges = np.arange(len(starts) + 1)
    axes.stairs(starts, edges, fill=True, color=MUTED)
    axes.stairs(-ends, edges, fill=True, color=LOST)
    most = max(1, int(starts[1:].max(initial=0)), int(ends.max(initial=0)))  # in the first round all that run start
    if starts[0] > most:
        told = f"{starts[0]:,} gangs start in round {layout.scene.rounds[0].index}"
        axes.text(len(starts), 1.2 * most, told, size=SMALL, color=MUTED, ha="right", va="bottom")
    axes.set_xlim(0, len(starts))
    axes.set_ylim(-1.1 * most, 1.1 * most)
    axes.axhline(0, color=MUTED, linewidth=0.5)
    axes.set_xticks([])
    axes.set_yticks([-most, 0, most], [f"{most:,}", "0", f"{most:,}"])
    axes.tick_params(length=3, labelsize=SMALL, color=MUTED)
    for text, y, colour in (("gangs that start", 0.75, INK), ("that are preempted", 0.25, LOST)):
        place = (6 - left) / layout.size[0]
        axes.text(place, y, text, transform=axes.transAxes, size=SMALL, color=colour, ha="left", va="center", clip_on=False)


def plot_rounds(
    rounds: Iterable[Round],
    cluster: Cluster,
    path: str | Path,
    *,
    round_seconds: float,
    delivery: DeliveryReport | None = None,
    policy: str | None = None,
) -> None:
    """Draw rounds that follow one another to an SVG or PNG file: time to the right, GPUs by type and node from the top down.

    A bar is a gang's stay on its GPUs, with marks where it started and where it was preempted; a GPU that nobody has stays white.
    cluster: whose GPUs are drawn, that of the scheduler; delivery, policy: what the title tells besides.
    The same input makes the same bytes, under one version of matplotlib. The file is written whole or not at all.

    Raises `InputError` as `check_plot` does, when there is nothing to draw, for rounds that do not follow one another, and for GPUs
    that the cluster does not have or that two jobs have.
    """
    check_plot(path)
    if not (isinstance(round_seconds, Real) and math.isfinite(round_seconds) and round_seconds > 0):
        raise InputError(Fault("", "round_seconds", f"must be a finite number greater than 0, found {round_seconds!r}"))
    lanes, rounds = lanes_of(cluster), list(rounds)
    grid = grid_of(rounds, lanes)
    from gavel_py.report.timeline_layout import Scene

    scene = Scene(
        lanes=lanes,
        rounds=rounds,
        round_seconds=float(round_seconds),
        job_ids=grid.job_ids,
        colours=colours_of(grid),
        blocks=blocks_of(bars_of(grid, rounds), lanes),
        title=", ".join(_title(grid, rounds, round_seconds, policy)),
        subtitle=", ".join(_subtitle(grid, rounds, delivery)),
    )
    write_whole(path, drawn(scene, FORMATS[Path(path).suffix.lower()]))


def _title(grid: RoundGrid, rounds: Sequence[Round], round_seconds: float, policy: str | None) -> Iterator[str]:
    head = "" if policy is None else f"{policy}: "
    yield f"{head}{counted(len(rounds), 'round')} of {duration(round_seconds)}"
    yield counted(len(grid.jobs), "GPU")


def _subtitle(grid: RoundGrid, rounds: Sequence[Round], delivery: DeliveryReport | None) -> Iterator[str]:
    ran = len(grid.job_ids)
    in_all = ran if delivery is None else len(delivery.jobs)
    yield f"{ran:,} of {counted(in_all, 'job')} ran" if in_all > ran else f"{counted(ran, 'job')} ran"
    yield f"{grid.used_share:.1%} of GPU time used"
    yield counted(sum(len(each.started) for each in rounds), "start")
    yield counted(sum(len(each.preempted) for each in rounds), "preemption")
    if delivery is not None:
        yield f"{delivery.undelivered_share:.2%} of what was promised is still owed"
