"""gavel trace import: from any known format to jobs of our own."""

from __future__ import annotations

from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.output import emit
from gavel_py.cli.trace.files import FILE, find_profile, format_option, out_option, read, strict_option, tell, trace_argument, write


@click.command("import")
@trace_argument
@out_option
@format_option
@strict_option
@click.option("--profile", metavar="NAME|FILE", help="Give jobs without a type one of this profile, and steps.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Draw job types by it.")
@click.option("--reference", metavar="TYPE", help="Durations hold on this accelerator, unless the trace says where jobs ran.")
@click.option("--accelerators", metavar="TYPE,...", help="Those on which a type must be known [all of the profile].")
@click.option("--extrapolate", is_flag=True, help="Estimate the throughputs of gangs that the profile lacks.")
@click.option(
    "--profile-out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the profile with the estimates."
)
@click.option("--map-accelerator", "renames", multiple=True, metavar="OLD=NEW", help="Rename an accelerator of the trace.")
@click.option("--any-accelerator", is_flag=True, help="Let jobs run on all types of GPU, whatever they asked for.")
@click.option("--whole-gpus", is_flag=True, help="Give a whole GPU to jobs that asked for a part of one.")
@click.option("--store", type=FILE, metavar="FILE", help="Where imported profiles are kept.")
@click.option("--json", "as_json", is_flag=True, help="Tell what was read as JSON.")
def command(
    file: Path,
    out: Path | None,
    format_name: str | None,
    strict: bool,
    profile: str | None,
    seed: int,
    reference: str | None,
    accelerators: str | None,
    extrapolate: bool,
    profile_out: Path | None,
    renames: tuple[str, ...],
    any_accelerator: bool,
    whole_gpus: bool,
    store: Path | None,
    as_json: bool,
) -> None:
    """Turn a trace of another system into jobs, and say what was read, skipped and assumed.

    FILE may be "-", standard input. Without --out the jobs go to standard output as CSV, and what is said to standard error.
    """
    if profile is None and (extrapolate or profile_out or reference or accelerators):
        raise click.UsageError("--extrapolate, --profile-out, --reference and --accelerators need --profile")
    if extrapolate and profile_out is None:
        raise click.UsageError("--extrapolate needs --profile-out FILE, a profile with the estimates, for those who use the jobs")
    trace = read(file, format_name, strict).map_accelerators(_pairs(renames))
    if any_accelerator:
        trace = trace.on_any_accelerator()
    if whole_gpus:
        trace = trace.on_whole_gpus()
    if profile is not None:
        trace, found = gp.assign_job_types(
            trace,
            find_profile(profile, store),
            seed=seed,
            reference=reference,
            accelerators=accelerators.split(",") if accelerators else None,
            extrapolate=extrapolate,
        )
        if profile_out is not None:
            emit(_csv_of(found), profile_out)
    write(trace, out)
    tell(trace, out, as_json)


def _pairs(renames: tuple[str, ...]) -> dict[str, str]:
    pairs = dict[str, str]()
    for text in renames:
        old, equals, new = text.partition("=")
        if not (old.strip() and equals and new.strip()):
            raise click.UsageError(f"--map-accelerator {text!r} is not of the form OLD=NEW")
        pairs[old.strip()] = new.strip()
    return pairs


def _csv_of(profile: gp.ThroughputProfile) -> str:
    import io

    buffer = io.StringIO()
    profile.to_csv(buffer)
    return buffer.getvalue()
