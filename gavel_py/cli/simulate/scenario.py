"""What is to be simulated: the trace with job types and steps, the cluster, and the throughputs; all checked before it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import click

import gavel_py as gp
from gavel_py.cli.inputs import check_known, cluster_of, min_gain_of, profile_of
from gavel_py.cli.simulate.options import Request, failures_of, maintenance_of
from gavel_py.cli.trace.files import read
from gavel_py.errors import Fault, InputError, together

__all__ = ["Scenario", "load"]


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
