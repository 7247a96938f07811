"""gavel slurm report: metrics of a run on a Slurm cluster, from its log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.inputs import FILE, INPUT, JSON
from gavel_py.cli.output import counted, emit, json_text, number
from gavel_py.cli.tables import Column, table_text


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
    counts = {name: getattr(comparison, name) for name in ("both", "only_slurm", "only_shadow", "slowness", "change")}
    counts |= {"assumed": dict(comparison.assumed), "knowing": None if comparison.knowing is None else dict(comparison.knowing)}
    tenants = {name: figures._asdict() for name, figures in comparison.tenants.items()}
    return {"slurm": _document(comparison.slurm), "shadow": _document(comparison.shadow), **counts, "tenants": tenants}


GPU_HOUR = 3600.0

TOLERATED = 0.1
"""Relative deviation of run times from those implied by steps and profile, above which the report warns."""


def _comparison_text(comparison: gp.SlurmComparison) -> str:
    """Return tables that compare what Slurm did with what the shadow would have done."""
    counts = f"{comparison.only_slurm} only in Slurm, {comparison.only_shadow} only in the shadow"
    knowing = comparison.knowing
    rows = [
        [label, *map(number, values[:2]), _change(*values[:2]), *map(number, values[2:])]
        for label, values in _metrics(
            [comparison.slurm.metrics, comparison.shadow.metrics, *([knowing] if knowing else [])], UNCOMMON
        )
    ]
    tenants = [
        [
            *(name or "-", str(each.jobs), number(each.slurm_jct_seconds), number(each.shadow_jct_seconds)),
            _change(each.slurm_jct_seconds, each.shadow_jct_seconds),
            *(number(seconds / GPU_HOUR) for seconds in (each.slurm_gpu_seconds, each.shadow_gpu_seconds)),
        ]
        for name, each in comparison.tenants.items()
    ]
    columns = [
        *(Column("tenant", "name"), Column("jobs"), Column("Slurm (s)"), Column("shadow (s)"), Column("change")),
        *(Column("Slurm (GPU-h)", optional=1), Column("shadow (GPU-h)", optional=1)),
    ]
    head = ["metric", "Slurm", f"shadow ({comparison.shadow.labels['policy']})", "change", *(["knowing users"] if knowing else [])]
    parts = [
        table_text(f"{counted(comparison.both, 'job')} finished in both, {counts}", head, rows),
        table_text("Completion time, mean, and GPU time of all jobs, by tenant", columns, tenants) if tenants else "",
    ]
    parts.append(_basis_text(comparison))
    slowness = comparison.slowness
    if slowness is not None and abs(slowness - 1) > TOLERATED:
        parts.append(
            f"In Slurm, the median job took {slowness:.3g} times as long as steps and profile predict.\n"
            f"Jobs that the shadow ended before Slurm ran too {'fast' if slowness > 1 else 'slow'} by the same factor.\n"
        )
    return "\n".join(part for part in parts if part)


def _basis_text(comparison: gp.SlurmComparison) -> str:
    """Return how sure the change of the mean is, what was assumed of starts, and who knowing users are."""
    sentences, assumed = list[str](), comparison.assumed
    if comparison.change is not None:
        sentences.append("The mean changes by {:+.1%} ± {:.1%} (95 % interval, from batches of jobs).".format(*comparison.change))
    if assumed:
        origin = f"as for {assumed['history']}" if assumed["history"] else "as on a test machine; --history takes those of a driver"
        loading = f"from {assumed['loading_from']}" if assumed["loading_from"] else "until ten jobs have finished in Slurm"
        sentences.append(f"Assumed of jobs: {assumed['stop']:g} s to stop and {assumed['start']:g} s to start ({origin}),")
        sentences.append(f"{assumed['loading']:g} s to load ({loading}).")
    if comparison.knowing:
        factor = f"over {comparison.knowing_factor:g} times as slow"
        sentences.append(f"Knowing users leave out GPU types on which their jobs are {factor};")
        sentences.append("a model of Slurm's backfill, without priorities, limits and reservations.")
    return f"{fill(' '.join(sentences), WIDTH)}\n" if sentences else ""


WIDTH = 80
UNITS = {"time": " (s)", "clock": " (s)", "share": " (%)"}
UNCOMMON = ("finished", "undelivered_share", "solver_seconds", "wall_seconds")
"""Metrics that a shadow and Slurm do not have in common: Slurm promises nothing, and its own computing time is not known."""


def _metrics(runs: Sequence[Mapping[str, float | None]], without: Collection[str] = ()) -> list[tuple[str, list[float | None]]]:
    """Return the label of each metric that the first run has, with a value for each run."""
    sizes = {name: 100.0 if metric.quantity == "share" else 1.0 for name, metric in gp.METRICS.items()}
    return [
        (
            (metric.label or metric.title) + UNITS.get(metric.quantity, ""),
            [None if (value := run.get(name)) is None else value * sizes[name] for run in runs],
        )
        for name, metric in gp.METRICS.items()
        if name in runs[0] and name not in without
    ]


def _change(slurm: float | None, shadow: float | None) -> str:
    return "-" if not slurm or shadow is None else f"{shadow / slurm - 1:+.1%}"


def _text(run: gp.Run) -> str:
    rows = [[label, number(value)] for label, (value,) in _metrics([run.metrics])]
    shares = [[job_type, *(f"{share:.1%}" for share in parts.values())] for job_type, parts in run.shares.items()]
    names = list(next(iter(run.shares.values()), {}))
    tables = [table_text("", ["metric", str(run.labels["policy"])], rows)]
    if shares and names:
        tables.append(
            table_text("Part of their time in the system for which jobs held GPUs, by GPU type", ["job type", *names], shares)
        )
    return "\n".join(tables)
