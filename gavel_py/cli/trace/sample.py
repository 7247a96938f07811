"""gavel trace sample: a random sample of the jobs."""

from __future__ import annotations

from pathlib import Path

import click

from gavel_py.cli.inputs import PATH, SEED
from gavel_py.cli.trace.files import FORMAT, OUT, print_report, read, write


@click.command("sample")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--jobs", type=float, required=True, metavar="N", help="How many, or below 1 which part of them.")
@click.option("--seed", **SEED)
@click.option("--out", **OUT)
@click.option("--format", "format_name", **FORMAT)
def command(file: Path, jobs: float, seed: int, out: Path | None, format_name: str | None) -> None:
    """Draw some of the jobs; when they arrive stays as it is, so that the load falls by as much."""
    trace = read(file, format_name).sample(jobs, seed)
    write(trace, out)
    print_report(trace, out)
