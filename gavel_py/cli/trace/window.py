"""gavel trace window: the jobs of a span of time, or of a range of numbers."""

from __future__ import annotations

from pathlib import Path

import click

from gavel_py.cli.trace.files import format_option, out_option, read, tell, trace_argument, write


@click.command("window")
@trace_argument
@click.option("--from", "start", type=float, metavar="S", help="Jobs that arrive from this second on.")
@click.option("--to", "end", type=float, metavar="S", help="Jobs that arrive before this second.")
@click.option("--first", type=click.IntRange(min=0), metavar="N", help="From this job on, by arrival; the first is 0.")
@click.option("--last", type=click.IntRange(min=0), metavar="N", help="Up to before this job.")
@click.option("--keep-clock", is_flag=True, help="Leave times as they are; otherwise the clock starts anew with the window.")
@out_option
@format_option
def command(
    file: Path,
    start: float | None,
    end: float | None,
    first: int | None,
    last: int | None,
    keep_clock: bool,
    out: Path | None,
    format_name: str | None,
) -> None:
    """Cut out the jobs of a span of time, or a range of jobs by arrival, or what lies in both."""
    if start is None and end is None and first is None and last is None:
        raise click.UsageError("say which jobs: --from, --to, --first, --last, or several of them")
    trace = read(file, format_name).window(start, end, first=first, last=last, keep_clock=keep_clock)
    write(trace, out)
    tell(trace, out)
