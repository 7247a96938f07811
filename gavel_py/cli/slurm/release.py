"""gavel slurm release: release the jobs that a dead driver holds."""

from __future__ import annotations

from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.output import counted

DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command("release")
@click.option("--partition", required=True, metavar="NAMES", help="Partitions whose jobs are released, as in gpu,gpu-long.")
@click.option("--state", type=DIRECTORY, metavar="DIR", help="The directory of the driver's state, if it can be read.")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 10**6), default=60.0, show_default=True, metavar="S", help="Time limit of a command."
)
def command(partition: str, state: Path | None, timeout: float) -> None:
    """Release the jobs that a driver or its plugin holds.

    Use it when the driver is dead, on any host, from an account that may manage jobs. Jobs held by their users stay on hold. From
    then on, the plugin lets new jobs pass until a driver runs again. The command may be repeated.
    """
    released = gp.slurm_release(partition, directory=state, commands=gp.SlurmCommands(timeout))
    click.echo(f"{counted(len(released), 'job')} released.")
