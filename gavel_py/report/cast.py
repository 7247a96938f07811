"""Which policies are drawn, and in which style: the same in all charts of a setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gavel_py.report.estimates import estimate
from gavel_py.report.runs import Run
from gavel_py.report.settings import Group, Setting
from gavel_py.report.tones import MOST_STYLES

__all__ = ["Cast", "cast_of"]

JUDGED_BY = ("mean_jct_seconds", "makespan_seconds", "cost")
"""Metrics by which policies are chosen where there are too many to draw: the first that any of them has."""


@dataclass(frozen=True, eq=False)
class Cast:
    """styles: number of the style of each policy that is drawn; load: at which charts are that show one; note: who is not drawn."""

    setting: Setting
    styles: Mapping[str, int]
    load: float | None
    note: str

    @property
    def shown_load(self) -> float | None:
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


def cast_of(setting: Setting) -> Cast:
    """Return who is drawn: all policies, or the best of them where there are more than can be told apart."""
    policies = setting.policies
    if len(policies) <= MOST_STYLES:
        return Cast(setting, {policy: style for style, policy in enumerate(policies)}, setting.middle_load, "")
    metric = next((name for name in JUDGED_BY if name in setting.metrics), JUDGED_BY[0])
    scores = {policy: _score(setting, policy, metric) for policy in policies}
    best = set(sorted(policies, key=lambda policy: scores[policy])[:MOST_STYLES])
    styles = {policy: style for style, policy in enumerate(policy for policy in policies if policy in best)}
    note = f"Drawn are the {MOST_STYLES} of {len(policies)} policies that are best by {metric}; the summary has all."
    return Cast(setting, styles, setting.middle_load, note)


def _score(setting: Setting, policy: str, metric: str) -> float:
    """The metric at the load of the charts; the last place for policies that were not run there."""
    found = estimate(mean for group in setting.of(policy) if group.load == setting.middle_load for mean in group.values(metric))
    return math.inf if found is None else found.mean
