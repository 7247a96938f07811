"""gavel sweep: a grid of simulations or static solves, run by many processes.

Options override keys of the spec (`_changes`). Progress is a bar on a terminal, and lines at intervals elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import click

import gavel_py as gp
from gavel_py.cli import INTERRUPTED, estimates, inputs
from gavel_py.cli.files import InputFile, claim_file
from gavel_py.cli.inputs import FILE, INPUT_OR_TEXT, Duration, argument, main_option, option, warnings_shown
from gavel_py.cli.output import counted, metric_row, progress_bar, time_text, unused_text
from gavel_py.cli.simulate.files import CellType, write_tenants_file
from gavel_py.cli.simulate.options import MEASURE_JOBS, load_text
from gavel_py.cli.simulate.runner import interruptible
from gavel_py.cli.tables import Column, ComparisonRow, comparison_text, table_text, wrapped
from gavel_py.cli.trace.files import COLUMNS, FILL, naming
from gavel_py.cli.usage import check_value, refuse

ShowProgress = Callable[["gp.Progress"], None]
Row = Mapping[str, str | float | None]

MESSAGE = b"\nFinishing the cells in progress; press Ctrl-C again to stop immediately.\n"
LINE_SECONDS = 10.0
"""Shortest time between two lines of progress in a pipe or a file."""


@contextmanager
def _progress(wanted: bool) -> Iterator[ShowProgress]:
    """Show the progress on standard error if requested."""
    if not wanted:
        yield lambda progress: None  # noqa: ARG005
    elif sys.stderr.isatty():
        with progress_bar("", 0.0) as show:
            yield lambda progress: show(
                lambda: ((progress.done + progress.failed) / max(1, progress.total), progress_text(progress)), not progress.left
            )
    else:
        yield _lines()


def progress_text(progress: gp.Progress) -> str:
    """Return the progress as a line."""
    parts = [
        f"{progress.done:,} of {progress.total:,} cells done",
        f"{progress.failed:,} failed",
        f"{progress.left:,} left",
        "" if progress.rate is None else f"{progress.rate:.3g} cells/s",
        "" if not progress.left or progress.seconds_left is None else f"ends in {time_text(progress.seconds_left)}",
    ]
    return " · ".join(part for part in parts if part)


def _lines() -> ShowProgress:
    """Return a function that prints lines of progress: at the beginning, every `LINE_SECONDS`, and at the end."""
    due = 0.0

    def show(progress: gp.Progress) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due or (not progress.left and due < math.inf):
            due = now + LINE_SECONDS if progress.left else math.inf
            click.echo(progress_text(progress), err=True)

    return show


AXES = {
    "policy": "policies",
    "trace": "traces",
    "load": "jobs per hour",
    "cluster": "clusters",
    "seed": "seeds",
    "round_seconds": "round length",
    "measure_jobs": "measured jobs",
}

MAX_ERRORS = 5
MAX_ROWS = 60


def _grid_text(plan: gp.SweepPlan, workers: int | None, *, retry_failed: bool) -> str:
    """Return the axes of the grid, the number of stored cells, and the estimated time for the other cells."""
    lines = []
    for axis, title in AXES.items():
        values = dict.fromkeys(labels.get(axis) for labels in plan.labels)
        shown = [_text(value) for value in values if value is not None]
        unit = " s" if axis == "round_seconds" else ""
        lines += [f"{title}: {', '.join(shown)}{unit}"] if shown else []
    more = f", and {plan.yardsticks} of the policy isolated for comparison" if plan.yardsticks else ""
    lines.append(f"cells: {len(plan) - plan.yardsticks:,}{more}; {len(plan.labels):,} points of the grid")
    kept = plan.kept()
    if any(kept.values()):
        lines.append(f"stored in {plan.results}: {kept['done']:,} done, {kept['failed']:,} failed")
    estimate = plan.estimate(workers, retry_failed=retry_failed)
    if estimate.cell_seconds:
        on = counted(estimate.workers, "process") if estimate.workers == 1 else f"{estimate.workers} processes"
        lines.append(f"estimate: {time_text(estimate.seconds)} on {on}, {time_text(estimate.cell_seconds)} sequentially")
    lines.append(f"basis: {estimate.basis}")
    return wrapped(lines) + _remarks(plan)


def _remarks(plan: gp.SweepPlan) -> str:
    fixed = [f"nothing is random in {counted(plan.fixed, 'cell')}: run once, not with each seed"] if plan.fixed else []
    return wrapped(fixed) + "".join(f"cluster {label}: {unused_text(gpus)}" for label, gpus in plan.unused_gpus.items())


def _ended_text(plan: gp.SweepPlan, rows: Sequence[Row]) -> str:
    """Return a table of means over seeds, and the errors of failed cells."""
    done = [row for row in rows if row["status"] == "done"]
    failed = [row for row in rows if row["status"] == "failed"]
    lines = []
    for row in failed[:MAX_ERRORS]:
        cell = ", ".join(f"{axis} {row[axis]}" for axis in AXES if row.get(axis) is not None)
        lines.append(f"{cell} failed: {str(row['error']).splitlines()[-1]}")
    if len(failed) > MAX_ERRORS:
        lines.append(f"... and {len(failed) - MAX_ERRORS:,} more cells; --export has all in the column error")
    return (_means(plan, done) if done else "") + _remarks(plan) + wrapped(lines)


def _means(plan: gp.SweepPlan, rows: Sequence[Row]) -> str:
    """Return means over seeds: a comparison of policies, or a row for each point of the axes that have several values."""
    axes = [axis for axis in AXES if axis != "seed" and len({labels.get(axis) for labels in plan.labels}) > 1] or ["policy"]
    groups: dict[tuple[str | float | None, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[axis] for axis in axes), []).append(row)
    shown = sorted(
        (metric for metric in gp.METRICS.values() if metric.short and any(row.get(metric.name) is not None for row in rows)),
        key=lambda metric: metric.quantity == "count",
    )
    is_marked = axes == ["policy"]
    figures = [_figure(metric, [_mean(metric.name, group) for group in groups.values()], is_marked=is_marked) for metric in shown]
    if is_marked:
        counts = ComparisonRow("cells", [len(group) for group in groups.values()], "{:.0f}".format)
        return comparison_text("Means over the cells", [_text(key[0]) for key in groups], [*figures, counts], marked="best mean")
    columns = [Column(AXES[axis] if axis == "load" else axis, "name", is_key=True) for axis in axes]
    columns += [Column("cells"), *(Column(figure.label) for figure in figures)]
    lines = [
        [*map(_text, key), str(len(group)), *(figure.cells()[i] for figure in figures)]
        for i, (key, group) in enumerate(groups.items())
    ]
    cut = f"... and {len(lines) - MAX_ROWS:,} more lines; --export has all cells\n" if len(lines) > MAX_ROWS else ""
    return table_text("Means over the cells", columns, lines[:MAX_ROWS]) + cut


def _tenants_text(runs: Sequence[gp.Run]) -> str:
    """Return the part of the GPUs that each top-level tenant got under each policy; means over the cells."""
    found: dict[str, dict[str, list[gp.TenantShare]]] = {}
    for run in runs:
        for each in run.tenants:
            if not each.parent:
                found.setdefault(each.tenant, {}).setdefault(str(run.labels.get("policy")), []).append(each)
    if not any(found):
        return ""
    policies = list(dict.fromkeys(policy for by_policy in found.values() for policy in by_policy))
    rows = [
        [
            tenant or "(none)",
            *(f"{fmean(each.gpu_share for each in by_policy[name]):.1%}" if name in by_policy else "-" for name in policies),
        ]
        for tenant, by_policy in sorted(found.items())
    ]
    cut = f"... and {len(rows) - MAX_ROWS:,} more tenants: --tenants-out\n" if len(rows) > MAX_ROWS else ""
    columns = [Column("tenant", "name", is_key=True), *map(Column, policies)]
    return "\n" + table_text("Tenants' part of the GPUs, means over the cells", columns, rows[:MAX_ROWS]) + cut


def _figure(metric: gp.Metric, values: list[float | None], *, is_marked: bool) -> ComparisonRow:
    of_means = metric if metric.quantity in ("share", "time") else dataclasses.replace(metric, quantity="number")
    return metric_row(of_means, values, label=metric.short, is_marked=is_marked)


def _mean(name: str, rows: Sequence[Row]) -> float | None:
    values = [value for row in rows if isinstance(value := row.get(name), int | float)]
    return fmean(values) if values else None


def _text(value: str | float | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:g}"


MAX_SEEDS = 100_000


def _seeds(text: str) -> range:
    found = re.fullmatch(r"\s*(0|[1-9][0-9]{0,8})\s*(?:-\s*(0|[1-9][0-9]{0,8})\s*)?", text)
    seeds = range(0) if found is None else range(int(found[1]), int(found[2] or found[1]) + 1)
    check_value(text, 0 < len(seeds) <= MAX_SEEDS, "is neither a seed nor a range of seeds, as in 0-4")
    return seeds


POSITIVE = click.FloatRange(0, min_open=True)


@dataclass(frozen=True)
class SweepOptions:
    """The options, as typed."""

    spec: Path | None = argument("[SPEC]", type=InputFile(in_place=True, suffix=".yaml"), required=False)
    mode: str | None = option("Input", type=click.Choice(["simulate", "solve"]), help="Simulations, or static solves [simulate].")
    policies: tuple[str, ...] = main_option(
        "Policy", "--policy", "-p", metavar="NAME[,OPTION=VALUE...]", help="Policy to run; repeatable."
    )
    traces: tuple[str, ...] = main_option(
        "Input", "--trace", type=INPUT_OR_TEXT, metavar="FILE", help="Trace of any format; repeatable."
    )
    jobs: int | None = main_option(
        "Input", type=click.IntRange(min=1), metavar="N", help="Jobs in a trace generated for each load and seed."
    )
    columns: tuple[str, ...] = option("Input", **COLUMNS)
    fill: tuple[str, ...] = option("Input", **FILL)
    loads: tuple[str, ...] = main_option(
        "Input",
        "--load",
        type=load_text,
        metavar="X|Xx",
        help="Jobs per hour of generated traces, or factor of recorded ones: 1.5x; repeatable.",
    )
    clusters: tuple[str, ...] = main_option(
        "Input", "--cluster", "-c", type=INPUT_OR_TEXT, metavar="FILE|SPEC", help="Cluster, as for gavel simulate; repeatable."
    )
    seeds: tuple[range, ...] = main_option("Input", "--seed", type=_seeds, metavar="N|N-M", help="Seeds of all random choices [0].")
    round_seconds: tuple[float, ...] = option(
        "Rounds", type=Duration(0, min_open=True), metavar="S", help="Length of rounds; repeatable [360]."
    )
    profile: str | None = main_option("Input", **inputs.PROFILE, help="Profile of speeds by job type [gavel-osdi20].")
    estimate: str | None = option("Input", **estimates.ESTIMATE)
    confidence: estimates.Confidence = option("Input", **estimates.CONFIDENCE)
    extrapolate: bool = option("Input", **estimates.EXTRAPOLATE)
    fairness: bool | None = option(
        "Output", "--fairness/--no-fairness", default=None, help="Compare jobs with their times under isolated [no]."
    )
    measure_jobs: tuple[int, int] | None = option("Output", **MEASURE_JOBS)
    allow_unknown_types: bool = option("Input", **inputs.ALLOW_UNKNOWN)
    results: str | None = main_option("Output", metavar="FILE", help="SQLite file of the cells, to continue from.")
    engine: Literal["local", "dask"] = option("Run", default="local", show_default=True, help="Where cells run: here or on Dask.")
    scheduler: str | None = option("Run", metavar="ADDRESS", help="Address of a Dask scheduler [start one on this computer].")
    workers: int | None = option("Run", type=click.IntRange(min=1), metavar="N", help="Processes on this computer [all cores].")
    dry_run: bool = main_option("Run", help="Show the grid and how long it will take, without running it.")
    retry_failed: bool = option("Run", help="Run failed cells again.")
    export: tuple[Path, ...] = main_option("Output", type=FILE, metavar="FILE", help="Write cells to this .csv or .parquet file.")
    tenants_out: Path | None = option("Output", type=FILE, metavar="FILE", help="With --results: write tenants by cell to a file.")
    with_progress: bool = option("Output", "--progress/--no-progress", default=True, help="Show progress on standard error [yes].")


def _changes(request: SweepOptions) -> dict[str, Any]:
    """Return the keys of a spec that the options replace, with their values."""
    named = {name: value for name, value in naming(request.columns, request.fill).items() if value}
    traces: list[Any] = [
        *({"file": file, **named} if named else file for file in request.traces),
        *([{"generate": {"jobs": request.jobs}}] if request.jobs else []),
    ]
    seeds = [seed for each in request.seeds for seed in each]
    names = ("policies", "loads", "clusters", "round_seconds")
    lists = {name: list(getattr(request, name)) for name in names} | {"traces": traces, "seeds": seeds}
    single = {name: getattr(request, name) for name in ("mode", "profile", "fairness", "measure_jobs", "results")}
    single |= {name: getattr(request, name) for name in ("estimate", "confidence")}
    single |= {name: getattr(request, name) or None for name in ("allow_unknown_types", "extrapolate")}
    return {key: value for key, value in lists.items() if value} | {k: v for k, v in single.items() if v is not None}


@click.command("sweep", cls=inputs.Command)
@inputs.takes_options(SweepOptions)
@click.pass_context
def command(context: click.Context, request: SweepOptions) -> None:
    """Run a grid of simulations or solves on all cores.

    Each policy is run on each trace, load, cluster and seed, and each cell is stored as it ends. SPEC is a YAML file, or "-" for
    standard input, with the keys mode, policies, traces, loads, clusters, seeds, round_seconds, fairness, measure_jobs, settings
    and results; options replace them. The same command continues where it stopped, after Ctrl-C and after any failure.

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
        plan = gp.plan_sweep(request.spec or {}, **_changes(request))
    refuse((request.tenants_out is not None and plan.results is None, "--tenants-out reads the stored cells; add --results FILE"))
    _claim_files(context, plan)
    if request.dry_run:
        click.echo(_grid_text(plan, request.workers, retry_failed=request.retry_failed), nl=False)
        return
    with (
        warnings_shown(),
        interruptible(MESSAGE) as interrupt,
        _progress(request.with_progress) as show,
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


def _check(request: SweepOptions) -> None:
    has_grid = request.spec is not None or (request.policies and (request.traces or request.jobs) and request.clusters)
    has_scheduler = request.scheduler is not None
    refuse(
        (has_scheduler and request.engine != "dask", "--scheduler is the address of a Dask scheduler; add --engine dask"),
        (
            has_scheduler and request.workers is not None,
            "--workers sets the number of local processes, but the cluster of --scheduler has its own; omit it",
        ),
        (not has_grid, "give a SPEC file, or at least --policy, --trace or --jobs, and --cluster"),
    )
    refuse(
        ((request.columns or request.fill) and not request.traces, "--columns and --fill are about the files of --trace; add one")
    )
    for path in (*request.export, *([] if request.tenants_out is None else [request.tenants_out])):
        gp.check_table(path)


def _claim_files(context: click.Context, plan: gp.SweepPlan) -> None:
    """Raise `UsageError` if a file that the spec names would be overwritten, or would overwrite another."""
    for path in plan.inputs:
        claim_file(context, "a file of the sweep", path, writes=False)
    if plan.results is not None:
        claim_file(context, "the results", plan.results, writes=True)


def _write_tenants(path: Path, runs: Sequence[gp.Run]) -> None:
    """Write the labels of each run with each of its tenants; types that a cluster lacks have 0 GPUs."""
    types = list(dict.fromkeys(name for run in runs for each in run.tenants for name in each.gpus))
    labels: dict[str, CellType] = {axis: "number" if axis in ("load", "seed", "round_seconds") else "text" for axis in AXES}
    rows = [([run.labels.get(axis) for axis in AXES], [_with_types(each, types) for each in run.tenants]) for run in runs]
    write_tenants_file(path, labels, types, rows)


def _with_types(tenant: gp.TenantShare, types: Sequence[str]) -> gp.TenantShare:
    gpus, shares = ({name: found.get(name, 0.0) for name in types} for found in (tenant.gpus, tenant.gpu_shares))
    return dataclasses.replace(tenant, gpus=gpus, gpu_shares=shares)


def _print(
    context: click.Context,
    request: SweepOptions,
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
        runs = [] if plan.results is None else gp.read_runs(plan.results)
        if request.tenants_out is not None:
            _write_tenants(request.tenants_out, runs)
        click.echo(_ended_text(plan, rows) + _tenants_text(runs), nl=False)
    if plan.results is not None:
        state = f"{kept['done']} done, {kept['failed']} failed, {left} left; results in {plan.results}"
        click.echo(f"{counted(len(plan), 'cell')}: {state}", err=True)
    if interrupted:
        if plan.results is not None and left:
            click.echo("The same command continues from here.", err=True)
        context.exit(INTERRUPTED)
    if rows is not None and any(row["status"] == "failed" for row in rows):
        context.exit(1)
