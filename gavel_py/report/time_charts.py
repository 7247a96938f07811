"""Where jobs ran: the part of their time that each job type had on each accelerator type, and one run GPU by GPU.

What happened over time in one run of each policy: GPUs in use, prices, what was promised and delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.report.charts import Axis, Cast, Chart, Curve, Heat, Lines, Panel, StayPicture, Table
from gavel_py.report.measures import Measure, Unit, at_load, clean, every, label_text, of_count, short, stretches, thinned
from gavel_py.report.runs import OverTime, Run, Stay
from gavel_py.report.timeline import StayLanes, colours_of, stay_grid, stay_lanes

__all__ = ["heat_chart", "stays_chart", "time_charts"]

FloatArray = NDArray[np.float64]

MOST_JOB_TYPES = 30

"""Rows of a heat map."""

STAY_STRETCHES = 800

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
    grid = stay_grid(lanes, STAY_STRETCHES)
    is_image, every = len(lanes.blocks) > MOST_SHAPES, -(-lanes.count // MOST_ROWS)
    told = (
        f"{of_count(lanes.count, 'GPU')} from the top down, time to the right. Each bar is a job; nothing is drawn where a "
        "GPU is idle. A run does not tell which GPUs of its node a gang had: it is drawn on the first that are free."
    )
    if is_image:
        of_gpus = f" and one GPU of {every}" if every > 1 else ""
        told += f" Drawn as an image of {STAY_STRETCHES} moments{of_gpus}: short stays may be missing."
    picture = StayPicture(lanes, grid, colours_of(grid), is_image, every)
    yield Chart(name, title, told, picture, _stay_table(lanes, stays))


def _stay_table(lanes: StayLanes, stays: Sequence[Stay]) -> Table:
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


STRETCHES = 90

ROWS = 31

"""Rows of a table, at even steps."""

MOST_TYPES = 6

AT_FIRST = 0.01

"""Of all that is promised; before, the part of it that was delivered says nothing."""


@dataclass(frozen=True, eq=False)
class _Course:
    """What happened to one policy; limits: of the stretches that are drawn, in seconds since the beginning."""

    policy: str
    over_time: OverTime
    limits: FloatArray

    def thin(self, values: FloatArray) -> FloatArray:
        return thinned(self.over_time.seconds - self.over_time.seconds[0], values, self.limits)


def time_charts(cast: Cast) -> Iterator[Chart]:
    """Yield charts over time of the runs that have it."""
    courses = [
        _Course(policy, run.over_time, stretches(run.over_time.seconds - run.over_time.seconds[0], STRETCHES))
        for policy, run in cast.examples
        if run.over_time is not None and len(run.over_time.seconds) > 1
    ]
    if not courses:
        return
    seeds = sorted({label_text(run.labels["seed"]) for _, run in cast.examples if run.labels.get("seed") is not None})
    of_seed = f" (seed {', '.join(seeds)})" if seeds else ""
    of_runs = f"One run of each policy{of_seed}." if len(courses) > 1 else ""
    drawn = _Drawn(cast, courses, Measure("time", "time").unit(course.limits[-1] for course in courses), of_runs)
    yield from drawn.by_type("utilization-over-time", "GPUs in use", "share in use", lambda each: each.used, high=1.02)
    yield from drawn.delivery()
    yield from drawn.by_type("prices-over-time", "Price of one more GPU", "price", lambda each: each.prices)
    yield from drawn.jobs()


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The charts of these courses. unit: of their time axis."""

    cast: Cast
    courses: Sequence[_Course]
    unit: Unit
    of_runs: str

    def by_type(
        self, name: str, title: str, y: str, of: Callable[[OverTime], Mapping[str, FloatArray]], high: float | None = None
    ) -> Iterator[Chart]:
        """A frame for each accelerator type."""
        types = list(dict.fromkeys(kind for course in self.courses for kind in of(course.over_time)))
        panels = []
        for kind in types:
            curves = [self._curve(c, c.thin(of(c.over_time)[kind])) for c in self.courses if kind in of(c.over_time)]
            known = [curve for curve in curves if np.isfinite(curve.y).any()]
            if known:
                panels.append(Panel(known, Axis(y, low=0.0, high=high), clean(kind)))
        left_out = f" {len(panels) - MOST_TYPES} more accelerator types are in the table." if len(panels) > MOST_TYPES else ""
        told = TOLD[name] + left_out
        if panels:
            yield self._chart(name, title, told, panels[:MOST_TYPES], panels)

    def delivery(self) -> Iterator[Chart]:
        """What was promised and what was delivered up to each moment."""
        promised = [np.nancumsum(course.over_time.promised_gpu_seconds) for course in self.courses]
        delivered = [np.nancumsum(course.over_time.delivered_gpu_seconds) for course in self.courses]
        if not any(each[-1] > 0 for each in promised):
            return
        title, name = "Promised and delivered", "promised-and-delivered"
        if len(self.courses) == 1:
            course = self.courses[0]
            both = (("promised", promised[0], 1), ("delivered", delivered[0], 0))
            curves = [self._curve(course, self._so_far(course, sums) / 3600, label, style) for label, sums, style in both]
            told = (
                "GPU-hours up to each moment. Delivered time can be more than promised: GPUs that would idle go to jobs that wait."
            )
            panel = Panel(curves, Axis("GPU-hours", low=0.0))
        else:
            curves = []
            for course, due, done in zip(self.courses, promised, delivered, strict=True):
                owed = self._so_far(course, due)
                share = np.divide(
                    self._so_far(course, done), owed, out=np.full(len(owed), np.nan), where=owed > AT_FIRST * owed[-1]
                )
                curves.append(self._curve(course, share))
            told = "GPU time delivered up to each moment over GPU time promised; above 1, jobs that wait got GPUs that would idle."
            shares = np.concatenate([curve.y for curve in curves])
            panel = Panel(curves, Axis("delivered / promised", low=min(0.9, np.nanmin(shares)), high=max(1.02, np.nanmax(shares))))
        yield self._chart(name, title, told, [panel], [panel])

    def jobs(self) -> Iterator[Chart]:
        """How many jobs there were."""
        curves = [self._curve(course, course.thin(course.over_time.active_jobs)) for course in self.courses]
        panel = Panel(curves, Axis("jobs", low=0.0))
        if any(np.isfinite(curve.y).any() for curve in curves):
            yield self._chart("jobs-over-time", "Jobs in the system", "Jobs that have arrived and not ended.", [panel], [panel])

    def _so_far(self, course: _Course, sums: FloatArray) -> FloatArray:
        """A sum at the end of each stretch that is drawn."""
        seconds = course.over_time.seconds - course.over_time.seconds[0]
        so_far: FloatArray = np.interp(course.limits[1:], seconds, np.concatenate([[0.0], sums]))
        return so_far

    def _curve(self, course: _Course, values: FloatArray, label: str | None = None, style: int | None = None) -> Curve:
        x = (course.limits[:-1] + course.limits[1:]) / 2 / self.unit.size
        return Curve(label or course.policy, x, values, self.cast.styles[course.policy] if style is None else style)

    def _chart(self, name: str, title: str, told: str, drawn: Sequence[Panel], told_of: Sequence[Panel]) -> Chart:
        x = Axis(self.unit.heading("time since the beginning"))
        told = f"{told} {self.of_runs}".strip()
        return Chart(name, title + at_load(self.cast.shown_load), told, Lines(drawn, x), _table(x.title, told_of))


TOLD = {
    "utilization-over-time": "The share of the GPUs of each type that jobs held.",
    "prices-over-time": "What one more GPU of each type would add to the policy's objective, as a part of it; a gap: not known.",
}


def _table(heading: str, panels: Sequence[Panel]) -> Table:
    """The curves one below the other, with a column for each frame: in all frames a curve has the same moments."""
    rows: list[Sequence[str]] = []
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    for label in labels:
        curves = [next((curve for curve in panel.curves if curve.label == label), None) for panel in panels]
        xs = next(curve.x for curve in curves if curve is not None)
        columns = [np.full(len(xs), np.nan) if curve is None else curve.y for curve in curves]
        of_curve = [[label, *map(short, row)] for row in zip(xs.tolist(), *(each.tolist() for each in columns), strict=True)]
        rows += every(of_curve, max(6, ROWS // len(labels)))
    return Table(["curve", heading, *(panel.title or panel.y.title for panel in panels)], rows, "At some of the moments drawn.")
