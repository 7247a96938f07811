"""gavel trace scale: the same jobs with another arrival rate."""

from __future__ import annotations

from pathlib import Path

import click

from gavel_py.cli.inputs import PATH
from gavel_py.cli.trace.files import FORMAT, OUT, print_report, read, write


@click.command("scale")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--load", type=float, required=True, metavar="X", help="How many times as high the load shall be, as 1.5 or 0.5.")
@click.option("--out", **OUT)
@click.option("--format", "format_name", **FORMAT)
def command(file: Path, load: float, out: Path | None, format_name: str | None) -> None:
    """Let the same jobs arrive faster or slower: times since the first arrival are divided by the load."""
    trace = read(file, format_name).scale(load)
    write(trace, out)
    print_report(trace, out)
