"""gavel slurm run: run rounds on a Slurm cluster until Ctrl-C or SIGTERM, or a shadow beside it; and release, for a dead driver."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import click

import gavel_py as gp
from gavel_py.cli import logged
from gavel_py.cli.inputs import (
    DIRECTORY,
    MAX_ROUNDS,
    Command,
    Duration,
    main_option,
    option,
    takes_options,
    warnings_shown,
)
from gavel_py.cli.output import counted
from gavel_py.cli.slurm.driving import DriverOptions, applied_text, driver_of, plan_text, state_directory

LEVELS = {"warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


@dataclass(frozen=True)
class RunOptions(DriverOptions):
    """The options of this command, as typed."""

    log_level: Literal["warning", "info", "debug"] | None = option(
        "Output", help="Log to standard error, with times: problems, all events, or events with all their details."
    )
    once: bool = main_option("Run", help="Run one round and exit.")
    num_rounds: int | None = option(
        "Run", "--rounds", type=click.IntRange(1, MAX_ROUNDS), metavar="N", help="Run N rounds and exit."
    )
    dry_run: bool = main_option("Run", help="Show what the next round would do, without doing it.")
    shadow: bool = main_option("Run", help="Change nothing; compare what the driver would do with what Slurm does.")


def check_shadow(request: DriverOptions) -> None:
    """Raise `click.UsageError` for an option that has no effect on a shadow."""
    settings = request.given_settings
    given = {f"--{name.replace('_', '-')} release": settings.get(name) == "release" for name in ("on_exit", "on_failure")}
    given |= {"--progress": "progress" in settings, "--learn": request.learn is not None}
    for name in (name for name, is_given in given.items() if is_given):
        raise click.UsageError(f"--shadow changes nothing in Slurm, and reads only what Slurm lists; leave out {name}")


@click.command("run", cls=Command)
@takes_options(RunOptions)
def command(request: RunOptions) -> None:
    """Manage the jobs of partitions in rounds.

    Each round reads the queue, decides, preempts and starts jobs, and checks the outcome; until Ctrl-C or SIGTERM. The driver can
    be stopped and started at any time and continues where it was. State and log are in the directory of --state.

    With --shadow, it needs no rights and changes nothing: it decides as if it managed them, and gavel slurm report compares.
    """
    clock = gp.WallClock()
    shadow = request.shadow
    if shadow:
        check_shadow(request)
    elif "history" in request.given_settings:
        raise click.UsageError("--history is for --shadow; a driver measures its own stops and starts")
    level = None if request.log_level is None else LEVELS[request.log_level]
    with warnings_shown(), nullcontext() if level is None else logged(level):
        driver = driver_of(request, clock, shadow=shadow)
        if request.dry_run:
            click.echo(plan_text(driver.plan()), nl=False)
            return
        directory = state_directory(request, shadow=shadow)
        if directory is None:
            raise click.UsageError("this account has no home directory; give a directory for the state: --state DIR")
        reported = set[str]()

        def tell(decided: gp.SlurmDecided, applied: gp.SlurmApplied) -> None:
            notes = [note for note in decided.picture.notes_on_nodes if note not in reported]
            reported.update(notes)
            click.echo("".join(f"{note}\n" for note in notes) + applied_text(decided, applied), nl=False)

        with driver, _ending(clock, driver):
            click.echo(f"State and log are in {directory}.", err=True)
            if request.once or request.num_rounds == 1:
                tell(*driver.round())
                driver.end()
            else:
                driver.run(request.num_rounds, tell=tell)
        if shadow:
            click.echo(f"To compare it with Slurm: gavel slurm report {directory}", err=True)


@contextmanager
def _ending(clock: gp.WallClock, driver: gp.SlurmDriver) -> Iterator[None]:
    """Stop the clock on SIGINT and SIGTERM, so that the driver ends after its current step; on SIGHUP, begin a new log file."""

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if number == signal.SIGHUP:
            driver.reopen_log()
        else:
            clock.stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command("release")
@click.option("--partition", required=True, metavar="NAMES", help="Partitions whose leases end, as in gpu,gpu-long.")
@click.option("--state", type=DIRECTORY, metavar="DIR", help="The directory of the driver's state, if it can be read.")
@click.option("--timeout", type=Duration(0.1, 10**6), default=60.0, show_default=True, metavar="S", help="Time limit of a command.")
def release(partition: str, state: Path | None, timeout: float) -> None:
    """Let Slurm start the jobs that wait for a driver.

    It ends the lease of the driver at once. Use it when the driver is dead, on any host, from an account that may manage jobs;
    otherwise the lease ends by itself. From then on, the plugin lets new jobs pass until a driver runs again. The command may be
    repeated.
    """
    released = gp.slurm_release(partition, directory=state, commands=gp.SlurmCommands(timeout))
    click.echo(f"{counted(len(released), 'job')} released.")
