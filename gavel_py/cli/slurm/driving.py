"""gavel slurm status, plan and run: a Slurm cluster as the driver sees it, its next round, and rounds until Ctrl-C or SIGTERM."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.inputs import JSON, MAX_ROUNDS, takes_options, warnings_shown
from gavel_py.cli.output import counted, emit, number, table_text
from gavel_py.cli.slurm.options import Request, driver_of, state_directory


@click.command("status")
@takes_options(Request)
@click.option("--json", "as_json", **JSON)
def status(request: Request, as_json: bool) -> None:
    """Show nodes and jobs as they are seen: what is managed, what each job is taken for, and what is left alone, and why."""
    with warnings_shown():
        picture = driver_of(request).look()
    emit(json.dumps(status_document(picture), indent=2, allow_nan=False) if as_json else status_text(picture), None)


@click.command("plan")
@takes_options(Request)
@click.option("--json", "as_json", **JSON)
def plan(request: Request, as_json: bool) -> None:
    """Show what the next round would do, and why. Nothing is changed, and nothing is written."""
    with warnings_shown():
        decided = driver_of(request).plan()
    emit(json.dumps(plan_document(decided), indent=2, allow_nan=False) if as_json else plan_text(decided), None)


@click.command("run")
@takes_options(Request)
@click.option("--once", is_flag=True, help="Play one round and end.")
@click.option("--rounds", type=click.IntRange(1, MAX_ROUNDS), metavar="N", help="Play so many rounds and end.")
@click.option("--dry-run", is_flag=True, help="Show what the next round would do, and do nothing.")
def run(request: Request, once: bool, rounds: int | None, dry_run: bool) -> None:
    """Manage the jobs of a partition in rounds: read, decide, preempt and start, compare; until Ctrl-C or SIGTERM.

    It can be stopped and started at any time, and goes on where it was. State and log are in the directory of --state.
    """
    clock = gp.WallClock()
    with warnings_shown():
        driver = driver_of(request, clock)
        if dry_run:
            click.echo(plan_text(driver.plan()), nl=False)
            return
        with driver, _ending(clock):
            click.echo(f"State and log are in {state_directory(request)}.", err=True)
            if once or rounds == 1:
                decided, applied = driver.round()
                click.echo(applied_text(decided, applied), nl=False)
                driver.end()
            else:
                driver.run(rounds, tell=lambda decided, applied: click.echo(applied_text(decided, applied), nl=False))


@contextmanager
def _ending(clock: gp.WallClock) -> Iterator[None]:
    """Stop the clock on SIGINT and SIGTERM, so that the driver ends after its current step."""

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        clock.stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def status_document(picture: gp.SlurmPicture) -> dict[str, Any]:
    """Return the observed cluster as plain data."""
    return {"nodes": _nodes(picture), "jobs": _jobs(picture), "notes": list(picture.notes)}


def status_text(picture: gp.SlurmPicture) -> str:
    """Return the observed cluster as tables of nodes and jobs, and notes."""
    shown = ("node", "accelerator", "state", "gpus", "managed", "others")
    nodes = [[str(node[name]) for name in shown] for node in _nodes(picture)]
    jobs = [
        [
            *(job["job"], job["user"], job["job_type"] or "-", job["where"], job["role"]),
            *(str(job["gpus"]), number(job["steps_done"]), number(job["total_steps"])),
        ]
        for job in _jobs(picture)
    ]
    parts = [
        table_text("Nodes", ["node", "GPU type", "state", "GPUs", "managed", "others"], nodes, 3),
        table_text("Jobs", ["job", "user", "type", "where", "standing", "GPUs", "steps", "of"], jobs, 5) if jobs else "No jobs.\n",
        *(f"{note}\n" for note in picture.notes),
    ]
    return "\n".join(parts)


def plan_document(decided: gp.SlurmDecided) -> dict[str, Any]:
    """Return a plan as plain data."""
    moves = decided.moves
    return {
        "round": decided.begun.index,
        "start_seconds": decided.begun.start_seconds,
        **{name: list(getattr(moves, name)) for name in ("keep", "stop", "hold")},
        "start": {job_id: dict(target) for job_id, target in moves.start.items()},
        "cannot": dict(moves.cannot),
        "release": list(moves.give_back),
        "waiting": decided.waiting,
        "jobs": _jobs(decided.picture),
        "notes": list(decided.picture.notes),
    }


def plan_text(decided: gp.SlurmDecided) -> str:
    """Return a plan as a table with the action for each job, its place, and the reason if it waits."""
    moves, state = decided.moves, decided.picture.state
    rows = []
    for job_id, where in ((job_id, moves.start.get(job_id)) for job_id in sorted(state.tracked, key=_order)):
        action = "start" if where else "keep" if job_id in moves.keep else "stop" if job_id in moves.stop else "wait"
        if where and job_id in moves.stop:
            action = "move"
        if job_id in state.unplanned:
            action = "leave"
        place = _place(where or (state.tracked[job_id].held if action in {"keep", "leave"} else {}))
        rows.append([job_id, state.tracked[job_id].job_type, action, place, decided.waiting.get(job_id, "")])
    others = [f"{job_id}: {why}" for job_id, why in decided.picture.left_alone.items() if job_id not in state.tracked]
    head = f"Round {decided.begun.index}: {_counts(decided)}"
    table = table_text(head, ["job", "type", "what", "where", "why it waits"], rows, 5) if rows else f"{head}\n"
    unplanned = ["\nNot planned:\n" + "\n".join(f"  {line}" for line in others) + "\n"] if others else []
    return "".join([table, *unplanned, *(f"{note}\n" for note in decided.picture.notes)])


def applied_text(decided: gp.SlurmDecided, applied: gp.SlurmApplied) -> str:
    """Return a line on a round, and a line for each deviation from the decision."""
    lines = [f"Round {decided.begun.index}: {_counts(decided)}; {counted(len(applied.started), 'start')} as decided."]
    lines += [f"  {job_id} runs on {_place(held)}, which was not decided" for job_id, held in applied.elsewhere.items()]
    lines += [f"  {job_id} did not start: {why}" for job_id, why in applied.waiting.items()]
    lines += [f"  {job_id} did not stop in time" for job_id in applied.lingering]
    lines += [f"  {job_id} is left to Slurm: {why}" for job_id, why in decided.picture.state.unplanned.items()]
    lines += [f"  Slurm says: {text}" for text in applied.errors]
    return "\n".join(lines) + "\n"


def _counts(decided: gp.SlurmDecided) -> str:
    moves = decided.moves
    return f"{len(moves.keep)} kept, {len(moves.stop)} stopped, {len(moves.start)} to start"


def _nodes(picture: gp.SlurmPicture) -> list[dict[str, Any]]:
    scheduler, state = picture.state.scheduler, picture.state
    others, managed = picture.used_by_others, dict.fromkeys(scheduler.nodes, 0)
    for tracked in state.tracked.values():
        for node, gpus in tracked.held.items():
            managed[node] = managed.get(node, 0) + gpus
    return [
        {
            "node": node.name,
            "accelerator": node.accelerator,
            "gpus": node.num_gpus,
            "managed": managed[node.name],
            "others": others.get(node.name, 0),
            "state": str(scheduler.nodes[node.name]),
        }
        for node in scheduler.cluster.nodes
    ]


def _jobs(picture: gp.SlurmPicture) -> list[dict[str, Any]]:
    found = []
    for job_id in sorted(picture.standings, key=_order):
        tracked, standing = picture.state.tracked.get(job_id), picture.standing_of(job_id)
        job = picture.snapshot.jobs[job_id]
        found.append(
            {
                "job": job_id,
                "user": picture.shown(job.user),
                "name": picture.shown(job.name),
                "job_type": None if tracked is None else tracked.job_type,
                "gpus": job.num_gpus,
                "steps_done": None if tracked is None else tracked.steps_done,
                "total_steps": None if tracked is None else tracked.total_steps,
                "where": _place(job.held) or str(job.phase),
                "role": f"{standing.role}: {standing.why}" if standing.why else str(standing.role),
            }
        )
    return found


def _place(held: Mapping[str, int] | None) -> str:
    return " ".join(f"{node}:{gpus}" for node, gpus in (held or {}).items())


def _order(job_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in job_id.split("_"))
