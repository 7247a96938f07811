"""gavel trace generate: a random trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli import estimates
from gavel_py.cli.inputs import INPUT_OR_TEXT, PROFILE, STORE, declared_options, find_profile, option, takes_options
from gavel_py.cli.trace.files import OUT, write
from gavel_py.cli.usage import refuse
from gavel_py.errors import decimal_hint

PUBLISHED = "1:0.7,2:0.1,4:0.15,8:0.05"
"""The published mix of gang sizes, the default of --gangs."""


@dataclass(frozen=True)
class GenerateOptions:
    """The options, as typed."""

    num_jobs: int = option("--jobs", type=click.IntRange(min=1), required=True, metavar="N", help="Number of jobs.")
    jobs_per_hour: float | None = option(type=float, metavar="X", help="Arrivals per hour, on average.")
    static: bool = option(help="All jobs arrive at time 0.")
    gangs: str | None = option(metavar="GPUS:PART,...", help=f"Mix of gang sizes [{PUBLISHED}].")
    durations: str | None = option(
        type=INPUT_OR_TEXT, metavar="FILE|PART:S-S,...", help="Durations of a trace, or log-uniform ones [as published]."
    )
    given: dict[str, Any] = declared_options("generate")
    profile: str = option(**PROFILE, default="gavel-osdi20", show_default=True, help="Profile of the job types.")
    estimate: str | None = option(**estimates.ESTIMATE)
    confidence: estimates.Confidence = option(**estimates.CONFIDENCE)
    extrapolate: bool = option(**estimates.EXTRAPOLATE)
    store: str | None = option(**STORE)
    out: Path | None = option("-o", **OUT)


@click.command("generate")
@takes_options(GenerateOptions)
def command(request: GenerateOptions) -> None:
    """Generate a random trace.

    The same options give the same trace, byte for byte.

    \b
    gavel trace generate --jobs 100 --jobs-per-hour 5.6 --out jobs.csv
    gavel trace generate --jobs 100 --static --gangs 1:1 --durations 0.8:1900-60000,0.2:60000-600000
    """
    refuse(
        (
            request.static and request.jobs_per_hour is not None,
            "--static and --jobs-per-hour exclude each other: all jobs arrive at time 0, or at this rate",
        ),
        (
            request.static and "burstiness" in request.given,
            "--static and --burstiness exclude each other: all jobs arrive at time 0, or in bursts",
        ),
        (not request.static and request.jobs_per_hour is None, "give the arrivals: --jobs-per-hour X, or --static for all at once"),
    )
    estimates.check_options(request.estimate, request.confidence)
    gangs = _gangs(request.gangs or PUBLISHED)
    profile = estimates.of_types(find_profile(request.profile, request.store), request.estimate, request.confidence)
    trace = gp.generate_trace(
        request.num_jobs,
        gp.extend_profile(profile, gangs) if request.extrapolate and request.estimate is None else profile,
        gang_mix=None if request.gangs is None else gangs,
        durations=None if request.durations is None else _durations(request.durations),
        jobs_per_hour=request.jobs_per_hour,
        **request.given,
    )
    write(trace, request.out)


def _gangs(text: str) -> dict[float, float]:
    try:
        pairs = [(_number(size), _number(weight)) for size, weight in (part.split(":") for part in text.split(","))]
    except ValueError:
        raise click.UsageError(f"--gangs {text!r} is not of the form GPUS:PART,..., as in 1:0.7,2:0.3") from None
    mix: dict[float, float] = {}
    for size, weight in pairs:
        if mix.setdefault(size, weight) is not weight:
            raise click.UsageError(f"--gangs {text!r} gives {size:g} GPUs twice; give each size once")
    return mix


def _durations(text: str) -> gp.LogUniform | gp.Empirical:
    if ":" not in text or Path(text).exists():
        recorded = (submission.run_seconds for submission in gp.read_trace(text))
        return gp.Empirical(seconds for seconds in recorded if seconds)
    try:
        pieces = [(weight, *bounds.split("-")) for weight, bounds in (part.split(":") for part in text.split(","))]
        return gp.LogUniform(tuple((_number(weight), _number(first), _number(last)) for weight, first, last in pieces))
    except gp.InputError:
        raise
    except ValueError:
        raise click.UsageError(f"--durations {text!r} is neither a file nor of the form PART:S-S,..., as in 1:60-3600") from None


def _number(text: str) -> float:
    if hint := decimal_hint(text):
        raise click.UsageError(f"{text!r} is not a decimal number{hint}")
    return float(text)
