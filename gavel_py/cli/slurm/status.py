"""gavel slurm status: nodes and jobs of a Slurm cluster, and how the driver classifies them."""

from __future__ import annotations

import json

import click

from gavel_py.cli.inputs import JSON, takes_options, warnings_shown
from gavel_py.cli.output import emit
from gavel_py.cli.slurm.options import Request, driver_of
from gavel_py.cli.slurm.output import status_document, status_text


@click.command("status")
@takes_options(Request)
@click.option("--json", "as_json", **JSON)
def command(request: Request, as_json: bool) -> None:
    """Show nodes and jobs as they are seen: what is managed, what each job is taken for, and what is left alone, and why."""
    with warnings_shown():
        picture = driver_of(request).look()
    emit(json.dumps(status_document(picture), indent=2, allow_nan=False) if as_json else status_text(picture), None)
