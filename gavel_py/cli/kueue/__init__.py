"""gavel kueue: who holds what and who waits in a cluster with Kueue, why, and what would help."""

from __future__ import annotations

import click

from gavel_py.cli import LazyGroup

COMMANDS = {name: name for name in ("show", "explain", "advise")}


@click.group("kueue", cls=LazyGroup, package=__name__, modules=COMMANDS)
def command() -> None:
    """Explain a Kubernetes cluster with Kueue, and advise.

    Nothing in the cluster is changed.

    \b
    kubectl get clusterqueues,cohorts,resourceflavors,localqueues,workloads,jobs -A -o json > state.json
    gavel kueue show state.json
    gavel kueue explain state.json team-a/job-train-1
    gavel kueue advise state.json --profile speeds.csv --out advice.sh
    """
