"""Who holds what a job could use and has not: the jobs it competes with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.explain.records import Holder, Others
from gavel_py.problem.problem import AllocationProblem

__all__ = ["holders_of"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_NAMED = 5
"""Holders that are told by name."""

SOME = 1e-5
"""A holding below this, in GPUs, does not make a job one of the holders."""


def holders_of(problem: AllocationProblem, fractions: Floats, i: int, relevant: Mask) -> tuple[tuple[Holder, ...], Others]:
    """Return the jobs besides i that hold the most GPUs where it matters, and all others together.

    fractions: (N, K); relevant: (N, K) where a job's time is what job i could use.
    """
    held = np.where(relevant, problem.num_gpus[:, None] * fractions, 0.0)
    held[i] = 0.0
    totals = held.sum(axis=1)
    there = np.flatnonzero(totals > SOME)
    order = there[np.argsort(-totals[there], kind="stable")]
    types = np.flatnonzero(relevant.any(axis=0)).tolist()
    named = tuple(Holder(problem.job_ids[k], _by_type(problem, types, held[k])) for k in order[:MOST_NAMED].tolist())
    rest = held.sum(axis=0) - held[order[:MOST_NAMED]].sum(axis=0)
    return named, Others(max(0, len(order) - MOST_NAMED), _by_type(problem, types, np.maximum(0.0, rest)))


def _by_type(problem: AllocationProblem, types: list[int], gpus: Floats) -> dict[str, float]:
    return {problem.accelerator_types[j]: float(gpus[j]) for j in types}
