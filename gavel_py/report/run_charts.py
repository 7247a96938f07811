"""The charts of a setting: load curves, distributions, trade-offs, time series, heat maps and Gantt charts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from gavel_py.io.names import natural_key
from gavel_py.problem.arrays import Floats
from gavel_py.report.charts import Axis, Chart, Curve, Palette, Panel, PlottedPoint, Table
from gavel_py.report.figures import bars_figure, heat_figure, lines_figure, points_figure
from gavel_py.report.measures import (
    SampleMean,
    at_load,
    clean,
    counted,
    interval_limits,
    interval_means,
    interval_text,
    label_text,
    paired,
    quantiles,
    sampled_rows,
    short,
    unit_of,
)
from gavel_py.report.metrics import VERDICT, Metric
from gavel_py.report.runs import OverTime, Run, Stay
from gavel_py.report.timeline import NO_WORKFLOWS, Gantt, colours_of, stay_grid, stays_gantt
from gavel_py.report.timeline_drawing import gantt_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 150
TABLE_QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

LOG_RATIO = 20.0
"""Values are drawn on a logarithmic axis if their extremes differ by more than this factor."""


def distribution_charts(palette: Palette) -> Iterator[Chart]:
    """Yield the distributions of completion times and of finish-time fairness, as far as the runs have them."""
    measure = Metric("jct_seconds", "completion time", "time")
    yield from _distribution_chart(palette, "completion-times", "Completion times", measure, lambda run: run.jct_seconds, None)
    measure = Metric("fairness", "ρ, completion time over that under isolated")
    yield from _distribution_chart(
        palette, "finish-time-fairness", "Finish-time fairness ρ", measure, lambda run: run.fairness, 1.0
    )


def _distribution_chart(
    palette: Palette, name: str, title: str, measure: Metric, samples_of: Callable[[Run], Floats], mark: float | None
) -> Iterator[Chart]:
    samples: dict[str, Floats] = {}
    for group in palette.groups:
        pooled = np.concatenate([np.asarray(samples_of(run), dtype=float) for run in group.runs])
        if np.nan_to_num(pooled, posinf=0.0).any():
            samples[group.policy] = pooled[np.isfinite(pooled)]
    if not samples:
        return
    unit = measure.unit(float(np.quantile(values, 0.9)) for values in samples.values())
    curves = [
        Curve(policy, points / unit.size, shares, palette.styles[policy])
        for policy, values in samples.items()
        for points, shares in [quantiles(values, MAX_POINTS)]
    ]
    heading = unit.heading(measure.title)
    pooled = np.concatenate(list(samples.values()))
    is_wide = bool(pooled.min() > 0 and pooled.max() / pooled.min() > LOG_RATIO)
    rows = [
        [f"{share:.0%}", *(short(float(np.quantile(values, share)) / unit.size) for values in samples.values())]
        for share in TABLE_QUANTILES
    ]
    note = f"{heading}; of {', '.join(f'{len(values):,} jobs ({policy})' for policy, values in samples.items())}."
    has_seeds = any(len(group.runs) > 1 for group in palette.groups)
    description = f"The part of all jobs{', those of all seeds together,' if has_seeds else ''} whose value is no larger than x."
    if mark is not None:
        description += " At the dotted line a job is as well off as with its own part of the cluster; left of it, better."
    y = Axis("part of the jobs", low=0.0, high=1.02)
    draw = partial(lines_figure, [Panel(curves, y, mark=mark)], Axis(heading, log=is_wide), steps=True)
    table = Table(["part of the jobs", *samples], rows, note, text_columns=0)
    yield Chart(name, title + at_load(palette.title_load), description, draw, table)


CUT = " Values beyond the frame are in the table."


def load_charts(palette: Palette) -> Iterator[Chart]:
    """Yield the mean completion time, over the load or as bars for a single load, and bars of the makespan."""
    jct, *others = (metric for metric in VERDICT if metric.quantity == "time")
    over_loads = sum(load is not None for load in palette.setting.loads) > 1
    yield from _load_curves(palette, jct) if over_loads else _bars(palette, jct)
    for metric in others:
        yield from _bars(palette, metric)


def _load_curves(palette: Palette, metric: Metric) -> Iterator[Chart]:
    """Yield the curves of a metric, and where their bands overlap, the curves relative to the best policy."""
    found: dict[str, list[tuple[float, SampleMean]]] = {}
    for group in palette.setting.groups:
        value = group.estimate(metric.name)
        if group.load is not None and value is not None and group.policy in palette.styles:
            found.setdefault(group.policy, []).append((group.load, value))
    values = [value for points in found.values() for _, value in points]
    if all(value.mean == 0 for value in values):
        return
    unit = metric.unit(value.mean for value in values)
    scaled = {policy: [(load, value.over(unit.size)) for load, value in points] for policy, points in found.items()}
    limit = min(2 * max(value.mean for value in values), max(value.high for value in values))
    axis = Axis(unit.heading(metric.title), low=0.0, high=1.05 * limit / unit.size)
    ratios = _ratios(palette, found, metric.name) if _bands_overlap(found) else {}
    title = f"{metric.title.capitalize()} against load"
    of_policies = f"One curve for each of {counted(len(found), 'policy', 'policies')}"
    name = "completion-time-against-load"
    has_bands = any(value.half_width is not None for value in values)
    bands = ", the band around it is the 95 % interval over seeds" if has_bands and not ratios else ""
    more = " The intervals overlap: the next chart compares the policies seed by seed." if ratios else CUT if bands else ""
    drawn = _drawn_curves(palette, scaled, axis, has_bands=not ratios)
    yield Chart(name, title, f"{of_policies}{bands}.{more}", *drawn)
    if ratios:
        baseline = next(iter(ratios))
        text = (
            f"{of_policies}: its mean over that of {baseline}, the baseline. The band is the 95 % interval of the paired "
            "difference over common seeds. The verdict has what is left after correction for the number of comparisons."
        )
        drawn = _drawn_curves(palette, ratios, Axis("ratio to the baseline"), has_bands=True)
        yield Chart(f"{name}-relative", f"{title}, relative to {baseline}", text, *drawn)


def _drawn_curves(
    palette: Palette, points_of: Mapping[str, Sequence[tuple[float, SampleMean]]], axis: Axis, *, has_bands: bool
) -> tuple[Callable[[], Figure], Table]:
    """Return a function that draws a chart of {policy: (load, value)}, and its table."""
    curves = []
    for policy, points in points_of.items():
        x, y, low, high = np.array([(load, value.mean, value.low, value.high) for load, value in points]).T
        drawn = has_bands and any(value.half_width is not None for _, value in points)
        curves.append(Curve(policy, x, y, palette.styles[policy], *((low, high) if drawn else ())))
    rows = [
        [policy, short(load), short(value.mean), interval_text(value), str(value.count)]
        for policy, points in points_of.items()
        for load, value in points
    ]
    draw = partial(lines_figure, [Panel(curves, axis)], Axis("load, jobs/h"), dots=True)
    return draw, Table(["policy", "load, jobs/h", axis.title, "95 % interval", _counted_as(palette)], rows)


def _counted_as(palette: Palette) -> str:
    """Return the heading of the numbers behind means."""
    return "runs" if palette.setting.is_fixed else "seeds"


def _bands_overlap(points_of: Mapping[str, Sequence[tuple[float, SampleMean]]]) -> bool:
    """Return whether intervals of different policies overlap at a load."""
    by_load: dict[float, list[SampleMean]] = {}
    for load, value in (point for points in points_of.values() for point in points if point[1].half_width is not None):
        by_load.setdefault(load, []).append(value)
    ordered = [sorted(values, key=lambda value: value.low) for values in by_load.values()]
    return any(next_.low < value.high for values in ordered for value, next_ in pairwise(values))


def _ratios(
    palette: Palette, points_of: Mapping[str, Sequence[tuple[float, SampleMean]]], metric: str
) -> dict[str, list[tuple[float, SampleMean]]]:
    """Return the means relative to the policy with the lowest mean of all loads, with intervals of the paired differences.

    That policy is the first. {} if no policy has a mean above 0 at every load.
    """
    loads = {load for points in points_of.values() for load, _ in points}
    means = {
        policy: sum(value.mean for _, value in points)
        for policy, points in points_of.items()
        if len(points) == len(loads) and all(value.mean > 0 for _, value in points)
    }
    if not means:
        return {}
    baseline = min(means, key=means.__getitem__)
    by_seed = {(group.policy, group.load): group.by_seed(metric) for group in palette.setting.groups}
    ratios: dict[str, list[tuple[float, SampleMean]]] = {}
    for policy in (baseline, *(policy for policy in points_of if policy != baseline)):
        pairs = [(load, paired(policy, by_seed[baseline, load], by_seed[policy, load])) for load, _ in points_of[policy]]
        known = [(load, pair) for load, pair in pairs if pair.seeds and pair.base > 0]
        if known:
            ratios[policy] = [
                (load, SampleMean(pair.base + pair.difference, pair.half_width, pair.seeds).over(pair.base)) for load, pair in known
            ]
    return ratios


def _bars(palette: Palette, metric: Metric) -> Iterator[Chart]:
    found = [(group.policy, value) for group in palette.groups if (value := group.estimate(metric.name)) is not None]
    if all(value.mean == 0 for _, value in found):
        return
    unit = metric.unit(value.mean for _, value in found)
    scaled = [(policy, value.over(unit.size)) for policy, value in found]
    heading = unit.heading(metric.title)
    rows = [[policy, short(value.mean), interval_text(value), str(value.count)] for policy, value in scaled]
    has_intervals = any(value.half_width is not None for _, value in scaled)
    whiskers = f" The whiskers are 95 % intervals over seeds.{CUT}" if has_intervals else ""
    yield Chart(
        name=metric.name.removesuffix("_seconds").replace("_", "-"),
        title=metric.title.capitalize() + at_load(palette.title_load),
        description=f"One bar for each of {counted(len(rows), 'policy', 'policies')}.{whiskers}",
        draw=partial(bars_figure, [(policy, value, palette.styles[policy]) for policy, value in scaled], Axis(heading)),
        table=Table(["policy", heading, "95 % interval", _counted_as(palette)], rows),
    )


def tradeoff_charts(palette: Palette) -> Iterator[Chart]:
    """Yield the mean completion time against makespan, fairness and cost, each if at least two policies have both."""
    jct, *others = (metric for metric in VERDICT if metric.best == "least")
    for metric in others:
        yield from _tradeoff_chart(palette, jct, metric)


def pareto_optimal(values: Sequence[tuple[float, float]]) -> list[bool]:
    """Return whether each point is Pareto-optimal when both coordinates are minimised.

    >>> pareto_optimal([(1, 4), (2, 2), (3, 2), (4, 1)])
    [True, True, False, True]
    """
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in values) for a, b in values]


def _tradeoff_chart(palette: Palette, x_metric: Metric, y_metric: Metric) -> Iterator[Chart]:
    found = [
        (group.policy, x, y)
        for group in palette.groups
        if (x := group.estimate(x_metric.name)) is not None and (y := group.estimate(y_metric.name)) is not None
    ]
    if len(found) < 2 or all(x.mean == 0 for _, x, _ in found) or all(y.mean == 0 for _, _, y in found):
        return
    best = pareto_optimal([(x.mean, y.mean) for _, x, y in found])
    x_unit, y_unit = x_metric.unit(x.mean for _, x, _ in found), y_metric.unit(y.mean for _, _, y in found)
    x_axis, y_axis = Axis(x_unit.heading(x_metric.title)), Axis(y_unit.heading(y_metric.title))
    points = [
        PlottedPoint(policy, x.over(x_unit.size), y.over(y_unit.size), is_best, palette.styles[policy])
        for (policy, x, y), is_best in zip(found, best, strict=True)
    ]
    rows = [[p.label, short(p.x.mean), short(p.y.mean), "not beaten" if p.best else "beaten"] for p in points]
    has_intervals = any(value.half_width is not None for _, *both in found for value in both)
    whiskers = " The means are compared, whatever their intervals, which the whiskers show as far as they fit."
    yield Chart(
        name=f"completion-time-and-{y_metric.name.removesuffix('_seconds').replace('_', '-')}",
        title=f"{x_metric.title.capitalize()} and {y_metric.title}{at_load(palette.title_load)}",
        description="Left and down is better. Filled and joined: no other policy drawn is as good in both and better in one."
        + (whiskers if has_intervals else ""),
        draw=partial(points_figure, points, x_axis, y_axis),
        table=Table(["policy", x_axis.title, y_axis.title, ""], rows),
    )


MAX_GANTT_CHARTS = 4

MAX_JOB_TYPES = 30
"""Rows of a heat map."""

GRID_COLUMNS = 800
"""Moments at which jobs on neighbouring GPUs get different colours."""

MAX_DRAWN_WORKFLOWS = 30
"""Workflows with rows of their own."""

MAX_LISTED_STAYS = 200
"""Rows of a table of stays; more are summed by accelerator type."""


def heat_chart(name: str, title: str, run: Run) -> Iterator[Chart]:
    """Yield the shares of a run as a heat map, if it has any."""
    types = list(dict.fromkeys(accelerator for shares in run.shares.values() for accelerator in shares))
    if not types:
        return
    values = np.array([[shares.get(accelerator, np.nan) for accelerator in types] for shares in run.shares.values()])
    names = [clean(job_type) or "(not stated)" for job_type in run.shares]
    rows = [[job_type, *map(short, row)] for job_type, row in zip(names, values.tolist(), strict=True)]
    drawn = np.sort(np.argsort(-np.nansum(values, axis=1), kind="stable")[:MAX_JOB_TYPES])
    description = "The mean part of its time that a job of each type was on each type of accelerator."
    if len(drawn) < len(names):
        description += f" The chart has the {len(drawn)} of {len(names)} job types with the most time; the table has all."
    columns = [clean(accelerator) for accelerator in types]
    draw = partial(heat_figure, [names[row] for row in drawn], columns, values[drawn])
    yield Chart(name, title, description, draw, Table(["job type", *columns], rows))


def stays_chart(
    name: str, title: str, stays: Sequence[Stay], types: Sequence[str] = (), workflows: Mapping[str, str] = NO_WORKFLOWS
) -> Iterator[Chart]:
    """Yield the stays of one run as a Gantt chart, if there are any.

    types: order of the accelerator types; workflows: {job_id: workflow}.
    """
    stays = [stay for stay in stays if stay.gpus > 0 and stay.end_seconds > stay.start_seconds]
    if not stays:
        return
    gantt = stays_gantt(stays, types)
    description = (
        f"{counted(gantt.lanes.count, 'GPU')} from the top down, time to the right. Each bar is a job; nothing is drawn where a "
        "GPU is idle. A run does not record which GPUs of its node a gang had, so it is drawn on the first free ones."
    )
    if workflows:
        description += " The jobs of a workflow have one colour, which the legend names."
    table = _list_of_stays(gantt, stays) if len(stays) <= MAX_LISTED_STAYS else _sums_of_stays(gantt, stays)
    texts = {job_id: f"workflow {clean(workflow)}" for job_id, workflow in workflows.items()}
    draw = partial(gantt_figure, gantt, colours_of(stay_grid(gantt, GRID_COLUMNS), texts), texts)
    yield Chart(name, title, description, draw, table)


def workflows_chart(name: str, title: str, stays: Sequence[Stay], workflows: Mapping[str, str]) -> Iterator[Chart]:
    """Yield the jobs of workflows of one run as a Gantt chart with a group of rows for each; workflows: {job_id: workflow}."""
    known = [stay for stay in stays if stay.job_id in workflows and stay.gpus > 0 and stay.end_seconds > stay.start_seconds]
    spans: dict[str, tuple[float, float]] = {}
    for stay in known:
        first, last = spans.get(workflows[stay.job_id], (math.inf, -math.inf))
        spans[workflows[stay.job_id]] = min(first, stay.start_seconds), max(last, stay.end_seconds)
    if not spans:
        return
    in_order = sorted(spans, key=lambda each: (spans[each], natural_key(each)))
    drawn = in_order[:MAX_DRAWN_WORKFLOWS]
    rows_of = {  # one bar for all nodes of a gang
        (stay.job_id, stay.start_seconds): replace(stay, node=workflows[stay.job_id], accelerator="", gpus=1)
        for stay in known
        if workflows[stay.job_id] in drawn
    }
    gantt = stays_gantt(list(rows_of.values()))
    gantt = replace(gantt, lanes=replace(gantt.lanes, types=()))
    unit, start = unit_of("time", [last - first for first, last in spans.values()]), min(spans.values())[0]
    counts = Counter(workflows[job_id] for job_id in {stay.job_id for stay in known})
    rows = [
        [clean(each), str(counts[each]), *(short(seconds / unit.size) for seconds in (first - start, last - start, last - first))]
        for each, (first, last) in ((each, spans[each]) for each in in_order[:MAX_LISTED_STAYS])
    ]
    description = "A group of rows for each workflow, time to the right. Each bar is a job while it held GPUs, however many."
    if len(drawn) < len(spans):
        description += f" The chart has the first {len(drawn)} of {len(spans):,} workflows."
    draw = partial(gantt_figure, gantt, colours_of(stay_grid(gantt, GRID_COLUMNS)), {})
    headings = ["workflow", "jobs", unit.heading("from"), unit.heading("to"), unit.heading("from first start to last end")]
    yield Chart(name, title, description, draw, Table(headings, rows))


def _list_of_stays(gantt: Gantt, stays: Sequence[Stay]) -> Table:
    unit = unit_of("time", [gantt.end_seconds - gantt.start_seconds])
    rows = []
    for stay in stays:
        names = map(clean, (stay.job_id, stay.job_type, stay.accelerator, stay.node))
        times = (short((seconds - gantt.start_seconds) / unit.size) for seconds in (stay.start_seconds, stay.end_seconds))
        rows.append([*names, str(stay.gpus), *times])
    headings = ["job", "job type", "accelerator", "node", "GPUs", unit.heading("from"), unit.heading("to")]
    return Table(headings, rows, text_columns=4)


def _sums_of_stays(gantt: Gantt, stays: Sequence[Stay]) -> Table:
    rows = []
    for lane_group in gantt.lanes.types:
        selected = [stay for stay in stays if stay.accelerator == lane_group.name]
        used = sum(stay.gpus * (stay.end_seconds - stay.start_seconds) for stay in selected)
        available = lane_group.size * (gantt.end_seconds - gantt.start_seconds)
        counts = (lane_group.size, len({stay.job_id for stay in selected}), len(selected))
        rows.append([clean(lane_group.name), *(f"{count:,}" for count in counts), short(used / 3600), f"{used / available:.1%}"])
    note = f"Sums: {len(stays):,} stays are too many to be listed."
    return Table(["accelerator", "GPUs", "jobs", "stays", "GPU-hours", "of the time"], rows, note)


def heat_charts(palette: Palette) -> Iterator[Chart]:
    """Yield a heat map of one run of each policy."""
    for number, (policy, run) in enumerate(palette.examples, 1):
        yield from heat_chart(f"shares-{number}", f"Time by accelerator{_of_run(palette, policy, run)}", run)


def stays_charts(palette: Palette) -> Iterator[Chart]:
    """Yield Gantt charts of the first runs with stays."""
    shown = 0
    for group in [*palette.groups, *(group for group in palette.setting.groups if group not in palette.groups)]:
        run = next((run for _, runs in group.seeds for run in runs if run.stays), None)
        if run is not None and shown < MAX_GANTT_CHARTS:
            shown += 1
            types = tuple(run.over_time.used) if run.over_time else ()
            suffix = _of_run(palette, group.policy, run)
            yield from stays_chart(f"gpus-{shown}", f"GPUs over time{suffix}", run.stays, types, run.workflows)
            yield from workflows_chart(f"workflows-{shown}", f"Workflows over time{suffix}", run.stays, run.workflows)


def _of_run(palette: Palette, policy: str, run: Run) -> str:
    """Return the suffix of a title that identifies the run, "" if there is only one."""
    if sum(len(group.runs) for group in palette.setting.groups) == 1:
        return ""
    load, seed = run.labels.get("load"), run.labels.get("seed")
    of_load = at_load(load) if isinstance(load, int | float) and len(palette.setting.loads) > 1 else ""
    return f": {policy}{of_load}{'' if seed is None else f', seed {label_text(seed)}'}"


MAX_DRAWN_INTERVALS = 90
MAX_TABLE_ROWS = 31
MAX_PANELS = 6

MIN_PROMISED = 0.01
"""Share of all promised time before which the ratio of delivered to promised time is not drawn."""

MIN_UNDELIVERED = 0.001
"""Part of the promised time. If all runs deliver all but a smaller part, nothing is drawn."""

UTILIZATION = "The share of the GPUs of each type that jobs held."
PRICES = "What one more GPU of each type would add to the policy's objective, as a part of it; a gap: not known."


@dataclass(frozen=True, eq=False)
class _History:
    """The time series of one run, reduced to at most `MAX_DRAWN_INTERVALS`."""

    policy: str
    style: int
    over_time: OverTime

    @cached_property
    def seconds(self) -> Floats:
        """(T + 1,) limits of the time series since the beginning."""
        seconds: Floats = self.over_time.seconds - self.over_time.seconds[0]
        return seconds

    @cached_property
    def limits(self) -> Floats:
        return interval_limits(self.seconds, MAX_DRAWN_INTERVALS)

    def curve(self, values: Floats) -> Curve:
        """Return the means of (T,) values in the intervals, over their middles in seconds."""
        middles = (self.limits[:-1] + self.limits[1:]) / 2
        return Curve(self.policy, middles, interval_means(self.seconds, values, self.limits), self.style)

    def cumulative(self, values: Floats) -> Curve:
        """Return the running sum of (T,) values at the end of each interval, as a curve."""
        sums = np.concatenate([[0.0], np.nancumsum(values)])
        return replace(self.curve(values), y=np.interp(self.limits[1:], self.seconds, sums))


def time_charts(palette: Palette) -> Iterator[Chart]:
    """Yield the time series of one run of each policy."""
    histories = [
        _History(policy, palette.styles[policy], run.over_time)
        for policy, run in palette.examples
        if run.over_time is not None and len(run.over_time.seconds) > 1
    ]
    if not histories:
        return
    seeds = sorted({label_text(run.labels["seed"]) for _, run in palette.examples if run.labels.get("seed") is not None})
    of_seed = f" (seed {', '.join(seeds)})" if seeds else ""
    of_runs = f" One run of each policy{of_seed}." if len(histories) > 1 else ""
    unit = unit_of("time", (history.limits[-1] for history in histories))
    x, by_type = Axis(unit.heading("time since the beginning")), partial(_by_type, histories)
    jobs = Panel([history.curve(history.over_time.active_jobs) for history in histories], Axis("jobs", low=0.0))
    used = by_type("used", Axis("share in use", low=0.0, high=1.02))
    for name, title, description, drawn in (
        ("utilization-over-time", "GPUs in use", UTILIZATION, used),
        ("promised-and-delivered", "Promised and delivered", *_delivery(histories)),
        ("prices-over-time", "Price of one more GPU", PRICES, by_type("prices", Axis("relative gain", low=0.0))),
        ("jobs-over-time", "Jobs in the system", "Jobs that have arrived and not ended.", [jobs]),
    ):
        panels = [
            replace(panel, curves=[replace(curve, x=curve.x / unit.size) for curve in panel.curves])
            for panel in drawn
            if any(np.isfinite(curve.y).any() for curve in panel.curves)
        ]
        if any(np.nan_to_num(curve.y).any() for panel in panels for curve in panel.curves):
            more = f" {len(panels) - MAX_PANELS} more accelerator types are in the table." if len(panels) > MAX_PANELS else ""
            draw, table = partial(lines_figure, panels[:MAX_PANELS], x), _series_table(x.title, panels)
            yield Chart(name, title + at_load(palette.title_load), description + more + of_runs, draw, table)


def _by_type(histories: Sequence[_History], series: Literal["used", "prices"], y: Axis) -> list[Panel]:
    """Return a panel for each accelerator type, with the curves of runs that have values."""
    values = [(history, getattr(history.over_time, series)) for history in histories]
    panels = []
    for accelerator in dict.fromkeys(name for _, by_type in values for name in by_type):
        curves = [history.curve(by_type[accelerator]) for history, by_type in values if accelerator in by_type]
        panels.append(Panel([curve for curve in curves if np.isfinite(curve.y).any()], y, clean(accelerator)))
    return panels


def _delivery(histories: Sequence[_History]) -> tuple[str, list[Panel]]:
    """Return description and panel of promised and delivered time of a single run, or of the ratio of both for several."""
    promised = [history.cumulative(history.over_time.promised_gpu_seconds) for history in histories]
    delivered = [history.cumulative(history.over_time.delivered_gpu_seconds) for history in histories]
    if not any(curve.y[-1] > 0 for curve in promised):
        return "", []
    if len(histories) == 1:
        text = "GPU-hours up to each moment. Delivered time can be more than promised: GPUs that would idle go to jobs that wait."
        named = ((promised[0], "promised", 1), (delivered[0], "delivered", 0))
        curves = [replace(curve, y=curve.y / 3600, label=label, style=style) for curve, label, style in named]
        return text, [Panel(curves, Axis("GPU-hours", low=0.0))]
    curves = []
    for due, done in zip(promised, delivered, strict=True):
        ratio = np.divide(done.y, due.y, out=np.full(len(due.y), np.nan), where=due.y > MIN_PROMISED * due.y[-1])
        curves.append(replace(done, y=ratio))
    ratios = np.concatenate([curve.y for curve in curves])
    if np.nanmax(np.abs(ratios - 1)) < MIN_UNDELIVERED:
        return "", []
    axis = Axis("delivered / promised", low=min(0.9, np.nanmin(ratios)), high=max(1.02, np.nanmax(ratios)))
    text = "GPU time delivered up to each moment over GPU time promised; above 1, jobs that wait got GPUs that would idle."
    return text, [Panel(curves, axis)]


def _series_table(heading: str, panels: Sequence[Panel]) -> Table:
    """Return the values of all curves, one curve after the other, with a column for each panel.

    The points of a curve have the same x in every panel.
    """
    rows: list[Sequence[str]] = []
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    for label in labels:
        curves = [next((curve for curve in panel.curves if curve.label == label), None) for panel in panels]
        xs = next(curve.x for curve in curves if curve is not None)
        columns = [np.full(len(xs), np.nan) if curve is None else curve.y for curve in curves]
        of_curve = [[label, *map(short, row)] for row in zip(xs.tolist(), *(each.tolist() for each in columns), strict=True)]
        rows += sampled_rows(of_curve, max(6, MAX_TABLE_ROWS // len(labels)))
    return Table(["curve", heading, *(panel.title or panel.y.title for panel in panels)], rows, "At some of the moments drawn.")
