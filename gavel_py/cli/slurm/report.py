"""gavel slurm report: metrics of a run on a Slurm cluster, from its log."""

from __future__ import annotations

from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.inputs import INPUT, JSON, PATH
from gavel_py.cli.output import emit, json_text, number
from gavel_py.cli.tables import table_text

SHOWN = {
    "finished": ("jobs finished", 1.0),
    "mean_jct_seconds": ("completion time, mean (s)", 1.0),
    "median_jct_seconds": ("completion time, median (s)", 1.0),
    "p99_jct_seconds": ("completion time, 99 % (s)", 1.0),
    "makespan_seconds": ("makespan (s)", 1.0),
    "mean_queueing_seconds": ("queueing, mean (s)", 1.0),
    "utilization": ("utilisation (%)", 100.0),
    "undelivered_share": ("promised time not delivered (%)", 100.0),
    "preemptions": ("preemptions", 1.0),
    "solver_seconds": ("time to solve (s)", 1.0),
    "wall_seconds": ("total run time (s)", 1.0),
}


@click.command("report")
@click.argument("log", type=INPUT)
@click.option("--json", "as_json", **JSON)
@click.option("--html", type=PATH, metavar="FILE", help="Also write a page with charts to this file.")
def command(log: Path, as_json: bool, html: Path | None) -> None:
    """Show what became of the jobs of a run.

    Shows completion times, queueing and utilisation, as for a simulation. LOG is the log.jsonl of the run, or the directory of its
    --state.
    """
    run = gp.slurm_run(log / "log.jsonl" if log.is_dir() else log)
    if html is not None:
        gp.write_report([run], html)
        click.echo(f"The report is in {html}", err=True)
    if as_json:
        emit(json_text({"labels": dict(run.labels), "metrics": dict(run.metrics)}), None)
    else:
        emit(_text(run), None)


def _text(run: gp.Run) -> str:
    rows = [
        [label, number(None if value is None else value * factor)]
        for name, (label, factor) in SHOWN.items()
        for value in [run.metrics.get(name)]
    ]
    shares = [[job_type, *(f"{share:.1%}" for share in parts.values())] for job_type, parts in run.shares.items()]
    names = list(next(iter(run.shares.values()), {}))
    tables = [table_text("", ["metric", str(run.labels["policy"])], rows)]
    if shares and names:
        tables.append(table_text("Fraction of the time that jobs held GPUs, by type", ["job type", *names], shares))
    return "\n".join(tables)
