"""Where things stand in a picture of rounds. Lengths are in points, 72 to the inch.

The picture grows with rounds and GPUs up to a bound, from where on they are drawn thinner.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from gavel_py.report.bars import Bar
from gavel_py.report.lanes import Group, Lanes
from gavel_py.report.safe_text import clean, shortened
from gavel_py.report.wording import of_count
from gavel_py.scheduling.round import Round

__all__ = ["DPI", "LEAST_MARKED", "SMALL", "STRIP", "TEXT", "Layout", "Scene", "name_of", "text_width", "type_label"]

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
    return [name_of(kind), of_count(count, "GPU")]
