"""gavel slurm: status, plans and rounds of a Slurm cluster."""

from __future__ import annotations

import click

from gavel_py.cli import LazyGroup

COMMANDS = {name: f"driving.{name}" for name in ("status", "plan")} | {
    "run": "run",
    "install": "install",
    "uninstall": "install.uninstall",
    "release": "run.release",
    "report": "report",
    "queue": "queue.queue",
    "why": "queue.why",
}


@click.group("slurm", cls=LazyGroup, package=__name__, modules=COMMANDS)
def command() -> None:
    """Drive partitions of a Slurm cluster in rounds.

    \b
    gavel slurm install --partition gpu
    gavel slurm status --partition gpu
    gavel slurm plan --partition gpu --policy max_min_fairness
    gavel slurm run --partition gpu,gpu-long --policy max_min_fairness --round 360
    """
