"""Where things stand in a picture of rounds. Lengths are in points, 72 to the inch.

The picture grows with rounds and GPUs up to a bound, beyond which they are drawn thinner. Round numbers and times along the picture
are as many as there is room for, at even steps.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from gavel_py.report.measures import clean, counted, shortened
from gavel_py.report.timeline import Bar, Group, Lanes
from gavel_py.scheduling.round import Round

Mark = tuple[float, str]

DPI = 150

PIXEL = 72 / DPI

HIGHEST, WIDEST = 1150.0, 1000.0
"""Most points that lanes and rounds take."""

NARROWEST = 400.0
"""Least points that rounds take together, so that there is room for the title."""

LANE, ROUND = 22.0, 64.0
"""Points that a lane and a round take where there is room."""

TEXT, SMALL = 8.0, 7.0

LEAST_MARKED = 4.0
"""Lanes and rounds thinner than this get no marks of starts and preemptions; a strip below counts them instead."""

STRIP = 54.0

LONGEST_NAME = 28


@dataclass(frozen=True)
class Scene:
    """What is to be drawn. colours: of each job, as numbered in the blocks."""

    lanes: Lanes
    rounds: Sequence[Round]
    round_seconds: float
    job_ids: Sequence[str]
    colours: Sequence[str]
    blocks: Sequence[Bar]
    title: str
    subtitle: str


@dataclass(frozen=True)
class Layout:
    """Where things stand, in points from the left and from the bottom."""

    scene: Scene

    @cached_property
    def lane(self) -> float:
        """Height of a lane."""
        lane = min(LANE, HIGHEST / len(self.scene.lanes.gpus))
        # Whole pixels, so that thin lanes are all of one height.
        return lane if lane >= LEAST_MARKED or lane < PIXEL else int(lane / PIXEL) * PIXEL

    @cached_property
    def round(self) -> float:
        """Width of a round."""
        count = len(self.scene.rounds)
        return max(NARROWEST / count, min(ROUND, WIDEST / count))

    @property
    def is_marked(self) -> bool:
        """Whether starts and preemptions are marked at the bars."""
        return min(self.lane, self.round) >= LEAST_MARKED

    @property
    def numbers_gpus(self) -> bool:
        """Whether GPUs have their number at the left."""
        return self.lane >= SMALL + 1

    @cached_property
    def node_names(self) -> list[Group]:
        """The nodes that have their name at the left, as many as there is room for."""
        shown: list[Group] = []
        for node in self.scene.lanes.nodes:
            if not shown or (node.middle - shown[-1].middle) * self.lane >= SMALL + 1:
                shown.append(node)
        return shown

    @cached_property
    def left_of(self) -> tuple[float, float, float]:
        """Where the columns at the left end: types, nodes, GPU numbers; the last is where the rounds begin."""
        types = 8 + max(text_width(line, TEXT, bold=True) for kind in self.scene.lanes.types for line in type_label(kind))
        nodes = types + 12 + max(text_width(name_of(node), SMALL) for node in self.node_names)
        numbers = max(text_width(str(index), SMALL) for _, index in self.scene.lanes.gpus) + 6 if self.numbers_gpus else 0.0
        return types, nodes, nodes + numbers + 6

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the bars together."""
        return self.round * len(self.scene.rounds), self.lane * len(self.scene.lanes.gpus)

    @cached_property
    def title_lines(self) -> list[str]:
        """The title, as wide as the picture."""
        return textwrap.wrap(clean(self.scene.title), int((self.left_of[2] + self.size[0]) / (0.62 * 10)))

    @cached_property
    def subtitle_lines(self) -> list[str]:
        """The line under the title, as wide as the picture."""
        return textwrap.wrap(self.scene.subtitle, int((self.left_of[2] + self.size[0]) / (0.55 * TEXT)))

    @property
    def top(self) -> float:
        """Room above the bars: title and round numbers."""
        return 36 + 14 * len(self.title_lines) + 11 * len(self.subtitle_lines)

    @property
    def bottom(self) -> float:
        """Room below the bars: times and what marks mean, or the strip."""
        return 54 + (0 if self.is_marked else STRIP)

    @property
    def figure(self) -> tuple[float, float]:
        """Width and height of the picture."""
        width, height = self.size
        return self.left_of[2] + width + 20, self.top + height + self.bottom


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return how wide a text is, in points."""
    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def name_of(group: Group) -> str:
    """Return the name of a node or a type as it stands at the left."""
    return shortened(clean(group.name), LONGEST_NAME)


def type_label(kind: Group) -> list[str]:
    """Return the lines that stand at the left of an accelerator type."""
    count = kind.end - kind.first
    return [name_of(kind), counted(count, "GPU")]


UNITS = (("seconds", 1, 120), ("minutes", 60, 2 * 3600), ("hours", 3600, 72 * 3600), ("days", 86400, math.inf))
"""Name, length in seconds, and the longest time that is told in it, in seconds."""

EVEN = {
    "seconds": (1, 2, 5, 10, 15, 30, 60),
    "minutes": (1, 2, 5, 10, 15, 30, 60),
    "hours": (0.5, 1, 2, 3, 6, 12, 24),
    "days": (0.5, 1, 2, 7, 14, 28),
}


def round_marks(rounds: Sequence[Round], room: float) -> list[Mark]:
    """Return at most `room` or so (position, label): the middles of rounds, of which the position is the left side."""
    step = next(step for step in _decades() if step >= 1 and len(rounds) <= step * room)
    return [(position + 0.5, str(each.index)) for position, each in enumerate(rounds) if each.index % step == 0]


def time_marks(rounds: Sequence[Round], round_seconds: float, room: float) -> tuple[str, list[Mark]]:
    """Return the unit and at most `room` or so (position, label) of even times; between starts of rounds time goes evenly."""
    starts = np.maximum.accumulate([each.start_seconds for each in rounds])
    edges = np.append(starts, starts[-1] + round_seconds)
    name, length, _ = next(unit for unit in UNITS if edges[-1] - edges[0] <= unit[2])
    span = (edges[-1] - edges[0]) / length
    step = next(step for step in _steps(name) if span <= step * room)
    first, last = math.ceil(edges[0] / length / step - 1e-9), math.floor(edges[-1] / length / step + 1e-9)
    times = [step * number for number in range(first, last + 1)]
    places = np.interp([time * length for time in times], edges, np.arange(len(edges))).tolist()
    return name, [(place, f"{time:.10g}") for place, time in zip(places, times, strict=True)]


def duration(seconds: float) -> str:
    """Return a length of time in the unit that suits it.

    >>> duration(360), duration(5400)
    ('6 min', '1.5 h')
    """
    for name, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.4g} {name}"
    return f"{seconds:.4g} s"


def _steps(unit: str) -> Iterator[float]:
    if unit == "seconds":
        yield from (step for step in _decades() if step < 1)
    yield from EVEN[unit]
    yield from (step for step in _decades() if step > EVEN[unit][-1])


def _decades() -> Iterator[float]:
    """1, 2, 5 and 10 times each power of ten, from small to large."""
    for power in range(-9, 16):
        yield from (factor * 10.0**power for factor in (1, 2, 5))
