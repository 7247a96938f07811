"""gavel slurm status, plan and run: a Slurm cluster as the driver sees it, its next round, and rounds until Ctrl-C or SIGTERM."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

import gavel_py as gp
from gavel_py.cli.inputs import JSON, MAX_ROUNDS, takes_options, warnings_shown
from gavel_py.cli.output import emit
from gavel_py.cli.slurm.options import Request, driver_of, state_directory
from gavel_py.cli.slurm.output import applied_text, plan_document, plan_text, status_document, status_text


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
