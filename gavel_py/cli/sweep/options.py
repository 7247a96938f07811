"""The options of gavel sweep, as one record, and what they change of a spec."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from gavel_py.cli.inputs import Option, bundled
from gavel_py.cli.simulate.options import measure_option

__all__ = ["Request", "changes_of", "sweep_options"]

FILE = click.Path(path_type=Path, dir_okay=False)
MOST_SEEDS = 100_000


@dataclass(frozen=True)
class Request:
    """What the options say, as typed."""

    spec: Path | None
    mode: str | None
    policies: tuple[str, ...]
    traces: tuple[str, ...]
    jobs: int | None
    loads: tuple[float, ...]
    clusters: tuple[str, ...]
    seeds: tuple[range, ...]
    round_seconds: tuple[float, ...]
    profile: str | None
    fairness: bool | None
    measure_jobs: tuple[int, int] | None
    allow_unknown_types: bool
    results: str | None
    engine: Literal["local", "dask"]
    scheduler: str | None
    workers: int | None
    dry_run: bool
    retry_failed: bool
    export: tuple[Path, ...]
    with_progress: bool


def _seeds(text: str) -> range:
    """Return the seeds of a text such as 3 or 0-4."""
    found = re.fullmatch(r"\s*(0|[1-9][0-9]{0,8})\s*(?:-\s*(0|[1-9][0-9]{0,8})\s*)?", text)
    seeds = range(0) if found is None else range(int(found[1]), int(found[2] or found[1]) + 1)
    if not 0 < len(seeds) <= MOST_SEEDS:
        raise click.BadParameter(f"{text!r} is neither a seed nor a range of them, as in 0-4")
    return seeds


POSITIVE = click.FloatRange(0, min_open=True)
OPTIONS: tuple[Option, ...] = (
    click.argument("spec", metavar="[SPEC]", type=FILE, required=False),
    click.option("--mode", type=click.Choice(["simulate", "solve"]), help="Simulations, or static solves [simulate]."),
    click.option("--policy", "-p", "policies", multiple=True, metavar="NAME[,OPTION=VALUE...]", help="Of each cell."),
    click.option("--trace", "traces", multiple=True, metavar="FILE", help="A trace of any format, or jobs."),
    click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="A generated trace of N jobs, for each load and seed."),
    click.option("--load", "loads", multiple=True, type=POSITIVE, metavar="X", help="Jobs per hour of generated traces."),
    click.option("--cluster", "-c", "clusters", multiple=True, metavar="FILE|SPEC", help="As for gavel simulate."),
    click.option("--seed", "seeds", multiple=True, type=_seeds, metavar="N|N-M", help="Of all that is random [0]."),
    click.option("--round-seconds", multiple=True, type=POSITIVE, metavar="S", help="Lengths of rounds [360]."),
    click.option("--profile", metavar="NAME|FILE", help="Speeds by job type [gavel-osdi20]."),
    click.option("--fairness/--no-fairness", default=None, help="Compare each job with its time under the policy isolated [no]."),
    measure_option,
    click.option("--allow-unknown-types", is_flag=True, help="Leave GPUs unused whose type has no speeds, which is an error else."),
    click.option("--results", metavar="FILE", help="The SQLite file where cells are stored, and gone on from."),
    click.option("--engine", type=click.Choice(["local", "dask"]), default="local", show_default=True, help="Who plays the cells."),
    click.option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster that is there [begin one on this computer]."),
    click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes of this computer [all cores]."),
    click.option("--dry-run", is_flag=True, help="Show the grid, and how long it will take."),
    click.option("--retry-failed", is_flag=True, help="Play cells again that have failed."),
    click.option("--export", multiple=True, type=FILE, metavar="FILE", help="Write a line for each cell there: .csv or .parquet."),
    click.option("--progress/--no-progress", "with_progress", default=True, help="Tell how far it is [yes]."),
)


sweep_options = bundled(Request, OPTIONS)
"""Gives a command all of these, as one `Request`."""


def changes_of(request: Request) -> dict[str, Any]:
    """Return the keys of a spec that options replace."""
    traces: list[Any] = [*request.traces, *([{"generate": {"jobs": request.jobs}}] if request.jobs else [])]
    seeds = [seed for each in request.seeds for seed in each]
    lists = {
        "policies": list(request.policies),
        "traces": traces,
        "loads": list(request.loads),
        "clusters": list(request.clusters),
        "seeds": seeds,
        "round_seconds": list(request.round_seconds),
    }
    single = {name: getattr(request, name) for name in ("mode", "profile", "fairness", "measure_jobs", "results")}
    single["allow_unknown_types"] = request.allow_unknown_types or None
    return {key: value for key, value in lists.items() if value} | {k: v for k, v in single.items() if v is not None}
