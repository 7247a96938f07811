"""gavel slurm run: rounds on a Slurm cluster, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

import gavel_py as gp
from gavel_py.cli.inputs import MAX_ROUNDS, takes_options, warnings_shown
from gavel_py.cli.slurm.options import Request, driver_of, state_directory
from gavel_py.cli.slurm.output import applied_text, plan_text


@click.command("run")
@takes_options(Request)
@click.option("--once", is_flag=True, help="Play one round and end.")
@click.option("--rounds", type=click.IntRange(1, MAX_ROUNDS), metavar="N", help="Play so many rounds and end.")
@click.option("--dry-run", is_flag=True, help="Show what the next round would do, and do nothing.")
def command(request: Request, once: bool, rounds: int | None, dry_run: bool) -> None:
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
