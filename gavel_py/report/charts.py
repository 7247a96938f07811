"""Charts as plain data: what is drawn and what stands in the table beside it; nothing here knows how to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.report.estimates import Estimate
from gavel_py.report.round_grid import RoundGrid
from gavel_py.report.stay_lanes import StayLanes

__all__ = ["Axis", "Bar", "Bars", "Chart", "Curve", "Drawing", "Heat", "Lines", "Panel", "Point", "Points", "StayPicture", "Table"]

FloatArray = NDArray[np.float64]


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
    """Curves in one frame. title: what it shows, where there are several; mark: an x at which a line stands, None for none."""

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
class StayPicture:
    """GPUs from the top down, time to the right.

    grid: who has which GPU in each of even stretches of time; colours: of each job, as numbered there; is_image: the grid is drawn,
    and of its GPUs each `every`-th; otherwise the blocks of the lanes are.
    """

    lanes: StayLanes
    grid: RoundGrid
    colours: Sequence[str]
    is_image: bool
    every: int


Drawing = Lines | Bars | Points | Heat | StayPicture


@dataclass(frozen=True, eq=False)
class Chart:
    """name: of its file, without an ending; told: what it shows, in words, for those who do not see it and for all others."""

    name: str
    title: str
    told: str
    drawing: Drawing
    table: Table
