"""gavel rounds: which job runs on which GPUs, round by round."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.inputs import Inputs, load, policies_of, problem_options, warnings_shown
from gavel_py.cli.output import csv_text, emit, table_text, width

__all__ = ["command", "delivery_text", "play", "rounds_text"]

MOST_SHOWN = 5
"""Jobs listed of those that are owed time; the JSON has them all."""


@click.command("rounds")
@problem_options
@click.option("--rounds", "-n", "num_rounds", type=click.IntRange(min=1), default=10, show_default=True, metavar="N")
@click.option("--round-seconds", type=click.FloatRange(min=0, min_open=True), default=360.0, show_default=True, metavar="S")
@click.option("--json", "form", flag_value="json", help="Print JSON and nothing else.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV, one line per round and job, and nothing else.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write there instead of to the terminal."
)
def command(
    jobs_file: Path,
    cluster: str,
    profile: str | None,
    throughputs: Path | None,
    policy_specs: tuple[str, ...],
    settings: tuple[str, ...],
    renames: tuple[str, ...],
    store: Path | None,
    num_rounds: int,
    round_seconds: float,
    form: str | None,
    out: Path | None,
) -> None:
    """Turn the allocation of a job set into GPUs: N rounds of placements, and what they delivered of what was promised.

    The job set stays as it is: no job makes progress, arrives or leaves.
    """
    with warnings_shown():
        policy, *others = policies_of(policy_specs, settings)
        if others:
            raise click.UsageError("rounds are shown for one --policy at a time")
        inputs = load(jobs_file, cluster, profile, throughputs, renames, store)
        scheduler, rounds = play(inputs, policy, num_rounds, round_seconds)
    delivery = scheduler.delivery()
    if form == "json":
        document = {
            "policy": policy.name,
            "options": policy.changed_options,
            "round_seconds": round_seconds,
            "rounds": [round_.to_dict() for round_ in rounds],
            "delivery": delivery.to_dict(),
        }
        emit(json.dumps(document, indent=2, allow_nan=False), out)
    elif form == "csv":
        emit(csv_text(["round", "start_seconds", "job_id", "state", "accelerator", "node", "gpu"], _csv_rows(rounds)), out)
    else:
        emit(rounds_text(inputs.jobs, rounds) + "\n" + delivery_text(delivery), out)


def play(inputs: Inputs, policy: gp.Policy, num_rounds: int, round_seconds: float) -> tuple[gp.RoundScheduler, list[gp.Round]]:
    """Return a scheduler of these jobs after `num_rounds` rounds, and the rounds."""
    scheduler = gp.RoundScheduler(inputs.cluster, inputs.profile, policy=policy, round_seconds=round_seconds)
    for job in inputs.jobs:
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
            stays = [k != group[0] and job.job_id in rounds[k].kept for k in group]
            rows.append([job.job_id, str(job.num_gpus), *("=" if s else row[k] for s, k in zip(stays, group, strict=True))])
        tables.append(table_text("GPUs of each job (node:GPU; = stays where it was)", columns, rows, text_columns=len(columns)))
    return "\n".join(tables)


def _cell(round_: gp.Round, job_id: str) -> str:
    return gpus_text(round_.assignments[job_id].gpus) if job_id in round_.assignments else "."


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


def delivery_text(delivery: gp.DeliveryReport) -> str:
    """Return what was delivered of what was promised, and the jobs that fell short most."""
    promised, delivered = (seconds / 3600 for seconds in (delivery.promised_gpu_seconds, delivery.delivered_gpu_seconds))
    summary = (
        f"Promised {promised:.4g} GPU-hours, delivered {delivered:.4g} (idle GPUs given to waiting jobs included).\n"
        f"Still owed: {delivery.undelivered_share:.2%} of the promise; later rounds serve it first, as far as whole gangs fit.\n"
    )
    short = sorted((job for job in delivery.jobs.values() if job.shortfall_seconds > 0), key=lambda job: -job.shortfall_seconds)
    if not short:
        return summary
    rows = (
        [
            job.job_id,
            str(job.num_gpus),
            f"{job.promised_seconds:.0f}",
            f"{job.delivered_seconds:.0f}",
            f"{job.shortfall_seconds:.0f}",
        ]
        for job in short[:MOST_SHOWN]
    )
    columns = ["job", "GPUs", "promised, s", "delivered, s", "owed, s"]
    more = f", the first {MOST_SHOWN} of {len(short)}" if len(short) > MOST_SHOWN else ""
    return summary + "\n" + table_text(f"Jobs that are owed most{more}", columns, rows)
