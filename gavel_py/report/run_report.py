"""The report of runs: one self-contained HTML page, and its charts as files.

A page has a section for each setting, with a verdict, tables, and charts as inline SVG. jinja2 and matplotlib come with
`gavel-py[plot]`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gavel_py.errors import InputError, refuse, wrong_types
from gavel_py.io.writing import check_report, check_writable, write_atomic
from gavel_py.report.charts import DARK, LIGHT, Chart, Table, palette_of
from gavel_py.report.measures import CONFIDENCE, MIN_SEEDS, UNKNOWN, at_load, clean, counted, label_text
from gavel_py.report.metrics import metric_of
from gavel_py.report.runs import Labels, Run
from gavel_py.report.settings import Replications, Setting, common_labels, settings_of
from gavel_py.report.verdict import MAX_TENANTS, NAME_BEGIN, NAME_END, Finding, VerdictTable, summaries_of, tenants_of, verdict_of

Failure = tuple[Labels, str]

MAX_CHARTED_SETTINGS = 4
"""Settings with charts; the others have a summary only."""


UNTESTED = f"in these runs; fewer than {MIN_SEEDS} common seeds, or equal runs, cannot show whether that is more than chance"

FIXED = "in this one run; nothing here is random"

REPLICATIONS = (
    "Nothing here is random: each policy has one run, other seeds would repeat it, and no difference is tested. For replications, "
    "make other traces of the recorded one with gavel trace sample or gavel trace window, and run the policies on them."
)

MARKS = {
    "best": "better than each other policy at this load",
    "tied": "the best mean, and means without a difference from it that the seeds can show",
    "lowest": UNTESTED,
    "highest": UNTESTED,
}
"""Marks of the summaries, and what they mean."""


@dataclass(frozen=True, eq=False)
class Section:
    """A section of the page.

    findings: the verdict; summaries: the table of the main metrics, then those of the others; tenants: their table, if runs have
    any; tenants_title: its caption; wide: charts over the full width; notes: caveats on the numbers.
    """

    name: str
    title: str
    findings: Sequence[Finding]
    summaries: Sequence[VerdictTable]
    tenants: VerdictTable | None
    tenants_title: str
    charts: Sequence[Chart]
    wide: Sequence[Chart]
    notes: Sequence[str]

    @property
    def is_one_run(self) -> bool:
        """Whether there is nothing to compare."""
        return self.num_rows == 1

    @property
    def num_rows(self) -> int:
        """Rows of each summary."""
        return sum(len(rows) for _, rows in self.summaries[0].blocks)

    @property
    def seeds(self) -> str:
        """The number of seeds behind the means, "" if they differ, "1 run" if no seed enters any."""
        counts = {row.seeds for _, rows in self.summaries[0].blocks for row in rows}
        return (counted(counts.pop(), "seed") if any(counts) else "1 run") if len(counts) == 1 else ""

    @property
    def legend(self) -> list[tuple[list[str], str]]:
        """(marks, meaning) of the marks in the summaries."""
        marks = {cell.mark for each in self.summaries for _, rows in each.blocks for row in rows for cell in row.cells}
        of_marks = MARKS | dict.fromkeys(("lowest", "highest"), FIXED) if self.seeds == "1 run" else MARKS
        meanings = {text: [mark for mark in of_marks if mark in marks and of_marks[mark] == text] for text in of_marks.values()}
        return [(shown, meaning) for meaning, shown in meanings.items() if shown]

    @property
    def has_intervals(self) -> bool:
        """Whether any mean has a confidence interval."""
        return any(row.seeds >= MIN_SEEDS for _, rows in self.summaries[0].blocks for row in rows)


def section_of(number: int, setting: Setting, *, is_only: bool) -> Section:
    """Return the section of a setting, numbered from 1; the names of charts are unique in the report."""
    from gavel_py.report.run_charts import distribution_charts, heat_charts, load_charts, stays_charts, time_charts, tradeoff_charts

    name = "comparison" if is_only else f"setting-{number}"
    is_one_run = len(setting.groups) == 1
    title = setting.title or ("The run" if is_one_run else "Comparison")
    notes = list(_notes(setting))
    charts: list[Chart] = []
    wide: list[Chart] = []
    if number <= MAX_CHARTED_SETTINGS:
        palette = palette_of(setting)
        if not is_one_run:
            charts += [*load_charts(palette), *tradeoff_charts(palette)]
        charts += [*distribution_charts(palette), *time_charts(palette), *heat_charts(palette)]
        wide = list(stays_charts(palette))
        notes += [palette.note] if palette.note else []
        if len(setting.loads) > 1 and palette.load is not None:
            load = label_text(palette.load)
            notes.append(f"Charts of one load show {load} jobs/h; gavel report --only load=VALUE shows another.")
    else:
        only = "gavel report --only LABEL=VALUE shows others."
        notes.append(f"No charts: the first {MAX_CHARTED_SETTINGS} settings have them; {only}")
    prefix = "" if is_only else f"{name}-"
    charts, wide = ([replace(chart, name=f"{prefix}{chart.name}") for chart in group] for group in (charts, wide))
    tenants_title = f"What tenants were promised and got{at_load(setting.middle_load) if len(setting.loads) > 1 else ''}"
    tables = summaries_of(setting), tenants_of(setting), tenants_title
    return Section(name, title, verdict_of(setting), *tables, charts, wide, notes)


def _notes(setting: Setting) -> Iterator[str]:
    """Yield caveats on the comparison of means."""
    if setting.is_fixed and len(setting.groups) > 1:
        yield REPLICATIONS
    random = [group for group in setting.groups if not group.is_fixed]
    if any(len({tuple(seed for seed, _ in group.seeds) for group in random if group.load == load}) > 1 for load in setting.loads):
        yield "Not all policies have run on the same seeds: their means are of different traces."
    tenants = {each.tenant for group in setting.groups for run in group.runs for each in run.tenants}
    if len(tenants) > MAX_TENANTS:
        yield f"The table of tenants has the {MAX_TENANTS} of {len(tenants):,} tenants with the largest shares."
    uneven = [group for load in setting.loads for group in _unfinished(setting.at(load))]
    if uneven:
        names = ", ".join(dict.fromkeys(group.policy for group in uneven))
        yield f"Not all finished the same jobs: fewer finished under {names}. Completion times are of finished jobs only."


def _unfinished(groups: Sequence[Replications]) -> list[Replications]:
    """Return the groups with fewer finished jobs than another group with the same seeds."""
    counts = [(group, group.estimate("finished"), [seed for seed, _ in group.seeds]) for group in groups]
    known = [(group, count.mean, seeds) for group, count, seeds in counts if count is not None]
    return [group for group, count, seeds in known if any(other > count and seeds == theirs for _, other, theirs in known)]


SVG, HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"

ET.register_namespace("", SVG[1:-1])

COLOUR, NUMBER, FONT = re.compile(r"#[0-9a-f]{6}"), re.compile(r"-?\d+\.\d{3,}"), re.compile(r"font-family: [^;]*;?")


def embedded(svg: bytes, chart: Chart) -> str:
    """Return an SVG file as an inline `<svg>` element in the colours and the font of the page, with title and description."""
    root = ET.fromstring(svg)  # noqa: S314  made by this package
    names = {colour: f"var(--{name})" for name, colour in LIGHT.items()}
    for element in root.iter():
        element[:] = [child for child in element if child.tag not in {f"{SVG}metadata", f"{SVG}style"}]
        element.tail = None
        if element.text is not None and not element.text.strip():
            element.text = None
        for name in list(element.attrib):
            value = COLOUR.sub(lambda found: names.get(found[0], found[0]), FONT.sub("", element.attrib.pop(name)))
            short = NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
            element.set("href" if name == HREF else name, short.strip())
        if element.tag == f"{SVG}g":
            element.attrib.pop("id", None)  # nothing refers to groups, whose ids recur in every chart
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-labelledby": f"{chart.name}-title {chart.name}-desc"}
    for place, (tag, text) in enumerate((("title", chart.title), ("desc", chart.description))):
        label = ET.Element(f"{SVG}{tag}", {"id": f"{chart.name}-{tag}"})
        label.text = text
        root.insert(place, label)
    return ET.tostring(root, encoding="unicode")


JOINTS = re.compile(r"[_,=:/.]")

BOUND = re.compile(r"(?<=\d) (?=%|×|price units|s\b|min\b|h\b|days\b|jobs/h)| (?=[≤<] )|(?<=[≤<]) ")
"""Spaces at which lines must not break."""


def page(
    title: str,
    facts: Mapping[str, str],
    count: int,
    sections: Sequence[Section],
    figures: Mapping[str, str],
    failures: Table | None,
) -> str:
    """Return the HTML page. facts: labels that all runs share; count: number of runs; figures: {chart name: SVG element}."""
    metrics = dict.fromkeys(column.metric for section in sections for each in section.summaries for column in each.columns)
    return rendered(
        "report.html",
        title=clean(title),
        facts=facts,
        count=count,
        sections=sections,
        figures=figures,
        failures=failures,
        meanings=[(each.title, each.meaning.replace("`", "")) for each in map(metric_of, metrics) if each.meaning],
        confidence=f"{CONFIDENCE:.0%}".replace("%", " %"),
        min_seeds=MIN_SEEDS,
    )


POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The Content-Security-Policy of a page: it loads nothing, and runs no script."""


