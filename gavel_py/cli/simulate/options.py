"""The options of gavel simulate, and the scenario that they describe: trace, cluster, throughputs, node failures and maintenance.

Times are written as 90, 90s, 15min, 12h or 7d. `load` assigns missing job types and steps, and validates all inputs before the
simulation starts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import click

import gavel_py as gp
from gavel_py.cli import estimates as estimated
from gavel_py.cli import remember_jobs
from gavel_py.cli.accounting import is_endless
from gavel_py.cli.files import OutputFile
from gavel_py.cli.inputs import (
    FILE,
    INPUT,
    INPUT_OR_TEXT,
    TRACE,
    Common,
    Duration,
    Inputs,
    argument,
    check_pairs,
    cluster_of,
    declared_options,
    main_option,
    option,
    problem_of,
    profile_of,
    unless_swapped,
)
from gavel_py.cli.services import MOST_JOBS, ServicesOptions, beside_trace, rest_of
from gavel_py.cli.simulate import learning
from gavel_py.cli.trace.files import TraceInput
from gavel_py.cli.usage import check_value, refuse
from gavel_py.errors import Fault, InputError, decimal_hint, together


def seconds_of(text: str) -> float | None:
    """Return the seconds of a text such as 12h, None if it is not a time.

    >>> seconds_of("90"), seconds_of("1.5h"), seconds_of("tomorrow")
    (90.0, 5400.0, None)
    """
    seconds = gp.seconds_in(text.lower())
    if seconds is None and text.isascii() and not decimal_hint(text):
        with suppress(ValueError):
            seconds = float(text)
    return seconds if seconds is not None and math.isfinite(seconds) else None


def time_option(text: str) -> float:
    """Return the seconds of the text of an option. Raises `BadParameter` if it is not a time of at least 0."""
    seconds = seconds_of(text)
    is_time = seconds is not None and seconds >= 0
    check_value(text, is_time, "is not a time of at least 0; write seconds, or a time such as 90s, 15min, 12h or 7d")
    return seconds or 0.0


def failures_of(mtbf_hours: float | None, repair_hours: float | None) -> gp.NodeFailures | None:
    """Return the failure model of --node-mtbf and --node-repair; the time between failures consists of repair and uptime."""
    if mtbf_hours is None and repair_hours is None:
        return None
    between, repair = mtbf_hours or 0.0, repair_hours or 0.0
    text = f"--node-repair {repair:g} must be less than --node-mtbf {between:g}"
    refuse(
        (
            mtbf_hours is None or repair_hours is None,
            "--node-mtbf and --node-repair go together: how often a node fails and how long its repair takes",
        ),
        (repair >= between, f"{text}, the mean time from one failure of a node to the next, which includes the repair"),
    )
    return gp.NodeFailures((between - repair) * 3600.0, repair * 3600.0)


def maintenance_of(texts: Iterable[str]) -> list[gp.NodeWindow]:
    """Return the windows of --maintenance, each a file or NODE:START:END. Raises one `InputError` with all faults."""
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


LEARN = "Also simulate each policy with learned speeds, and agnostic; SHARE of the GPUs measures speeds [optimistic]."

RECORDED = "recorded"
HOURS = click.FloatRange(0, min_open=True)


def _window(text: str) -> tuple[int, int] | None:
    parts = re.fullmatch(r"\s*(0|[1-9][0-9]{0,8})\s*:\s*(0|[1-9][0-9]{0,8})\s*", text)
    if parts is None or int(parts[1]) >= int(parts[2]):
        form = "is not of the form FIRST:END, with FIRST before END, as in 4000:5000 for the jobs 4,000 to 4,999 by arrival"
        raise click.BadParameter(f"{text!r} {form}")
    return int(parts[1]), int(parts[2])


MEASURE_JOBS: Mapping[str, Any] = {
    "type": _window,
    "metavar": "FIRST:END",
    "help": "Measure these jobs, by arrival from 0, END excluded; others arrive until these have ended [all jobs].",
}


def load_text(text: str, unit: str = "") -> str:
    """Return the text of a load if it is a factor of the recorded one, such as 1.5x, or for an empty unit also jobs per hour."""
    number = estimated.number_in(text.removesuffix("x")) or 0.0
    form = "is not a factor" if unit else "is neither a number of jobs per hour nor a factor"
    check_value(text, text.endswith(unit) and 0 < number < math.inf, f"{form} of the recorded load such as 1.5x")
    return text


def _job_failures(text: str) -> float | str:
    if text == RECORDED:
        return RECORDED
    part = estimated.number_in(text)
    is_right = part is not None and 0 <= part < 1
    check_value(text, is_right, f"is neither a probability of at least 0 and below 1 nor {RECORDED!r}")
    return part or 0.0


@dataclass(frozen=True)
class ScenarioOptions(TraceInput, Common):
    """Options that describe the simulation, as typed."""

    trace_file: Path = argument("TRACE", type=TRACE)
    load: str = option(
        "Input",
        type=lambda text: load_text(text, "x"),
        default="1x",
        metavar="Xx",
        help="Factor of the recorded load: 1.5x, arrivals 1.5 times as fast [1x].",
    )
    events: bool = option("Rounds", help="Decide when jobs arrive or end instead of in rounds; for ordered policies.")
    given_options: dict[str, Any] = declared_options("simulate", main=("restart_seconds",))
    elastic: bool = option("What if", help="Compare gangs as requested with jobs on any number of GPUs that the profile has.")
    node_mtbf: float | None = option("Failures", type=HOURS, metavar="HOURS", help="Mean time between failures of a node.")
    node_repair: float | None = option("Failures", type=HOURS, metavar="HOURS", help="Mean time of a repair.")
    maintenance: tuple[str, ...] = option(
        "Failures",
        type=INPUT_OR_TEXT,
        metavar="FILE|NODE:START:END",
        help="Times when a node is down: v100-0:24h:30h, or a CSV of node,start_seconds,end_seconds; may be repeated.",
    )
    job_failures: float | Literal["recorded"] = option(
        "Failures", type=_job_failures, default="0", metavar="P|recorded", help="Probability that an attempt of a job fails [0]."
    )
    checkpoint_seconds: float | None = option(
        "Failures",
        type=Duration(0, min_open=True),
        metavar="S",
        help="Work between two checkpoints of a job [at the start of rounds; with --events 360].",
    )
    until_seconds: float | None = main_option(
        "Run", "--until", type=time_option, metavar="TIME", help="Simulated time at which to stop, in seconds or as in 12h, 7d."
    )
    measure_jobs: tuple[int, int] | None = option("Output", **MEASURE_JOBS)
    given_simulation: dict[str, Any] = declared_options("simulation")

    @cached_property
    def simulation(self) -> gp.SimulationOptions:
        """The options of the simulation."""
        return gp.SimulationOptions(**self.given_simulation, **{name: getattr(self, name) for name in READ_HERE})


READ_HERE = ("job_failures", "checkpoint_seconds", "measure_jobs")
"""Options of the simulation that the command declares itself, since their values are written in another way."""


@dataclass(frozen=True)
class SimulateOptions(ServicesOptions, ScenarioOptions):
    """All options, as typed. Fields of the last base class come first, in --help too."""

    learn: estimated.Explore | None = option("What if", **estimated.learn_option(LEARN))
    known: str | None = option("What if", **learning.KNOWN)
    jobs_out: Path | None = option(
        "Output", type=FILE, metavar="FILE", help="Write a line for each job that leaves to this .csv or .parquet file."
    )
    timeline_out: Path | None = option(
        "Output", type=FILE, metavar="FILE", help="Write a line for each round to this .csv or .parquet file."
    )
    tenants_out: Path | None = option(
        "Output", type=FILE, metavar="FILE", help="Write a line for each tenant to this .csv or .parquet file."
    )
    run_out: Path | None = option("Output", type=FILE, metavar="FILE", help="Write the run to this .json file, for gavel report.")
    save_state: Path | None = option(
        "Run", type=OutputFile(after="--continue"), metavar="FILE", help="Save the state to this file at intervals, and on Ctrl-C."
    )
    state_every: str | None = option("Run", metavar="TIME|Nrounds", help="Interval of --save-state: 90s, 10min, 500rounds [10min].")
    continue_from: Path | None = option(
        "Run", "--continue", type=INPUT, metavar="FILE", help="Continue from the state that --save-state wrote."
    )
    with_progress: bool = option("Output", "--progress/--no-progress", default=True, help="Show progress on a terminal [yes].")


@dataclass(frozen=True)
class Scenario:
    """The inputs that the simulations of all policies share."""

    trace: gp.Trace
    cluster: gp.Cluster
    profile: gp.Profile
    node_failures: gp.NodeFailures | None
    maintenance: Sequence[gp.NodeWindow]
    start: gp.ThroughputProfile | None = None
    """The profile from which learners start; None without --learn."""
    services: gp.JointPlan | None = None
    """The replicas of --services, whose GPUs `cluster` lacks; None without them."""

    def trace_of(self, elastic: bool | None) -> gp.Trace:
        """Return the trace with all jobs elastic (True) or with fixed gangs (False); None leaves it unchanged."""
        if elastic is None:
            return self.trace
        return self.trace.with_elastic_jobs(_largest_gang(self.profile)) if elastic else self.trace.with_fixed_gangs()

    def estimates(self) -> list[gp.Estimate] | None:
        """Return the estimates on which the speeds of the jobs are based, None without --estimate."""
        if not estimated.has_estimates(self.profile):
            return None
        return self.profile.estimates_of([each.job for each in self.trace], self.cluster.accelerator_names)


def load(request: SimulateOptions, policies: Sequence[gp.Policy]) -> tuple[Scenario, Sequence[gp.Policy]]:
    """Read and validate all inputs, and return the scenario and the policies on it.

    Raises one `InputError` with the faults of all files.
    """
    failures = failures_of(request.node_mtbf, request.node_repair)
    check_pairs(request.rounds)
    with unless_swapped(request.trace_file, request.cluster), together() as attempt:
        trace = attempt(lambda: request.read(request.trace_file))
        cluster = attempt(lambda: cluster_of(request))
        profile = attempt(lambda: profile_of(request))
        windows = attempt(lambda: maintenance_of(request.maintenance))
    trace = trace if request.load == "1x" else trace.scale(float(request.load[:-1]))
    remember_jobs(each.job for each in trace)
    # A simulation that was started with this option may be continued without it.
    allowed = request.allow_unknown_types or request.continue_from is not None
    cluster = cluster.known_to(profile, allow_unknown_types=allowed)
    trace, profile = _typed(trace, cluster, profile, request)
    with together() as attempt:
        # A simulation would fail half-way on a job without steps and duration.
        unknown = (
            "is unknown, so it is not known when the job ends; give total_steps, or duration_seconds with duration_accelerator"
        )
        attempt(
            lambda: InputError.raise_any([Fault(each.job.where, "total_steps", unknown) for each in trace if is_endless(each.job)])
        )
        attempt(lambda: problem_of(trace.jobs, cluster, profile, whole_gangs=False, sharing=request.rounds.sharing))
        if request.elastic:
            both = Scenario(trace, cluster, profile, failures, windows)
            for elastic in (False, True):
                attempt(partial(_check_gangs, both, elastic))
    _warn(trace, request)
    start = learning.initial_profile(request, request.learn, request.known, request.simulation.seed, profile)
    scenario = Scenario(trace, cluster, profile, failures, windows, start)
    if request.services is None:
        return scenario, policies
    here = Inputs(gp.JobSet(each.job for each in islice(trace, MOST_JOBS)), cluster, profile, request.rounds)
    plan, policies = beside_trace(request, here, policies)
    return replace(scenario, cluster=rest_of(here, plan).cluster, services=plan), policies


def _typed(trace: gp.Trace, cluster: gp.Cluster, profile: gp.Profile, request: SimulateOptions) -> tuple[gp.Trace, gp.Profile]:
    """Assign missing job types and steps, and with --extrapolate estimate missing gang sizes of the profile."""
    if not isinstance(profile, gp.ThroughputProfile):
        if request.extrapolate:
            estimated.by_type(profile, "--extrapolate estimates speeds by job type")
        return trace, profile
    extrapolate = request.extrapolate and request.estimate is None  # estimates cover all gangs
    if any(not submission.job.job_type or is_endless(submission.job) for submission in trace):
        trace, profile = gp.assign_job_types(
            trace,
            profile,
            seed=request.simulation.seed,
            accelerators=cluster.accelerator_names,
            extrapolate=extrapolate,
        )
    if extrapolate:
        profile = gp.extend_profile(profile, (submission.job for submission in trace))
    return trace, profile


def _largest_gang(profile: gp.Profile) -> int:
    return int(max(estimated.by_type(profile, "--elastic needs speeds by number of GPUs").gang_sizes))


def _check_gangs(scenario: Scenario, elastic: bool) -> None:
    problem_of(scenario.trace_of(elastic).jobs, scenario.cluster, scenario.profile, whole_gangs=False, sharing=False)


def _warn(trace: gp.Trace, request: SimulateOptions) -> None:
    if request.job_failures == "recorded" and not any(submission.failed_attempts for submission in trace):
        click.echo(f"warning: --job-failures recorded: no failed attempt is recorded in {request.trace_file}", err=True)
    if request.simulation.estimates == "recorded" and not any(submission.estimate_seconds for submission in trace):
        text = f"no estimate is recorded in {request.trace_file}; policies see the exact values"
        click.echo(f"warning: --estimates recorded: {text}", err=True)
