"""A static solve as a `Run`."""

from __future__ import annotations

import numpy as np

from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import solve
from gavel_py.problem.problem import AllocationProblem
from gavel_py.report.runs import Run
from gavel_py.sweeps.cells import Task
from gavel_py.sweeps.scenario import problem_of, scenario_of

__all__ = ["solved"]


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
