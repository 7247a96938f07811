"""A chart's SVG file made a part of a page: in the colours of its theme, and told to those who do not see it.

The page: sections and failures as one HTML file that needs nothing from elsewhere. jinja2 comes with `gavel-py[plot]`.

A report of runs: one HTML file, and its charts as files.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gavel_py.errors import Fault, InputError
from gavel_py.io.writing import check_folder, check_report, write_whole
from gavel_py.report.charts import Chart, Table
from gavel_py.report.measures import CONFIDENCE, UNKNOWN, clean, label_text, measure_of
from gavel_py.report.runs import METRICS, Labels, Run
from gavel_py.report.sections import Section, sections_of
from gavel_py.report.settings import common_labels
from gavel_py.report.theme import DARK, LIGHT, tone_names

__all__ = ["breakable", "embedded", "failure_table", "page", "write_report"]

Failure = tuple[Labels, str]

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
    for place, (tag, text) in enumerate((("title", chart.title), ("desc", chart.told))):
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