def rendered(template: str, *, policy: str = POLICY, **context: Any) -> str:
    """Return a page from a template in the colours and styles of all reports; all texts are escaped but SVG elements."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("gavel_py.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"breakable": breakable, "prose": prose, "as_is": Markup}
    return environment.get_template(template).render(policy=policy, light=LIGHT, dark=DARK, **context)


def breakable(text: str) -> str:
    """Return text that may be wrapped after each character that joins words, as in names of policies.

    >>> breakable("a_b<c>")
    Markup('a_<wbr>b&lt;c&gt;')
    """
    from markupsafe import Markup, escape

    return Markup(JOINTS.sub(r"\g<0><wbr>", str(escape(text))))  # noqa: S704


def prose(text: str) -> str:
    """Return a sentence whose numbers stay with their units, and whose names are bold and may be wrapped.

    >>> prose("a_b: +5 %, p ≤ 0.01")
    Markup('a_<wbr>b: +5\xa0%, p\xa0≤\xa00.01')
    """
    from markupsafe import Markup, escape

    wrapped = str(escape(BOUND.sub("\N{NO-BREAK SPACE}", text))).replace("_", "_<wbr>")
    return Markup(wrapped.replace(NAME_BEGIN, "<b>").replace(NAME_END, "</b>"))  # noqa: S704


def failure_table(failures: Iterable[Failure]) -> Table | None:
    """Return the failed runs as a table, or None if there are none."""
    failed = [({clean(str(k)): label_text(v) for k, v in labels.items() if v is not None}, error) for labels, error in failures]
    names = list(dict.fromkeys(name for labels, _ in failed for name in labels))
    rows = [
        [*(labels.get(name, UNKNOWN) for name in names), "\n".join(map(clean, str(error).splitlines()))] for labels, error in failed
    ]
    return Table([*names, "error"], rows, text_columns=len(names) + 1) if rows else None


def write_report(
    runs: Iterable[Run],
    path: str | Path,
    *,
    title: str | None = None,
    failures: Iterable[tuple[Labels, str]] = (),
    charts: str | Path | None = None,
) -> list[Path]:
    """Write a report of runs to a self-contained HTML file.

    Runs that differ in policy, load and seed only are compared in one section, and any other label that differs begins
    another. A section begins with a verdict: which policy is best by each metric and at which loads, by paired t-tests over
    common seeds, corrected by Holm's method over the pairs that a sentence compares; fewer than 3 common seeds are not tested.
    Then it has means over seeds with 95 % confidence intervals (Student's t), what tenants were promised and got, and charts:
    distributions, time series, trade-offs between metrics, and for runs that recorded them a Gantt chart of the GPUs of each
    gang. The same input gives the same bytes with the same versions of matplotlib and jinja2. Files are written atomically.

    Args:
        runs: The runs to compare.
        path: The .html file.
        title: Heading of the page; by default, it names the policy of a single run.
        failures: (labels, error) of failed runs, which are listed.
        charts: A folder, created if necessary, for each chart as .svg and .png.

    Returns:
        The files written.

    Raises:
        InputError: There is nothing to report, a run is not a `Run`, a file cannot be written, or matplotlib or jinja2 is not
            installed.

    >>> run = Run({"policy": "fifo"}, {"cost": 36.0})
    >>> write_report([run], "fifo.pdf")
    Traceback (most recent call last):
    gavel_py.errors.InputError: fifo.pdf: must end in .html, the format of reports
    """
    check_report(path)
    if charts is not None:
        check_writable(charts, folder=True)
    runs, failures = list(runs), list(failures)
    wrong = [fault for n, run in enumerate(runs, 1) for fault in wrong_types(f"run {n}", "", [run], Run, "must be a gavel_py.Run")]
    InputError.raise_any(wrong)
    refuse("", (not runs and not failures, "", "there is nothing to report: no runs"))
    from gavel_py.report.figures import figure_bytes

    settings = settings_of(runs)
    sections = [section_of(number, setting, is_only=len(settings) == 1) for number, setting in enumerate(settings, 1)]
    all_charts = [chart for section in sections for chart in (*section.charts, *section.wide)]
    figures = {chart.name: embedded(figure_bytes(chart.draw, chart.name, "svg"), chart) for chart in all_charts}
    heading = title or (f"A run of {label_text(runs[0].labels.get('policy'))}" if len(runs) == 1 else "Runs compared")
    facts = common_labels(runs) if runs else {}
    write_atomic(path, page(heading, facts, len(runs), sections, figures, failure_table(failures)).encode())
    written = [Path(path)]
    if charts is not None:
        Path(charts).mkdir(parents=True, exist_ok=True)
        for chart in all_charts:
            for form in ("svg", "png"):
                written.append(Path(charts) / f"{chart.name}.{form}")
                write_atomic(written[-1], figure_bytes(chart.draw, chart.name, form, chart.title))
    return written
