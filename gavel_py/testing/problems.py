"""Test problems for policies: small and degenerate fixed ones, and random ones from a seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Case = dict[str, Any]
"""Arguments of `AllocationProblem.from_arrays`, as lists: throughputs, capacities and optional arrays."""

BY_TYPE = ("accelerator_types", "capacities", "prices_per_hour")
"""The arrays with one entry per accelerator type; the others have one per job."""

NAN = math.nan

EMPTY_CASES: tuple[Case, ...] = (
    {"throughputs": [], "capacities": [4, 4]},
    {"throughputs": [[1.0, 2.0]], "capacities": [0, 0]},
    {"throughputs": [[0.0]], "capacities": [4]},
    {"throughputs": [[1.0]], "capacities": [4], "num_gpus": [8]},
    {"throughputs": [[1.0]], "capacities": [4], "steps_remaining": [0.0], "total_steps": [100.0]},
)
"""Problems in which no job can run."""

HISTORIES: dict[str, list[Any]] = {
    "tenants": ["red", "blue", "red", "red"],
    "weights": [1.0, 2.0, 0.5, 1.0],
    "priorities": [0.0, 1.0, 1.0, -1.0],
    "steps_remaining": [240.0, 60.0, 60.0, 1000.0],
    "total_steps": [480.0, 60.0, 90.0, 1000.0],
    "arrival_seconds": [0.0, 400.0, 200.0, 500.0],
    "elapsed_seconds": [500.0, 100.0, 300.0, 0.0],
    "waiting_seconds": [0.0, 100.0, 60.0, 0.0],
    "isolated_seconds": [250.0, 0.0, 75.0, 0.0],
    "attained_gpu_seconds": [400.0, 0.0, 100.0, 0.0],
    "deadlines_seconds": [600.0, 30.0, 3600.0, 3600.0],
}
"""Further arrays of the jobs in fixed cases, repeated: short and long, light and heavy, early and late jobs."""

FIXED: tuple[Case, ...] = (
    {"throughputs": [[1.0]], "capacities": [1]},
    {"throughputs": [[2.0], [2.0]], "capacities": [1]},  # equal in every array
    {"throughputs": [[2.0], [3.0]], "capacities": [4]},  # more GPUs than jobs
    {"throughputs": [[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]], "capacities": [1, 1]},
    {"throughputs": [[4.0, 1.0], [0.0, 0.0], [0.0, 2.0]], "capacities": [1, 1]},  # zeros, and a job that cannot run
    {"throughputs": [[4.0, 1.0], [2.0, 1.0], [1.0, 3.0]], "capacities": [2, 0]},  # a type without GPUs
    {"throughputs": [[1.0], [1.0], [1.0]], "capacities": [1], "steps_remaining": [240.0, 0.0, 60.0]},  # one has finished
    {"throughputs": [[8.0, 4.0], [6.0, 4.0], [4.0, 4.0], [3.0, 1.0]], "capacities": [4, 4], "num_gpus": [8, 4, 2, 1]},
    {"throughputs": [[9.0, 8.0], [7.0, 4.0], [4.0, 2.0], [2.0, 1.0]], "capacities": [12, 3], "num_gpus": [8, 4, 2, 1]},
    {"throughputs": [[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]], "capacities": [1, 1], "num_gpus": [0.25, 0.6, 1.0, 2.0]},
    {"throughputs": [[2.0, 1.0]] * 3 + [[3.0, 1.0]], "capacities": [1, 1], "weights": [1e-3, 1.0, 1e3, 1e3]},
    {"throughputs": [[1e-4, 1e4], [2.0, 1.0], [1e4, 1e4]], "capacities": [1, 1], "steps_remaining": [1.0, 1e9, 1e3]},
    {"throughputs": [[3.0, 2.0], [3.0, 1.0], [2.0, 2.0]], "capacities": [1.5, 1]},  # a part of a GPU
    {"throughputs": [[2.0, 1.0], [3.0, 1.0]], "capacities": [1, 1], "deadlines_seconds": [NAN, -600.0]},  # none, and past
    {
        "throughputs": [[2.0, 1.0], [3.0, 1.0], [2.0, 2.0]],
        "capacities": [1, 1],
        "running_on": [1, -1, 0],
        "previous_fractions": [[0.0, 1.0], [0.0, 0.0], [0.5, 0.0]],
        "uncertainty": [[0.0, 0.3], [0.1, 0.0], [2.0, 0.5]],
    },
)


def cases(seed: int, count: int, first_type: str | None) -> list[Case]:
    """Return the fixed and `count` random cases, the smallest first; `first_type`: name of the first accelerator type."""
    random = np.random.default_rng(seed)
    found = [_complete(case) for case in FIXED] + [_random(random) for _ in range(count)]
    if first_type is not None:
        others = [name for name in (f"type-{j}" for j in range(9)) if name != first_type]
        found = [case | {"accelerator_types": [first_type, *others][: len(case["capacities"])]} for case in found]
    return sorted(found, key=lambda case: job_count(case) * len(case["capacities"]))


def job_count(case: Case) -> int:
    """Return N."""
    return len(case["throughputs"])


def with_jobs(case: Case, rows: list[int]) -> Case:
    """Return the case with some of its jobs, in this order."""
    return {name: [values[i] for i in rows] if name not in BY_TYPE else values for name, values in case.items()}


def with_types(case: Case, columns: list[int]) -> Case:
    """Return the case with some of its accelerator types; jobs on removed types no longer run."""
    kept: Case = {name: values if name not in BY_TYPE else [values[j] for j in columns] for name, values in case.items()}
    for name in ("throughputs", "previous_fractions", "uncertainty"):
        if name in case:
            kept[name] = [[row[j] for j in columns] for row in case[name]]
    if "running_on" in case:
        kept["running_on"] = [columns.index(j) if j in columns else -1 for j in case["running_on"]]
    return kept


def _complete(case: Case) -> Case:
    """Return the case with prices and all arrays of jobs, so that every policy can read them."""
    jobs, types = job_count(case), len(case["capacities"])
    history = {name: (values * jobs)[:jobs] for name, values in HISTORIES.items()}
    if len({tuple(row) for row in case["throughputs"]}) == 1 and "steps_remaining" not in case:
        history = {name: values[:1] * jobs for name, values in history.items()}  # jobs with equal throughputs are equal in all
    left, total = case.get("steps_remaining", history["steps_remaining"]), history["total_steps"]
    totals = [max(steps) for steps in zip(left, total, strict=True)]
    others = {"job_ids": [f"job-{i}" for i in range(jobs)], "prices_per_hour": [3.0, 1.0, 2.0, 0.5][:types]}
    return history | {"total_steps": totals} | others | case


def _random(random: np.random.Generator) -> Case:
    """Return a case of a few groups of equal jobs: many ties, some zeros and oversized gangs, values over orders of magnitude."""
    jobs, types, groups = (int(random.integers(low, high)) for low, high in ((2, 13), (1, 5), (1, 9)))
    running = np.where(random.random(groups) < 0.3, random.integers(0, types, groups), -1)
    by_group = _histories(random, groups) | {
        "throughputs": random.choice([0.0, 1.0, 2.0, 4.0, *_spread(random, 4, 100.0)], (groups, types)),
        "tenants": random.choice(["red", "blue"], groups),
        "weights": random.choice([1.0, 1.0, *_spread(random, 2, 1e3)], groups),
        "priorities": random.choice([0.0, 1.0, 5.0], groups),
        "running_on": running,
        "previous_fractions": (np.arange(types) == running[:, None]) * 0.5,
        "uncertainty": np.where(running[:, None] < 0, [0.0, 0.2, 0.5, 0.1][:types], 0.0),  # estimated, if it has not run yet
    }
    group = random.integers(0, groups, jobs)
    case: Case = {name: values[group].tolist() for name, values in by_group.items()}
    case["capacities"] = (random.choice([0, 1, 1, 2, 4, 8], types) + (np.arange(types) == 0)).tolist()
    case["prices_per_hour"] = random.choice([0.5, 1.0, 2.0, 3.0], types).tolist()
    case["job_ids"] = [f"job-{i}" for i in random.permutation(jobs)]
    return case


def _histories(random: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    """Return gang sizes, steps and times of `count` groups of jobs."""
    gangs = random.choice(np.array([[1], [1, 2], [1, 2, 4, 8]][random.integers(0, 3)]), count)
    total = random.choice(_spread(random, 3, 1e4) * 100, count)
    left = np.maximum(1.0, np.round(total * random.choice([0.1, 0.5, 1.0], count)))
    elapsed = random.choice(_spread(random, 3, 10.0) * 1000 * (random.random(3) < 0.7), count)
    return {
        "num_gpus": gangs,
        "steps_remaining": np.where(random.random(count) < 0.05, 0.0, left),
        "total_steps": np.maximum(total, left),
        "arrival_seconds": 20000.0 - elapsed,
        "elapsed_seconds": elapsed,
        "waiting_seconds": np.round(elapsed * random.choice([0.0, 0.5, 1.0], count)),
        "isolated_seconds": np.round(elapsed * random.choice([0.0, 0.2], count)),
        "attained_gpu_seconds": np.round(elapsed * gangs * random.choice([0.0, 0.5], count)),
        "deadlines_seconds": random.choice([60.0, 3600.0, 1e6], count),
    }


def _spread(random: np.random.Generator, count: int, factor: float) -> NDArray[np.float64]:
    """Return numbers with two digits between 1/factor and factor, uniform in their logarithm."""
    logs = random.uniform(-math.log10(factor), math.log10(factor), count)
    return np.array([float(f"{10**value:.1e}") for value in logs])
