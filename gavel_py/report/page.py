"""The page: sections and failures as one HTML file that needs nothing from elsewhere. jinja2 comes with `gavel-py[plot]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gavel_py.report.charts import Table
from gavel_py.report.estimates import CONFIDENCE
from gavel_py.report.measures import measure_of
from gavel_py.report.runs import METRICS, Labels
from gavel_py.report.safe_text import UNKNOWN, clean, label_text
from gavel_py.report.sections import Section
from gavel_py.report.tones import DARK, LIGHT

__all__ = ["breakable", "failure_table", "page"]

JOINTS = re.compile(r"[_,=:/.]")
Failure = tuple[Labels, str]


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
