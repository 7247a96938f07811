"""gavel kueue advise: which changes of order and flavors would help a backlog, by replay, and what to write for them."""

from __future__ import annotations

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import gavel_py as gp
from gavel_py.cli.inputs import FILE, JSON, Command, main_option, option, takes_options
from gavel_py.cli.kueue.inputs import KueueInput
from gavel_py.cli.output import counted, emit, json_text
from gavel_py.cli.tables import Column, parts_text, table_text, wrapped
from gavel_py.cli.usage import refuse

MAX_REASONS, MAX_OWNERS = 6, 6


@dataclass(frozen=True)
class AdviseOptions(KueueInput):
    """The options, as typed."""

    own: tuple[str, ...] = main_option(
        "Search", "--try", metavar="QUEUE:FLAVOR,...", help="Also try these flavors only for the jobs of a ClusterQueue."
    )
    steps: int = option(
        "Search",
        type=click.IntRange(0),
        default=40,
        show_default=True,
        metavar="N",
        help="Steps of each search for flavors by class.",
    )
    lift: bool = main_option(
        "Output", help="Write the advice that lifts node selectors of users, Job and Workload in a safe order."
    )
    form: Literal["patches", "replace", "queues"] = option(
        "Output", "--as", default="patches", show_default=True, help="Patches, whole objects, or a queue for each class of jobs."
    )
    out: Path | None = main_option(
        "Output", "-o", type=FILE, metavar="FILE", help="Write the advice, as advice.sh with undo.sh beside it, or as JSON objects."
    )
    as_json: bool = main_option("Output", "--json", **JSON)


@click.command("advise", cls=Command)
@takes_options(AdviseOptions)
def command(request: AdviseOptions) -> None:
    """Find what would help the jobs that wait, by replay.

    STATE is the output of kubectl get, - for standard input. Nothing in the cluster is changed: --out writes a script of kubectl
    patches, and its inverse.
    """
    advice = gp.advise_kueue(request.read(), request.own, most_steps=request.steps)
    chosen = advice.lifted or advice.kept if request.lift else advice.kept
    if request.out is not None:
        refuse((chosen is None, f"there is nothing to write{_and_lift(advice) if not request.lift else ''}"))
        click.echo("\n".join(_written(advice, chosen, request)), err=True)  # type: ignore[arg-type]
    emit(json_text(_document(advice)) if request.as_json else _text(advice), None)


def _and_lift(advice: gp.KueueAdvice) -> str:
    return "; with --lift, there is" if advice.lifted is not None else ""


def _written(advice: gp.KueueAdvice, chosen: gp.KueueTry, request: AdviseOptions) -> Iterator[str]:
    out = request.out or Path("advice.sh")
    if request.form == "queues":
        emit(_list_of(gp.kueue_queues(advice.state, chosen)), out)
        yield f"{out}: a queue for each class; look at it with kubectl diff -f {out}"
        return
    patches, notes = gp.kueue_patches(advice.state, chosen, lift=request.lift)
    yield from (f"Note: {note}." for note in notes)
    if request.form == "replace":
        emit(_list_of([each.replaced() for each in patches]), out)
        yield f"{counted(len(patches), 'object')} in {out}; look: kubectl diff -f {out}; do: kubectl replace -f {out}"
        return
    undo = out.with_name("undo.sh" if out.name == "advice.sh" else f"{out.stem}.undo.sh")
    kubectl = f"kubectl --context {shlex.quote(request.context)}" if request.context else "kubectl"
    emit(gp.kueue_script(patches, kubectl=kubectl), out)
    emit(gp.kueue_script(patches, kubectl=kubectl, undo=True), undo)
    yield f"{len(patches)} {'patch' if len(patches) == 1 else 'patches'} in {out}, the inverse in {undo}."
    yield "A Workload has another name once its Job is made again, and a changed class label resets its priority: apply soon."


def _list_of(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=1)


