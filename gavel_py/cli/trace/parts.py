"""gavel trace sample, scale and window: a part of the jobs of a trace, or the same jobs at another rate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from gavel_py.cli.inputs import PATH, SEED, argument, option, takes_options
from gavel_py.cli.trace.files import FORMAT, OUT, read, write


@click.command("sample")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--jobs", type=float, required=True, metavar="N", help="How many, or below 1 which part of them.")
@click.option("--seed", **SEED)
@click.option("--out", **OUT)
@click.option("--format", "format_name", **FORMAT)
def sample(file: Path, jobs: float, seed: int, out: Path | None, format_name: str | None) -> None:
    """Draw some of the jobs; when they arrive stays as it is, so that the load falls by as much."""
    write(read(file, format_name).sample(jobs, seed), out)


@click.command("scale")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--load", type=float, required=True, metavar="X", help="How many times as high the load shall be, as 1.5 or 0.5.")
@click.option("--out", **OUT)
@click.option("--format", "format_name", **FORMAT)
def scale(file: Path, load: float, out: Path | None, format_name: str | None) -> None:
    """Let the same jobs arrive faster or slower: times since the first arrival are divided by the load."""
    write(read(file, format_name).scale(load), out)


@dataclass(frozen=True)
class Window:
    """The options of `window`, as typed."""

    file: Path = argument("FILE", type=PATH)
    start: float | None = option("--from", type=float, metavar="S", help="Jobs that arrive from this second on.")
    end: float | None = option("--to", type=float, metavar="S", help="Jobs that arrive before this second.")
    first: int | None = option(type=click.IntRange(min=0), metavar="N", help="From this job on, by arrival; the first is 0.")
    last: int | None = option(type=click.IntRange(min=0), metavar="N", help="Up to before this job.")
    keep_clock: bool = option(help="Leave times as they are; otherwise the clock starts anew with the window.")
    out: Path | None = option(**OUT)
    format_name: str | None = option("--format", **FORMAT)


@click.command("window")
@takes_options(Window)
def window(wanted: Window) -> None:
    """Cut out the jobs of a span of time, or a range of jobs by arrival, or what lies in both."""
    if wanted.start is wanted.end is wanted.first is wanted.last is None:
        raise click.UsageError("say which jobs: --from, --to, --first, --last, or several of them")
    trace = read(wanted.file, wanted.format_name)
    trace = trace.window(wanted.start, wanted.end, first=wanted.first, last=wanted.last, keep_clock=wanted.keep_clock)
    write(trace, wanted.out)
