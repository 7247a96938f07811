"""The options of gavel simulate, as one record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from gavel_py.cli.inputs import Common, Option, bundled, common_options, output_options, round_option
from gavel_py.cli.sharing import min_gain_option, sharing_option
from gavel_py.cli.simulate.times import time_option
from gavel_py.cli.trace.files import format_option, strict_option
from gavel_py.errors import decimal_hint

__all__ = ["Request", "measure_option", "simulation_options"]

RECORDED = "recorded"
FILE = click.Path(path_type=Path)
OUT = click.Path(path_type=Path, dir_okay=False)
HOURS = click.FloatRange(0, min_open=True)
SECONDS = click.FloatRange(0)


@dataclass(frozen=True)
class Request(Common):
    """What the options say, as typed."""

    trace_file: Path
    format_name: str | None
    strict: bool
    extrapolate: bool
    events: bool
    restart_seconds: float
    min_run_seconds: float
    solve_seconds: float
    mechanism: Literal["deficit", "priority"]
    sharing: bool
    min_gain: float | None
    interference: float
    node_mtbf: float | None
    node_repair: float | None
    maintenance: tuple[str, ...]
    job_failures: float | Literal["recorded"]
    checkpoint_seconds: float | None
    estimates: Literal["exact", "recorded"]
    until_seconds: float | None
    measure_jobs: tuple[int, int] | None
    seed: int
    jobs_out: Path | None
    timeline_out: Path | None
    run_out: Path | None
    save_state: Path | None
    state_every: str | None
    continue_from: Path | None
    with_progress: bool


def _window(text: str) -> tuple[int, int] | None:
    """Return the window of jobs that a text such as 4000:5000 stands for."""
    parts = re.fullmatch(r"\s*(0|[1-9][0-9]{0,8})\s*:\s*(0|[1-9][0-9]{0,8})\s*", text)
    if parts is None or int(parts[1]) >= int(parts[2]):
        form = "is not of the form FIRST:END, with FIRST before END, as in 4000:5000 for the jobs 4,000 to 4,999 by arrival"
        raise click.BadParameter(f"{text!r} {form}")
    return int(parts[1]), int(parts[2])


measure_option: Option = click.option(
    "--measure-jobs",
    type=_window,
    metavar="FIRST:END",
    help="Measure these jobs, by arrival from 0, END not included; others arrive until they have ended [all jobs].",
)


def _job_failures(text: str) -> float | str:
    """Return a probability, or "recorded"."""
    if text == RECORDED:
        return RECORDED
    try:
        part = -1.0 if decimal_hint(text) else float(text)
    except ValueError:
        part = -1.0
    if not 0 <= part < 1:
        problem = f"is neither a probability of at least 0 and below 1 nor {RECORDED!r}{decimal_hint(text)}"
        raise click.BadParameter(f"{text!r} {problem}")
    return part


OPTIONS: tuple[Option, ...] = (
    click.argument("trace_file", metavar="TRACE", type=FILE),
    *common_options,
    round_option,
    click.option("--events", is_flag=True, help="Decide when jobs arrive or end, and not in rounds; for ordered policies."),
    click.option("--restart-seconds", type=SECONDS, default=0.0, show_default=True, metavar="S", help="What a start costs a job."),
    click.option("--min-run-seconds", type=SECONDS, default=0.0, show_default=True, metavar="S", help="No preemption before."),
    click.option(
        "--solve-seconds",
        type=SECONDS,
        default=0.0,
        show_default=True,
        metavar="S",
        help="No other allocation before, if only jobs change.",
    ),
    click.option(
        "--mechanism",
        type=click.Choice(["deficit", "priority"]),
        default="deficit",
        show_default=True,
        help="Who runs in a round; priority: as published.",
    ),
    sharing_option,
    min_gain_option,
    click.option(
        "--interference",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.0,
        show_default=True,
        metavar="P",
        help="Part of its speed that a job with a part of a GPU loses to each other one there.",
    ),
    click.option("--node-mtbf", type=HOURS, metavar="HOURS", help="Mean time between the failures of a node."),
    click.option("--node-repair", type=HOURS, metavar="HOURS", help="Mean time that its repair takes."),
    click.option(
        "--maintenance",
        multiple=True,
        metavar="FILE|NODE:START:END",
        help="When a node is down: v100-0:24h:30h, or a .csv of node,start_seconds,end_seconds; may be given several times.",
    ),
    click.option(
        "--job-failures", type=_job_failures, default="0", metavar="P|recorded", help="How likely an attempt of a job fails [0]."
    ),
    click.option(
        "--checkpoint-seconds",
        type=click.FloatRange(0, min_open=True),
        metavar="S",
        help="Work between two checkpoints of a job [as rounds begin; with --events 360].",
    ),
    click.option(
        "--estimates",
        type=click.Choice(["exact", RECORDED]),
        default="exact",
        show_default=True,
        help="What policies know of durations.",
    ),
    click.option("--until", "until_seconds", type=time_option, metavar="TIME", help="Stop then, in seconds, or as in 12h, 7d."),
    measure_option,
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of all that is random."),
    click.option("--extrapolate", is_flag=True, help="Estimate the throughputs of gangs that the profile lacks."),
    format_option,
    strict_option,
    *output_options,
    click.option("--jobs-out", type=OUT, metavar="FILE", help="Write a line for each job there when it leaves: .csv or .parquet."),
    click.option("--timeline-out", type=OUT, metavar="FILE", help="Write a line for each round there: .csv or .parquet."),
    click.option(
        "--run-out", type=OUT, metavar="FILE", help="Write there what reports and pictures show: .json, read by read_runs."
    ),
    click.option("--save-state", type=OUT, metavar="FILE", help="Write the state there now and then, and on Ctrl-C."),
    click.option("--state-every", metavar="TIME|Nrounds", help="How often: 90s, 10min, 500rounds [10min]."),
    click.option("--continue", "continue_from", type=OUT, metavar="FILE", help="Go on from the state that --save-state wrote."),
    click.option("--progress/--no-progress", "with_progress", default=True, help="Show on a terminal how far it is [yes]."),
)

simulation_options = bundled(Request, OPTIONS)
"""Gives a command all of these, as one `Request`."""
