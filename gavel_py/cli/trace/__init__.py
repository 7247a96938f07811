"""gavel trace: traces of submitted jobs, read, described, generated and cut; one module per command."""

from __future__ import annotations

import click

from gavel_py.cli import LazyGroup

__all__ = ["command"]

COMMANDS = {"import": "importing"} | {name: name for name in ("describe", "generate", "sample", "scale", "window", "formats")}


@click.group("trace", cls=LazyGroup, package=__name__, modules=COMMANDS)
def command() -> None:
    """Read, describe, generate and cut traces of submitted jobs."""
