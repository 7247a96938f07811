"""gavel trace import, formats, sample, scale and window: read a trace, and write all of it or a part."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli import estimates
from gavel_py.cli.inputs import (
    FILE,
    JSON,
    PROFILE,
    SEED,
    STORE,
    TRACE,
    Command,
    Duration,
    argument,
    assignments,
    find_profile,
    main_option,
    option,
    takes_options,
)
from gavel_py.cli.output import emit, json_text
from gavel_py.cli.tables import table_text
from gavel_py.cli.trace.files import GROUP, OUT, TraceInput, similar_in, write
from gavel_py.cli.usage import refuse


@dataclass(frozen=True)
class Import(TraceInput):
    """The options of `import`, as typed."""

    file: Path = argument("FILE", type=TRACE)
    out: Path | None = main_option("Output", "-o", **OUT)
    profile: str | None = main_option("Job types", **PROFILE, help="Profile that supplies types and steps to jobs without them.")
    seed: int = option("Job types", **SEED, help="Seed for drawing job types.")
    reference: str | None = option(
        "Job types", metavar="TYPE", help="Accelerator of the durations, unless the trace records where jobs ran."
    )
    accelerators: str | None = option(
        "Job types", metavar="TYPE,...", help="Accelerators on which a job type must have speeds [all of the profile]."
    )
    estimate: str | None = option("Job types", **estimates.ESTIMATE)
    confidence: estimates.Confidence = option("Job types", **estimates.CONFIDENCE)
    extrapolate: bool = option("Job types", help="Estimate the throughputs of gang sizes that the profile lacks.")
    profile_out: Path | None = option(
        "Job types", type=FILE, metavar="FILE", help="Write the profile with the estimates of --extrapolate to this file."
    )
    renames: tuple[str, ...] = main_option(
        "Changes", "--map-accelerator", metavar="OLD=NEW", help="Rename an accelerator of the trace."
    )
    any_accelerator: bool = main_option("Changes", help="Allow jobs to run on all types of GPU, whatever they requested.")
    whole_gpus: bool = main_option("Changes", help="Give a whole GPU to jobs that requested a fraction of one.")
    predict_durations: bool = main_option("Changes", help="Estimate durations from the runs of similar jobs that ended before.")
    group: str | None = option("Changes", **GROUP, help="Columns in which similar jobs are equal [tenant,num_gpus].")
    store: str | None = option("Job types", **STORE)
    as_json: bool = main_option("Output", "--json", help="Print the import report as JSON.")


@click.command("import", cls=Command)
@takes_options(Import)
def import_trace(request: Import) -> None:
    """Convert a trace of another system to jobs.

    States what was read, skipped and assumed. FILE may be "-", standard input. Without --out the jobs go to standard output as
    CSV, and the report to standard error.
    """
    needs_profile = (request.estimate, request.extrapolate, request.profile_out, request.reference, request.accelerators)
    text = "--estimate, --extrapolate, --profile-out, --reference and --accelerators need --profile"
    refuse((request.profile is None and any(needs_profile), text))
    estimates.check_options(request.estimate, request.confidence)
    refuse(
        (
            request.estimate is not None and request.profile_out is not None,
            "--profile-out writes the gangs of --extrapolate; the jobs of --estimate need --estimate again",
        ),
        (
            request.extrapolate and request.estimate is None and request.profile_out is None,
            "--extrapolate needs --profile-out FILE for the profile with the estimates, which the jobs need",
        ),
    )
    similar = similar_in(request.group, request.predict_durations, "--predict-durations")
    renames = assignments(request.renames, "--map-accelerator", "OLD=NEW")
    trace = request.read(request.file).map_accelerators(renames)
    if request.any_accelerator:
        trace = trace.on_any_accelerator()
    if request.whole_gpus:
        trace = trace.on_whole_gpus()
    if request.profile is not None:
        trace, profile = gp.assign_job_types(
            trace,
            estimates.of_types(find_profile(request.profile, request.store), request.estimate, request.confidence),
            accelerators=request.accelerators.split(",") if request.accelerators else None,
            extrapolate=request.extrapolate and request.estimate is None,  # estimates cover all gangs
            **{name: getattr(request, name) for name in ("seed", "reference")},
        )
        if request.profile_out is not None:
            buffer = io.StringIO()
            profile.to_csv(buffer)
            emit(buffer.getvalue(), request.profile_out)
    if request.predict_durations:
        trace = trace.with_predicted_durations(similar)
    write(trace, request.out, json_report=request.as_json)


@click.command("formats")
@click.option("--json", "as_json", **JSON)
def formats(as_json: bool) -> None:
    """List the formats that can be read."""
    known = gp.trace_formats()
    rows = [list(item) for item in known.items()]
    emit(json_text(known) if as_json else table_text("", ["format", "what it is"], rows, text_columns=2), None)


@click.command("sample")
@click.argument("file", metavar="FILE", type=TRACE)
@takes_options(TraceInput)
@click.option("--jobs", type=float, required=True, metavar="N", help="Number of jobs, or a fraction below 1.")
@click.option("--seed", **SEED, help="Seed of the sample.")
@click.option("-o", "--out", **OUT)
def sample(source: TraceInput, file: Path, jobs: float, seed: int, out: Path | None) -> None:
    """Take a random sample of the jobs.

    Arrival times stay as they are, so that the load falls in proportion.
    """
    write(source.read(file).sample(jobs, seed), out)


@click.command("scale")
@click.argument("file", metavar="FILE", type=TRACE)
@takes_options(TraceInput)
@click.option("--load", type=float, required=True, metavar="X", help="Factor of the load, such as 1.5 or 0.5.")
@click.option("-o", "--out", **OUT)
def scale(source: TraceInput, file: Path, load: float, out: Path | None) -> None:
    """Make the same jobs arrive faster or slower.

    Times since the first arrival are divided by the load.
    """
    write(source.read(file).scale(load), out)


@dataclass(frozen=True)
class Window(TraceInput):
    """The options of `window`, as typed."""

    file: Path = argument("FILE", type=TRACE)
    start: float | None = option("--from", type=Duration(), metavar="S", help="First second of arrivals.")
    end: float | None = option("--to", type=Duration(), metavar="S", help="Second before which jobs arrive.")
    first: int | None = option(type=click.IntRange(min=0), metavar="N", help="First job, by arrival from 0.")
    last: int | None = option(type=click.IntRange(min=0), metavar="N", help="End of the range by arrival, excluded.")
    keep_clock: bool = option(help="Keep times as they are [the clock starts at 0 with the window].")
    out: Path | None = option("-o", **OUT)


@click.command("window")
@takes_options(Window)
def window(wanted: Window) -> None:
    """Cut out a span of time or a range of jobs.

    Jobs are counted by arrival. With both, only the jobs in both are kept.
    """
    nothing = wanted.start is wanted.end is wanted.first is wanted.last is None
    refuse((nothing, "select jobs with --from, --to, --first, --last, or several of them"))
    trace = wanted.read(wanted.file)
    trace = trace.window(wanted.start, wanted.end, first=wanted.first, last=wanted.last, keep_clock=wanted.keep_clock)
    write(trace, wanted.out)
