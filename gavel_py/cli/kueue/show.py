"""gavel kueue show: GPUs that each queue holds, borrows and lends, and the workloads that wait."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import click

import gavel_py as gp
from gavel_py.cli.inputs import JSON, Command, main_option, takes_options
from gavel_py.cli.kueue.inputs import KueueInput
from gavel_py.cli.output import counted, emit, json_text, number
from gavel_py.cli.tables import Column, listed, parts_text, table_text, wrapped

MAX_QUEUES, MAX_WAITING, MAX_TYPES, MAX_NOTES = 10, 8, 6, 4
"""Rows of the tables of `gavel kueue show`; --json has all of them."""


@dataclass(frozen=True)
class ShowOptions(KueueInput):
    """The options, as typed."""

    as_json: bool = main_option("Output", "--json", **JSON)


@click.command("show", cls=Command)
@takes_options(ShowOptions)
def command(request: ShowOptions) -> None:
    """Show GPUs held, borrowed and lent, and the jobs that wait.

    STATE is the output of kubectl get, - for standard input.
    """
    overview = gp.kueue_overview(request.read())
    emit(json_text(asdict(overview)) if request.as_json else overview_text(overview), None)


def overview_text(found: gp.KueueOverview) -> str:
    """Return an overview as text of at most 40 lines."""
    when = time.strftime("%F %H:%M UTC", time.gmtime(found.now))
    count, gpus = found.running
    waiting = sum(each.waiting for each in found.queues)
    asked = sum(each.waiting_gpus for each in found.queues)
    head = f"{when}: {counted(count, 'workload')} with {counted(gpus, 'GPU')}, {waiting} waiting for {asked}.\n"
    return parts_text([head, _queues_text(found), _waiting_text(found), _worth_text(found), wrapped(_notes(found))])


def _queues_text(found: gp.KueueOverview) -> str:
    flavors = list(dict.fromkeys(use.flavor for each in found.queues for use in each.flavors))
    columns = [Column("cohort", "name"), Column("queue", "name", is_key=True), *map(Column, flavors)]
    columns += [Column("borrowed"), Column("lent"), Column("wait"), Column("state", "prose", 1)]
    shown = sorted(found.queues, key=lambda each: (-each.waiting_gpus, each.cohort, each.queue))[:MAX_QUEUES]
    rows = []
    for each in sorted(shown, key=lambda each: (each.cohort, each.queue)):
        uses = {use.flavor: f"{use.held} of {use.quota}" for use in each.flavors}
        sums = [sum(use.borrowed for use in each.flavors), sum(use.lent for use in each.flavors), each.waiting]
        rows.append([each.cohort, each.queue, *(uses.get(flavor, "-") for flavor in flavors), *map(str, sums), each.held])
    more = len(found.queues) - len(rows)
    text = table_text("GPUs held, of the quota of each queue", columns, rows)
    return text + (f"  and {counted(more, 'more queue')}\n" if more else "")


def _waiting_text(found: gp.KueueOverview) -> str:
    if not found.waiting:
        return "Nothing waits.\n" if not any(each.waiting for each in found.queues) else ""
    columns = [Column("queue", "name"), Column("jobs"), Column("GPUs each"), Column("type", "name", is_key=True)]
    columns += [Column("may use", "name"), Column("h"), Column("idle in its cohort", "prose")]
    rows = [
        [each.queue, str(each.count), str(each.gpus), each.job_type, ", ".join(each.flavors), f"{each.hours:.1f}", _gpus(each.idle)]
        for each in found.waiting[:MAX_WAITING]
    ]
    more = len(found.waiting) - len(rows)
    return table_text("Jobs that wait", columns, rows) + (f"  and {counted(more, 'more kind')}\n" if more else "")


def _gpus(idle: Mapping[str, int]) -> str:
    return listed([f"{gpus} {flavor}" for flavor, gpus in idle.items()], 60) if idle else "none"


def _worth_text(found: gp.KueueOverview) -> str:
    if not found.worth or all(set(speeds.values()) <= {1.0} for speeds in found.worth.values()):
        return ""
    flavors = list(dict.fromkeys(flavor for speeds in found.worth.values() for flavor in speeds))
    rows = [
        [name, *(number(speeds[flavor]) if speeds.get(flavor) else "-" for flavor in flavors)]
        for name, speeds in list(found.worth.items())[:MAX_TYPES]
    ]
    title = f"What a flavor is worth to a type of job (GPUs): {found.reference} = 1, - it does not run there"
    more = len(found.worth) - len(rows)
    return table_text(title, [Column("type", "name"), *map(Column, flavors)], rows) + (f"  and {more} more\n" if more else "")


def _notes(found: gp.KueueOverview) -> Iterator[str]:
    yield from (f"Note: {note}." for note in found.notes[:MAX_NOTES])
    if len(found.notes) > MAX_NOTES:
        yield f"Note: {len(found.notes) - MAX_NOTES} more with --json."
