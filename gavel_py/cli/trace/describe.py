"""gavel trace describe: counts, gang mix, durations, and the load over time."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.output import emit, gang_text, number, table_text, width
from gavel_py.cli.trace.files import FILE, find_profile, format_option, out_option, read, report_text, strict_option, trace_argument

MOST_NAMES = 10
"""Tenants and job types shown; the JSON has all."""


@click.command("describe")
@trace_argument
@format_option
@strict_option
@click.option(
    "--periods", type=click.IntRange(min=1), default=12, show_default=True, metavar="N", help="Rows of the load over time."
)
@click.option("--profile", metavar="NAME|FILE", help="Where a trace tells steps only, durations follow by this profile.")
@click.option("--reference", metavar="TYPE", help="Durations are those on this accelerator [v100, or the profile's first].")
@click.option("--store", type=FILE, metavar="FILE", help="Where imported profiles are kept.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw load and durations too, as .svg or .png.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@out_option
def command(
    file: Path,
    format_name: str | None,
    strict: bool,
    periods: int,
    profile: str | None,
    reference: str | None,
    store: Path | None,
    plot: Path | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Show what is in a trace: counts, GPUs, durations, and the load over time."""
    if reference is not None and profile is None:
        raise click.UsageError("--reference needs --profile")
    if plot is not None:
        gp.check_plot(plot)
    trace = read(file, format_name, strict)
    if profile is not None:
        trace = gp.assume_durations(trace, find_profile(profile, store), reference)
    summary = gp.describe_trace(trace, periods)
    if plot is not None:
        gp.plot_trace(trace, plot)
    if as_json:
        emit(json.dumps({"read": trace.report.to_dict(), **summary.to_dict()}, indent=2, allow_nan=False), out)
        return
    emit("\n".join([report_text(trace.report), *_texts(summary)]), out)


def _texts(summary: gp.TraceSummary) -> Iterator[str]:
    yield "\n" + _totals(summary)
    if not summary.num_jobs:
        return
    yield _gangs(summary)
    for title, names in (("job type", summary.job_types), ("tenant", summary.tenants), ("ended", summary.statuses)):
        if set(names) != {""}:
            yield _counts(title, names, summary.num_jobs)
    if summary.periods:
        yield _load(summary)


def _totals(summary: gp.TraceSummary) -> str:
    if summary.first_arrival is None or summary.last_arrival is None:
        return "No jobs.\n"
    days = (summary.last_arrival - summary.first_arrival) / 86400
    lines = [f"{summary.num_jobs:,} jobs arrive from {summary.first_arrival:,.0f} s on, over {days:,.4g} days"]
    if summary.jobs_per_hour is not None:
        lines[0] += f", {number(summary.jobs_per_hour)} an hour"
    if summary.gpu_hours is None:
        lines.append(
            "GPU-hours unknown: the trace does not say how long its jobs run; with --profile NAME it follows from their steps"
        )
    if summary.gpu_hours is not None and summary.durations is not None:
        lines.append(f"{summary.gpu_hours:,.0f} GPU-hours of {summary.durations.num_jobs:,} jobs whose duration is known")
        most = f"{summary.peak_gpus:,.0f} GPUs at most would be held at once if no job had to wait"
        lines.append(most if summary.mean_gpus is None else f"{most}; {summary.mean_gpus:,.4g} GPUs do all within that time")
    return "\n".join(textwrap.fill(f"{line}.", width()) for line in lines) + "\n"


def _gangs(summary: gp.TraceSummary) -> str:
    columns = ["GPUs", "jobs", "of jobs", "GPU-hours", "of these", "mean, h", "median, h", "90%, h", "99%, h", "longest, h"]
    rows = []
    for gang in summary.gangs:
        share = None if gang.gpu_hours is None or not summary.gpu_hours else gang.gpu_hours / summary.gpu_hours
        spans = gang.durations
        hours = [None] * 5 if spans is None else [spans.mean, spans.median, spans.p90, spans.p99, spans.longest]
        rows.append(
            [
                gang_text(gang.num_gpus),
                str(gang.num_jobs),
                f"{gang.num_jobs / summary.num_jobs:.1%}",
                _known(gang.gpu_hours, ".0f"),
                "-" if share is None else f"{share:.1%}",
                *(number(None if seconds is None else seconds / 3600) for seconds in hours),
            ]
        )
    return table_text("Gangs and durations", columns, rows, text_columns=0)


def _counts(title: str, names: dict[str, int], num_jobs: int) -> str:
    shown = list(names.items())[:MOST_NAMES]
    more = f", the first {MOST_NAMES} of {len(names)}" if len(names) > MOST_NAMES else ""
    rows = [[name or "(not said)", str(count), f"{count / num_jobs:.1%}"] for name, count in shown]
    return table_text(f"Jobs by {title}{more}" if title != "ended" else "How jobs ended", [title, "jobs", "of jobs"], rows)


def _load(summary: gp.TraceSummary) -> str:
    columns = ["from, h", "to, h", "jobs", "GPU-hours submitted", "GPUs held, mean", "GPUs held, most"]
    rows = [
        [
            f"{period.start_seconds / 3600:.1f}",
            f"{period.end_seconds / 3600:.1f}",
            str(period.num_jobs),
            _known(period.gpu_hours, ".0f"),
            _known(period.mean_gpus_held, ".1f"),
            _known(period.most_gpus_held, ".0f"),
        ]
        for period in summary.periods
    ]
    return table_text("Load over time, if no job had to wait", columns, rows, text_columns=0)


def _known(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)
