"""Functions and options that the commands on traces share: reading and writing traces, and printing reports."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.inputs import FILE
from gavel_py.cli.output import emit, json_text
from gavel_py.cli.tables import width
from gavel_py.errors import Fault

STANDARD_INPUT = Path("-")
SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
FORMAT: Mapping[str, Any] = {"metavar": "NAME", "help": "The format, if it is not to be recognised; see gavel trace formats."}
STRICT: Mapping[str, Any] = {"is_flag": True, "help": "Broken lines are errors, not left out."}
OUT: Mapping[str, Any] = {"type": FILE, "metavar": "FILE", "help": "Write there (.csv, .json, .jsonl) instead."}


def read(file: Path, format_name: str | None = None, strict: bool = False) -> gp.Trace:
    """Read a trace from a file, or from standard input ("-") by way of a temporary file, since formats are recognised first."""
    if file != STANDARD_INPUT:
        return gp.read_trace(file, format_name, strict=strict)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "trace"
        copy.write_bytes(sys.stdin.buffer.read())
        try:
            trace = gp.read_trace(copy, format_name, strict=strict)
        except gp.InputError as error:
            raise type(error)(*_renamed(error.faults, copy)) from None
    for submission in trace:
        submission.job.placed(submission.job.place.replace(str(copy), "standard input"))
    report = trace.report
    return gp.Trace(trace, dataclasses.replace(report, source="standard input", faults=tuple(_renamed(report.faults, copy))))


def _renamed(faults: Iterable[Fault], copy: Path) -> Iterator[Fault]:
    """Yield the faults with "standard input" instead of the temporary file."""
    for fault in faults:
        yield Fault(fault.where.replace(str(copy), "standard input"), fault.field, fault.problem)


def write(trace: gp.Trace, out: Path | None, *, json_report: bool = False) -> None:
    """Write the trace to a file in the format of its suffix, or to standard output as CSV, and print the report on reading it.

    The report goes to standard error if the trace is on standard output.
    """
    suffix = ".csv" if out is None else out.suffix.lower()
    if suffix not in SUFFIXES:
        raise gp.InputError(Fault(str(out), "", f"cannot tell the format from the name; it must end in {', '.join(SUFFIXES)}"))
    emit(gp.trace_text(trace, SUFFIXES[suffix]), out)
    text = json_text(trace.report.to_dict()) if json_report else report_text(trace.report)
    if text:
        click.echo(text, err=out is None)


def report_text(report: gp.TraceReport) -> str:
    """Return the report, wrapped to the width of the terminal."""
    room = width()
    return "\n".join(textwrap.fill(line, room, subsequent_indent="    ") for line in str(report).splitlines())
