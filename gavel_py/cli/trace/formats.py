"""gavel trace formats: the trace formats that can be read."""

from __future__ import annotations

import json

import click

import gavel_py as gp
from gavel_py.cli.inputs import JSON
from gavel_py.cli.output import emit, table_text


@click.command("formats")
@click.option("--json", "as_json", **JSON)
def command(as_json: bool) -> None:
    """List the formats that can be read."""
    formats = gp.trace_formats()
    if as_json:
        emit(json.dumps(formats, indent=2), None)
        return
    emit(table_text("", ["format", "what it is"], [list(item) for item in formats.items()], text_columns=2), None)
