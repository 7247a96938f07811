"""gavel profiles missing, check and plan: missing measurements, the accuracy of estimates, and what to measure next."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli import estimates
from gavel_py.cli.inputs import (
    DEFAULT_PROFILE,
    FILE,
    IGNORE,
    INPUT,
    INPUT_OR_TEXT,
    JSON,
    PROFILE,
    argument,
    cluster_from,
    ignored,
    option,
    takes_options,
    warnings_shown,
)
from gavel_py.cli.output import counted, csv_text, emit, gang_text, json_text, number
from gavel_py.cli.tables import Column, table_text, wrapped
from gavel_py.cli.usage import refuse

JOBS_COLUMN = "jobs"
"""Column with the number of jobs that need a figure; readers of profiles ignore it, and rows that were not filled in."""

OF_TYPE = ("unit", "condition", "family", "batch_size", "sequence_length")
"""Columns with the same value in all rows of a job type."""

MIN_CHECKED = 30
"""Number of estimates below which a check warns that its percentages say little."""

MAX_WRONG = 5
"""Maximum number of contradictory figures listed; the JSON output has all of them."""


def _profile_in(store: gp.ThroughputStore, name: str | None) -> gp.ThroughputProfile:
    """Return the profile in a file or with a name in the store; None for the default profile."""
    return store.find(name or DEFAULT_PROFILE)


def _placeable(jobs: Iterable[gp.Job], cluster: gp.Cluster, profile: gp.ThroughputProfile) -> tuple[list[gp.Job], list[str]]:
    """Return the gangs of jobs, restricted to the accelerators that can hold them, and these in the spelling of the profile.

    An elastic job is a gang of each of its sizes.
    """
    names = {name: profile.accelerator_named(name) for name in cluster.accelerator_names}
    found = []
    for job in jobs:
        job = job.on_renamed(profile.accelerator_named)
        room = {name: cluster.largest_gang(name, job.locality, **job.host_requests) for name in names}
        for size in profile.sizes_of(job):
            able = (names[name] for name in names if size <= room[name])
            found.append(job.with_gpus(size).allowing(filter(job.allows, able)))
    return found, list(dict.fromkeys(names.values()))


@dataclass(frozen=True)
class Missing:
    """The options of `missing`, as typed."""

    jobs_file: Path = argument("JOBS", type=INPUT)
    cluster: str = option("-c", required=True, type=INPUT_OR_TEXT, metavar="FILE|SPEC", help="Cluster, as for gavel solve.")
    profile: str | None = option(**PROFILE, help="Profile to complete [gavel-osdi20].")
    renames: tuple[str, ...] = option("--map-accelerator", metavar="OLD=NEW", help="Rename an accelerator of the cluster.")
    ignore_columns: tuple[str, ...] = option(**IGNORE)
    with_measured: bool = option(help="Also write what was measured, so that the file is a whole profile once it is filled in.")
    out: Path | None = option("-o", type=FILE, metavar="FILE", help="Write to this file instead of the terminal.")


@click.command("missing")
@takes_options(Missing)
@click.pass_obj
def missing(store: gp.ThroughputStore, request: Missing) -> None:
    """Write a CSV form of the throughputs that a profile lacks.

    The column jobs is the number of jobs that need a row, most needed first. Rows that stay empty count as not measured. JOBS may
    be "-", standard input.

    \b
    gavel profiles missing jobs.csv -c cluster.yaml > to-measure.csv
    gavel profiles missing jobs.csv -c cluster.yaml --with-measured > mine.csv
    gavel solve jobs.csv -c cluster.yaml --profile mine.csv --estimate
    """
    with warnings_shown():
        profile = _profile_in(store, request.profile)
        jobs = gp.JobSet.from_file(request.jobs_file, ignore=ignored(request.ignore_columns))
        usable, names = _placeable(jobs, cluster_from(request.cluster, request.renames), profile)
        needed = profile.missing(usable, names)
    emit(_missing_csv(profile, needed, with_measured=request.with_measured), request.out)
    if not needed:
        click.echo("Nothing is missing: all that these jobs need was measured.", err=True)


def _missing_csv(profile: gp.ThroughputProfile, needed: dict[Any, int], *, with_measured: bool) -> str:
    buffer = io.StringIO()
    profile.to_csv(buffer)
    measured = csv.DictReader(io.StringIO(buffer.getvalue()))
    columns = list(measured.fieldnames or ())
    known = list(measured)
    of_type = {row["job_type"]: {name: row[name] for name in OF_TYPE if name in columns} for row in known}
    rows = [{**row, JOBS_COLUMN: ""} for row in known] if with_measured else []
    for entry, count in sorted(needed.items(), key=lambda item: -item[1]):
        fields = {name: value for name, value in entry._asdict().items() if value is not None}
        rows.append(of_type.get(entry.job_type, {}) | fields | {JOBS_COLUMN: str(count)})
    header = [*columns, JOBS_COLUMN]
    return csv_text(header, ([row.get(name, "") for name in header] for row in rows))


@dataclass(frozen=True)
class CheckOptions:
    """The options of `check`, as typed."""

    name: str | None = argument("[NAME|FILE]", type=INPUT_OR_TEXT, required=False)
    methods: tuple[str, ...] = option(
        "--method",
        type=click.Choice(estimates.METHODS),
        metavar="METHOD",
        help="Method to check; may be given several times [all].",
    )
    hidden: float = option(
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=0.5,
        show_default=True,
        metavar="PART",
        help="Fraction of the figures to hide.",
    )
    seeds: int = option(type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", help="Number of random choices.")
    as_json: bool = option("--json", help=JSON["help"])


@click.command("check")
@takes_options(CheckOptions)
@click.pass_obj
def check(store: gp.ThroughputStore, request: CheckOptions) -> None:
    """Show how accurate estimates of a profile's own figures are.

    Hides a part of the figures, estimates them from the others, and compares; then names figures that contradict the others.
    Inside 80 % is the part of the figures that lie in their 80 % interval.

    \b
    gavel profiles check mine.csv
    gavel profiles check nvidia-2023 --hidden 0.2 --method gaussian_process
    """
    profile = _profile_in(store, request.name)
    found = gp.check_estimates(profile, request.methods or estimates.METHODS, hidden=request.hidden, seeds=request.seeds)
    wrong = gp.contradictions(profile)
    if request.as_json:
        contradictory = [m.entry._asdict() | {"steps_per_second": m.steps_per_second, "expected": value} for m, value in wrong]
        emit(
            json_text({"profile": profile.name, "methods": [each._asdict() for each in found], "contradictory": contradictory}),
            None,
        )
        return
    part = f"{100 * request.hidden:.0f} % of the figures hidden and estimated"
    title = f"{profile.name}: {part}, {counted(request.seeds, 'random choice')}"
    parts = ("median_error", "large_error", "within_80", "within_95")
    rows = [[each.method, f"{each.estimated:,}", *(f"{100 * getattr(each, name):.1f} %" for name in parts)] for each in found]
    columns = [Column("method", "text"), Column("estimated"), Column("median error"), Column("90 % below")]
    columns += [Column("inside 80 %"), Column("inside 95 %")]
    few = min(each.estimated for each in found) < MIN_CHECKED
    note = wrapped([f"Fewer than {MIN_CHECKED} estimates: other random choices may give quite other percentages."]) if few else ""
    emit(table_text(title, columns, rows) + note + "\n" + _wrong_text(wrong), None)


def _wrong_text(wrong: Sequence[tuple[gp.Measurement, float]]) -> str:
    if not wrong:
        return wrapped(["No figure contradicts the others by more than 4 standard deviations."])
    listed = [
        f"{estimates.named(m.entry)}: {number(m.steps_per_second)} {m.unit}, expected about {number(value)} {m.unit}"
        for m, value in wrong[:MAX_WRONG]
    ]
    more = [f"{len(wrong) - MAX_WRONG} more: --json"] if len(wrong) > MAX_WRONG else []
    return wrapped(["Figures that contradict the others by more than 4 standard deviations:", *listed, *more])


@dataclass(frozen=True)
class Plan:
    """The options of `plan`, as typed."""

    name: str | None = argument("[NAME|FILE]", type=INPUT_OR_TEXT, required=False)
    budget: int = option(
        type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N", help="Number of measurements to plan."
    )
    jobs_file: Path | None = option(
        "--jobs", type=INPUT, metavar="FILE", help="Jobs whose speeds count, with -c [those of the profile]."
    )
    cluster: str | None = option("-c", type=INPUT_OR_TEXT, metavar="FILE|SPEC", help="Cluster of these jobs, as for gavel solve.")
    renames: tuple[str, ...] = option("--map-accelerator", metavar="OLD=NEW", help="Rename an accelerator of the cluster.")
    ignore_columns: tuple[str, ...] = option(**IGNORE)
    per_gpu: bool = option(help="Weigh the information from a measurement against the GPUs that it takes.")
    as_json: bool = option("--json", help=JSON["help"])


@click.command("plan")
@takes_options(Plan)
@click.pass_obj
def plan(store: gp.ThroughputStore, request: Plan) -> None:
    """Show what to measure next.

    Lists the measurements that together most reduce the uncertainty of all other estimates, each the best after those before it.
    The error before a measurement is that of its estimate once those above it are made.

    \b
    gavel profiles plan mine.csv --budget 20
    gavel profiles plan mine.csv --jobs jobs.csv -c cluster.yaml --budget 6 --per-gpu
    """
    is_half = (request.jobs_file is None) != (request.cluster is None)
    refuse((is_half, "--jobs and --cluster must be given together: what runs, and where"))
    with warnings_shown():
        profile = _profile_in(store, request.name)
        jobs: list[gp.Job] | None = None
        names: list[str] | None = None
        if request.jobs_file is not None and request.cluster is not None:
            given = gp.JobSet.from_file(request.jobs_file, ignore=ignored(request.ignore_columns))
            jobs, names = _placeable(given, cluster_from(request.cluster, request.renames), profile)
        found = gp.plan_measurements(profile, request.budget, jobs, names, per_gpu=request.per_gpu)
    if request.as_json:
        planned = [each.entry._asdict() | {"jobs": each.jobs, "error": each.error, "remaining": each.remaining} for each in found]
        emit(json_text({"profile": profile.name, "measurements": planned}), None)
    elif not found:
        emit("Nothing is missing: all was measured.", None)
    else:
        rows = []
        for each in found:
            gang = [each.entry.job_type, gang_text(each.entry.num_gpus), each.entry.accelerator]
            rows.append([*gang, str(each.jobs), f"{100 * each.error:.0f} %", f"{100 * each.remaining:.0f} %"])
        columns = [Column("job type", "name"), Column("gang"), Column("on", "name"), Column("jobs"), Column("error before")]
        title = f"{profile.name}: what to measure next, the most useful first"
        emit(table_text(title, [*columns, Column("uncertainty left")], rows), None)
