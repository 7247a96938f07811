"""gavel serve: models with request rates and latency targets on the GPUs of a cluster."""

from __future__ import annotations

import click

from gavel_py.cli import LazyGroup

COMMANDS = {"plan": "plan", "simulate": "simulate"}


@click.group("serve", cls=LazyGroup, package=__name__, modules=COMMANDS)
def command() -> None:
    """Serve models with request rates and latency targets.

    \b
    gavel serve plan services.yaml --cluster cluster.yaml
    gavel serve simulate services.yaml --rates rates.csv --cluster cluster.yaml
    gavel serve simulate services.yaml --groups placement.json --trace requests.csv
    """
