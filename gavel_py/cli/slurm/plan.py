"""gavel slurm plan: the next round on a Slurm cluster, with reasons, without effect on the cluster."""

from __future__ import annotations

import json

import click

from gavel_py.cli.inputs import JSON, takes_options, warnings_shown
from gavel_py.cli.output import emit
from gavel_py.cli.slurm.options import Request, driver_of
from gavel_py.cli.slurm.output import plan_document, plan_text


@click.command("plan")
@takes_options(Request)
@click.option("--json", "as_json", **JSON)
def command(request: Request, as_json: bool) -> None:
    """Show what the next round would do, and why. Nothing is changed, and nothing is written."""
    with warnings_shown():
        decided = driver_of(request).plan()
    emit(json.dumps(plan_document(decided), indent=2, allow_nan=False) if as_json else plan_text(decided), None)
