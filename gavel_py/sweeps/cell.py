"""One cell of a sweep: a simulation or a static solve, run in any process.

`Cell` is a point of the grid, `Task` the part of it that is sent to a process, and `CellInputs` what cells of several policies
share. `run_cell` simulates (`simulate_cell`) or solves (`solve_cell`) and returns a `CellResult`.
"""

from __future__ import annotations

import math
import time
import traceback
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from gavel_py import __version__
from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import solve
from gavel_py.errors import GavelError, GavelWarning, InputError, refuse
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.profile import Profile
from gavel_py.report.runs import Labels, Run
from gavel_py.report.runs.files import packed
from gavel_py.scheduling.options import AllocationOptions
from gavel_py.simulator.recorder import RunRecorder, hooks_of, run_and_record
from gavel_py.simulator.simulation import Simulation
from gavel_py.sweeps.axes import Generator, PackedValue, by_type, checksum, plain_text
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.throughput_profiles.extrapolation import extend_profile
from gavel_py.workloads.job_types import assign_job_types, lacks_type
from gavel_py.workloads.trace import Trace

CACHED_SCENARIOS = 4
"""Size of the cache. A few are enough, since the cells of a scenario are adjacent in the grid."""


@dataclass(frozen=True)
class ScenarioSource:
    """The inputs of a scenario.

    load: jobs per hour of a generated trace, factor of the load of a recorded one; seed: None if nothing is drawn at random.
    """

    trace: PackedValue
    cluster: PackedValue
    profile: PackedValue
    load: float | None
    seed: int | None
    extrapolate: bool
    allow_unknown_types: bool = False


class CellInputs(NamedTuple):
    """The inputs that simulations of several policies share: jobs with types and ends, nodes and throughputs."""

    trace: Trace
    cluster: Cluster
    profile: Profile


@lru_cache(maxsize=CACHED_SCENARIOS)
def scenario_of(source: ScenarioSource) -> CellInputs:
    """Return the scenario of a source, from a cache; raises `InputError`."""
    trace, profile, seed = source.trace.value, source.profile.value, source.seed or 0
    cluster = source.cluster.value.known_to(profile, allow_unknown_types=source.allow_unknown_types)
    if isinstance(trace, Generator):
        text = "a generated trace needs speeds by job type, but throughputs gives them by job; use a profile"
        known = by_type(profile, "sweep", "throughputs", text)
        return CellInputs(trace.draw(known, source.load, seed), cluster, known)
    if source.load is not None:
        trace = trace.scale(source.load)
    if isinstance(profile, ThroughputProfile):  # jobs that lack types and ends get them as in `gavel simulate`
        names = cluster.accelerator_names
        extrapolate = source.extrapolate and type(profile) is ThroughputProfile  # estimates cover all gangs
        if any(map(lacks_type, trace)):
            trace, profile = assign_job_types(trace, profile, seed=seed, accelerators=names, extrapolate=extrapolate)
        if extrapolate:
            profile = extend_profile(profile, (submission.job for submission in trace))
    return CellInputs(trace, cluster, profile)


@lru_cache(maxsize=CACHED_SCENARIOS)
def problem_of(source: ScenarioSource, options: AllocationOptions) -> AllocationProblem:
    """Return the problem of all jobs of the trace at time 0, from a cache.

    Raises `InputError` for sharing with a profile that has no throughputs of pairs.
    """
    trace, cluster, profile = scenario_of(source)
    problem = AllocationProblem.from_jobs(trace.jobs, cluster, profile, **dict(options))
    text = f"needs the speeds of pairs of jobs, but profile {profile.name!r} has none"
    refuse("", (options.sharing and problem.pairs is None, "sharing", text))
    return problem


@dataclass(frozen=True, eq=False)
class Task:
    """The input of `run_cell`.

    mode: "isolated" is a simulation with which others are compared, and which keeps the completion time of each job; isolated: the
    completion times to compare with; version: of gavel-py, which must be the same in the process that runs the cell.
    """

    key: str
    mode: Literal["simulate", "solve", "isolated"]
    policy: PackedValue
    source: ScenarioSource
    round_seconds: float | None
    settings: PackedValue
    isolated: bytes | None = None
    version: str = __version__


