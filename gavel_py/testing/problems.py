"""The problems on which a policy is tried: small and degenerate ones by hand, and random ones that are the same for a seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Case = dict[str, Any]
"""What `AllocationProblem.from_arrays` takes, as lists: throughputs, capacities and whatever else matters."""

BY_JOB = (
    *("throughputs", "job_ids", "tenants", "num_gpus", "weights", "priorities", "steps_remaining", "total_steps"),
    *("arrival_seconds", "elapsed_seconds", "waiting_seconds", "isolated_seconds", "attained_gpu_seconds", "deadlines_seconds"),
    *("running_on", "previous_fractions"),
)
"""The arrays with one entry or row per job; the others have one per accelerator type."""

NAN = math.nan

# No job can be given any time in these.
EMPTY_CASES: tuple[Case, ...] = (
    {"throughputs": [], "capacities": [4, 4]},
    {"throughputs": [[1.0, 2.0]], "capacities": [0, 0]},
    {"throughputs": [[0.0]], "capacities": [4]},
    {"throughputs": [[1.0]], "capacities": [4], "num_gpus": [8]},
    {"throughputs": [[1.0]], "capacities": [4], "steps_remaining": [0.0], "total_steps": [100.0]},
)

# What there is to a job beside throughputs and gangs, for cases by hand: short and long, light and heavy, early and late ones.
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

BY_HAND: tuple[Case, ...] = (
    {"throughputs": [[1.0]], "capacities": [1]},
    {"throughputs": [[2.0], [2.0]], "capacities": [1]},  # equal in all
    {"throughputs": [[2.0], [3.0]], "capacities": [4]},  # more GPUs than jobs
    {"throughputs": [[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]], "capacities": [1, 1]},
    {"throughputs": [[4.0, 1.0], [0.0, 0.0], [0.0, 2.0]], "capacities": [1, 1]},  # zeros, and a job that runs nowhere
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
    },
)


def cases(seed: int, count: int, first_type: str | None) -> list[Case]:
    """Return the cases by hand and `count` random ones, the smallest first; `first_type` is what the first type is called."""
    chance = np.random.default_rng(seed)
    found = [_complete(case) for case in BY_HAND] + [_random(chance) for _ in range(count)]
    if first_type is not None:
        found = [case | {"accelerator_types": _types(first_type, len(case["capacities"]))} for case in found]
    return sorted(found, key=lambda case: job_count(case) * len(case["capacities"]))


def job_count(case: Case) -> int:
    """Return N."""
    return len(case["throughputs"])


def with_jobs(case: Case, rows: list[int]) -> Case:
    """Return the case with these jobs only, in this order."""
    return {name: [values[i] for i in rows] if name in BY_JOB else values for name, values in case.items()}


def with_types(case: Case, columns: list[int]) -> Case:
    """Return the case with these accelerator types only; nobody runs on one that is gone."""
    kept: Case = {name: values if name in BY_JOB else [values[j] for j in columns] for name, values in case.items()}
    for name in ("throughputs", "previous_fractions"):
        if name in case:
            kept[name] = [[row[j] for j in columns] for row in case[name]]
    if "running_on" in case:
        kept["running_on"] = [columns.index(j) if j in columns else -1 for j in case["running_on"]]
    return kept


def _complete(case: Case) -> Case:
    """The case with prices, and with a history for each job, so that every policy finds what it reads."""
    jobs, types = job_count(case), len(case["capacities"])
    history = {name: (values * jobs)[:jobs] for name, values in HISTORIES.items()}
    if len({tuple(row) for row in case["throughputs"]}) == 1 and "steps_remaining" not in case:
        history = {name: values[:1] * jobs for name, values in history.items()}  # jobs that are equal are so in all
    left, total = case.get("steps_remaining", history["steps_remaining"]), history["total_steps"]
    totals = [max(steps) for steps in zip(left, total, strict=True)]
    others = {"job_ids": [f"job-{i}" for i in range(jobs)], "prices_per_hour": [3.0, 1.0, 2.0, 0.5][:types]}
    return history | {"total_steps": totals} | others | case


def _types(first: str, count: int) -> list[str]:
    others = (name for name in (f"type-{j}" for j in range(count + 1)) if name != first)
    return [first, *(name for name, _ in zip(others, range(1, count), strict=False))]


def _random(chance: np.random.Generator) -> Case:
    """A case of a few kinds of jobs, in which much is tied, some is zero or too large to fit, and some is far apart."""
    jobs, types, kinds = (int(chance.integers(low, high)) for low, high in ((2, 13), (1, 5), (1, 9)))
    running = np.where(chance.random(kinds) < 0.3, chance.integers(0, types, kinds), -1)
    by_kind = _histories(chance, kinds) | {
        "throughputs": chance.choice([0.0, 1.0, 2.0, 4.0, *_spread(chance, 4, 100.0)], (kinds, types)),
        "tenants": chance.choice(["red", "blue"], kinds),
        "weights": chance.choice([1.0, 1.0, *_spread(chance, 2, 1e3)], kinds),
        "priorities": chance.choice([0.0, 1.0, 5.0], kinds),
        "running_on": running,
        "previous_fractions": (np.arange(types) == running[:, None]) * 0.5,
    }
    kind = chance.integers(0, kinds, jobs)
    case: Case = {name: values[kind].tolist() for name, values in by_kind.items()}
    case["capacities"] = (chance.choice([0, 1, 1, 2, 4, 8], types) + (np.arange(types) == 0)).tolist()
    case["prices_per_hour"] = chance.choice([0.5, 1.0, 2.0, 3.0], types).tolist()
    case["job_ids"] = [f"job-{i}" for i in chance.permutation(jobs)]
    return case


def _histories(chance: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    """Gangs, steps and times of so many kinds of jobs."""
    gangs = chance.choice(np.array([[1], [1, 2], [1, 2, 4, 8]][chance.integers(0, 3)]), count)
    total = chance.choice(_spread(chance, 3, 1e4) * 100, count)
    left = np.maximum(1.0, np.round(total * chance.choice([0.1, 0.5, 1.0], count)))
    elapsed = chance.choice(_spread(chance, 3, 10.0) * 1000 * (chance.random(3) < 0.7), count)
    return {
        "num_gpus": gangs,
        "steps_remaining": np.where(chance.random(count) < 0.05, 0.0, left),
        "total_steps": np.maximum(total, left),
        "arrival_seconds": 20000.0 - elapsed,
        "elapsed_seconds": elapsed,
        "waiting_seconds": np.round(elapsed * chance.choice([0.0, 0.5, 1.0], count)),
        "isolated_seconds": np.round(elapsed * chance.choice([0.0, 0.2], count)),
        "attained_gpu_seconds": np.round(elapsed * gangs * chance.choice([0.0, 0.5], count)),
        "deadlines_seconds": chance.choice([60.0, 3600.0, 1e6], count),
    }


def _spread(chance: np.random.Generator, count: int, factor: float) -> NDArray[np.float64]:
    """Numbers of two digits between 1/factor and factor, evenly spread over the orders of magnitude."""
    logs = chance.uniform(-math.log10(factor), math.log10(factor), count)
    return np.array([float(f"{10**value:.1e}") for value in logs])
