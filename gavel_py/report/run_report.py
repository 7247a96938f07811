"""A report of runs: one HTML file, and its charts as files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gavel_py.errors import Fault, InputError
from gavel_py.io.writing import check_folder, check_report, write_whole
from gavel_py.report.charts import Chart
from gavel_py.report.runs import Labels, Run
from gavel_py.report.safe_text import label_text
from gavel_py.report.sections import Section, sections_of
from gavel_py.report.settings import common_labels

__all__ = ["write_report"]

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
    from gavel_py.report.embedding import embedded
    from gavel_py.report.figures import figure_bytes
    from gavel_py.report.page import failure_table, page

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
