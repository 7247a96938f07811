"""Functions and options shared by the trace commands: reading and writing traces, and printing reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.files import with_names
from gavel_py.cli.inputs import FILE, IGNORE, NOW, allow_imports_from_here, assignments, ignored, main_option, option
from gavel_py.cli.output import emit, json_text
from gavel_py.cli.tables import wrapped
from gavel_py.cli.usage import refuse
from gavel_py.errors import Fault

SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
FORMAT: Mapping[str, Any] = {
    "metavar": "NAME",
    "help": "Format of the file [recognised]: see gavel trace formats, or package.module:name.",
}
STRICT: Mapping[str, Any] = {
    "is_flag": True,
    "help": "Treat invalid lines as errors (always so in files of jobs) instead of skipping them.",
}
OUT: Mapping[str, Any] = {
    "type": FILE,
    "metavar": "FILE",
    "help": "Write to this .csv, .json or .jsonl file instead of the terminal.",
}
GROUP: Mapping[str, Any] = {"metavar": "COLUMN,..."}


COLUMNS: Mapping[str, Any] = {
    "metavar": "COLUMN=FIELD,...",
    "help": "Fields of jobs that columns are: submit=arrival_seconds,gpus=num_gpus.",
}
FILL: Mapping[str, Any] = {"metavar": "FIELD=VALUE", "help": "Value of a field for all jobs without one; may be repeated."}


def naming(columns: Iterable[str], fill: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the arguments of `gp.read_trace` that --columns and --fill give."""
    given = (",".join(columns).split(",") if columns else (), "columns", "COLUMN=FIELD"), (fill, "fill", "FIELD=VALUE")
    return {name: assignments(texts, f"--{name}", form) for texts, name, form in given}


@dataclass(frozen=True)
class TraceInput:
    """The options of all commands that read one trace, as typed."""

    format_name: str | None = option("Input", "--format", **FORMAT)
    strict: bool = option("Input", **STRICT)
    ignore_columns: tuple[str, ...] = main_option("Input", **IGNORE)
    columns: tuple[str, ...] = option("Input", **COLUMNS)
    fill: tuple[str, ...] = option("Input", **FILL)
    now: datetime | None = option("Input", **NOW)

    def read(self, file: Path) -> gp.Trace:
        """Read a trace from a file."""
        allow_imports_from_here(self.format_name)
        options: dict[str, Any] = naming(self.columns, self.fill) | {"strict": self.strict, "now": self.now}
        return gp.read_trace(file, self.format_name, ignore=ignored(self.ignore_columns), **options)


def similar_in(group: str | None, is_wanted: bool, flag: str) -> list[str]:
    """Return the columns of --group. Raises `click.UsageError` if it is given without the flag that uses it."""
    refuse((group is not None and not is_wanted, f"--group needs {flag}"))
    return list(gp.DurationPredictor().group) if group is None else [name.strip() for name in group.split(",") if name.strip()]


def write(trace: gp.Trace, out: Path | None, *, json_report: bool = False) -> None:
    """Write the trace to a file in the format of its suffix, or to standard output as CSV, and print the report on reading it.

    The report goes to standard error if the trace is on standard output.
    """
    suffix = ".csv" if out is None else out.suffix.lower()
    if suffix not in SUFFIXES:
        raise gp.InputError(Fault(str(out), "", f"cannot determine the format from the name; it must end in {', '.join(SUFFIXES)}"))
    emit(gp.trace_text(trace, SUFFIXES[suffix]), out)
    text = json_text(trace.report.to_dict()) if json_report else report_text(trace.report)
    if text:
        click.echo(with_names(text), err=out is None)


def report_text(report: gp.TraceReport) -> str:
    """Return the report, wrapped to the width of the terminal."""
    return wrapped(with_names(str(report)).splitlines()).removesuffix("\n")
