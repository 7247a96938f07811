"""The parts of a report as plain data: a section for each setting, with its summary and its charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gavel_py.report.charts import Cast, Chart, cast_of
from gavel_py.report.measures import at_load, label_text
from gavel_py.report.metric_charts import distribution_charts, load_charts, tradeoff_charts
from gavel_py.report.runs import Run
from gavel_py.report.settings import Group, Setting, Summary, settings_of, summary_of
from gavel_py.report.time_charts import heat_chart, stays_chart, time_charts

__all__ = ["Section", "sections_of"]

MOST_SETTINGS = 4
"""Settings with charts; of more, the others have their summary only."""

MOST_STAY_PICTURES = 4


@dataclass(frozen=True, eq=False)
class Section:
    """One setting. charts: of numbers and over time; wide: those that need the whole width; notes: what the reader must know."""

    name: str
    title: str
    summary: Summary
    charts: Sequence[Chart]
    wide: Sequence[Chart]
    notes: Sequence[str]

    @property
    def has_intervals(self) -> bool:
        """Whether any of its means has a confidence interval."""
        return any(row.seeds > 1 for _, rows in self.summary.blocks for row in rows)


def sections_of(runs: Sequence[Run]) -> list[Section]:
    """Return a section for each setting, charts named so that no two of the report have the same name."""
    settings = settings_of(runs)
    return [_section(number, setting, alone=len(settings) == 1) for number, setting in enumerate(settings, 1)]


def _section(number: int, setting: Setting, *, alone: bool) -> Section:
    name = "comparison" if alone else f"setting-{number}"
    is_one_run = len(setting.groups) == 1
    title = setting.title or ("The run" if is_one_run else "Comparison")
    notes = list(_notes(setting))
    charts: list[Chart] = []
    wide: list[Chart] = []
    if number <= MOST_SETTINGS:
        cast = cast_of(setting)
        notes += [cast.note] if cast.note else []
        charts = [*([] if is_one_run else _compared(cast)), *distribution_charts(cast), *time_charts(cast), *_heat_charts(cast)]
        wide = list(_stays_charts(cast))
        notes += list(_on_load(cast))
    else:
        notes.append(f"No charts: the first {MOST_SETTINGS} settings have them; gavel report --only LABEL=VALUE shows others.")
    prefix = "" if alone else f"{name}-"
    charts, wide = ([replace(chart, name=f"{prefix}{chart.name}") for chart in group] for group in (charts, wide))
    return Section(name, title, summary_of(setting), charts, wide, notes)


def _compared(cast: Cast) -> Iterator[Chart]:
    yield from load_charts(cast)
    yield from tradeoff_charts(cast)


def _heat_charts(cast: Cast) -> Iterator[Chart]:
    for number, (policy, run) in enumerate(cast.examples, 1):
        yield from heat_chart(f"shares-{number}", f"Time by accelerator{_of_run(cast, policy, run)}", run)


def _stays_charts(cast: Cast) -> Iterator[Chart]:
    shown = 0
    for group in [*cast.groups, *(group for group in cast.setting.groups if group not in cast.groups)]:
        run = next((run for _, runs in group.seeds for run in runs if run.stays), None)
        if run is not None and shown < MOST_STAY_PICTURES:
            shown += 1
            types = tuple(run.over_time.used) if run.over_time else ()
            yield from stays_chart(f"gpus-{shown}", f"GPUs over time{_of_run(cast, group.policy, run)}", run.stays, types)


def _of_run(cast: Cast, policy: str, run: Run) -> str:
    """Which of several runs a chart shows, for its title."""
    if sum(len(group.runs) for group in cast.setting.groups) == 1:
        return ""
    load, seed = run.labels.get("load"), run.labels.get("seed")
    of_load = at_load(load) if isinstance(load, int | float) and len(cast.setting.loads) > 1 else ""
    return f": {policy}{of_load}{'' if seed is None else f', seed {label_text(seed)}'}"


def _on_load(cast: Cast) -> Iterator[str]:
    """Which of several loads charts show."""
    if len(cast.setting.loads) > 1 and cast.load is not None:
        text = label_text(cast.load)
        yield f"Charts of one load show {text} jobs/h; gavel report --only load=VALUE shows another."


def _notes(setting: Setting) -> Iterator[str]:
    """What makes means hard to compare."""
    if any(len({tuple(seed for seed, _ in group.seeds) for group in setting.at(load)}) > 1 for load in setting.loads):
        yield "Not all policies have run on the same seeds: their means are of different traces."
    uneven = [group for load in setting.loads for group in _unfinished(setting.at(load))]
    if uneven:
        names = ", ".join(dict.fromkeys(group.policy for group in uneven))
        yield f"Not all finished the same jobs: fewer finished under {names}. Completion times are of finished jobs only."


def _unfinished(groups: Sequence[Group]) -> list[Group]:
    """The groups in which fewer jobs finished than in another one of the same seeds."""
    counts = [(group, group.estimate("finished"), [seed for seed, _ in group.seeds]) for group in groups]
    known = [(group, count.mean, seeds) for group, count, seeds in counts if count is not None]
    return [group for group, count, seeds in known if any(other > count and seeds == theirs for _, other, theirs in known)]
