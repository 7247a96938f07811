"""gavel sweep: a grid of simulations or static solves, run by many processes."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.inputs import takes_options, warnings_shown
from gavel_py.cli.output import counted
from gavel_py.cli.simulate.runner import INTERRUPTED, interruptible
from gavel_py.cli.sweep.output import Request, changes_of, ended_text, grid_text, progress

MESSAGE = b"\nEnding after the cells that have begun; press Ctrl-C again to end at once.\n"


@click.command("sweep")
@takes_options(Request)
@click.pass_context
def command(context: click.Context, request: Request) -> None:
    """Play each policy on each trace, load, cluster and seed, on all cores, and store each cell as it ends.

    SPEC is a YAML file with the keys mode, policies, traces, loads, clusters, seeds, round_seconds, fairness, measure_jobs,
    settings and results; options replace what it says. The same command goes on where it stopped, after Ctrl-C and any failure.

    \b
    gavel sweep sweep.yaml --dry-run
    gavel sweep sweep.yaml --export cells.csv
    gavel sweep -p fifo -p max_min_fairness --jobs 500 --load 1 --load 2 -c v100:36,k80:36 --seed 0-2 --results cells.sqlite
    gavel sweep sweep.yaml --engine dask --scheduler tcp://10.0.0.1:8786
    """
    _check(request)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # modules with policies of the user, which the processes import as well
    with warnings_shown():
        plan = gp.plan_sweep(request.spec or {}, **changes_of(request))
    if request.dry_run:
        click.echo(grid_text(plan, request.workers, retry_failed=request.retry_failed), nl=False)
        return
    with (
        warnings_shown(),
        interruptible(MESSAGE) as interrupt,
        progress(request.with_progress) as show,
        gp.dask_executor(request.scheduler, request.workers) if request.engine == "dask" else nullcontext() as executor,
    ):
        try:
            rows = plan.play(
                executor,
                workers=request.workers,
                retry_failed=request.retry_failed,
                on_progress=show,
                is_stopped=lambda: interrupt.requested,
            )
        except KeyboardInterrupt:
            rows = None  # a second Ctrl-C
    _print(context, request, plan, rows, interrupted=interrupt.requested)


def _check(request: Request) -> None:
    if request.scheduler is not None and request.engine != "dask":
        raise click.UsageError("--scheduler names that of a Dask cluster; give --engine dask with it")
    if request.scheduler is not None and request.workers is not None:
        raise click.UsageError(
            "--workers says how many processes to begin, and the cluster of --scheduler has its own; leave it out"
        )
    if request.spec is None and not (request.policies and (request.traces or request.jobs) and request.clusters):
        raise click.UsageError("give a SPEC file, or at least --policy, --trace or --jobs, and --cluster")
    for path in request.export:
        gp.check_table(path)


def _print(
    context: click.Context,
    request: Request,
    plan: gp.SweepPlan,
    rows: list[dict[str, str | float | None]] | None,
    *,
    interrupted: bool,
) -> None:
    kept = plan.kept()
    left = len(plan) - sum(kept.values())
    if rows is not None:
        for path in request.export:
            gp.write_table(path, rows)
        click.echo(ended_text(plan, rows), nl=False)
    if plan.results is not None:
        state = f"{kept['done']} done, {kept['failed']} failed, {left} left; results in {plan.results}"
        click.echo(f"{counted(len(plan), 'cell')}: {state}", err=True)
    if interrupted:
        if plan.results is not None and left:
            click.echo("The same command goes on from here.", err=True)
        context.exit(INTERRUPTED)
    if rows is not None and any(row["status"] == "failed" for row in rows):
        context.exit(1)
