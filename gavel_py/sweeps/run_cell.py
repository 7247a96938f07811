"""A static solve as a `Run`.

Playing one cell, in whatever process: a simulation or a static solve, and what is kept of it.
"""

from __future__ import annotations

import math
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gavel_py import __version__
from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import solve
from gavel_py.errors import GavelError, GavelWarning, InputError
from gavel_py.problem.problem import AllocationProblem
from gavel_py.report.runs import Run
from gavel_py.report.runs.files import packed
from gavel_py.scheduling import Round
from gavel_py.simulator.recorder import RunRecorder, played
from gavel_py.simulator.simulation import Simulation
from gavel_py.sweeps.cell import Scenario, Task, problem_of, scenario_of

__all__ = ["Ended", "play", "simulation_of", "solved"]


def solved(task: Task) -> Run:
    """Solve a cell; raises what `solve` raises."""
    problem = problem_of(task.source, task.settings.value.get("whole_gangs", True))
    allocation = solve(problem, task.policy.value)
    return Run(labels={}, metrics=_metrics(problem, allocation), shares=_shares(task, allocation))


def _metrics(problem: AllocationProblem, allocation: Allocation) -> dict[str, float | None]:
    served = [i for i, job_id in enumerate(allocation.job_ids) if job_id not in allocation.excluded]
    v = allocation.normalized_throughputs[served]
    gpus = problem.capacities
    return {
        "objective": allocation.objective_value,
        "gap": allocation.gap,
        "utilization": float(allocation.utilization @ gpus / gpus.sum()) if gpus.sum() else 0.0,
        "total_normalized_throughput": float(v.sum()),
        "least_normalized_throughput": float(v.min()) if served else None,
        "excluded": len(allocation.excluded),
        "solver_seconds": allocation.seconds["solve"],
    }


def _shares(task: Task, allocation: Allocation) -> dict[str, dict[str, float]]:
    """{job type: {accelerator: mean share of the time of its jobs}}"""
    type_of = {submission.job.job_id: submission.job.job_type for submission in scenario_of(task.source).trace}
    types = np.array([type_of[job_id] for job_id in allocation.job_ids])
    return {
        str(name): dict(
            zip(allocation.accelerator_types, allocation.time_fractions[types == name].mean(axis=0).tolist(), strict=True)
        )
        for name in sorted(set(types.tolist()))
    }


@dataclass(frozen=True)
class Ended:
    """What came of a cell: numbers, the rest of its run, what it keeps of each job; or an error. seconds: what it took."""

    key: str
    seconds: float
    error: str | None = None
    metrics: Mapping[str, float | None] | None = None
    run: bytes | None = None
    jobs: bytes | None = None


def play(task: Task) -> Ended:
    """Play a cell to its end; what goes wrong is what comes of it."""
    started, cpu = time.perf_counter(), time.process_time()
    try:
        if task.version != __version__:
            raise InputError(f"this process has gavel-py {__version__}, and the sweep was begun by {task.version}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GavelWarning)  # told once, when the sweep was planned
            run, jobs = (solved(task), None) if task.mode == "solve" else _simulated(task)
        seconds = time.perf_counter() - started
        metrics = dict(run.metrics) | {"wall_seconds": seconds, "cpu_seconds": time.process_time() - cpu}
        return Ended(task.key, seconds, None, metrics, packed(run), jobs)
    except GavelError as error:
        return Ended(task.key, time.perf_counter() - started, str(error))
    except Exception as error:  # noqa: BLE001  a policy of the user's own, or a fault of ours: the other cells go on
        text = "".join(traceback.format_exception(error)).strip()
        return Ended(task.key, time.perf_counter() - started, text)


def simulation_of(task: Task, on_round: Callable[[Round], None] | None = None) -> tuple[Simulation, float]:
    """Return the simulation of a cell, and when it is to be stopped."""
    scenario, settings = scenario_of(task.source), dict(task.settings.value)
    until = settings.pop("until_seconds", math.inf)
    simulation = Simulation(
        scenario.trace,
        scenario.cluster,
        scenario.profile,
        task.policy.value,
        round_seconds=task.round_seconds,
        seed=task.source.seed or 0,
        on_round=on_round,
        **settings,
    )
    return simulation, until


def _simulated(task: Task) -> tuple[Run, bytes | None]:
    simulation, until = simulation_of(task, lambda begun: recorder.round(begun))
    recorder = RunRecorder(simulation)
    played(simulation, recorder, until)
    scenario = scenario_of(task.source)
    isolated = None if task.isolated is None else _jcts_from(task.isolated, scenario)
    run = recorder.run({}, simulation.result().summary, isolated)
    return run, _jcts_as_bytes(recorder.jct_seconds, scenario) if task.mode == "isolated" else None


def _jcts_as_bytes(jcts: Mapping[str, float], scenario: Scenario) -> bytes:
    """The completion times in the order of the trace, NaN where a job has not finished."""
    values = np.array([jcts.get(submission.job.job_id, np.nan) for submission in scenario.trace], dtype="<f8")
    return zlib.compress(values.tobytes())


def _jcts_from(data: bytes, scenario: Scenario) -> dict[str, float]:
    values = np.frombuffer(zlib.decompress(data), dtype="<f8").tolist()
    pairs = zip((submission.job.job_id for submission in scenario.trace), values, strict=True)
    return {job_id: value for job_id, value in pairs if not math.isnan(value)}
