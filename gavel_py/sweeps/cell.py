"""What is played in a cell, whatever the policy: jobs with types and ends, the cluster, and how fast jobs run.

One point of a sweep: what is played, how it is told from others, and what goes to the process that plays it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from gavel_py import __version__
from gavel_py.errors import Fault, InputError
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.problem import AllocationProblem
from gavel_py.report.runs import Labels
from gavel_py.sweeps.axes import Generator, Part, digest, lacks_type, plain_text
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads import Trace, assign_job_types, extend_profile

__all__ = ["Cell", "Scenario", "Source", "Task", "problem_of", "scenario_of"]

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


@dataclass(frozen=True, eq=False)
class Task:
    """All that it takes to play a cell, in any process.

    mode: "isolated" is a simulation that is played for what others are compared with, and keeps the completion time of each job;
    isolated: those, for a cell that is compared; version: of gavel-py, which must be the same where it is played.
    """

    key: str
    mode: Literal["simulate", "solve", "isolated"]
    policy: Part
    source: Source
    round_seconds: float | None
    settings: Part
    isolated: bytes | None = None
    version: str = __version__


@dataclass(frozen=True, eq=False)
class Cell:
    """labels: its place in the grid, in words; content: what tells it from all other cells; needs: the key of the cell that it is
    compared with.
    """

    labels: Labels
    content: Mapping[str, Any]
    task: Task
    needs: str | None = None

    @cached_property
    def key(self) -> str:
        """A checksum of its content."""
        return digest(self.content)

    @property
    def text(self) -> str:
        """Its content as JSON."""
        return plain_text(self.content)

    def task_with(self, isolated: bytes | None) -> Task:
        """Return what is to be played; isolated: what the cell that it needs has kept."""
        return replace(self.task, key=self.key, isolated=isolated)
