"""Recorded simulations for `same_answers.py`: the record of each job, the summary with its metrics, and the run of a report.

Small ones: restarts that cost time, failures of jobs and nodes, maintenance, fractions of GPUs, sharing, elastic jobs, workflows,
tenants, learned speeds, event-driven mode, and one that is saved and continued. Computing time is not compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from same_values import plain

if TYPE_CHECKING:
    import gavel_py as gp

__all__ = ["recorded"]

COUNTS = {"v100": (8, 4), "p100": (4, 4), "k80": (8, 4)}

ELASTIC = {"num_gpus": 1, "min_gpus": 1, "max_gpus": 4}

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"policy": "max_min_fairness"},
    "restarts": {"policy": "finish_time_fairness", "restart_seconds": 60.0, "min_run_seconds": 900.0, "solve_seconds": 720.0},
    "failures": {
        "policy": "shortest_job_first",
        "job_failures": 0.3,
        "checkpoint_seconds": 600.0,
        "retry_seconds": 120.0,
        "seed": 3,
    },
    "nodes": {"policy": "min_makespan", "nodes": True, "restart_seconds": 30.0, "starts_between_rounds": True},
    "events": {"policy": "fifo", "round_seconds": None, "job_failures": 0.1, "nodes": True},
    "sharing": {"policy": "max_min_fairness", "sharing": True, "gangs": {1: 1}},
    "fractions": {"policy": "least_attained_service", "gangs": {0.5: 2, 1: 2, 2: 1}, "interference": 0.1},
    "elastic": {"policy": "max_total_throughput", "elastic": True, "restart_seconds": 30.0},
    "workflows": {"policy": "hierarchical", "workflows": True, "mechanism": "priority"},
    "learned": {"policy": "min_makespan", "learn": "median", "jobs": 8},
}


def recorded() -> Iterator[dict[str, Any]]:
    """Yield the records, the summary and the run of each simulation."""
    for name, settings in SETTINGS.items():
        yield {"name": f"recorded simulation, {name}", **_recorded(**settings)}
    yield {"name": "recorded simulation, continued", **_continued()}


@cache
def _profile() -> gp.ThroughputProfile:
    import gavel_py as gp

    return gp.ThroughputProfile.builtin("gavel-osdi20")


def _recorded(policy: str, *, nodes: bool = False, learn: str | None = None, **options: Any) -> dict[str, Any]:
    import gavel_py as gp

    parts = {name: options.pop(name) for name in ("jobs", "gangs", "workflows", "elastic") if name in options}
    if nodes:
        options["node_failures"] = gp.NodeFailures(40_000.0, 3_000.0)
        options["maintenance"] = [gp.NodeWindow("k80-0", 3_600.0, 9_000.0)]
    if learn:
        options["learn"] = learn
    inputs = _trace(**parts), gp.Cluster.from_counts(COUNTS), _profile(), policy
    document = {"result": plain(gp.simulate(*inputs, **options).to_dict())}
    return document if learn else document | {"run": plain(gp.record_run(*inputs, stays=True, **options))}


def _continued() -> dict[str, Any]:
    """Return the result of a simulation that is saved after ten rounds and continued from the file."""
    import gavel_py as gp

    inputs = _trace(), gp.Cluster.from_counts(COUNTS), _profile(), "max_min_fairness"
    simulation = gp.Simulation(*inputs, job_failures=0.2, node_failures=gp.NodeFailures(40_000.0, 3_000.0), restart_seconds=30.0)
    for _ in range(10):
        simulation.step()
    with tempfile.TemporaryDirectory() as folder:
        simulation.save(Path(folder, "state"))
        restored = gp.Simulation.load(Path(folder, "state"), inputs[0], _profile())
    return {"result": plain(restored.run().to_dict())}


def _trace(
    jobs: int = 16, gangs: dict[float, float] | None = None, workflows: bool = False, elastic: bool = False
) -> list[gp.Submission]:
    import gavel_py as gp

    trace = gp.generate_trace(
        jobs,
        _profile(),
        jobs_per_hour=12.0,
        seed=5,
        gang_mix=None if workflows else gangs or {1: 6, 2: 2, 4: 1},
        durations=gp.LogUniform(((0.8, 900.0, 6000.0), (0.2, 6000.0, 12000.0))),
        workflows=workflows,
        heavy_share=0.2,
    )
    changes = [{"tenant": "ab"[number % 2], **(ELASTIC if elastic and number % 3 == 0 else {})} for number in range(jobs)]
    return [replace(each, job=each.job.model_copy(update=more)) for each, more in zip(trace.submissions, changes, strict=True)]
