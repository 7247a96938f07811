"""GPUs and time: which job was on which GPU, and when; as shapes where these are few, as an image where they are many."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from gavel_py.report.charts import StayPicture
from gavel_py.report.colours import is_dark
from gavel_py.report.figures.frame import SMALL, new_figure
from gavel_py.report.lanes import Group
from gavel_py.report.measures import Measure
from gavel_py.report.round_grid import IDLE
from gavel_py.report.safe_text import clean, shortened
from gavel_py.report.stay_lanes import Block
from gavel_py.report.tones import LIGHT
from gavel_py.report.wording import of_count

__all__ = ["stays_figure"]

WIDE = 960.0
LANE, HIGHEST = 18.0, 620.0
LONGEST_NAME = 20
LETTER = 5.6
"""Points that a letter takes in a bar, about."""

BLACK, WHITE = "#000000", "#fefefe"


def stays_figure(picture: StayPicture) -> Figure:
    """Draw lanes by node and type, with a job's name in each bar that has room for it."""
    lanes = picture.lanes
    high = min(LANE * lanes.count, HIGHEST)
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


def _draw_shapes(axes: Axes, picture: StayPicture, unit: float, lane: float) -> None:
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


def _draw_image(axes: Axes, picture: StayPicture, unit: float) -> None:
    """An image with nothing where no job is, so that the page shows through."""
    jobs = picture.grid.jobs[:: picture.every]
    palette = np.array([to_rgba(colour) for colour in picture.colours] + [(0.0, 0.0, 0.0, 0.0)])
    image = (palette[np.where(jobs == IDLE, len(picture.colours), jobs)] * 255).round().astype(np.uint8)
    right = (picture.lanes.end_seconds - picture.lanes.start_seconds) / unit
    axes.imshow(image, extent=(0, right, picture.lanes.count, 0), aspect="auto", interpolation="none")


def _draw_names(axes: Axes, picture: StayPicture, lane: float) -> None:
    """Nodes and types at the left, as many as there is room for; a line between types."""
    apart = (SMALL + 2) / lane
    nodes: list[Group] = []
    for node in picture.lanes.nodes:
        if not nodes or node.middle - nodes[-1].middle >= apart:
            nodes.append(node)
    axes.set_yticks([node.middle for node in nodes], [shortened(clean(node.name), LONGEST_NAME) for node in nodes], size=SMALL)
    axes.tick_params(axis="y", length=0)
    if len(nodes) == len(picture.lanes.nodes):
        axes.hlines([node.end for node in nodes[:-1]], 0, 1, LIGHT["muted"], linewidth=0.4, transform=axes.get_yaxis_transform())
    place = -np.inf
    for kind in picture.lanes.types:
        if kind.first:
            axes.axhline(kind.first, color=LIGHT["ink"], linewidth=1.2, zorder=4)
        place = max(kind.middle, place + apart)
        text = f"{shortened(clean(kind.name), LONGEST_NAME)}: {of_count(kind.end - kind.first, 'GPU')}"
        axes.text(1.005, place, text, transform=axes.get_yaxis_transform(), va="center", size=SMALL)
