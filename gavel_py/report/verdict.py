"""The findings of the runs of a setting: the best policy by each metric, in sentences and in tables, with its significance.

At each load, the policy with the best mean is compared with each other one by a paired t-test over the seeds that both have run on:
runs of one seed have the same trace, so the effect of the trace on both policies cancels. Loads with the same best mean share
sentences, and p-values are corrected by Holm's method over all pairs that these compare. Tables mark the results of the sentences.
Below `MIN_SEEDS` common seeds, and between equal runs, nothing is tested, and the best mean is only the lowest or highest in these
runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gavel_py.allocation.accounting import TenantShare
from gavel_py.problem.tolerances import FLOAT_ROUNDING
from gavel_py.report.measures import (
    UNKNOWN,
    Paired,
    SampleMean,
    Unit,
    at_loads,
    clean,
    counted,
    ends_of,
    holm,
    joined,
    paired,
    relative_text,
    short,
    shortened,
)
from gavel_py.report.metrics import VERDICT, Metric, metric_of
from gavel_py.report.runs import Run
from gavel_py.report.settings import Replications, Setting


@dataclass(frozen=True)
class Ranking:
    """The policies at one load by one metric. pairs: of the best mean with each other policy; less: whether less is better."""

    load: float | None
    best: str
    pairs: Sequence[Paired]
    less: bool

    @property
    def is_tested(self) -> bool:
        """Whether all policies that differ from the best one are tested, and at least one."""
        p_values = [pair.p_value for pair in self.pairs if pair.difference or pair.p_value is not None]
        return bool(p_values) and None not in p_values

    def is_worse(self, pair: Paired) -> bool:
        """Return whether a policy is worse than the best one; if nothing is tested, whether its value is."""
        separated = pair.is_separated if self.is_tested else pair.difference != 0
        return separated and (pair.difference > 0) == self.less

    @property
    def worse(self) -> list[Paired]:
        """The policies that are worse than the best one, the nearest first."""
        return sorted((pair for pair in self.pairs if self.is_worse(pair)), key=lambda pair: abs(pair.relative))

    @property
    def leaders(self) -> frozenset[str]:
        """The policy with the best mean, and those that are not worse."""
        return frozenset([self.best, *(pair.other for pair in self.pairs if not self.is_worse(pair))])

    @property
    def extreme(self) -> str:
        """Whether the best mean is the "lowest" or the "highest"."""
        return "lowest" if self.less else "highest"

    @property
    def mark(self) -> str:
        """The mark of the leaders in tables, "" if all policies are equal."""
        if not self.pairs or all(pair.difference == 0 for pair in self.pairs):
            return ""
        if not self.is_tested:
            return self.extreme
        return "best" if len(self.leaders) == 1 else "tied"


def rankings_of(setting: Setting, metric: str) -> dict[float | None, Ranking]:
    """Return {load: ranking} by a metric, with p-values corrected over loads of one sentence; {} if it does not rank policies."""
    better = metric_of(metric).best
    made = {}
    for load in setting.loads if better is not None else ():
        values = setting.by_seed(load, metric)
        if values:
            shared = set.intersection(*(set(found) for found in values.values()))
            means = {name: np.mean([found[seed] for seed in shared or found]) for name, found in values.items()}
            best = (min if better == "least" else max)(means, key=means.__getitem__)
            repeated = {group.policy for group in setting.at(load) if group.is_repeated}
            pairs = [paired(name, values[best], found) for name, found in values.items() if name != best]
            pairs = [replace(pair, half_width=None, p_value=None) if {best, pair.other} <= repeated else pair for pair in pairs]
            made[load] = Ranking(load, best, pairs, better == "least")
    corrected = {each.load: each for group in _sentences_of(made.values()) for each in _corrected(group)}
    return {load: corrected[load] for load in made}


def _sentences_of(rankings: Iterable[Ranking]) -> list[list[Ranking]]:
    """Return the rankings in groups that share sentences: those with the same best mean, tested or not."""
    groups: dict[tuple[bool, str], list[Ranking]] = {}
    for ranking in rankings:
        groups.setdefault((ranking.is_tested, ranking.best), []).append(ranking)
    return list(groups.values())


def _corrected(rankings: Sequence[Ranking]) -> list[Ranking]:
    """Return rankings with their p-values corrected over all of their pairs."""
    p_values = iter(holm([pair.p_value for each in rankings for pair in each.pairs if pair.p_value is not None]))
    return [
        replace(each, pairs=[replace(pair, p_value=None if pair.p_value is None else next(p_values)) for pair in each.pairs])
        for each in rankings
    ]


MAX_NAME = 48

NAME_BEGIN, NAME_END = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
"""Invisible characters around names of policies in sentences, which `clean` removes from the names."""


@dataclass(frozen=True)
class Finding:
    """The sentences about one metric. title: what is compared; text: with names between `NAME_BEGIN` and `NAME_END`."""

    title: str
    text: str


def verdict_of(setting: Setting) -> list[Finding]:
    """Return the findings of the runs as sentences; [] for a single policy."""
    findings = []
    for metric in VERDICT:
        if metric.name not in setting.metrics:
            continue
        groups = _sentences_of(ranking for ranking in rankings_of(setting, metric.name).values() if ranking.pairs)
        writer = _Writer(setting, metric)
        text = " ".join(sentence for group in groups for sentence in writer.sentences(group))
        findings += [Finding(metric.title.capitalize(), text)] if text else []
    return findings


class _Writer:
    """Writes the sentences about one metric."""

    def __init__(self, setting: Setting, metric: Metric) -> None:
        self._setting, self._title = setting, metric.title
        means = {(group.policy, group.load): group.estimate(metric.name) for group in setting.groups}
        self._means = {place: value.mean for place, value in means.items() if value is not None}
        self._unit = metric.unit(self._means.values())

    def sentences(self, rankings: Sequence[Ranking]) -> Iterator[str]:
        """Yield the sentences about rankings with the same best mean."""
        first, loads, values = rankings[0], self._at(rankings), self._values(rankings)
        best = _name(first.best)
        shown = [each for each in rankings if each.mark == "best"]
        open_ = [each for each in rankings if each.mark != "best"]
        if not any(pair.difference for each in rankings for pair in each.pairs):
            yield f"All policies have the same {self._title}{loads}: {values}."
        elif self._setting.is_fixed:
            yield f"{best} has a {self._title} of {values}{loads}, the {first.extreme} in this one run; nothing here is random."
            yield from self._equals(rankings, "It equals")
            yield from self._others(rankings, "The next is")
        elif not first.is_tested:
            yield f"{best} has the {first.extreme} {self._title} in these runs{loads}: {values}."
            yield from self._equals(rankings, "In these runs it equals")
            yield from self._others(rankings, "The next is")
        else:
            yield f"{best} has the {first.extreme if open_ else 'best'} {self._title}{loads}: {values}."
            yield from self._others(shown, f"It is best{self._at(shown)}; the next is" if open_ else "The next is")
            yield from self._equals(rankings, f"These {_seeds(rankings)} can show no difference from")
            yield from self._others(open_, "The nearest of the others is")

    def _equals(self, rankings: Sequence[Ranking], lead: str) -> Iterator[str]:
        """Yield the policies that are not worse than the best one, with the loads where that is so."""
        by_loads: dict[tuple[float | None, ...], list[str]] = {}
        for policy in self._setting.policies:
            loads = tuple(each.load for each in rankings if policy in each.leaders and policy != each.best)
            if loads:
                by_loads.setdefault(loads, []).append(policy)
        everywhere = len(by_loads) == 1 and len(next(iter(by_loads))) == len(rankings)
        parts = []
        for loads, names in sorted(by_loads.items(), key=lambda item: -len(item[0])):
            others = "any other policy" if len(names) > 2 and len(names) == len(rankings[0].pairs) else joined([*map(_name, names)])
            parts.append(f"{others}{'' if everywhere else at_loads(loads, self._setting.loads)}")
        if parts:
            yield f"{lead} {'; '.join(parts)}."

    def _at(self, rankings: Iterable[Ranking]) -> str:
        return at_loads([each.load for each in rankings], self._setting.loads)

    def _values(self, rankings: Sequence[Ranking]) -> str:
        """Return the best mean; for several loads, that of the first and that of the last."""
        unit = f" {self._unit.name}" if self._unit.name else ""
        amounts = ((short(self._means[each.best, each.load] / self._unit.size), each) for each in ends_of(rankings))
        return ", ".join(f"{amount}{unit}{self._at([each]) if len(rankings) > 1 else ''}" for amount, each in amounts)

    def _others(self, rankings: Sequence[Ranking], lead: str) -> Iterator[str]:
        """Yield the difference of the nearest worse policy, at the loads where it is smallest and largest."""
        behind = sorted((each for each in rankings if each.worse), key=lambda each: abs(each.worse[0].relative))
        if not behind:
            return
        text = last = ""
        for each in sorted(ends_of(behind), key=rankings.index):
            pair = each.worse[0]
            text += " and " if pair.other == last else f"{', and ' if last else ''}{_name(pair.other)} with "
            text += self._gap(pair) + (self._at([each]) if len(rankings) > 1 else "")
            last = pair.other
        yield f"{lead} {text}{_significance(behind)}."

    def _gap(self, pair: Paired) -> str:
        """Return a difference from the best mean with its interval, relative to that mean unless it is 0."""
        size, text = (abs(pair.base), relative_text) if pair.base else (self._unit.size, self._unit.difference)
        ends = [pair.difference - (pair.half_width or 0.0), pair.difference + (pair.half_width or 0.0)]
        interval = f" (95 % interval {' to '.join(text(end / size) for end in ends)})" if pair.half_width else ""
        return f"{text(pair.difference / size)}{' (the same with each seed)' if pair.half_width == 0 else interval}"


def _name(policy: str) -> str:
    return f"{NAME_BEGIN}{shortened(policy, MAX_NAME)}{NAME_END}"


def _seeds(rankings: Iterable[Ranking]) -> str:
    """Return the number of common seeds behind rankings."""
    counts = {pair.seeds for each in rankings for pair in each.pairs}
    return counted(max(counts), "seed") if len(counts) == 1 else f"{min(counts)} to {max(counts)} seeds"


def _significance(rankings: Sequence[Ranking]) -> str:
    """Return the number of common seeds and a bound of the p-values of all worse policies, "" if nothing is tested."""
    values = [pair.p_value for each in rankings for pair in each.worse if pair.p_value is not None]
    if not values:
        return ""
    return f"; {_seeds(rankings)}, p {'< 0.001' if max(values) < 0.001 else f'≤ {max(values):.2g}'}"


@dataclass(frozen=True)
class VerdictColumn:
    """A metric and its heading with the unit."""

    metric: str
    heading: str


@dataclass(frozen=True)
class VerdictCell:
    """Texts of a value. interval: "± ..." or ""; difference: from the best, "" for that one; mark: as for `Ranking`."""

    value: str = UNKNOWN
    interval: str = ""
    difference: str = ""
    mark: str = ""


@dataclass(frozen=True)
class VerdictRow:
    """A policy at one load, or a tenant. seeds: number of seeds behind the means, 0 for a run into which none enters."""

    name: str
    seeds: int
    cells: Sequence[VerdictCell]


@dataclass(frozen=True)
class VerdictTable:
    """A table of a setting. blocks: (heading, rows) of each load, "" for an unknown one; names: what the rows are."""

    columns: Sequence[VerdictColumn]
    blocks: Sequence[tuple[str, Sequence[VerdictRow]]]
    names: str = "policy"


MAX_COLUMNS = 5
"""Metrics of a table, so that it fits a phone and a printed page."""


def summaries_of(setting: Setting) -> list[VerdictTable]:
    """Return the tables of a setting: the first has the main metrics, the others the rest."""
    main = [metric for metric in setting.metrics if metric_of(metric).kind]
    rest = [metric for metric in setting.metrics if metric not in main]
    width = math.ceil(len(rest) / math.ceil(len(rest) / MAX_COLUMNS)) if rest else 1
    groups = [*([main] if main else []), *(rest[at : at + width] for at in range(0, len(rest), width))]
    return [_summary(setting, metrics) for metrics in groups or [[]]]


def _summary(setting: Setting, metrics: Sequence[str]) -> VerdictTable:
    units = {}
    for metric in metrics:
        estimates = [group.estimate(metric) for group in setting.groups]
        units[metric] = metric_of(metric).unit(value.mean for value in estimates if value is not None)
    columns = [VerdictColumn(metric, unit.heading(metric_of(metric).title)) for metric, unit in units.items()]
    rankings = {metric: rankings_of(setting, metric) for metric in metrics}
    blocks = []
    for load in setting.loads:
        rows = []
        for group in setting.at(load):
            cells = [
                _cell(group.policy, group.estimate(metric), unit, rankings[metric].get(load)) for metric, unit in units.items()
            ]
            rows.append(VerdictRow(group.policy, _num_seeds(group), cells))
        blocks.append(("" if load is None else f"load {short(load)} jobs/h", rows))
    return VerdictTable(columns, blocks)


def _num_seeds(group: Replications) -> int:
    return 0 if group.is_fixed else len(group.seeds)


def _cell(policy: str, value: SampleMean | None, unit: Unit, ranking: Ranking | None) -> VerdictCell:
    if value is None:
        return VerdictCell()
    half_width = value.half_width or 0.0
    half_width = half_width if half_width > FLOAT_ROUNDING * abs(value.mean) else 0.0
    interval = "" if value.half_width is None else f"± {short(half_width / unit.size)}"
    cell = VerdictCell(short(value.mean / unit.size), interval)
    if ranking is None or not ranking.mark:
        return cell
    pair = next((pair for pair in ranking.pairs if pair.other == policy), None)
    difference = relative_text(pair.relative) if pair and pair.difference and pair.base else ""
    return replace(cell, difference=difference, mark=ranking.mark if policy in ranking.leaders else "")


OF_TENANTS = [
    Metric("share", "promised share", "share"),
    Metric("gpu_share", "share of GPUs", "share"),
    Metric("throughput_share", "share of throughput", "share"),
    *(metric for metric in VERDICT if metric.name in TenantShare.__dataclass_fields__),
]
"""Numbers of a tenant, by attribute of `TenantShare`."""

MAX_TENANTS = 20


def tenants_of(setting: Setting) -> VerdictTable | None:
    """Return the promised and actual share of each tenant under each policy at the middle load, None if runs have no tenants.

    If there are more than `MAX_TENANTS` tenants, only those with the largest shares are listed.
    """
    groups = _groups_by_tenant(setting)
    units = {}
    for metric in OF_TENANTS:
        estimates = [group.estimate(metric.name) for found in groups.values() for group in found]
        values = [value.mean for value in estimates if value is not None]
        if any(values):
            units[metric] = metric.unit(values)
    if any(metric.quantity == "time" for metric in units):  # if jobs run to their end, the throughput is determined by their work
        units = {metric: unit for metric, unit in units.items() if metric.name != "throughput_share"}
    if not units:
        return None

    def row_of(name: str, group: Replications) -> VerdictRow:
        return VerdictRow(
            name, _num_seeds(group), [_cell(name, group.estimate(metric.name), unit, None) for metric, unit in units.items()]
        )

    when = {"share": " while the batch drains" if setting.drains else ""}  # not what a tenant has while all compete
    columns = [
        VerdictColumn(metric.name, unit.heading(metric.title + when.get(metric.quantity, ""))) for metric, unit in units.items()
    ]
    if len(setting.groups) == 1:
        return VerdictTable(
            columns, [("", [row_of(tenant, group) for tenant, found in groups.items() for group in found])], "tenant"
        )
    blocks = [(tenant, [row_of(group.policy, group) for group in found]) for tenant, found in groups.items()]
    return VerdictTable(columns, blocks)


def _groups_by_tenant(setting: Setting) -> dict[str, list[Replications]]:
    """Return {tenant: groups of the middle load}, whose runs have the tenant's numbers as metrics."""
    by_tenant: dict[str, list[Replications]] = {}
    shares: dict[str, float] = {}
    for group in setting.at(setting.middle_load):
        runs: dict[str, list[Run]] = {}
        for run in group.runs:
            for each in run.tenants:
                numbers = {metric.name: getattr(each, metric.name) for metric in OF_TENANTS}
                runs.setdefault(each.tenant, []).append(Run(run.labels, numbers))
                shares[each.tenant] = max(each.share, shares.get(each.tenant, 0.0))
        for tenant, found in runs.items():
            by_tenant.setdefault(tenant, []).append(Replications(group.policy, group.load, found))
    largest = set(sorted(shares, key=lambda tenant: -shares[tenant])[:MAX_TENANTS])
    return {clean(tenant) or "no tenant": found for tenant, found in by_tenant.items() if tenant in largest}
