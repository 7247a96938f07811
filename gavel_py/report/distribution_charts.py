"""How completion times and fairness are spread over jobs: the part of all jobs that stays below each value."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from gavel_py.report.cast import Cast
from gavel_py.report.charts import Axis, Chart, Curve, Lines, Panel, Table
from gavel_py.report.measures import Measure, short
from gavel_py.report.runs import Run
from gavel_py.report.settings import Group
from gavel_py.report.thinning import quantiles
from gavel_py.report.wording import at_load

__all__ = ["distribution_charts"]

POINTS = 150
PARTS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Of all jobs, in the table."""

WIDE = 20.0
"""Values that differ by more than this factor are drawn on an axis of powers of ten."""


def distribution_charts(cast: Cast) -> Iterator[Chart]:
    """Yield one chart of completion times and one of finish-time fairness, where there are any."""
    yield from _chart(
        cast, "completion-times", "Completion times", Measure("completion time", "time"), lambda run: run.jct_seconds, None
    )
    yield from _chart(
        cast,
        "finish-time-fairness",
        "Finish-time fairness ρ",
        Measure("ρ, completion time over that under isolated"),
        lambda run: run.fairness,
        1.0,
    )


def _chart(
    cast: Cast, name: str, title: str, measure: Measure, of_run: Callable[[Run], NDArray[np.float64]], mark: float | None
) -> Iterator[Chart]:
    found = {group.policy: values for group in cast.groups if len(values := _together(group, of_run))}
    if not found:
        return
    medians_high = [float(np.quantile(values, 0.9)) for values in found.values()]
    unit = measure.unit(medians_high)
    curves = [
        Curve(policy, points / unit.size, parts, cast.styles[policy])
        for policy, values in found.items()
        for points, parts in [quantiles(values, POINTS)]
    ]
    heading = unit.heading(measure.title)
    every = np.concatenate(list(found.values()))
    is_wide = bool(every.min() > 0 and every.max() / every.min() > WIDE)
    rows = [[f"{part:.0%}", *(short(float(np.quantile(values, part)) / unit.size) for values in found.values())] for part in PARTS]
    note = f"{heading}; of {', '.join(f'{len(values):,} jobs ({policy})' for policy, values in found.items())}."
    told = f"The part of all jobs{', those of all seeds together,' if _has_seeds(cast) else ''} whose value is no larger than x."
    if mark is not None:
        told += " At the dotted line a job is as well off as with its own part of the cluster; left of it, better."
    y = Axis("part of the jobs", low=0.0, high=1.02)
    drawing = Lines([Panel(curves, y, mark=mark)], Axis(heading, log=is_wide), steps=True)
    yield Chart(
        name, title + at_load(cast.shown_load), told, drawing, Table(["part of the jobs", *found], rows, note, text_columns=0)
    )


def _has_seeds(cast: Cast) -> bool:
    return any(len(group.runs) > 1 for group in cast.groups)


def _together(group: Group, of_run: Callable[[Run], NDArray[np.float64]]) -> NDArray[np.float64]:
    """The finite values of all runs of a group."""
    values: NDArray[np.float64] = np.concatenate([np.asarray(of_run(run), dtype=float) for run in group.runs])
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    return finite
