"""gavel slurm status: a Slurm cluster and its queue, as the driver sees them."""

from __future__ import annotations

import json

import click

from gavel_py.cli.inputs import warnings_shown
from gavel_py.cli.output import emit
from gavel_py.cli.slurm.options import Request, driver_of, plan_options
from gavel_py.cli.slurm.output import status_document, status_text


@click.command("status")
@plan_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def command(request: Request, as_json: bool) -> None:
    """Show nodes and jobs as they are seen: what is managed, what each job is taken for, and what is left alone, and why."""
    with warnings_shown():
        picture = driver_of(request).look()
    emit(json.dumps(status_document(picture), indent=2, allow_nan=False) if as_json else status_text(picture), None)
