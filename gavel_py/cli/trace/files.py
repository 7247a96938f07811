"""What the commands on traces share: reading, writing, profiles, and telling what was read."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.output import emit, width
from gavel_py.errors import Fault

FILE = click.Path(path_type=Path)
STANDARD_INPUT = Path("-")
SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

trace_argument: Option = click.argument("file", type=FILE, metavar="FILE")
format_option: Option = click.option(
    "--format", "format_name", metavar="NAME", help="The format, if it is not to be recognised; see gavel trace formats."
)
strict_option: Option = click.option("--strict", is_flag=True, help="Broken lines are errors, not left out.")
out_option: Option = click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write there (.csv, .json, .jsonl) instead."
)


def read(file: Path, format_name: str | None = None, strict: bool = False) -> gp.Trace:
    """Read a trace; "-" means standard input, which is kept in a file meanwhile since its beginning is looked at first."""
    if file != STANDARD_INPUT:
        return gp.read_trace(file, format_name, strict=strict)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "trace"
        kept.write_bytes(sys.stdin.buffer.read())
        try:
            trace = gp.read_trace(kept, format_name, strict=strict)
        except gp.InputError as error:
            raise type(error)(*_named(error.faults, kept)) from None
    for submission in trace:
        submission.job.placed(submission.job.place.replace(str(kept), "standard input"))
    report = trace.report
    return gp.Trace(trace, dataclasses.replace(report, source="standard input", faults=tuple(_named(report.faults, kept))))


def _named(faults: Iterable[Fault], kept: Path) -> Iterator[Fault]:
    for fault in faults:
        yield Fault(fault.where.replace(str(kept), "standard input"), fault.field, fault.problem)


def write(trace: gp.Trace, out: Path | None) -> None:
    """Write the trace, as CSV to standard output, or in the format that the name of the file tells."""
    if out is None:
        emit(gp.trace_text(trace), None)
        return
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise gp.InputError(Fault(str(out), "", f"cannot tell the format from the name; it must end in {', '.join(SUFFIXES)}"))
    emit(gp.trace_text(trace, SUFFIXES[suffix]), out)


def tell(trace: gp.Trace, out: Path | None, as_json: bool = False) -> None:
    """Say what was read and assumed; beside a trace on standard output this goes to standard error."""
    text = json.dumps(trace.report.to_dict(), indent=2) if as_json else report_text(trace.report)
    if text:
        click.echo(text, err=out is None)


def report_text(report: gp.TraceReport) -> str:
    """Return the report, folded to the terminal."""
    import textwrap

    room = width()
    return "\n".join(textwrap.fill(line, room, subsequent_indent="    ") for line in str(report).splitlines())


def find_profile(name: str, store: Path | None = None) -> gp.ThroughputProfile:
    """Return the profile of this name, or in this file."""
    if Path(name).suffix in {".csv", ".json"}:
        return gp.ThroughputProfile.from_file(name)
    return gp.ThroughputStore(store).load(name)
