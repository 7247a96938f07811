"""Charts as plain data, the policies that are drawn, and the colours, dashes and markers of a report; nothing here draws.

A `Chart` is what is drawn and the table beside it. `palette_of` chooses the policies and their styles, the same in all charts of a
setting. The eight hues are those of Okabe and Ito, for a light and a dark page, as light or dark as it takes for each to stand out
from the page (a contrast of 3 at least) and from each of the others with any kind of colour vision. Dashes and markers tell curves
apart without any colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.report.measures import Estimate, estimate
from gavel_py.report.runs import Run
from gavel_py.report.settings import Group, Setting
from gavel_py.report.timeline import RoundGrid, StayLanes

FloatArray = NDArray[np.float64]

LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "ink": "#1f2328",
    "muted": "#57606a",
    "rule": "#d0d7de",
    "soft": "#f3f5f7",
    "good": "#1a6b3c",
    "link": "#0b57a4",
    "tone-0": "#003493",
    "tone-1": "#bc7505",
    "tone-2": "#23794e",
    "tone-3": "#b2819d",
    "tone-4": "#202020",
    "tone-5": "#573604",
    "tone-6": "#1a98ff",
    "tone-7": "#8a1e67",
}
"""By name, for the light page and for files of charts; no two are the same, so that each can be found again in a drawing."""

DARK: Mapping[str, str] = {
    "page": "#16191d",
    "ink": "#e6e9ed",
    "muted": "#a3acb7",
    "rule": "#3b424a",
    "soft": "#1f242a",
    "good": "#6fd49a",
    "link": "#7db8f0",
    "tone-0": "#8dcbff",
    "tone-1": "#f4d116",
    "tone-2": "#11ff98",
    "tone-3": "#cd788e",
    "tone-4": "#e8e8e8",
    "tone-5": "#f64323",
    "tone-6": "#2c79f3",
    "tone-7": "#e038ad",
}
"""The same names for the dark page."""

NUM_STYLES = 8

DASHES = (
    "solid",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1)),
    (0, (8, 2)),
    (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)),
    (0, (2.5, 2.5)),
)
"""In the way of matplotlib."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def tone_names() -> dict[str, str]:
    """Return {colour of the light page: its name}."""
    return {colour: name for name, colour in LIGHT.items()}


RANKING_METRICS = ("mean_jct_seconds", "makespan_seconds", "cost")
"""Metrics by which policies are chosen where there are too many to draw: the first that any of them has."""


@dataclass(frozen=True, eq=False)
class Palette:
    """styles: number of the style of each policy that is drawn; load: at which charts are that show one; note: who is not drawn."""

    setting: Setting
    styles: Mapping[str, int]
    load: float | None
    note: str

    @property
    def title_load(self) -> float | None:
        """The load that titles tell: none where all charts are of the same."""
        return self.load if len(self.setting.loads) > 1 else None

    @property
    def groups(self) -> list[Group]:
        """The groups drawn in charts of one load."""
        return [group for group in self.setting.at(self.load) if group.policy in self.styles]

    @property
    def examples(self) -> list[tuple[str, Run]]:
        """One run of each policy drawn, of the same seed where there is one that all have."""
        shared = set.intersection(*({seed for seed, _ in group.seeds} for group in self.groups)) if self.groups else set()
        chosen = []
        for group in self.groups:
            seeds = [(seed, runs) for seed, runs in group.seeds if seed in shared] or group.seeds
            chosen.append((group.policy, seeds[0][1][0]))
        return chosen


def palette_of(setting: Setting) -> Palette:
    """Return who is drawn: all policies, or the best of them where there are more than can be description apart."""
    policies = setting.policies
    if len(policies) <= NUM_STYLES:
        return Palette(setting, {policy: style for style, policy in enumerate(policies)}, setting.middle_load, "")
    metric = next((name for name in RANKING_METRICS if name in setting.metrics), RANKING_METRICS[0])
    scores = {policy: _score(setting, policy, metric) for policy in policies}
    best = set(sorted(policies, key=lambda policy: scores[policy])[:NUM_STYLES])
    styles = {policy: style for style, policy in enumerate(policy for policy in policies if policy in best)}
    note = f"Drawn are the {NUM_STYLES} of {len(policies)} policies that are best by {metric}; the summary has all."
    return Palette(setting, styles, setting.middle_load, note)


def _score(setting: Setting, policy: str, metric: str) -> float:
    """The metric at the load of the charts; the last place for policies that were not run there."""
    found = estimate(mean for group in setting.of(policy) if group.load == setting.middle_load for mean in group.values(metric))
    return math.inf if found is None else found.mean


@dataclass(frozen=True)
class Table:
    """Cells as text; the first `text_columns` columns are names, the others numbers. note: what is not in it, "" for nothing."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text_columns: int = 1


@dataclass(frozen=True)
class Axis:
    """title: with its unit; log: by powers of ten; low, high: where it begins and ends, None: where the data do."""

    title: str
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Curve:
    """y over x, both (P,), NaN where there is nothing. low, high: a band; style: number of its colour, dash and marker."""

    label: str
    x: FloatArray
    y: FloatArray
    style: int = 0
    low: FloatArray | None = None
    high: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Panel:
    """OverTimeCollector in one frame. title: what it shows, where there are several; mark: an x at which a line stands, None for none."""

    curves: Sequence[Curve]
    y: Axis
    title: str = ""
    mark: float | None = None


@dataclass(frozen=True, eq=False)
class Lines:
    """Frames one below the other over the same x. steps: y holds from one x to the next; dots: every point has its marker."""

    panels: Sequence[Panel]
    x: Axis
    steps: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Bar:
    """A bar with its interval."""

    label: str
    value: Estimate
    style: int = 0


@dataclass(frozen=True)
class Bars:
    """Bars that lie, one for each policy."""

    bars: Sequence[Bar]
    x: Axis


@dataclass(frozen=True)
class Point:
    """x and y with their intervals; best: none of the others is as good in both and better in one."""

    label: str
    x: Estimate
    y: Estimate
    best: bool
    style: int = 0


@dataclass(frozen=True)
class Points:
    """Policies by two numbers of which less is better."""

    points: Sequence[Point]
    x: Axis
    y: Axis


@dataclass(frozen=True, eq=False)
class Heat:
    """values: (rows, columns) in [0, 1], NaN where there is nothing."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: FloatArray


@dataclass(frozen=True, eq=False)
class StayGantt:
    """GPUs from the top down, time to the right.

    grid: who has which GPU in each of even stretches of time; colours: of each job, as numbered there; is_image: the grid is drawn,
    and of its GPUs each `every`-th; otherwise the blocks of the lanes are.
    """

    lanes: StayLanes
    grid: RoundGrid
    colours: Sequence[str]
    is_image: bool
    every: int


Drawing = Lines | Bars | Points | Heat | StayGantt


@dataclass(frozen=True, eq=False)
class Chart:
    """name: of its file, without an ending; description: what it shows, in words, for those who do not see it and for all others."""

    name: str
    title: str
    description: str
    drawing: Drawing
    table: Table
