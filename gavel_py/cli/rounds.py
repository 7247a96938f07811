"""gavel rounds: which job runs on which GPUs, round by round."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import NamedTuple

import click

import gavel_py as gp
from gavel_py.cli.inputs import (
    MOST_ROUNDS,
    Inputs,
    Request,
    check_known,
    constraints_text,
    load,
    min_gain_of,
    min_gain_option,
    policies_of,
    problem_options,
    sharing_option,
    warnings_shown,
)
from gavel_py.cli.output import csv_text, emit, gang_text, table_text, unused_text, width

SAME = "= stays where it was"
MOST_SHOWN = 5
"""Jobs listed of those that are owed time; the JSON has them all."""

SOME = 1e-3
"""GPU-seconds or rounds; less is rounding."""


@click.command("rounds")
@problem_options
@click.option("--rounds", "-n", "num_rounds", type=click.IntRange(1, MOST_ROUNDS), default=10, show_default=True, metavar="N")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the rounds too, as .svg or .png.")
@sharing_option
@min_gain_option
def command(request: Request, num_rounds: int, plot: Path | None, sharing: bool, min_gain: float | None) -> None:
    """Turn the allocation of a job set into GPUs: N rounds of placements, and what they delivered of what was promised.

    The job set stays as it is: no job makes progress, arrives or leaves.
    """
    least = min_gain_of(sharing, min_gain)
    if plot is not None:
        gp.check_plot(plot)  # a wrong name is told before the rounds are played
    with warnings_shown():
        policy, *others = policies_of(request)
        if others:
            raise click.UsageError("rounds are shown for one --policy at a time")
        inputs = load(request)
        if sharing:
            check_known(inputs.profile, inputs.problem(sharing=True).pairs)
        scheduler, rounds = play(inputs, policy, RoundOptions(num_rounds, request.round_seconds, sharing, least))
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
            **inputs.unused,
        }
        emit(json.dumps(document, indent=2, allow_nan=False), request.out)
    elif request.form == "csv":
        emit(csv_text(["round", "start_seconds", "job_id", "state", "accelerator", "node", "gpu"], _csv_rows(rounds)), request.out)
    else:
        told = constraints_text([(policy.label, allocation)])
        parts = (rounds_text(inputs.jobs, rounds), delivery_text(delivery), told, unused_text(inputs.cluster.left_out))
        emit("\n".join(part for part in parts if part), request.out)


class RoundOptions(NamedTuple):
    """Rounds that are to be played: how many, how long, whether jobs share GPUs in them, with what gain at least, and how long each
    solve may take.
    """

    number: int
    round_seconds: float
    sharing: bool = False
    min_gain: float = 1.0
    time_limit_seconds: float | None = None


def play(inputs: Inputs, policy: gp.Policy, rounds: RoundOptions) -> tuple[gp.RoundScheduler, list[gp.Round]]:
    """Return a scheduler of these jobs after these rounds, and the rounds."""
    scheduler = gp.RoundScheduler(
        inputs.cluster,
        inputs.profile,
        policy=policy,
        round_seconds=rounds.round_seconds,
        whole_gangs=inputs.whole_gangs,
        sharing=rounds.sharing,
        min_gain=rounds.min_gain,
        time_limit_seconds=rounds.time_limit_seconds,
    )
    for job in inputs.jobs:
        scheduler.submit(job)
    return scheduler, [scheduler.next_round() for _ in range(rounds.number)]


def _csv_rows(rounds: Iterable[gp.Round]) -> Iterable[list[object]]:
    for round_ in rounds:
        kept = set(round_.kept)
        for job_id, assignment in round_.assignments.items():
            state = "kept" if job_id in kept else "started"
            for node, index in assignment.gpus:
                yield [round_.index, round_.start_seconds, job_id, state, assignment.accelerator, node, index]


def gpus_text(gpus: Iterable[tuple[str, int]]) -> str:
    """Return GPUs as text, as in "a:0-3 b:5"."""
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
    """Return tables of jobs by round, as many rounds side by side as fit; "=" marks a job that stays on its GPUs."""
    if not jobs:
        return "No jobs.\n"
    cells = [[_cell(round_, job.job_id) for round_ in rounds] for job in jobs]
    widths = [max(len("round 00"), *(len(row[k]) for row in cells)) for k in range(len(rounds))]
    first = max(len("job"), *(len(job.job_id) for job in jobs)) + len("  GPUs") + 6
    tables = []
    for group in _groups(widths, width() - first):
        columns = ["job", "GPUs", *(f"round {rounds[k].index}" for k in group)]
        rows = []
        for job, row in zip(jobs, cells, strict=True):
            # The GPUs stand in the table's first round and wherever they change.
            stays = [k != group[0] and row[k] == row[k - 1] and job.job_id in rounds[k].kept for k in group]
            rows.append([job.job_id, gang_text(job.num_gpus), *("=" if s else row[k] for s, k in zip(stays, group, strict=True))])
        tables.append(table_text(f"GPUs of each job (node:GPU; {SAME})", columns, rows, text_columns=len(columns)))
    return "\n".join(tables)


def _cell(round_: gp.Round, job_id: str) -> str:
    held = round_.assignments.get(job_id)
    return "." if held is None else " with ".join([gpus_text(held.gpus), *held.shared_with])


def _groups(widths: list[int], room: int) -> Iterable[list[int]]:
    """Split columns of these widths into groups that fit `room` characters, at least one a group."""
    group: list[int] = []
    used = 0
    for index, needed in enumerate(widths):
        if group and used + needed + 3 > room:
            yield group
            group, used = [], 0
        group.append(index)
        used += needed + 3
    if group:
        yield group


def _reasons(delivery: gp.DeliveryReport) -> str:
    """A sentence on why time is owed, the largest part first; nothing where none is owed."""
    hours = {reason: seconds / 3600 for reason, seconds in delivery.shortfall_by_reason.items() if seconds > SOME}
    parts = [f"{reason} ({hours[reason]:.4g})" for reason in sorted(hours, key=lambda reason: -hours[reason])]
    return f"Owed because {'; '.join(parts)}, in GPU-hours.\n" if parts else ""


def _limits(delivery: gp.DeliveryReport) -> str:
    """A sentence on the least that whole rounds allow and on the job that is furthest behind; nothing where no time is owed."""
    if delivery.shortfall_gpu_seconds <= SOME:
        return ""
    least, behind = delivery.least_shortfall_gpu_seconds / 3600, ceil(10 * delivery.most_rounds_behind - SOME) / 10
    return (
        f"Whole rounds cannot leave less than {least:.4g} ({delivery.least_undelivered_share:.2%}) owed; "
        f"no job is more than {behind:.1f} rounds behind.\n"
    )


def delivery_text(delivery: gp.DeliveryReport) -> str:
    """Return what was delivered of what was promised, and the jobs that fell short most."""
    promised, owed = delivery.promised_gpu_seconds / 3600, delivery.shortfall_gpu_seconds / 3600
    ahead, idle = delivery.ahead_gpu_seconds / 3600, delivery.backfilled_gpu_seconds / 3600
    summary = (
        f"Promised {promised:.4g} GPU-hours: {promised - owed:.4g} delivered, "
        f"{owed:.4g} ({delivery.undelivered_share:.2%}) still owed,\n"
        f"which later rounds serve first, as far as whole gangs fit.\n{_limits(delivery)}"
        f"Beyond the promise: {idle:.4g} GPU-hours of idle GPUs to waiting jobs; "
        f"{ahead:.4g} GPU-hours to jobs ahead of their own fractions.\n"
    )
    misplaced = delivery.misplaced_gpu_seconds / 3600
    if misplaced:
        summary += f"In a slower placement than promised, spread or not: {misplaced:.4g} of the delivered GPU-hours.\n"
    summary += _reasons(delivery)
    short = sorted((job for job in delivery.jobs.values() if job.shortfall_seconds > 0), key=lambda job: -job.shortfall_seconds)
    if not short:
        return summary
    rows = (
        [
            job.job_id,
            gang_text(job.num_gpus),
            f"{job.promised_seconds:.0f}",
            f"{job.delivered_seconds:.0f}",
            f"{job.shortfall_seconds:.0f}",
            str(job.why or ""),
        ]
        for job in short[:MOST_SHOWN]
    )
    columns = ["job", "GPUs", "promised, s", "delivered, s", "owed, s", "mostly because"]
    more = f", the first {MOST_SHOWN} of {len(short)}" if len(short) > MOST_SHOWN else ""
    return summary + "\n" + table_text(f"Jobs that are owed most{more}", columns, rows)
