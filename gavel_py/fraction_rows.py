"""What the cutting of GPUs costs: rows that keep fractions from being promised which no packing on single GPUs can deliver.

Let f be a function with f(s_1) + f(s_2) + ... <= 1 wherever s_1 + s_2 + ... <= 1 (a dual feasible function). At any one time a GPU
holds jobs whose fractions sum to at most 1, or is one of a whole gang's, so that Σ_i f(s_i) X_ij <= c_j with f(s) = s for whole
gangs, whatever is where. Such functions are

    cut_λ(s) = 0 below λ, 1 above 1 - λ, and s between, for 0 < λ <= 1/2:  nothing else fits beside a large job but small ones;
    part_k(s) = s where (k+1) s is whole, or else ⌊(k+1) s⌋ / k:  of jobs above 1/(k+1), k fit,

and what they make of each other (Martello and Toth, 1990; Fekete and Schepers, 2001).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem import AllocationProblem
from gavel_py.rules import Load
from gavel_py.whole_gangs import LEAST_EXCESS, ONE_EACH

__all__ = ["fraction_rows"]

Floats = NDArray[np.float64]

MOST_PARTS = 20
"""The largest k. What jobs of a twentieth lose by rounding is at most as much again."""

ROUNDING = 1e-9


def fraction_rows(
    problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH
) -> list[Load]:
    """Return the row for each type that (N, K) `fractions` break most, of those that every packing keeps; none if they break none.

    columns: as in `gang_rows`. None for a problem that was not built from a cluster.
    """
    if problem.hosts is None or (problem.num_gpus >= 1).all():
        return []
    sizes, of = np.unique(problem.num_gpus, return_inverse=True)
    table = _counted(sizes)
    rows = []
    for j, gpus in enumerate(problem.capacities.tolist()):
        parts = columns.get(j, {j: 1.0})
        times = sum((fractions[:, column] * part for column, part in parts.items()), np.zeros(len(of)))
        asked = table @ np.bincount(of, times, len(sizes))
        most = int(asked.argmax())
        if asked[most] > gpus + LEAST_EXCESS * max(1.0, gpus):
            loads = {column: table[most][of] * part for column, part in parts.items()}
            rows.append(Load(f"what fractions of {problem.accelerator_types[j]} can use", loads, len(problem.capacities), gpus))
    return rows


def _counted(sizes: Floats) -> Floats:
    """(F, S) what a job of each size counts for by each function, by size itself for whole gangs."""
    small = sizes[sizes <= 1 / 2]
    cuts = [sizes, *(_cut(sizes, least) for least in small.tolist())]
    every = [*cuts, *(_part(each, k) for each in cuts for k in range(1, _most_parts(sizes) + 1))]
    return np.where(sizes >= 1, sizes, np.unique(every, axis=0))


def _most_parts(sizes: Floats) -> int:
    return min(MOST_PARTS, int(1 / sizes[0] + ROUNDING))


def _cut(sizes: Floats, least: float) -> Floats:
    return np.where(sizes < least - ROUNDING, 0.0, np.where(sizes > 1 - least + ROUNDING, 1.0, sizes))


def _part(sizes: Floats, k: int) -> Floats:
    multiples = (k + 1) * sizes
    whole = np.abs(multiples - np.round(multiples)) < ROUNDING
    return np.where(whole, sizes, np.floor(multiples) / k)
