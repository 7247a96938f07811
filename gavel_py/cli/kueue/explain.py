"""gavel kueue explain: why a workload waits, when it starts, and the least change that admits it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import click

import gavel_py as gp
from gavel_py.cli.inputs import JSON, Command, argument, main_option, takes_options
from gavel_py.cli.kueue.inputs import KueueInput
from gavel_py.cli.output import counted, emit, json_text
from gavel_py.cli.tables import wrapped
from gavel_py.cli.usage import refuse

MAX_HOLDERS = 8


@dataclass(frozen=True)
class KueueExplainOptions(KueueInput):
    """The options, as typed."""

    workload: str | None = argument("NAMESPACE/WORKLOAD", required=False)
    as_json: bool = main_option("Output", "--json", **JSON)


@click.command("explain", cls=Command)
@takes_options(KueueExplainOptions)
def command(request: KueueExplainOptions) -> None:
    """Explain why a workload waits, and when it starts.

    STATE is the output of kubectl get, - for standard input; the workload may be named by its Job.
    """
    if request.context and request.workload is None and request.state is not None:
        request = replace(request, state=None, workload=str(request.state))
    name = request.workload or ""
    refuse((not name, "give the workload, as NAMESPACE/WORKLOAD"))
    found = gp.explain_kueue(request.read(), name)
    emit(json_text(asdict(found)) if request.as_json else wrapped(_sentences(found)), None)


def _sentences(found: gp.KueueExplanation) -> Iterator[str]:
    yield f"{found.key}: {counted(found.gpus, 'GPU')}, type {found.job_type}, in queue {found.queue}."
    if not found.flavor:
        yield f"Waits: {found.reason or 'nothing keeps it'}."
    yield from (f"  {line}" for line in found.details if line)
    if not found.flavor and found.reason != "Held":
        yield f"{counted(found.ahead, 'workload')} of its queue {'has' if found.ahead == 1 else 'have'} a turn before it."
    if found.kueue_says:
        yield f'Kueue says: "{found.kueue_says}"'
    if found.holders:
        yield f"Who holds what it may use ({counted(len(found.holders), 'workload')}):"
        for each in found.holders[:MAX_HOLDERS]:
            ends = "" if each.ends is None else f", ends in {each.ends:.1f} h"
            yield f"  {each.key} ({each.queue}): {each.gpus} {each.flavor}{ends}"
    yield from _forecast(found)
    if found.changes:
        yield "The least change of each kind:"
        yield from (f"  {change}" for change in found.changes)


def _forecast(found: gp.KueueExplanation) -> Iterator[str]:
    for what in found.without_forecast[:3]:
        yield f"No forecast: {what} is not modelled."
    if found.starts:
        yield f"If nothing else arrives, it starts in {_hours(found.starts)} on {found.starts_on}."
    elif not found.flavor and found.reason != "Held" and not found.without_forecast:
        yield "If nothing else arrives, it never starts."
    if found.ends:
        yield f"If nothing else arrives, it ends in {_hours(found.ends)}."


def _hours(times: tuple[float, float]) -> str:
    low, high = (f"{time:.1f}" for time in times)
    return f"{low} h" if low == high else f"{low} to {high} h, by the order of simultaneous reservations"
