"""The arrays of a problem: element types, names, defaults and validation rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

RunningOn = Sequence[int | str | None] | NDArray[np.int64] | None

JOB_COLUMNS: dict[str, tuple[float, str]] = {
    "num_gpus": (1, "GPUs"),
    "weights": (1, "greater than 0"),
    "priorities": (0, "finite"),
    "steps_remaining": (np.nan, "at least 0"),
    "total_steps": (np.nan, "greater than 0"),
    "arrival_seconds": (0, "finite"),
    "elapsed_seconds": (0, "at least 0"),
    "waiting_seconds": (0, "at least 0"),
    "isolated_seconds": (0, "at least 0"),
    "attained_gpu_seconds": (0, "at least 0"),
    "deadlines_seconds": (np.nan, "finite or NaN"),
}
"""The (N,) arrays of numbers, with their default and validation rule (`array_validation.RULES`)."""

JOB_ATTRIBUTES = (*JOB_COLUMNS, "tenants", "running_on", "previous_fractions", "job_ids")
"""The arrays with one entry or row per job, other than throughputs and eligibility."""

UNKNOWN_WORK = {"steps_remaining": (np.nan, "at least 0 or NaN"), "total_steps": (np.nan, "at least 0 or NaN")}
"""Rules for `from_jobs`, where jobs may omit their number of steps; in `from_arrays`, NaN is a fault."""


class OptionalArrays(TypedDict, total=False):
    """The optional arguments of `from_arrays` and `from_types`."""

    accelerator_types: Sequence[str] | None
    prices_per_hour: ArrayLike | None
    job_ids: Sequence[object] | None
    tenants: Sequence[str] | None
    num_gpus: ArrayLike | None
    weights: ArrayLike | None
    priorities: ArrayLike | None
    steps_remaining: ArrayLike | None
    total_steps: ArrayLike | None
    arrival_seconds: ArrayLike | None
    elapsed_seconds: ArrayLike | None
    waiting_seconds: ArrayLike | None
    isolated_seconds: ArrayLike | None
    attained_gpu_seconds: ArrayLike | None
    deadlines_seconds: ArrayLike | None
    running_on: RunningOn
    previous_fractions: ArrayLike | None
    pair_kinds: ArrayLike | None
    pair_throughputs: ArrayLike | None


def isolated_shares(num_gpus: Floats, capacities: Floats, num_jobs: int) -> Floats:
    """Return (N, K) time fractions of the isolated share, 1/num_jobs of each type: (c_j / N) / s_i, divided by max(1, Σ_j x_ij)."""
    times = capacities / max(1, num_jobs) / num_gpus[:, None]
    times /= np.maximum(1.0, times.sum(axis=1, keepdims=True))
    return times


def isolated_throughputs(throughputs: Floats, num_gpus: Floats, capacities: Floats, num_jobs: int) -> Floats:
    """Return (N,) Σ_j T_ij x_ij in the isolated share x (`isolated_shares`).

    The normaliser of finish-time fairness (Themis, NSDI 2020; Gavel, OSDI 2020, section 4.2).
    """
    speeds: Floats = (throughputs * isolated_shares(num_gpus, capacities, num_jobs)) @ np.ones(len(capacities))
    return speeds


def table_shape(field: str, rows: str, table: ArrayLike, capacities: ArrayLike) -> tuple[int, int]:
    """Return (rows, K) of a table, K from the capacities if it is empty; raises `InputError` if it does not fit them."""
    try:
        shape, columns = np.shape(table), np.shape(capacities)
    except ValueError:
        raise InputError(Fault("", field, "must be a table: as many numbers in each row as there are capacities")) from None
    if len(columns) != 1:
        raise InputError(Fault("", "capacities", f"must be a list with one number per accelerator type, found shape {columns}"))
    if 0 in shape:
        return shape[0], columns[0]
    if len(shape) != 2 or shape[1] != columns[0]:
        raise InputError(Fault("", field, f"must have the shape ({rows}, {columns[0]}) to fit the capacities, found {shape}"))
    return shape[0], shape[1]


def plain_size(num_gpus: float) -> int | float:
    """Return the GPUs of a gang as an int if they are whole, else as a float."""
    return int(num_gpus) if num_gpus >= 1 else float(num_gpus)


def size_numbers(num_gpus: Floats) -> Indices:
    """Return an integer for each gang, equal exactly for equal sizes; small integers make equal rows fast to find.

    Whole gangs have their number of GPUs, fractions their bit pattern, which is larger. A broadcast array stays one number in
    memory.
    """
    if num_gpus.strides == (0,):
        return np.broadcast_to(size_numbers(num_gpus[:1].copy()), num_gpus.shape)
    return np.where(num_gpus >= 1, num_gpus, 0).astype(np.int64) | np.where(num_gpus >= 1, 0.0, num_gpus).view(np.int64)
