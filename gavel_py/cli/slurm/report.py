"""gavel slurm report: what became of a real run, from its log."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["command"]


@click.command("report")
@click.argument("log", type=click.Path(path_type=Path, dir_okay=False))
def command(log: Path) -> None:
    """Show what became of the jobs of a run: completion times, queueing, utilisation. LOG is its log.jsonl."""
    raise click.UsageError(f"{log} cannot be reported on yet")
