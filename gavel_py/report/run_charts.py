"""The charts of a setting: loads, distributions, trade-offs, what happened over time, and where jobs ran.

`load_charts`: mean completion time against load, and bars of one number; `distribution_charts`: completion times and fairness, as
the part of all jobs that stays below each value; `tradeoff_charts`: the policies that no other one beats in two numbers at once;
`time_charts`: GPUs in use, prices, and what was promised and delivered, in one run of each policy; `heat_chart`, `stays_chart`: the
part of their time that each job type had on each accelerator type, and one run GPU by GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.report.charts import Axis, Bar, Bars, Chart, Curve, Heat, Lines, Palette, Panel, Point, Points, StayGantt, Table
from gavel_py.report.measures import (
    Estimate,
    Measure,
    Unit,
    at_load,
    clean,
    counted,
    every,
    interval_limits,
    interval_means,
    interval_text,
    label_text,
    measure_of,
    quantiles,
    short,
)
from gavel_py.report.runs import OverTime, Run, Stay
from gavel_py.report.settings import Group
from gavel_py.report.timeline import StayLanes, colours_of, stay_grid, stay_lanes

FloatArray = NDArray[np.float64]

POINTS = 150

PARTS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Of all jobs, in the table."""

WIDE = 20.0
"""Values that differ by more than this factor are drawn on an axis of powers of ten."""


def distribution_charts(palette: Palette) -> Iterator[Chart]:
    """Yield one chart of completion times and one of finish-time fairness, where there are any."""
    yield from _distribution_chart(
        palette, "completion-times", "Completion times", Measure("completion time", "time"), lambda run: run.jct_seconds, None
    )
    yield from _distribution_chart(
        palette,
        "finish-time-fairness",
        "Finish-time fairness ρ",
        Measure("ρ, completion time over that under isolated"),
        lambda run: run.fairness,
        1.0,
    )


def _distribution_chart(
    palette: Palette, name: str, title: str, measure: Measure, of_run: Callable[[Run], NDArray[np.float64]], mark: float | None
) -> Iterator[Chart]:
    found = {group.policy: values for group in palette.groups if len(values := _together(group, of_run))}
    if not found:
        return
    medians_high = [float(np.quantile(values, 0.9)) for values in found.values()]
    unit = measure.unit(medians_high)
    curves = [
        Curve(policy, points / unit.size, parts, palette.styles[policy])
        for policy, values in found.items()
        for points, parts in [quantiles(values, POINTS)]
    ]
    heading = unit.heading(measure.title)
    every = np.concatenate(list(found.values()))
    is_wide = bool(every.min() > 0 and every.max() / every.min() > WIDE)
    rows = [[f"{part:.0%}", *(short(float(np.quantile(values, part)) / unit.size) for values in found.values())] for part in PARTS]
    note = f"{heading}; of {', '.join(f'{len(values):,} jobs ({policy})' for policy, values in found.items())}."
    description = (
        f"The part of all jobs{', those of all seeds together,' if _has_seeds(palette) else ''} whose value is no larger than x."
    )
    if mark is not None:
        description += " At the dotted line a job is as well off as with its own part of the cluster; left of it, better."
    y = Axis("part of the jobs", low=0.0, high=1.02)
    drawing = Lines([Panel(curves, y, mark=mark)], Axis(heading, log=is_wide), steps=True)
    yield Chart(
        name,
        title + at_load(palette.title_load),
        description,
        drawing,
        Table(["part of the jobs", *found], rows, note, text_columns=0),
    )


def _has_seeds(palette: Palette) -> bool:
    return any(len(group.runs) > 1 for group in palette.groups)


def _together(group: Group, of_run: Callable[[Run], NDArray[np.float64]]) -> NDArray[np.float64]:
    """The finite values of all runs of a group."""
    values: NDArray[np.float64] = np.concatenate([np.asarray(of_run(run), dtype=float) for run in group.runs])
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    return finite


BY_BARS = ("mean_jct_seconds", "makespan_seconds")

CUT = " What leaves the frame is in the numbers."


def load_charts(palette: Palette) -> Iterator[Chart]:
    """Yield the mean completion time against the load, or bars of it where there is one load; and bars of other numbers."""
    loads = [load for load in palette.setting.loads if load is not None]
    if len(loads) > 1:
        yield from _against_load(palette, "mean_jct_seconds")
    for metric in BY_BARS[1 if len(loads) > 1 else 0 :]:
        yield from _bars(palette, metric)


