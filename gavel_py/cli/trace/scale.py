"""gavel trace scale: the same jobs, arriving faster or slower."""

from __future__ import annotations

from pathlib import Path

import click

from gavel_py.cli.trace.files import format_option, out_option, read, tell, trace_argument, write


@click.command("scale")
@trace_argument
@click.option("--load", type=float, required=True, metavar="X", help="How many times as high the load shall be, as 1.5 or 0.5.")
@out_option
@format_option
def command(file: Path, load: float, out: Path | None, format_name: str | None) -> None:
    """Let the same jobs arrive faster or slower: times since the first arrival are divided by the load."""
    trace = read(file, format_name).scale(load)
    write(trace, out)
    tell(trace, out)
