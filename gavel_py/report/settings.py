"""Which runs are compared with which, those that differ in policy, load and seed only, and the summary of each such setting.

A summary has every policy at every load with its numbers, the best of each marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from gavel_py.report.measures import UNKNOWN, Estimate, Measure, Unit, clean, estimate, label_text, measure_of, short
from gavel_py.report.runs import METRICS, Run

COMPARED = ("policy", "load", "seed")
"""Labels by which runs differ within a setting; any other label that differs makes another setting."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one policy at one load, which differ in their seed only. policy: as it is shown; load: in jobs per hour."""

    policy: str
    load: float | None
    runs: Sequence[Run]

    @cached_property
    def seeds(self) -> list[tuple[str, list[Run]]]:
        """The runs of each seed, in order of the seeds."""
        ordered = sorted(self.runs, key=lambda run: _order(run.labels.get("seed")))
        return [(seed, list(runs)) for seed, runs in groupby(ordered, key=lambda run: label_text(run.labels.get("seed")))]

    def values(self, metric: str) -> list[float]:
        """Return the metric by seed, runs of the same seed averaged: they are not independent of one another."""
        means = (estimate(run.metrics.get(metric) for run in runs) for _, runs in self.seeds)
        return [mean.mean for mean in means if mean is not None]

    def estimate(self, metric: str) -> Estimate | None:
        """Return mean and confidence interval over the seeds, None where no run has this metric."""
        return estimate(self.values(metric))


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs that can be compared. labels: what tells this setting from the others; groups: by load and, within, by policy."""

    labels: Mapping[str, str]
    groups: Sequence[Group]

    @property
    def title(self) -> str:
        """What tells it from other settings, "" where there are none."""
        return ", ".join(f"{name} {value}" for name, value in self.labels.items() if value != UNKNOWN)

    @cached_property
    def policies(self) -> list[str]:
        """The policies, in the order of their first run."""
        return list(dict.fromkeys(group.policy for group in self.groups))

    @cached_property
    def loads(self) -> list[float | None]:
        """The loads, ascending."""
        return list(dict.fromkeys(group.load for group in self.groups))

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that any of the runs has, the known ones first."""
        there = dict.fromkeys(
            name for group in self.groups for run in group.runs for name, v in run.metrics.items() if v is not None
        )
        return [*(name for name in METRICS if name in there), *(name for name in there if name not in METRICS)]

    @cached_property
    def middle_load(self) -> float | None:
        """The load at which pictures are drawn that show one: the middle of those at which most policies ran."""
        counts = {load: len(self.at(load)) for load in self.loads}
        best = [load for load in self.loads if counts[load] == max(counts.values())]
        return best[len(best) // 2]

    def at(self, load: float | None) -> list[Group]:
        """Return the groups of this load."""
        return [group for group in self.groups if group.load == load]

    def of(self, policy: str) -> list[Group]:
        """Return the groups of this policy, by load."""
        return [group for group in self.groups if group.policy == policy]


def common_labels(runs: Sequence[Run]) -> dict[str, str]:
    """Return the labels that all runs share."""
    first, *others = map(_texts, runs)
    return {name: text for name, text in first.items() if all(other.get(name) == text for other in others)}


def settings_of(runs: Iterable[Run]) -> list[Setting]:
    """Return the settings in the order of their first run; every run is in exactly one group of one setting."""
    runs = list(runs)
    texts = [_texts(run) for run in runs]
    names = [name for name in dict.fromkeys(name for each in texts for name in each) if not _is_compared(name, runs)]
    varying = [name for name in names if len({each.get(name) for each in texts}) > 1]
    by_setting: dict[tuple[str, ...], list[Run]] = {}
    for run, each in zip(runs, texts, strict=True):
        by_setting.setdefault(tuple(each.get(name, UNKNOWN) for name in varying), []).append(run)
    return [Setting(dict(zip(varying, key, strict=True)), _groups(members)) for key, members in by_setting.items()]


def _is_compared(name: str, runs: Sequence[Run]) -> bool:
    """Whether runs that differ in this label are of one setting; a load that is not a number has no place on an axis."""
    return name in COMPARED and (name != "load" or all(isinstance(run.labels.get(name), int | float | None) for run in runs))


def _texts(run: Run) -> dict[str, str]:
    return {clean(str(name)): label_text(value) for name, value in run.labels.items() if value is not None}


def _groups(runs: Sequence[Run]) -> list[Group]:
    by_load: dict[float | None, dict[str, list[Run]]] = {}
    for run in runs:
        by_load.setdefault(_load(run), {}).setdefault(label_text(run.labels.get("policy")), []).append(run)
    policies = list(dict.fromkeys(label_text(run.labels.get("policy")) for run in runs))
    loads = sorted(by_load, key=lambda load: -math.inf if load is None else load)
    return [Group(policy, load, by_load[load][policy]) for load in loads for policy in policies if policy in by_load[load]]


def _load(run: Run) -> float | None:
    load = run.labels.get("load")
    return float(load) if isinstance(load, int | float) and math.isfinite(load) else None


def _order(seed: str | float | None) -> tuple[bool, float, str]:
    """Numbers in their order, then names."""
    return (False, float(seed), "") if isinstance(seed, int | float) else (True, 0.0, label_text(seed))


NOTHING = 1e-12
"""Of a mean: less is rounding."""


@dataclass(frozen=True)
class Column:
    """metric: its name; heading: with its unit."""

    metric: str
    heading: str


@dataclass(frozen=True)
class Cell:
    """value: "–" for none; interval: "± ..." or ""; difference: from the best, in %, "" for the best and where there is none."""

    value: str = "–"
    interval: str = ""
    difference: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A policy at one load. seeds: how many of them the means are over."""

    policy: str
    seeds: int
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Summary:
    """blocks: (heading, rows) for each load, heading "" where there is one load that nobody told."""

    columns: Sequence[Column]
    blocks: Sequence[tuple[str, Sequence[Row]]]


def summary_of(setting: Setting) -> Summary:
    """Return the summary of a setting; the best is marked among the policies of one load, where there are several."""
    units = {metric: _unit(setting, metric) for metric in setting.metrics}
    columns = [Column(metric, unit.heading(measure_of(metric).title)) for metric, unit in units.items()]
    blocks = []
    for load in setting.loads:
        groups = setting.at(load)
        by_metric = [list(_cells(groups, metric, unit)) for metric, unit in units.items()]
        rows = [Row(group.policy, len(group.seeds), [cells[place] for cells in by_metric]) for place, group in enumerate(groups)]
        blocks.append(("" if load is None else f"load {short(load)} jobs/h", rows))
    return Summary(columns, blocks)


def _unit(setting: Setting, metric: str) -> Unit:
    found = (group.estimate(metric) for group in setting.groups)
    return measure_of(metric).unit(value.mean for value in found if value is not None)


def _cells(groups: Sequence[Group], metric: str, unit: Unit) -> Iterator[Cell]:
    found = [group.estimate(metric) for group in groups]
    best = _best(found, measure_of(metric))
    for value in found:
        if value is None:
            yield Cell()
            continue
        interval = "" if value.half_width is None else f"± {short(_half_width(value) / unit.size)}"
        is_best = best is not None and value.mean == best
        yield Cell(short(value.mean / unit.size), interval, _difference(value.mean, best), is_best)


def _half_width(value: Estimate) -> float:
    """The half width, 0 where it is rounding."""
    half_width = value.half_width or 0.0
    return half_width if half_width > NOTHING * abs(value.mean) else 0.0


def _best(found: Sequence[Estimate | None], measure: Measure) -> float | None:
    """The best of several means, None where there is nothing to be best among, or all are equal."""
    means = [value.mean for value in found if value is not None]
    if measure.better is None or len(set(means)) < 2:
        return None
    return min(means) if measure.better == "less" else max(means)


def _difference(mean: float, best: float | None) -> str:
    """How far from the best, in % of it.

    >>> _difference(1.5, 1.0), _difference(0.8, 1.0), _difference(1.0, 1.0), _difference(1.0, 0.0)
    ('+50 %', '−20 %', '', '')
    """
    if not best or mean == best:
        return ""
    percent = 100 * (mean - best) / abs(best)
    text = f"{abs(percent):,.0f}" if abs(percent) >= 10 else f"{abs(percent):.2g}"
    return f"{'+' if percent > 0 else '−'}{text} %"