def _against_load(palette: Palette, metric: str) -> Iterator[Chart]:
    found: dict[str, list[tuple[float, Estimate]]] = {}
    for group in palette.setting.groups:
        value = group.estimate(metric)
        if group.load is not None and value is not None and group.policy in palette.styles:
            found.setdefault(group.policy, []).append((group.load, value))
    values = [value for points in found.values() for _, value in points]
    if not values:
        return
    measure = measure_of(metric)
    unit = measure.unit(value.mean for value in values)
    curves = [_curve(policy, points, unit, palette.styles[policy]) for policy, points in found.items()]
    title = f"{measure.title.capitalize()} against load"
    most = max(value.mean for value in values)
    y = Axis(unit.heading(measure.title), low=0.0, high=1.05 * min(2 * most, max(value.high for value in values)) / unit.size)
    rows = [
        [policy, short(load), short(value.mean / unit.size), interval_text(value, unit.size), str(value.count)]
        for policy, points in found.items()
        for load, value in points
    ]
    columns = ["policy", "load, jobs/h", y.title, "95 % interval", "seeds"]
    description = (
        f"One curve for each of {counted(len(curves), 'policy', 'policies')}, the band around it is the interval over seeds.{CUT}"
    )
    drawing = Lines([Panel(curves, y)], Axis("load, jobs per hour"), dots=True)
    yield Chart("completion-time-against-load", title, description, drawing, Table(columns, rows))


def _curve(policy: str, points: Sequence[tuple[float, Estimate]], unit: Unit, style: int) -> Curve:
    x, y, low, high = np.array([(load, value.mean, value.low, value.high) for load, value in points]).T
    return Curve(policy, x, y / unit.size, style, low / unit.size, high / unit.size)


def _bars(palette: Palette, metric: str) -> Iterator[Chart]:
    found = [(group.policy, value) for group in palette.groups if (value := group.estimate(metric)) is not None]
    if not found:
        return
    measure = measure_of(metric)
    unit = measure.unit(value.mean for _, value in found)
    scaled = [(policy, value.over(unit.size)) for policy, value in found]
    heading = unit.heading(measure.title)
    rows = [[policy, short(value.mean), interval_text(value), str(value.count)] for policy, value in scaled]
    whiskers = (
        f" The whiskers are 95 % intervals over seeds.{CUT}" if any(value.half_width is not None for _, value in scaled) else ""
    )
    yield Chart(
        name=metric.removesuffix("_seconds").replace("_", "-"),
        title=measure.title.capitalize() + at_load(palette.title_load),
        description=f"One bar for each of {counted(len(rows), 'policy', 'policies')}.{whiskers}",
        drawing=Bars([Bar(policy, value, palette.styles[policy]) for policy, value in scaled], Axis(heading)),
        table=Table(["policy", heading, "95 % interval", "seeds"], rows),
    )


AGAINST = ("makespan_seconds", "cost", "finish_time_fairness")
"""What is drawn against the mean completion time; less of each is better."""


def tradeoff_charts(palette: Palette) -> Iterator[Chart]:
    """Yield the mean completion time against each other number that at least two policies have."""
    for metric in AGAINST:
        yield from _tradeoff_chart(palette, "mean_jct_seconds", metric)


def not_beaten(values: Sequence[tuple[float, float]]) -> list[bool]:
    """Say of each whether no other is at least as good in both numbers and better in one; less is better.

    >>> not_beaten([(1, 4), (2, 2), (3, 2), (4, 1)])
    [True, True, False, True]
    """
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in values) for a, b in values]


def _tradeoff_chart(palette: Palette, across: str, up: str) -> Iterator[Chart]:
    found = [
        (group.policy, x, y)
        for group in palette.groups
        if (x := group.estimate(across)) is not None and (y := group.estimate(up)) is not None
    ]
    if len(found) < 2:
        return
    best = not_beaten([(x.mean, y.mean) for _, x, y in found])
    measures = [measure_of(metric) for metric in (across, up)]
    units = [measures[0].unit(x.mean for _, x, _ in found), measures[1].unit(y.mean for _, _, y in found)]
    headings = [unit.heading(measure.title) for unit, measure in zip(units, measures, strict=True)]
    points = [
        Point(policy, x.over(units[0].size), y.over(units[1].size), is_best, palette.styles[policy])
        for (policy, x, y), is_best in zip(found, best, strict=True)
    ]
    rows = [[p.label, short(p.x.mean), short(p.y.mean), "not beaten" if p.best else "beaten"] for p in points]
    description = (
        "Left and down is better. Filled and joined: no other policy drawn is as good in both and better in one. "
        "The means are compared, whatever their intervals, which the whiskers show as far as they fit."
    )
    name = f"completion-time-and-{up.removesuffix('_seconds').replace('_', '-')}"
    title = f"{measures[0].title.capitalize()} and {measures[1].title}{at_load(palette.title_load)}"
    drawing = Points(points, Axis(headings[0]), Axis(headings[1]))
    yield Chart(name, title, description, drawing, Table(["policy", *headings, ""], rows))


