"""A report of runs: one HTML page that needs nothing from elsewhere, and its charts as files.

`sections_of` is a section for each setting, with its summary and its charts. `embedded` makes a chart's SVG file a part of the
page: in the colours of its theme, and with a title and a description for readers who do not see it. `page` puts sections and
failures together with jinja2, which comes with `gavel-py[plot]`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gavel_py.errors import Fault, InputError
from gavel_py.io.writing import check_folder, check_report, write_whole
from gavel_py.report.charts import DARK, LIGHT, Chart, Palette, Table, palette_of, tone_names
from gavel_py.report.measures import CONFIDENCE, UNKNOWN, at_load, clean, label_text, measure_of
from gavel_py.report.run_charts import distribution_charts, heat_chart, load_charts, stays_chart, time_charts, tradeoff_charts
from gavel_py.report.runs import METRICS, Labels, Run
from gavel_py.report.settings import Group, Setting, Summary, common_labels, settings_of, summary_of

Failure = tuple[Labels, str]

MAX_CHARTED_SETTINGS = 4
"""Settings with charts; of more, the others have their summary only."""

MAX_GANTT_CHARTS = 4


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
    if number <= MAX_CHARTED_SETTINGS:
        palette = palette_of(setting)
        notes += [palette.note] if palette.note else []
        charts = [
            *([] if is_one_run else _compared(palette)),
            *distribution_charts(palette),
            *time_charts(palette),
            *_heat_charts(palette),
        ]
        wide = list(_stays_charts(palette))
        notes += list(_on_load(palette))
    else:
        notes.append(
            f"No charts: the first {MAX_CHARTED_SETTINGS} settings have them; gavel report --only LABEL=VALUE shows others."
        )
    prefix = "" if alone else f"{name}-"
    charts, wide = ([replace(chart, name=f"{prefix}{chart.name}") for chart in group] for group in (charts, wide))
    return Section(name, title, summary_of(setting), charts, wide, notes)


def _compared(palette: Palette) -> Iterator[Chart]:
    yield from load_charts(palette)
    yield from tradeoff_charts(palette)


def _heat_charts(palette: Palette) -> Iterator[Chart]:
    for number, (policy, run) in enumerate(palette.examples, 1):
        yield from heat_chart(f"shares-{number}", f"Time by accelerator{_of_run(palette, policy, run)}", run)


def _stays_charts(palette: Palette) -> Iterator[Chart]:
    shown = 0
    for group in [*palette.groups, *(group for group in palette.setting.groups if group not in palette.groups)]:
        run = next((run for _, runs in group.seeds for run in runs if run.stays), None)
        if run is not None and shown < MAX_GANTT_CHARTS:
            shown += 1
            types = tuple(run.over_time.used) if run.over_time else ()
            yield from stays_chart(f"gpus-{shown}", f"GPUs over time{_of_run(palette, group.policy, run)}", run.stays, types)


def _of_run(palette: Palette, policy: str, run: Run) -> str:
    """Which of several runs a chart shows, for its title."""
    if sum(len(group.runs) for group in palette.setting.groups) == 1:
        return ""
    load, seed = run.labels.get("load"), run.labels.get("seed")
    of_load = at_load(load) if isinstance(load, int | float) and len(palette.setting.loads) > 1 else ""
    return f": {policy}{of_load}{'' if seed is None else f', seed {label_text(seed)}'}"


def _on_load(palette: Palette) -> Iterator[str]:
    """Which of several loads charts show."""
    if len(palette.setting.loads) > 1 and palette.load is not None:
        text = label_text(palette.load)
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


SVG, HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"

ET.register_namespace("", SVG[1:-1])

COLOUR, NUMBER, REFERENCE = re.compile(r"#[0-9a-f]{6}"), re.compile(r"-?\d+\.\d{3,}"), re.compile(r"url\(#(\w+)\)")

FONT = re.compile(r"font-family: [^;]*;?")

NUMERIC = ("d", "x", "y", "transform", "points")


def embedded(svg: bytes, chart: Chart) -> str:
    """Return an `<svg>` element to stand in a page among others: with title and description, and ids that no other chart has."""
    root = ET.fromstring(svg)  # noqa: S314  made by this package
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{SVG}metadata", f"{SVG}style"}:
                parent.remove(child)
    referred = set(_references(root))
    names = {colour: f"var(--{name})" for colour, name in tone_names().items()}
    for element in root.iter():
        _rewrite(element, f"{chart.name}-", referred, names)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-labelledby": f"{chart.name}-title {chart.name}-desc"}
    for place, (tag, text) in enumerate((("title", chart.title), ("desc", chart.description))):
        told = ET.Element(f"{SVG}{tag}", {"id": f"{chart.name}-{tag}"})
        told.text = text
        root.insert(place, told)
    return ET.tostring(root, encoding="unicode")


def _references(root: ET.Element) -> Iterator[str]:
    """The ids that something refers to."""
    for element in root.iter():
        yield from (value[1:] for name, value in element.attrib.items() if name in {HREF, "href"} and value.startswith("#"))
        yield from REFERENCE.findall(element.get("clip-path", ""))


def _rewrite(element: ET.Element, prefix: str, referred: set[str], names: dict[str, str]) -> None:
    attributes = element.attrib
    if attributes.get("id") in referred:
        attributes["id"] = prefix + attributes["id"]
    else:
        attributes.pop("id", None)
    link = attributes.pop(HREF, None)
    if link is not None:
        attributes["href"] = f"#{prefix}{link[1:]}" if link.startswith("#") else link
    if "clip-path" in attributes:
        attributes["clip-path"] = REFERENCE.sub(rf"url(#{prefix}\1)", attributes["clip-path"])
    if "style" in attributes:
        style = FONT.sub("", attributes["style"])
        attributes["style"] = COLOUR.sub(lambda found: names.get(found[0], found[0]), style).strip()
    for name in NUMERIC:
        if name in attributes:
            attributes[name] = " ".join(NUMBER.sub(_rounded, attributes[name]).split())
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if element.text is not None and not element.text.strip():
        element.text = None
    element.tail = None


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


JOINTS = re.compile(r"[_,=:/.]")


def page(
    title: str, facts: Mapping[str, str], count: int, sections: Sequence[Section], drawn: Mapping[str, str], failures: Table | None
) -> str:
    """Return the page. facts: labels that all runs share; count: of the runs; drawn: {name of a chart: its SVG element}."""
    environment = Environment(
        loader=PackageLoader("gavel_py.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = breakable
    return environment.get_template("report.html").render(
        title=clean(title),
        facts=facts,
        count=count,
        sections=sections,
        drawn={name: Markup(svg) for name, svg in drawn.items()},  # noqa: S704  escaped when it was made
        failures=failures,
        meanings=list(_meanings(sections)),
        confidence=f"{CONFIDENCE:.0%}".replace("%", " %"),
        light=LIGHT,
        dark=DARK,
    )


def breakable(text: str) -> Markup:
    """Return text that may go on in the next line after each sign that joins words, as in names of policies.

    >>> breakable("a_b<c>")
    Markup('a_<wbr>b&lt;c&gt;')
    """
    return Markup(JOINTS.sub(r"\g<0><wbr>", str(escape(text))))  # noqa: S704


def failure_table(failures: Iterable[Failure]) -> Table | None:
    """Return what failed as a table, None where nothing did."""
    failed = [({clean(str(k)): label_text(v) for k, v in labels.items() if v is not None}, error) for labels, error in failures]
    names = list(dict.fromkeys(name for labels, _ in failed for name in labels))
    rows = [
        [*(labels.get(name, UNKNOWN) for name in names), "\n".join(map(clean, str(error).splitlines()))] for labels, error in failed
    ]
    return Table([*names, "error"], rows, text_columns=len(names) + 1) if rows else None


def _meanings(sections: Sequence[Section]) -> Iterable[tuple[str, str]]:
    """What the headings of the summaries mean, where it is known."""
    metrics = dict.fromkeys(column.metric for section in sections for column in section.summary.columns)
    return ((measure_of(name).title, METRICS[name].replace("`", "")) for name in metrics if name in METRICS)


TITLE = "Runs compared"


def write_report(
    runs: Iterable[Run],
    path: str | Path,
    *,
    title: str | None = None,
    failures: Iterable[tuple[Labels, str]] = (),
    charts: str | Path | None = None,
) -> list[Path]:
    """Write a report of runs to an HTML file that needs nothing else, and return the files written.

    Runs that differ in policy, load and seed only are compared: means and 95 % confidence intervals over seeds (Student's t), the
    best marked; completion times and finish-time fairness, what was used, promised and delivered over time, prices, and which
    policies no other beats; any other label that differs makes a section of its own. Of single runs, where each gang was, if told.
    failures: (labels, error) of runs that came to no end, which are listed; charts: a folder, made where there is none, into which
    each chart is written as .svg and .png. The same input makes the same bytes, under one version of matplotlib and jinja2. Each
    file is written whole or not at all.

    Raises `InputError` where there is nothing to report, for what is not a `Run`, for a place that cannot be written, and where
    matplotlib or jinja2 is not installed.

    >>> run = Run({"policy": "fifo"}, {"mean_jct_seconds": 3600.0})
    >>> write_report([run], "fifo.pdf")
    Traceback (most recent call last):
    gavel_py.errors.InputError: fifo.pdf: a report is written as .html; give the file this ending
    """
    check_report(path)
    if charts is not None:
        check_folder(charts)
    runs, failures = _checked(runs), list(failures)
    if not runs and not failures:
        raise InputError("there is nothing to report: no runs")
    from gavel_py.report.figures import figure_bytes

    sections = sections_of(runs)
    drawn = {chart.name: embedded(figure_bytes(chart, "svg"), chart) for chart in _charts(sections)}
    heading = title or (_title_of_one(runs[0]) if len(runs) == 1 else TITLE)
    facts = common_labels(runs) if runs else {}
    text = page(heading, facts, len(runs), sections, drawn, failure_table(failures))
    write_whole(path, text.encode())
    written = [Path(path)]
    if charts is not None:
        Path(charts).mkdir(parents=True, exist_ok=True)
        for chart in _charts(sections):
            for form in ("svg", "png"):
                written.append(Path(charts) / f"{chart.name}.{form}")
                write_whole(written[-1], figure_bytes(chart, form, alone=True))
    return written


def _charts(sections: Sequence[Section]) -> list[Chart]:
    return [chart for section in sections for chart in (*section.charts, *section.wide)]


def _title_of_one(run: Run) -> str:
    return f"A run of {label_text(run.labels.get('policy'))}"


def _checked(runs: Iterable[Run]) -> list[Run]:
    runs = list(runs)
    faults = [
        Fault(f"run {number}", "", f"must be a gavel_py.Run, found {type(run).__name__}")
        for number, run in enumerate(runs, 1)
        if not isinstance(run, Run)
    ]
    InputError.raise_any(faults)
    return runs
