"""Settings, which group comparable runs: those of a setting differ in policy, load and seed only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from gavel_py.problem.tolerances import FLOAT_ROUNDING
from gavel_py.report.measures import UNKNOWN, SampleMean, clean, estimate, label_text
from gavel_py.report.metrics import METRICS, metric_of
from gavel_py.report.runs import Run

COMPARED = ("policy", "load", "seed")
"""Labels that may differ within a setting; a difference in any other label separates settings."""


@dataclass(frozen=True, eq=False)
class Replications:
    """Runs of one policy at one load (jobs per hour), which differ in their seed only."""

    policy: str
    load: float | None
    runs: Sequence[Run]

    @property
    def is_fixed(self) -> bool:
        """Whether no seed enters its runs, whose label `seed` is None; runs without this label may be random."""
        return all(run.labels.get("seed", "") is None for run in self.runs)

    @cached_property
    def is_repeated(self) -> bool:
        """Whether its runs are equal but for their seeds and clocks, as one run or its copies, which show no variation."""
        clocks = [name for name, metric in METRICS.items() if metric.quantity == "clock"]
        results = ([{**run.metrics} | dict.fromkeys(clocks), run.jct_seconds.tolist()] for run in self.runs)
        first = next(results)
        return all(each == first for each in results)

    @cached_property
    def seeds(self) -> list[tuple[str, list[Run]]]:
        """The runs of each seed, sorted by seed."""
        ordered = sorted(self.runs, key=_seed_order)
        return [(seed, list(runs)) for seed, runs in groupby(ordered, key=lambda run: label_text(run.labels.get("seed")))]

    def by_seed(self, metric: str) -> dict[str, float]:
        """Return {seed: metric} of the seeds that have it; runs of the same seed are averaged, since they are not independent."""
        means = {seed: estimate(run.metrics.get(metric) for run in runs) for seed, runs in self.seeds}
        return {seed: mean.mean for seed, mean in means.items() if mean is not None}

    def estimate(self, metric: str) -> SampleMean | None:
        """Return the mean of a metric over the seeds, or None if no run has it."""
        return estimate(self.by_seed(metric).values())


@dataclass(frozen=True, eq=False)
class Setting:
    """Comparable runs. labels: those that distinguish it from other settings; groups: sorted by load, then policy."""

    labels: Mapping[str, str]
    groups: Sequence[Replications]

    @property
    def title(self) -> str:
        """The distinguishing labels, "" for the only setting."""
        return ", ".join(f"{name} {value}" for name, value in self.labels.items() if value != UNKNOWN)

    @property
    def is_fixed(self) -> bool:
        """Whether no seed enters any run, so that each group is one run."""
        return all(group.is_fixed for group in self.groups)

    @cached_property
    def policies(self) -> list[str]:
        """The policies, in order of their first run."""
        return list(dict.fromkeys(group.policy for group in self.groups))

    @cached_property
    def loads(self) -> list[float | None]:
        """The loads, ascending."""
        return list(dict.fromkeys(group.load for group in self.groups))

    @cached_property
    def metrics(self) -> list[str]:
        """All metrics with a value in some run, known ones first, counts after others; a cost that is 0 in all runs is left out."""
        items = (item for group in self.groups for run in group.runs for item in run.metrics.items())
        present = dict.fromkeys(
            name for name, value in items if value is not None and (metric_of(name).quantity != "money" or value != 0)
        )
        return [
            *sorted((name for name in METRICS if name in present), key=lambda name: METRICS[name].quantity == "count"),
            *(name for name in present if name not in METRICS),
        ]

    @cached_property
    def middle_load(self) -> float | None:
        """The load shown by charts of a single load: the middle one of those with the most policies."""
        counts = {load: len(self.at(load)) for load in self.loads}
        best = [load for load in self.loads if counts[load] == max(counts.values())]
        return best[len(best) // 2]

    @cached_property
    def drains(self) -> bool:
        """Whether the runs of the middle load are of a batch: their number of jobs only falls, as they leave one after another."""
        runs = [run for group in self.at(self.middle_load) for run in group.runs]
        active = [np.zeros(0) if run.over_time is None else run.over_time.active_jobs for run in runs]
        return all(len(jobs) > 1 and jobs[-1] < jobs[0] and np.diff(jobs).max() <= FLOAT_ROUNDING * jobs[0] for jobs in active)

    def at(self, load: float | None) -> list[Replications]:
        """Return the groups of a load."""
        return [group for group in self.groups if group.load == load]

    def by_seed(self, load: float | None, metric: str) -> dict[str, dict[str, float]]:
        """Return {policy: {seed: metric}} at a load. A run into which no seed enters is the same with each seed of the others."""
        values = {group: found for group in self.at(load) if (found := group.by_seed(metric))}
        seeds = {seed for group, found in values.items() if not group.is_fixed for seed in found}
        return {
            group.policy: dict.fromkeys(seeds, *found.values()) if group.is_fixed and seeds else found
            for group, found in values.items()
        }


def _seed_order(run: Run) -> tuple[bool, float, str]:
    """Sort key of runs by seed: numbers first, then names."""
    seed = run.labels.get("seed")
    return (False, float(seed), "") if isinstance(seed, int | float) else (True, 0.0, label_text(seed))


def common_labels(runs: Sequence[Run]) -> dict[str, str]:
    """Return the labels with the same value in all runs."""
    first, *others = map(_texts, runs)
    return {name: text for name, text in first.items() if all(other.get(name) == text for other in others)}


def settings_of(runs: Iterable[Run]) -> list[Setting]:
    """Return the settings in order of their first run; every run is in exactly one group of one setting."""
    runs = list(runs)
    texts = [_texts(run) for run in runs]
    # Loads must be numbers to be placed on an axis.
    has_loads = all(isinstance(run.labels.get("load"), int | float | None) for run in runs)
    compared = COMPARED if has_loads else tuple(name for name in COMPARED if name != "load")
    names = [name for name in dict.fromkeys(name for each in texts for name in each) if name not in compared]
    varying = [name for name in names if len({each.get(name) for each in texts}) > 1]
    by_setting: dict[tuple[str, ...], list[Run]] = {}
    for run, each in zip(runs, texts, strict=True):
        by_setting.setdefault(tuple(each.get(name, UNKNOWN) for name in varying), []).append(run)
    return [Setting(dict(zip(varying, key, strict=True)), _groups(members)) for key, members in by_setting.items()]


def _texts(run: Run) -> dict[str, str]:
    return {clean(str(name)): label_text(value) for name, value in run.labels.items() if value is not None}


def _groups(runs: Sequence[Run]) -> list[Replications]:
    by_load: dict[float | None, dict[str, list[Run]]] = {}
    for run in runs:
        load = run.labels.get("load")
        known = float(load) if isinstance(load, int | float) and math.isfinite(load) else None
        by_load.setdefault(known, {}).setdefault(label_text(run.labels.get("policy")), []).append(run)
    policies = list(dict.fromkeys(label_text(run.labels.get("policy")) for run in runs))
    loads = sorted(by_load, key=lambda load: -math.inf if load is None else load)
    return [Replications(policy, load, by_load[load][policy]) for load in loads for policy in policies if policy in by_load[load]]
