"""gavel trace generate: a trace drawn at random."""

from __future__ import annotations

from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.trace.files import FILE, find_profile, out_option, read, tell, write
from gavel_py.errors import decimal_hint


@click.command("generate")
@click.option("--jobs", "num_jobs", type=click.IntRange(min=1), required=True, metavar="N", help="How many.")
@click.option("--jobs-per-hour", type=float, metavar="X", help="How often they arrive on average.")
@click.option("--static", is_flag=True, help="All arrive at time 0.")
@click.option("--burstiness", type=float, default=1.0, show_default=True, metavar="C", help="1 = Poisson; more: bursts and pauses.")
@click.option("--gangs", metavar="GPUS:PART,...", help="[1:0.7,2:0.1,4:0.15,8:0.05]")
@click.option("--durations", metavar="FILE|PART:S-S,...", help="Drawn from a trace, or log-uniform [as published].")
@click.option("--heavy-share", type=float, default=0.0, show_default=True, metavar="X", help="Part of the jobs of weight 5.")
@click.option("--profile", default="gavel-osdi20", show_default=True, metavar="NAME|FILE", help="Where job types come from.")
@click.option("--reference", default="v100", show_default=True, metavar="TYPE", help="Durations hold on this accelerator.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--store", type=FILE, metavar="FILE", help="Where imported profiles are kept.")
@out_option
def command(
    num_jobs: int,
    jobs_per_hour: float | None,
    static: bool,
    burstiness: float,
    gangs: str | None,
    durations: str | None,
    heavy_share: float,
    profile: str,
    reference: str,
    seed: int,
    store: Path | None,
    out: Path | None,
) -> None:
    """Draw a trace at random; the same options give the same bytes.

    \b
    gavel trace generate --jobs 100 --jobs-per-hour 5.6 --out jobs.csv
    gavel trace generate --jobs 100 --static --gangs 1:1 --durations 0.8:1900-60000,0.2:60000-600000
    """
    if static == (jobs_per_hour is not None):
        raise click.UsageError("say how jobs arrive: --jobs-per-hour X, or --static for all at once")
    trace = gp.generate_trace(
        num_jobs,
        find_profile(profile, store),
        jobs_per_hour=jobs_per_hour,
        burstiness=burstiness,
        gang_mix=None if gangs is None else _gangs(gangs),
        durations=None if durations is None else _durations(durations),
        heavy_share=heavy_share,
        reference=reference,
        seed=seed,
    )
    write(trace, out)
    tell(trace, out)


def _gangs(text: str) -> dict[float, float]:
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return {_number(size): _number(weight) for size, weight in pairs}
    except ValueError:
        raise click.UsageError(f"--gangs {text!r} is not of the form GPUS:PART,..., as in 1:0.7,2:0.3") from None


def _durations(text: str) -> gp.LogUniform | gp.Empirical:
    if ":" not in text or Path(text).exists():
        recorded = (submission.run_seconds for submission in read(Path(text)))
        return gp.Empirical(seconds for seconds in recorded if seconds)
    try:
        return gp.LogUniform(tuple(_piece(part) for part in text.split(",")))
    except ValueError as error:
        if isinstance(error, gp.InputError):
            raise
        raise click.UsageError(f"--durations {text!r} is neither a file nor of the form PART:S-S,..., as in 1:60-3600") from None


def _piece(text: str) -> tuple[float, float, float]:
    weight, bounds = text.split(":")
    shortest, longest = bounds.split("-")
    return _number(weight), _number(shortest), _number(longest)


def _number(text: str) -> float:
    if hint := decimal_hint(text):
        raise click.UsageError(f"{text!r} is not a decimal number{hint}")
    return float(text)
