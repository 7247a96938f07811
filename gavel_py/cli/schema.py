"""gavel schema: JSON schemas of jobs, nodes, tenants and events."""

from __future__ import annotations

import json

import click

import gavel_py as gp
from gavel_py.cli.output import emit


@click.command("schema")
@click.argument("name", metavar="NAME")
def command(name: str) -> None:
    """Print the JSON schema of a kind of record.

    NAME is accelerator, event, job, node or tenant. The schema has the meaning of each field, and its bounds.

    \b
    gavel schema job
    gavel schema event > event.schema.json
    """
    emit(json.dumps(gp.json_schema(name), indent=2), None)
