"""gavel slurm report: metrics of a run on a Slurm cluster, from its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.inputs import FILE, INPUT, JSON
from gavel_py.cli.output import counted, emit, json_text, number
from gavel_py.cli.tables import Column, table_text

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
@click.option("--html", type=FILE, metavar="FILE", help="Also write a page with charts to this file.")
def command(log: Path, as_json: bool, html: Path | None) -> None:
    """Show what became of the jobs of a run.

    Shows completion times, queueing and utilisation, as for a simulation; of a run with --shadow, beside those of Slurm. LOG is the
    log.jsonl of the run, or the directory of its --state, with the logs that were rotated there.
    """
    comparison = gp.slurm_comparison(log)
    runs = [gp.slurm_run(log)] if comparison is None else [comparison.slurm, comparison.shadow]
    if html is not None:
        gp.write_report(runs, html)
        click.echo(f"The report is in {html}", err=True)
    if as_json:
        emit(json_text(_document(runs[0]) if comparison is None else _comparison_document(comparison)), None)
    else:
        emit(_text(runs[0]) if comparison is None else _comparison_text(comparison), None)


def _document(run: gp.Run) -> dict[str, Any]:
    return {"labels": dict(run.labels), "metrics": dict(run.metrics)}


def _comparison_document(comparison: gp.SlurmComparison) -> dict[str, Any]:
    counts = {name: getattr(comparison, name) for name in ("both", "only_slurm", "only_shadow", "slowness")}
    tenants = {name: figures._asdict() for name, figures in comparison.tenants.items()}
    return {"slurm": _document(comparison.slurm), "shadow": _document(comparison.shadow), **counts, "tenants": tenants}


COMPARED = (
    *("mean_jct_seconds", "median_jct_seconds", "p99_jct_seconds", "makespan_seconds", "mean_queueing_seconds"),
    *("utilization", "preemptions"),
)
"""Metrics that a shadow and Slurm have in common."""

GPU_HOUR = 3600.0

TOLERATED = 0.1
"""Relative deviation of run times from those implied by steps and profile, above which the report warns."""


def _comparison_text(comparison: gp.SlurmComparison) -> str:
    """Return tables that compare what Slurm did with what the shadow would have done."""
    both = comparison.slurm, comparison.shadow
    head = f"{counted(comparison.both, 'job')} finished in both"
    head += f", {comparison.only_slurm} only in Slurm, {comparison.only_shadow} only in the shadow"
    rows = [
        [label, *(number(None if value is None else value * factor) for value in values), _change(*values)]
        for name, (label, factor) in ((name, SHOWN[name]) for name in COMPARED)
        for values in [[run.metrics.get(name) for run in both]]
    ]
    tenants = [
        [
            *(name or "-", str(each.jobs), number(each.slurm_jct_seconds), number(each.shadow_jct_seconds)),
            _change(each.slurm_jct_seconds, each.shadow_jct_seconds),
            *(number(seconds / GPU_HOUR) for seconds in (each.slurm_gpu_seconds, each.shadow_gpu_seconds)),
        ]
        for name, each in comparison.tenants.items()
    ]
    columns = [Column("tenant", "name"), Column("jobs"), Column("Slurm (s)"), Column("shadow (s)"), Column("change")]
    columns += [Column("Slurm (GPU-h)", optional=1), Column("shadow (GPU-h)", optional=1)]
    policy = str(comparison.shadow.labels["policy"])
    parts = [
        table_text(head, ["metric", "Slurm", f"shadow ({policy})", "change"], rows),
        table_text("Completion time, mean, and GPU time of all jobs, by tenant", columns, tenants) if tenants else "",
    ]
    slowness = comparison.slowness
    if slowness is not None and abs(slowness - 1) > TOLERATED:
        where = "too fast" if slowness > 1 else "too slow"
        parts.append(
            f"In Slurm, the median job took {slowness:.3g} times as long as steps and profile predict.\n"
            f"Jobs that the shadow ended before Slurm ran {where} by the same factor.\n"
        )
    return "\n".join(part for part in parts if part)


def _change(slurm: float | None, shadow: float | None) -> str:
    return "-" if not slurm or shadow is None else f"{shadow / slurm - 1:+.1%}"


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
        tables.append(
            table_text("Part of their time in the system for which jobs held GPUs, by GPU type", ["job type", *names], shares)
        )
    return "\n".join(tables)