MAX_JOB_TYPES = 30
"""Rows of a heat map."""

GRID_COLUMNS = 800

MOST_SHAPES, MOST_ROWS = 1500, 620
"""Stays drawn as shapes, of more an image is made; and GPUs that it shows, of more each so many-th."""

MAX_LISTED_STAYS = 200
"""Stays listed one by one; of more there are sums."""


def heat_chart(name: str, title: str, run: Run) -> Iterator[Chart]:
    """Yield the shares of a run as a heat map, if it has any; `name` and `title` are those of the chart."""
    types = list(dict.fromkeys(kind for shares in run.shares.values() for kind in shares))
    if not types:
        return
    values = np.array([[shares.get(kind, np.nan) for kind in types] for shares in run.shares.values()])
    names = [clean(job_type) or "(not said)" for job_type in run.shares]
    rows = [[job_type, *map(short, row)] for job_type, row in zip(names, values.tolist(), strict=True)]
    drawn = np.sort(np.argsort(-np.nansum(values, axis=1), kind="stable")[:MAX_JOB_TYPES])
    description = "The mean part of its time that a job of each type was on each type of accelerator."
    if len(drawn) < len(names):
        description += f" Drawn are the {len(drawn)} of {len(names)} job types with the most time; the table has all."
    columns = [clean(kind) for kind in types]
    heat = Heat([names[row] for row in drawn], columns, values[drawn])
    yield Chart(name, title, description, heat, Table(["job type", *columns], rows))


