"""gavel trace import, formats, sample, scale and window: a trace is read and written, whole or in part."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.inputs import FILE, JSON, PATH, SEED, STORE, argument, assignments, find_profile, option, takes_options
from gavel_py.cli.output import emit, json_text
from gavel_py.cli.tables import table_text
from gavel_py.cli.trace.files import FORMAT, OUT, STRICT, read, write


@dataclass(frozen=True)
class Import:
    """The options of `import`, as typed."""

    file: Path = argument("FILE", type=PATH)
    out: Path | None = option(**OUT)
    format_name: str | None = option("--format", **FORMAT)
    strict: bool = option(**STRICT)
    profile: str | None = option(metavar="NAME|FILE", help="Give jobs without a type one of this profile, and steps.")
    seed: int = option(**SEED, help="Draw job types by it.")
    reference: str | None = option(metavar="TYPE", help="Durations hold on this accelerator, unless the trace says where jobs ran.")
    accelerators: str | None = option(metavar="TYPE,...", help="Those on which a type must be known [all of the profile].")
    extrapolate: bool = option(help="Estimate the throughputs of gangs that the profile lacks.")
    profile_out: Path | None = option(type=FILE, help="Write the profile with the estimates.")
    renames: tuple[str, ...] = option("--map-accelerator", metavar="OLD=NEW", help="Rename an accelerator of the trace.")
    any_accelerator: bool = option(help="Let jobs run on all types of GPU, whatever they asked for.")
    whole_gpus: bool = option(help="Give a whole GPU to jobs that asked for a part of one.")
    store: Path | None = option(**STORE)
    as_json: bool = option("--json", help="Tell what was read as JSON.")


@click.command("import")
@takes_options(Import)
def import_trace(request: Import) -> None:
    """Turn a trace of another system into jobs, and say what was read, skipped and assumed.

    FILE may be "-", standard input. Without --out the jobs go to standard output as CSV, and what is said to standard error.
    """
    if request.profile is None and (request.extrapolate or request.profile_out or request.reference or request.accelerators):
        raise click.UsageError("--extrapolate, --profile-out, --reference and --accelerators need --profile")
    if request.extrapolate and request.profile_out is None:
        raise click.UsageError("--extrapolate needs --profile-out FILE, a profile with the estimates, for those who use the jobs")
    renames = assignments(request.renames, "--map-accelerator", "OLD=NEW")
    trace = read(request.file, request.format_name, request.strict).map_accelerators(renames)
    if request.any_accelerator:
        trace = trace.on_any_accelerator()
    if request.whole_gpus:
        trace = trace.on_whole_gpus()
    if request.profile is not None:
        trace, profile = gp.assign_job_types(
            trace,
            find_profile(request.profile, request.store),
            accelerators=request.accelerators.split(",") if request.accelerators else None,
            **{name: getattr(request, name) for name in ("seed", "reference", "extrapolate")},
        )
        if request.profile_out is not None:
            buffer = io.StringIO()
            profile.to_csv(buffer)
            emit(buffer.getvalue(), request.profile_out)
    write(trace, request.out, json_report=request.as_json)


@click.command("formats")
@click.option("--json", "as_json", **JSON)
def formats(as_json: bool) -> None:
    """List the formats that can be read."""
    known = gp.trace_formats()
    rows = [list(item) for item in known.items()]
    emit(json_text(known) if as_json else table_text("", ["format", "what it is"], rows, text_columns=2), None)


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
