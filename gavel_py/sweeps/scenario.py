"""What is played in a cell, whatever the policy: jobs with types and ends, the cluster, and how fast jobs run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gavel_py.errors import Fault, InputError
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.problem import AllocationProblem
from gavel_py.sweeps.parts import Part
from gavel_py.sweeps.trace_axis import Generator, lacks_type
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads import Trace, assign_job_types, extend_profile

__all__ = ["Scenario", "Source", "problem_of", "scenario_of"]

MOST_KEPT = 4
"""Cells of one scenario follow one another, so that few of them are needed at a time."""


@dataclass(frozen=True)
class Source:
    """From what a scenario is made; load: jobs per hour of a generated trace; seed: None where nothing is drawn."""

    trace: Part
    cluster: Part
    profile: Part
    load: float | None
    seed: int | None
    extrapolate: bool
    allow_unknown_types: bool = False


@dataclass(frozen=True, eq=False)
class Scenario:
    """What simulations of several policies have in common."""

    trace: Trace
    cluster: Cluster
    profile: Profile


@lru_cache(maxsize=MOST_KEPT)
def scenario_of(source: Source) -> Scenario:
    """Return the scenario, one object for one source; raises `InputError`."""
    cluster, profile, given = source.cluster.value, source.profile.value, source.trace.value
    cluster = cluster.known_to(profile, allow_unknown_types=source.allow_unknown_types)
    trace = given
    if isinstance(given, Generator):
        if not isinstance(profile, ThroughputProfile):
            text = "a trace is drawn from job types, and throughputs gives speeds by job; use a profile"
            raise InputError(Fault("sweep", "throughputs", text))
        trace = given.draw(profile, source.load, source.seed or 0)
    elif isinstance(profile, ThroughputProfile):
        trace, profile = _typed(trace, profile, cluster, source)
    return Scenario(trace, cluster, profile)


@lru_cache(maxsize=MOST_KEPT)
def problem_of(source: Source, whole_gangs: bool) -> AllocationProblem:
    """Return the problem of all jobs of the trace together, at time 0."""
    scenario = scenario_of(source)
    return AllocationProblem.from_jobs(scenario.trace.jobs, scenario.cluster, scenario.profile, whole_gangs=whole_gangs)


def _typed(trace: Trace, profile: ThroughputProfile, cluster: Cluster, source: Source) -> tuple[Trace, ThroughputProfile]:
    """Give jobs without a type or an end what they lack, as `gavel simulate` does."""
    if any(map(lacks_type, trace)):
        names = cluster.accelerator_names
        trace, profile = assign_job_types(trace, profile, seed=source.seed or 0, accelerators=names, extrapolate=source.extrapolate)
    if source.extrapolate:
        profile = extend_profile(profile, {submission.job.num_gpus for submission in trace})
    return trace, profile