@dataclass(frozen=True, eq=False)
class Cell:
    """A point of the grid.

    labels: the label of its value on each axis; content: the content of its checksum, which identifies it in the store;
    baseline_key: key of the cell with which it is compared.
    """

    labels: Labels
    content: Mapping[str, Any]
    task: Task
    baseline_key: str | None = None

    @cached_property
    def key(self) -> str:
        """The checksum of its content."""
        return checksum(self.content)

    @property
    def text(self) -> str:
        """Its content as JSON."""
        return plain_text(self.content)

    def task_with(self, isolated: bytes | None) -> Task:
        """Return the input of `run_cell`; isolated: completion times of the cell with which this one is compared."""
        return replace(self.task, key=self.key, isolated=isolated)


def solve_cell(task: Task) -> Run:
    """Run a cell of mode "solve"; raises what `solve` raises."""
    problem = problem_of(task.source, AllocationOptions(**task.settings.value))
    allocation = solve(problem, task.policy.value)
    return Run(labels={}, metrics=allocation.metrics(), shares=_shares(task, allocation), tenants=allocation.tenants())


def _shares(task: Task, allocation: Allocation) -> dict[str, dict[str, float]]:
    """Return {job type: {accelerator type: mean time fraction of its jobs}}."""
    type_of = {submission.job.job_id: submission.job.job_type for submission in scenario_of(task.source).trace}
    types = np.array([type_of[job_id] for job_id in allocation.job_ids])
    means = {name: allocation.time_fractions[types == name].mean(axis=0).tolist() for name in sorted(set(types.tolist()))}
    return {str(name): dict(zip(allocation.accelerator_types, mean, strict=True)) for name, mean in means.items()}


@dataclass(frozen=True)
class CellResult:
    """The result of a cell: an error, or its metrics, its packed run, and the completion times that it keeps (`jobs`)."""

    key: str
    seconds: float
    error: str | None = None
    metrics: Mapping[str, float | None] | None = None
    run: bytes | None = None
    jobs: bytes | None = None


def run_cell(task: Task) -> CellResult:
    """Run a cell to its end. An exception of the cell becomes the error of the result."""
    started, cpu = time.perf_counter(), time.process_time()
    try:
        if task.version != __version__:
            raise InputError(f"this process has gavel-py {__version__}, but the sweep was started with {task.version}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GavelWarning)  # shown once, when the sweep was planned
            run, jobs = (solve_cell(task), None) if task.mode == "solve" else simulate_cell(task)
        seconds = time.perf_counter() - started
        metrics = dict(run.metrics) | {"wall_seconds": seconds, "cpu_seconds": time.process_time() - cpu}
        return CellResult(task.key, seconds, None, metrics, packed(run), jobs)
    except GavelError as error:
        return CellResult(task.key, time.perf_counter() - started, str(error))
    except Exception as error:  # noqa: BLE001  whatever a policy of the user raises, the other cells continue
        text = "".join(traceback.format_exception(error)).strip()
        return CellResult(task.key, time.perf_counter() - started, text)


def build_simulation(task: Task, **hooks: Any) -> tuple[Simulation, float]:
    """Return the simulation of a cell, with these callbacks, and the time at which it stops."""
    scenario, settings = scenario_of(task.source), dict(task.settings.value)
    until = settings.pop("until_seconds", math.inf)
    simulation = Simulation(
        scenario.trace,
        scenario.cluster,
        scenario.profile,
        task.policy.value,
        round_seconds=task.round_seconds,
        seed=task.source.seed or 0,
        **hooks,
        **settings,
    )
    return simulation, until


def simulate_cell(task: Task) -> tuple[Run, bytes | None]:
    """Run a cell of another mode; returns its run, and the completion times that a cell of mode "isolated" keeps.

    These are in the order of the trace, NaN for jobs that did not finish.
    """
    simulation, until = build_simulation(task, **hooks_of(lambda: recorder, without_rounds=task.round_seconds is None))
    recorder = RunRecorder(simulation)
    run_and_record(simulation, recorder, until)
    job_ids = [submission.job.job_id for submission in scenario_of(task.source).trace]
    isolated = None
    if task.isolated is not None:
        values = np.frombuffer(zlib.decompress(task.isolated), dtype="<f8").tolist()
        isolated = {job_id: value for job_id, value in zip(job_ids, values, strict=True) if not math.isnan(value)}
    run = recorder.run({}, simulation.result().summary, isolated)
    if task.mode != "isolated":
        return run, None
    kept = np.array([recorder.jct_seconds.get(job_id, np.nan) for job_id in job_ids], dtype="<f8")
    return run, zlib.compress(kept.tobytes())