def _document(advice: gp.KueueAdvice) -> dict[str, Any]:
    rows = [
        {
            "name": each.name,
            "mean_hours": _finite(each.mean),
            "least_mean_hours": _finite(each.extremes[0]),
            "most_mean_hours": _finite(each.extremes[1]),
            "last_hours": each.last,
            "evictions": each.evictions,
            "hours_by_queue": {name: _finite(hours) for name, hours in each.by_queue.items()},
            "asks_owners_of": list(each.asks),
        }
        for each in advice.tries
    ]
    names = {"kept": advice.kept and advice.kept.name, "lifted": advice.lifted and advice.lifted.name}
    return {"tries": rows, **names, "prices": dict(advice.prices), "replays": advice.replays}


def _finite(hours: float) -> float | None:
    """Return hours, None if a job that ends as it is would never end."""
    return hours if math.isfinite(hours) else None


def _text(advice: gp.KueueAdvice) -> str:
    queues = list(advice.base.by_queue)
    columns = [Column("change", "prose"), Column("mean h"), Column("range", optional=2), Column("last h", optional=1)]
    columns += [Column("evicted", optional=3), *map(Column, queues), Column("owners to ask")]
    rows = []
    for each in advice.tries:
        low, high = (f"{value:.2f}" for value in each.extremes)
        hours = [f"{each.by_queue[name]:.2f}" for name in queues]
        asks = str(len(each.asks)) if each.asks else "-"
        rows.append([each.name, f"{each.mean:.2f}", f"{low}-{high}", f"{each.last:.1f}", f"{each.evictions:.0f}", *hours, asks])
    title = "If nothing else arrives, by replay: mean hours to the end, over orders of simultaneous reservations"
    return parts_text([table_text(title, columns, rows), wrapped(_verdict(advice))])


def _verdict(advice: gp.KueueAdvice) -> Iterator[str]:
    if advice.kept is None and advice.lifted is None:
        yield "Nothing to write: no change gains 3 % and more than the range of orders without making a queue 2 % later."
    if advice.kept is not None:
        yield f"Advice that asks nobody: {advice.kept.name}, {_gain(advice, advice.kept)}."
        yield from (f"  {reason}" for reason in advice.reasons(advice.kept)[:MAX_REASONS])
    if advice.lifted is not None:
        yield f"With node selectors lifted (--lift): {advice.lifted.name}, {_gain(advice, advice.lifted)}."
        yield from (f"  {reason}" for reason in advice.reasons(advice.lifted)[:MAX_REASONS])
        yield from _owners(advice, advice.lifted)
    notes = [note for note in advice.state.notes if "equally fast" in note]
    yield from (f"Note: {note}." for note in notes)


def _gain(advice: gp.KueueAdvice, chosen: gp.KueueTry) -> str:
    return f"{chosen.gain(advice.base):.0%} less mean time, no queue more than 2 % later"


def _owners(advice: gp.KueueAdvice, chosen: gp.KueueTry) -> Iterator[str]:
    """Yield whose selectors go, those with most jobs first."""
    jobs = {job.key: job for job in advice.state.pending}
    groups: dict[tuple[str, str], list[gp.KueueJob]] = defaultdict(list)
    for job in (jobs[key] for key in chosen.asks):
        groups[", ".join(sorted(job.flavors)), ", ".join(sorted(chosen.changes.flavors[job.key]))].append(job)
    ordered = sorted(groups.items(), key=lambda each: -len(each[1]))
    for (old, new), asked in ordered[:MAX_OWNERS]:
        gpus = sum(job.gpus for job in asked)
        owner = f"{asked[0].key.partition('/')[0]}/{asked[0].owner[1] or asked[0].key.partition('/')[2]}"
        yield f"  ask the owners of {counted(len(asked), 'job')} ({gpus} GPUs): {old} -> {new}; e.g. {owner}"
    if len(ordered) > MAX_OWNERS:
        yield f"  and of {sum(len(asked) for _, asked in ordered[MAX_OWNERS:])} more jobs (--json lists them)"
