"""gavel trace window: the jobs of a time window or of a range of indices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from gavel_py.cli.inputs import PATH, argument, option, takes_options
from gavel_py.cli.trace.files import FORMAT, OUT, print_report, read, write


@dataclass(frozen=True)
class Request:
    """The options, as typed."""

    file: Path = argument("FILE", type=PATH)
    start: float | None = option("--from", type=float, metavar="S", help="Jobs that arrive from this second on.")
    end: float | None = option("--to", type=float, metavar="S", help="Jobs that arrive before this second.")
    first: int | None = option(type=click.IntRange(min=0), metavar="N", help="From this job on, by arrival; the first is 0.")
    last: int | None = option(type=click.IntRange(min=0), metavar="N", help="Up to before this job.")
    keep_clock: bool = option(is_flag=True, help="Leave times as they are; otherwise the clock starts anew with the window.")
    out: Path | None = option(**OUT)
    format_name: str | None = option("--format", **FORMAT)


@click.command("window")
@takes_options(Request)
def command(request: Request) -> None:
    """Cut out the jobs of a span of time, or a range of jobs by arrival, or what lies in both."""
    first, last = request.first, request.last
    if request.start is None and request.end is None and first is None and last is None:
        raise click.UsageError("say which jobs: --from, --to, --first, --last, or several of them")
    trace = read(request.file, request.format_name)
    trace = trace.window(request.start, request.end, first=first, last=last, keep_clock=request.keep_clock)
    write(trace, request.out)
    print_report(trace, request.out)
