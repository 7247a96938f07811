"""gavel profiles: stored throughput profiles, missing measurements, and what to measure next."""

from __future__ import annotations

import click

import gavel_py as gp
from gavel_py.cli import LazyGroup
from gavel_py.cli.inputs import STORE

COMMANDS = {
    "list": "stored.list_profiles",
    "find": "stored.find",
    "show": "stored.show",
    "import": "stored.import_profile",
    "export": "stored.export",
    "delete": "stored.delete",
    **{name: f"measuring.{name}" for name in ("missing", "check", "plan")},
}


@click.group("profiles", cls=LazyGroup, package=__name__, modules=COMMANDS)
@click.option("--store", **STORE)
@click.pass_context
def command(ctx: click.Context, store: str | None) -> None:
    """Manage throughput profiles, and plan what to measure.

    A profile has the throughput of each job type and gang size on each accelerator.
    """
    ctx.obj = gp.ThroughputStore(store)
