"""gavel trace describe: counts, gang sizes, durations and the load over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.inputs import FILE, JSON, PROFILE, STORE, TRACE, argument, find_profile, option, takes_options
from gavel_py.cli.output import emit, gang_text, json_text, number
from gavel_py.cli.tables import Column, table_text, wrapped
from gavel_py.cli.trace.files import GROUP, OUT, TraceInput, report_text, similar_in
from gavel_py.cli.usage import refuse

MAX_NAMES = 10
"""Maximum number of tenants and job types listed; the JSON output has all of them."""


@dataclass(frozen=True)
class DescribeOptions(TraceInput):
    """The options, as typed."""

    file: Path = argument("FILE", type=TRACE)
    periods: int = option(
        type=click.IntRange(min=1), default=12, show_default=True, metavar="N", help="Rows of the load over time."
    )
    profile: str | None = option(**PROFILE, help="Profile for deriving durations where a trace has only steps.")
    reference: str | None = option(metavar="TYPE", help="Accelerator of these durations [v100, or the profile's first].")
    predictability: bool = option(help="Also show how well finished runs predict the durations of later jobs.")
    group: str | None = option(**GROUP, help="Columns in which similar jobs are equal [tenant,num_gpus].")
    store: str | None = option(**STORE)
    plot: Path | None = option(type=FILE, metavar="FILE", help="Also draw load and durations, as .svg or .png.")
    as_json: bool = option("--json", **JSON)
    out: Path | None = option("-o", **OUT)


@click.command("describe")
@takes_options(DescribeOptions)
def command(request: DescribeOptions) -> None:
    """Show what a trace contains.

    Shows counts, GPUs, durations, and the load over time. FILE may be "-", standard input.
    """
    refuse((request.reference is not None and request.profile is None, "--reference needs --profile"))
    similar = similar_in(request.group, request.predictability, "--predictability")
    if request.plot is not None:
        gp.check_plot(request.plot)
    trace = request.read(request.file)
    if request.profile is not None:
        trace = gp.assume_durations(trace, find_profile(request.profile, request.store), request.reference)
    summary = gp.describe_trace(trace, request.periods)
    # Every group to which a prediction may fall back, from all jobs to the finest.
    groups = [similar[:count] for count in range(len(similar) + 1)] if request.predictability else []
    predicted = [gp.describe_predictability(trace, group) for group in groups]
    if request.plot is not None:
        gp.plot_trace(trace, request.plot)
    if request.as_json:
        more = {"predictability": [each.to_dict() for each in predicted]} if predicted else {}
        emit(json_text({"read": trace.report.to_dict(), **summary.to_dict(), **more}), request.out)
    else:
        emit("\n".join([report_text(trace.report), *_texts(summary), *_predictability(predicted)]), request.out)


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
        lines.append("GPU-hours unknown: the trace does not record run times; with --profile NAME, they follow from the steps")
    if summary.gpu_hours is not None and summary.durations is not None:
        lines.append(f"{_known(summary.gpu_hours, ',.0f')} GPU-hours of {summary.durations.num_jobs:,} jobs with known durations")
        peak = f"{summary.peak_gpus:,.0f} GPUs at most would be in use at once if no job had to wait"
        lines.append(peak if summary.mean_gpus is None else f"{peak}; {summary.mean_gpus:,.4g} GPUs could do it all in that time")
    return wrapped([f"{line}." for line in lines], indent="")


def _gangs(summary: gp.TraceSummary) -> str:
    columns = ["GPUs", "jobs", "of jobs", "GPU-hours", "of these", "mean, h", "median, h", "90%, h", "99%, h", "longest, h"]
    rows = []
    for gang in summary.gangs:
        share = None if gang.gpu_hours is None or not summary.gpu_hours else gang.gpu_hours / summary.gpu_hours
        spans = gang.durations
        hours = [None] * 5 if spans is None else [spans.mean, spans.median, spans.p90, spans.p99, spans.longest]
        jobs = [gang_text(gang.num_gpus), str(gang.num_jobs), f"{gang.num_jobs / summary.num_jobs:.1%}"]
        used = [_known(gang.gpu_hours, ".0f"), "-" if share is None else f"{share:.1%}"]
        rows.append([*jobs, *used, *(number(None if seconds is None else seconds / 3600) for seconds in hours)])
    return table_text("Gangs and durations", *_known_columns(columns, rows), text_columns=0)


def _counts(title: str, names: dict[str, int], num_jobs: int) -> str:
    shown = list(names.items())[:MAX_NAMES]
    more = f", the first {MAX_NAMES} of {len(names)}" if len(names) > MAX_NAMES else ""
    rows = [[name or "(not stated)", str(count), f"{count / num_jobs:.1%}"] for name, count in shown]
    return table_text(f"Jobs by {title}{more}" if title != "ended" else "How jobs ended", [title, "jobs", "of jobs"], rows)


def _load(summary: gp.TraceSummary) -> str:
    columns = ["from, h", "to, h", "jobs", "GPU-hours submitted", "GPUs held, mean", "GPUs held, most"]
    # Digits with which the ends of short periods differ.
    first = summary.periods[0]
    digits = max(1, -math.floor(math.log10((first.end_seconds - first.start_seconds) / 3600)))
    rows = []
    for period in summary.periods:
        held = [_known(period.mean_gpus_held, ".1f"), _known(period.most_gpus_held, ".0f")]
        hours = [f"{seconds / 3600:.{digits}f}" for seconds in (period.start_seconds, period.end_seconds)]
        rows.append([*hours, str(period.num_jobs), _known(period.gpu_hours, ".0f"), *held])
    return table_text("Load over time, if no job had to wait", *_known_columns(columns, rows), text_columns=0)


def _predictability(predicted: Sequence[gp.Predictability]) -> Iterator[str]:
    if not predicted:
        return
    if not predicted[0].num_predicted:
        yield "How well finished runs predict durations is unknown: no job arrives after enough runs have ended.\n"
        return
    same = Column("jobs with the same", "prose")
    rows = [
        [
            " ".join(["+"] * (len(each.group) > 1) + [*each.group[-1:]]) or "(all jobs)",
            str(each.num_groups),
            f"{each.num_predicted / each.num_tested:.1%}",
            *(_share(share) for share in (each.within_25_percent, each.within_factor_2, each.median_error)),
            "-" if each.rank_correlation is None else f"{each.rank_correlation:.2f}",
        ]
        for each in predicted
    ]
    titles = ["groups", "predicted", "within 25%", "within 2x", "median error", "rank correlation"]
    title = f"Durations predicted from finished runs, the last {predicted[0].num_tested:,} jobs tested"
    yield table_text(title, [same, *map(Column, titles)], rows)
    shares = [each.quantile_coverage or {} for each in predicted]
    rows = [[row[0], *map(_share, coverage.values())] for row, coverage in zip(rows, shares, strict=True)]
    levels = [Column(f"{level:.0%}") for level in shares[0]]
    yield table_text("Jobs that run no longer than the predicted quantile", [same, *levels], rows)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _known_columns(columns: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the table without columns that have no known values."""
    kept = [i for i in range(len(columns)) if any(row[i] not in ("-", "unknown") for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _known(value: float | None, form: str) -> str:
    """Return a value in this form, or with two significant digits if that would show 0."""
    if value is None:
        return "unknown"
    text = format(value, form)
    return f"{value:.2g}" if value and not float(text.replace(",", "")) else text