def stays_chart(name: str, title: str, stays: Sequence[Stay], types: Sequence[str] = ()) -> Iterator[Chart]:
    """Yield one run as GPUs and time, if it tells where gangs were."""
    stays = [stay for stay in stays if stay.gpus > 0 and stay.end_seconds > stay.start_seconds]
    if not stays:
        return
    lanes = stay_lanes(stays, types)
    grid = stay_grid(lanes, GRID_COLUMNS)
    is_image, every = len(lanes.blocks) > MOST_SHAPES, -(-lanes.count // MOST_ROWS)
    description = (
        f"{counted(lanes.count, 'GPU')} from the top down, time to the right. Each bar is a job; nothing is drawn where a "
        "GPU is idle. A run does not tell which GPUs of its node a gang had: it is drawn on the first that are free."
    )
    if is_image:
        of_gpus = f" and one GPU of {every}" if every > 1 else ""
        description += f" Drawn as an image of {GRID_COLUMNS} moments{of_gpus}: short stays may be missing."
    picture = StayGantt(lanes, grid, colours_of(grid), is_image, every)
    yield Chart(name, title, description, picture, _stay_table(lanes, stays))


def _stay_table(lanes: StayLanes, stays: Sequence[Stay]) -> Table:
    if len(stays) <= MAX_LISTED_STAYS:
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

MAX_PANELS = 6

AT_FIRST = 0.01
"""Of all that is promised; before, the part of it that was delivered says nothing."""


@dataclass(frozen=True, eq=False)
class _PolicyHistory:
    """What happened to one policy; limits: of the interval_limits that are drawn, in seconds since the beginning."""

    policy: str
    over_time: OverTime
    limits: FloatArray

    def thin(self, values: FloatArray) -> FloatArray:
        return interval_means(self.over_time.seconds - self.over_time.seconds[0], values, self.limits)


def time_charts(palette: Palette) -> Iterator[Chart]:
    """Yield charts over time of the runs that have it."""
    histories = [
        _PolicyHistory(policy, run.over_time, interval_limits(run.over_time.seconds - run.over_time.seconds[0], STRETCHES))
        for policy, run in palette.examples
        if run.over_time is not None and len(run.over_time.seconds) > 1
    ]
    if not histories:
        return
    seeds = sorted({label_text(run.labels["seed"]) for _, run in palette.examples if run.labels.get("seed") is not None})
    of_seed = f" (seed {', '.join(seeds)})" if seeds else ""
    of_runs = f"One run of each policy{of_seed}." if len(histories) > 1 else ""
    drawn = _Drawn(palette, histories, Measure("time", "time").unit(course.limits[-1] for course in histories), of_runs)
    yield from drawn.by_type("utilization-over-time", "GPUs in use", "share in use", lambda each: each.used, high=1.02)
    yield from drawn.delivery()
    yield from drawn.by_type("prices-over-time", "Price of one more GPU", "price", lambda each: each.prices)
    yield from drawn.jobs()


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The charts of these histories. unit: of their time axis."""

    palette: Palette
    histories: Sequence[_PolicyHistory]
    unit: Unit
    of_runs: str

    def by_type(
        self, name: str, title: str, y: str, of: Callable[[OverTime], Mapping[str, FloatArray]], high: float | None = None
    ) -> Iterator[Chart]:
        """A frame for each accelerator type."""
        types = list(dict.fromkeys(kind for course in self.histories for kind in of(course.over_time)))
        panels = []
        for kind in types:
            curves = [self._curve(c, c.thin(of(c.over_time)[kind])) for c in self.histories if kind in of(c.over_time)]
            known = [curve for curve in curves if np.isfinite(curve.y).any()]
            if known:
                panels.append(Panel(known, Axis(y, low=0.0, high=high), clean(kind)))
        left_out = f" {len(panels) - MAX_PANELS} more accelerator types are in the table." if len(panels) > MAX_PANELS else ""
        description = TOLD[name] + left_out
        if panels:
            yield self._chart(name, title, description, panels[:MAX_PANELS], panels)

    def delivery(self) -> Iterator[Chart]:
        """What was promised and what was delivered up to each moment."""
        promised = [np.nancumsum(course.over_time.promised_gpu_seconds) for course in self.histories]
        delivered = [np.nancumsum(course.over_time.delivered_gpu_seconds) for course in self.histories]
        if not any(each[-1] > 0 for each in promised):
            return
        title, name = "Promised and delivered", "promised-and-delivered"
        if len(self.histories) == 1:
            course = self.histories[0]
            both = (("promised", promised[0], 1), ("delivered", delivered[0], 0))
            curves = [self._curve(course, self._so_far(course, sums) / 3600, label, style) for label, sums, style in both]
            description = (
                "GPU-hours up to each moment. Delivered time can be more than promised: GPUs that would idle go to jobs that wait."
            )
            panel = Panel(curves, Axis("GPU-hours", low=0.0))
        else:
            curves = []
            for course, due, done in zip(self.histories, promised, delivered, strict=True):
                owed = self._so_far(course, due)
                share = np.divide(
                    self._so_far(course, done), owed, out=np.full(len(owed), np.nan), where=owed > AT_FIRST * owed[-1]
                )
                curves.append(self._curve(course, share))
            description = (
                "GPU time delivered up to each moment over GPU time promised; above 1, jobs that wait got GPUs that would idle."
            )
            shares = np.concatenate([curve.y for curve in curves])
            panel = Panel(curves, Axis("delivered / promised", low=min(0.9, np.nanmin(shares)), high=max(1.02, np.nanmax(shares))))
        yield self._chart(name, title, description, [panel], [panel])

    def jobs(self) -> Iterator[Chart]:
        """How many jobs there were."""
        curves = [self._curve(course, course.thin(course.over_time.active_jobs)) for course in self.histories]
        panel = Panel(curves, Axis("jobs", low=0.0))
        if any(np.isfinite(curve.y).any() for curve in curves):
            yield self._chart("jobs-over-time", "Jobs in the system", "Jobs that have arrived and not ended.", [panel], [panel])

    def _so_far(self, course: _PolicyHistory, sums: FloatArray) -> FloatArray:
        """A sum at the end of each stretch that is drawn."""
        seconds = course.over_time.seconds - course.over_time.seconds[0]
        so_far: FloatArray = np.interp(course.limits[1:], seconds, np.concatenate([[0.0], sums]))
        return so_far

    def _curve(self, course: _PolicyHistory, values: FloatArray, label: str | None = None, style: int | None = None) -> Curve:
        x = (course.limits[:-1] + course.limits[1:]) / 2 / self.unit.size
        return Curve(label or course.policy, x, values, self.palette.styles[course.policy] if style is None else style)

    def _chart(self, name: str, title: str, description: str, drawn: Sequence[Panel], told_of: Sequence[Panel]) -> Chart:
        x = Axis(self.unit.heading("time since the beginning"))
        description = f"{description} {self.of_runs}".strip()
        return Chart(name, title + at_load(self.palette.title_load), description, Lines(drawn, x), _table(x.title, told_of))


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
