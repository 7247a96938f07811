"""Charts as data, the policies they show, and the colours, dashes and markers of a report.

The eight hues are those of Okabe and Ito, adjusted in lightness for a light and a dark page, so that each has a contrast of at
least 3 with the page and differs from the others in every form of colour vision. Dashes and markers distinguish curves without
colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavel_py.problem.arrays import Floats
from gavel_py.report.measures import SampleMean
from gavel_py.report.metrics import VERDICT
from gavel_py.report.runs import Run
from gavel_py.report.settings import Replications, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS: Mapping[str, tuple[str, str]] = {
    "page": ("#ffffff", "#16191d"),
    "ink": ("#1f2328", "#e6e9ed"),
    "muted": ("#57606a", "#a3acb7"),
    "rule": ("#d0d7de", "#3b424a"),
    "soft": ("#f3f5f7", "#1f242a"),
    "good": ("#1a6b3c", "#6fd49a"),
    "link": ("#0b57a4", "#7db8f0"),
    "tone-0": ("#003493", "#8dcbff"),
    "tone-1": ("#bc7505", "#f4d116"),
    "tone-2": ("#23794e", "#11ff98"),
    "tone-3": ("#b2819d", "#cd788e"),
    "tone-4": ("#202020", "#e8e8e8"),
    "tone-5": ("#573604", "#f64323"),
    "tone-6": ("#1a98ff", "#2c79f3"),
    "tone-7": ("#8a1e67", "#e038ad"),
}
"""Colours of the light and of the dark page."""

LIGHT = {name: light for name, (light, _) in COLOURS.items()}
"""Colours of chart files too. They are distinct, so that `embedded` can map each back to its name."""

DARK = {name: dark for name, (_, dark) in COLOURS.items()}
NUM_STYLES = 8
GAPS = ((5, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5), (3, 1), (8, 2), (6, 1.5, 1.2, 1.5, 1.2, 1.5), (2.5, 2.5))

DASHES = ("solid", *((0, gaps) for gaps in GAPS))
"""Line styles of matplotlib."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True, eq=False)
class Palette:
    """Styles of the drawn policies, by number. load: shown by charts of a single load; note: on policies that are not drawn."""

    setting: Setting
    styles: Mapping[str, int]
    load: float | None
    note: str

    @property
    def title_load(self) -> float | None:
        """The load to name in titles, None if the setting has only one."""
        return self.load if len(self.setting.loads) > 1 else None

    @property
    def groups(self) -> list[Replications]:
        """The groups drawn in charts of a single load."""
        return [group for group in self.setting.at(self.load) if group.policy in self.styles]

    @property
    def examples(self) -> list[tuple[str, Run]]:
        """One run of each drawn policy, with a common seed if there is one."""
        shared = set.intersection(*({seed for seed, _ in group.seeds} for group in self.groups)) if self.groups else set()
        chosen = []
        for group in self.groups:
            seeds = [(seed, runs) for seed, runs in group.seeds if seed in shared] or group.seeds
            chosen.append((group.policy, seeds[0][1][0]))
        return chosen


def palette_of(setting: Setting) -> Palette:
    """Return styles for all policies, or for the best `NUM_STYLES` of them by the first metric of the verdict that they have."""
    policies = setting.policies
    if len(policies) <= NUM_STYLES:
        return Palette(setting, {policy: style for style, policy in enumerate(policies)}, setting.middle_load, "")
    metric = next((each for each in VERDICT if each.name in setting.metrics), VERDICT[0])
    sign = -1.0 if metric.best == "most" else 1.0
    estimates = ((group.policy, group.estimate(metric.name)) for group in setting.at(setting.middle_load))
    scores = {policy: sign * value.mean for policy, value in estimates if value is not None}
    best = set(sorted(policies, key=lambda policy: scores.get(policy, math.inf))[:NUM_STYLES])
    styles = {policy: style for style, policy in enumerate(policy for policy in policies if policy in best)}
    note = f"Charts show the best {NUM_STYLES} of {len(policies)} policies by {metric.name}; the summary has all."
    return Palette(setting, styles, setting.middle_load, note)


@dataclass(frozen=True)
class Table:
    """Cells as text; the first `text_columns` columns are names, the others numbers. note: on what the table leaves out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text_columns: int = 1


@dataclass(frozen=True)
class Axis:
    """An axis. title: with the unit; log: logarithmic scale; low, high: limits, None to follow the data."""

    title: str
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Curve:
    """y over x, both (P,); NaN leaves a gap. low, high: (P,) limits of a band."""

    label: str
    x: Floats
    y: Floats
    style: int = 0
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves in one frame. title: "" for a single panel; mark: x of a dotted vertical line, if any."""

    curves: Sequence[Curve]
    y: Axis
    title: str = ""
    mark: float | None = None


@dataclass(frozen=True)
class PlottedPoint:
    """x and y with their intervals; best: the point is Pareto-optimal."""

    label: str
    x: SampleMean
    y: SampleMean
    best: bool
    style: int = 0


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart. name: of its file, without suffix; description: alternative text and caption; draw: makes the figure."""

    name: str
    title: str
    description: str
    draw: Callable[[], Figure]
    table: Table
