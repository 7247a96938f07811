"""gavel slurm plan: what the next round on a Slurm cluster would be, and why."""

from __future__ import annotations

import json

import click

from gavel_py.cli.inputs import warnings_shown
from gavel_py.cli.output import emit
from gavel_py.cli.slurm.options import Request, driver_of, plan_options
from gavel_py.cli.slurm.output import plan_document, plan_text


@click.command("plan")
@plan_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def command(request: Request, as_json: bool) -> None:
    """Show what the next round would do, and why. Nothing is changed, and nothing is written."""
    with warnings_shown():
        decided = driver_of(request).plan()
    emit(json.dumps(plan_document(decided), indent=2, allow_nan=False) if as_json else plan_text(decided), None)
