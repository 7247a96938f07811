"""The options of gavel simulate, and the scenario that they describe: trace, cluster, throughputs and events of nodes.

Times are typed as 90, 90s, 15min, 12h or 7d, and shown in the unit in which they are best read (`unit_of`). Nodes fail at random,
or are down in windows of maintenance, given as text or in files. `load` gives jobs their types and steps, and checks all inputs
before the simulation starts.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import click

import gavel_py as gp
from gavel_py.cli.inputs import (
    Common,
    Option,
    bundled,
    check_known,
    cluster_of,
    common_options,
    min_gain_of,
    min_gain_option,
    output_options,
    profile_of,
    round_option,
    sharing_option,
)
from gavel_py.cli.trace.files import format_option, read, strict_option
from gavel_py.errors import Fault, InputError, decimal_hint, together

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

SHOWN = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))

LEAST = 2
"""A unit is used from so many of it on: 90 minutes are easier to read than 1.5 hours."""


def seconds_of(text: str) -> float | None:
    """Return the seconds that a text such as 12h stands for, None if it is no time.

    >>> seconds_of("90"), seconds_of("1.5h"), seconds_of("tomorrow")
    (90.0, 5400.0, None)
    """
    parts = re.fullmatch(r"\s*([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if parts is None or parts[2] not in UNITS or decimal_hint(parts[1]):
        return None
    try:
        seconds = float(parts[1]) * UNITS[parts[2]]
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def unit_of(seconds: Iterable[float | None], largest: str = "hours") -> tuple[str, float]:
    """Return the name of the unit, up to this one, in which these times are best read, and its length in seconds."""
    most = max((abs(value) for value in seconds if value is not None), default=0.0)
    allowed = SHOWN[[name for name, _ in SHOWN].index(largest) :]
    return next(((name, length) for name, length in allowed if most >= LEAST * length), ("s", 1.0))


def time_text(seconds: float) -> str:
    """Return a time with its unit.

    >>> time_text(5400), time_text(86400 * 3.25)
    ('90 minutes', '3.25 days')
    """
    name, length = unit_of([seconds], "days")
    return f"{seconds / length:.3g} {name}"


def time_option(text: str) -> float:
    """Return the seconds that the text of an option stands for."""
    seconds = seconds_of(text)
    if seconds is None or seconds < 0:
        raise click.BadParameter(f"{text!r} is no time of at least 0; write seconds, or as 90s, 15min, 12h, 7d")
    return seconds


HOUR = 3600.0


def failures_of(mtbf_hours: float | None, repair_hours: float | None) -> gp.NodeFailures | None:
    """Return what --node-mtbf and --node-repair say; between two failures of a node lie a repair and the time that it is up."""
    if mtbf_hours is None and repair_hours is None:
        return None
    if mtbf_hours is None or repair_hours is None:
        raise click.UsageError("--node-mtbf and --node-repair go together: how often a node fails, and how long its repair takes")
    if repair_hours >= mtbf_hours:
        text = f"--node-repair {repair_hours:g} must be less than --node-mtbf {mtbf_hours:g}"
        raise click.UsageError(f"{text}, the mean time from one failure of a node to the next, in which it is repaired")
    return gp.NodeFailures((mtbf_hours - repair_hours) * HOUR, repair_hours * HOUR)


def maintenance_of(texts: Iterable[str]) -> list[gp.NodeWindow]:
    """Return the windows of all --maintenance options, each a file or NODE:START:END; faults of all come together."""
    windows: list[gp.NodeWindow] = []
    with together() as attempt:
        for text in texts:
            windows += attempt(partial(_windows, text)) or []
    return windows


def _windows(text: str) -> list[gp.NodeWindow]:
    if Path(text).suffix.lower() == ".csv" or Path(text).is_file():
        return list(gp.read_maintenance(text))
    node, *times = text.rsplit(":", 2)
    start, end = (seconds_of(time) for time in times) if len(times) == 2 else (None, None)
    if not node or start is None or end is None:
        form = "is neither a .csv file nor of the form NODE:START:END, as in v100-0:24h:30h"
        raise click.UsageError(f"--maintenance {text!r} {form}")
    return [gp.NodeWindow(node, start, end)]


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


@dataclasses.dataclass(frozen=True)
class Scenario:
    """All that the simulations of several policies have in common."""

    trace: gp.Trace
    cluster: gp.Cluster
    profile: gp.Profile
    node_failures: gp.NodeFailures | None
    maintenance: Sequence[gp.NodeWindow]


def load(request: Request) -> Scenario:
    """Read and check all inputs; faults of all files come together."""
    failures = failures_of(request.node_mtbf, request.node_repair)
    with together() as attempt:
        trace = attempt(lambda: read(request.trace_file, request.format_name, request.strict))
        cluster = attempt(lambda: cluster_of(request))
        profile = attempt(lambda: profile_of(request))
        windows = attempt(lambda: maintenance_of(request.maintenance))
    # What a simulation has left out when it began is no error when it goes on.
    allowed = request.allow_unknown_types or request.continue_from is not None
    cluster = cluster.known_to(profile, allow_unknown_types=allowed)
    trace, profile = _typed(trace, cluster, profile, request)
    with together() as attempt:
        attempt(partial(_check_ends, trace))
        attempt(lambda: _check_jobs(trace, cluster, profile, request))
    _warn(trace, request)
    return Scenario(trace, cluster, profile, failures, windows)


def _typed(trace: gp.Trace, cluster: gp.Cluster, profile: gp.Profile, request: Request) -> tuple[gp.Trace, gp.Profile]:
    """Give jobs without a type one of the profile, and steps, and the profile the gangs that it lacks if that is asked for."""
    if not isinstance(profile, gp.ThroughputProfile):
        if request.extrapolate:
            raise click.UsageError("--extrapolate estimates by job type, and --throughputs gives speeds by job; leave out one")
        return trace, profile
    if any(_lacks_type(submission.job) for submission in trace):
        names = cluster.accelerator_names
        trace, profile = gp.assign_job_types(trace, profile, seed=request.seed, accelerators=names, extrapolate=request.extrapolate)
    if request.extrapolate:
        profile = gp.extend_profile(profile, {submission.job.num_gpus for submission in trace})
    return trace, profile


def _lacks_type(job: gp.Job) -> bool:
    return not job.job_type or _lacks_end(job)


def _lacks_end(job: gp.Job) -> bool:
    return job.total_steps is None and job.duration_seconds is None


def _check_ends(trace: gp.Trace) -> None:
    """Raise for jobs without an end, which would end a simulation half-way, as throughputs do that are missing."""
    text = "is unknown, and so is when the job ends: give total_steps, or duration_seconds with duration_accelerator"
    InputError.raise_any([Fault(each.job.where, "total_steps", text) for each in trace if _lacks_end(each.job)])


def _check_jobs(trace: gp.Trace, cluster: gp.Cluster, profile: gp.Profile, request: Request) -> None:
    """Raise for jobs that fit neither cluster nor profile, and if they are to share GPUs and nothing is known of pairs."""
    min_gain_of(request.sharing, request.min_gain)
    problem = gp.AllocationProblem.from_jobs(trace.jobs, cluster, profile, whole_gangs=False, sharing=request.sharing)
    if request.sharing:
        check_known(profile, problem.pairs)


def _warn(trace: gp.Trace, request: Request) -> None:
    """Say so where the trace does not hold what is to be replayed."""
    if request.job_failures == "recorded" and not any(submission.failed_attempts for submission in trace):
        click.echo(f"warning: --job-failures recorded: no failed attempt is recorded in {request.trace_file}", err=True)
    if request.estimates == "recorded" and not any(submission.estimate_seconds for submission in trace):
        text = f"no estimate is recorded in {request.trace_file}; policies see what is exact"
        click.echo(f"warning: --estimates recorded: {text}", err=True)
