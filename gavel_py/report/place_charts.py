"""Where jobs ran: the part of their time that each job type had on each accelerator type, and one run GPU by GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gavel_py.report.charts import Chart, Heat, StayPicture, Table
from gavel_py.report.colours import colours_of
from gavel_py.report.measures import Measure, short
from gavel_py.report.runs import Run, Stay
from gavel_py.report.safe_text import clean
from gavel_py.report.stay_lanes import StayLanes, stay_grid, stay_lanes
from gavel_py.report.wording import of_count

__all__ = ["heat_chart", "stays_chart"]

MOST_JOB_TYPES = 30
"""Rows of a heat map."""

STRETCHES = 800
MOST_SHAPES, MOST_ROWS = 1500, 620
"""Stays drawn as shapes, of more an image is made; and GPUs that it shows, of more each so many-th."""

MOST_STAYS = 200
"""Stays listed one by one; of more there are sums."""


def heat_chart(name: str, title: str, run: Run) -> Iterator[Chart]:
    """Yield the shares of a run as a heat map, if it has any; `name` and `title` are those of the chart."""
    types = list(dict.fromkeys(kind for shares in run.shares.values() for kind in shares))
    if not types:
        return
    values = np.array([[shares.get(kind, np.nan) for kind in types] for shares in run.shares.values()])
    names = [clean(job_type) or "(not said)" for job_type in run.shares]
    rows = [[job_type, *map(short, row)] for job_type, row in zip(names, values.tolist(), strict=True)]
    drawn = np.sort(np.argsort(-np.nansum(values, axis=1), kind="stable")[:MOST_JOB_TYPES])
    told = "The mean part of its time that a job of each type was on each type of accelerator."
    if len(drawn) < len(names):
        told += f" Drawn are the {len(drawn)} of {len(names)} job types with the most time; the table has all."
    columns = [clean(kind) for kind in types]
    heat = Heat([names[row] for row in drawn], columns, values[drawn])
    yield Chart(name, title, told, heat, Table(["job type", *columns], rows))


def stays_chart(name: str, title: str, stays: Sequence[Stay], types: Sequence[str] = ()) -> Iterator[Chart]:
    """Yield one run as GPUs and time, if it tells where gangs were."""
    stays = [stay for stay in stays if stay.gpus > 0 and stay.end_seconds > stay.start_seconds]
    if not stays:
        return
    lanes = stay_lanes(stays, types)
    grid = stay_grid(lanes, STRETCHES)
    is_image, every = len(lanes.blocks) > MOST_SHAPES, -(-lanes.count // MOST_ROWS)
    told = (
        f"{of_count(lanes.count, 'GPU')} from the top down, time to the right. Each bar is a job; nothing is drawn where a "
        "GPU is idle. A run does not tell which GPUs of its node a gang had: it is drawn on the first that are free."
    )
    if is_image:
        of_gpus = f" and one GPU of {every}" if every > 1 else ""
        told += f" Drawn as an image of {STRETCHES} moments{of_gpus}: short stays may be missing."
    picture = StayPicture(lanes, grid, colours_of(grid), is_image, every)
    yield Chart(name, title, told, picture, _table(lanes, stays))


def _table(lanes: StayLanes, stays: Sequence[Stay]) -> Table:
    if len(stays) <= MOST_STAYS:
        unit = Measure("", "time").unit([lanes.end_seconds - lanes.start_seconds])
        times = [(s.start_seconds - lanes.start_seconds, s.end_seconds - lanes.start_seconds) for s in stays]
        rows = [
            [
                clean(s.job_id),
                clean(s.job_type),
                clean(s.accelerator),
                clean(s.node),
                str(s.gpus),
                *(short(t / unit.size) for t in of),
            ]
            for s, of in zip(stays, times, strict=True)
        ]
        headings = ["job", "job type", "accelerator", "node", "GPUs", unit.heading("from"), unit.heading("to")]
        return Table(headings, rows, text_columns=4)
    rows = []
    for kind in lanes.types:
        here = [stay for stay in stays if stay.accelerator == kind.name]
        held = sum(stay.gpus * (stay.end_seconds - stay.start_seconds) for stay in here)
        there = (kind.end - kind.first) * (lanes.end_seconds - lanes.start_seconds)
        jobs = len({stay.job_id for stay in here})
        counts = (kind.end - kind.first, jobs, len(here))
        rows.append([clean(kind.name), *(f"{count:,}" for count in counts), short(held / 3600), f"{held / there:.1%}"])
    note = f"Sums: {len(stays):,} stays are too many to be listed."
    return Table(["accelerator", "GPUs", "jobs", "stays", "GPU-hours", "of the time"], rows, note)
