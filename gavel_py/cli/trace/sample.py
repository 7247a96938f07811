"""gavel trace sample: some of the jobs, drawn at random."""

from __future__ import annotations

from pathlib import Path

import click

from gavel_py.cli.trace.files import format_option, out_option, read, tell, trace_argument, write


@click.command("sample")
@trace_argument
@click.option("--jobs", type=float, required=True, metavar="N", help="How many, or below 1 which part of them.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@out_option
@format_option
def command(file: Path, jobs: float, seed: int, out: Path | None, format_name: str | None) -> None:
    """Draw some of the jobs; when they arrive stays as it is, so that the load falls by as much."""
    trace = read(file, format_name).sample(jobs, seed)
    write(trace, out)
    tell(trace, out)
