"""gavel trace: traces of submitted jobs, read, described, generated and cut."""

from __future__ import annotations

import click

from gavel_py.cli import LazyGroup

COMMANDS = {
    "import": "conversion.import_trace",
    "describe": "describe",
    "generate": "generate",
    **{name: f"conversion.{name}" for name in ("sample", "scale", "window", "formats")},
}


@click.group("trace", cls=LazyGroup, package=__name__, modules=COMMANDS)
def command() -> None:
    """Read, describe, generate and cut traces of submitted jobs."""
