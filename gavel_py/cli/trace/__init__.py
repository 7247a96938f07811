"""gavel trace: traces of submitted jobs, read, described, generated and cut; one file per command."""

from __future__ import annotations

import importlib

import click

__all__ = ["command"]

COMMANDS = {
    "import": "importing",
    "describe": "describe",
    "generate": "generate",
    "sample": "sample",
    "scale": "scale",
    "window": "window",
    "formats": "formats",
}


class _LazyGroup(click.Group):
    """Imports a command's module when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"gavel_py.cli.trace.{COMMANDS[name]}").command
        return found


@click.group("trace", cls=_LazyGroup)
def command() -> None:
    """Read, describe, generate and cut traces of submitted jobs."""
