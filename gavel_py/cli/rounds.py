"""gavel rounds: the placements of the first rounds, and the time that they deliver."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli import inputs
from gavel_py.cli.output import csv_text, emit, gang_text, table_text, unused_text, width

SAME = "= stays where it was"

MAX_JOBS = 5
"""Limit of the jobs listed with a deficit; the JSON output has all of them."""

TOLERANCE = 1e-3
"""Rounding error of times in GPU-seconds and of deficits in rounds."""


@click.command("rounds")
@inputs.takes_options(inputs.Request)
@click.option("--rounds", "-n", "num_rounds", type=click.IntRange(1, inputs.MAX_ROUNDS), default=10, show_default=True, metavar="N")
@click.option("--plot", type=inputs.PATH, metavar="FILE", help="Draw the rounds too, as .svg or .png.")
@click.option("--sharing", **inputs.SHARING)
@click.option("--min-gain", **inputs.MIN_GAIN)
def command(request: inputs.Request, num_rounds: int, plot: Path | None, sharing: bool, min_gain: float | None) -> None:
    """Turn the allocation of a job set into GPUs: N rounds of placements, and what they delivered of what was promised.

    The job set stays as it is: no job makes progress, arrives or leaves.
    """
    gain = inputs.min_gain_of(sharing, min_gain)
    if plot is not None:
        gp.check_plot(plot)
    with inputs.warnings_shown():
        policy, *others = inputs.policies_of(request.policy_specs, request.settings, request.constraint_files)
        if others:
            raise click.UsageError("rounds are shown for one --policy at a time")
        loaded = inputs.load(request)
        if sharing:
            loaded.problem(sharing=True)  # raises now if the profile knows no pairs
        options = {"round_seconds": request.round_seconds, "sharing": sharing, "min_gain": gain}
        scheduler, rounds = play(loaded, policy, num_rounds, **options)
    delivery, allocation = scheduler.delivery(), scheduler.allocation
    assert allocation is not None  # noqa: S101
    if plot is not None:
        seconds, label = request.round_seconds, policy.label
        gp.plot_rounds(rounds, scheduler.cluster, plot, round_seconds=seconds, delivery=delivery, policy=label)
        click.echo(f"The picture of the rounds is in {plot}", err=True)
    if request.form == "json":
        document = {
            "policy": policy.name,
            "options": policy.changed_options,
            "round_seconds": request.round_seconds,
            "constraints": [outcome.to_dict() for outcome in allocation.constraints],
            "rounds": [round_.to_dict() for round_ in rounds],
            "delivery": delivery.to_dict(),
            **loaded.unused,
        }
        emit(json.dumps(document, indent=2, allow_nan=False), request.out)
    elif request.form == "csv":
        emit(csv_text(["round", "start_seconds", "job_id", "state", "accelerator", "node", "gpu"], _csv_rows(rounds)), request.out)
    else:
        constraints = inputs.constraints_text([(policy.label, allocation)])
        parts = (rounds_text(loaded.jobs, rounds), delivery_text(delivery), constraints, unused_text(loaded.cluster.left_out))
        emit("\n".join(part for part in parts if part), request.out)


def play(loaded: inputs.Inputs, policy: gp.Policy, num_rounds: int, **options: Any) -> tuple[gp.RoundScheduler, list[gp.Round]]:
    """Return a scheduler to which all jobs were submitted, and its first rounds; options: of the `RoundScheduler`."""
    scheduler = gp.RoundScheduler(loaded.cluster, loaded.profile, policy=policy, whole_gangs=loaded.whole_gangs, **options)
    for job in loaded.jobs:
        scheduler.submit(job)
    return scheduler, [scheduler.next_round() for _ in range(num_rounds)]


def _csv_rows(rounds: Iterable[gp.Round]) -> Iterable[list[object]]:
    for round_ in rounds:
        kept = set(round_.kept)
        for job_id, assignment in round_.assignments.items():
            state = "kept" if job_id in kept else "started"
            for node, index in assignment.gpus:
                yield [round_.index, round_.start_seconds, job_id, state, assignment.accelerator, node, index]


def gpus_text(gpus: Iterable[tuple[str, int]]) -> str:
    """Return (node, index) pairs as text such as "a:0-3 b:5"."""
    return " ".join(f"{node}:{_ranges([index for _, index in group])}" for node, group in groupby(gpus, key=lambda gpu: gpu[0]))


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def rounds_text(jobs: gp.JobSet, rounds: list[gp.Round]) -> str:
    """Return tables of jobs x rounds that fit the terminal; "=" marks a job that keeps its GPUs."""
    if not jobs:
        return "No jobs.\n"
    held = [[round_.assignments.get(job.job_id) for round_ in rounds] for job in jobs]
    cells = [["." if each is None else " with ".join([gpus_text(each.gpus), *each.shared_with]) for each in row] for row in held]
    widths = [max(len("round 00"), *(len(row[k]) for row in cells)) for k in range(len(rounds))]
    first = max(len("job"), *(len(job.job_id) for job in jobs)) + len("  GPUs") + 6
    tables = []
    for group in _groups(widths, width() - first):
        columns = ["job", "GPUs", *(f"round {rounds[k].index}" for k in group)]
        rows = []
        for job, row in zip(jobs, cells, strict=True):
            # GPUs are printed in the first round of a table and where they change.
            stays = [k != group[0] and row[k] == row[k - 1] and job.job_id in rounds[k].kept for k in group]
            rows.append([job.job_id, gang_text(job.num_gpus), *("=" if s else row[k] for s, k in zip(stays, group, strict=True))])
        tables.append(table_text(f"GPUs of each job (node:GPU; {SAME})", columns, rows, text_columns=len(columns)))
    return "\n".join(tables)


def _groups(widths: list[int], room: int) -> list[list[int]]:
    """Return groups of column indices with widths that fit `room` characters, at least one column each."""
    groups: list[list[int]] = [[]]
    for index, column_width in enumerate(widths):
        if groups[-1] and sum(widths[i] + 3 for i in groups[-1]) + column_width + 3 > room:
            groups.append([])
        groups[-1].append(index)
    return groups


def _limits(delivery: gp.DeliveryReport) -> str:
    """Return a sentence on the smallest deficit possible in whole rounds and on the largest of any job, or "" without deficits."""
    if delivery.shortfall_gpu_seconds <= TOLERANCE:
        return ""
    bound, behind = delivery.least_shortfall_gpu_seconds / 3600, ceil(10 * delivery.most_rounds_behind - TOLERANCE) / 10
    return (
        f"Whole rounds cannot leave less than {bound:.4g} ({delivery.least_undelivered_share:.2%}) owed; "
        f"no job is more than {behind:.1f} rounds behind.\n"
    )


def delivery_text(delivery: gp.DeliveryReport) -> str:
    """Return a summary of promised and delivered time, and a table of the jobs with the largest deficits."""
    promised, deficit = delivery.promised_gpu_seconds / 3600, delivery.shortfall_gpu_seconds / 3600
    ahead, idle = delivery.ahead_gpu_seconds / 3600, delivery.backfilled_gpu_seconds / 3600
    summary = (
        f"Promised {promised:.4g} GPU-hours: {promised - deficit:.4g} delivered, "
        f"{deficit:.4g} ({delivery.undelivered_share:.2%}) still owed,\n"
        f"which later rounds serve first, as far as whole gangs fit.\n{_limits(delivery)}"
        f"Beyond the promise: {idle:.4g} GPU-hours of idle GPUs to waiting jobs; "
        f"{ahead:.4g} GPU-hours to jobs ahead of their own fractions.\n"
    )
    misplaced = delivery.misplaced_gpu_seconds / 3600
    if misplaced:
        summary += f"In a slower placement than promised, spread or not: {misplaced:.4g} of the delivered GPU-hours.\n"
    hours = {reason: seconds / 3600 for reason, seconds in delivery.shortfall_by_reason.items() if seconds > TOLERANCE}
    if hours:
        reasons = "; ".join(f"{reason} ({hours[reason]:.4g})" for reason in sorted(hours, key=lambda reason: -hours[reason]))
        summary += f"Owed because {reasons}, in GPU-hours.\n"
    short = sorted((job for job in delivery.jobs.values() if job.shortfall_seconds > 0), key=lambda job: -job.shortfall_seconds)
    if not short:
        return summary
    rows = []
    for job in short[:MAX_JOBS]:
        times = [f"{seconds:.0f}" for seconds in (job.promised_seconds, job.delivered_seconds, job.shortfall_seconds)]
        rows.append([job.job_id, gang_text(job.num_gpus), *times, str(job.why or "")])
    columns = ["job", "GPUs", "promised, s", "delivered, s", "owed, s", "mostly because"]
    more = f", the first {MAX_JOBS} of {len(short)}" if len(short) > MAX_JOBS else ""
    return summary + "\n" + table_text(f"Jobs that are owed most{more}", columns, rows)
